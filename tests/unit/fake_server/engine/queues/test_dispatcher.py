"""What a batch delivers, records and plans for queues."""

from __future__ import annotations

from typing import Literal

import pytest

from haclient import DeadLetter
from haclient.protocol.codec import encode_frame
from haclient_fake_server.engine import broker
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.queues import dispatcher, message_table
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.format import (
    Record,
    RecordCommand,
    RemovalReason,
    read_removals,
)
from support.engine import Peer, World
from support.queue_engine import (
    QueueWorld,
    acknowledge,
    consume,
    delivered,
    number,
    numbers,
)


def records(world: QueueWorld) -> list[Record]:
    """The journal."""
    return list(records_of(world.journal.summary()))


def removals(world: QueueWorld) -> list[tuple[str, int]]:
    """What the journal says has left which queue, by sequence."""
    found: list[tuple[str, int]] = []
    for record in records(world):
        if record.command == RecordCommand.QUEUE_REMOVE:
            content = read_removals(record)
            queue = content.queue.decode()
            found += [(queue, entry.sequence) for entry in content.entries]
    return found


def test_a_delivery_has_the_headers_of_a_queue() -> None:
    world = QueueWorld(lease_s=30.0)
    plain, with_time = world.consumer("plain"), world.client("time")
    consume(with_time, "7", opts="timestamp")
    world.publish(b'{"n": 1}', b'{"n": 2}', x="order 66")
    (first,), (second,) = delivered(plain), delivered(with_time)
    assert (first.topic, first.sub_ids, first.correlation_id) == ("work", ["1"], "order 66")
    assert (first.lease_period, first.timestamp) == ("20231114T221530.000000Z", "")
    assert (second.sub_ids, second.timestamp) == (["7"], "20231114T221500.000000Z")
    assert first.data == b'{"n": 1}'


@pytest.mark.parametrize(
    ("options", "granted"),
    [
        ({}, "max_backlog=1"),
        (
            {"semantics": "at-most-once", "lease_s": 30.0},
            "max_backlog=1,semantics=at-most-once",
        ),
    ],
)
def test_without_a_lease_that_ends_no_lease_is_named(
    options: dict[str, object], granted: str
) -> None:
    world = QueueWorld(**options)
    worker = world.client("worker")
    assert consume(worker) == granted
    world.publish_numbers(1)
    (message,) = delivered(worker)
    assert message.lease_period == ""


def test_a_pattern_consumes_all_queues_that_match_and_plain_topics_too() -> None:
    world = QueueWorld(
        QueueTopic(name="q/a", topics=("a",), max_per_subscription_backlog=3, lease_s=9.0),
        QueueTopic(name="q/b", topics=("b",), max_per_subscription_backlog=5, lease_s=7.5),
    )
    worker = world.client("worker")
    # With several leases it names none: each message has the end of its own.
    assert consume(worker, t="^q/", opts="max_backlog=4") == "max_backlog=3"
    for topic in ("a", "b", "q/plain", "a", "b"):
        world.publish_numbers(1, first=world._sequence + 1)
        world.publish(b'{"n": 1}', topic=topic)
    messages = delivered(worker)
    assert [message.topic for message in messages] == ["q/a", "q/b", "q/plain", "q/a"]
    assert world.states("q/b") == (1, 1)
    acknowledge(worker, messages[0].bookmark, t="q/a")
    assert [message.topic for message in delivered(worker)] == ["q/b"]


def test_a_replaced_consumer_keeps_its_leases_of_the_queues_that_it_goes_on_to_consume() -> None:
    queues = [
        QueueTopic(name=name, topics=(name[-1],), max_per_subscription_backlog=9)
        for name in ("q/a", "q/b")
    ]
    world = QueueWorld(*queues)
    worker = world.client("worker")
    consume(worker, t="^q/", opts="max_backlog=9")
    for topic in ("a", "b", "a"):
        world.publish(b'{"n": 1}', topic=topic)
    assert len(delivered(worker)) == 3
    options = "replace,max_backlog=2"
    assert consume(worker, t="q/a", opts=options, filter="/n = 2") == "max_backlog=2"
    assert (world.states("q/a"), world.states("q/b")) == ((0, 2), (1, 0))
    world.publish(b'{"n": 2}', topic="a")
    assert delivered(worker) == []  # it has two
    acknowledge(worker, t="q/a", filter="/n = 1")
    assert numbers(worker) == [2]


