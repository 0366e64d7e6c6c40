"""Records that expire: by the lifetime of their topic, or by what their publisher says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient_fake_server.engine import apply
from haclient_fake_server.engine.settings import LogTopic, QueueTopic, SowTopic
from haclient_fake_server.engine.sow import table
from haclient_fake_server.engine.timers import timestamp_text
from support.engine import Peer, World
from support.lengths import length
from support.replicas import Group

pytestmark = pytest.mark.row("SW4")

LIFETIME = (SowTopic("orders", ("/id",), expiration_s=10.0),)
ENABLED = (SowTopic("orders", ("/id",), expiration_s=0),)


def records(peer: Peer, **fields: str | int) -> list[bytes]:
    peer.send(**{"c": "sow", "cid": "q", "t": "orders", **fields})
    return [message.data for message in peer.take() if message.kind == "sow"]


def test_a_record_expires_when_the_lifetime_of_its_topic_is_over() -> None:
    world = World(sow_topics=LIFETIME)
    peer = world.client()
    peer.publish(1, b'{"id":1}')
    world.advance(5)
    peer.publish(2, b'{"id":2}')
    world.advance(4.9)
    assert records(peer) == [b'{"id":1}', b'{"id":2}']
    world.advance(0.2)
    assert records(peer) == [b'{"id":2}']
    world.advance(5)
    assert records(peer) == []


def test_every_update_begins_the_lifetime_anew() -> None:
    world = World(sow_topics=LIFETIME)
    peer = world.client()
    for number in range(1, 6):
        peer.publish(number, b'{"id":1}')
        world.advance(9)
    assert records(peer) == [b'{"id":1}']
    peer.send(b'{"id":1,"px":2}', c="delta_publish", t="orders")
    world.advance(9)
    assert records(peer) == [b'{"id":1,"px":2}']
    world.advance(2)
    assert records(peer) == []


def test_the_expiration_of_a_publish_counts_for_more_than_that_of_its_topic() -> None:
    world = World(sow_topics=LIFETIME)
    peer = world.client()
    peer.publish(1, b'{"id":"short"}', e=2)
    peer.publish(2, b'{"id":"long"}', e=100)
    peer.publish(3, b'{"id":"ever"}', e=0)
    peer.publish(4, b'{"id":"shorter"}')
    peer.publish(5, b'{"id":"shorter"}', e=1)
    world.advance(1.5)
    assert records(peer) == [b'{"id":"short"}', b'{"id":"long"}', b'{"id":"ever"}']
    world.advance(1)
    assert records(peer) == [b'{"id":"long"}', b'{"id":"ever"}']
    world.advance(1e6)
    assert records(peer) == [b'{"id":"ever"}']


def test_without_a_lifetime_only_records_expire_whose_publishers_say_so() -> None:
    world = World(sow_topics=ENABLED)
    peer = world.client()
    peer.publish(1, b'{"id":1}')
    peer.publish(2, b'{"id":2}', e=1)
    world.advance(1e6)
    assert records(peer) == [b'{"id":1}']


def test_a_topic_that_does_not_enable_it_ignores_what_publishers_say() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    peer = world.client()
    peer.publish(1, b'{"id":1}', e=1)
    world.advance(1e6)
    assert records(peer) == [b'{"id":1}']


@pytest.mark.row("SW5")
@pytest.mark.parametrize("filter_text", ["", "/px > 1"])
def test_who_had_the_record_is_told_that_it_has_expired(filter_text: str) -> None:
    world = World(sow_topics=LIFETIME)
    peer, reader, other = world.client(), world.client("reader"), world.client("other")
    more = {"filter": filter_text} if filter_text else {}
    reader.subscribe(opts="oof", **more)
    other.subscribe(opts="oof", filter="/px > 9")
    peer.publish(1, b'{"id":1,"px":2}')
    reader.take(), other.take()
    world.advance(11)
    (gone,) = reader.take()
    assert (gone.kind, gone.reason, gone.data) == ("oof", "expire", b'{"id":1,"px":2}')
    assert other.take() == []


def test_a_page_loses_the_record_and_gets_the_next_one() -> None:
    world = World(sow_topics=LIFETIME)
    peer, reader = world.client(), world.client("reader")
    peer.publish(1, b'{"id":1}')
    world.advance(5)
    peer.publish(2, b'{"id":2}')
    reader.send(
        c="sow_and_subscribe", cid="1", t="orders", orderby="/id", opts="top_n=1,skip_n=0,oof"
    )
    reader.take()
    world.advance(6)
    seen = [(m.kind, m.reason, m.data) for m in reader.take()]
    assert seen == [("oof", "expire", b'{"id":1}'), ("p", "", b'{"id":2}')]


def test_conflation_holds_back_that_it_has_expired() -> None:
    world = World(sow_topics=LIFETIME)
    peer, reader = world.client(), world.client("reader")
    peer.publish(1, b'{"id":1}')
    reader.subscribe(opts="oof,conflation=1s")
    reader.take()
    world.advance(10.5)
    assert reader.take() == []
    world.advance(1)
    assert [(m.kind, m.reason) for m in reader.take()] == [("oof", "expire")]


def test_what_has_expired_is_gone_after_a_restart_too() -> None:
    world = World(sow_topics=LIFETIME)
    peer = world.client()
    peer.publish(1, b'{"id":1}')
    world.advance(5)
    peer.publish(2, b'{"id":2}')
    world.restart()
    assert len(records(world.client())) == 2
    world.advance(4.5)
    assert records(world.client()) == [b'{"id":2}']
    world.now += 60
    world.restart()
    assert records(world.client()) == []


def test_a_record_lives_no_longer_when_the_log_is_ahead_of_the_clock() -> None:
    world = World(sow_topics=LIFETIME)
    world.client().publish(1, b'{"id":1}')
    world.now = 0.0  # the clock is set back
    world.restart()
    peer = world.client()
    peer.publish(2, b'{"id":2}')
    world.advance(11)
    assert records(peer) == []


def test_a_query_of_the_past_has_what_had_not_expired_then() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",), history=True, expiration_s=10),))
    peer = world.client()
    peer.publish(1, b'{"id":1}')
    world.advance(9)
    peer.publish(2, b'{"id":2}')
    world.advance(2)
    peer.publish(3, b'{"id":3}')
    first, second, third = (f"{each}|{n}|" for n, each in enumerate(_publishers(peer), 1))
    assert records(peer, bm=first) == [b'{"id":1}']
    assert records(peer, bm=second) == [b'{"id":1}', b'{"id":2}']
    assert records(peer, bm=third) == [b'{"id":2}', b'{"id":3}']
    world.advance(8)
    assert records(peer, bm=third) == [b'{"id":2}', b'{"id":3}']  # as it was then


def test_a_query_of_a_time_has_what_expired_before_the_next_message() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",), history=True, expiration_s=10),))
    peer = world.client()
    peer.publish(1, b'{"id":1}')
    world.advance(5)
    then = timestamp_text(world.engine.clock_us(world.now)).decode()
    world.advance(5)
    at_its_end = timestamp_text(world.engine.clock_us(world.now)).decode()
    for _ in range(2):  # nothing follows; a message follows
        world.advance(100)
        assert records(peer, bm=then) == [b'{"id":1}']
        assert records(peer, bm=at_its_end) == []
        peer.publish(2, b'{"id":2}')


def test_a_query_of_a_time_ahead_of_the_clock_has_what_is_there_while_others_publish() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",), history=True, expiration_s=10),))
    peer, another = world.client(), world.client("another")
    peer.publish(1, b'{"id":1}', a="")
    ahead = timestamp_text(world.engine.clock_us(world.now + 60)).decode()
    peer.stalled = True
    peer.send(c="sow", cid="1", t="orders", bm=ahead)
    another.publish(1, b"{}", topic="elsewhere", a="")
    peer.stalled = False
    world.replay_backlog(peer)
    assert [each.data for each in peer.take() if each.kind == "sow"] == [b'{"id":1}']


def _publishers(peer: Peer) -> list[str]:
    peer.subscribe("s", bm="0")
    return [m.bookmark.split("|")[0] for m in peer.take() if m.kind == "p"]


def test_many_records_expire_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "MAX_EXPIRED", 10)
    world = World(sow_topics=LIFETIME)
    peer, reader = world.client(), world.client("reader")
    reader.subscribe(opts="oof")
    for number in range(1, 36):
        peer.publish(number, b'{"id":%d}' % number)
    reader.take()
    world.now += 11
    gone = list[int]()
    while world.engine.next_due <= world.now:
        world.apply(world.engine.tick(world.now))
        gone.append(len(reader.take()))
    assert [count for count in gone if count] == [10, 10, 10, 5]


def test_constant_updates_and_deletes_leave_no_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_SLACK", 4)
    topic = table.SowTable("orders", expiration_s=1)
    for moment in range(1, 200):
        topic.restore(table.SowRecord("hot", b"", expires_us=moment))
        assert len(topic._deadlines) == 1
    for number in range(200):
        topic.restore(table.SowRecord(str(number), b"", expires_us=10**9))
        topic.delete_keys([str(number)])
        topic.restore(table.SowRecord("hot", b"", expires_us=10**9 - number))
        assert len(topic._deadlines) <= 2 * len(topic) + 5
    (hot,) = topic.take_expired(10**9, 1000)
    assert hot.key == "hot"


def test_an_instance_that_was_away_lets_a_record_expire_when_the_others_do() -> None:
    group = Group({"a": ("~b",), "b": ("~a",)}, sow_topics=LIFETIME)
    a, b = group["a"], group["b"]
    group.cut("a", "b")
    peer = a.client()
    peer.publish(1, b'{"id":1}')
    peer.publish(2, b'{"id":2}', e=0)
    a.advance(7)
    b.advance(7)
    group.heal()
    assert records(b.client("reader")) == [b'{"id":1}', b'{"id":2}']
    a.advance(3.1)
    b.advance(3.1)
    assert records(a.client("reader")) == records(b.client("reader2")) == [b'{"id":2}']


def test_the_expiration_of_a_message_of_a_queue_is_the_same_on_all_instances() -> None:
    queue = QueueTopic(name="jobs", topics=("orders",))
    group = Group({"a": ("~b",), "b": ()}, sow_topics=LIFETIME, queues=(queue,))
    group["a"].client().publish(1, b'{"id":1}', e=9)
    group["a"].advance(5)
    group["b"].advance(5)
    group.heal()
    assert [each.expiration_s for each in group.log("b")] == [9]


@pytest.mark.parametrize("lifetime_s", [-1.0, 1e12, float("nan")])
def test_a_lifetime_that_is_none_is_refused(lifetime_s: float) -> None:
    with pytest.raises(UsageError, match="expiration_s="):
        World(sow_topics=(SowTopic("orders", ("/id",), expiration_s=lifetime_s),))


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["p", "delta_publish", "sow_delete", "restart"]),
        st.integers(1, 3),
        st.sampled_from([None, 0, 1, 4]),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    ),
    max_size=20,
)


@settings(max_examples=length(100))
@given(changes=CHANGES)
def test_a_record_is_there_until_its_time_is_over(
    changes: list[tuple[str, int, int | None, float]],
) -> None:
    lifetime_s = 2.0
    world = World(sow_topics=(SowTopic("orders", ("/id",), expiration_s=lifetime_s),))
    peer = world.client()
    ends = dict[int, float]()
    for kind, key, own_s, pause_s in changes:
        if kind == "restart":
            world.restart()
            peer = world.client()
        else:
            more = {} if own_s is None else {"e": own_s}
            peer.send(b'{"id":%d}' % key, c=kind, t="orders", **more)
            life = lifetime_s if own_s is None else own_s
            ends[key] = world.now + (life or 1e9) if kind != "sow_delete" else 0.0
        world.advance(pause_s)
        wanted = {b'{"id":%d}' % key for key, end in ends.items() if end > world.now}
        assert {*records(peer)} == wanted


def test_only_logged_topics_keep_their_records_over_a_restart() -> None:
    world = World(sow_topics=LIFETIME, log_topics=(LogTopic("other"),))
    peer, reader = world.client(), world.client("reader")
    reader.subscribe(opts="oof")
    peer.publish(None, b'{"id":1}')
    reader.take()
    world.advance(10)
    assert [m.reason for m in reader.take()] == ["expire"]
