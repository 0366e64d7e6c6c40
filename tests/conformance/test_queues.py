"""Message queues: deliveries, leases, acknowledgements."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from conformance.wire import Frame, Json, Wire


def put(wire: Wire, queue: str, *numbers: int, **more: Json) -> None:
    """Publish messages, and wait until the queue has them."""
    for number in numbers:
        wire.store(queue, {"n": number} | more)


def consume(wire: Wire, queue: str, backlog: int = 10, **header: Json) -> Frame:
    """Subscribe; the answer."""
    return wire.do(
        "subscribe", **({"t": queue, "sub_id": "s", "opts": f"max_backlog={backlog}"} | header)
    )


def taken(wire: Wire, count: int) -> dict[int, Frame]:
    """The next messages by their numbers."""
    frames = [wire.next_message() for _ in range(count)]
    return {each.json["n"]: each for each in frames}


def acknowledge(wire: Wire, queue: str, *frames: Frame, **header: Json) -> Frame:
    bookmarks = ",".join(each["bm"] for each in frames)
    return wire.do("sow_delete", t=queue, bm=bookmarks, **header)


def available(wire: Wire, queue: str) -> list[int]:
    """What a query finds: the messages that nobody has."""
    return sorted(each["n"] for each in wire.query(queue))


def test_a_delivery_has_a_bookmark_and_the_end_of_its_lease(wire: Wire, queue: str) -> None:
    """The bookmark acknowledges it; `lp` is a time in UTC; the topic is that of the queue
    (docs/queues.md)."""
    consume(wire, queue)
    put(wire, queue, 1)
    frame = wire.next_message()
    assert (frame["t"], frame.sids) == (queue, {"s"})
    assert len(frame["bm"].split("|")) == 3
    assert (frame["lp"][8], frame["lp"][-1]) == ("T", "Z")
    acknowledge(wire, queue, frame)
    assert available(wire, queue) == []


def test_the_backlog_of_a_consumer_is_the_lower_of_two(wire: Wire, queue: str) -> None:
    """That of the queue and that of the subscription, which is in the ack; without an option it
    is 1 (docs/queues.md#configuration)."""
    assert "max_backlog=2" in consume(wire, queue, 2)["opts"]
    assert "max_backlog=10" in consume(wire, queue, 1000, opts="max_backlog=1000,replace")["opts"]
    wire.do("unsubscribe", sub_id="s")
    assert "max_backlog=1" in consume(wire, queue, opts="")["opts"].split(",")


def test_a_consumer_has_no_more_than_its_backlog(wire: Wire, queue: str) -> None:
    """Acknowledging a list makes room for as many more (docs/queues.md)."""
    consume(wire, queue, 2)
    put(wire, queue, 1, 2, 3, 4, 5)
    assert available(wire, queue) == [3, 4, 5]
    first = taken(wire, 2)
    acknowledge(wire, queue, *first.values())
    assert sorted(taken(wire, 2)) == [3, 4]
    assert available(wire, queue) == [5]


def test_a_query_of_a_queue_leases_nothing(wire: Wire, queue: str) -> None:
    """It shows the messages that are available, and they stay so (docs/queues.md)."""
    put(wire, queue, 1, 2)
    assert available(wire, queue) == available(wire, queue) == [1, 2]


@pytest.mark.parametrize("how", ["disconnect", "unsubscribe", "cancel"])
def test_a_message_that_is_given_back_is_delivered_again(
    connect: Callable[..., Wire], wire: Wire, queue: str, how: str
) -> None:
    """When its consumer leaves, or cancels it (docs/queues.md#what-happens-when)."""
    first = connect()
    consume(first, queue)
    put(wire, queue, 1)
    frame = first.next_message()
    consume(wire, queue)
    if how == "disconnect":
        first.close()
    elif how == "unsubscribe":
        first.do("unsubscribe", sub_id="s")
    else:
        acknowledge(first, queue, frame, opts="cancel")
        # Either of the two may have it now: the first one leaves, so that it is this one.
        first.do("unsubscribe", sub_id="s")
    again = wire.next_message()
    assert again.json == {"n": 1}
    assert again["bm"] == frame["bm"]


def test_a_lease_that_ends_gives_its_message_back(wire: Wire, lease_queue: str) -> None:
    """The same consumer may have it again (docs/queues.md#what-happens-when)."""
    consume(wire, lease_queue)
    put(wire, lease_queue, 1)
    first, again = wire.next_message(), wire.next_message()
    assert first["bm"] == again["bm"]


def test_a_lease_can_be_prolonged(connect: Callable[..., Wire], lease_queue: str) -> None:
    """`lease_extension` instead of an acknowledgement: the message stays where it is while that
    of another consumer returns."""
    wire, other = connect(), connect()
    consume(wire, lease_queue, 1)
    put(wire, lease_queue, 1)
    acknowledge(wire, lease_queue, wire.next_message(), opts="lease_extension=60s")
    consume(other, lease_queue, 1)
    put(wire, lease_queue, 2)
    assert [other.next_message().json["n"] for _ in range(2)] == [2, 2]


def test_an_expired_message_is_gone(wire: Wire, queue: str) -> None:
    """`expire` ends it at once (docs/queues.md#dead-letters)."""
    consume(wire, queue)
    put(wire, queue, 1)
    acknowledge(wire, queue, wire.next_message(), opts="expire")
    wire.do("unsubscribe", sub_id="s")
    assert available(wire, queue) == []


def test_a_filter_acknowledges_whoever_has_the_messages(
    connect: Callable[..., Wire], wire: Wire, queue: str
) -> None:
    """All that match, leased or not (docs/queues.md)."""
    holder = connect()
    consume(holder, queue, 1)
    put(wire, queue, 1, 2, 3)
    assert taken(holder, 1).keys() == {1}
    stats = wire.ask("sow_delete", t=queue, filter="/n < 3", a="processed,completed,stats")
    assert stats["records_deleted"] == 2
    assert taken(holder, 1).keys() == {3}  # the acknowledged one has made room


def test_a_filter_selects_what_a_consumer_is_given(wire: Wire, queue: str) -> None:
    """The others stay for other consumers."""
    consume(wire, queue, filter="/n > 1")
    put(wire, queue, 1, 2)
    assert wire.next_message().json["n"] == 2
    assert available(wire, queue) == [1]


def test_messages_are_divided_among_consumers(
    connect: Callable[..., Wire], wire: Wire, queue: str
) -> None:
    """Each message has one consumer at a time (docs/queues.md#what-is-promised)."""
    one, other = connect(), connect()
    for each in (one, other):
        consume(each, queue, 5)
    put(wire, queue, *range(10))
    first, second = taken(one, 5), taken(other, 5)
    assert sorted([*first, *second]) == list(range(10))


def test_an_acknowledgement_of_something_unknown_has_no_effect(wire: Wire, queue: str) -> None:
    """It is no mistake: the message may have left the queue before."""
    put(wire, queue, 1)
    assert wire.ask("sow_delete", t=queue, bm="1|1|")["status"] == "success"
    assert available(wire, queue) == [1]


def test_at_most_once_has_no_leases_and_never_comes_back(
    connect: Callable[..., Wire], wire: Wire, once_queue: str
) -> None:
    """A message has left the queue when it was delivered (docs/queues.md)."""
    consumer = connect()
    consume(consumer, once_queue, 1)
    put(wire, once_queue, 1, 2)
    frame = consumer.next_message()
    assert "lp" not in frame
    acknowledge(consumer, once_queue, frame, opts="cancel")
    consumer.do("unsubscribe", sub_id="s")
    assert 1 not in available(wire, once_queue)


def test_a_bookmark_on_a_queue_replays_its_topic(wire: Wire, queue: str) -> None:
    """A replay takes nothing from the queue and waits for no acknowledgement
    (docs/queues.md#replay)."""
    wire.do("subscribe", t=queue, sub_id="s", bm="0|1|")
    put(wire, queue, 1)
    frame = wire.next_message()
    assert (frame.json, "lp" in frame) == ({"n": 1}, False)
    assert available(wire, queue) == [1]


def test_deltas_of_a_queue_are_whole_messages(wire: Wire, queue: str) -> None:
    """A `delta_subscribe` consumes it like a `subscribe`."""
    wire.do("delta_subscribe", t=queue, sub_id="s", opts="max_backlog=10")
    put(wire, queue, 1, a=1)
    put(wire, queue, 1, a=1)
    assert [wire.next_message().json for _ in range(2)] == [{"n": 1, "a": 1}] * 2


def test_replace_keeps_the_leases_of_a_consumer(wire: Wire, queue: str) -> None:
    """It may change the backlog and the filter; what it has, it keeps."""
    consume(wire, queue, 1)
    put(wire, queue, 1, 2, 3)
    first = wire.next_message()
    consume(wire, queue, opts="max_backlog=3,replace")
    assert sorted(taken(wire, 2)) == [2, 3]
    acknowledge(wire, queue, first)
    wire.do("unsubscribe", sub_id="s")
    assert available(wire, queue) == [2, 3]


def test_the_body_of_a_message_is_passed_on_as_it_is(wire: Wire, queue: str) -> None:
    """The queue is a view of its topic: headers of the publish come along."""
    consume(wire, queue)
    body = json.dumps({"n": 1, "text": "caf\xe9"}).encode()
    wire.store(queue, body, x="abc")
    frame = wire.next_message()
    assert (frame.body, frame["x"]) == (body, "abc")
