from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.message_queue import HandlerErrorPolicy, MessageQueue, check_policy
from haclient.transport.tasks import TURN_S


def batch(*bodies: bytes) -> list[Message]:
    return [Message(data=body) for body in bodies]


async def taken(delivery: MessageQueue) -> list[bytes]:
    """Everything up to the end."""
    found: list[bytes] = []
    while (messages := await delivery.next_batch()) is not None:
        found += [message.data for message in messages]
    return found


async def test_what_is_put_is_taken_in_order() -> None:
    delivery = MessageQueue()
    delivery.put(batch(b"a", b"b"), 2)
    delivery.put(batch(b"c"), 1)
    delivery.mark(Marker.ENDED)
    assert await taken(delivery) == [b"a", b"b", b"c"]
    assert delivery.ended
    assert await delivery.next_batch() is None


async def test_a_waiting_consumer_is_woken_by_a_message() -> None:
    delivery = MessageQueue()
    found: list[bytes] = []
    async with trio.open_nursery() as nursery:

        async def consume() -> None:
            found.extend(await taken(delivery))

        nursery.start_soon(consume)
        await wait_all_tasks_blocked()
        delivery.put(batch(b"a"), 1)
        await wait_all_tasks_blocked()
        delivery.put(batch(b"b"), 1)
        delivery.end()
    assert found == [b"a", b"b"]


async def test_a_cancelled_consumer_can_come_back_and_misses_nothing() -> None:
    delivery = MessageQueue()
    with trio.move_on_after(0):
        await delivery.next_batch()
    delivery.put(batch(b"a"), 1)
    assert [m.data for m in await delivery.next_batch() or []] == [b"a"]


async def test_a_second_consumer_at_once_is_refused_instead_of_losing_the_first() -> None:
    delivery = MessageQueue()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.next_batch)
        await wait_all_tasks_blocked()
        with pytest.raises(UsageError, match="another task"):
            await delivery.next_batch()
        delivery.put(batch(b"a"), 1)


async def test_messages_that_are_there_are_taken_without_suspending_but_cancels_are_seen(
    autojump_clock: MockClock,
) -> None:
    delivery = MessageQueue()
    for _ in range(5000):
        delivery.put(batch(b""), 0)
    count = 0
    with trio.CancelScope() as scope:
        scope.cancel()
        while True:
            await delivery.next_batch()
            autojump_clock.jump(TURN_S / 100)
            count += 1
    assert 99 <= count <= 101


@pytest.mark.row("MS7")
async def test_caught_up_is_true_once_everything_before_it_was_taken() -> None:
    delivery = MessageQueue()
    delivery.put(batch(b"old"), 1)
    delivery.mark(Marker.CAUGHT_UP)
    delivery.put(batch(b"new"), 1)
    await delivery.next_batch()
    assert not delivery.caught_up.is_set()
    await delivery.next_batch()
    assert delivery.caught_up.is_set()


@pytest.mark.row("MS7")
@pytest.mark.parametrize(("marker", "gaps"), [(Marker.GAP, 1), (Marker.REPLAY, 0)])
async def test_caught_up_is_false_again_during_the_replay_on_the_next_connection(
    marker: Marker, gaps: int
) -> None:
    delivery = MessageQueue()
    for each in (Marker.CAUGHT_UP, marker):
        delivery.mark(each)
    delivery.put(batch(b"replayed"), 1)
    await delivery.next_batch()
    assert (delivery.caught_up.is_set(), delivery.gaps) == (False, gaps)
    delivery.mark(Marker.CAUGHT_UP)
    delivery.put(batch(b"live"), 1)
    await delivery.next_batch()
    assert delivery.caught_up.is_set()


@pytest.mark.row("MS1")
async def test_an_end_by_error_is_raised_only_where_the_result_is_incomplete() -> None:
    query, subscription = MessageQueue(), MessageQueue()
    for delivery, raises in ((query, True), (subscription, False)):
        delivery.put(batch(b"a"), 1)
        delivery.end(DisconnectedError("lost"), raises=raises)
        await delivery.next_batch()
    with pytest.raises(DisconnectedError, match="lost"):
        await query.next_batch()
    assert await subscription.next_batch() is None
    assert isinstance(subscription.end_reason, DisconnectedError)