def test_a_consumer_that_is_replaced_by_a_plain_subscription_returns_everything() -> None:
    world = QueueWorld()
    world.publish_numbers(1)
    worker = world.consumer()
    worker.send(c="subscribe", sub_id="1", t="plain", opts="replace")
    assert world.states() == (1, 0)
    consume(worker, opts="replace")
    assert numbers(worker) == [1, 1]


def test_a_batch_that_subscribes_and_unsubscribes_leaves_nothing_behind() -> None:
    world = QueueWorld(lease_s=3.0)
    world.publish_numbers(2)
    worker = world.client("worker")
    frame = encode_frame({"c": "subscribe", "t": "work", "sub_id": "1"})
    worker.send_all([frame, encode_frame({"c": "unsubscribe", "sub_id": "1"})])
    assert delivered(worker) == []
    assert world.states() == (2, 0)
    assert world.queue().consumers == {}


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_removals_are_in_the_block_of_their_batch(semantics: str) -> None:
    world = QueueWorld(semantics=semantics)
    world.publish_numbers(3)
    worker = world.consumer()
    (message,) = delivered(worker)
    assert removals(world) == ([("work", 1)] if semantics == "at-most-once" else [])
    acknowledge(worker, message.bookmark)
    expected = [1, 2] if semantics == "at-most-once" else [1]
    assert removals(world) == [("work", sequence) for sequence in expected]
    last = records(world)[-1]
    assert (last.command, last.position) == (RecordCommand.QUEUE_REMOVE, 0)
    world.restart()
    assert world.states() == (3 - len(expected), 0)


def test_one_batch_delivers_so_many_messages_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "MAX_DELIVERED", 10)
    world = QueueWorld(max_per_subscription_backlog=100)
    world.publish_numbers(35)
    worker = world.client("worker")
    consume(worker, opts="max_backlog=100")
    first = numbers(worker)
    assert 10 <= len(first) <= 20
    assert world.engine.next_due == world.now
    world.apply(world.engine.tick(world.now))
    second = numbers(worker)
    assert 1 <= len(second) <= 10
    world.advance(0)
    assert first + second + numbers(worker) == list(range(1, 36))
    assert world.engine.next_due > world.now


def test_one_batch_reads_so_many_messages_for_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MAX_SCANNED", 10)
    world = QueueWorld(max_per_subscription_backlog=100)
    world.publish_numbers(35)
    worker = world.client("worker")
    consume(worker, filter="/n > 30", opts="max_backlog=100")
    assert delivered(worker) == []
    world.advance(0)
    assert numbers(worker) == list(range(31, 36))
    assert world.engine.next_due > world.now


def test_one_batch_ends_so_many_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "MAX_ENDED", 10)
    world = QueueWorld(max_per_subscription_backlog=100, lease_s=5.0, max_deliveries=1)
    world.publish_numbers(35)
    worker = world.consumer(opts="max_backlog=100")
    assert len(numbers(worker)) == 35
    world.now += 5.0
    world.apply(world.engine.tick(world.now))
    assert world.states() == (0, 25)
    world.advance(0)
    assert world.queue().counts["max_deliveries"] == 35


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_a_connection_is_given_no_more_than_it_can_send(
    monkeypatch: pytest.MonkeyPatch, semantics: str
) -> None:
    monkeypatch.setattr(dispatcher, "MAX_GIVEN_BYTES", 5_000)
    world = QueueWorld(max_per_subscription_backlog=100, semantics=semantics)
    world.publish(*(b'{"n": %d, "fill": "%s"}' % (n, b"x" * 1_000) for n in range(1, 21)))
    slow = world.client("slow")
    slow.stalled = True
    consume(slow, opts="max_backlog=100")
    assert numbers(slow) == [1, 2, 3, 4, 5]
    assert world.states() == (15, 5)
    world.publish(b'{"n": 21}')
    assert numbers(slow) == []
    slow.stalled = False
    world.replay_backlog(slow)
    assert numbers(slow) == list(range(6, 22))


