"""Conversations about queues, a rule each."""

from __future__ import annotations

import json

import pytest

from haclient import DeadLetter
from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, QueueTopic
from support.engine import Peer, World
from support.queue_pair import lease_us

PUBBER = publisher_id("pubber")


def work(**options: object) -> QueueTopic:
    given: dict[str, object] = {
        "name": "work",
        "topics": ("orders",),
        "max_per_subscription_backlog": 10,
    }
    return QueueTopic(**{**given, **options})  # type: ignore[arg-type]  # as each test gives them


class Shop:
    """A broker with queues, and a publisher of numbered messages to `orders`."""

    def __init__(self, *queues: QueueTopic) -> None:
        self.world = World(queues=queues)
        self._publisher = self.world.client()
        self._sequence = 0

    def publish(self, *numbers: int, **fields: str | int) -> None:
        """Publish messages with these ids; `body` has further members of the body."""
        extra = str(fields.pop("body", ""))
        for number in numbers:
            self._sequence += 1
            text = f'{{"id": {number}{extra and ", "}{extra}}}'
            self._publisher.publish(self._sequence, text.encode(), **fields)

    def consumer(self, name: str = "worker", /, **fields: str | int) -> Peer:
        """A subscription to `work`; with `max_backlog` 10 unless there are options."""
        peer = self.world.client(name)
        subscribe(peer, **fields)
        return peer

    def restart(self) -> None:
        self.world.restart()
        self._publisher = self.world.client()

    def browse(self, queue: str = "work", /, **fields: str | int) -> list[int]:
        """The ids of what is available."""
        peer = self.world.client("browser")
        peer.send(c="sow", cid="q", t=queue, **fields)
        found = [number_of(message) for message in peer.take() if message.kind == "sow"]
        peer.close()
        return found

    def statistics(self, queue: str = "work") -> dict[str, object]:
        """The broker's figures of a queue."""
        peer = self.world.client("browser")
        peer.send(c="sow", cid="q", t="/HACLIENT/queues")
        (record,) = [message for message in peer.take() if message.kind == "sow"]
        peer.close()
        return next(each for each in json.loads(record.data)["queues"] if each["name"] == queue)

    def letters(self, topic: str) -> list[tuple[int, dict[str, object]]]:
        """The dead letters in a topic: their ids and what is said of them."""
        peer = self.world.client("reader")
        peer.subscribe(t=topic, bm="0")
        return [
            (number_of(message), DeadLetter.context(message))
            for message in peer.take()
            if message.kind == "p"
        ]


def subscribe(peer: Peer, **fields: str | int) -> Message:
    """Subscribe to a queue; the ack. What is delivered at once stays to be taken."""
    given: dict[str, str | int] = {"c": "subscribe", "cid": "1", "sub_id": "1", "t": "work"}
    peer.send(**{**given, "opts": "max_backlog=10", "a": "processed", **fields})
    data = peer.take_bytes()
    peer.take_in(data)
    (ack,) = [message for message in peer.take() if message.kind == "ack"]
    peer.take_in(data)
    return ack


def number_of(message: Message) -> int:
    return int(json.loads(message.data)["id"])


def taken(peer: Peer) -> list[Message]:
    """The deliveries that came since the last look."""
    return [message for message in peer.take() if message.kind == "p"]


def numbers(peer: Peer) -> list[int]:
    """Their ids."""
    return [number_of(message) for message in taken(peer)]


def acknowledge(peer: Peer, *numbers: int, **fields: str | int) -> None:
    """Acknowledge messages of the publisher by their sequences."""
    bookmarks = ",".join(f"{PUBBER}|{number}|" for number in numbers)
    peer.send(**{"c": "sow_delete", "cid": "a", "t": "work", "bm": bookmarks, **fields})


# --- what a queue is -----------------------------------------------------------------------------


@pytest.mark.row("QB1")
def test_a_queue_with_another_name_leaves_its_topic_as_it_is() -> None:
    shop = Shop(work())
    plain = shop.world.client("plain")
    plain.subscribe()
    plain.take()
    shop.publish(1, x="why")
    (message,) = taken(shop.consumer())
    assert (message.topic, message.bookmark) == ("work", f"{PUBBER}|1|")
    assert (message.sids, message.correlation_id) == ("1", "why")
    (copy,) = plain.take()
    assert (copy.topic, copy.data) == ("orders", message.data)


