"""The journal on disk: segments, recovery, refusals."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haclient_fake_server.engine.journal import Block, Cursor, records_of
from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_fake_server.journal import segments
from haclient_fake_server.journal.files import (
    LOCK_NAME,
    MAX_OPEN_SEGMENTS,
    PROGRESS_NAME,
    JournalFiles,
    ProgressFile,
)
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    INDEX_STRIDE_BYTES,
    SEGMENT_HEADER_BYTES,
    Manifest,
    Record,
    RecordCommand,
    RecordFlag,
    SegmentHeader,
    encode_block,
    encode_record,
    encode_removals,
    manifest_name,
    read_blocks,
    read_removals,
    segment_name,
    segment_number,
)
from haclient_stores.disk.files import Disk, RealDisk
from haclient_stores.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked
from haclient_stores.publish_stores.file import FilePublishStore
from support.disks import FullDisk, RefusingDisk, WatchedDisk
from support.lengths import length
from support.recording import Crash, Event, Image, RecordingDisk, kills, power_cuts

SEGMENT_BYTES = 4096


def open_journal(directory: Path, segment_bytes: int = SEGMENT_BYTES) -> JournalFiles:
    return JournalFiles(directory, RealDisk(), segment_bytes=segment_bytes, instance_id=1)


def block(position: int, count: int = 1, *, size: int = 100, publisher: int = 7) -> Block:
    """`count` records; sequence is ten times the position, time a thousand times."""
    records = [
        Record(number, publisher, 10 * number, 1000 * number, 1, payload=b"x" * size)
        for number in range(position, position + count)
    ]
    return Block(
        b"".join(map(encode_record, records)),
        count,
        position,
        position + count,
        records[0].timestamp_us,
        records[-1].timestamp_us,
        {publisher: (records[0].sequence, records[-1].sequence)},
    )


def definition(position: int) -> Block:
    """A block that defines topic 1 and marks publisher 9."""
    records = [
        Record(0, 0, 0, 0, 1, RecordCommand.TOPIC, key=b"json", payload=b"orders"),
        Record(0, 9, 99, 0, 0, RecordCommand.MARK),
    ]
    data = b"".join(map(encode_record, records))
    return Block(
        data, 2, position, position, 0, 0, definitions=((1, "json", "orders"),), marks=((9, 99, 0),)
    )


def size_of(block: Block) -> int:
    """The bytes that it takes in a file."""
    return BLOCK_HEADER_BYTES + len(block.records)


def everything(journal: JournalFiles, cursor: Cursor | None = None) -> list[Record]:
    found: list[Record] = []
    at = cursor or journal.seek(1)
    while True:
        chunk, at = journal.read(at, 1000)
        if not chunk:
            return found
        found += records_of(chunk)


def positions(journal: JournalFiles) -> list[int]:
    return [record.position for record in everything(journal) if record.position]


def filled(directory: Path, count: int = 100) -> JournalFiles:
    journal = open_journal(directory)
    journal.append(definition(1))
    for position in range(1, count + 1):
        journal.append(block(position))
    return journal


@pytest.mark.row("TL1")
def test_what_was_appended_is_there_after_a_restart(tmp_path: Path) -> None:
    filled(tmp_path).close()
    journal = open_journal(tmp_path)
    assert positions(journal) == list(range(1, 101))
    assert (journal.first_position, journal.next_position) == (1, 101)
    journal.append(block(101))
    journal.close()
    assert positions(open_journal(tmp_path))[-1] == 101


@pytest.mark.row("TL1", "TL7")
def test_what_was_appended_is_there_without_a_close(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    data = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    copy = tmp_path / "copy"
    copy.mkdir()
    for name, content in data.items():
        (copy / name).write_bytes(content)
    assert positions(open_journal(copy)) == list(range(1, 101))
    journal.close()


@pytest.mark.row("TL5")
def test_segments_are_preallocated_numbered_and_never_grow(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segments = [path for path in sorted(tmp_path.iterdir()) if path.suffix[1:].isdigit()]
    assert [path.name for path in segments[:2]] == ["journal.00000001", "journal.00000002"]
    assert {path.stat().st_size for path in segments} == {SEGMENT_BYTES}


@pytest.mark.row("TL1")
def test_each_segment_reads_alone(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    summary = everything(journal, Cursor(2, SEGMENT_HEADER_BYTES))
    first = next(record for record in summary if record.position)
    begin = summary[: summary.index(first)]
    (definition,) = [r for r in begin if r.command == RecordCommand.TOPIC]
    assert definition.payload == b"orders"
    assert [r.command for r in begin].count(RecordCommand.START) == 1
    marks = {r.publisher_id: r.sequence for r in begin if r.command == RecordCommand.MARK}
    assert marks == {9: 99, 7: 10 * (first.position - 1)}
    journal.close()


def test_a_block_larger_than_a_segment_gets_a_file_of_its_own_size(tmp_path: Path) -> None:
    journal = filled(tmp_path, 1)
    journal.append(block(2, size=3 * SEGMENT_BYTES))
    journal.append(block(3))
    assert positions(journal) == [1, 2, 3]
    journal.close()
    assert positions(open_journal(tmp_path)) == [1, 2, 3]


def test_reading_gives_whole_blocks_even_when_they_are_long(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, 1 << 20)
    journal.append(block(1, count=50))
    journal.append(block(51))
    chunk, after = journal.read(journal.seek(1), 10)
    assert [record.position for record in records_of(chunk)] == list(range(1, 51))
    chunk, after = journal.read(after, 10)
    assert [record.position for record in records_of(chunk)] == [51]
    assert journal.read(after, 10) == (b"", after)
    journal.close()


@pytest.mark.row("TL12")
def test_a_missing_middle_file_is_refused_by_name(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / segment_name(2)).unlink()
    with pytest.raises(StoreCorrupt, match=r"journal\.00000002: .*missing"):
        open_journal(tmp_path)


@pytest.mark.row("TL12")
def test_a_segment_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / segment_name(2)).replace(tmp_path / "elsewhere")
    (tmp_path / segment_name(3)).replace(tmp_path / segment_name(2))
    (tmp_path / manifest_name(3)).unlink()
    for path in tmp_path.glob("journal.0000000[4-9]*"):
        path.unlink()
    (tmp_path / manifest_name(2)).unlink()
    with pytest.raises(StoreCorrupt, match=r"this is segment 3: name it journal\.00000003"):
        open_journal(tmp_path)


def test_the_oldest_segments_may_be_gone(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / segment_name(1)).unlink()
    journal = open_journal(tmp_path)
    first = journal.first_position
    assert first > 1
    assert positions(journal) == list(range(first, 101))
    assert next(r.position for r in everything(journal, journal.seek(1)) if r.position) == first
    assert journal.at_time(0) == first
    assert journal.find(7, 10) is None
    journal.close()


@pytest.mark.row("TL16")
@settings(max_examples=length(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_tail_that_is_torn_anywhere_is_cut_and_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    directory = tmp_path / str(len(list(tmp_path.iterdir())))
    journal = filled(directory, 3)
    journal.close()
    path = directory / segment_name(1)
    content = path.read_bytes()
    whole = len(content.rstrip(b"\0"))
    size = size_of(block(3))
    cut = data.draw(st.integers(whole - size, whole - 1))
    junk = data.draw(st.binary(max_size=20))
    torn = content[:cut] + junk
    path.write_bytes(torn.ljust(len(content), b"\0"))
    again = open_journal(directory)
    kept = positions(again)
    assert kept[:2] == [1, 2]
    assert again.next_position == len(kept) + 1
    again.append(block(again.next_position))
    again.close()
    assert positions(open_journal(directory)) == [*kept, len(kept) + 1]


@pytest.mark.row("TL16")
def test_a_cut_tail_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, 2).close()
    _change(tmp_path / segment_name(1), lambda data, end: data[: end - 1])
    with caplog.at_level(logging.WARNING):
        open_journal(tmp_path).close()
    assert "journal.00000001: cut at byte " in caplog.text


@pytest.mark.row("TL16")
def test_damage_that_whole_blocks_follow_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    damaged = SEGMENT_HEADER_BYTES + 300
    _change(
        tmp_path / segment_name(1),
        lambda data, _: data[:damaged] + bytes([data[damaged] ^ 1]) + data[damaged + 1 :],
    )
    with pytest.raises(StoreCorrupt, match="a whole block follows"):
        open_journal(tmp_path)


@pytest.mark.row("TL16")
def test_damage_in_a_sealed_segment_is_refused_when_it_is_read(tmp_path: Path) -> None:
    filled(tmp_path).close()
    (tmp_path / manifest_name(1)).unlink()
    _change(tmp_path / segment_name(1), lambda data, end: data[: end - 5])
    with pytest.raises(StoreCorrupt, match="checksum"):
        open_journal(tmp_path)


def test_an_error_about_damage_says_where_copies_are(tmp_path: Path) -> None:
    copies = ("tcp://east:9007", "tcp://west:9007")

    def opened() -> JournalFiles:
        disk = RealDisk()
        return JournalFiles(
            tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1, copies=copies
        )

    told = "also at tcp://east:9007, tcp://west:9007"
    filled(tmp_path).close()
    _change(tmp_path / segment_name(1), lambda data, end: data[: end - 5])
    journal = opened()
    with pytest.raises(StoreCorrupt, match=told):
        everything(journal)
    journal.close()
    (tmp_path / manifest_name(1)).unlink()
    with pytest.raises(StoreCorrupt, match=told):
        opened()


def lose_power(directory: Path, boot: bytes = b"the next boot...") -> JournalFiles:
    """Open a journal as after another start of the machine."""
    disk = WatchedDisk(boot=boot)
    return JournalFiles(directory, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)


def clear(path: Path, begin: int, end: int) -> None:
    data = bytearray(path.read_bytes())
    data[begin:end] = bytes(end - begin)
    path.write_bytes(data)


def offsets(path: Path) -> list[int]:
    """Where the blocks of a segment begin."""
    number = segment_number(path.name)
    assert number is not None
    blocks = read_blocks(path.read_bytes(), SEGMENT_HEADER_BYTES, segment=number)
    return [each.offset for each in blocks]


@pytest.mark.row("TL16")
def test_what_a_loss_of_power_has_left_behind_a_hole_is_cut_and_never_comes_back(
    tmp_path: Path,
) -> None:
    journal = JournalFiles(tmp_path, WatchedDisk(), segment_bytes=2**14, instance_id=1)
    for position in range(1, 11):
        journal.append(block(position, size=300))
    journal.close()
    path = tmp_path / segment_name(1)
    at = offsets(path)  # of the start, then of the positions from 1 on
    clear(path, at[5], at[8])  # the pages of 5, 6 and 7 had not been written
    journal = lose_power(tmp_path)
    assert positions(journal) == [1, 2, 3, 4]
    start = at[1] - at[0]  # the new one takes room, so that the blocks end where the old 8 began
    for position, size in ((5, 300 - start), (6, 300), (7, 300)):
        journal.append(block(position, size=size))
    assert journal.seek(8).offset == at[8]
    assert not path.read_bytes()[at[8] :].strip(b"\0")
    journal.close()
    for boot in (b"the next boot...", b"one more boot..."):
        journal = lose_power(tmp_path, boot)
        assert positions(journal) == [1, 2, 3, 4, 5, 6, 7]
        journal.close()


@pytest.mark.row("TL16")
def test_a_block_that_does_not_join_the_one_before_it_is_no_part_of_the_log(
    tmp_path: Path,
) -> None:
    journal = JournalFiles(tmp_path, WatchedDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1)
    for position in (1, 2, 3):
        journal.append(block(position))
    end = journal.seek(4).offset
    journal.close()
    path = tmp_path / segment_name(1)
    stray = block(7)
    data = encode_block(stray.records, count=1, first_position=7, segment=1, offset=end)
    whole = path.read_bytes()
    path.write_bytes(whole[:end] + data + whole[end + len(data) :])
    with pytest.raises(StoreCorrupt, match="a block of position 7 follows one before 4"):
        JournalFiles(tmp_path, WatchedDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1)
    journal = lose_power(tmp_path)
    assert positions(journal) == [1, 2, 3]
    journal.close()


@pytest.mark.row("TL16")
def test_a_hole_is_damage_while_the_machine_has_not_started_again(tmp_path: Path) -> None:
    filled(tmp_path, 8).close()
    path = tmp_path / segment_name(1)
    at = offsets(path)
    clear(path, at[5], at[7])
    with pytest.raises(StoreCorrupt, match="zeros where a block should be, and a whole block"):
        open_journal(tmp_path)


@pytest.mark.row("TL16")
def test_a_hole_in_what_was_synced_is_damage_after_a_loss_of_power_too(tmp_path: Path) -> None:
    journal = filled(tmp_path, 5)
    journal.sync()
    for position in (6, 7, 8):
        journal.append(block(position))
    journal.close()
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    at = offsets(path)  # of the start, the definition, then the positions from 1 on
    clear(path, at[6], at[7])
    with pytest.raises(StoreCorrupt, match="and this was synced"):
        lose_power(tmp_path)
    path.write_bytes(whole)
    clear(path, at[7], at[8])
    journal = lose_power(tmp_path)
    assert positions(journal) == [1, 2, 3, 4, 5]
    journal.close()


@pytest.mark.row("TL16")
def test_segments_behind_what_a_loss_of_power_has_taken_are_removed(tmp_path: Path) -> None:
    journal = filled(tmp_path, 40)
    assert journal.next_position == 41
    names = sorted(path.name for path in tmp_path.glob("journal.0*"))
    assert len(names) > 2
    lost = tmp_path / "lost"
    lost.mkdir()
    for name in names:  # none of them is sealed yet
        (lost / name).write_bytes((tmp_path / name).read_bytes())
    journal.close()
    path = lost / segment_name(1)
    at = offsets(path)
    clear(path, at[5], at[6])
    journal = lose_power(lost)
    assert positions(journal) == [1, 2, 3]
    assert sorted(path.name for path in lost.glob("journal.0*")) == [segment_name(1)]
    journal.append(block(4))
    journal.close()


@pytest.mark.row("TL16")
@pytest.mark.parametrize("size", [0, 4096])
def test_a_segment_that_only_has_its_name_after_a_loss_of_power_is_begun_anew(
    tmp_path: Path, size: int
) -> None:
    journal = filled(tmp_path, 20)
    while journal.has_unsealed:
        journal.seal()
    last = journal.next_position - 1
    journal.close()
    number = max(filter(None, (segment_number(path.name) for path in tmp_path.iterdir())))
    (tmp_path / manifest_name(number)).unlink()
    (tmp_path / segment_name(number)).write_bytes(bytes(size))
    if size:  # an empty file hinders no start
        with pytest.raises(StoreCorrupt):
            open_journal(tmp_path)
    journal = lose_power(tmp_path)
    assert 1 < journal.next_position <= last
    begin = journal.next_position
    journal.append(block(begin))
    assert positions(journal) == list(range(1, begin + 1))
    marks = [r for r in records_of(journal.summary()) if r.command == RecordCommand.MARK]
    assert {mark.publisher_id for mark in marks} == {7, 9}
    journal.close()


def test_each_start_is_written_down_and_the_last_ones_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "MAX_LOG_STARTS", 16)
    for number in range(1, 20):
        journal = JournalFiles(
            tmp_path, RealDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1, start_id=number
        )
        starts = [(each.id, each.first_position) for each in journal.log_starts]
        assert starts == [(n, 10 * n - 9) for n in range(max(1, number - 15), number + 1)]
        for position in range(journal.next_position, journal.next_position + 10):
            journal.append(block(position))
        journal.close()


def test_a_restored_copy_of_a_log_has_other_starts(tmp_path: Path) -> None:
    live, restored = tmp_path / "live", tmp_path / "restored"
    JournalFiles(live, RealDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1, start_id=1).close()
    shutil.copytree(live, restored)
    starts = []
    for directory, number in ((live, 2), (restored, 3)):
        journal = JournalFiles(
            directory, RealDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1, start_id=number
        )
        starts.append([each.id for each in journal.log_starts])
        journal.close()
    assert starts == [[1, 2], [1, 3]]


def test_a_journal_of_a_newer_version_is_refused_and_is_not_called_corrupt(tmp_path: Path) -> None:
    filled(tmp_path, 3).close()
    path = tmp_path / segment_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + b"\x03\x00" + whole[10:])
    with pytest.raises(StoreError, match=r"journal version 3, but .* reads up to 2") as caught:
        open_journal(tmp_path)
    assert not isinstance(caught.value, StoreCorrupt)


def removals(position: int, *entries: tuple[int, int, int], queue: bytes = b"work") -> Block:
    """A block with nothing but removals from a queue."""
    data = encode_removals(queue, b"json", entries, now_us=1000 * position)
    return Block(data, 1, position, position, 1000 * position, 1000 * position)


def test_removals_from_a_queue_are_in_the_log_and_move_no_position(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    journal.append(removals(4, (7, 10, 1), (7, 20, 2)))
    journal.append(block(4))
    for _ in range(2):
        assert positions(journal) == [1, 2, 3, 4]
        (record,) = [r for r in everything(journal) if r.command == RecordCommand.QUEUE_REMOVE]
        assert read_removals(record) == (b"work", b"json", [(7, 10, 1), (7, 20, 2)])
        assert (journal.next_position, journal.find(7, 20)) == (5, 2)
        last = journal.last_before(5)
        assert last is not None
        assert last.position == 4
        journal.close()
        journal = open_journal(tmp_path)
    journal.close()


def test_a_log_may_end_with_whole_segments_of_removals(tmp_path: Path) -> None:
    journal = filled(tmp_path, 3)
    for _ in range(40):
        journal.append(removals(4, *[(7, 10, 1)] * 30))
    assert len(journal.segments) > 3
    journal.close()
    journal = open_journal(tmp_path)
    assert (journal.next_position, positions(journal)) == (4, [1, 2, 3])
    journal.append(block(4))
    assert positions(journal) == [1, 2, 3, 4]
    assert everything(journal, journal.seek(4))[-1].position == 4
    assert journal.highest_before(4) == {7: 30, 9: 99}
    journal.close()


def test_a_segment_that_was_removed_beside_the_broker_is_known_to_be_gone(tmp_path: Path) -> None:
    filled(tmp_path).close()
    journal = open_journal(tmp_path)
    assert journal.has_segment(1)
    (tmp_path / segment_name(1)).unlink()  # none of its files is open
    assert not journal.has_segment(1)
    assert not journal.has_segment(99)
    journal.read_bytes(2, 8, 64)
    (tmp_path / segment_name(2)).unlink()
    assert journal.has_segment(2), "it is open"
    assert journal.read_bytes(2, 8, 64).startswith(b"HAJB")
    journal.close()


# -- a journal of version 1 ----------------------------------------------------------------------

VERSION_1 = Path(__file__).parent / "version_1"
LIVE_OF_VERSION_1 = 2


def records_of_version_1() -> list[Record]:
    """What its writer has written, without the starts of later brokers."""
    texts = ("key", "correlation_id", "payload")
    return [
        Record(**{name: v.encode() if name in texts else v for name, v in fields.items()})
        for fields in json.loads((VERSION_1 / "records.json").read_text(encoding="ascii"))
    ]


def image_of_version_1(*, with_manifests: bool) -> Image:
    """The directory as a disk in memory."""
    names = [segment_name(1), segment_name(2)]
    if with_manifests:
        names += [manifest_name(1), manifest_name(2)]
    return {DISK / name: (VERSION_1 / name).read_bytes() for name in names}


DISK = Path("/disk")


def open_on(disk: Disk) -> JournalFiles:
    return JournalFiles(DISK, disk, segment_bytes=2048, instance_id=1, start_id=5)


def messages(journal: JournalFiles) -> list[Record]:
    return [record for record in everything(journal) if record.position]


@pytest.mark.parametrize("with_manifests", [False, True])
def test_a_journal_of_version_1_is_read_and_continued_in_a_segment_of_version_2(
    *, with_manifests: bool
) -> None:
    disk = RecordingDisk(image=image_of_version_1(with_manifests=with_manifests))
    journal = open_on(disk)
    wanted = [record for record in records_of_version_1() if record.position]
    assert messages(journal) == wanted
    next_position = wanted[-1].position + 1
    journal.append(removals(next_position, (9, 8, 1)))
    journal.append(block(next_position))
    journal.close()
    image = disk.image()
    for number in (1, LIVE_OF_VERSION_1, 3):
        data = image[DISK / segment_name(number)]
        version = 2 if number > LIVE_OF_VERSION_1 else 1
        assert SegmentHeader.decode(data).version == version
        blocks = [*read_blocks(data, SEGMENT_HEADER_BYTES, segment=number)]
        assert blocks
        assert {int.from_bytes(data[b.offset + 4 : b.offset + 6], "little") for b in blocks} == {
            version
        }
        manifest = Manifest.from_json(image[DISK / manifest_name(number)].decode())
        assert manifest.sealed == (number <= LIVE_OF_VERSION_1)
    for number in (1, LIVE_OF_VERSION_1):
        name = segment_name(number)
        assert image[DISK / name] == (VERSION_1 / name).read_bytes(), "not a byte was changed"
    journal = open_on(RecordingDisk(image=image))
    assert [record.position for record in messages(journal)] == [*range(1, next_position + 1)]
    assert len(journal.segments) == 3
    journal.close()


def test_a_torn_tail_of_version_1_is_cut_before_the_segment_is_sealed() -> None:
    image = image_of_version_1(with_manifests=False)
    path = DISK / segment_name(LIVE_OF_VERSION_1)
    manifest = Manifest.from_json((VERSION_1 / manifest_name(2)).read_text(encoding="ascii"))
    end = manifest.data_bytes
    image[path] = image[path][:end] + b"HAJB\x01\x00 torn" + image[path][end + 11 :]
    disk = RecordingDisk(image=image)
    journal = open_on(disk)
    assert messages(journal) == [record for record in records_of_version_1() if record.position]
    assert disk.image()[path] == (VERSION_1 / segment_name(2)).read_bytes()
    journal.close()


def test_an_empty_segment_of_version_1_is_sealed_too() -> None:
    path = DISK / segment_name(1)
    data = SegmentHeader(1, 1, 0, 1, version=1).encode().ljust(2048, b"\0")
    disk = RecordingDisk(image={path: data})
    for _ in range(2):
        journal = open_on(disk)
        assert (journal.next_position, journal.live.number) == (1, 2)
        journal.close()
        disk = disk.killed()
    journal = open_on(disk)
    journal.append(block(1))
    assert positions(journal) == [1]
    journal.close()


@pytest.mark.parametrize("crash", [kills, power_cuts])
def test_a_crash_at_any_point_of_the_change_of_versions_loses_nothing(
    crash: Callable[..., Iterator[Crash]],
) -> None:
    image = image_of_version_1(with_manifests=True)
    events: list[Event] = []
    disk = RecordingDisk(events, image=image)
    journal = open_on(disk)
    wanted = messages(journal)
    journal.append(removals(19, (9, 8, 1)))
    journal.sync()
    disk.note("removed")
    journal.close()
    count = 0
    for each in crash(events, base=image):
        count += 1
        reopened = open_on(each.disk())
        assert messages(reopened) == wanted
        found = [r for r in everything(reopened) if r.command == RecordCommand.QUEUE_REMOVE]
        assert bool(found) >= bool(each.notes)
        reopened.append(block(19))
        assert [record.position for record in messages(reopened)] == [*range(1, 20)]
        assert reopened.live.version == 2
        reopened.close()
    assert count > 10


def test_a_journal_of_many_segments_keeps_few_files_open(tmp_path: Path) -> None:
    disk = WatchedDisk()
    journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
    for position in range(1, 1001):
        journal.append(block(position))
        journal.seal()
    assert len(list(tmp_path.glob("*.manifest.json"))) > 2 * MAX_OPEN_SEGMENTS
    most = MAX_OPEN_SEGMENTS + 1  # and the lock
    assert disk.open_files <= most
    assert positions(journal) == list(range(1, 1001))
    assert disk.open_files <= most
    journal.close()
    assert disk.open_files == 0
    journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
    assert disk.open_files <= most
    assert journal.find(7, 10) == 1
    journal.close()


def test_a_prologue_that_outgrows_a_segment_leaves_room_for_blocks(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    topics = tuple((number, "json", "x" * 100) for number in range(1, 200))
    journal.append(Block(b"", 0, 1, 1, 0, 0, definitions=topics))
    for position in range(1, 101):
        journal.append(block(position))
    segments = len(list(tmp_path.glob("journal.0*")))
    assert segments <= 2 + 100 * size_of(block(1)) // (SEGMENT_BYTES // 2)
    journal.close()
    journal = open_journal(tmp_path)
    assert len(list(records_of(journal.summary()))) >= 199
    journal.close()


def test_sealing_syncs_while_blocks_are_appended(tmp_path: Path) -> None:
    """What a thread does: no append waits for it, and what is appended meanwhile is there."""
    disk = WatchedDisk()
    journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
    for position in range(1, 30):
        journal.append(block(position))
    assert journal.has_unsealed
    syncs = disk.events.count(("sync", segment_name(1)))
    appended: list[int] = []

    def append_once(action: str, name: str) -> None:
        if (action, name) == ("sync", segment_name(1)) and not appended:
            appended.append(journal.next_position)
            for _ in range(20):
                journal.append(block(journal.next_position))

    disk.before = append_once
    journal.seal()
    assert disk.events.count(("sync", segment_name(1))) == syncs + 1
    disk.before = None
    while journal.has_unsealed:
        journal.seal()
    journal.close()
    assert appended == [30]
    again = open_journal(tmp_path)
    assert positions(again) == list(range(1, 50))
    again.close()


def test_a_foreign_file_of_the_right_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / segment_name(1)).write_bytes(b"hello")
    with pytest.raises(StoreCorrupt):
        open_journal(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "\udce9"])
def test_an_unreadable_manifest_is_built_anew(tmp_path: Path, text: str) -> None:
    filled(tmp_path).close()
    manifest = tmp_path / manifest_name(1)
    wanted = Manifest.from_json(manifest.read_text())
    manifest.write_bytes(text.encode("utf-8", "surrogateescape"))
    journal = open_journal(tmp_path)
    assert positions(journal) == list(range(1, 101))
    journal.close()
    rebuilt = Manifest.from_json(manifest.read_text())
    assert rebuilt.topics == wanted.topics
    assert (rebuilt.next_position, rebuilt.data_bytes, rebuilt.sealed) == (
        wanted.next_position,
        wanted.data_bytes,
        True,
    )


@pytest.mark.parametrize("field", ["position", "publishers", "last_us"])
def test_a_manifest_of_which_a_digit_has_changed_is_built_anew(
    tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    path = tmp_path / manifest_name(1)
    wanted = path.read_text()
    start = wanted.index(f'"{field}"')
    at = next(at for at in range(start, len(wanted)) if wanted[at].isdigit())
    path.write_text(f"{wanted[:at]}{(int(wanted[at]) + 1) % 10}{wanted[at + 1 :]}")
    open_journal(tmp_path).close()
    assert "its checksum does not match" in caplog.text
    rebuilt, before = (Manifest.from_json(text) for text in (path.read_text(), wanted))
    assert rebuilt.last_us == before.last_us
    assert [(each.position, each.publishers) for each in rebuilt.index] == [
        (each.position, each.publishers) for each in before.index
    ]


def test_a_manifest_says_what_its_segment_holds(tmp_path: Path) -> None:
    filled(tmp_path).close()
    manifest = Manifest.from_json((tmp_path / manifest_name(1)).read_text())
    assert manifest.sealed
    assert manifest.topics == {1: ("json", "orders")}
    assert (manifest.number, manifest.first_position) == (1, 1)
    assert manifest.last_us == 1000 * (manifest.next_position - 1)
    assert manifest.index[0].publishers == {7: (10, 10 * (manifest.next_position - 1))}


def test_one_directory_serves_one_broker(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(StoreLocked):
        open_journal(tmp_path)
    journal.close()
    open_journal(tmp_path).close()


def test_a_broker_whose_lock_file_was_removed_keeps_its_directory(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    with pytest.raises(StoreLocked):
        open_journal(tmp_path)
    journal.close()
    open_journal(tmp_path).close()


def test_a_segment_that_was_not_finished_is_not_looked_at(tmp_path: Path) -> None:
    filled(tmp_path, 2).close()
    (tmp_path / "journal.00000002.new").write_bytes(b"half")
    journal = open_journal(tmp_path)
    assert positions(journal) == [1, 2]
    journal.close()


def test_a_full_disk_is_told_and_nothing_is_half_written(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, FullDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1)
    room = (SEGMENT_BYTES - SEGMENT_HEADER_BYTES) // size_of(block(1))
    for position in range(1, room + 1):
        journal.append(block(position))
    with pytest.raises(StoreFull):
        journal.append(block(room + 1))
    last = journal.next_position - 1
    assert positions(journal) == list(range(1, last + 1))


def test_a_journal_is_closed_on_a_full_disk_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another one would hide what has ended the broker."""
    disk = RefusingDisk()
    journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
    journal.append(block(1))
    disk.is_full = True
    journal.close()
    assert "manifest.json: no room" in caplog.text
    again = open_journal(tmp_path)
    assert positions(again) == [1]
    again.close()