def test_a_connection_that_is_over_its_high_water_mark_gets_nothing_until_it_has_room() -> None:
    world = QueueWorld(max_per_subscription_backlog=100)
    slow, other = world.consumer("slow", opts="max_backlog=100"), world.client("other")
    slow.stalled = True
    world.engine.over_high_water(slow.number)
    world.publish_numbers(2)
    assert numbers(slow) == []
    consume(other)
    assert numbers(other) == [1]
    slow.stalled = False
    world.replay_backlog(slow)
    assert numbers(slow) == [2]


def test_an_expired_message_has_a_copy_in_the_dead_letter_topic() -> None:
    world = QueueWorld(max_cancels=1, max_cancels_rule="at", dead_letter="dead")
    watcher = world.client("watcher")
    watcher.subscribe(t="dead")
    watcher.take()
    world.publish(b'{"n": 1}', x="mine")
    worker = world.consumer()
    (message,) = delivered(worker)
    acknowledge(worker, message.bookmark, opts="cancel")
    (copy,) = delivered(watcher)
    assert copy.data == b'{"n": 1}'
    assert DeadLetter.context(copy) == {
        "queue": "work",
        "reason": "max_cancels",
        "bookmark": message.bookmark,
        "deliveries": 1,
        "cancels": 1,
        "correlation_id": "mine",
    }
    *_, before, last = records(world)
    assert (before.payload, last.command) == (b'{"n": 1}', RecordCommand.QUEUE_REMOVE)
    assert read_removals(last).entries[0].reason == RemovalReason.MAX_CANCELS


def test_a_correlation_id_that_is_too_long_is_left_out_of_the_context() -> None:
    world = QueueWorld(dead_letter="dead")
    watcher = world.client("watcher")
    watcher.subscribe(t="dead")
    watcher.take()
    world.publish(b'{"n": 1}', x="x" * 12_000)
    world.publish(b'{"n": 2}', x="x" * 12_200)
    for _ in range(2):
        acknowledge(world.client("other"), filter="/n > 0", opts="expire")
    short, long = delivered(watcher)
    assert DeadLetter.context(short)["correlation_id"] == "x" * 12_000
    assert [*DeadLetter.context(long)][-2:] == ["deliveries", "cancels"]
    for copy in (short, long):
        world.publish(copy.data, topic="dead", x=copy.correlation_id)
    assert [message.data for message in delivered(watcher)] == [short.data, long.data]


def test_a_dead_letter_topic_may_feed_another_queue() -> None:
    world = QueueWorld(
        QueueTopic(name="work", topics=("jobs",), expiration_s=2.0, dead_letter="dead"),
        QueueTopic(name="second", topics=("dead",), expiration_s=3.0, dead_letter="last"),
        QueueTopic(name="third", topics=("last",)),
    )
    world.publish_numbers(3)
    states = []
    for _ in range(3):
        states.append([world.states(name)[0] for name in ("work", "second", "third")])
        world.advance(3.0)
    assert states == [[3, 0, 0], [0, 3, 0], [0, 0, 3]]


def test_nothing_is_planned_for_a_queue_without_deadlines() -> None:
    world = QueueWorld()
    world.consumer()
    world.publish_numbers(1)
    world.advance(60.0)
    assert world.engine.next_due > world.now + 1_000_000


def test_the_first_position_that_is_needed_is_told_once_a_second() -> None:
    world = QueueWorld(max_per_subscription_backlog=9)
    world.publish_numbers(3)
    worker = world.consumer(opts="max_backlog=9")
    (point,) = world.engine.queue_points
    assert (point.name, point.topics, point.position) == ("work", ("jobs",), 1)
    messages = delivered(worker)
    acknowledge(worker, messages[1].bookmark)
    assert world.engine.queue_points[0].position == 1
    acknowledge(worker, messages[0].bookmark)
    assert world.engine.queue_points[0].position == 3
    acknowledge(worker, messages[2].bookmark)
    assert world.engine.queue_points[0].position == world.engine.next_position


