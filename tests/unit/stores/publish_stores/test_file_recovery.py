from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt
from haclient_stores.publish_stores.file_recovery import read_segment
from haclient_stores.publish_stores.file_segment import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    FileSegment,
    seal_frames,
)
from support.frames import frame_of
from support.recording import RecordingDisk

pytestmark = pytest.mark.row("PS21", "PS22")

PATH = Path("/stores/1.seg")
SIZE = 2 * HEADER_BYTES
BOOT, OTHER = b"this boot.......", b"another boot...."
THIRD_SEAL = SIZE - 3 * framing.SEAL_BYTES
FRAMES = [frame_of(number, b"body") for number in (5, 6, 7)]


def written(frames: list[bytes], *, sealed: int, synced: int = 0) -> RecordingDisk:
    """A segment with frames from 5 on, of which so many are sealed, and so many synced."""
    disk = RecordingDisk()
    file = disk.open(PATH, create=True)
    file.allocate(SIZE)
    segment = FileSegment(disk, PATH, first=5, size=SIZE)
    segment.adopt(file)
    view = segment.view
    framing.write_identity(view, framing.Identity(SEGMENT_MAGIC, HEADER_BYTES, SIZE, 5), BOOT)
    for number, frame in enumerate(frames, 5):
        end = segment.end + len(frame)
        view[segment.end : end] = frame
        if number < 5 + sealed:
            seal_frames(segment, end, number + 1)
        segment.mark(end, number + 1)
    framing.write_word(view, framing.FIRST_WORD, segment.mark_offsets[synced] if synced else 0)
    segment.let_go()
    return disk


def read(disk: RecordingDisk, boot: bytes = BOOT) -> FileSegment | None:
    return read_segment(disk, disk.open(PATH), boot)


def count(segment: FileSegment | None) -> int:
    assert segment is not None
    return segment.next_sequence - segment.first


def test_unsealed_frames_count_until_the_machine_is_started_again() -> None:
    assert count(read(written(FRAMES, sealed=1))) == 3
    assert count(read(written(FRAMES, sealed=1), OTHER)) == 1


def test_what_was_read_is_sealed_and_belongs_to_this_boot() -> None:
    disk = written(FRAMES, sealed=0)
    read(disk)
    assert count(read(disk, BOOT)) == 3
    again = written(FRAMES, sealed=2)
    read(again, OTHER)
    assert count(read(again, OTHER)) == 2


def test_frames_that_do_not_carry_the_next_number_are_of_another_life() -> None:
    assert count(read(written([*FRAMES, frame_of(3, b"body")], sealed=0))) == 3


@pytest.mark.parametrize("boot", [BOOT, OTHER])
def test_a_seal_that_is_missing_below_the_synced_end_is_corrupt(boot: bytes) -> None:
    disk = written(FRAMES, sealed=3, synced=3)
    disk.open(PATH).pwrite(bytes(16), THIRD_SEAL)
    with pytest.raises(StoreCorrupt, match="a seal is missing") as caught:
        read(disk, boot)
    assert caught.value.offset == THIRD_SEAL


SEALS_OF_ANOTHER_LIFE = {
    "its frames end before": framing.Seal(HEADER_BYTES + 5, 1, 90),
    "its frames end too late": framing.Seal(THIRD_SEAL, 1, 90),
    "its numbers are lower": framing.Seal(HEADER_BYTES + 90, 1, 4),
    "nothing matches": framing.Seal(HEADER_BYTES + 90, 1, 90),
}


@pytest.mark.parametrize("name", SEALS_OF_ANOTHER_LIFE)
def test_a_place_for_a_seal_that_never_reached_the_disk_may_hold_anything(name: str) -> None:
    disk = written(FRAMES, sealed=2, synced=2)
    packed = bytearray(2 * framing.SEAL_BYTES)
    framing.write_seal(memoryview(packed), framing.SEAL_BYTES, SEALS_OF_ANOTHER_LIFE[name])
    disk.open(PATH).pwrite(packed, THIRD_SEAL - framing.SEAL_BYTES)
    found = read(disk, OTHER)
    assert count(found) == 2
    assert found is not None
    seal_frames(found, found.end + 10, 8)  # it goes on from here
    assert count(read(disk, BOOT)) == 3
    disk.open(PATH).pwrite(packed, THIRD_SEAL - framing.SEAL_BYTES)
    with pytest.raises(StoreCorrupt):  # while the machine runs, the order of writes forbids it
        read(disk, BOOT)


def test_seals_do_not_vouch_for_frames_under_other_numbers() -> None:
    disk = written(FRAMES, sealed=3)
    identity = framing.Identity(SEGMENT_MAGIC, HEADER_BYTES, SIZE, 4)
    page = bytearray(disk.open(PATH).pread(128, 0))
    framing.write_identity(memoryview(page), identity, OTHER)  # what was there before
    disk.open(PATH).pwrite(page, 0)
    assert count(read(disk, BOOT)) == 0


def test_a_file_whose_length_never_reached_the_disk_holds_nothing() -> None:
    for synced, boot, torn in ((0, OTHER, True), (1, OTHER, False), (0, BOOT, False)):
        disk = written(FRAMES, sealed=2, synced=synced)
        left = disk.open(PATH).pread(HEADER_BYTES + 90, 0)
        short = RecordingDisk(image={PATH: left})
        if torn:
            assert count(read(short, boot)) == 0
            continue
        with pytest.raises(StoreCorrupt, match="the file ends before byte") as caught:
            read(short, boot)
        assert caught.value.offset == HEADER_BYTES + 90


def test_a_damaged_block_is_a_torn_tail_only_if_it_was_never_synced() -> None:
    for synced, boot, torn in ((1, OTHER, True), (2, OTHER, False), (1, BOOT, False)):
        disk = written(FRAMES, sealed=2, synced=synced)
        disk.open(PATH).pwrite(b"!", HEADER_BYTES + len(FRAMES[0]) + 8)
        if torn:
            assert count(read(disk, boot)) == 1
            continue
        with pytest.raises(StoreCorrupt) as caught:
            read(disk, boot)
        assert caught.value.offset == HEADER_BYTES + len(FRAMES[0])


def test_a_file_that_is_not_in_use_is_no_segment() -> None:
    disk = written(FRAMES, sealed=3)
    disk.open(PATH).pwrite(bytes(8), 0)
    assert read(disk) is None
