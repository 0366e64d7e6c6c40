"""Each checker of queues complains of what it is for, and of nothing that a loss explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal

import pytest

from simulation import queue_checkers
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
from simulation.queue_checkers import DeadLetter

OLD, MIDDLE, YOUNG = (MessageId("j1", number) for number in (2, 7, 8))
POSITIONS: Final = {OLD: 1, MIDDLE: 2, YOUNG: 3}
WORK: Final = QueuePlan(name="work", lease_s=10.0)
FOREVER: Final = QueuePlan(name="work")
STRICT: Final = replace(WORK, leasing="strict")
ONCE: Final = QueuePlan(name="work", semantics="at-most-once")
BY_PRIORITY: Final = replace(WORK, priority=True)
WITH_BARRIERS: Final = replace(WORK, barrier=True)
WITH_CANCELS: Final = replace(WORK, max_cancels=1, dead_letters="dead")
ALL: Final = (LinkOpened("c1", 1, 1, 0.0), LinkOpened("c2", 1, 1, 0.0))
CONFIRMED: Final = Confirmed("work", frozenset({OLD}), 2.0)
How = Literal["done", "failed", "expired", "cut"]


def leased(
    at: float,
    message: MessageId = OLD,
    *,
    by: str = "c1",
    link: int = 1,
    sent: float | None = None,
    lease_s: float | None = 10.0,
) -> Leased:
    begin = at if sent is None else sent
    end = None if lease_s is None else begin + lease_s
    return Leased(by, link, "work", message, end, at, int(by[1:]))


def finished(
    at: float, how: How, message: MessageId = OLD, *, by: str = "c1", link: int = 1
) -> Finished:
    return Finished(by, link, "work", message, how, at, int(by[1:]))


def cancelled_at(at: float) -> list[Fact]:
    """A lease ends while its cancel is on its way, which then ends the next one of its consumer."""
    again = (leased(11.05, sent=11.0), leased(11.3, sent=11.06))
    return [leased(1.0), finished(at, "failed"), *again]


def closed(at: float, by: Literal["broker", "client"] = "broker", of: str = "c1") -> LinkClosed:
    return LinkClosed(of, 1, by, at)


def accepted(message: MessageId) -> Accepted:
    return Accepted(message, JOBS_TOPIC, message.number)


Check = Callable[[Sequence[Fact], dict[str, QueuePlan]], Iterator[str]]


def one_lease(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.one_lease(facts, queues)


def lost_acks(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.lost_acks(facts, queues)


def unsent_acks(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.unsent_acks(facts, queues)


def late_acks(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.late_acks(facts, queues, ())


def unprocessed(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    dead = [DeadLetter("work", MIDDLE, "forced_expire")]
    return queue_checkers.unprocessed(facts, queues, dead)


def at_most_once(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.at_most_once(facts, queues)


def confirmed(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.confirmed(facts, queues)


def after_the_end(facts: Sequence[Fact], _: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.after_the_end(facts)


def cancelled_too_often(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.dead_letters(facts, queues, [DeadLetter("work", OLD, "max_cancels")])


def given_up(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.dead_letters(facts, queues, [DeadLetter("work", OLD, "forced_expire")])


def copied_twice(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    dead = [DeadLetter("work", OLD, "max_cancels")] * 2
    return queue_checkers.dead_letters(facts, queues, dead)


def out_of_time(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.dead_letters(facts, queues, [DeadLetter("work", OLD, "time_limit")])


def order(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.order(facts, queues, POSITIONS)


def barriers(facts: Sequence[Fact], queues: dict[str, QueuePlan]) -> Iterator[str]:
    return queue_checkers.barriers(facts, queues, POSITIONS)


@pytest.mark.parametrize(
    ("check", "queue", "facts"),
    [
        (one_lease, WORK, [leased(1.0), leased(2.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), leased(2.0)]),
        (one_lease, FOREVER, [leased(1.0, lease_s=None), leased(99.0, by="c2", lease_s=None)]),
        (one_lease, WORK, [leased(1.0), finished(2.0, "done"), leased(3.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), leased(12.0, sent=10.5, by="c2")]),
        (one_lease, STRICT, cancelled_at(9.0)),
        (one_lease, WORK, [leased(1.0), leased(2.0, by="c2"), closed(3.0)]),
        (
            one_lease,
            STRICT,
            [
                leased(1.0),
                leased(11.5, by="c2"),
                finished(12.0, "failed"),
                leased(12.5, by="c3"),
            ],
        ),
        (lost_acks, WORK, [leased(1.0), finished(2.0, "done"), leased(12.0, by="c2")]),
        (
            lost_acks,
            WORK,
            [Disturbed(0.0, 1.0), leased(30.0), finished(31.0, "done"), leased(45.0, by="c2")],
        ),
        (
            unsent_acks,
            WORK,
            [
                *ALL,
                leased(1.0),
                closed(2.0, "client"),
                finished(3.0, "done"),
                LinkOpened("c1", 2, 1, 4.0),
                leased(5.0, link=2),
            ],
        ),
        (
            late_acks,
            STRICT,
            [
                leased(1.0),
                leased(11.0, by="c2"),
                finished(12.0, "done"),
                finished(15.0, "failed", by="c2"),
                Drained(30.0),
            ],
        ),
        (unprocessed, WORK, [accepted(OLD), leased(1.0), finished(2.0, "failed")]),
        (unprocessed, WORK, [accepted(OLD), leased(1.0)]),
        (unprocessed, WORK, [accepted(OLD)]),
        (unprocessed, ONCE, [Calmed(1.0), accepted(OLD)]),
        (at_most_once, ONCE, [leased(1.0), leased(2.0, by="c2")]),
        (at_most_once, WITH_BARRIERS, [leased(1.0, MIDDLE), leased(2.0, MIDDLE)]),
        (confirmed, WORK, [leased(1.0), CONFIRMED, leased(50.0)]),
        (
            confirmed,
            FOREVER,
            [
                leased(1.0),
                CONFIRMED,
                LinkOpened("c1", 2, 1, 3.0),
                leased(9.0, link=2, lease_s=None),
            ],
        ),
        (after_the_end, WORK, [leased(1.0), Drained(2.0), leased(50.0)]),
        (cancelled_too_often, WITH_CANCELS, [finished(1.0, "failed")]),
        (cancelled_too_often, WORK, [finished(1.0, "failed"), finished(2.0, "failed")]),
        (copied_twice, WITH_CANCELS, [finished(1.0, "failed"), finished(2.0, "failed")]),
        (given_up, WITH_CANCELS, [finished(1.0, "failed")]),
        (out_of_time, WITH_CANCELS, [leased(1.0)]),
        (
            out_of_time,
            replace(WITH_CANCELS, message_expiration_s=5, expiration_model="queue"),
            [leased(1.0)],
        ),
        (order, WORK, [*ALL, leased(1.0, YOUNG), leased(2.0, OLD)]),
        (order, WORK, [*ALL, leased(1.0, YOUNG), leased(2.0, OLD, by="c2")]),
        (order, FOREVER, [*ALL, leased(1.0, YOUNG, lease_s=None), leased(2.0, lease_s=None)]),
        (order, BY_PRIORITY, [*ALL, leased(1.0, MIDDLE), leased(2.0, OLD)]),
        (
            order,
            WORK,
            [
                *ALL,
                leased(1.0, OLD, by="c2"),
                closed(2.0, of="c2"),
                leased(3.0, YOUNG),
                leased(4.0),
            ],
        ),
        (order, WORK, [*ALL, leased(1.0, OLD), leased(12.0, YOUNG), leased(13.0, OLD)]),
        (barriers, WITH_BARRIERS, [leased(1.0, MIDDLE, lease_s=None), leased(2.0, OLD)]),
        (barriers, WITH_BARRIERS, [leased(1.0, MIDDLE, lease_s=None), leased(2.0, OLD, by="c2")]),
        (barriers, WITH_BARRIERS, [leased(1.0, YOUNG), leased(2.0, MIDDLE, lease_s=None)]),
        (
            barriers,
            WITH_BARRIERS,
            [
                leased(1.0, YOUNG, by="c2"),
                LinkOpened("c1", 2, 1, 2.0),
                leased(3.0, MIDDLE, link=2, lease_s=None),
            ],
        ),
    ],
)
def test_it_is_found(check: Check, queue: QueuePlan, facts: list[Fact]) -> None:
    assert len(list(check(facts, {"work": queue}))) == 1


@pytest.mark.parametrize(
    ("check", "queue", "facts"),
    [
        (one_lease, WORK, [leased(1.0), closed(2.0), leased(2.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), Unsubscribed("c1", "work", 2.0), leased(2.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), leased(11.0, by="c2")]),
        (one_lease, WORK, [leased(3.0, sent=1.0), leased(11.5, sent=11.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), finished(2.0, "failed"), leased(3.0, by="c2")]),
        (
            one_lease,
            WORK,
            [
                leased(1.0),
                leased(11.5, by="c2"),
                finished(12.0, "failed"),
                leased(12.5, by="c3"),
            ],
        ),
        (one_lease, WORK, [leased(1.0), finished(11.0, "cut"), leased(11.0, by="c2")]),
        (one_lease, WORK, [leased(1.0), finished(2.0, "done"), closed(3.0), leased(4.0, by="c2")]),
        (
            one_lease,
            FOREVER,
            [leased(1.0, by="c2", lease_s=None), closed(0.9), leased(1.5, lease_s=None)],
        ),
        (one_lease, STRICT, cancelled_at(10.9)),
        (one_lease, ONCE, [leased(1.0), leased(2.0, by="c2")]),
        (one_lease, WITH_BARRIERS, [leased(1.0, MIDDLE), leased(1.0, MIDDLE, by="c2")]),
        (lost_acks, WORK, [leased(1.0), finished(10.0, "done"), leased(12.0, by="c2")]),
        (lost_acks, WORK, [leased(1.0), finished(2.0, "done"), closed(3.0), leased(4.0)]),
        (
            lost_acks,
            WORK,
            [Disturbed(1.0, 3.0), leased(1.0), finished(2.0, "done"), leased(12.0, by="c2")],
        ),
        (
            unsent_acks,
            WORK,
            [
                *ALL,
                leased(1.0),
                finished(2.0, "done"),
                closed(3.0, "client"),
                LinkOpened("c1", 2, 2, 4.0),
                leased(5.0, link=2),
            ],
        ),
        (
            unsent_acks,
            WORK,
            [
                *ALL,
                leased(1.0),
                closed(2.0, "client"),
                finished(3.0, "done"),
                LinkOpened("c1", 2, 1, 4.0),
                LinkOpened("c1", 3, 1, 5.0),
                leased(6.0, link=3),
            ],
        ),
        (
            late_acks,
            STRICT,
            [
                leased(1.0),
                leased(11.0, by="c2"),
                finished(15.0, "failed", by="c2"),
                finished(16.0, "done"),
                Drained(30.0),
            ],
        ),
        (
            late_acks,
            WORK,
            [
                leased(1.0),
                leased(11.0, by="c2"),
                finished(12.0, "done"),
                finished(15.0, "failed", by="c2"),
                Drained(30.0),
            ],
        ),
        (
            late_acks,
            STRICT,
            [
                leased(1.0),
                leased(11.0, by="c2"),
                finished(22.0, "done"),
                finished(25.0, "failed", by="c2"),
                Drained(30.0),
            ],
        ),
        (
            late_acks,
            STRICT,
            [
                leased(1.0),
                finished(12.0, "done"),
                replace(leased(11.0), number=9),
                replace(finished(15.0, "failed"), number=9),
                Drained(30.0),
            ],
        ),
        (unprocessed, WORK, [accepted(OLD), leased(1.0), finished(2.0, "done")]),
        (unprocessed, WORK, [accepted(OLD), Abandoned(OLD), accepted(MIDDLE)]),
        (unprocessed, ONCE, [accepted(OLD), Calmed(1.0)]),
        (at_most_once, ONCE, [leased(1.0), leased(2.0, YOUNG)]),
        (at_most_once, WITH_BARRIERS, [leased(1.0, MIDDLE), leased(1.0, MIDDLE, by="c2")]),
        (confirmed, WORK, [leased(1.0), CONFIRMED, leased(2.5, YOUNG)]),
        (confirmed, WORK, [leased(1.0), CONFIRMED, leased(2.5, sent=1.5, by="c2")]),
        (confirmed, WORK, [leased(1.0), CONFIRMED, leased(2.5, sent=2.000001, by="c2")]),
        (confirmed, FOREVER, [*ALL, leased(1.0), CONFIRMED, leased(2.5, by="c2", lease_s=None)]),
        (after_the_end, WORK, [leased(1.0), Drained(2.0)]),
        (cancelled_too_often, WITH_CANCELS, [finished(1.0, "failed"), finished(2.0, "failed")]),
        (given_up, WITH_CANCELS, [finished(1.0, "expired")]),
        (out_of_time, replace(WITH_CANCELS, expiration_s=5.0), [leased(1.0)]),
        (order, WORK, [*ALL, leased(1.0, OLD), leased(2.0, YOUNG)]),
        (order, WORK, [*ALL, leased(1.0, YOUNG), leased(2.0, OLD, by="c2", sent=0.5)]),
        (order, BY_PRIORITY, [*ALL, leased(1.0, YOUNG), leased(2.0, MIDDLE)]),
        (order, WORK, [*ALL, leased(1.0, YOUNG), leased(11.0, OLD)]),
        (
            order,
            WORK,
            [*ALL, leased(1.0, YOUNG), closed(1.5, of="c2"), leased(2.0, OLD)],
        ),
        (
            order,
            WORK,
            [*ALL, leased(1.0, OLD), finished(2.0, "failed"), leased(2.5, YOUNG), leased(3.0, OLD)],
        ),
        (order, WORK, [*ALL, leased(1.0, OLD), leased(10.0, YOUNG), leased(13.0, OLD)]),
        (
            order,
            WORK,
            [
                *ALL,
                replace(leased(1.0, OLD), is_firm=False),
                leased(12.0, YOUNG),
                leased(13.0, OLD),
            ],
        ),
        (
            order,
            WORK,
            [*ALL, leased(1.0, YOUNG), Unsubscribed("c2", "work", 1.5), leased(2.0, OLD)],
        ),
        (
            order,
            WORK,
            [*ALL, Unsubscribed("c2", "work", 0.5), leased(1.0, YOUNG), leased(2.0, OLD)],
        ),
        (
            barriers,
            WITH_BARRIERS,
            [leased(1.0, OLD), leased(2.0, MIDDLE, lease_s=None), leased(3.0, YOUNG)],
        ),
        (
            barriers,
            WITH_BARRIERS,
            [leased(1.0, MIDDLE, lease_s=None), leased(2.0, OLD, by="c2", sent=0.5)],
        ),
        (barriers, WORK, [leased(1.0, YOUNG), leased(2.0, MIDDLE)]),
    ],
)
def test_what_a_loss_explains_is_none_of_their_business(
    check: Check, queue: QueuePlan, facts: list[Fact]
) -> None:
    assert list(check(facts, {"work": queue})) == []


def test_a_handler_that_is_to_be_cut_off_does_not_outlive_its_lease() -> None:
    late: list[Fact] = [leased(1.0), finished(11.5, "done")]
    soon: list[Fact] = [leased(1.0), finished(11.0, "cut")]
    assert len(list(queue_checkers.cut_off(late, {"work": WORK}, {"c1"}))) == 1
    assert not list(queue_checkers.cut_off(soon, {"work": WORK}, {"c1"}))
    assert not list(queue_checkers.cut_off(late, {"work": WORK}, {"c2"}))
    assert not list(queue_checkers.cut_off(late, {"work": FOREVER}, {"c1"}))


def test_the_messages_of_these_tests_are_what_they_are_taken_for() -> None:
    assert [is_barrier(each) for each in (OLD, MIDDLE, YOUNG)] == [False, True, False]
    assert priority_of(OLD) > priority_of(MIDDLE)
    assert priority_of(YOUNG) > priority_of(MIDDLE)
