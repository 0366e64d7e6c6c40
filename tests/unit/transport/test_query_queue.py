"""The queue of a query: how long it waits for the server."""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio

from haclient.errors import HAClientError, SubscriptionFull, TimedOut
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.message_queue import QueryQueue
from support.clock import in_virtual_time, pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

pytestmark = in_virtual_time


class Overdue:
    """Returns the given answers, one for each silence."""

    def __init__(self, *answers: HAClientError | None) -> None:
        self.answers = list(answers)
        self.asked_at: list[float] = []

    def __call__(self, full: SubscriptionFull | None) -> HAClientError | None:
        assert full is None
        self.asked_at.append(trio.current_time())
        return self.answers.pop(0)


async def test_a_silence_ends_the_query_unless_it_is_not_the_servers() -> None:
    delivery, overdue = QueryQueue(), Overdue(None, TimedOut("late"))
    delivery.limit(10.0, overdue, is_lasting=False)
    began = trio.current_time()
    with pytest.raises(TimedOut, match="late"):
        await delivery.next_batch()
    assert [each - began for each in overdue.asked_at] == [10.0, 20.0]


async def test_a_handler_gets_no_error_and_its_task_knows_it() -> None:
    delivery, error = QueryQueue(raises=False), TimedOut("late")
    delivery.limit(10.0, Overdue(error), is_lasting=False)
    assert await delivery.next_batch() is None
    assert (delivery.failed, delivery.end_reason) == (None, error), "the client goes on"


async def test_each_message_begins_the_time_anew_and_the_consumers_own_does_not_count() -> None:
    delivery, overdue = QueryQueue(), Overdue(TimedOut("late"))
    delivery.limit(10.0, overdue, is_lasting=False)
    for _ in range(3):
        await trio.sleep(60)
        delivery.put([Message(kind="sow")], 1)
        assert await delivery.next_batch()
        with trio.move_on_after(9):
            await delivery.next_batch()
        assert overdue.asked_at == []
        delivery.put([Message(kind="sow")], 1)
        assert await delivery.next_batch()


async def test_short_waits_one_after_the_other_are_one_silence() -> None:
    delivery = QueryQueue()
    delivery.limit(10.0, Overdue(TimedOut("late")), is_lasting=False)
    for _ in range(10):
        with trio.move_on_after(0.9):
            await delivery.next_batch()
    with trio.move_on_after(1.5), pytest.raises(TimedOut, match="late"):
        await delivery.next_batch()
    assert delivery.ended


@pytest.mark.parametrize("marker", [Marker.CAUGHT_UP, Marker.GAP, Marker.REPLAY])
async def test_what_follows_the_records_of_a_lasting_query_may_take_any_time(
    marker: Marker,
) -> None:
    delivery, overdue = QueryQueue(), Overdue()
    delivery.limit(10.0, overdue, is_lasting=True)
    delivery.mark(marker)
    with trio.move_on_after(3600):
        await delivery.next_batch()
    assert overdue.asked_at == []


async def test_without_a_limit_it_waits_for_as_long_as_it_takes() -> None:
    delivery, overdue = QueryQueue(), Overdue()
    delivery.limit(math.inf, overdue, is_lasting=False)
    with trio.move_on_after(3600):
        await delivery.next_batch()
    assert overdue.asked_at == []


@pytest.mark.parametrize(
    ("marker", "is_awaited"),
    [(Marker.CAUGHT_UP, False), (Marker.GAP, True), (Marker.REPLAY, True)],
)
async def test_the_client_reads_on_until_the_records_are_complete_also_when_they_are_sent_again(
    marker: Marker, *, is_awaited: bool
) -> None:
    delivery, overdue, scopes = QueryQueue(), Overdue(), list[trio.CancelScope]()

    @contextmanager
    def reading(scope: trio.CancelScope) -> Generator[None]:
        scopes.append(scope)
        yield

    delivery.limit(10.0, overdue, is_lasting=True, reading=reading)
    delivery.mark(marker)
    with trio.move_on_after(3600):
        await delivery.next_batch()
    assert (len(scopes) == 1) is is_awaited
    assert overdue.asked_at == []