def test_a_full_disk_without_room_for_a_manifest_ends_neither_a_journal_nor_a_start(
    tmp_path: Path,
) -> None:
    disk = RefusingDisk()
    disk.is_full = True
    position = 0
    for _ in range(2):
        journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
        begun = len(journal.segments)
        while len(journal.segments) < begun + 2:
            position += 1
            journal.append(block(position))
        with pytest.raises(StoreFull):
            journal.seal()  # the broker tries it again
        assert journal.has_unsealed
        journal.close()
    disk.is_full = False
    again = open_journal(tmp_path)
    assert positions(again) == list(range(1, position + 1))
    assert all(each.manifest.sealed for each in again.segments.values() if each is not again.live)
    again.close()


@pytest.fixture
def journal(tmp_path: Path) -> JournalFiles:
    """A thousand records of 500 bytes: several segments, several strides in each."""
    journal = open_journal(tmp_path, 3 * INDEX_STRIDE_BYTES)
    for position in range(1, 2001, 10):
        journal.append(block(position, 10, size=500, publisher=7 + position // 1000))
    return journal


@pytest.mark.row("TL17")
@pytest.mark.parametrize("position", [1, 2, 10, 11, 777, 1499, 1500, 1501, 2000])
def test_any_position_message_or_time_is_found(journal: JournalFiles, position: int) -> None:
    publisher = 7 + ((position - 1) // 10 * 10 + 1) // 1000
    assert journal.find(publisher, 10 * position) == position
    assert journal.find(publisher, 10 * position + 1) is None
    assert journal.find(99, 10 * position) is None
    assert journal.at_time(1000 * position) == position
    assert journal.at_time(1000 * position - 999) == position
    chunk, _ = journal.read(journal.seek(position), 2 * INDEX_STRIDE_BYTES)
    assert position in {record.position for record in records_of(chunk)}


def test_beyond_the_end_there_is_nothing(journal: JournalFiles) -> None:
    assert journal.at_time(10**9) == journal.next_position == 2001
    assert journal.read(journal.seek(2001), 1000)[0] == b""


@pytest.mark.row("RE3")
@pytest.mark.parametrize("position", [1, 2, 10, 777, 999, 1001, 1500, 2000])
def test_nothing_before_the_first_that_a_vector_lacks_is_lacking(
    journal: JournalFiles, position: int
) -> None:
    highest = {7: 10 * min(position - 1, 1000), 8: 10 * max(position - 1, 0)}
    found = journal.first_beyond(highest)
    assert position - 2 * INDEX_STRIDE_BYTES // 500 < found <= position
    assert journal.first_beyond({7: 10**9, 8: 10**9}) == journal.next_position


def test_syncing_is_remembered(journal: JournalFiles) -> None:
    assert journal.dirty
    journal.sync()
    assert not journal.dirty


@pytest.mark.row("ID3", "ID2")
def test_the_engine_learns_from_the_last_segment_who_published_how_far(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for position in range(1, 80):
        origin = Record(position, 7, 5 * 10**9 + position, 1, 1, flags=RecordFlag.ASSIGNED)
        sequences = {7: (origin.sequence, origin.sequence)}
        data = encode_record(origin)
        journal.append(
            Block(data, 1, position, position + 1, 1, 1, sequences, assigned=frozenset({7}))
        )
    journal.append(definition(80))
    for position in range(80, 180):
        journal.append(block(position, publisher=8))
    marks = [r for r in records_of(journal.summary()) if r.command == RecordCommand.MARK]
    by_publisher = {mark.publisher_id: mark for mark in marks}
    assert by_publisher[7].sequence == 5 * 10**9 + 79
    assert by_publisher[7].flags == RecordFlag.ASSIGNED
    assert by_publisher[8].flags == 0
    journal.close()


def _change(path: Path, change: Callable[[bytes, int], bytes]) -> None:
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(change(data, end).ljust(len(data), b"\0"))


def test_a_segment_is_on_the_disk_before_its_manifest_says_that_it_is_whole(
    tmp_path: Path,
) -> None:
    disk = WatchedDisk()
    journal = JournalFiles(tmp_path, disk, segment_bytes=SEGMENT_BYTES, instance_id=1)
    for position in range(1, 101):
        journal.append(block(position))
    assert not (tmp_path / manifest_name(1)).exists()
    journal.seal()
    assert (tmp_path / manifest_name(1)).exists()
    first = tmp_path / segment_name(1)
    assert disk.synced[first] == first.read_bytes()
    journal.close()


def test_the_directory_of_a_publish_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    FilePublishStore(tmp_path).close()
    with pytest.raises(StoreError, match="a client's publish store: give the broker a directory"):
        JournalFiles(tmp_path, RealDisk(), segment_bytes=SEGMENT_BYTES, instance_id=1)
    assert [file.name for file in tmp_path.iterdir()] == ["control"]


def test_the_highest_sequences_before_a_position_are_known_in_any_segment(tmp_path: Path) -> None:
    """A segment repeats at its beginning what those before it have."""
    journal = filled(tmp_path)
    for _ in range(2):
        for position in (2, 11, 30, 31, 32, 33, 60, 101):
            repeated = {9: 99} if journal.seek(position).segment > 1 else {}
            assert journal.highest_before(position) == {7: 10 * (position - 1)} | repeated
            record = journal.last_before(position)
            assert record is not None
            assert record.position == position - 1
        journal.close()
        journal = open_journal(tmp_path)
    journal.close()


# -- the progress of replication -----------------------------------------------------------------


WEST = DestinationProgress("tcp://west:1", "west", 2**40)
NORTH = DestinationProgress("tcp://north:1", "n\u00f6rd\udcff", 0)


def opened(path: Path) -> ProgressFile:
    return ProgressFile(path, RealDisk())


@pytest.mark.row("RE11")
def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    file = opened(tmp_path)
    assert file.progress is None
    for progress in (
        ReplicationProgress(0),
        ReplicationProgress(5, (WEST, NORTH)),
        ReplicationProgress(2**40, (WEST,)),
        ReplicationProgress(None, (NORTH,)),
        ReplicationProgress(None),
    ):
        for _ in range(2):
            file.write(progress)
            assert opened(tmp_path).progress == progress
    file.close()


@pytest.mark.parametrize("damage", [b"\xff", bytes(15), bytes(16), bytes(7) + b"\1" + bytes(8)])
def test_a_damaged_file_promises_nothing(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / PROGRESS_NAME).write_bytes(damage)
    assert opened(tmp_path).progress == ReplicationProgress(0)


def test_no_byte_can_be_changed_or_lost_unnoticed(tmp_path: Path) -> None:
    file, path = opened(tmp_path), tmp_path / PROGRESS_NAME
    file.write(ReplicationProgress(7, (WEST,)))
    file.close()
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x40
        for damaged in (bytes(changed), whole[:at]):
            path.write_bytes(damaged)
            wanted = ReplicationProgress(0) if damaged else None
            assert opened(tmp_path).progress == wanted


def test_a_flipped_byte_of_a_sealed_segment_is_refused_by_every_reader_with_its_place(
    tmp_path: Path,
) -> None:
    journal = open_journal(tmp_path)
    for position in range(1, 60):
        journal.append(block(position))
    while journal.has_unsealed:
        journal.seal()
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 100) + 50
    begin = data.rindex(b"HAJB", 0, at)
    data[at] ^= 1
    path.write_bytes(data)
    readers: list[Callable[[], object]] = [
        lambda: journal.read(Cursor(1, begin), 1),
        lambda: journal.read(journal.seek(1), 2**20),
        lambda: journal.find(7, 10),
        lambda: journal.last_before(2),
        lambda: list(journal.read_stride(journal.segments[1], 0, 100)),
    ]
    for read in readers:
        with pytest.raises(StoreCorrupt, match="the checksum of a block is wrong") as error:
            read()
        assert (error.value.path, error.value.offset) == (path, begin)
    chunk, _ = journal.read(Cursor(2, SEGMENT_HEADER_BYTES), 2**20)
    assert list(records_of(chunk)), "the others can be read"
    journal.close()


@pytest.mark.parametrize("change", [4, 12, 20, 28, 36])
def test_a_changed_header_of_a_block_is_refused(tmp_path: Path, change: int) -> None:
    journal = open_journal(tmp_path)
    journal.append(block(1))
    begin, path = journal.last_block.offset, tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[begin + change] ^= 64
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt) as error:
        journal.read(Cursor(1, begin), 2**20)
    assert error.value.offset == begin
    journal.close()


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_stray_empty_segment_is_removed_with_a_warning(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    if number > 1:
        journal = open_journal(tmp_path)
        journal.append(block(1))
        journal.close()
    (tmp_path / segment_name(number)).touch()
    journal = open_journal(tmp_path)
    assert journal.next_position == (2 if number > 1 else 1)
    assert f"{segment_name(number)}: removed: an empty file" in caplog.text
    journal.close()


def test_an_empty_segment_that_was_sealed_is_damage(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for position in range(1, 60):
        journal.append(block(position))
    while journal.has_unsealed:
        journal.seal()
    last = max(number for number, each in journal.segments.items() if each.manifest.sealed)
    journal.close()
    (tmp_path / segment_name(last + 1)).unlink()
    (tmp_path / segment_name(last)).write_bytes(b"")
    with pytest.raises(StoreCorrupt):
        open_journal(tmp_path)
