"""What waits between a stream and callers outside of the client's thread."""

from __future__ import annotations

import pytest
import trio
from typing_extensions import override

from haclient.facade.buffer import StreamBuffer
from haclient.protocol.messages import Message, MessageLease
from haclient.streams import MessageStream, QueueStream
from haclient.transport.message_queue import Delivery
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


async def opened(kind: type[MessageStream], delivery: Delivery) -> MessageStream:
    return await kind(delivery, open_=_open, close=_close).open()


def put(delivery: Delivery, *bodies: bytes, lease: Lease | None = None) -> None:
    delivery.put([Message(data=body, lease=lease) for body in bodies], 1)


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_message_whose_lease_has_ended_while_it_waited_is_skipped(
    *, auto_ack: bool
) -> None:
    delivery, lost, held = Delivery(), Lease(), Lease()
    stream = QueueStream(delivery, open_=_open, close=_close, auto_ack=auto_ack)
    buffer = StreamBuffer(await stream.open())
    put(delivery, b"1", lease=lost)
    assert await buffer.fill()  # its caller was interrupted
    assert buffer.pop_ready() is None
    assert not buffer.is_ready
    lost.has_ended = True
    put(delivery, b"2", lease=held)
    assert await buffer.fill()
    assert buffer.pop_list(None) == [Message(data=b"2", lease=held)]
    put(delivery, b"3", lease=held)
    assert await buffer.fill()
    assert lost.acknowledged == []  # nobody has processed it
    assert held.acknowledged == ([b"2"] if auto_ack else [])


async def test_a_message_of_a_queue_waits_for_the_next_caller_while_its_lease_is_held() -> None:
    delivery, lease = Delivery(), Lease()
    buffer = StreamBuffer(await opened(QueueStream, delivery))
    put(delivery, b"1", b"2", lease=lease)
    assert await buffer.fill()
    assert await buffer.fill()  # the first of two callers was interrupted
    first = buffer.pop()
    assert first is not None
    assert first.data == b"1"
    assert buffer.pop() is None


async def test_others_are_taken_together_and_need_no_second_look() -> None:
    delivery = Delivery()
    buffer = StreamBuffer(await opened(MessageStream, delivery))
    put(delivery, b"1", b"2", b"3")
    assert await buffer.fill()
    assert buffer.is_ready
    assert [each.data for each in buffer.pop_list(2)] == [b"1", b"2"]
    last = buffer.pop_ready()
    assert last is not None
    assert last.data == b"3"
    assert (buffer.pop(), buffer.pop_list(2)) == (None, [])
    delivery.end()
    assert not await buffer.fill()


@pytest.mark.parametrize("end", ["close", "stop"])
async def test_what_waits_is_dropped_when_the_stream_is_closed_or_its_client_ends(
    end: str,
) -> None:
    delivery = Delivery()
    stream = await opened(MessageStream, delivery)
    buffer = StreamBuffer(stream)
    put(delivery, b"1", b"2")
    assert await buffer.fill()
    if end == "close":
        await stream.aclose()
    else:
        delivery.stop(keeps=False)
    assert not buffer.is_ready
    assert buffer.pop() is None


async def test_a_caller_that_is_cancelled_loses_nothing() -> None:
    delivery = Delivery()
    buffer = StreamBuffer(await opened(MessageStream, delivery))
    with trio.move_on_after(1):
        await buffer.fill()
    put(delivery, b"1")
    assert await buffer.fill()
    assert [each.data for each in buffer.pop_list(None)] == [b"1"]


class LeaseBesideAThread(Lease):
    """While it is asked for the first time, another thread takes a message."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer: StreamBuffer | None = None
        self.taken: list[bytes] = []

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        buffer, self.buffer = self.buffer, None
        if buffer is not None and (found := buffer.pop()) is not None:
            self.taken.append(found.data)
        return True


async def test_no_message_is_given_to_a_second_thread_while_the_leases_are_checked() -> None:
    delivery, lease = Delivery(), LeaseBesideAThread()
    stream = await opened(QueueStream, delivery)
    buffer = StreamBuffer(stream)
    put(delivery, b"1", b"2", b"3", lease=lease)
    assert await buffer.fill(stream.batches().__anext__)
    lease.buffer = buffer
    assert await buffer.fill()
    rest = [each.data for each in buffer.pop_list(None)]
    assert sorted([*lease.taken, *rest]) == [b"1", b"2", b"3"]
