"""A handler that finishes what it gets, and waits that suit brokers with files."""

from __future__ import annotations

from collections.abc import Callable

import trio

from haclient.protocol.messages import Message

__all__ = ["Inbox", "until"]

_LIMIT_S = 3600.0  # virtual: while a thread of a broker writes a file, the clock jumps


async def until(happened: Callable[[], bool]) -> None:
    """Wait for it. The broker's threads write files while every task waits for them."""
    with trio.fail_after(_LIMIT_S):
        while not happened():  # noqa: ASYNC110 - it happens in several places
            await trio.sleep(0.01)


class Inbox:
    """A handler that finishes each message, and what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self._arrived = trio.lowlevel.ParkingLot()

    def __call__(self, message: Message) -> None:
        self.got.append(message.data)
        message.discard()
        self._arrived.unpark_all()

    async def until(self, *bodies: bytes) -> None:
        """Wait for exactly these."""
        with trio.fail_after(_LIMIT_S):
            while len(self.got) < len(bodies):
                await self._arrived.park()
        assert self.got == list(bodies)
