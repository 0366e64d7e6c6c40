"""What must be true of a run. Each checker is a pure function: facts in, complaints out.

They know where the promise ends. What it does not cover is never a complaint and is
counted in `Beyond` instead:

* a message that a crash of its publisher may have taken (`Abandoned`; `surviving` says which);
* a discard that a crash of its subscriber may have taken (`DiscardsLost`): its message may come
  again, and need not where the discard is still known somewhere;
* a message that comes again because it was delivered and not discarded before a restart;
* a recovery point that passes an abandoned message which not every broker has, once the store of
  the subscriber may have lost the record of its delivery: a broker without it cannot send it again.

An abandoned message is not outside of every promise: it is in order with those of its process, it
is never the middle of what arrives from a memory, and a broker lacks it only if it knows a later
one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulation.history import (
    Abandoned,
    Accepted,
    Delivered,
    DeliveriesLost,
    Discarded,
    DiscardsLost,
    Fact,
    MessageId,
    Point,
    Removed,
    Resumed,
)

__all__ = [
    "Beyond",
    "LogRecord",
    "agreement",
    "bounded",
    "count_beyond",
    "divergence",
    "handed_out_twice",
    "holes",
    "lost",
    "order",
    "position",
    "recovery_points",
    "repeated",
    "skipped",
    "states",
    "storms",
]

Wants = Mapping[str, Callable[[MessageId, str], bool]]
"""Whether a subscription is about a message and its topic."""

LogRecord = tuple[str, MessageId]
"""A record of a broker's log: its bookmark and the message in it."""


@dataclass(slots=True)
class Beyond:
    """What happened where the promise ends."""

    abandoned: int = 0
    repeated_after_crash: int = 0
    redelivered_undiscarded: int = 0
    passed_abandoned: int = 0


def _abandoned(facts: Sequence[Fact]) -> set[MessageId]:
    return {fact.message for fact in facts if isinstance(fact, Abandoned)}


def _delivered(facts: Sequence[Fact]) -> dict[str, set[MessageId]]:
    got: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        if isinstance(fact, Delivered):
            got[fact.subscription].add(fact.message)
    return got