@pytest.mark.row("QB1")
@pytest.mark.parametrize("topics", [(), ("orders",), ("^ord",)])
def test_a_queue_with_its_topics_name_takes_all_subscriptions(topics: tuple[str, ...]) -> None:
    shop = Shop(work(name="orders", topics=topics))
    first, second = (shop.consumer(name, t="orders") for name in ("a", "b"))
    shop.publish(1, 2)
    assert numbers(first) + numbers(second) == [1, 2]


@pytest.mark.row("QB2")
def test_queues_over_one_topic_know_nothing_of_each_other() -> None:
    shop = Shop(work(), work(name="audit"))
    worker, auditor = shop.consumer("w"), shop.consumer("a", t="audit")
    shop.publish(1, 2)
    assert (numbers(worker), numbers(auditor)) == ([1, 2], [1, 2])
    acknowledge(worker, 1, 2)
    worker.close()
    auditor.close()
    assert (shop.browse(), shop.browse("audit")) == ([], [1, 2])


@pytest.mark.row("QB3")
def test_a_publish_to_a_queue_goes_to_its_topic_or_to_the_target() -> None:
    shop = Shop(work(), work(name="many", topics=("^or", "^in"), default_publish_target="invoices"))
    shop.publish(1, t="work")
    shop.publish(2, t="many")
    assert shop.browse() == [1]
    assert shop.browse("many") == [1, 2]
    reader = shop.world.client("reader")
    reader.subscribe(t="orders|invoices", bm="0")
    assert [message.topic for message in taken(reader)] == ["orders", "invoices"]


@pytest.mark.row("QB3")
def test_a_publish_to_a_queue_over_many_topics_without_a_target_is_refused() -> None:
    shop = Shop(work(topics=("^or", "^in")))
    peer = shop.world.client("other")
    peer.publish(1, t="work", a="processed")
    (ack,) = peer.acks()
    assert (ack.status, ack.reason) == ("failure", "invalid topic")
    assert shop.browse() == []


# --- leases --------------------------------------------------------------------------------------


@pytest.mark.row("QB5", "QB6")
def test_a_lease_begins_when_the_message_is_sent() -> None:
    shop = Shop(work(lease_s=30.0))
    shop.publish(1)
    shop.world.advance(100)
    (message,) = taken(shop.consumer(opts="max_backlog=10,timestamp"))
    waited = lease_us(message.lease_period) - lease_us(message.timestamp)
    assert waited == 130_000_000
    assert shop.browse() == []


@pytest.mark.row("QB6")
def test_an_unlimited_lease_has_no_end() -> None:
    shop = Shop(work())
    shop.publish(1)
    consumer = shop.consumer()
    (message,) = taken(consumer)
    shop.world.advance(86_400)
    assert (message.lease_period, consumer.take()) == ("", [])


@pytest.mark.row("QB7")
def test_a_lease_that_ends_returns_the_message_to_its_place() -> None:
    shop = Shop(work(lease_s=5.0))
    consumer = shop.consumer(opts="max_backlog=2")
    shop.publish(1, 2, 3)
    assert numbers(consumer) == [1, 2]
    acknowledge(consumer, 2)
    assert numbers(consumer) == [3]
    other = shop.consumer("other", opts="max_backlog=2")
    shop.world.advance(4.9)
    assert numbers(other) == []
    subscribe(consumer, opts="replace", filter="/id > 90")
    shop.world.advance(0.2)
    assert numbers(other) == [1, 3]


@pytest.mark.row("QB7")
@pytest.mark.parametrize("how", ["disconnect", "unsubscribe"])
def test_who_leaves_gives_back_what_he_has_at_once(how: str) -> None:
    shop = Shop(work(lease_s=30.0))
    shop.publish(1, 2, 3)
    first = shop.consumer("a", opts="max_backlog=2")
    second = shop.consumer("b")
    assert (numbers(first), numbers(second)) == ([1, 2], [3])
    if how == "disconnect":
        first.close()
    else:
        first.send(c="unsubscribe", sub_id="1")
    assert numbers(second) == [1, 2]


@pytest.mark.row("QB7")
def test_a_lease_is_extended_by_who_has_it_and_never_shortened() -> None:
    shop = Shop(work(lease_s=10.0))
    shop.publish(1, 2)
    holder = shop.consumer("a")
    other = shop.consumer("b")
    assert numbers(holder) == [1, 2]
    acknowledge(other, 2, opts="lease_extension=60s")
    acknowledge(holder, 1, opts="lease_extension=60s")
    acknowledge(holder, 1, opts="lease_extension=1s")
    shop.world.advance(10)
    assert numbers(other) == [2]
    acknowledge(other, 2)
    shop.world.advance(49.5)
    assert numbers(other) + numbers(holder) == []
    shop.world.advance(1)
    assert numbers(other) + numbers(holder) == [1]


