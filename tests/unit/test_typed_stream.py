"""Streams of values, over messages that a list gives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio

from haclient.client import Client
from haclient.codecs import Topic
from haclient.errors import DecodeError
from haclient.protocol.messages import Message
from haclient.streams import TypedStream
from support.clock import in_virtual_time
from support.peer import listening, together

pytestmark = in_virtual_time


@dataclass
class Order:
    id: int


ORDERS = Topic("orders", Order)
BODIES = (b'{"id":1}', b'{"id":"x"}', b'{"id":3}')


async def messages(*bodies: bytes) -> AsyncIterator[Message]:
    for body in bodies:
        await trio.lowlevel.checkpoint()
        yield Message(topic="orders", data=body)


@pytest.mark.row("CC36")
async def test_a_stream_of_values_goes_on_behind_a_body_that_cannot_be_read() -> None:
    async with listening() as server, Client("c") as client:
        peer = await server.log_on(client)
        stream = client.stream("orders", sub_id="s")
        await together(stream.open, lambda: peer.answer("subscribe"))
        await peer.publish("s", *BODIES)
        orders = TypedStream(ORDERS, stream)
        order, message = await anext(orders)
        assert (order, message.sub_id) == (Order(1), "s")
        with pytest.raises(DecodeError, match=r"on 'orders' .* json: Expected `int`"):
            await anext(orders)
        assert orders.last is not None
        assert orders.last.data == BODIES[1]
        assert (await anext(orders))[0] == Order(3)
        await together(stream.aclose, lambda: peer.answer("unsubscribe"))


@pytest.mark.row("CC36")
async def test_an_error_handler_gets_what_cannot_be_read_and_the_stream_continues() -> None:
    failed: list[bytes] = []

    async def waiting(message: Message, _: DecodeError) -> None:
        await trio.lowlevel.checkpoint()
        failed.append(message.data)

    def plain(message: Message, _: DecodeError) -> None:
        failed.append(message.data)

    for on_decode_error in (waiting, plain):
        stream = TypedStream(ORDERS, messages(*BODIES), on_decode_error=on_decode_error)
        assert [order.id async for order, _ in stream] == [1, 3]
    assert failed == [BODIES[1], BODIES[1]]
