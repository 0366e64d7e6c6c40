from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt
from haclient_stores.file_recovery import read_segment
from haclient_stores.file_segment import (
    HEADER_BYTES,
    SEGMENT_MAGIC,
    TABLE,
    FileSegment,
    seal_frames,
)
from support.frames import frame_of
from support.recording import RecordingDisk

pytestmark = pytest.mark.row("PS21", "PS22")

PATH = Path("/stores/1.seg")
SIZE = 2 * HEADER_BYTES
BOOT, OTHER = b"this boot.......", b"another boot...."
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
    disk.open(PATH).pwrite(bytes(16), TABLE + 2 * 16)
    with pytest.raises(StoreCorrupt, match="a seal is missing") as caught:
        read(disk, boot)
    assert caught.value.offset == TABLE + 2 * 16


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