@pytest.mark.row("QB6")
def test_an_extension_of_nothing_changes_nothing() -> None:
    shop = Shop(work(lease_s=10.0))
    shop.publish(1)
    consumer = shop.consumer()
    consumer.take()
    acknowledge(consumer, 1, opts="lease_extension=0s", a="processed")
    assert [ack.status for ack in consumer.take()] == ["success"]
    shop.world.advance(9.9)
    assert numbers(consumer) == []
    shop.world.advance(0.2)
    assert numbers(consumer) == [1]


@pytest.mark.row("QB5")
def test_at_most_once_removes_what_it_sends_and_an_acknowledgement_only_makes_room() -> None:
    shop = Shop(work(semantics="at-most-once", lease_s=5.0, max_per_subscription_backlog=1))
    shop.publish(1, 2, 3)
    consumer = shop.consumer()
    (message,) = taken(consumer)
    assert (number_of(message), message.lease_period) == (1, "")
    assert shop.browse() == [2, 3]
    shop.world.advance(60)
    assert numbers(consumer) == []
    acknowledge(consumer, 1)
    assert numbers(consumer) == [2]
    consumer.close()
    assert numbers(shop.consumer("next")) == [3], "nothing is sent twice"
    shop.restart()
    assert shop.browse() == []


@pytest.mark.row("QB5")
@pytest.mark.parametrize("options", ["cancel", "expire"])
def test_cancel_and_expire_of_at_most_once_are_acknowledgements(options: str) -> None:
    queue = work(
        semantics="at-most-once", max_per_subscription_backlog=1, max_cancels=1, dead_letter="dead"
    )
    shop = Shop(queue)
    shop.publish(1, 2)
    consumer = shop.consumer()
    acknowledge(consumer, 1, opts=options)
    assert numbers(consumer) == [1, 2]
    assert shop.letters("dead") == []


@pytest.mark.row("QB5", "QB16")
def test_an_acknowledgement_by_filter_makes_room_with_at_most_once() -> None:
    shop = Shop(work(semantics="at-most-once", max_per_subscription_backlog=1))
    consumer = shop.consumer()
    shop.publish(1, 2)
    assert numbers(consumer) == [1]
    acknowledge(consumer, bm="", filter="/id = 1")
    assert numbers(consumer) == [2]


# --- backlog -------------------------------------------------------------------------------------


@pytest.mark.row("QB8")
@pytest.mark.parametrize(
    ("options", "granted"), [("", 1), ("max_backlog=3", 3), ("max_backlog=99", 10)]
)
def test_the_backlog_is_the_smaller_of_both_limits_and_one_if_none_is_asked_for(
    options: str, granted: int
) -> None:
    shop = Shop(work())
    shop.publish(*range(20))
    peer = shop.world.client("worker")
    ack = subscribe(peer, opts=options)
    assert ack.options == f"max_backlog={granted}"
    assert numbers(peer) == list(range(granted))


@pytest.mark.row("QB8")
def test_a_subscription_to_several_queues_has_the_smallest_of_their_limits() -> None:
    shop = Shop(work(name="work1", lease_s=9.0), work(name="work2", max_per_subscription_backlog=3))
    peer = shop.world.client("worker")
    ack = subscribe(peer, t="^work", opts="max_backlog=5")
    assert ack.options == "max_backlog=3,lease=9.0"
    shop.publish(1, 2, 3, 4)
    assert len(taken(peer)) == 3


@pytest.mark.row("QB9")
def test_a_queue_limits_what_all_its_consumers_have() -> None:
    shop = Shop(work(max_backlog=3))
    first, second = shop.consumer("a"), shop.consumer("b")
    shop.publish(1, 2, 3, 4)
    found = taken(first) + taken(second)
    assert sorted(number_of(message) for message in found) == [1, 2, 3]
    acknowledge(first, 1)
    assert numbers(first) + numbers(second) == [4]


