"""Each checker complains of what it is for, and of nothing that the promise does not cover."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from simulation import checkers
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

ONE, TWO, THREE = (MessageId("p", number) for number in (1, 2, 3))
UNRECORDED_ONE = DeliveriesLost("s", frozenset({ONE}))
LOST_ONE = DiscardsLost("s", frozenset({ONE}))
WANTS: checkers.Wants = {"s": lambda _message, topic: topic == "orders"}
Check = Callable[[Sequence[Fact]], Iterator[str]]


def got(message: MessageId, life: int = 1) -> Delivered:
    return Delivered("s", life, message, f"7|{message.number}|")


def lost(facts: Sequence[Fact]) -> Iterator[str]:
    return checkers.lost(facts, WANTS)


def holes(facts: Sequence[Fact]) -> Iterator[str]:
    return checkers.holes(facts, WANTS)


def accepted(message: MessageId, topic: str = "orders") -> Accepted:
    return Accepted(message, topic, message.number)


FOUND_ELSEWHERE: list[Fact] = [
    *(got(ONE), Discarded("s", ONE)),
    *(DiscardsLost("s", frozenset({ONE}), may_return=True), Resumed("s", 2), got(ONE, 2)),
]
"""The broker that was asked for the recovery points lacks one that another broker has."""


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        (lost, [accepted(ONE), accepted(TWO), got(TWO)]),
        (checkers.repeated, [got(ONE), Discarded("s", ONE), got(ONE, 2)]),
        (checkers.repeated, [got(TWO), Discarded("s", TWO), LOST_ONE, got(TWO, 2)]),
        (checkers.order, [Abandoned(TWO), got(TWO), got(ONE)]),
        (checkers.order, [Abandoned(ONE, "p 1"), Abandoned(TWO, "p 1"), got(TWO), got(ONE)]),
        (
            holes,
            [
                *(accepted(each) for each in (ONE, TWO, THREE)),
                *(Abandoned(each, "p 1") for each in (ONE, TWO, THREE)),
                *(got(ONE), got(THREE)),
            ],
        ),
        (checkers.handed_out_twice, [got(ONE), got(ONE)]),
        (checkers.order, [got(TWO), got(ONE)]),
        (checkers.recovery_points, [got(ONE), got(TWO), Discarded("s", TWO), Point("s", "7|2|")]),
        (checkers.recovery_points, [got(ONE), Point("s", "8|9|,7|1|")]),
        (checkers.recovery_points, [got(ONE), Abandoned(ONE), Point("s", "7|1|")]),
        (checkers.recovery_points, [got(ONE), UNRECORDED_ONE, Point("s", "7|1|")]),
        (
            checkers.recovery_points,
            [got(ONE), Abandoned(ONE), UNRECORDED_ONE, got(ONE, 2), Point("s", "7|1|")],
        ),
        (checkers.skipped, [got(ONE), got(TWO), Resumed("s", 2), got(TWO, 2)]),
    ],
)
def test_it_is_found(check: Check, facts: list[Fact]) -> None:
    assert len(list(check(facts))) == 1


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        (lost, [accepted(ONE), Abandoned(ONE), accepted(TWO, "other")]),
        (
            checkers.repeated,
            [got(ONE), Discarded("s", ONE), DiscardsLost("s", frozenset({ONE})), got(ONE, 2)],
        ),
        (checkers.repeated, [got(ONE), got(ONE, 2), Discarded("s", ONE)]),
        (checkers.handed_out_twice, [got(ONE), got(ONE, 2)]),
        (checkers.order, [got(TWO), got(ONE, 2), got(TWO, 2)]),
        (checkers.order, [Abandoned(ONE), Abandoned(TWO), got(TWO), got(ONE)]),
        (checkers.order, [Abandoned(ONE, "p 1"), Abandoned(TWO, "p 1"), got(THREE), got(ONE)]),
        (
            holes,
            [
                *(accepted(each) for each in (ONE, TWO, THREE)),
                *(Abandoned(each, "p 1") for each in (TWO, THREE)),
                got(TWO),
            ],
        ),
        (holes, [accepted(ONE), accepted(TWO), Abandoned(ONE), Abandoned(TWO), got(TWO)]),
        (
            holes,
            [
                accepted(ONE, "other"),
                accepted(TWO),
                *(Abandoned(each, "p 1") for each in (ONE, TWO)),
                got(TWO),
            ],
        ),
        (checkers.order, [Abandoned(ONE), got(TWO), got(ONE)]),
        (checkers.recovery_points, [got(ONE), got(TWO), Discarded("s", ONE), Point("s", "7|1|")]),
        (checkers.recovery_points, [got(ONE), Point("s", "0")]),
        (
            checkers.recovery_points,
            [got(ONE), Abandoned(ONE), UNRECORDED_ONE, Point("s", "7|1|")],
        ),
        (checkers.skipped, [got(ONE), Discarded("s", ONE), Resumed("s", 2)]),
        (checkers.skipped, [got(ONE), Abandoned(ONE), Resumed("s", 2)]),
        (checkers.skipped, [got(ONE), Resumed("s", 2), Resumed("s", 3), got(ONE, 3)]),
        (checkers.skipped, [*FOUND_ELSEWHERE, Resumed("s", 3)]),
        (checkers.skipped, [got(ONE), Removed("b1", frozenset({ONE})), Resumed("s", 2)]),
        (checkers.recovery_points, [*FOUND_ELSEWHERE, Point("s", "7|1|")]),
    ],
)
def test_what_is_right_or_not_promised_is_none_of_their_business(
    check: Check, facts: list[Fact]
) -> None:
    assert list(check(facts)) == []


def test_what_every_broker_has_holds_the_recovery_point_although_it_is_abandoned() -> None:
    facts: list[Fact] = [got(ONE), Abandoned(ONE), UNRECORDED_ONE, Point("s", "7|1|")]
    assert len(list(checkers.recovery_points(facts, frozenset({ONE})))) == 1


def test_replicas_hold_the_same_each_in_order() -> None:
    first, second = ("7|1|", ONE), ("7|2|", TWO)
    assert list(checkers.agreement({"a": [first, second], "b": [first, second]})) == []
    missing = {"a": [first, second], "b": [first]}
    assert len(list(checkers.agreement(missing))) == 1
    assert len(list(checkers.agreement(missing, frozenset({TWO})))) == 1, "nothing was in its way"
    later = {"a": [first, second], "b": [second]}
    assert list(checkers.agreement(later, frozenset({ONE}))) == []
    assert len(list(checkers.agreement({"a": [second, first]}))) == 1
    assert len(list(checkers.agreement({"a": [first, first]}))) == 1


def test_a_broker_that_lacks_a_record_for_good_has_told_so() -> None:
    differ = {"a": [("7|1|", ONE), ("7|2|", TWO)], "b": [("7|2|", TWO)]}
    assert list(checkers.divergence(differ, {"a": 0, "b": 1})) == []
    assert len(list(checkers.divergence(differ, {"a": 0, "b": 0}))) == 1
    assert len(list(checkers.divergence(differ, {"a": 1, "b": 1}))) == 1
    assert list(checkers.divergence(differ, {"a": 1, "b": 1}, in_full=False)) == []
    for removed, is_found in (("7|9|", False), ("7|0|", True), ("8|9|", True)):
        gone = {"b": [(removed, ONE)]}
        found = [*checkers.divergence(differ, {"a": 0, "b": 0}, removed=gone)]
        assert bool(found) == is_found


def test_a_bookmark_is_that_of_one_message() -> None:
    twice = {"a": [("7|1|", ONE)], "b": [("7|1|", TWO)]}
    found = list(checkers.agreement(twice, frozenset({ONE, TWO})))
    assert [text for text in found if "both" in text]


def test_the_state_is_the_last_message_of_each_key_in_the_log() -> None:
    logs = {"a": [("7|3|", THREE), ("7|4|", MessageId("p", 4))], "b": []}
    assert THREE.topic == "state" != ONE.topic
    assert list(checkers.states(logs, {"a": {"p": 3}, "b": {}})) == []
    assert len(list(checkers.states(logs, {"a": {"p": 7}, "b": {"p": 3}}))) == 2


def test_sizes_have_limits() -> None:
    assert list(checkers.bounded({"p1 segments": 3}, {"segments": 3})) == []
    assert len(list(checkers.bounded({"p1 segments": 4}, {"segments": 3}))) == 1


def test_who_connects_again_and_again_makes_a_storm() -> None:
    often, seldom = [0.1 * n for n in range(20)], [1.0 * n for n in range(20)]
    assert list(checkers.storms({"c": seldom}, within_s=5.0, limit=10)) == []
    assert len(list(checkers.storms({"c": often, "d": seldom}, within_s=5.0, limit=10))) == 1


def test_what_is_beyond_the_promise_is_counted() -> None:
    facts: list[Fact] = [
        got(ONE),
        got(ONE, 2),
        Discarded("s", ONE),
        LOST_ONE,
        got(ONE, 3),
        got(TWO),
        DeliveriesLost("s", frozenset({TWO})),
        Abandoned(TWO),
        Point("s", "7|2|"),
        Point("s", "7|3|"),
    ]
    beyond = checkers.count_beyond(facts)
    assert beyond.passed_abandoned == 1
    assert (beyond.abandoned, beyond.repeated_after_crash) == (1, 1)
    assert beyond.redelivered_undiscarded == 1
