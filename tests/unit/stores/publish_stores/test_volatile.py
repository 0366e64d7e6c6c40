from __future__ import annotations

import pytest

from haclient_stores.publish_stores.memory import DEFAULT_MEMORY_SEGMENT_BYTES, VolatilePublishLog
from support.frames import fill, put
from support.work import counted_calls

COUNT = 3000


def numbered(*sequences: int) -> VolatilePublishLog:
    log = VolatilePublishLog()
    for sequence in sequences:
        log.number_from(sequence)
        assert put(log) == sequence
    return log


def kept(log: VolatilePublishLog, after: int = 0) -> list[int]:
    return [sequence for sequence, _ in log.replay(after)]


@pytest.mark.row("SK4")
def test_gaps_between_the_numbers_of_a_caller_take_no_room() -> None:
    log = numbered(*range(3, 3 * COUNT, 3))
    assert log._held_bytes == DEFAULT_MEMORY_SEGMENT_BYTES
    assert kept(log) == list(range(3, 3 * COUNT, 3))
    assert kept(log, after=3 * COUNT - 10) == [3 * COUNT - 9, 3 * COUNT - 6, 3 * COUNT - 3]
    log.discard_up_to(3 * COUNT - 9)
    assert kept(log) == [3 * COUNT - 6, 3 * COUNT - 3]
    assert log.replay_single(3 * COUNT - 7) is None
    assert log.replay_single(3 * COUNT - 6) is not None
    log.discard_up_to(3 * COUNT)
    assert (log.unpersisted_count, log.unpersisted_bytes) == (0, 0)


def test_one_frame_is_found_without_a_look_at_all_frames_before_it() -> None:
    log = VolatilePublishLog()
    *_, last = fill(log, 900, body=bytes(1000))
    assert log.replay_single(last) is not None  # it has marked the end

    with counted_calls() as finding:
        log.replay_single(last)
    assert finding.count < 900


def test_over_several_segments_frames_have_their_numbers() -> None:
    log = VolatilePublishLog()
    wanted: list[int] = []
    for first in (10, 500, 900, 2000):
        log.number_from(first)
        wanted += fill(log, 30, body=bytes(20_000))
    assert log._held_bytes > DEFAULT_MEMORY_SEGMENT_BYTES
    assert kept(log) == wanted
    log.rewind(0)
    assert log.unsent_bytes == log.unpersisted_bytes == sum(len(each) for _, each in log.replay())


def test_what_is_forgotten_leaves_nothing_and_its_memory_is_used_again() -> None:
    log = numbered(1, 2, 7)
    for _ in range(100):
        fill(log, 10)
        log.forget()
        assert (log.unpersisted_count, log.unpersisted_bytes, log.unsent_bytes) == (0, 0, 0)
        assert not log.peek()
        assert kept(log) == []
    assert log.last_sequence == 1007
    assert log.last_persisted == 0
    log.number_from(5)
    assert put(log) == 5
