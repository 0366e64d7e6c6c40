"""One queue: what it holds, who has it, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.queues import deadlines
from haclient_fake_server.engine.queues import queue as queue_module
from haclient_fake_server.engine.settings import QueueTopic
from support.queue_engine import (
    QueueWorld,
    acknowledge,
    consume,
    delivered,
    numbers,
)

BACKLOG = 10
MANY: dict[str, Any] = {"max_per_subscription_backlog": BACKLOG}
ALL = {"opts": f"max_backlog={BACKLOG}"}


def test_messages_wait_for_a_consumer_and_come_in_the_order_of_the_log() -> None:
    world = QueueWorld(**MANY)
    world.publish_numbers(3)
    worker = world.consumer(**ALL)
    assert numbers(worker) == [1, 2, 3]
    world.publish_numbers(2, first=4)
    assert numbers(worker) == [4, 5]


def test_a_consumer_has_one_message_unless_it_asks_for_more_and_the_queue_allows_it() -> None:
    world = QueueWorld(max_per_subscription_backlog=3)
    world.publish_numbers(9)
    one, three, less = world.client("one"), world.client("three"), world.client("less")
    assert consume(one) == "max_backlog=1"
    assert consume(three, opts="max_backlog=10") == "max_backlog=3"
    assert consume(less, opts="max_backlog=2") == "max_backlog=2"
    assert [numbers(peer) for peer in (one, three, less)] == [[1], [2, 3, 4], [5, 6]]
    assert world.states() == (3, 6)


def test_all_consumers_together_have_no_more_than_the_backlog_of_the_queue() -> None:
    world = QueueWorld(max_backlog=3, **MANY)
    world.publish_numbers(9)
    first, second = world.consumer("first", opts="max_backlog=2"), world.consumer("second", **ALL)
    assert (numbers(first), numbers(second)) == ([1, 2], [3])
    acknowledge(first, filter="/n = 1")
    assert (numbers(first), numbers(second)) == ([], [4])


def test_an_acknowledged_message_is_gone_and_makes_room() -> None:
    world = QueueWorld()
    world.publish_numbers(3)
    worker = world.consumer()
    for expected in (1, 2, 3):
        (message,) = delivered(worker)
        assert message.json() == {"n": expected}
        acknowledge(worker, message.bookmark)
    assert world.states() == (0, 0)
    world.restart()
    assert world.states() == (0, 0)


@pytest.mark.parametrize("how", ["cancel", "lease end", "unsubscribe", "disconnect"])
def test_a_message_that_returns_has_its_old_place(how: str) -> None:
    world = QueueWorld(lease_s=5.0, **MANY)
    world.publish_numbers(3)
    worker = world.consumer(opts="max_backlog=2")
    messages = delivered(worker)
    acknowledge(worker, messages[1].bookmark)
    assert numbers(worker) == [3]
    match how:
        case "cancel":
            acknowledge(worker, messages[0].bookmark, opts="cancel")
            assert numbers(worker) == [1]
            return
        case "lease end":
            world.advance(5.0)
            assert numbers(worker) == [1, 3]
            return
        case "unsubscribe":
            worker.send(c="unsubscribe", sub_id="1")
        case _:
            worker.close()
    assert world.states() == (2, 0)
    assert numbers(world.consumer("other", **ALL)) == [1, 3]


def test_a_lease_ends_at_its_microsecond_and_an_acknowledgement_then_is_in_time() -> None:
    world = QueueWorld(lease_s=5.0)
    world.publish_numbers(1)
    early, late = world.consumer("early"), world.client("late")
    (message,) = delivered(early)
    consume(late)
    world.now += 5.0  # the tick of that moment has not come yet
    acknowledge(early, message.bookmark)
    assert world.states() == (0, 0)
    assert numbers(late) == []


def test_an_extended_lease_ends_later_and_never_earlier() -> None:
    world = QueueWorld(lease_s=5.0)
    world.publish_numbers(1)
    worker, other = world.consumer(), world.client("other")
    (message,) = delivered(worker)
    acknowledge(worker, message.bookmark, opts="lease_extension=60s")
    acknowledge(worker, message.bookmark, opts="lease_extension=1s")
    acknowledge(other, message.bookmark, opts="lease_extension=600s")  # it does not have it
    world.advance(59.9)
    assert world.states() == (0, 1)
    world.advance(0.2)
    assert numbers(worker) == [1]


@pytest.mark.parametrize(("rule", "allowed"), [("above", 2), ("at", 1)])
def test_a_message_that_is_cancelled_too_often_expires(rule: str, allowed: int) -> None:
    world = QueueWorld(max_cancels=2, max_cancels_rule=rule)
    world.publish_numbers(1)
    worker = world.consumer()
    for _ in range(allowed):
        (message,) = delivered(worker)
        acknowledge(worker, message.bookmark, opts="cancel")
    (message,) = delivered(worker)
    acknowledge(worker, message.bookmark, opts="cancel")
    assert delivered(worker) == []
    assert world.queue().counts["max_cancels"] == 1
    assert world.states() == (0, 0)


def test_a_message_that_is_delivered_too_often_expires_when_it_returns() -> None:
    world = QueueWorld(max_deliveries=2, lease_s=1.0)
    world.publish_numbers(1)
    worker = world.consumer()
    world.advance(1.0)
    assert numbers(worker) == [1, 1]
    assert world.states() == (0, 1)
    world.advance(1.0)
    assert numbers(worker) == []
    assert world.queue().counts["max_deliveries"] == 1


def test_what_waits_too_long_expires_but_not_while_it_is_leased() -> None:
    world = QueueWorld(expiration_s=10.0)
    world.publish_numbers(2)
    worker = world.consumer()
    (message,) = delivered(worker)
    world.advance(10.0)
    assert world.states() == (0, 1)
    acknowledge(worker, message.bookmark, opts="cancel")
    assert world.states() == (0, 0)
    assert world.queue().counts["time_limit"] == 2


@pytest.mark.parametrize(
    ("model", "queue_s", "message_s", "expires_s"),
    [
        ("default", 10.0, None, 10.0),
        ("default", 10.0, 20, 20.0),
        ("default", 10.0, 0, None),
        ("default", None, 5, 5.0),
        ("default", None, None, None),
        ("queue", 10.0, 20, 10.0),
        ("queue", 10.0, 0, 10.0),
        ("queue", None, 5, None),
        ("latest", 10.0, 20, 20.0),
        ("latest", 10.0, 5, 10.0),
        ("latest", 10.0, 0, None),
        ("latest", None, 5, 5.0),
        ("earliest", 10.0, 20, 10.0),
        ("earliest", 10.0, 5, 5.0),
        ("earliest", 10.0, 0, 10.0),
        ("earliest", None, 0, None),
    ],
)
def test_the_model_says_whose_expiration_counts(
    model: str, queue_s: float | None, message_s: int | None, expires_s: float | None
) -> None:
    world = QueueWorld(expiration_model=model, expiration_s=queue_s)
    expiration: dict[str, str | int] = {} if message_s is None else {"e": message_s}
    world.publish(b"{}", topic="jobs", **expiration)
    world.advance((expires_s or 10_000.0) - 0.001)
    assert world.states() == (1, 0)
    world.advance(0.001)
    assert world.states() == ((1 if expires_s is None else 0), 0)


def test_the_highest_priority_comes_first_and_then_the_oldest() -> None:
    world = QueueWorld(priority="/p", **MANY)
    bodies = [b'{"n": %d, "p": %s}' % (n, p) for n, p in enumerate((b"1", b"3", b"3", b"2"), 1)]
    world.publish(*bodies, b'{"n": 5}', b'{"n": 6, "p": "high"}', b'{"n": 7, "p": -5}', b"[")
    worker = world.consumer(opts="max_backlog=7")
    assert numbers(worker) == [2, 3, 4, 1, 7, 5, 6]  # without a number: last


def test_a_priority_that_is_no_finite_number_has_its_place() -> None:
    world = QueueWorld(priority="/p", **MANY)
    values = (b"true", b"1e999", b"-1e999", b"1" + b"0" * 400, b"0", b"-1" + b"0" * 400)
    world.publish(*(b'{"n": %d, "p": %s}' % pair for pair in enumerate(values, 1)))
    worker = world.consumer(**ALL)
    assert numbers(worker) == [2, 4, 1, 5, 3, 6]  # true counts as 1, as in filters


def test_a_barrier_waits_for_all_before_it_and_goes_to_everyone() -> None:
    world = QueueWorld(barrier="/n = 3", **MANY)
    world.publish_numbers(5)
    first, second = world.consumer("first", opts="max_backlog=2"), world.consumer("second")
    messages = delivered(first)
    assert [message.json() for message in messages] == [{"n": 1}, {"n": 2}]
    assert numbers(second) == []
    acknowledge(first, messages[0].bookmark)
    assert numbers(second) == []
    acknowledge(first, messages[1].bookmark)
    assert (numbers(first), numbers(second)) == ([3, 4], [3, 5])
    world.restart()
    assert world.states() == (2, 0)  # the barrier needs no acknowledgement


def test_a_barrier_without_a_consumer_that_wants_it_waits() -> None:
    world = QueueWorld(barrier="/n = 1", **MANY)
    picky = world.consumer("picky", filter="/n = 2")
    world.publish_numbers(2)
    assert numbers(picky) == []
    assert numbers(world.consumer("other", filter="/n = 1")) == [1]
    assert numbers(picky) == [2]


def test_the_consumers_of_a_filter_get_the_oldest_that_matches() -> None:
    world = QueueWorld(**MANY)
    world.publish_numbers(6)
    odd = world.consumer("odd", filter="/n IN (1, 3, 5)", **ALL)
    rest = world.consumer("rest", **ALL)
    assert (numbers(odd), numbers(rest)) == ([1, 3, 5], [2, 4, 6])


@pytest.mark.parametrize(
    ("delivery", "shares"),
    [
        ("fast", ([1, 2, 3, 4], [], [])),
        ("round-robin", ([1, 4], [2], [3])),
        ("proportional", ([1], [2], [3, 4])),
    ],
)
def test_the_delivery_strategy_says_who_is_next(
    delivery: str, shares: tuple[list[int], ...]
) -> None:
    world = QueueWorld(delivery=delivery, **MANY)
    sizes = {"first": 4, "second": 4, "third": 10}
    workers = [world.consumer(name, opts=f"max_backlog={size}") for name, size in sizes.items()]
    world.publish_numbers(4)
    assert tuple(numbers(worker) for worker in workers) == shares


def test_at_most_once_removes_with_the_delivery_and_counts_until_the_acknowledgement() -> None:
    world = QueueWorld(semantics="at-most-once", lease_s=5.0)
    world.publish_numbers(3)
    worker = world.consumer()
    (message,) = delivered(worker)
    assert world.states() == (2, 1)
    acknowledge(worker, message.bookmark)
    assert numbers(worker) == [2]
    worker.close()
    assert world.states() == (1, 0)
    world.restart()
    assert world.states() == (1, 0)


@pytest.mark.parametrize("option", ["", "cancel", "expire"])
def test_at_most_once_every_acknowledgement_frees_the_backlog_alone(option: str) -> None:
    world = QueueWorld(semantics="at-most-once")
    world.publish_numbers(2)
    worker = world.consumer()
    (message,) = delivered(worker)
    acknowledge(worker, message.bookmark, **({"opts": option} if option else {}))
    assert numbers(worker) == [2]
    assert world.states() == (0, 1)


@pytest.mark.parametrize("leasing", ["sublet", "strict"])
@pytest.mark.parametrize("option", ["", "cancel", "expire"])
def test_who_may_end_a_lease_depends_on_the_leasing(leasing: str, option: str) -> None:
    world = QueueWorld(leasing=leasing)
    world.publish_numbers(1)
    worker, other = world.consumer(), world.client("other")
    (message,) = delivered(worker)
    options = {"opts": option} if option else {}
    acknowledge(other, message.bookmark, **options)
    if leasing == "strict":
        assert (world.states(), numbers(worker)) == ((0, 1), [])
        acknowledge(worker, message.bookmark, **options)
    assert numbers(worker) == ([1] if option == "cancel" else [])


def test_the_memory_of_deadlines_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "_SLACK", 16)
    world = QueueWorld(lease_s=1_000.0, expiration_s=10_000.0)
    worker = world.consumer()
    for first in range(1, 100):
        world.publish_numbers(1, first=first)
        (message,) = delivered(worker)
        acknowledge(worker, message.bookmark)
    queue = world.queue()
    assert len(queue._lease_ends._heap) <= 22
    assert len(queue._expirations._heap) <= 22


def test_a_queue_without_messages_forgets_consumers_that_have_left() -> None:
    world = QueueWorld()
    for _ in range(3):
        worker = world.consumer()
        assert numbers(worker) == []
        worker.close()
    assert not world.queue()._changed


def test_the_counts_of_deliveries_and_cancels_are_kept_while_a_message_waits() -> None:
    world = QueueWorld(max_deliveries=3, max_cancels=5)
    world.publish_numbers(1)
    for _ in range(3):
        worker = world.consumer()
        assert numbers(worker) == [1]
        worker.close()
    assert world.states() == (0, 0)
    assert dict(world.queue().counts) == {"delivered": 3, "redelivered": 2, "max_deliveries": 1}


def test_several_queues_over_one_topic_are_independent() -> None:
    world = QueueWorld(
        QueueTopic(name="work", topics=("jobs",)),
        QueueTopic(name="audit", topics=("jobs",), semantics="at-most-once"),
    )
    world.publish_numbers(2)
    worker = world.client("both")
    consume(worker, "1")
    consume(worker, "2", t="audit")
    first, second = delivered(worker)
    assert first.bookmark == second.bookmark
    acknowledge(worker, first.bookmark)
    assert (world.states("work"), world.states("audit")) == ((0, 1), (1, 1))
    acknowledge(worker, first.bookmark, t="audit")
    assert (world.states("work"), world.states("audit")) == ((0, 1), (0, 1))


def test_a_message_is_parsed_once_for_all_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    world = QueueWorld(max_per_subscription_backlog=1)
    consumers = [world.consumer(f"c{number}", filter=f"/n = {number}") for number in range(5)]
    parsed: list[bytes] = []

    def document(body: bytes, message_type: str = "json") -> Document:
        parsed.append(body)
        return Document(body, message_type)

    monkeypatch.setattr(queue_module, "Document", document)
    world.publish_numbers(1, first=4)
    assert [numbers(each) for each in consumers] == [[], [], [], [], [4]]
    assert parsed == [b'{"n": 4}']


def test_messages_expire_after_a_run_with_a_clock_that_was_ahead() -> None:
    world = QueueWorld(expiration_s=10.0)
    world.now += 30 * 86400
    world.publish_numbers(1)
    world.now -= 30 * 86400
    world.restart()
    world.advance(1.0)
    assert world.states() == (1, 0)
    publisher = world.client("other")
    assert any("s ahead of this machine's clock" in each for each in world.events)
    publisher.send(b"{}", c="p", t="jobs", s=1)
    assert world.states() == (2, 0)
    world.advance(9.0)
    assert world.states() == (1, 0)
    world.advance(1.0)
    assert world.states() == (0, 0)


def test_a_priority_may_be_a_comparison() -> None:
    world = QueueWorld(priority="/p > 5", **MANY)
    world.publish(*(b'{"n": %d, "p": %d}' % pair for pair in ((1, 1), (2, 9), (3, 5), (4, 6))))
    assert numbers(world.consumer(**ALL)) == [2, 4, 1, 3]