def lost(facts: Sequence[Fact], wants: Wants) -> Iterator[str]:
    """Nothing accepted is lost: every subscription got all that it is about."""
    abandoned = _abandoned(facts)
    got = _delivered(facts)
    for fact in facts:
        if not isinstance(fact, Accepted) or fact.message in abandoned:
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
            case DiscardsLost():
                discarded[fact.subscription] -= fact.messages
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

    One that is abandoned may be on a single broker, and comes when that one is back: behind those
    of later processes of its publisher, and behind its own where these have holes.
    """
    spans = _spans(facts)
    last: dict[tuple[str, int, str], int] = {}
    got: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    for fact in facts:
        if not isinstance(fact, Delivered):
            continue
        key = (fact.subscription, fact.life, fact.message.publisher)
        number, late = fact.message.number, last.get(key, -1)
        if number < late:
            until = spans.get(fact.message)
            if until is None or any(number < each <= until for each in got[key]):
                yield f"order: {fact.subscription} got {fact.message} after {late}"
        last[key] = max(number, late)
        got[key].append(number)


def _spans(facts: Sequence[Fact]) -> dict[MessageId, int]:
    """For each abandoned message, up to which number others have to come behind it."""
    ends: dict[str, int] = {}
    for fact in facts:
        if isinstance(fact, Abandoned) and fact.end_of:
            ends[fact.end_of] = max(fact.message.number, ends.get(fact.end_of, 0))
    return {
        fact.message: ends.get(fact.end_of, fact.message.number)
        for fact in facts
        if isinstance(fact, Abandoned)
    }


def holes(facts: Sequence[Fact], wants: Wants) -> Iterator[str]:
    """What arrives of the end of a memory that was lost is the beginning of that."""
    topics = {fact.message: fact.topic for fact in facts if isinstance(fact, Accepted)}
    got = _delivered(facts)
    for subscription, wanted in wants.items():
        missing: dict[str, MessageId] = {}
        for fact in facts:
            if not isinstance(fact, Abandoned) or not fact.end_of:
                continue
            if not wanted(fact.message, topics[fact.message]):
                continue
            if fact.message not in got[subscription]:
                missing.setdefault(fact.end_of, fact.message)
            elif fact.end_of in missing:
                before = missing[fact.end_of]
                yield f"hole: {subscription} got {fact.message} and never {before}"


def position(bookmark: str) -> tuple[int, int]:
    """Publisher id and sequence of a bookmark."""
    publisher, sequence = bookmark.split("|")[:2]
    return int(publisher), int(sequence)


def recovery_points(
    facts: Sequence[Fact], everywhere: frozenset[MessageId] = frozenset()
) -> Iterator[str]:
    """No recovery point is at or behind a message that was delivered and is not discarded.

    Args:
        facts: What happened.
        everywhere: What every broker has: each can send it again, abandoned or not.
    """
    for subscription, message, is_covered in _passed(facts, everywhere):
        if is_covered:
            yield f"recovery point: {subscription} passed {message}"


def _passed(
    facts: Sequence[Fact], everywhere: frozenset[MessageId]
) -> Iterator[tuple[str, MessageId, bool]]:
    """What recovery points have passed undiscarded, and whether the promise covers it."""
    beyond = _abandoned(facts) - everywhere
    open_: dict[str, dict[MessageId, tuple[int, int]]] = defaultdict(dict)
    unrecorded: dict[str, set[MessageId]] = defaultdict(set)
    done: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        match fact:
            case Delivered():
                if fact.message not in done[fact.subscription]:
                    open_[fact.subscription][fact.message] = position(fact.bookmark)
                unrecorded[fact.subscription].discard(fact.message)
            case Discarded():
                open_[fact.subscription].pop(fact.message, None)
            case DiscardsLost() if fact.may_return:
                done[fact.subscription] |= fact.messages
            case DeliveriesLost():
                unrecorded[fact.subscription] |= fact.messages & beyond
            case Point():
                items = [item for item in fact.bookmarks.split(",") if item.count("|") > 1]
                point = dict(map(position, items))
                for message, (publisher, sequence) in open_[fact.subscription].items():
                    if sequence <= point.get(publisher, -1):
                        is_covered = message not in unrecorded[fact.subscription]
                        yield fact.subscription, message, is_covered
            case _:
                pass


def skipped(facts: Sequence[Fact]) -> Iterator[str]:
    """What was delivered and not discarded before the last restart came again after it."""
    abandoned = _abandoned(facts)
    removed: set[MessageId] = set()
    open_: dict[str, set[MessageId]] = defaultdict(set)
    awaited: dict[str, set[MessageId]] = defaultdict(set)
    done: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        match fact:
            case Delivered():
                open_[fact.subscription].add(fact.message)
                awaited[fact.subscription].discard(fact.message)
            case Discarded():
                open_[fact.subscription].discard(fact.message)
                awaited[fact.subscription].discard(fact.message)
            case DiscardsLost() if fact.may_return:
                done[fact.subscription] |= fact.messages
            case Resumed():
                open_[fact.subscription] -= done[fact.subscription]
                awaited[fact.subscription] = open_[fact.subscription] - abandoned - removed
            case Removed():  # all were discarded; a crash may have returned some
                removed |= fact.messages
            case _:
                pass
    for subscription, messages in awaited.items():
        for message in sorted(messages):
            yield f"skipped: {subscription} did not get the undiscarded {message} again"


def agreement(
    logs: Mapping[str, Sequence[LogRecord]], abandoned: frozenset[MessageId] = frozenset()
) -> Iterator[str]:
    """Replicas hold the same messages under the same bookmarks, each once, each in order.

    One that is abandoned may be lacking where a later one of its publisher came first.
    """
    last: dict[str, dict[int, int]] = {broker: {} for broker in logs}
    meant: dict[str, MessageId] = {}
    for broker, log in logs.items():
        for bookmark, message in log:
            publisher, sequence = position(bookmark)
            before = last[broker].get(publisher, -1)
            if sequence <= before:
                yield f"agreement: {broker} has {message} ({bookmark}) after {before}"
            last[broker][publisher] = sequence
            if meant.setdefault(bookmark, message) != message:
                yield f"agreement: {bookmark} is both {meant[bookmark]} and {message}"
    everything = {record for log in logs.values() for record in log}
    for broker, log in logs.items():
        for bookmark, message in sorted(everything - set(log)):
            publisher, sequence = position(bookmark)
            if message not in abandoned or last[broker].get(publisher, -1) < sequence:
                yield f"agreement: {broker} lacks {message} ({bookmark})"


def divergence(
    logs: Mapping[str, Sequence[LogRecord]],
    missing: Mapping[str, int],
    *,
    removed: Mapping[str, Sequence[LogRecord]] | None = None,
    in_full: bool = True,
) -> Iterator[str]:
    """A broker that lacks what another one has knows it, and no other believes so.

    Args:
        logs: The log of each broker.
        missing: How often each has told of a record that it cannot take any more.
        removed: What each has removed of its log. It may take an earlier message of the same
            publisher for one of these.
        in_full: Whether the brokers have no records but those in `logs`.
    """
    everything = {record for log in logs.values() for record in log}
    for broker, log in logs.items():
        lacking = everything - set(log)
        gone = dict(position(bookmark) for bookmark, _ in (removed or {}).get(broker, ()))
        places = [position(bookmark) for bookmark, _ in lacking]
        known = [place for place in places if place[1] > gone.get(place[0], 0)]
        if known and not missing[broker]:
            yield f"divergence: {broker} lacks {len(known)} records, and nobody was told"
        if missing[broker] and not lacking and in_full:
            yield f"divergence: {broker} lacks nothing, and has told of {missing[broker]} records"


def states(
    logs: Mapping[str, Sequence[LogRecord]],
    answers: Mapping[str, Mapping[str, int]],
) -> Iterator[str]:
    """The State of the World of each broker is the last message of each key in its own log."""
    for broker, log in logs.items():
        wanted = {m.publisher: m.number for _, m in log if m.topic == "state"}
        if wanted != answers[broker]:
            yield f"state: {broker} answers {answers[broker]} and has {wanted}"


def bounded(sizes: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """At rest nothing is larger than its limit."""
    for name, size in sizes.items():
        limit = limits[name.rpartition(" ")[2]]
        if size > limit:
            yield f"memory: {name} is {size} at rest, and at most {limit} was expected"


def storms(dialled: Mapping[str, Sequence[float]], *, within_s: float, limit: int) -> Iterator[str]:
    """Nobody connects again and again in a short time, whatever becomes of its connections.

    Args:
        dialled: When each client has opened connections, in order.
        within_s: What counts as a short time.
        limit: So many connections are all right.
    """
    for name, times in dialled.items():
        most = max(bisect_right(times, at + within_s) - i for i, at in enumerate(times))
        if most > limit:
            yield f"storm: {name} has connected {most} times within {within_s:g} s"


def count_beyond(facts: Sequence[Fact], everywhere: frozenset[MessageId] = frozenset()) -> Beyond:
    """How often something happened that the promise does not cover."""
    passed = {
        (who, message) for who, message, is_covered in _passed(facts, everywhere) if not is_covered
    }
    found = Beyond(abandoned=len(_abandoned(facts)), passed_abandoned=len(passed))
    got: set[tuple[str, MessageId]] = set()
    discarded: set[tuple[str, MessageId]] = set()
    for fact in facts:
        match fact:
            case Delivered():
                key = (fact.subscription, fact.message)
                if key in discarded:
                    found.repeated_after_crash += 1
                elif key in got:
                    found.redelivered_undiscarded += 1
                got.add(key)
            case Discarded():
                discarded.add((fact.subscription, fact.message))
            case _:
                pass
    return found
