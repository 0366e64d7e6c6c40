from __future__ import annotations

import json

import pytest

from haclient_stores.tools.explain import Explanation, Survival, explain
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker


def explained(survival: Survival, *, acked: bool = False) -> Explanation:
    """Of ten messages 1, 2, 3 and 5 are discarded; where acks are asked for, 1 is covered."""
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.begin(acked=acked, start=None)
    tracker.log_batch([f"7|{n}|" for n in (1, 2)])
    tracker.log_batch([f"7|{n}|" for n in range(3, 11)])
    for number in (1, 2, 3, 5):
        tracker.discard(number)
    tracker.persisted_at(publishers.index(7), 1)
    return explain("s1", tracker, publishers, survival)


@pytest.mark.row("BS4")
def test_a_log_repeats_nothing() -> None:
    found = explained(Survival.ALL)
    assert (found.resume, found.redelivered, found.skipped, found.repeated) == ("7|3|", 6, 1, 0)
    assert found.oldest == tuple(f"7|{n}|" for n in (4, 6, 7, 8, 9, 10))


@pytest.mark.row("BS10")
def test_what_waits_for_an_ack_comes_again_and_is_filtered() -> None:
    found = explained(Survival.ALL, acked=True)
    assert (found.resume, found.waiting, found.skipped, found.repeated) == ("7|1|", 1, 3, 0)


@pytest.mark.row("BS15")
def test_a_ring_repeats_what_was_discarded_out_of_order() -> None:
    found = explained(Survival.VECTORS, acked=True)
    assert (found.resume, found.skipped, found.repeated) == ("7|1|", 2, 1)


@pytest.mark.row("BS13")
def test_memory_repeats_all_of_it() -> None:
    found = explained(Survival.NOTHING)
    assert (found.resume, found.redelivered, found.skipped, found.repeated) == ("0", 6, 0, 4)


def test_it_can_be_read_by_people_and_by_programs() -> None:
    found = explained(Survival.ALL, acked=True)
    assert str(found).splitlines() == [
        "subscription s1: the next process finds every discard",
        "  resumes at    7|1|",
        "  redelivered   6 undiscarded: 7|4|, 7|6|, 7|7|, 7|8|, 7|9|, 7|10|",
        "  skipped       3 discarded, 1 of them waiting for a persisted ack",
        "  repeated      0 discarded",
    ]
    assert json.loads(json.dumps(found.as_dict()))["resume"] == "7|1|"


def test_of_many_messages_the_oldest_ten_are_shown() -> None:
    publishers = Publishers()
    tracker = SubscriptionTracker(publishers)
    tracker.log_batch([f"7|{n}|" for n in range(1, 1000)])
    found = explain("s", tracker, publishers, Survival.ALL)
    assert len(found.oldest) == 10
    assert "7|10|, ..." in str(found)
