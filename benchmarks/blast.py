"""Encoded messages, made before the clock starts, for both directions."""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass

from typing_extensions import override

__all__ = ["PUBLISHER", "SUB_ID", "TOPIC", "Blast", "frame", "incoming", "outgoing", "payload"]

TOPIC = "orders"
SUB_ID = "bench"
PUBLISHER = 7094790850998930143


def payload(size: int) -> bytes:
    """A JSON object of exactly so many bytes."""
    empty = b'{"id": 12345, "text": ""}'
    return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]


def frame(header: bytes, body: bytes = b"") -> bytes:
    """One frame of the wire."""
    return struct.pack(">I", len(header) + len(body)) + header + body


@dataclass(frozen=True, slots=True)
class Blast:
    """So many messages of such a payload; its text form is the topic to subscribe to."""

    count: int
    size: int

    @override
    def __str__(self) -> str:
        return f"blast-{self.count}-{self.size}"

    @classmethod
    def parse(cls, text: str) -> Blast:
        """The reverse of `str`."""
        _, count, size = text.split("-")
        return cls(int(count), int(size))


@functools.lru_cache(maxsize=4)
def incoming(blast: Blast) -> bytes:
    """What a server sends to a bookmark subscription: sequences 1 to count of one publisher."""
    body = payload(blast.size)
    form = b'{"c":"p","t":"%b","sids":"%b","bm":"%d|%%d|","l":%d}' % (
        TOPIC.encode(),
        SUB_ID.encode(),
        PUBLISHER,
        blast.size,
    )
    return b"".join(frame(form % number, body) for number in range(1, blast.count + 1))


@functools.lru_cache(maxsize=4)
def outgoing(blast: Blast) -> bytes:
    """What a client with a publish store sends: the reference for the raw row."""
    body = payload(blast.size)
    form = b'{"c":"p","t":"%b","a":"persisted","s":%%d}' % TOPIC.encode()
    first = 1_700_000_000_000_000  # as many digits as a sequence that began with the clock
    return b"".join(frame(form % (first + number), body) for number in range(blast.count))
