"""Shared replays: the order of the log holds across the subscriptions of one resume."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine.replay import CHUNK_BYTES, FEED_BYTES
from haclient_stores.bookmark import Timestamp
from support.engine import START_US, Peer, World

pytestmark = pytest.mark.row("OP6")

TOPICS = ("a", "b", "c")


def published(count: int, *, size: int = 3) -> World:
    """A world in which the topics have messages in turn."""
    world = World()
    pubber = world.client("pubber")
    for number in range(count):
        body = b"%0*d" % (size, number)
        pubber.publish(number + 1, body, topic=TOPICS[number % len(TOPICS)], a="")
    return world


def paused(world: World, *, opts: str = "pause", **fields: str | int) -> Peer:
    """A reader whose three subscriptions, one for each topic, are paused at the start."""
    reader = world.client("reader")
    for sub_id, topic in zip("123", TOPICS, strict=True):
        reader.subscribe(sub_id, t=topic, opts=opts, **{"bm": "0", "a": "", **fields})
    assert reader.take() == []
    return reader


def resume(reader: Peer, ids: str = "1,2,3") -> None:
    reader.send(c="subscribe", sub_id=ids, opts="resume")


def numbers(reader: Peer) -> list[int]:
    return [int(body) for body in reader.bodies()]


def test_those_of_one_resume_share_a_replay_in_the_order_of_the_log() -> None:
    world = published(30)
    reader = paused(world)
    resume(reader)
    assert numbers(reader) == list(range(30))


def test_the_order_holds_across_chunks_and_a_reader_that_is_slow() -> None:
    world = published(300, size=4000)
    reader = paused(world)
    resume(reader)
    assert 300 * 4000 // CHUNK_BYTES > 4
    assert numbers(reader) == list(range(300))


@pytest.mark.parametrize("topic", ["elsewhere", "^else"])
def test_what_is_idle_takes_no_turns_of_those_that_have_messages(topic: str) -> None:
    turns = []
    for idle in (0, 300):
        world = published(300, size=4000)
        reader = paused(world)
        for number in range(10, 10 + idle):
            reader.subscribe(str(number), t=topic, opts="pause", bm="0", a="")
        reader.stalled = True
        resume(reader, ",".join(["1", "2", "3", *map(str, range(10, 10 + idle))]))
        turns.append(0)
        while world.engine.has_backlog(reader.number):
            world.apply(world.engine.pump(reader.number, world.now))
            turns[-1] += 1
        assert numbers(reader) == list(range(300))
    assert turns[0] == turns[1]


def test_a_pattern_and_a_topic_share_a_replay_in_their_order() -> None:
    world = published(30)
    reader = world.client("reader")
    for sub_id, topic in (("1", "^[ab]"), ("2", "a"), ("3", "^[bc]"), ("4", "none")):
        reader.subscribe(sub_id, t=topic, opts="pause", bm="0", a="")
    resume(reader, "1,2,3,4")
    got = [(int(each.data), each.sub_ids) for each in reader.take() if each.kind == "p"]
    subscribers = {0: [["1"], ["2"]], 1: [["1"], ["3"]], 2: [["3"]]}
    assert got == [(number, ids) for number in range(30) for ids in subscribers[number % 3]]


def test_those_that_are_resumed_one_by_one_are_replayed_one_by_one() -> None:
    world = published(30)
    reader = paused(world)
    for sub_id in "123":
        reader.send(c="subscribe", sub_id=sub_id, opts="resume")
    found = numbers(reader)
    assert found != sorted(found)
    assert sorted(found) == list(range(30))


def test_what_is_published_next_is_live_for_all_of_them() -> None:
    world = published(6)
    reader = paused(world)
    resume(reader)
    assert numbers(reader) == list(range(6))
    pubber = world.client("another")
    for number, topic in enumerate("cab"):
        pubber.publish(number + 1, b"%d" % number, topic=topic, a="")
    assert numbers(reader) == [0, 1, 2]


def test_completed_comes_to_each_after_the_shared_replay() -> None:
    world = published(9)
    reader = paused(world, a="completed")
    resume(reader)
    kinds = [message.kind for message in reader.take()]
    assert kinds == ["p"] * 9 + ["ack"] * 3


@pytest.mark.parametrize(
    "fields", [{"bm": "[0:0|1|]"}, {"top_n": 2}, {"opts": "pause,fully_durable"}]
)
def test_replays_with_an_end_may_be_shared(fields: dict[str, str | int]) -> None:
    world = published(9)
    reader = paused(world, **fields)  # type: ignore[arg-type]  # opts is one of the fields
    resume(reader)
    found = numbers(reader)
    assert found == sorted(found)
    assert len(found) == (6 if "top_n" in fields else 9)


def test_shared_replays_end_at_the_first_message_behind_their_time() -> None:
    world = published(9)
    world.advance(30)
    pubber = world.client("another")
    for number, topic in enumerate("abcabc"):
        pubber.publish(number + 1, b"99", topic=topic, a="")
    reader = paused(world, bm="[0:20231114T221510]", a="completed")
    resume(reader)
    assert [message.kind for message in reader.take()] == ["p"] * 9 + ["ack"] * 3


def test_a_rate_is_that_of_the_shared_replay() -> None:
    world = published(6)
    reader = paused(world, opts="pause,rate=10")
    resume(reader)
    arrived: list[tuple[float, int]] = []
    began = world.now
    for _ in range(80):
        arrived += [(round(world.now - began, 1), number) for number in numbers(reader)]
        world.advance(0.01)
    assert arrived == [(number / 10, number) for number in range(6)]
    reader.close()
    assert world.engine.next_due == float("inf")


def test_one_that_is_paused_leaves_the_others_and_goes_on_where_it_was() -> None:
    world = published(30)
    reader = paused(world, opts="pause,rate=10")
    resume(reader)
    seen: list[int] = []
    for _ in range(100):
        seen += numbers(reader)
        world.advance(0.01)
    reader.send(c="subscribe", sub_id="1", opts="pause")
    for _ in range(300):
        seen += numbers(reader)
        world.advance(0.01)
    assert [number for number in seen if number % 3] == [n for n in range(30) if n % 3]
    held = [number for number in seen if not number % 3]
    assert held == [number for number in range(11) if not number % 3]
    resume(reader, "1")
    for _ in range(1000):
        held += numbers(reader)
        world.advance(0.01)
    assert held == list(range(0, 30, 3))


@pytest.mark.parametrize("fields", [{}, {"filter": "1 = 2"}, {"opts": "pause,rate=99999"}])
def test_a_step_looks_at_so_much_for_all_of_them_together(fields: dict[str, str | int]) -> None:
    world, count, size = World(), 100, 3000
    pubber = world.client("pubber")
    for number in range(20):
        pubber.publish(number + 1, b"%0*d" % (size, number), a="")
    reader = world.client("reader")
    for number in range(count):
        reader.subscribe(str(number), **{"bm": "0", "a": "", "opts": "pause", **fields})
    reader.stalled = True
    resume(reader, ",".join(map(str, range(count))))
    steps, got = list[int](), list[int]()
    while world.engine.has_backlog(reader.number):
        world.apply(world.engine.pump(reader.number, world.now))
        sent = numbers(reader)
        steps.append(len(sent) * size)
        got += sent
        world.advance(0.01)
    most = 2 * FEED_BYTES + count * size  # up to the limit, and one record more
    assert max(steps) <= most
    assert len(steps) >= 20 * count * size // most
    assert got == ([] if "filter" in fields else [n for n in range(20) for _ in range(count)])


class Readers:
    """A reader with three subscriptions, changed in any way; and what each has received."""

    def __init__(self, rate: str, size: int) -> None:
        self.world = published(90, size=size)
        self.reader = paused(self.world, opts="pause" + rate)
        self.got: dict[str, list[int]] = {sub_id: [] for sub_id in "123"}
        self.gone = set[str]()
        self.count = 90
        self._rate, self._size = rate, size
        self._pubber = self.world.client("another")

    def take(self) -> None:
        for message in self.reader.take():
            if message.kind == "p":
                for sub_id in message.sids.split(","):
                    self.got[sub_id].append(int(message.data))

    def publish(self) -> None:
        body = b"%0*d" % (self._size, self.count)
        self._pubber.publish(self.count, body, topic=TOPICS[self.count % 3], a="")
        self.count += 1

    def unsubscribe(self, ids: set[str]) -> None:
        self.take()
        self.reader.send(c="unsubscribe", sub_id=",".join(sorted(ids)))
        self.gone |= ids

    def change(self, what: str, ids: set[str]) -> None:
        present = sorted(ids - self.gone)
        if what == "take":
            self.take()
        elif what == "publish":
            self.publish()
        elif what == "unsubscribe":
            self.unsubscribe(ids)
        elif what == "replace":
            for sub_id in present:
                topic = TOPICS["123".index(sub_id)]
                self.reader.subscribe(sub_id, t=topic, opts="replace" + self._rate, a="")
        elif present:
            self.reader.send(c="subscribe", sub_id=",".join(present), opts=what)
        self.world.advance(0.02)


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["pause", "resume", "unsubscribe", "replace", "take", "publish"]),
            st.sets(st.sampled_from("123"), min_size=1),
        ),
        max_size=12,
    ),
    rate=st.sampled_from(["", ",rate=200", ",rate=100KB"]),
    size=st.sampled_from([4, 3000]),
)
def test_whatever_is_changed_each_subscription_gets_each_message_once_and_in_order(
    changes: list[tuple[str, set[str]]], rate: str, size: int
) -> None:
    readers = Readers(rate, size)
    resume(readers.reader)
    for what, ids in changes:
        readers.change(what, ids)
    if rest := sorted({*"123"} - readers.gone):
        resume(readers.reader, ",".join(rest))
    for _ in range(40):
        readers.take()
        readers.world.advance(0.5)
    for place, sub_id in enumerate("123"):
        wanted, got = list(range(place, readers.count, 3)), readers.got[sub_id]
        assert got == (wanted[: len(got)] if sub_id in readers.gone else wanted)
    readers.reader.close()
    assert readers.world.engine.next_due == float("inf")


def is_active(reader: Peer, sub_id: str) -> bool:
    """Whether a paused subscription can be resumed: its range may lie behind the log."""
    reader.take()
    reader.send(c="subscribe", sub_id=sub_id, opts="pause", a="processed")
    return reader.take()[-1].status == "success"


KINDS: list[dict[str, str | int]] = [
    {},
    {"a": "completed"},
    {"filter": "/n > 20"},
    {"opts": "pause,top_n=7"},
    {"bm": f"[0:{publisher_id('pubber')}|25|]"},
    {"bm": f"[0:{Timestamp(START_US + 110_000_000)}]", "a": "completed"},
    {"opts": "pause,fully_durable"},
]


@given(
    wanted=st.lists(
        st.tuples(st.sampled_from(["a", "b", "^[ab]", "^.", "none"]), st.sampled_from(KINDS)),
        min_size=2,
        max_size=6,
    ),
    bodies=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 3000])), max_size=80),
    late=st.integers(0, 10),
)
def test_each_gets_the_same_as_in_a_replay_of_its_own(
    wanted: list[tuple[str, dict[str, str | int]]], bodies: list[tuple[str, int]], late: int
) -> None:
    results = []
    for together in (True, False):
        world = World()
        pubber, reader = world.client("pubber"), world.client("reader")
        for number, (topic, size) in enumerate(bodies, 1):
            body = b'{"n":%d,"pad":"%b"}' % (number, b"x" * size)
            pubber.publish(number, body, topic=topic, a="")
            world.advance(0.25)
        world.advance(20)  # the end of the range
        for number, (topic, fields) in enumerate(wanted):
            reader.subscribe(
                str(number), **{"t": topic, "bm": "0", "opts": "pause", "a": "", **fields}
            )
        ids = [each for each in map(str, range(len(wanted))) if is_active(reader, each)]
        reader.stalled = True
        for each in [",".join(ids)] if together else ids:
            resume(reader, each)
        world.apply(world.engine.pump(reader.number, world.now))
        for number in range(late):
            pubber.publish(len(bodies) + 1 + number, b'{"n":99}', topic="abc"[number % 3], a="")
        reader.stalled = False
        world.replay_backlog(reader)
        world.advance(30)
        got: dict[str, list[str]] = {each: [] for each in ids}
        for message in reader.take():
            for sub_id in message.sub_ids:
                got[sub_id].append(message.ack_type or message.bookmark)
        results.append(got)
    assert results[0] == results[1]
