"""A stream of values: messages, each with what its topic decodes from it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from inspect import isawaitable
from typing import Generic, Self, TypeVar

from typing_extensions import override

from haclient.codecs import OnDecodeError, Topic
from haclient.errors import DecodeError
from haclient.protocol.messages import Message

__all__ = ["TypedStream"]

T = TypeVar("T")


class TypedStream(AsyncIterator[tuple[T, Message]], Generic[T]):
    """The messages of a stream with their values, in order.

    A message that does not decode raises `DecodeError` from the iteration, and the stream goes on
    with the next one if it is asked; or `on_decode_error` gets it, and the iteration goes on by
    itself. It is discarded or acknowledged only by who calls `discard` or `ack`: else a bookmark
    subscription delivers it again in the next run. (A queue stream with `auto_ack` acknowledges
    whatever it has handed out when the next message is asked for.)

    ::

        async with client.bookmark_stream(orders.name, sub_id="s") as messages:
            async for order, message in TypedStream(orders, messages):
                await book(order)
                message.discard()

    Args:
        topic: Decodes the messages.
        messages: An open stream, which the caller closes.
        on_decode_error: Called with each message that does not decode, and the error.

    Attributes:
        last: The message that was taken last, also where it did not decode.
    """

    def __init__(
        self,
        topic: Topic[T],
        messages: AsyncIterator[Message],
        *,
        on_decode_error: OnDecodeError | None = None,
    ) -> None:
        self._topic = topic
        self._messages = messages
        self._on_decode_error = on_decode_error
        self.last: Message | None = None

    @override
    def __aiter__(self) -> Self:
        return self

    @override
    async def __anext__(self) -> tuple[T, Message]:
        while True:
            message = self.last = await anext(self._messages)
            try:
                return self._topic.decode(message), message
            except DecodeError as error:
                if self._on_decode_error is None:
                    raise
                result = self._on_decode_error(message, error)
                if isawaitable(result):
                    await result
