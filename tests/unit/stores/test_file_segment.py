from __future__ import annotations

from pathlib import Path

from haclient_stores.file_segment import HEADER_BYTES, SEALS, TABLE, FileSegment, seal_frames
from haclient_stores.framing import Seal, read_seals, seal_checksum
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
        assert seal_frames(segment, end, following)
        segment.mark(end, following)
    table = segment.view[TABLE:HEADER_BYTES]
    seals = read_seals(table, begin=HEADER_BYTES, first=5, path="p", at=TABLE)
    assert seals == [
        Seal(HEADER_BYTES + 100, seal_checksum(bytes(100), 7), 7),
        Seal(HEADER_BYTES + 150, seal_checksum(bytes(50), 9), 9),
    ]


def test_the_last_seals_of_a_table_are_left_for_late_frames() -> None:
    segment = made(RecordingDisk())
    count = 0
    while seal_frames(segment, segment.end + 5, segment.next_sequence + 1):
        segment.mark(segment.end + 5, segment.next_sequence + 1)
        count += 1
    assert SEALS - 6 < count < SEALS - 3
