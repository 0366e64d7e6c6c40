"""What happened in a run, as its checkers see it: a list of facts, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

__all__ = [
    "Abandoned",
    "Accepted",
    "Delivered",
    "DeliveriesLost",
    "Discarded",
    "DiscardsLost",
    "Fact",
    "History",
    "MessageId",
    "Point",
    "Resumed",
]


class MessageId(NamedTuple):
    """A message as the applications know it: the n-th of a publisher."""

    publisher: str
    number: int

    @property
    def topic(self) -> str:
        """What it is published on."""
        return "state" if self.number % 4 == 3 else "orders"


@dataclass(frozen=True, slots=True)
class Accepted:
    """`publish` returned this number: from now on the message may not be lost."""

    message: MessageId
    topic: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The promise does not cover this message any more: a crash took what it does not survive.

    Attributes:
        end_of: Which process it was published in, if what is lost of that is its end, without
            holes; empty if any part of it may be lost.
    """

    message: MessageId
    end_of: str = ""


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
class DiscardsLost:
    """A crash may have taken these discards: their messages may come again."""

    subscription: str
    messages: frozenset[MessageId]


@dataclass(frozen=True, slots=True)
class DeliveriesLost:
    """A crash may have taken the store's record that these were delivered and are undiscarded.

    They hold the recovery point only from their redelivery on.
    """

    subscription: str
    messages: frozenset[MessageId]


@dataclass(frozen=True, slots=True)
class Point:
    """Where the bookmark store says that a subscription would resume."""

    subscription: str
    bookmarks: str


Fact: TypeAlias = (
    Accepted | Abandoned | Resumed | Delivered | DeliveriesLost | Discarded | DiscardsLost | Point
)


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
