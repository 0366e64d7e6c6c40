from __future__ import annotations

import pytest
from typing_extensions import override

from haclient_stores.errors import UsageError
from haclient_stores.files import Writable
from haclient_stores.segment import MIN_SEGMENT_BYTES, Limits, Segment, walk

FRAMES = b"".join(len(body).to_bytes(4, "big") + body for body in (b"a", b"bb", b"ccc", b"dddd"))


class FixedSegment(Segment):
    @property
    @override
    def view(self) -> memoryview:
        return memoryview(FRAMES)

    @property
    @override
    def memory(self) -> Writable:
        return self.view


def test_a_walk_goes_from_length_to_length() -> None:
    assert [walk(memoryview(FRAMES), 0, count) for count in range(5)] == [0, 5, 11, 18, 26]


def test_a_sequence_is_found_from_the_mark_before_it() -> None:
    segment = FixedSegment(first=100, begin=0, size=26)
    segment.mark(11, 102)
    segment.mark(26, 104)
    assert [segment.offset_of(sequence) for sequence in range(100, 105)] == [0, 5, 11, 18, 26]
    assert [segment.boundary_before(offset) for offset in (0, 10, 11, 25, 26)] == [0, 0, 11, 11, 26]
    assert (segment.end, segment.next_sequence) == (26, 104)


def test_segments_are_not_smaller_than_their_header() -> None:
    with pytest.raises(UsageError, match="segment_bytes is at least"):
        Limits(MIN_SEGMENT_BYTES - 1, 10**9)