@pytest.mark.row("QB8")
def test_a_replaced_subscription_keeps_its_leases_and_has_another_backlog_and_filter() -> None:
    shop = Shop(work())
    consumer = shop.consumer(opts="max_backlog=2")
    shop.publish(1, 2, 3, 4, 5)
    assert numbers(consumer) == [1, 2]
    ack = subscribe(consumer, opts="replace,max_backlog=3", filter="/id > 4")
    assert ack.options == "max_backlog=3"
    assert numbers(consumer) == [5]
    assert shop.browse() == [3, 4]


@pytest.mark.row("QB8", "QB22")
@pytest.mark.parametrize(
    "frame",
    [
        {"c": "subscribe", "sub_id": "1", "opts": "max_backlog=0"},
        {"c": "subscribe", "sub_id": "1", "opts": "max_backlog=-1"},
        {"c": "subscribe", "sub_id": "1", "opts": "max_backlog=some"},
        {"c": "sow_delete", "bm": "1|1|", "opts": "lease_extension=-1s"},
        {"c": "sow_delete", "bm": "1|1|", "opts": "cancel,expire"},
        {"c": "sow_delete", "bm": "1|1|", "opts": "cancel,lease_extension=5s"},
    ],
)
def test_options_without_a_meaning_are_refused(frame: dict[str, str | int]) -> None:
    shop = Shop(work())
    shop.publish(1)
    peer = shop.world.client("worker")
    peer.send(**{"cid": "1", "t": "work", "a": "processed", **frame})
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid options")
    assert shop.browse() == [1]


