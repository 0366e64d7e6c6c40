from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.publish_stores.file_segment import HEADER_BYTES
from haclient_stores.publish_stores.hybrid_space import HybridSegment, HybridSpace
from haclient_stores.publish_stores.segment import MIN_SEGMENT_BYTES, Segment
from haclient_stores.publish_stores.store_directory import Directory
from support.frames import frame_of
from support.recording import Event, RecordingDisk, Write

pytestmark = pytest.mark.row("PS13")

SMALL = MIN_SEGMENT_BYTES


def made(events: list[Event] | None = None) -> HybridSpace:
    directory = Directory(
        Path("/stores/p"), RecordingDisk(events), DurabilityOptions(), segment_bytes=SMALL
    )
    return HybridSpace(directory.files, segment_bytes=SMALL, memory_bytes=2 * SMALL)


def put(space: HybridSpace, segment: Segment, body: bytes) -> None:
    """Append a frame as the log would, and mark it."""
    sequence = segment.next_sequence
    frame = frame_of(sequence, body)
    end = segment.end + len(frame)
    segment.view[segment.end : end] = frame
    space.seal(segment, end, sequence + 1)
    segment.mark(end, sequence + 1)


def test_the_oldest_segment_moves_to_a_file_and_stays_the_same() -> None:
    space = made()
    first, second = space.create(1, SMALL), space.create(2, SMALL)
    put(space, first, b"one")
    put(space, second, b"two")
    before = bytes(first.view[HEADER_BYTES : first.end + 4])
    space.create(3, SMALL)
    assert isinstance(first, HybridSegment)
    assert first.region is None
    assert bytes(first.view[HEADER_BYTES : first.end + 4]) == before
    assert isinstance(second, HybridSegment)
    assert second.twin is None
    assert space.used_bytes == 2 * SMALL


def test_a_copy_writes_the_length_of_its_first_new_frame_last() -> None:
    events: list[Event] = []
    space = made(events)
    segment = space.create(1, SMALL)
    for body in (b"one", b"two"):
        put(space, segment, body)
        del events[:]
        start = segment.mark_offsets[-2]
        space.copy_out()
        writes = [event for event in events if isinstance(event, Write)]
        frames = range(HEADER_BYTES, segment.end + 1)
        written = [write.offset for write in writes if write.offset in frames]
        assert written[-3:] == [segment.end, start + 4, start]
    del events[:]
    space.copy_out()
    assert events == []  # nothing new


def test_a_segment_that_is_released_leaves_memory_and_file() -> None:
    space = made()
    segments = [space.create(number, SMALL) for number in range(1, 5)]
    for segment in segments:
        space.release(segment)
    assert space.used_bytes == 0
    assert all(isinstance(s, HybridSegment) and s.region is None for s in segments)


def test_a_segment_in_a_file_is_not_written_any_more() -> None:
    space = made()
    segment = space.create(1, SMALL)
    for number in (2, 3):
        space.create(number, SMALL)
    with pytest.raises(AssertionError, match="not written any more"):
        _ = segment.writable