def test_the_statistics_say_what_has_happened() -> None:
    world = QueueWorld(max_per_subscription_backlog=2, lease_s=5.0)
    world.publish_numbers(5)
    worker = world.consumer(opts="max_backlog=2")
    messages = delivered(worker)
    acknowledge(worker, messages[0].bookmark)
    acknowledge(worker, messages[1].bookmark, opts="cancel")
    told = world.engine._queues.statistics(world.queue())
    assert (told["depth"], told["available"], told["leased"], told["consumers"]) == (4, 2, 2, 1)
    assert (told["delivered"], told["redelivered"], told["cancelled"]) == (4, 1, 1)
    assert (told["acknowledged"], told["oldest_bookmark"]) == (1, messages[1].bookmark)


def test_the_same_calls_have_the_same_effects() -> None:
    def run() -> tuple[bytes, list[bytes]]:
        world = QueueWorld(lease_s=2.0, max_per_subscription_backlog=3, dead_letter="dead")
        peers: list[Peer] = [
            world.consumer(name, opts="max_backlog=3", filter=text)
            for name, text in (("a", "/n > 3"), ("b", "/n < 9"), ("c", "/n > 0"))
        ]
        seen: list[bytes] = []
        for turn in range(12):
            world.publish_numbers(4, first=turn)
            for peer in peers:
                data = peer.take_bytes()
                seen.append(data)
            world.advance(0.7)
            acknowledge(peers[turn % 3], filter=f"/n = {turn}", opts="expire")
        return world.journal.summary(), seen

    assert run() == run()


def test_a_number_is_found_in_a_body() -> None:
    world = QueueWorld()
    world.publish_numbers(1, first=12)
    (message,) = delivered(world.consumer())
    assert number(message) == 12


@pytest.mark.parametrize(
    "options", [{}, {"semantics": "at-most-once"}, {"barrier": "/n = 1"}], ids=str
)
def test_a_connection_that_is_being_closed_is_given_nothing(options: dict[str, str]) -> None:
    world = QueueWorld(max_per_subscription_backlog=9, **options)
    world.publish_numbers(3)
    peer = world.client("peer")
    subscribe = {"c": "subscribe", "t": "work", "sub_id": "1", "opts": "max_backlog=9"}
    peer.send_all([encode_frame(subscribe), encode_frame({"c": "nonsense"})])
    assert (delivered(peer), peer.closed) == ([], "unknown command")
    assert world.states() == (3, 0)
    assert numbers(world.consumer(opts="max_backlog=9")) == [1, 2, 3]


def test_a_connection_that_waits_and_is_closed_gives_everything_back() -> None:
    world = QueueWorld(max_per_subscription_backlog=9)
    peer = world.consumer(opts="max_backlog=9")
    peer.stalled = True
    world.publish_numbers(2)
    world.engine.over_high_water(peer.number)
    peer.send(c="nonsense")
    assert (numbers(peer), peer.closed) == ([1, 2], "unknown command")
    assert world.states() == (2, 0)


def test_a_dead_letter_may_go_to_a_queue_by_its_name() -> None:
    world = QueueWorld(
        QueueTopic(name="work", topics=("jobs",), expiration_s=2.0, dead_letter="failed"),
        QueueTopic(name="failed", topics=("failed jobs",)),
    )
    world.publish_numbers(2)
    world.advance(2.0)
    assert (world.states("work"), world.states("failed")) == ((0, 0), (2, 0))
    worker = world.client("worker")
    consume(worker, t="failed")
    assert numbers(worker) == [1]


@pytest.mark.row("OP16")
def test_a_consumer_and_a_browser_may_select_fields() -> None:
    world = QueueWorld()
    world.publish(b'{"n": 1, "secret": 2}')
    browser, worker = world.client("browser"), world.client("worker")
    browser.send(c="sow", cid="1", t="work", opts="select=[-/secret]", filter="/secret = 2")
    assert [m.data for m in browser.take() if m.kind == "sow"] == [b'{"n":1}']
    consume(worker, opts="select=[-/secret]")
    assert [message.data for message in delivered(worker)] == [b'{"n":1}']


