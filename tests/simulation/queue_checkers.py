"""What must be true of the queues of a run. Each checker is pure: facts in, complaints out.

Consumers see when a handler is called and when it is done with its message; the broker's side is
known from the times at which leases end, which come with the messages, and from the times at which
connections are closed. Some things nobody sees: a message that was sent and lost with its link was
leased meanwhile, and an acknowledgement may be lost in the same way. So a checker complains only of
what no such loss explains, and two of them look only where nothing was disturbed (`Quiet`).

A message that is delivered again because its lease was broken, by the loss of a link or by time,
is no error: that is what at least once means. Nor is one that an at-most-once queue has removed and
nobody has got, if the way to its consumer was disturbed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from simulation.history import (
    JOBS_TOPIC,
    Abandoned,
    Accepted,
    Calmed,
    Confirmed,
    Disturbed,
    Drained,
    Fact,
    Finished,
    Leased,
    LinkClosed,
    LinkOpened,
    MessageId,
    Unsubscribed,
)
from simulation.jobs import is_barrier, priority_of
from simulation.plans import QueuePlan

__all__ = [
    "DeadLetter",
    "after_the_end",
    "at_most_once",
    "barriers",
    "confirmed",
    "cut_off",
    "dead_letters",
    "late_acks",
    "lost_acks",
    "one_lease",
    "order",
    "unprocessed",
    "unsent_acks",
]

ACK_S: Final = 2.0
"""Where nothing is disturbed an acknowledgement has arrived after so many virtual seconds."""

_TICK_S: Final = 0.001

QUICK_ACK_S: Final = 0.5
"""The same where messages are acknowledged one by one, and the whole time is quiet."""

QUIET_S: Final = 10.0
"""So long after a disturbance its consequences may go on: a heartbeat is missed, a link is slow."""

_SLACK_S: Final = 0.05  # the broker ends leases when they are due; times are rounded
_ROUNDED_S: Final = 1e-5  # the end of a lease has microseconds

Queues = Mapping[str, QueuePlan]
Job = tuple[str, MessageId]
LinkId = tuple[str, int]


class DeadLetter(NamedTuple):
    """What a topic for dead letters has."""

    queue: str
    message: MessageId
    reason: str


class Quiet:
    """When nothing was disturbed."""

    def __init__(self, facts: Sequence[Fact]) -> None:
        calm = min((each.at for each in facts if isinstance(each, Calmed)), default=float("inf"))
        self._spans = [
            (each.at, min(each.until + QUIET_S, calm) if each.at < calm else each.until)
            for each in facts
            if isinstance(each, Disturbed)
        ]

    def between(self, begin: float, end: float) -> bool:
        """Whether all of this time was quiet."""
        return not any(begin <= until and at <= end for at, until in self._spans)


@dataclass(slots=True)
class Links:
    """The connections of the consumers."""

    opened: dict[LinkId, float] = field(default_factory=dict[LinkId, float])
    lives: dict[LinkId, int] = field(default_factory=dict[LinkId, int])
    closed_by_broker: dict[LinkId, float] = field(default_factory=dict[LinkId, float])
    closed_by_client: dict[LinkId, float] = field(default_factory=dict[LinkId, float])
    left: dict[tuple[str, str], list[float]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], list[float]](list)
    )

    @classmethod
    def of(cls, facts: Iterable[Fact]) -> Links:
        """Those of a run."""
        links = cls()
        for fact in facts:
            match fact:
                case LinkOpened():
                    links.opened[fact.consumer, fact.link] = fact.at
                    links.lives[fact.consumer, fact.link] = fact.life
                case LinkClosed(by="broker"):
                    links.closed_by_broker[fact.consumer, fact.link] = fact.at
                case LinkClosed():
                    links.closed_by_client[fact.consumer, fact.link] = fact.at
                case Unsubscribed():
                    links.left[fact.consumer, fact.queue].append(fact.at)
                case _:
                    pass
        return links

    def ends(self, leased: Leased) -> float:
        """When the broker ends the lease at the latest, whatever its period."""
        left = self.left[leased.consumer, leased.queue]
        later = bisect_left(left, leased.at)
        until = left[later] if later < len(left) else float("inf")
        return min(until, self.closed_by_broker.get((leased.consumer, leased.link), float("inf")))

    def lost_within(self, begin: float, end: float, but: LinkId) -> bool:
        """Whether anybody but this one has lost what it was sent, in this time."""
        closed = any(
            begin <= at <= end and link != but
            for ends in (self.closed_by_broker, self.closed_by_client)
            for link, at in ends.items()
        )
        return closed or any(
            # On a slow link an unsubscribe takes effect later.
            begin - ACK_S <= at <= end and consumer != but[0]
            for (consumer, _), times in self.left.items()
            for at in times
        )


@dataclass(slots=True)
class _Lease:
    """A delivery, and what became of it."""

    leased: Leased
    finished: Finished | None = None

    @property
    def is_done(self) -> bool:
        return self.finished is not None and self.finished.how == "done"


def _job(fact: Leased | Finished) -> Job:
    return fact.queue, fact.message


def _leases(facts: Iterable[Fact]) -> dict[Job, list[_Lease]]:
    """Every delivery of each message, in the order in which the broker sent them.

    A message may wait in its client for so long that its lease ends, and another consumer is first.
    """
    found: dict[Job, list[_Lease]] = defaultdict(list)
    for fact in facts:
        match fact:
            case Leased():
                found[_job(fact)].append(_Lease(fact))
            case Finished():
                for each in found[_job(fact)]:
                    if each.leased.number == fact.number:
                        each.finished = fact
            case _:
                pass
    for leases in found.values():
        if all(each.leased.lease_end is not None for each in leases):
            leases.sort(key=lambda each: each.leased.lease_end or 0.0)
    return found


def _has_lease(queues: Queues, job: Job) -> bool:
    queue = queues[job[0]]
    return not queue.is_at_most_once and not (queue.barrier and is_barrier(job[1]))


def _sent(queue: QueuePlan, leased: Leased) -> float | None:
    """When the broker has sent it; None if the message does not tell."""
    if leased.lease_end is None or queue.lease_s is None:
        return None
    return leased.lease_end - queue.lease_s


def _had_ended(
    lease: _Lease, then: Leased, every: Sequence[_Lease], queue: QueuePlan, links: Links
) -> bool:
    """Whether a lease had ended when the message was delivered again, so that it may have been."""
    if links.ends(lease.leased) <= then.at:
        return True
    sent, end = _sent(queue, then), lease.leased.lease_end
    if sent is not None and end is not None and sent >= end - _SLACK_S:
        return True
    return any(_is_given_back(lease, each, then, queue) for each in every)


def _is_given_back(lease: _Lease, by: _Lease, then: Leased, queue: QueuePlan) -> bool:
    """Whether what became of one delivery of a message has ended the lease of another one.

    An acknowledgement names the message, and not the delivery: who cancels a former one cancels the
    lease that there is, if it is theirs or if the queue does not care.
    """
    finished, leased = by.finished, lease.leased
    if finished is None or finished.how == "done" or finished.at > then.at:
        return False
    sent = _sent(queue, leased)
    is_theirs = (finished.consumer, finished.link) == (leased.consumer, leased.link)
    # A cancel may have been on its way when the lease began.
    is_in_time = finished.at >= (leased.at if sent is None else sent - QUICK_ACK_S)
    return is_in_time and (is_theirs or queue.leasing == "sublet")


def one_lease(facts: Sequence[Fact], queues: Queues) -> Iterator[str]:
    """Nobody gets a message that another one has a lease of, or has acknowledged in time."""
    links = Links.of(facts)
    for job, leases in _leases(facts).items():
        if not _has_lease(queues, job):
            continue
        live: list[_Lease] = []
        for lease in leases:
            then = lease.leased
            if links.ends(then) <= then.at:
                continue  # it was sent before, and was still on its way when its link was lost
            queue = queues[job[0]]
            live = [one for one in live if not _had_ended(one, then, leases, queue, links)]
            for one in live:
                has = "has acknowledged" if one.is_done else "has"
                yield (
                    f"lease: {then.consumer} got {job[1]} of {job[0]} at {then.at:.3f}, "
                    f"which {one.leased.consumer} {has} since {one.leased.at:.3f}"
                )
            live.append(lease)


def lost_acks(facts: Sequence[Fact], queues: Queues) -> Iterator[str]:
    """What was acknowledged before its lease ended does not come again, if nothing went wrong."""
    links, quiet = Links.of(facts), Quiet(facts)
    for job, leases in _leases(facts).items():
        if not _has_lease(queues, job):
            continue
        for lease, then in pairwise(leases):
            finished, end = lease.finished, lease.leased.lease_end
            if finished is None or finished.how != "done" or finished.at > then.leased.at:
                continue
            if links.ends(then.leased) <= then.leased.at:
                continue
            arrived = finished.at + ACK_S
            if arrived < min(end or float("inf"), then.leased.at, links.ends(lease.leased)) and (
                quiet.between(finished.at, arrived)
            ):
                yield (
                    f"acknowledged: {job[1]} of {job[0]} came again at {then.leased.at:.3f}; "
                    f"{finished.consumer} was done with it at {finished.at:.3f}"
                )


def unsent_acks(facts: Sequence[Fact], queues: Queues) -> Iterator[str]:
    """What was acknowledged before the next connection is, before that one brings messages."""
    links = Links.of(facts)
    for job, leases in _leases(facts).items():
        if not _has_lease(queues, job) or queues[job[0]].leasing == "strict":
            continue
        for lease, then in pairwise(leases):
            finished, after = lease.finished, (then.leased.consumer, then.leased.link)
            before = (lease.leased.consumer, lease.leased.link)
            if finished is None or finished.how != "done" or after != (before[0], before[1] + 1):
                continue
            is_alive = links.lives.get(before) == links.lives.get(after) is not None
            if is_alive and finished.at < links.opened[after]:
                yield (
                    f"unsent: {job[1]} of {job[0]} came again to {after[0]} at "
                    f"{then.leased.at:.3f}, which had acknowledged it on its last connection"
                )


def late_acks(facts: Sequence[Fact], queues: Queues, dead: Iterable[DeadLetter]) -> Iterator[str]:
    """In a strict queue nobody ends the lease of another one.

    A message whose last holder has not processed it is still in the queue, unless a former holder
    acknowledged it when nobody had it.
    """
    quiet, dead_lettered = Quiet(facts), {(each.queue, each.message) for each in dead}
    if not any(isinstance(each, Drained) for each in facts):
        return
    for job, leases in _leases(facts).items():
        if not leases or not _has_lease(queues, job) or queues[job[0]].leasing != "strict":
            continue
        last = leases[-1].finished
        if last is None or last.how != "failed" or job in dead_lettered:
            continue
        held_until = min(last.at, leases[-1].leased.lease_end or last.at)
        acks = [each.finished for each in leases if each.is_done and each.finished is not None]
        in_vain = [
            (each.consumer, each.link) != (last.consumer, last.link)
            and each.at + QUICK_ACK_S < held_until
            and quiet.between(each.at, held_until)
            for each in acks
        ]
        if acks and all(in_vain):
            yield (
                f"strict: {last.consumer} had {job[1]} of {job[0]} and failed, and nobody got it "
                f"again: {acks[0].consumer} has acknowledged it without a lease"
            )


def unprocessed(facts: Sequence[Fact], queues: Queues, dead: Iterable[DeadLetter]) -> Iterator[str]:
    """Every message was processed, or expired with a copy of it; none is lost.

    A queue that delivers at most once has to deliver what is published when all is calm.

    Args:
        facts: What happened.
        queues: The queues, by name.
        dead: What the topic for dead letters has.
    """
    dead_lettered = {(each.queue, each.message) for each in dead}
    done = {_job(each) for each in facts if isinstance(each, Finished) and each.how == "done"}
    leased = {_job(each) for each in facts if isinstance(each, Leased)}
    abandoned = {each.message for each in facts if isinstance(each, Abandoned)}
    calm = False
    for fact in facts:
        calm = calm or isinstance(fact, Calmed)
        if not isinstance(fact, Accepted) or fact.topic != JOBS_TOPIC or fact.message in abandoned:
            continue
        for name in queues:
            job = (name, fact.message)
            if not _has_lease(queues, job):
                if calm and job not in leased and job not in dead_lettered:
                    yield f"undelivered: nobody got {fact.message} of {name}"
            elif job not in done and job not in dead_lettered:
                yield f"unprocessed: {fact.message} is no more in {name}, and nobody has done it"


def at_most_once(facts: Sequence[Fact], queues: Queues) -> Iterator[str]:
    """A queue that delivers at most once does; a barrier comes once to each connection."""
    seen: set[Job] = set()
    barriers_seen: set[tuple[Job, LinkId]] = set()
    for fact in facts:
        if not isinstance(fact, Leased):
            continue
        job, queue = _job(fact), queues[fact.queue]
        if queue.barrier and is_barrier(fact.message):
            key = (job, (fact.consumer, fact.link))
            if key in barriers_seen:
                yield f"twice: {fact.consumer} got the barrier {fact.message} of {fact.queue} twice"
            barriers_seen.add(key)
        elif queue.is_at_most_once:
            if job in seen:
                yield f"twice: {fact.consumer} got {fact.message} of {fact.queue} again"
            seen.add(job)


def confirmed(facts: Sequence[Fact], queues: Queues) -> Iterator[str]:
    """What the broker has said is acknowledged for good is not sent again."""
    opened = Links.of(facts).opened
    known: dict[Job, float] = {}
    for fact in facts:
        match fact:
            case Confirmed():
                for message in fact.messages:
                    known.setdefault((fact.queue, message), fact.at)
            case Leased() if _job(fact) in known:
                sent = _sent(queues[fact.queue], fact)
                if sent is None:  # not before this
                    sent = opened.get((fact.consumer, fact.link), 0.0)
                if sent > known[_job(fact)] + _ROUNDED_S:
                    yield (
                        f"confirmed: {fact.consumer} got {fact.message} of {fact.queue} after the "
                        "broker had confirmed that it was acknowledged"
                    )
            case _:
                pass


def cut_off(facts: Sequence[Fact], queues: Queues, cutting: Container[str]) -> Iterator[str]:
    """No handler goes on when its lease is over, where the client is to cut it off.

    Args:
        facts: What happened.
        queues: The queues.
        cutting: The consumers whose handlers are cut off, and extend no lease.
    """
    for (queue, message), leases in _leases(facts).items():
        lease_s = queues[queue].lease_s
        for each in leases:
            leased, finished = each.leased, each.finished
            if lease_s is None or leased.lease_end is None or leased.consumer not in cutting:
                continue
            if finished is not None and finished.at > leased.at + lease_s + _TICK_S:
                late_s = finished.at - leased.at
                yield f"cut: {leased.consumer} worked {late_s:.1f} s on {message} of {queue}"


def after_the_end(facts: Sequence[Fact]) -> Iterator[str]:
    """Nothing comes from a queue that was empty, whatever is restarted."""
    drained = False
    for fact in facts:
        match fact:
            case Drained():
                drained = True
            case Leased() if drained:
                yield f"ended: {fact.consumer} got {fact.message} of {fact.queue} after its end"
            case _:
                pass


def dead_letters(
    facts: Sequence[Fact], queues: Queues, dead: Iterable[DeadLetter]
) -> Iterator[str]:
    """What expires does it once, and for a reason that its consumers know of."""
    failures: Counter[Job] = Counter()
    given_up: set[Job] = set()
    for fact in facts:
        if isinstance(fact, Finished) and fact.how in {"failed", "expired"}:
            failures[_job(fact)] += 1
            if fact.how == "expired":
                given_up.add(_job(fact))
    for each, count in Counter(dead).items():
        if count > 1:
            yield f"dead letter: {each.message} of {each.queue} has {count} copies"
        failed = failures[each.queue, each.message]
        has_given_up = (each.queue, each.message) in given_up
        if not _is_plausible(each.reason, queues[each.queue], failed, has_given_up=has_given_up):
            yield (
                f"dead letter: {each.message} of {each.queue} expired because of {each.reason} "
                f"after {failed} failures"
            )


def _is_plausible(reason: str, queue: QueuePlan, failures: int, *, has_given_up: bool) -> bool:
    match reason:
        case "max_cancels":
            return 0 < queue.max_cancels < failures
        case "max_deliveries":
            return queue.max_deliveries > 0
        case "time_limit":
            return queue.lifetime_s is not None
        case "forced_expire":
            return has_given_up
        case _:
            return False


def order(
    facts: Sequence[Fact],
    queues: Queues,
    positions: Mapping[MessageId, int],
    pools: Container[str] = (),
) -> Iterator[str]:
    """Of what is available the highest priority comes first, and of those the oldest.

    Args:
        facts: What happened.
        queues: The queues, by name.
        positions: The places of the messages in the broker's log.
        pools: Consumers whose handlers run several at a time, and begin in any order.
    """
    links = Links.of(facts)
    by_queue: dict[str, list[Leased]] = defaultdict(list)
    for fact in facts:
        if not isinstance(fact, Leased) or fact.consumer in pools:
            continue
        if _has_lease(queues, _job(fact)):
            by_queue[fact.queue].append(fact)
    every = _leases(facts)
    accepted = {each.message: each.at for each in facts if isinstance(each, Accepted)}
    for name, leased in by_queue.items():
        for at, worse in enumerate(leased):
            for better in leased[at + 1 :]:
                if not _is_before(better.message, worse.message, queues[name], positions):
                    continue
                since = accepted.get(better.message, 0.0)
                leases = every[_job(better)]
                if _was_overtaken(better, worse, leases, queues[name], links=links, since=since):
                    yield (
                        f"order: {worse.consumer} got {worse.message} of {name} at {worse.at:.3f}, "
                        f"and {better.message} was before it, and came at {better.at:.3f}"
                    )


def _is_before(
    one: MessageId, other: MessageId, queue: QueuePlan, positions: Mapping[MessageId, int]
) -> bool:
    """Whether one message is served before the other, and had surely entered before it."""
    if one not in positions or other not in positions or positions[one] >= positions[other]:
        return False
    return not queue.priority or priority_of(one) >= priority_of(other)


def _was_overtaken(  # two deliveries, and all that may explain them
    better: Leased,
    worse: Leased,
    leases: Sequence[_Lease],
    queue: QueuePlan,
    *,
    links: Links,
    since: float,
) -> bool:
    """Whether a message was surely available when a worse one was sent.

    Args:
        better: The message that came later.
        worse: The one that came before.
        leases: All deliveries of the better one.
        queue: The queue.
        links: The connections of all consumers.
        since: The better one was published then.
    """
    on = (worse.consumer, worse.link)
    sent_better, sent_worse = _sent(queue, better), _sent(queue, worse)
    if (better.consumer, better.link) != on and (
        sent_better is None or sent_worse is None or sent_better <= sent_worse
    ):
        return False  # it may have been sent before, and was looked at later
    begin = sent_worse if sent_worse is not None else links.opened.get(on, worse.at)
    for each in leases[: next(at for at, each in enumerate(leases) if each.leased is better)]:
        finished = each.finished
        if finished is not None and finished.how != "cut" and finished.at <= better.at:
            return False  # a client may hold back what it returns, and what it acknowledges
        lease_end = each.leased.lease_end if each.leased.is_firm else None
        end = min(lease_end or float("inf"), links.ends(each.leased))
        if end + _SLACK_S >= begin:
            return False
        since = max(since, end)
    if queue.lease_s is not None and (sent_better or 0.0) >= since + queue.lease_s - _SLACK_S:
        return (
            False  # a client may have had it in between, and no time for it until its lease ended
        )
    # Who lost a link may have had it in there; one that is silent is lost when heartbeats miss.
    return not links.lost_within(begin - _SLACK_S, better.at + QUIET_S, on)


def barriers(
    facts: Sequence[Fact],
    queues: Queues,
    positions: Mapping[MessageId, int],
    pools: Container[str] = (),
) -> Iterator[str]:
    """A barrier comes after all that is older, for good, and before all that is younger.

    Args:
        facts: What happened.
        queues: The queues, by name.
        positions: The places of the messages in the broker's log.
        pools: Consumers whose handlers run several at a time, and begin in any order.
    """
    opened = Links.of(facts).opened
    passed: dict[str, list[Leased]] = defaultdict(list)
    leased: dict[str, list[Leased]] = defaultdict(list)
    for fact in facts:
        if not isinstance(fact, Leased) or not queues[fact.queue].barrier:
            continue
        at = positions.get(fact.message)
        if at is None:
            continue
        sent = _sent(queues[fact.queue], fact)
        for barrier in passed[fact.queue]:
            same = (barrier.consumer, barrier.link) == (fact.consumer, fact.link)
            same = same and fact.consumer not in pools
            is_late = same or (sent is not None and sent > barrier.at)
            if is_late and at < positions[barrier.message]:
                yield (
                    f"barrier: {fact.consumer} got {fact.message} of {fact.queue} at "
                    f"{fact.at:.3f} after the younger barrier {barrier.message}"
                )
        if is_barrier(fact.message):
            on = (fact.consumer, fact.link) if fact.consumer not in pools else ("", 0)
            for each in leased[fact.queue]:
                same = (each.consumer, each.link) == on
                if at < positions[each.message] and (same or each.at < opened.get(on, 0.0)):
                    yield (
                        f"barrier: {each.consumer} got {each.message} of {fact.queue} at "
                        f"{each.at:.3f} before the older barrier {fact.message}"
                    )
            passed[fact.queue].append(fact)
        leased[fact.queue].append(fact)
