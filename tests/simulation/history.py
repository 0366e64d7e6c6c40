"""What happened in a run, as its checkers see it: a list of facts, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = [
    "JOBS_TOPIC",
    "Abandoned",
    "Accepted",
    "Calmed",
    "Confirmed",
    "Delivered",
    "DeliveriesLost",
    "Discarded",
    "DiscardsLost",
    "Disturbed",
    "Drained",
    "Fact",
    "Finished",
    "History",
    "Leased",
    "LinkClosed",
    "LinkOpened",
    "MessageId",
    "Point",
    "Removed",
    "Resumed",
    "Unsubscribed",
    "text_of",
]

JOBS_TOPIC: Final = "jobs"
"""What queues are over."""

_JOB_PUBLISHERS: Final = "j"


class MessageId(NamedTuple):
    """A message as the applications know it: the n-th of a publisher."""

    publisher: str
    number: int

    @property
    def topic(self) -> str:
        """What it is published on."""
        if self.publisher.startswith(_JOB_PUBLISHERS):
            return JOBS_TOPIC
        return "state" if self.number % 4 == 3 else "orders"


@dataclass(frozen=True, slots=True)
class Accepted:
    """`publish` returned this number: from now on the message may not be lost."""

    message: MessageId
    topic: str
    sequence: int
    at: float = 0.0


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
    """A crash may have taken these discards: their messages may come again.

    Attributes:
        may_return: Whether a later process may know of them all the same: the broker that was asked
            for the recovery points did not have them, and another one does.
    """

    subscription: str
    messages: frozenset[MessageId]
    may_return: bool = False


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


@dataclass(frozen=True, slots=True)
class Removed:
    """A broker was asked to remove these messages from its log: it may not send them again."""

    broker: str
    messages: frozenset[MessageId]


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A consumer has connected; its connections are numbered over all its processes, from 1.

    Attributes:
        life: Which of its processes it is.
    """

    consumer: str
    link: int
    life: int
    at: float


@dataclass(frozen=True, slots=True)
class LinkClosed:
    """One side has closed its end of a connection of a consumer.

    Attributes:
        by: The broker, which returns the leases then, or the client, which knows from then on that
            what it sends has nowhere to go.
    """

    consumer: str
    link: int
    by: Literal["broker", "client"]
    at: float


@dataclass(frozen=True, slots=True)
class Leased:
    """A handler was called with a message of a queue.

    Attributes:
        number: The ordinal of this call in the run, from 1.
        link: The connection that it came on.
        lease_end: When the broker ends the lease, in virtual seconds; None without a lease period.
        is_firm: Whether nobody extends it.
    """

    consumer: str
    link: int
    queue: str
    message: MessageId
    lease_end: float | None
    at: float
    number: int
    is_firm: bool = True


@dataclass(frozen=True, slots=True)
class Finished:
    """An application is done with a message of a queue, one way or the other.

    Attributes:
        number: That of the call.
        how: `done`: the handler has returned, or the message was acknowledged by hand. `failed`:
            the handler raised, or the message was cancelled by hand. `expired`: it was to expire.
            `cut`: the client has cancelled the handler, because the lease is over.
    """

    consumer: str
    link: int
    queue: str
    message: MessageId
    how: Literal["done", "failed", "expired", "cut"]
    at: float
    number: int


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A consumer leaves a queue: its leases end about now."""

    consumer: str
    queue: str
    at: float


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The broker has said that it has taken the acknowledgements of these messages."""

    queue: str
    messages: frozenset[MessageId]
    at: float


@dataclass(frozen=True, slots=True)
class Disturbed:
    """Something goes wrong from now on, until some time."""

    at: float
    until: float


@dataclass(frozen=True, slots=True)
class Calmed:
    """Faults have stopped, and their consequences are over: every link works from now on."""

    at: float


@dataclass(frozen=True, slots=True)
class Drained:
    """Faults have stopped, nothing more is published, and every queue is empty."""

    at: float


Fact: TypeAlias = (
    Accepted
    | Abandoned
    | Resumed
    | Delivered
    | DeliveriesLost
    | Discarded
    | DiscardsLost
    | Point
    | Removed
    | LinkOpened
    | LinkClosed
    | Leased
    | Finished
    | Unsubscribed
    | Confirmed
    | Disturbed
    | Calmed
    | Drained
)


def text_of(fact: Fact) -> str:
    """A fact in a line, the same in every process: the order of a set is not."""
    values = ((each.name, getattr(fact, each.name)) for each in fields(fact))
    shown = (f"{n}={sorted(v) if isinstance(v, frozenset) else v!r}" for n, v in values)
    return f"{type(fact).__name__}({', '.join(shown)})"


class History:
    """The facts of a run.

    Args:
        on_fact: Called with each fact, for a trace.
    """

    def __init__(self, on_fact: Callable[[Fact], None] = lambda _: None) -> None:
        self.facts: list[Fact] = []
        self._on_fact = on_fact

    def add(self, fact: Fact) -> None:
        """Something happened now."""
        self.facts.append(fact)
        self._on_fact(fact)
