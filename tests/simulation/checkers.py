"""What must be true of a run. Each checker is a pure function: facts in, complaints out.

They know where the promise ends (design 5). What it does not cover is never a complaint and is
counted in `Beyond` instead:

* a message that only a memory store had when its process was killed, or that was not synced when
  the machine lost its power at durability `process` (`Forgiven`);
* a discard that was not synced when the machine lost its power (`PowerLost`): its message may come
  again;
* a message that comes again because it was delivered and not discarded before a restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulation.history import (
    Accepted,
    Delivered,
    Discarded,
    Fact,
    Forgiven,
    MessageId,
    Point,
    PowerLost,
    Resumed,
)

__all__ = [
    "Beyond",
    "LogRecord",
    "agreement",
    "bounded",
    "count_beyond",
    "handed_out_twice",
    "lost",
    "order",
    "recovery_points",
    "repeated",
    "skipped",
]

Wants = Mapping[str, Callable[[MessageId, str], bool]]
"""Whether a subscription is about a message and its topic."""

LogRecord = tuple[str, MessageId]
"""A record of a broker's log: its bookmark and the message in it."""


@dataclass(slots=True)
class Beyond:
    """What happened where the promise ends."""

    forgiven: int = 0
    repeated_after_power_loss: int = 0
    redelivered_undiscarded: int = 0


def _forgiven(facts: Sequence[Fact]) -> set[MessageId]:
    return {fact.message for fact in facts if isinstance(fact, Forgiven)}


def lost(facts: Sequence[Fact], wants: Wants) -> Iterator[str]:
    """Nothing accepted is lost: every subscription got all that it is about."""
    forgiven = _forgiven(facts)
    got: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        if isinstance(fact, Delivered):
            got[fact.subscription].add(fact.message)
    for fact in facts:
        if not isinstance(fact, Accepted) or fact.message in forgiven:
            continue
        for subscription, wanted in wants.items():
            if wanted(fact.message, fact.topic) and fact.message not in got[subscription]:
                yield f"lost: {subscription} never got {fact.message} ({fact.sequence})"


def repeated(facts: Sequence[Fact]) -> Iterator[str]:
    """Nothing is delivered again after its discard returned."""
    discarded: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        match fact:
            case Discarded():
                discarded[fact.subscription].add(fact.message)
            case PowerLost():
                discarded[fact.subscription].clear()
            case Delivered() if fact.message in discarded[fact.subscription]:
                yield f"repeated: {fact.subscription} got {fact.message} after its discard"
            case _:
                pass


def handed_out_twice(facts: Sequence[Fact]) -> Iterator[str]:
    """What a process was handed, it is not handed again."""
    seen: set[tuple[str, int, MessageId]] = set()
    for fact in facts:
        if isinstance(fact, Delivered):
            key = (fact.subscription, fact.life, fact.message)
            if key in seen:
                yield f"twice: {fact.subscription} got {fact.message} twice in life {fact.life}"
            seen.add(key)


def order(facts: Sequence[Fact]) -> Iterator[str]:
    """A process gets the messages of each publisher in the order of their publishing.

    One that is forgiven may be on a single broker, and comes when that one is back.
    """
    forgiven = _forgiven(facts)
    last: dict[tuple[str, int, str], int] = {}
    for fact in facts:
        if isinstance(fact, Delivered) and fact.message not in forgiven:
            key = (fact.subscription, fact.life, fact.message.publisher)
            if fact.message.number < last.get(key, -1):
                yield f"order: {fact.subscription} got {fact.message} after {last[key]}"
            last[key] = max(fact.message.number, last.get(key, -1))


def _sequence(bookmark: str) -> tuple[str, int]:
    publisher, sequence = bookmark.split("|")[:2]
    return publisher, int(sequence)


def recovery_points(facts: Sequence[Fact]) -> Iterator[str]:
    """No recovery point is at or behind a message that was delivered and is not discarded."""
    open_: dict[str, dict[MessageId, tuple[str, int]]] = defaultdict(dict)
    for fact in facts:
        match fact:
            case Delivered():
                open_[fact.subscription][fact.message] = _sequence(fact.bookmark)
            case Discarded():
                open_[fact.subscription].pop(fact.message, None)
            case Point():
                items = [item for item in fact.bookmarks.split(",") if item.count("|") > 1]
                point = dict(map(_sequence, items))
                for message, (publisher, sequence) in open_[fact.subscription].items():
                    if sequence <= point.get(publisher, -1):
                        yield f"recovery point: {fact.subscription} passed {message}"
            case _:
                pass


def skipped(facts: Sequence[Fact]) -> Iterator[str]:
    """What was delivered and not discarded before the last restart came again after it."""
    forgiven = _forgiven(facts)
    open_: dict[str, set[MessageId]] = defaultdict(set)
    awaited: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        match fact:
            case Delivered():
                open_[fact.subscription].add(fact.message)
                awaited[fact.subscription].discard(fact.message)
            case Discarded():
                open_[fact.subscription].discard(fact.message)
                awaited[fact.subscription].discard(fact.message)
            case Resumed():
                awaited[fact.subscription] = open_[fact.subscription] - forgiven
            case _:
                pass
    for subscription, messages in awaited.items():
        for message in sorted(messages):
            yield f"skipped: {subscription} did not get the undiscarded {message} again"


def agreement(
    logs: Mapping[str, Sequence[LogRecord]], forgiven: frozenset[MessageId] = frozenset()
) -> Iterator[str]:
    """Replicas hold the same messages under the same bookmarks, each once, each in order."""
    for broker, log in logs.items():
        last: dict[str, int] = {}
        for bookmark, message in log:
            publisher, sequence = _sequence(bookmark)
            if sequence <= last.get(publisher, -1):
                yield f"agreement: {broker} has {message} ({bookmark}) after {last[publisher]}"
            last[publisher] = sequence
    everything = {record for log in logs.values() for record in log}
    for broker, log in logs.items():
        for bookmark, message in sorted(everything - set(log)):
            if message not in forgiven:
                yield f"agreement: {broker} lacks {message} ({bookmark})"


def bounded(sizes: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """At rest nothing is larger than its limit."""
    for name, size in sizes.items():
        limit = limits[name.rpartition(" ")[2]]
        if size > limit:
            yield f"memory: {name} is {size} at rest, and at most {limit} was expected"


def count_beyond(facts: Sequence[Fact]) -> Beyond:
    """How often something happened that the promise does not cover."""
    found = Beyond(forgiven=len(_forgiven(facts)))
    got: set[tuple[str, MessageId]] = set()
    discarded: set[tuple[str, MessageId]] = set()
    for fact in facts:
        match fact:
            case Delivered():
                key = (fact.subscription, fact.message)
                if key in discarded:
                    found.repeated_after_power_loss += 1
                elif key in got:
                    found.redelivered_undiscarded += 1
                got.add(key)
            case Discarded():
                discarded.add((fact.subscription, fact.message))
            case _:
                pass
    return found
