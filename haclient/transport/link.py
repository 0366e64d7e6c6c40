"""The seam between this project and a byte stream.

A `Link` is a connected, ordered, reliable stream of bytes with two non-blocking verbs and two
waits. Everything above it (client and reference broker alike) works on this interface alone, so
that TCP, TLS, compression and the simulator's in-memory links can stand behind it.

The caller tries first and waits only after being told to::

    while (count := link.recv_into(view)) is None:
        await link.wait_readable()

A broken link raises `OSError` from the verbs; a closed one raises `trio.ClosedResourceError` from
the waits. Neither verb ever blocks and neither wait ever transfers bytes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

__all__ = ["Link"]


class Link(Protocol):
    """A connected byte stream (design 2.5)."""

    @abstractmethod
    def try_send(self, data: memoryview | bytes) -> int | None:
        """Hand over as many bytes as fit now; the count, or `None` when not even one does.

        Raises:
            OSError: The link is broken.
        """

    @abstractmethod
    def recv_into(self, buffer: memoryview) -> int | None:
        """Take bytes that have arrived: their count, 0 at the end, `None` when there are none yet.

        Raises:
            OSError: The link is broken.
        """

    @abstractmethod
    async def wait_readable(self) -> None:
        """Wait until `recv_into` has something to say.

        Raises:
            trio.ClosedResourceError: `close` was called, here or by another task.
        """

    @abstractmethod
    async def wait_writable(self) -> None:
        """Wait until `try_send` can take a byte.

        Raises:
            trio.ClosedResourceError: `close` was called, here or by another task.
        """

    @abstractmethod
    def close(self) -> None:
        """Close at once, without waiting for what is unsent; calling it again does nothing."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The other end's address, for people to read."""

    @property
    @abstractmethod
    def local(self) -> str:
        """This end's address, for people to read."""
