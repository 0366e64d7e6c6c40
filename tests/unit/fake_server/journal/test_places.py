"""Segments that are archived, compressed and removed while the journal is in use."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from haclient_fake_server.engine.journal import Block, Cursor, records_of
from haclient_fake_server.journal.files import SPARE_PREFIX, JournalFiles
from haclient_fake_server.journal.format import (
    SEGMENT_HEADER_BYTES,
    Record,
    encode_record,
    manifest_name,
    segment_name,
)
from haclient_fake_server.journal.places import MEMBER_BYTES, SegmentPlaces
from haclient_stores.disk.files import Disk, File, RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked
from support.disks import WatchedDisk
from support.recording import Crash, Event, RecordingDisk, failing_sync, kills, power_cuts

HOME, ARCHIVE = "log", "archive"


def opened(root: Path, disk: Disk | None = None, *, archive: bool = True) -> JournalFiles:
    return JournalFiles(
        root / HOME,
        disk or RealDisk(),
        segment_bytes=4096,
        instance_id=1,
        archive=root / ARCHIVE if archive else None,
        preallocated_files=2,
    )


def append(journal: JournalFiles, count: int = 1, *, size: int = 600) -> None:
    for _ in range(count):
        position = journal.next_position
        record = Record(position, 7, 10 * position, 1000 * position, 1, payload=b"x" * size)
        data = encode_record(record)
        sequences = {7: (record.sequence, record.sequence)}
        times = record.timestamp_us
        journal.append(Block(data, 1, position, position + 1, times, times, sequences))
    while journal.has_unsealed:
        journal.seal()


def filled(root: Path, count: int = 30, disk: Disk | None = None) -> JournalFiles:
    journal = opened(root, disk)
    append(journal, count)
    return journal


def positions(journal: JournalFiles, cursor: Cursor | None = None) -> list[int]:
    found: list[int] = []
    at = cursor or journal.seek(1)
    while True:
        chunk, at = journal.read(at, 1000)
        if not chunk:
            return found
        found += [each.position for each in records_of(chunk) if each.position]


def copy(journal: JournalFiles, number: int, *, compress: bool) -> None:
    journal.use_copy(number, journal.copy_sealed(number, compress=compress))
    journal.finish_copy(number)


def remove(journal: JournalFiles) -> int:
    number = journal.forget_oldest()
    journal.remove_files(number)
    return number


@pytest.mark.row("TL8")
def test_an_archived_segment_is_replayed_also_by_the_next_start(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    before = positions(journal)
    copy(journal, 1, compress=False)
    assert positions(journal) == before
    assert not (tmp_path / HOME / segment_name(1)).exists()
    assert (tmp_path / ARCHIVE / segment_name(1)).exists()
    journal.close()
    assert positions(opened(tmp_path)) == before


@pytest.mark.row("TL8")
def test_an_archived_file_that_is_missing_is_away_and_was_not_removed(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=False)
    file, away = tmp_path / ARCHIVE / segment_name(1), tmp_path / "away"
    file.rename(away)  # as while the archive is copied back, with its lock first
    with pytest.raises(StoreError, match=f"{file.name}: is away"):
        journal.has_segment(1)
    away.rename(file)
    assert journal.has_segment(1)
    journal.close()


def test_a_start_without_the_archive_names_it_and_not_a_missing_file(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 2, compress=False)
    journal.close()
    with pytest.raises(StoreError, match=r"00002 was archived.* as --archive \(archive_dir\)$"):
        opened(tmp_path, archive=False)


@pytest.mark.row("TL9")
@pytest.mark.parametrize("archived_first", [True, False])
def test_a_compressed_segment_is_replayed_and_any_program_can_read_it(
    tmp_path: Path, *, archived_first: bool
) -> None:
    journal = filled(tmp_path)
    before, end = positions(journal), journal.segments[2].end
    content = (tmp_path / HOME / segment_name(2)).read_bytes()[:end]
    for compress in (False, True) if archived_first else (True, False):
        copy(journal, 2, compress=compress)
    assert positions(journal) == before
    found = tmp_path / ARCHIVE / (segment_name(2) + ".gz")
    assert gzip.decompress(found.read_bytes()) == content
    assert len([*tmp_path.glob("*/journal.00000002*")]) == 2  # with its manifest
    journal.close()
    assert positions(opened(tmp_path)) == before


def test_a_start_with_the_archive_of_another_log_removes_nothing_of_it(tmp_path: Path) -> None:
    journal = filled(tmp_path, 60)
    for number in range(1, 9):
        copy(journal, number, compress=False)
    journal.close()
    before = sorted((tmp_path / ARCHIVE).iterdir())
    other = JournalFiles(tmp_path / "other", WatchedDisk(), segment_bytes=4096, instance_id=2)
    append(other, 7, size=900)
    other.close()
    with pytest.raises(StoreError, match=r"archive/journal.* is of the log of another broker"):
        JournalFiles(
            tmp_path / "other",
            WatchedDisk(boot=b"the next boot..."),
            segment_bytes=4096,
            instance_id=2,
            archive=tmp_path / ARCHIVE,
        )
    assert sorted((tmp_path / ARCHIVE).iterdir()) == before


def test_a_file_that_was_allocated_and_removed_is_made_again(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    (spare,) = (tmp_path / HOME).glob(f"{SPARE_PREFIX}*")
    spare.unlink()
    append(journal, 30)
    assert positions(journal) == list(range(1, 61))
    journal.close()
    assert positions(opened(tmp_path)) == list(range(1, 61))


def test_blocks_that_reach_over_the_parts_of_a_compressed_file_are_read(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RealDisk(), segment_bytes=3 * MEMBER_BYTES, instance_id=1)
    append(journal, 60, size=40_000)
    copy(journal, 1, compress=True)
    assert positions(journal) == list(range(1, 61))
    assert journal.find(7, 100) == 10


@pytest.mark.row("TL10")
def test_a_removed_segment_is_gone_and_a_reader_at_its_end_goes_on(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    first = journal.segments[1]
    at_end = Cursor(1, first.end)
    rest = list(range(first.manifest.next_position, 31))
    assert remove(journal) == 1
    assert positions(journal, at_end) == positions(journal) == rest
    assert journal.first_position == rest[0]
    journal.close()
    assert not [*tmp_path.glob(f"*/{segment_name(1)}*")]
    assert positions(opened(tmp_path)) == rest


@pytest.mark.parametrize("compress", [True, False])
def test_a_damaged_segment_is_neither_copied_nor_removed(tmp_path: Path, *, compress: bool) -> None:
    journal = filled(tmp_path)
    path = tmp_path / HOME / segment_name(1)
    data = bytearray(path.read_bytes())
    data[journal.segments[1].end - 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=rf"{segment_name(1)}.*\d+"):
        journal.copy_sealed(1, compress=compress)
    assert path.exists()


def test_a_damaged_compressed_segment_is_not_archived(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=True)
    path = tmp_path / HOME / (segment_name(1) + ".gz")
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=segment_name(1)):
        journal.copy_sealed(1, compress=False)
    assert not (tmp_path / ARCHIVE / path.name).exists()


@pytest.mark.row("TL16")
@pytest.mark.parametrize("at", [0, 100, -3])
def test_damage_in_a_compressed_segment_is_refused_with_file_and_place(
    tmp_path: Path, at: int
) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=True)
    path = tmp_path / HOME / (segment_name(1) + ".gz")
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=rf"{segment_name(1)}\.gz"):
        positions(journal)


def test_a_new_log_does_not_begin_with_the_archive_of_another_one(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=False)
    journal.close()
    with pytest.raises(StoreError, match="is of the log of another broker: give each broker an"):
        JournalFiles(
            tmp_path / "other",
            RealDisk(),
            segment_bytes=4096,
            instance_id=2,
            archive=tmp_path / ARCHIVE,
        )


def test_an_archive_that_is_not_there_is_missed(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=False)
    journal.close()
    with pytest.raises(StoreError, match=r"was archived, .* the directory that does") as raised:
        opened(tmp_path, archive=False)
    assert not isinstance(raised.value, StoreCorrupt)  # nothing is damaged


def test_an_archive_is_of_one_log(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    with pytest.raises(StoreLocked, match=ARCHIVE):
        JournalFiles(
            tmp_path / "other",
            RealDisk(),
            segment_bytes=4096,
            instance_id=2,
            archive=tmp_path / ARCHIVE,
        )
    journal.close()


def test_a_disk_that_fails_leaves_the_segment_and_no_part_of_a_copy() -> None:
    disk = RecordingDisk([])
    journal = filled(Path("/broker"), disk=disk)
    with failing_sync(disk):
        journal.copy_sealed(1, compress=True)
    assert not [each for each in disk.image() if "00000001" in each.name and ".gz" in each.name]
    assert positions(journal) == list(range(1, 31))


def test_a_lost_manifest_of_a_compressed_segment_is_built_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    journal = filled(tmp_path)
    before = positions(journal)
    copy(journal, 1, compress=True)
    copy(journal, 2, compress=False)
    journal.close()
    for number in (1, 2):
        (tmp_path / HOME / manifest_name(number)).unlink()
    journal = opened(tmp_path)
    assert positions(journal) == before
    assert journal.segments[1].manifest.sealed


def test_a_compressed_segment_is_never_written(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    copy(journal, 1, compress=True)
    places = SegmentPlaces(tmp_path / HOME, RealDisk())
    places.find()
    file = places.open(1)
    for change in (lambda: file.pwrite(b"x", 0), lambda: file.allocate(9), lambda: file.map(0, 9)):
        with pytest.raises(StoreError, match="never changed"):
            change()
    assert file.pread(10, file.size()) == b""
    assert file.pread(8, 0) == b"HAJOURNL"
    assert file.size() > SEGMENT_HEADER_BYTES
    file.close()


@pytest.mark.row("TL4", "TL8", "TL9", "TL10")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["append", "read", "archive", "compress", "remove", "restart"])))
def test_any_order_of_actions_gives_a_reader_the_order_of_the_log(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str]
) -> None:
    root = tmp_path_factory.mktemp("log")
    journal = filled(root, 12)
    cursor, seen = journal.seek(1), list[int]()
    for action in actions:
        sealed = [n for n, each in journal.segments.items() if each.manifest.sealed]
        match action:
            case "append":
                append(journal, 4)
            case "read":
                chunk, cursor = journal.read(cursor, 1500)
                seen += [each.position for each in records_of(chunk) if each.position]
            case "remove":
                # Nobody removes what a reader still needs.
                reached = seen[-1] if seen else 0
                if sealed and journal.segments[sealed[0]].manifest.next_position <= reached + 1:
                    remove(journal)
            case "restart":
                journal.close()
                journal = opened(root)
            case _:
                done = journal.is_compressed if action == "compress" else journal.is_archived
                left = [number for number in sealed if not done(number)]
                if left:
                    copy(journal, left[len(left) // 2], compress=action == "compress")
    seen += positions(journal, cursor)
    assert seen == list(range(1, journal.next_position))
    journal.close()


@pytest.mark.row("TL5")
def test_the_next_file_is_allocated_before_it_is_needed(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    (spare,) = (tmp_path / HOME).glob("journal.spare.*")
    assert spare.stat().st_size == 4096
    inode, number = spare.stat().st_ino, journal.live.number + 1
    append(journal, 6)
    assert (tmp_path / HOME / segment_name(number)).stat().st_ino == inode
    assert spare != next((tmp_path / HOME).glob("journal.spare.*"))
    journal.close()
    assert not [*(tmp_path / HOME).glob("journal.spare.*")]
    spare.write_bytes(b"x" * 4096)  # a killed broker leaves one
    journal = opened(tmp_path)
    assert not spare.exists()
    assert positions(journal) == list(range(1, 37))


def test_a_full_disk_prevents_no_more_than_the_next_roll(tmp_path: Path) -> None:
    class FullDisk(RealDisk):
        @override
        def create_new(self, path: Path, *, locked: bool = False) -> File:
            if "spare" in path.name:
                raise StoreError("no space")
            return super().create_new(path, locked=locked)

    assert positions(filled(tmp_path, disk=FullDisk())) == list(range(1, 31))


Crashes = Callable[[list[Event]], Iterator[Crash]]


@pytest.mark.row("TL5")
@pytest.mark.parametrize("crashes", [kills, power_cuts])
def test_a_crash_while_files_are_allocated_leaves_the_order_of_the_log(crashes: Crashes) -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    journal = opened(Path("/broker"), disk)
    for position in range(1, 14):
        append(journal)
        disk.note(position)
    for crash in crashes(events):
        found = positions(opened(Path("/broker"), crash.disk()))
        assert found == list(range(1, len(found) + 1))
        assert crashes is power_cuts or len(found) >= len(crash.notes)


@pytest.mark.row("TL8", "TL9", "TL10")
@pytest.mark.parametrize("crashes", [kills, power_cuts])
def test_a_crash_at_any_point_of_an_action_loses_nothing(crashes: Crashes) -> None:
    events: list[Event] = []
    root = Path("/broker")
    disk = RecordingDisk(events)
    journal = filled(root, 14, disk)
    journal.sync()
    begin, everything = len(events), list(range(1, 15))
    copy(journal, 1, compress=True)
    copy(journal, 2, compress=False)
    copy(journal, 1, compress=False)
    copy(journal, 2, compress=True)
    copied, second = len(events), journal.segments[2].manifest.first_position
    remove(journal)
    for crash in crashes(events):
        if crash.at < begin:
            continue
        found = positions(opened(root, crash.disk()))
        if crash.at < copied:
            assert found == everything
        else:
            assert found in (everything, everything[second - 1 :])
