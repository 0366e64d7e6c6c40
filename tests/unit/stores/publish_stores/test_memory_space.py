from __future__ import annotations

import pytest

from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.memory_space import MemorySpace, anonymous_region
from haclient_stores.publish_stores.segment import MIN_SEGMENT_BYTES

SIZE = MIN_SEGMENT_BYTES


def test_preallocated_memory_is_used_before_any_other() -> None:
    space = MemorySpace(SIZE, kept=3, preallocated=True)
    assert len(space._spare) == 3
    segments = [space.create(number, SIZE) for number in (1, 2, 3)]
    assert space._spare == []
    for segment in segments:
        segment.view[:4] = b"old!"
        space.release(segment)
    again = space.create(9, SIZE)
    assert bytes(again.view[:4]) == bytes(4)  # the frames of another life never show
    assert (again.first, len(space._spare)) == (9, 2)


def test_no_more_than_the_kept_pieces_stay() -> None:
    space = MemorySpace(SIZE, kept=1)
    segments = [
        space.create(number, size) for number, size in ((1, SIZE), (2, SIZE), (3, 2 * SIZE))
    ]
    for segment in segments:
        space.release(segment)
    assert len(space._spare) == 1


@pytest.mark.row("PS18")
@pytest.mark.parametrize("size", [2**62, 2**70])
def test_more_memory_than_any_machine_has_is_refused_before_any_is_touched(size: int) -> None:
    with pytest.raises(StoreFull, match="this machine has no memory for"):
        MemorySpace(size // 8, kept=8, preallocated=True)
    with pytest.raises(StoreFull, match="this machine has no memory for"):
        anonymous_region(size)
