from __future__ import annotations

import pytest
from typing_extensions import override

from haclient_stores.errors import UsageError
from haclient_stores.publish_stores.segment_log import (
    MIN_SEGMENT_BYTES,
    Limits,
    Segment,
    frame_length,
    walk,
)
from support.frames import frame_of

FRAMES = [frame_of(sequence, b"x" * sequence) for sequence in range(10, 20)]


class Bytes(Segment):
    """A segment over bytes that are there already."""

    @property
    @override
    def view(self) -> memoryview:
        return memoryview(b"head" + b"".join(FRAMES) + bytes(4))


def starts() -> list[int]:
    return [4 + sum(map(len, FRAMES[:index])) for index in range(len(FRAMES) + 1)]


def test_walking_goes_from_length_to_length() -> None:
    view = Bytes(first=10, begin=4, size=1000).view
    assert [walk(view, 4, count) for count in range(len(FRAMES) + 1)] == starts()
    assert frame_length(view, 4) == (len(FRAMES[0]) - 4,)


@pytest.mark.parametrize("marked", [[], [1], [4], [3, 7], [1, 2, 3, 10]])
def test_each_sequence_is_found_from_the_nearest_mark(marked: list[int]) -> None:
    segment = Bytes(first=10, begin=4, size=1000)
    for index in marked:
        segment.mark(starts()[index], 10 + index)
    assert [segment.offset_of(10 + index) for index in range(11)] == starts()
    known = [4, *(starts()[index] for index in marked)]
    for offset in range(4, starts()[-1] + 1):
        assert segment.boundary_before(offset) == max(o for o in known if o <= offset)


def test_a_mark_moves_the_end() -> None:
    segment = Bytes(first=10, begin=4, size=1000)
    assert (segment.end, segment.next_sequence) == (4, 10)
    assert segment.frame_limit == segment.size
    assert not segment.released
    segment.mark(100, 14)
    assert (segment.end, segment.next_sequence) == (100, 14)


@pytest.mark.parametrize("size", [0, 4096, MIN_SEGMENT_BYTES - 1])
def test_a_segment_has_room_for_more_than_its_header(size: int) -> None:
    with pytest.raises(UsageError, match=f"from {MIN_SEGMENT_BYTES} to .*, not {size}"):
        Limits(size, 10 * MIN_SEGMENT_BYTES)
    assert Limits(MIN_SEGMENT_BYTES, 10 * MIN_SEGMENT_BYTES).resize is None


@pytest.mark.row("PS18")
@pytest.mark.parametrize(
    ("segment_bytes", "max_bytes", "resize", "what"),
    [
        (2**20, 0, None, "max_bytes is at least segment_bytes, which is 1048576, not 0"),
        (2**20, -1, None, "not -1"),
        (2**20, 2**20 - 1, None, "not 1048575"),
        (2**20, 1e9, None, "max_bytes is a whole number of bytes, not 1000000000.0"),
        (2**20, None, None, "max_bytes is a whole number of bytes, not None"),
        ("4M", 2**30, None, "segment_bytes is a whole number of bytes, not '4M'"),
        (2**33, 2**40, None, "to 536870912, not 8589934592"),
    ],
)
def test_limits_that_no_store_can_have_are_refused(
    segment_bytes: int, max_bytes: int, resize: None, what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        Limits(segment_bytes, max_bytes, resize)
