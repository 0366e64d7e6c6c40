from __future__ import annotations

from pathlib import Path

from haclient_stores.framing import SEAL_BYTES, Seal, read_seal, seal_checksum
from haclient_stores.publish_stores.file_segment import (
    HEADER_BYTES,
    FileSegment,
    seal_at,
    seal_frames,
)
from haclient_stores.publish_stores.segment import SLOT_BYTES
from support.recording import RecordingDisk

PATH = Path("/stores/1.seg")
SIZE = 2 * HEADER_BYTES


def made(disk: RecordingDisk) -> FileSegment:
    file = disk.open(PATH, create=True)
    file.allocate(SIZE)
    segment = FileSegment(disk, PATH, first=5, size=SIZE)
    segment.adopt(file)
    return segment


def test_a_segment_is_mapped_when_it_is_looked_at() -> None:
    disk = RecordingDisk()
    segment = made(disk)
    segment.view[HEADER_BYTES : HEADER_BYTES + 2] = b"ab"
    segment.let_go()
    assert segment._region is None
    assert bytes(segment.view[HEADER_BYTES : HEADER_BYTES + 2]) == b"ab"
    other = FileSegment(disk, PATH, first=9, size=SIZE)
    other.take_over(segment)
    assert (segment._region, other.begin) == (None, HEADER_BYTES)
    other.let_go()
    other.let_go()


def test_a_seal_covers_the_frames_since_the_last_one() -> None:
    segment = made(RecordingDisk())
    for end, following in ((HEADER_BYTES + 100, 7), (HEADER_BYTES + 150, 9)):
        seal_frames(segment, end, following)
        segment.mark(end, following)
    assert [read_seal(segment.view, seal_at(segment, index)) for index in range(3)] == [
        Seal(HEADER_BYTES + 100, seal_checksum(bytes(100), 5, 7), 7),
        Seal(HEADER_BYTES + 150, seal_checksum(bytes(50), 7, 9), 9),
        None,
    ]


def test_each_seal_takes_its_room_from_the_frames_and_no_more() -> None:
    segment = made(RecordingDisk())
    first = segment.frame_limit
    count = 0
    while segment.end + 5 + SLOT_BYTES <= segment.frame_limit:
        seal_frames(segment, segment.end + 5, segment.next_sequence + 1)
        segment.mark(segment.end + 5, segment.next_sequence + 1)
        count += 1
    assert segment.frame_limit == first - count * SEAL_BYTES
    for late in (1, 2):  # appends that had looked at the limit before
        assert segment.end + 5 * late + SLOT_BYTES <= seal_at(segment, count + 1 + late)
