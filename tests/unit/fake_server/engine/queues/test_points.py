"""The recovery points of queues: what of the log they keep."""

from __future__ import annotations

from haclient_fake_server.engine.queues.points import QueuePoint, oldest_needed


def point(name: str, position: int) -> QueuePoint:
    return QueuePoint(name, "json", ("orders",), "epoch", position)


def test_the_queue_that_is_furthest_behind_says_what_is_needed() -> None:
    assert oldest_needed([point("a", 7), point("b", 3), point("c", 9)]) == 3


def test_without_queues_nothing_is_needed() -> None:
    assert oldest_needed([]) is None
