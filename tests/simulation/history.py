"""What happened in a run, as its checkers see it: a list of facts, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "Accepted",
    "Delivered",
    "Discarded",
    "Fact",
    "Forgiven",
    "History",
    "MessageId",
    "Point",
    "PowerLost",
    "Resumed",
]


class MessageId(NamedTuple):
    """A message as the applications know it: the n-th of a publisher."""

    publisher: str
    number: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """`publish` returned this number: from now on the message may not be lost."""

    message: MessageId
    topic: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Forgiven:
    """The promise does not cover this message any more: a crash took what it does not survive."""

    message: MessageId


@dataclass(frozen=True, slots=True)
class Resumed:
    """A process of the subscriber has (re)started."""

    subscription: str
    life: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """A handler got a message."""

    subscription: str
    life: int
    message: MessageId
    bookmark: str


@dataclass(frozen=True, slots=True)
class Discarded:
    """`discard` returned."""

    subscription: str
    message: MessageId


@dataclass(frozen=True, slots=True)
class PowerLost:
    """The subscriber's machine stopped: discards since the last sync are not promised."""

    subscription: str


@dataclass(frozen=True, slots=True)
class Point:
    """Where the bookmark store says that a subscription would resume."""

    subscription: str
    bookmarks: str


Fact: TypeAlias = Accepted | Forgiven | Resumed | Delivered | Discarded | PowerLost | Point


class History:
    """The facts of a run.

    Args:
        told: Called with each fact, for a trace.
    """

    def __init__(self, told: Callable[[Fact], None] = lambda _: None) -> None:
        self.facts: list[Fact] = []
        self._told = told

    def add(self, fact: Fact) -> None:
        """Something happened now."""
        self.facts.append(fact)
        self._told(fact)
