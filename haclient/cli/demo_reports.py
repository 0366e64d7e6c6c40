"""What the conductor of `haclient demo` and its workers say to each other."""

from __future__ import annotations

import msgspec

__all__ = ["Assignment", "Report"]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher or subscriber has to do.

    Attributes:
        servers: URIs, best first.
        store: Path of its store.
        trace: Where the subscriber writes its trace.
        marks: How many marks that trace can take.
    """

    servers: tuple[str, ...]
    store: str
    trace: str = ""
    marks: int = 0


class Report(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of a worker's standard output; what is not told is left out.

    Attributes:
        ready: It is connected; the subscriber has subscribed.
        published: How many messages the publisher's store has taken.
        persisted: How many of them the brokers have persisted.
        resumed_ns: When the first message after a lost connection came, on the monotonic clock.
        caught_up: The subscriber has been given all that was in the log when it subscribed.
    """

    ready: bool = False
    published: int | None = None
    persisted: int | None = None
    resumed_ns: int | None = None
    caught_up: bool = False
