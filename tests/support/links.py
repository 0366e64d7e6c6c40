"""Links that carry bytes in pieces, and both ends of one as tasks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import trio
from typing_extensions import override

from haclient.transport.links.link import Link

__all__ = ["Pieces", "receive", "send"]


class Pieces(Link):
    """A link that carries a few bytes at a time, and often none at first.

    Args:
        inner: What carries them in the end.
        sizes: How many bytes it takes and gives in each call, again and again; 0 for none.

    Attributes:
        refuses: Whether it takes nothing at all.
    """

    def __init__(self, inner: Link, sizes: Sequence[int]) -> None:
        self._inner = inner
        self._to_send, self._to_receive = cycle(sizes), cycle(sizes)
        self.refuses = False
        self.woken = trio.Event()

    @override
    def try_send(self, data: memoryview | bytes) -> int | None:
        size = 0 if self.refuses else next(self._to_send)
        return self._inner.try_send(data[:size]) if size else None

    @override
    def recv_into(self, buffer: memoryview) -> int | None:
        size = next(self._to_receive)
        return self._inner.recv_into(buffer[:size]) if size else None

    @override
    async def wait_readable(self) -> None:
        await self._inner.wait_readable()

    @override
    async def wait_writable(self) -> None:
        if self.refuses:
            await self.woken.wait()
        await self._inner.wait_writable()

    @override
    def close(self) -> None:
        self._inner.close()

    @property
    @override
    def peer(self) -> str:
        return self._inner.peer


async def send(link: Link, data: bytes) -> None:
    rest = memoryview(data)
    while rest or link.unsent_bytes:
        count = link.try_send(rest) if rest else None
        if count is None:
            await link.wait_writable()
        else:
            rest = rest[count:]


async def receive(link: Link, count: int, size: int = 65_536) -> bytes:
    received, buffer = bytearray(), memoryview(bytearray(size))
    while len(received) < count:
        arrived = link.recv_into(buffer)
        if arrived is None:
            await link.wait_readable()
            await trio.lowlevel.checkpoint()
        elif not arrived:
            break
        else:
            received += buffer[:arrived]
    return bytes(received)