@pytest.mark.row("MS2")
async def test_once_ended_it_stays_ended() -> None:
    delivery = MessageQueue()
    delivery.end(DisconnectedError("first"))
    delivery.end(DisconnectedError("second"))
    assert await delivery.next_batch() is None
    delivery.put(batch(b"late"), 1)
    assert await delivery.next_batch() is None
    assert str(delivery.end_reason) == "first"
    assert not delivery.full


@pytest.mark.row("MS2")
async def test_with_nothing_queued_the_end_is_at_once() -> None:
    delivery = MessageQueue()
    delivery.end()
    assert delivery.ended
    assert delivery.caught_up.is_set()


@pytest.mark.row("MS5")
async def test_full_is_over_the_cap_and_drained_is_half_of_it() -> None:
    delivery = MessageQueue(cap_bytes=100)
    delivery.put(batch(b"a"), 100)
    assert not delivery.full
    delivery.put(batch(b"b"), 30)
    delivery.put(batch(b"c"), 40)
    assert delivery.full
    drained = trio.Event()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            await delivery.drained()
            drained.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert delivery.cap_bytes == 100
        await delivery.next_batch()
        assert delivery.queued_bytes == 70
        await wait_all_tasks_blocked()
        assert not drained.is_set()
        await delivery.next_batch()
        await wait_all_tasks_blocked()
        assert drained.is_set()


@pytest.mark.row("MS5")
async def test_the_end_of_a_subscription_is_no_obstacle() -> None:
    delivery = MessageQueue(cap_bytes=10)
    delivery.put(batch(b"a"), 1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(delivery.drained)
        await wait_all_tasks_blocked()
        delivery.drop()
        delivery.end()
    assert not delivery.full
    await delivery.drained()


async def test_dropping_tells_the_first_number_that_was_not_handed_out() -> None:
    delivery = MessageQueue()
    assert delivery.drop() == []
    delivery.mark(Marker.CAUGHT_UP)
    delivery.put([Message(number=7), Message(number=8)], 5)
    assert [each.number for each in delivery.drop()] == [7, 8]
    assert delivery.queued_bytes == 0


def test_the_consumer_is_known_even_if_it_never_had_to_wait() -> None:
    async def run() -> None:
        delivery = MessageQueue()
        delivery.put(batch(b"a"), 1)
        await delivery.next_batch()
        assert delivery.consumer is trio.lowlevel.current_task()

    trio.run(run)


@given(st.lists(st.one_of(st.lists(st.binary(max_size=3), min_size=1, max_size=5), st.none())))
def test_whoever_is_faster_nothing_is_lost_or_reordered(script: list[list[bytes] | None]) -> None:
    async def run() -> list[bytes]:
        delivery, found = MessageQueue(cap_bytes=8), list[bytes]()
        async with trio.open_nursery() as nursery:

            async def consume() -> None:
                found.extend(await taken(delivery))

            nursery.start_soon(consume)
            for step in script:
                if step is None:
                    await trio.lowlevel.checkpoint()
                else:
                    delivery.put(batch(*step), sum(map(len, step)))
            delivery.end()
        assert delivery.queued_bytes == 0
        return found

    assert trio.run(run) == [body for step in script if step is not None for body in step]


@pytest.mark.parametrize("policy", ["raise", "continue", "discard", print])
def test_the_four_policies(policy: HandlerErrorPolicy) -> None:
    check_policy(policy)


def test_another_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="not 'ignore'"):
        check_policy("ignore")  # type: ignore[arg-type]  # what is tested


@pytest.mark.row("CC22")
async def test_what_a_replaced_command_has_brought_stays_when_the_rest_is_dropped() -> None:
    delivery = MessageQueue()
    for number, body in enumerate((b"a", b"b", b"c"), 1):
        delivery.put([Message(data=body, number=number)], 10)
        if number == 1:
            delivery.mark(Marker.REPLACED)
    assert [each.number for each in delivery.drop(keep_replaced=True)] == [2, 3]
    assert delivery.queued_bytes == 10
    assert [each.data for each in await delivery.next_batch() or []] == [b"a"]
    delivery.put([Message(data=b"d", number=4)], 10)
    assert [each.number for each in delivery.drop()] == [4]
    assert delivery.queued_bytes == 0