@pytest.mark.row("QB26")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_backlog": 0}, "max_backlog=0: wanted 1 or more"),
        ({"max_per_subscription_backlog": 0}, "max_per_subscription_backlog=0: wanted 1 or more"),
        ({"max_deliveries": -1}, "max_deliveries=-1: wanted 0 or more"),
        ({"max_cancels": -1}, "max_cancels=-1: wanted 0 or more"),
        ({"lease_s": 0.0}, "lease_s=0.0: wanted more than 0 seconds"),
        ({"expiration_s": 0.0}, "expiration_s=0.0: wanted more than 0 seconds"),
        ({"priority": "/p", "barrier": "/b = 1"}, "priority and barrier exclude each other"),
        ({"semantics": "at-most-once", "delivery": "fast"}, "at-most-once has round-robin alone"),
    ],
)
def test_a_queue_that_cannot_be_is_refused_when_it_is_configured(
    options: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        work(**options)


@pytest.mark.row("QB1")
def test_a_queue_over_a_topic_that_is_not_logged_is_refused() -> None:
    with pytest.raises(UsageError, match="'orders' is not in the transaction log"):
        EngineSettings(queues=(work(),), log_topics=(LogTopic("other"),))


# --- fairness ------------------------------------------------------------------------------------


@pytest.mark.row("QB10")
def test_fast_gives_to_the_first_consumer_with_room() -> None:
    shop = Shop(work(delivery="fast"))
    first, second = shop.consumer("a", opts="max_backlog=2"), shop.consumer("b")
    shop.publish(1, 2, 3)
    assert (numbers(first), numbers(second)) == ([1, 2], [3])
    acknowledge(first, 1)
    shop.publish(4)
    assert (numbers(first), numbers(second)) == ([4], [])


@pytest.mark.row("QB11")
@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_round_robin_gives_to_the_next_consumer_with_room(semantics: str) -> None:
    delivery = "round-robin" if semantics == "at-least-once" else ""
    shop = Shop(work(delivery=delivery, semantics=semantics))
    first, second, third = (
        shop.consumer(name, opts=f"max_backlog={backlog}")
        for name, backlog in (("a", 9), ("b", 1), ("c", 9))
    )
    shop.publish(1, 2, 3, 4, 5, 6)
    assert (numbers(first), numbers(second), numbers(third)) == ([1, 4, 6], [2], [3, 5])


@pytest.mark.row("QB12", "QB13")
def test_proportional_gives_to_clyde() -> None:
    shop = Shop(work())
    ghosts: dict[str, Peer] = {}
    figures = (("Inky", 2, 1), ("Blinky", 4, 3), ("Clyde", 10, 4))
    for name, backlog, leased in figures:
        shop.publish(*range(leased), body=f'"for": "{name}"')
        ghosts[name] = shop.consumer(name, opts=f"max_backlog={backlog}", filter=f"/for = '{name}'")
        assert numbers(ghosts[name]) == list(range(leased))
    for name, backlog, _ in figures:
        subscribe(ghosts[name], opts=f"replace,max_backlog={backlog}")
        ghosts[name].take()
    shop.publish(99)
    assert {name: numbers(ghost) for name, ghost in ghosts.items()} == {
        "Inky": [],
        "Blinky": [],
        "Clyde": [99],
    }


@pytest.mark.row("QB14")
def test_proportional_gives_to_the_first_of_those_that_are_filled_alike() -> None:
    shop = Shop(work())
    first, second = (
        shop.consumer("a", opts="max_backlog=2"),
        shop.consumer("b", opts="max_backlog=4"),
    )
    shop.publish(1)
    assert (numbers(first), numbers(second)) == ([1], [])
    shop.publish(2, 3)
    assert (numbers(first), numbers(second)) == ([], [2, 3])
    shop.publish(4)
    assert (numbers(first), numbers(second)) == ([4], []), "1 of 2 is as much as 2 of 4"


# --- acknowledgement -----------------------------------------------------------------------------


@pytest.mark.row("QB16")
def test_messages_are_acknowledged_by_one_bookmark_by_a_list_and_by_a_filter() -> None:
    shop = Shop(work())
    consumer = shop.consumer(opts="max_backlog=4")
    shop.publish(1, 2, 3, 4, 5, 6, 7)
    assert numbers(consumer) == [1, 2, 3, 4]
    acknowledge(consumer, 1)
    acknowledge(consumer, 2, 3)
    assert numbers(consumer) == [5, 6, 7]
    acknowledge(consumer, bm="", filter="/id > 5", a="processed,stats")
    processed, stats = consumer.acks()
    assert processed.status == "success"
    assert (stats.records_deleted, stats.matches) == (2, 2)
    consumer.close()
    assert shop.browse() == [4, 5]


@pytest.mark.row("QB16")
def test_a_filter_acknowledges_also_what_nobody_has() -> None:
    shop = Shop(work())
    shop.publish(1, 2, 3)
    other = shop.world.client("other")
    acknowledge(other, bm="", filter="/id < 3")
    assert shop.browse() == [3]


@pytest.mark.row("QB16")
def test_a_bookmark_that_is_unknown_or_gone_changes_nothing_and_is_no_error() -> None:
    shop = Shop(work())
    consumer = shop.consumer()
    shop.publish(1, 2)
    consumer.take()
    acknowledge(consumer, 1, a="processed,stats")
    acknowledge(consumer, 1, 77, a="processed,stats")
    answers = [(ack.ack_type, ack.status, ack.records_deleted) for ack in consumer.acks()]
    assert answers == [
        ("processed", "success", None),
        ("stats", "success", 1),
        ("processed", "success", None),
        ("stats", "success", 0),
    ]
    assert shop.statistics()["depth"] == 1


@pytest.mark.row("QB17")
@pytest.mark.parametrize(("leasing", "left"), [("sublet", []), ("strict", [1])])
@pytest.mark.parametrize("by_filter", [True, False])
def test_strict_lets_only_the_holder_acknowledge_what_is_leased(
    leasing: str, left: list[int], *, by_filter: bool
) -> None:
    shop = Shop(work(leasing=leasing))
    shop.publish(1, 2)
    holder = shop.consumer(opts="max_backlog=1")
    other = shop.world.client("other")
    if by_filter:
        acknowledge(other, bm="", filter="/id > 0", a="processed")
    else:
        acknowledge(other, 1, 2, a="processed")
    assert [ack.status for ack in other.acks()] == ["success"]
    holder.close()
    assert shop.browse() == left, "2 is leased by nobody, so anybody acknowledges it"


@pytest.mark.row("QB17")
@pytest.mark.parametrize("options", ["cancel", "expire"])
def test_strict_lets_only_the_holder_cancel_and_expire(options: str) -> None:
    shop = Shop(work(leasing="strict", dead_letter="dead"))
    shop.publish(1)
    holder = shop.consumer("a")
    other = shop.consumer("b")
    acknowledge(other, 1, opts=options)
    assert (numbers(holder), numbers(other)) == ([1], [])
    acknowledge(holder, 1)
    assert (shop.browse(), shop.letters("dead")) == ([], [])


@pytest.mark.row("QB18")
def test_a_cancelled_message_returns_to_its_place_and_is_delivered_again() -> None:
    shop = Shop(work(delivery="fast"))
    consumer = shop.consumer(opts="max_backlog=2")
    shop.publish(1, 2, 3)
    assert numbers(consumer) == [1, 2]
    acknowledge(consumer, 1, opts="cancel")
    assert numbers(consumer) == [1]
    acknowledge(consumer, 3, opts="cancel")
    assert numbers(consumer) == [], "3 is leased by nobody"


@pytest.mark.row("QB18", "X1")
@pytest.mark.parametrize(("rule", "deliveries"), [("above", 3), ("at", 2)])
def test_a_message_expires_when_its_cancels_are_above_the_limit_or_at_it(
    rule: str, deliveries: int
) -> None:
    shop = Shop(work(max_cancels=2, max_cancels_rule=rule, dead_letter="dead"))
    consumer = shop.consumer()
    shop.publish(1)
    for _ in range(deliveries):
        assert numbers(consumer) == [1]
        acknowledge(consumer, 1, opts="cancel")
    assert numbers(consumer) == []
    ((_, context),) = shop.letters("dead")
    assert (context["reason"], context["cancels"]) == ("max_cancels", deliveries)


@pytest.mark.row("QB18", "QB20")
def test_without_limits_a_message_is_cancelled_and_delivered_for_ever() -> None:
    shop = Shop(work(max_cancels=0, max_deliveries=0))
    consumer = shop.consumer()
    shop.publish(1)
    for _ in range(50):
        assert numbers(consumer) == [1]
        acknowledge(consumer, 1, opts="cancel")


@pytest.mark.row("QB20", "X2")
@pytest.mark.parametrize("end", ["lease", "cancel", "disconnect"])
def test_a_message_expires_when_its_last_delivery_ends(end: str) -> None:
    shop = Shop(work(max_deliveries=2, lease_s=5.0, dead_letter="dead"))
    shop.publish(1)
    consumer = shop.consumer()
    for _ in range(2):
        assert numbers(consumer) == [1]
        assert shop.letters("dead") == []
        if end == "cancel":
            acknowledge(consumer, 1, opts="cancel")
        elif end == "lease":
            shop.world.advance(5)
        else:
            consumer.close()
            consumer = shop.consumer()
    assert numbers(consumer) == []
    ((_, context),) = shop.letters("dead")
    assert (context["reason"], context["deliveries"]) == ("max_deliveries", 2)


@pytest.mark.row("QB19", "QB21")
def test_an_expired_message_is_copied_to_the_dead_letter_topic() -> None:
    shop = Shop(work(dead_letter="dead"))
    watcher = shop.world.client("watcher")
    watcher.subscribe(t="dead")
    watcher.take()
    consumer = shop.consumer()
    shop.publish(7, x="mine")
    acknowledge(consumer, 1, opts="expire")
    assert numbers(consumer) == [7]
    (letter,) = watcher.take()
    assert (letter.topic, letter.data) == ("dead", b'{"id": 7}')
    assert DeadLetter.context(letter) == {
        "queue": "work",
        "reason": "forced_expire",
        "bookmark": f"{PUBBER}|1|",
        "deliveries": 1,
        "cancels": 0,
        "correlation_id": "mine",
    }
    shop.restart()
    assert shop.browse() == []
    assert [number for number, _ in shop.letters("dead")] == [7], "once, also after a restart"


@pytest.mark.row("QB21")
def test_dead_letters_can_be_consumed_from_a_queue() -> None:
    shop = Shop(work(dead_letter="dead"), work(name="failed", topics=("dead",)))
    consumer = shop.consumer()
    shop.publish(7)
    acknowledge(consumer, 1, opts="expire")
    assert numbers(shop.consumer("operator", t="failed")) == [7]


# --- expiration ----------------------------------------------------------------------------------


@pytest.mark.row("QB22")
@pytest.mark.parametrize(
    ("model", "own", "lifetime"),
    [
        ("default", None, 10),
        ("default", 5, 5),
        ("default", 20, 20),
        ("default", 0, None),
        ("queue", 5, 10),
        ("queue", 0, 10),
        ("latest", 5, 10),
        ("latest", 20, 20),
        ("latest", 0, None),
        ("earliest", 5, 5),
        ("earliest", 20, 10),
        ("earliest", 0, 10),
    ],
)
def test_a_message_expires_by_the_model_of_its_queue(
    model: str, own: int | None, lifetime: int | None
) -> None:
    shop = Shop(work(expiration_s=10.0, expiration_model=model))
    if own is None:
        shop.publish(1)
    else:
        shop.publish(1, e=own)
    shop.world.advance((lifetime or 1000) - 0.01)
    assert shop.browse() == [1]
    if lifetime:
        shop.world.advance(0.01)
        assert shop.browse() == []


@pytest.mark.row("QB22")
def test_a_message_does_not_expire_while_it_is_leased_but_at_the_end_of_its_lease() -> None:
    shop = Shop(work(expiration_s=10.0, lease_s=30.0, dead_letter="dead"))
    consumer = shop.consumer(opts="max_backlog=2")
    shop.publish(1, 2)
    assert numbers(consumer) == [1, 2]
    shop.world.advance(20)
    assert shop.letters("dead") == []
    acknowledge(consumer, 1)
    shop.world.advance(10)
    assert numbers(consumer) == []
    ((number, context),) = shop.letters("dead")
    assert (number, context["reason"], context["deliveries"]) == (2, "time_limit", 1)


@pytest.mark.row("QB22")
def test_a_lease_that_ends_with_its_message_ends_by_the_time_limit() -> None:
    shop = Shop(work(expiration_s=5.0, lease_s=5.0, max_deliveries=1, dead_letter="dead"))
    shop.consumer()
    shop.publish(1)
    shop.world.advance(5)
    ((_, context),) = shop.letters("dead")
    assert context["reason"] == "time_limit"


@pytest.mark.row("QB22")
def test_the_time_of_a_message_runs_on_while_the_broker_is_down() -> None:
    shop = Shop(work(expiration_s=10.0))
    shop.publish(1)
    shop.world.advance(5)
    shop.publish(2)
    shop.world.now += 6
    shop.restart()
    assert numbers(shop.consumer()) == [2]


@pytest.mark.row("QB23")
def test_that_a_message_expires_is_no_error() -> None:
    shop = Shop(work(expiration_s=10.0))
    consumer = shop.consumer(filter="/id > 5")
    consumer.take()
    shop.publish(1)
    shop.world.advance(11)
    assert (consumer.take(), consumer.closed, shop.world.events) == ([], "", [])
    assert shop.statistics()["expired"] == {
        "time_limit": 1,
        "forced_expire": 0,
        "max_cancels": 0,
        "max_deliveries": 0,
    }


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.row("QB24")
def test_the_highest_priority_is_delivered_first_and_of_one_priority_the_oldest() -> None:
    shop = Shop(work(priority="/p"))
    for number, priority in enumerate((1, 9, "null", 1, 9, -1)):
        shop.publish(number, body=f'"p": {priority}')
    assert numbers(shop.consumer()) == [1, 4, 0, 3, 5, 2]


@pytest.mark.row("QB27")
def test_the_oldest_message_that_a_filter_matches_is_delivered() -> None:
    shop = Shop(work())
    shop.publish(1, 2, 3, 4)
    even = shop.consumer("even", filter="/id % 2 = 0", opts="max_backlog=1")
    everything = shop.consumer("all", opts="max_backlog=2")
    assert (numbers(even), numbers(everything)) == ([2], [1, 3])
    acknowledge(even, 2)
    assert numbers(even) == [4]


@pytest.mark.row("QB25", "X5")
def test_a_barrier_waits_for_all_before_it_and_all_after_it_wait() -> None:
    shop = Shop(work(barrier="/stop = 1", delivery="fast", lease_s=30.0))
    full = shop.consumer("a", opts="max_backlog=2")
    idle = shop.consumer("b", opts="max_backlog=2", filter="/id > 2")
    uninterested = shop.consumer("c", filter="/id > 90")
    shop.publish(1, 2)
    shop.publish(3, body='"stop": 1')
    shop.publish(4)
    assert (numbers(full), numbers(idle)) == ([1, 2], [])
    acknowledge(full, 1)
    assert (numbers(full), numbers(idle)) == ([], [])
    acknowledge(full, 2, opts="cancel")
    assert (numbers(full), numbers(idle)) == ([2], [])
    acknowledge(full, 2)
    barrier, after = taken(full)
    assert (number_of(barrier), barrier.lease_period) == (3, ""), "no lease"
    assert (number_of(after), numbers(idle), numbers(uninterested)) == (4, [3], [])
    acknowledge(full, 3, opts="cancel")
    assert numbers(full) == [], "it is done without an acknowledgement"


@pytest.mark.row("QB25", "X5")
def test_a_barrier_goes_also_to_consumers_whose_backlog_is_full() -> None:
    shop = Shop(work(barrier="/stop = 1"), work(name="work2", topics=("other",)))
    consumer = shop.consumer(t="^work", opts="max_backlog=1")
    shop.publish(1, t="other")
    assert numbers(consumer) == [1]
    shop.publish(2, body='"stop": 1')
    shop.publish(3)
    assert numbers(consumer) == [2], "for 3 there is no room"


@pytest.mark.row("QB25")
def test_a_barrier_waits_for_a_consumer() -> None:
    shop = Shop(work(barrier="/stop = 1"))
    shop.publish(1, body='"stop": 1')
    shop.publish(2)
    small = shop.consumer("small", filter="/id = 2")
    assert numbers(small) == []
    assert numbers(shop.consumer("all")) == [1]
    assert numbers(small) == [2]


# --- replay, browsing, restarts ------------------------------------------------------------------


@pytest.mark.row("QB28")
def test_a_bookmark_subscription_to_a_queue_is_a_replay_of_its_topic() -> None:
    shop = Shop(work(lease_s=30.0))
    shop.publish(1, 2)
    acknowledge(shop.consumer(), 1)
    reader = shop.world.client("reader")
    reader.subscribe(t="work", bm="0")
    found = taken(reader)
    assert [(number_of(each), each.topic, each.lease_period) for each in found] == [
        (1, "orders", ""),
        (2, "orders", ""),
    ]
    shop.publish(3)
    assert numbers(reader) == [3], "it goes on, whoever consumes"


@pytest.mark.row("QB33")
def test_browsing_shows_what_is_available_and_leases_nothing() -> None:
    shop = Shop(work())
    shop.publish(1, 2, 3, 4)
    consumer = shop.consumer(opts="max_backlog=1")
    assert shop.browse() == [2, 3, 4]
    assert shop.browse(filter="/id > 2") == [3, 4]
    assert shop.browse(top_n=2, bs=10) == [2, 3]
    acknowledge(consumer, 1)
    assert numbers(consumer) == [1, 2]


@pytest.mark.row("QB33")
def test_a_queue_is_not_browsed_and_subscribed_at_once() -> None:
    shop = Shop(work())
    peer = shop.world.client("worker")
    peer.send(c="sow_and_subscribe", cid="1", t="work", a="processed")
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid topic")


@pytest.mark.row("QB31")
def test_after_a_restart_all_that_was_not_removed_is_available() -> None:
    shop = Shop(work(max_deliveries=2, lease_s=30.0))
    shop.publish(1, 2, 3, 4)
    consumer = shop.consumer(opts="max_backlog=2")
    assert numbers(consumer) == [1, 2]
    acknowledge(consumer, 2)
    acknowledge(consumer, 3, opts="expire")
    for _ in range(3):  # deliveries are counted in memory
        shop.restart()
        assert numbers(shop.consumer()) == [1, 4]


@pytest.mark.row("QB29")
@pytest.mark.parametrize(
    ("point", "left"),
    [("epoch", [1, 2, 3]), ("now", []), (f"{PUBBER}|2|", [3]), ("20231114T221504Z", [3])],
)
def test_a_new_queue_begins_at_its_recovery_point(point: str, left: list[int]) -> None:
    shop = Shop()
    shop.publish(1, 2)
    shop.world.advance(60)
    shop.publish(3)
    shop.world.settings = EngineSettings(queues=(work(recovery_point=point),))
    shop.restart()
    assert shop.browse() == left
    shop.publish(4)
    shop.restart()
    assert shop.browse() == [*left, 4]


@pytest.mark.row("QB29")
def test_a_queue_begins_anew_when_its_recovery_point_is_another() -> None:
    shop = Shop(work(recovery_point="now"))
    shop.publish(1, 2)
    acknowledge(shop.consumer(), 1)
    shop.world.settings = EngineSettings(queues=(work(recovery_point=f"{PUBBER}|2|"),))
    shop.restart()
    assert shop.browse() == []
    shop.world.settings = EngineSettings(queues=(work(),))
    shop.restart()
    assert shop.browse() == [2], "1 was acknowledged, from wherever the log is read"


@pytest.mark.row("QB29", "QB31")
def test_without_its_points_a_queue_is_rebuilt_from_the_whole_log() -> None:
    shop = Shop(work(), work(name="audit"))
    shop.publish(1, 2, 3)
    acknowledge(shop.consumer(), 1, 2)
    shop.world.queue_points = ()
    shop.restart()
    assert (shop.browse(), shop.browse("audit")) == ([3], [1, 2, 3])
