"""Which full queues stop the reading of a connection, and when waits for acks fail."""

from __future__ import annotations

from itertools import product

import pytest

from haclient.session.back_pressure import (
    IN_FLIGHT_BYTES,
    STUCK_AFTER_S,
    FullQueues,
    Reading,
    too_full,
)

pytestmark = pytest.mark.row("MS5")

CAP = 1_000


class Queues:
    """Full queues, the time, and whether somebody waits for an ack."""

    def __init__(self) -> None:
        self.full = FullQueues[str]()
        self.now = 10.0
        self.progress = 0

    def hold(self, queue: str, queued_bytes: int) -> None:
        self.full.update(queue, queued_bytes, CAP, progress=self.progress, now=self.now)

    def decide(self, *, awaited: bool = False) -> Reading:
        return self.full.decide(is_ack_awaited=awaited, now=self.now)


@pytest.mark.parametrize(
    ("is_full", "is_paused", "awaited", "over_limit"), list(product([False, True], repeat=4))
)
def test_reading_stops_for_a_full_queue_unless_it_is_paused_or_an_ack_is_awaited(
    *, is_full: bool, is_paused: bool, awaited: bool, over_limit: bool
) -> None:
    queues = Queues()
    queued_bytes = CAP
    if is_full:
        queued_bytes += IN_FLIGHT_BYTES + 1 if over_limit else IN_FLIGHT_BYTES
    queues.hold("a", queued_bytes)
    queues.full.set_paused("a", is_paused=is_paused)
    expected = Reading.ON
    if is_full and over_limit:
        expected = Reading.AT_LIMIT
    elif is_full and not (is_paused or awaited):
        expected = Reading.OFF
    assert queues.decide(awaited=awaited) is expected
    assert bool(queues.full) is is_full


def test_a_queue_is_full_from_its_cap_on_until_it_is_half_empty() -> None:
    queues = Queues()
    for queued_bytes, expected in [(1_000, False), (1_001, True), (501, True), (500, False)]:
        queues.hold("a", queued_bytes)
        assert bool(queues.full) is expected
    assert queues.decide() is Reading.ON


def test_all_queues_share_the_limit_and_the_fullest_is_known() -> None:
    queues = Queues()
    half = IN_FLIGHT_BYTES // 2
    queues.hold("a", CAP + half)
    queues.hold("b", CAP + half)
    assert queues.full.excess_bytes == IN_FLIGHT_BYTES
    assert queues.decide(awaited=True) is Reading.ON
    queues.hold("b", CAP + half + 1)
    assert queues.decide(awaited=True) is Reading.AT_LIMIT
    assert (queues.full.fullest, queues.full.queues()) == ("b", ["a", "b"])
    queues.hold("a", 0)
    assert queues.full.excess_bytes == half + 1
    assert queues.decide(awaited=True) is Reading.ON


def test_waits_fail_when_nothing_is_taken_for_a_while_at_the_limit() -> None:
    queues = Queues()
    queues.hold("a", CAP + IN_FLIGHT_BYTES + 2)
    for _ in range(5):
        queues.now += STUCK_AFTER_S * 0.9
        queues.progress += 1
        queues.hold("a", CAP + IN_FLIGHT_BYTES + 1)
        assert queues.decide(awaited=True) is Reading.AT_LIMIT
    queues.now = queues.full.stuck_at
    queues.hold("a", CAP + IN_FLIGHT_BYTES + 1)
    assert queues.decide(awaited=True) is Reading.STUCK
    queues.progress += 1
    queues.hold("a", CAP + IN_FLIGHT_BYTES + 1)
    assert queues.decide(awaited=True) is Reading.AT_LIMIT


def test_a_queue_that_the_server_does_not_pause_after_all_stops_the_reading() -> None:
    queues = Queues()
    queues.hold("a", CAP + 1)
    queues.full.set_paused("a", is_paused=True)
    assert queues.decide() is Reading.ON
    queues.full.set_paused("a", is_paused=False)
    assert queues.decide() is Reading.OFF
    queues.full.set_paused("gone", is_paused=False)
    queues.hold("a", 0)
    assert queues.decide() is Reading.ON


def test_the_error_of_a_full_queue_names_it_and_what_to_do() -> None:
    error = too_full("publish_flush", 7, sub_id="s", topic="orders")
    assert (error.sub_id, error.topic) == ("s", "orders")
    assert "subscription 's' on topic 'orders' holds 7 bytes that nobody takes" in str(error)
    listeners = too_full("publish_flush", 7, of_listeners=True)
    assert "the queue of the listeners holds 7 bytes" in str(listeners)
