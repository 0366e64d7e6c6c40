"""What becomes of a message with its handler, and who else gets a turn."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.message_queue import Handler, HandlerErrorPolicy, MessageQueue
from haclient.transport.tasks import TURN_S
from haclient.workers.message_runner import MessageRunner
from support.tracked_log import TrackedLog


def batch(*bodies: bytes) -> list[Message]:
    return [Message(data=body) for body in bodies]


async def serve(queue: MessageQueue, handler: Handler, policy: HandlerErrorPolicy) -> None:
    queue.handler = handler
    await MessageRunner(queue, policy).serve()


def queued(*bodies: bytes) -> MessageQueue:
    delivery = MessageQueue()
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


async def test_unprocessed_is_what_the_handler_has_yet_to_return_from_and_what_is_queued() -> None:
    delivery = MessageQueue()
    found: list[list[bytes]] = []

    def handler(_: Message) -> None:
        found.append([message.data for message in delivery.unprocessed()])

    delivery.put(batch(b"a", b"b"), 2)
    delivery.put(batch(b"c"), 1)
    delivery.end()
    await serve(delivery, handler, "raise")
    assert found == [[b"a", b"b", b"c"], [b"b", b"c"], [b"c"]]
    assert delivery.unprocessed() == []


async def test_between_two_messages_of_a_plain_handler_only_the_later_one_is_unprocessed(
    autojump_clock: MockClock,
) -> None:
    delivery = MessageQueue()
    handled: list[bytes] = []
    turns: list[tuple[int, int]] = []

    async def other() -> None:
        while messages := delivery.unprocessed():
            turns.append((len(handled), int(messages[0].data)))
            await trio.lowlevel.checkpoint()

    def handle(message: Message) -> None:
        handled.append(message.data)
        autojump_clock.jump(TURN_S / 64)

    delivery.put(batch(*(b"%d" % number for number in range(1_000))), 1)
    delivery.end()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await serve(delivery, handle, "raise")
    assert len(turns) > 1
    assert all(count == first for count, first in turns)


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
    log = TrackedLog()
    log.log_batch(["7|1|", "7|2|"])
    delivery = MessageQueue()
    messages = [Message(data=b"secret", topic="t", sub_id="s") for _ in range(2)]
    for number, message in enumerate(messages, 1):
        message.owner, message.number = log, number
    delivery.put(messages, 1)
    delivery.mark(Marker.ENDED)
    with caplog.at_level(logging.WARNING):
        await serve(delivery, failing(ZeroDivisionError("why\nit failed")), policy)
    assert log.undiscarded_count == left
    assert len(caplog.records) == 2
    assert "on topic t: ZeroDivisionError: why it failed (at DEBUG: its traceback)" in caplog.text
    assert "secret" not in caplog.text


async def test_the_traceback_of_a_failed_handler_is_logged_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    delivery = MessageQueue()
    delivery.put([Message(data=b"secret", topic="t", sub_id="s")], 1)
    delivery.mark(Marker.ENDED)
    with caplog.at_level(logging.DEBUG):
        await serve(delivery, failing(ZeroDivisionError("x" * 1000)), "continue")
    warning, debug = caplog.records
    assert len(warning.getMessage()) < 400
    assert debug.exc_info is not None


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
