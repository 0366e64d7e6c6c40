"""Topics with a state of the world that the configuration gives by a pattern."""

from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient_fake_server.engine.settings import TOPIC_BYTES, LogTopic, QueueTopic, SowTopic
from support.engine import Peer, World

pytestmark = pytest.mark.row("SW8")

PATTERN = SowTopic("^prices-", ("/id",), is_pattern=True)


def records(peer: Peer, topic: str, **fields: str | int) -> list[tuple[str, bytes]]:
    peer.send(**{"c": "sow", "cid": "q", "t": topic, **fields})
    return [(message.topic, message.data) for message in peer.take() if message.kind == "sow"]


def reasons(peer: Peer) -> list[str]:
    return [ack.reason for ack in peer.acks()]


def test_each_topic_that_matches_has_records_of_its_own() -> None:
    world = World(sow_topics=(PATTERN,))
    peer = world.client()
    for number, topic in enumerate(("prices-eu", "prices-us", "others"), 1):
        peer.publish(number, b'{"id":1,"n":%d}' % number, t=topic)
    peer.publish(4, b'{"id":1,"n":4}', t="prices-eu")
    peer.take()
    for _ in range(2):
        assert records(peer, "prices-eu") == [("prices-eu", b'{"id":1,"n":4}')]
        assert sorted(records(peer, "^prices")) == [
            ("prices-eu", b'{"id":1,"n":4}'),
            ("prices-us", b'{"id":1,"n":2}'),
        ]
        peer.send(c="sow", cid="q", t="others", a="processed")
        assert reasons(peer) == ["invalid topic"]
        world.restart()
        peer = world.client()


def test_a_topic_without_records_has_an_empty_result() -> None:
    world = World(sow_topics=(PATTERN,))
    peer, publisher = world.client(), world.client("other")
    for topic in ("prices-eu", "^prices"):
        peer.send(c="sow", cid="q", t=topic, a="processed,completed")
        assert reasons(peer) == ["", ""]
        peer.send(c="sow_delete", t=topic, filter="1", a="processed", cid="d")
        assert reasons(peer) == [""]
    peer.send(c="sow_and_subscribe", cid="1", t="prices-us", opts="oof,top_n=1,skip_n=0")
    peer.send(c="sow_and_subscribe", cid="2", t="^prices", opts="oof")
    peer.take()
    publisher.publish(1, b'{"id":1}', t="prices-us")
    publisher.send(c="sow_delete", t="^prices", filter="/id = 1")
    assert [(m.kind, m.sids) for m in peer.take() if m.kind in {"p", "oof"}] == [
        ("p", "1"),
        ("p", "2"),
        ("oof", "1"),
        ("oof", "2"),
    ]


def test_a_name_comes_before_a_pattern_and_a_queue_before_both() -> None:
    named = SowTopic("prices-named", ("/other",))
    queue = QueueTopic(name="prices-queue", topics=("jobs",))
    world = World(sow_topics=(PATTERN, named), queues=(queue,))
    peer = world.client()
    peer.publish(1, b'{"id":1}', t="prices-named")
    assert reasons(peer) == ["bad sow key"]
    peer.send(c="sow", cid="q", t="prices-queue", a="processed")  # it browses the queue
    peer.take()
    assert {topic.name for topic in world.engine._routes.sow} == {"prices-named"}


def test_queries_make_no_more_topics_than_there_is_room_for() -> None:
    world = World(sow_topics=(PATTERN,), max_topic_bytes=2 * (TOPIC_BYTES + 10))
    peer = world.client()
    for number in range(4):
        peer.send(c="sow", cid="q", t=f"prices-{number}", a="processed")
    assert reasons(peer) == ["", "", "invalid topic", "invalid topic"]
    peer.send(c="sow", cid="q", t="prices-0", a="processed")
    assert reasons(peer) == [""]


def test_records_of_a_pattern_expire_and_have_a_history_where_they_are_logged() -> None:
    pattern = SowTopic("^p", ("/id",), is_pattern=True, expiration_s=5.0, history=True)
    world = World(sow_topics=(pattern,), log_topics=(LogTopic("logged"),))
    peer, reader = world.client(), world.client("reader")
    reader.subscribe(t="p-logged", opts="oof")
    reader.take()
    peer.publish(1, b'{"id":1}', t="p-logged")
    peer.publish(None, b'{"id":1}', t="p-other")
    assert records(peer, "p-logged", bm="0|1|") == [("p-logged", b'{"id":1}')]
    peer.send(c="sow", cid="q", t="p-other", bm="0", a="processed")
    assert reasons(peer)[-1:] == ["invalid bookmark"]
    world.advance(6.0)
    assert [(m.kind, m.reason) for m in reader.take()] == [("p", ""), ("oof", "expire")]
    assert records(peer, "^p") == []


@pytest.mark.parametrize("opts", ["conflation=1s", "conflation=1s,oof"])
def test_conflation_uses_the_key_of_the_pattern(opts: str) -> None:
    world = World(sow_topics=(PATTERN,))
    peer, reader = world.client(), world.client("reader")
    reader.subscribe(t="prices-eu", opts=opts)
    peer.publish(1, b'{"id":1}', t="prices-eu")
    peer.publish(2, b'{"id":1,"n":2}', t="prices-eu")
    world.advance(1.1)
    assert reader.bodies() == [b'{"id":1,"n":2}']


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"sow topic '\^\(': .*not a valid pattern"):
        World(sow_topics=(SowTopic("^(", ("/id",), is_pattern=True),))
