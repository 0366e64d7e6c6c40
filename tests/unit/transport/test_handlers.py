from __future__ import annotations

import itertools
import logging
from collections.abc import Callable

import pytest
import trio

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.handlers import HandlerErrorPolicy, check_policy, serve
from haclient.transport.message_queue import Delivery
from haclient_stores.tracker.tracker import SubscriptionTracker


def queued(*bodies: bytes) -> Delivery:
    delivery = Delivery()
    delivery.put([Message(data=body, sub_id="s", topic="t") for body in bodies], 1)
    delivery.mark(Marker.ENDED)
    return delivery


async def test_plain_and_async_handlers_get_every_message_in_order() -> None:
    plain: list[bytes] = []
    coroutine: list[bytes] = []

    async def handler(message: Message) -> None:
        await trio.lowlevel.checkpoint()
        coroutine.append(message.data)

    await serve(queued(b"a", b"b"), lambda m: plain.append(m.data), "raise")
    await serve(queued(b"a", b"b"), handler, "raise")
    assert plain == coroutine == [b"a", b"b"]


@pytest.mark.row("HB7")
async def test_plain_handlers_give_other_tasks_a_turn() -> None:
    count = 0
    turns: list[int] = []

    def handler(_: Message) -> None:
        nonlocal count
        count += 1

    async def other() -> None:
        while True:
            turns.append(count)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await serve(queued(*[b""] * 1000), handler, "raise")
        nursery.cancel_scope.cancel()
    assert max(b - a for a, b in itertools.pairwise(turns)) <= 2 * 64  # trio shuffles turns


def failing(error: Exception) -> Callable[[Message], None]:
    def handler(_: Message) -> None:
        raise error

    return handler


async def test_by_default_the_error_of_a_handler_leaves() -> None:
    with pytest.raises(ZeroDivisionError):
        await serve(queued(b"a"), failing(ZeroDivisionError()), "raise")


@pytest.mark.parametrize(("policy", "left"), [("continue", 2), ("discard", 0)])
async def test_a_policy_says_whether_a_failed_message_is_finished(
    policy: HandlerErrorPolicy, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = SubscriptionTracker()
    log.log_batch(["7|1|", "7|2|"])
    delivery = Delivery()
    messages = [Message(data=b"secret", topic="t", sub_id="s") for _ in range(2)]
    for number, message in enumerate(messages, 1):
        message.owner, message.number = log, number
    delivery.put(messages, 1)
    delivery.mark(Marker.ENDED)
    with caplog.at_level(logging.WARNING):
        await serve(delivery, failing(ZeroDivisionError("secret")), policy)
    assert log.undiscarded_count == left
    assert len(caplog.records) == 2
    assert "secret" not in caplog.text


async def test_a_dead_letter_box_may_be_plain_or_async() -> None:
    letters: list[tuple[bytes, str]] = []

    def box(message: Message, error: Exception) -> None:
        letters.append((message.data, type(error).__name__))

    async def slow_box(message: Message, error: Exception) -> None:
        await trio.lowlevel.checkpoint()
        box(message, error)

    await serve(queued(b"a"), failing(ZeroDivisionError()), box)
    await serve(queued(b"b"), failing(ZeroDivisionError()), slow_box)
    assert letters == [(b"a", "ZeroDivisionError"), (b"b", "ZeroDivisionError")]


async def test_an_error_of_the_dead_letter_box_leaves() -> None:
    def box(_: Message, error: Exception) -> None:
        raise UsageError("the box is broken") from error

    with pytest.raises(UsageError, match="box is broken"):
        await serve(queued(b"a"), failing(ZeroDivisionError()), box)


@pytest.mark.parametrize("policy", ["raise", "continue", "discard", print])
def test_the_four_policies(policy: HandlerErrorPolicy) -> None:
    check_policy(policy)


def test_another_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="not 'ignore'"):
        check_policy("ignore")  # type: ignore[arg-type]  # what is tested