@pytest.mark.parametrize("bookmark", ["", "0"])
def test_a_dot_in_the_name_of_a_queue_is_no_pattern(bookmark: str) -> None:
    world = QueueWorld(QueueTopic(name="orders.jobs"), QueueTopic(name="orders_jobs"))
    for number_, topic in enumerate(("orders.jobs", "orders_jobs", "orders-jobs")):
        world.publish(b'{"n": %d}' % number_, topic=topic)
    peer = world.client("worker")
    peer.send(
        c="subscribe",
        cid="1",
        sub_id="1",
        t="orders.jobs",
        opts="max_backlog=9" * (not bookmark),
        bm=bookmark,
    )
    (message,) = [each for each in peer.take() if each.kind == "p"]
    assert (message.topic, number(message)) == ("orders.jobs", 0)
    if bookmark:
        return
    peer.send(c="sow_delete", cid="2", t="orders.jobs", bm=message.bookmark, a="processed")
    assert [each.status for each in peer.take()] == ["success"]
    assert world.states("orders.jobs") == (0, 0)
    peer.send(c="sow", cid="3", t="orders_jobs")
    assert [number(each) for each in peer.take() if each.kind == "sow"] == [1]


def test_the_subscriptions_of_a_connection_that_has_ended_leave_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker, "ENDS_PER_STEP", 2)
    world = QueueWorld(max_per_subscription_backlog=10)
    ending, other = world.client("ending"), world.client("other")
    for each in range(5):
        consume(ending, f"{each}")
    world.publish_numbers(5)
    assert numbers(ending) == [1, 2, 3, 4, 5]
    consume(other, opts="max_backlog=10")
    found: list[list[int]] = []
    while (effects := world.engine.end_subscriptions(ending.number, world.now)) is not None:
        world.apply(effects)
        found.append(numbers(other))
    ending.close()
    found.append(numbers(other))
    assert found == [[], [1, 2], [3, 4], [5]], "none of them goes to a subscription that is to end"


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_connection_that_has_ended_is_given_no_message(
    monkeypatch: pytest.MonkeyPatch,
    semantics: Literal["at-least-once", "at-most-once"],
    *,
    has_begun: bool,
) -> None:
    """It waits for its turn, or is ending in steps: what it is given would be sent to nobody."""
    monkeypatch.setattr(broker, "ENDS_PER_STEP", 2)
    world = QueueWorld(semantics=semantics, delivery="round-robin", max_per_subscription_backlog=10)
    ending, other = world.client("ending"), world.client("other")
    for each in range(5):
        consume(ending, f"{each}", opts="max_backlog=10")
    consume(other, opts="max_backlog=10")
    world.publish_numbers(1)  # from here on all of them are known to have room
    assert numbers(ending) == [1]
    if has_begun:
        effects = world.engine.end_subscriptions(ending.number, world.now)
        assert effects is not None
        world.apply(effects)
    else:
        world.engine.ending(ending.number)
    world.publish_numbers(3)
    assert numbers(other) == [1, 2, 3]


@pytest.mark.row("QB30")
@pytest.mark.parametrize("priority", ["/p", ""])
def test_what_is_read_again_for_deliveries_takes_turns(
    monkeypatch: pytest.MonkeyPatch, priority: str
) -> None:
    monkeypatch.setattr(message_table, "PAGED_ROWS", 4)
    monkeypatch.setattr(message_table, "RESIDENT_CHUNKS", 2)
    settings = QueueTopic(
        name="work",
        topics=("orders",),
        max_per_subscription_backlog=100,
        file_backed=True,
        priority=priority,
    )
    world = World(queues=(settings,))
    publisher, consumer = world.client("pubber"), world.client("consumer")
    for each in range(80):
        publisher.publish(None, b'{"p":%d,"k":%d}' % (each * 37 % 80, each % 4))
    consumer.send(
        c="subscribe", cid="1", sub_id="1", t="work", opts="max_backlog=100", filter="/k = 1"
    )
    found, steps = consumer.bodies(), 0
    while len(found) < 20:
        steps += 1
        world.apply(world.engine.tick(world.now))
        found += consumer.bodies()
    assert len(found) == 20
    assert steps >= 5
