"""What waits between a stream and callers outside of the client's thread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.facade.buffer import StreamBuffer
from haclient.facade.thread_bridge import BlockingThread
from haclient.protocol.messages import Message, MessageLease
from haclient.streams import MessageStream, QueueStream
from haclient.transport.message_queue import MessageQueue
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class Lease(MessageLease):
    """A lease that ends when the test says so."""

    def __init__(self) -> None:
        self.has_ended = False
        self.acknowledged: list[bytes] = []

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return not self.has_ended

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        self.acknowledged.append(message.data)

    @override
    def extend(self, message: Message, seconds: float, /) -> None: ...

    @override
    def deadline(self, message: Message, /) -> float | None: ...


async def _open() -> str:
    return "s"


async def _close() -> None:
    """Nothing is to be told to anybody."""


async def buffered(kind: type[MessageStream], delivery: MessageQueue) -> StreamBuffer:
    return buffer_of(await kind(delivery, open_=_open, close=_close).open())


def buffer_of(stream: MessageStream) -> StreamBuffer:
    return StreamBuffer(stream, BlockingThread("a"))


def bodies(messages: Sequence[Message | None]) -> list[bytes | None]:
    return [None if each is None else each.data for each in messages]


def put(delivery: MessageQueue, *bodies: bytes, lease: Lease | None = None) -> None:
    delivery.put([Message(data=body, lease=lease) for body in bodies], 1)


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_message_whose_lease_has_ended_while_it_waited_is_skipped(
    *, auto_ack: bool
) -> None:
    delivery, lost, held = MessageQueue(), Lease(), Lease()
    stream = QueueStream(delivery, open_=_open, close=_close, auto_ack=auto_ack)
    buffer = buffer_of(await stream.open())
    put(delivery, b"1", lease=lost)
    await buffer.put_back(await buffer.take())  # its caller was interrupted
    assert buffer.pop() is None
    lost.has_ended = True
    put(delivery, b"2", lease=held)
    assert bodies(await buffer.take()) == [b"2"]
    put(delivery, b"3", lease=held)
    assert bodies(await buffer.take()) == [b"3"]
    assert lost.acknowledged == []  # nobody has processed it
    assert held.acknowledged == ([b"2"] if auto_ack else [])


@pytest.mark.parametrize("steps", ["put back, stop", "stop, put back", "put back, take one, stop"])
async def test_auto_ack_leaves_what_was_put_back_and_not_delivered_before_the_end(
    steps: str,
) -> None:
    delivery, lease = MessageQueue(), Lease()
    stream = QueueStream(delivery, open_=_open, close=_close, auto_ack=True)
    buffer, delivered = buffer_of(await stream.open()), list[bytes]()
    put(delivery, b"1", b"2", lease=lease)
    taken = await buffer.take(stream.batches(), None)
    for step in steps.split(", "):
        match step:
            case "put back":
                await buffer.put_back(taken)
            case "stop":
                delivery.stop(keeps=False)
            case _:
                delivered += [each.data for each in await buffer.take()]
    assert await buffer.take() == []
    assert lease.acknowledged == delivered


@pytest.mark.parametrize("timed", [False, True])
async def test_auto_ack_does_not_wait_for_the_caller_that_waits_for_messages(
    *, timed: bool, nursery: trio.Nursery
) -> None:
    delivery, lease = MessageQueue(), Lease()
    stream = QueueStream(delivery, open_=_open, close=_close, auto_ack=True)
    buffer = buffer_of(await stream.open())

    async def caller() -> None:
        while await (buffer.take_within(9) if timed else buffer.take()):
            pass

    for _ in range(3):
        nursery.start_soon(caller)
    await wait_all_tasks_blocked()
    put(delivery, b"1", b"2", b"3", lease=lease)
    await trio.sleep(2)  # all of them ask for more
    assert sorted(lease.acknowledged) == [b"1", b"2", b"3"]
    delivery.end()


async def test_a_message_of_a_queue_waits_for_the_next_caller_while_its_lease_is_held() -> None:
    delivery, lease = MessageQueue(), Lease()
    buffer = await buffered(QueueStream, delivery)
    put(delivery, b"1", b"2", lease=lease)
    await buffer.put_back(await buffer.take())  # the first of two callers was interrupted
    assert bodies(await buffer.take()) == [b"1"]
    assert bodies(await buffer.take()) == [b"2"]


async def test_others_are_taken_together_and_need_no_second_look() -> None:
    delivery = MessageQueue()
    buffer = await buffered(MessageStream, delivery)
    put(delivery, b"1", b"2", b"3", b"4")
    assert bodies(await buffer.take()) == [b"1"]
    assert bodies([buffer.pop()]) == [b"2"]
    assert bodies(await buffer.take(None, 2)) == [b"3", b"4"]
    assert buffer.pop() is None
    delivery.end()
    assert await buffer.take() == []
    assert await buffer.take_within(0) == []


async def test_lists_are_taken_whole_and_put_back_in_order() -> None:
    delivery = MessageQueue()
    stream = await MessageStream(delivery, open_=_open, close=_close).open()
    buffer, lists = buffer_of(stream), stream.batches(2, 1.0)
    put(delivery, b"1", b"2", b"3")
    taken = await buffer.take(lists, 2)
    assert bodies(taken) == [b"1", b"2"]
    await buffer.put_back(taken)
    assert bodies(await buffer.take(None, None)) == [b"1", b"2"]
    assert bodies(await buffer.take(lists, 2)) == [b"3"]


@pytest.mark.parametrize("end", ["close", "stop"])
async def test_what_waits_is_dropped_when_the_stream_is_closed_or_its_client_ends(
    end: str,
) -> None:
    delivery = MessageQueue()
    stream = await MessageStream(delivery, open_=_open, close=_close).open()
    buffer = buffer_of(stream)
    put(delivery, b"1", b"2")
    taken = await buffer.take()
    if end == "close":
        await stream.aclose()
    else:
        delivery.stop(keeps=False)
    await buffer.put_back(taken)  # too late
    assert buffer.pop() is None


async def test_a_caller_that_is_cancelled_loses_nothing() -> None:
    delivery = MessageQueue()
    buffer = await buffered(MessageStream, delivery)
    with trio.move_on_after(1):
        await buffer.take()
    put(delivery, b"1")
    assert bodies(await buffer.take()) == [b"1"]


async def test_a_wait_for_another_caller_and_then_for_a_message_is_no_longer_than_its_limit() -> (
    None
):
    delivery = MessageQueue()
    buffer = await buffered(MessageStream, delivery)

    async def take_for(seconds: float) -> None:
        with trio.move_on_after(seconds):
            await buffer.take()

    async with trio.open_nursery() as nursery:
        for others_s in (9, 1):
            nursery.start_soon(take_for, others_s)
            await wait_all_tasks_blocked()
            began_at = trio.current_time()
            assert await buffer.take_within(2) == [None]
            assert trio.current_time() - began_at == pytest.approx(2)
            await trio.sleep(7)
    put(delivery, b"1")
    assert bodies(await buffer.take_within(0)) == [b"1"]


class LeaseBesideAThread(Lease):
    """While it is asked for the first time, another thread takes what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: StreamBuffer | None = None
        self.taken: list[Message] = []

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            self.taken += buffer._pop_all()
        return True


async def test_no_message_is_given_to_a_second_thread_while_the_leases_are_checked() -> None:
    delivery, lease = MessageQueue(), LeaseBesideAThread()
    stream = await QueueStream(delivery, open_=_open, close=_close).open()
    buffer = buffer_of(stream)
    put(delivery, b"1", b"2", b"3", lease=lease)
    await buffer.put_back(await buffer.take(stream.batches(), None))
    lease.buffer = buffer
    found = await buffer.take(None, None)
    assert bodies([*lease.taken, *found]) == [b"1", b"2", b"3"]
