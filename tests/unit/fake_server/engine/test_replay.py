"""Replay: from the log to the live stream and back, without a seam."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    Selection,
    Subscription,
)
from haclient_fake_server.engine.journal import Block, MemoryJournal
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishers import KnownPublishers
from haclient_fake_server.engine.replay import CHUNK_BYTES, FEED_BYTES, Replay
from haclient_fake_server.engine.replication.durability import Durability
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, ReplicateTo, SowTopic
from haclient_fake_server.engine.span import Span
from haclient_fake_server.engine.timers import Clock
from haclient_fake_server.journal.format import RECORD_HEADER_BYTES, encode_removals
from haclient_stores.bookmark import Timestamp
from support.engine import START_US, Peer, World, decode
from support.lengths import length
from support.work import counted_calls

if TYPE_CHECKING:
    from _collections_abc import dict_values

PUBBER = 7094790850998930143


def alive() -> int:
    """How many connections and subscriptions there are in this process."""
    gc.collect()
    # By the type: an object of some library may do anything when it is asked for its class.
    return sum(issubclass(type(each), (Connection, Subscription)) for each in gc.get_objects())


def filled(count: int = 5) -> World:
    world = World()
    publisher = world.client("pubber")
    for number in range(1, count + 1):
        publisher.publish(number, b"%d" % number)
    publisher.close()
    return world


def shape(messages: list[Message]) -> list[str]:
    """A run of messages in few words: bodies, and acks by type and position."""
    return [
        m.data.decode() if m.kind == "p" else f"{m.ack_type}@{m.bookmark.split('|')[1:2]}"
        for m in messages
    ]


@pytest.mark.row("RB3", "RB10", "RB1")
def test_a_replay_is_processed_messages_completed_and_then_live() -> None:
    world = filled(3)
    reader = world.client("reader")
    reader.subscribe(bm="0")
    world.client("pubber").publish(4, b"4")
    assert shape(reader.take()) == [
        "processed@[]",
        "1",
        "2",
        "3",
        "completed@['3']",
        "4",
    ]


@pytest.mark.row("RB11")
def test_each_message_of_a_bookmark_subscription_has_its_bookmark() -> None:
    world = filled(2)
    reader = world.client("reader")
    reader.subscribe(bm="0", a="")
    world.client("pubber").publish(3, b"3")
    assert [m.bookmark for m in reader.take()] == [f"{PUBBER}|{n}|" for n in (1, 2, 3)]


def test_replayed_and_live_messages_look_alike() -> None:
    world = World()
    publisher, live = world.client("pubber"), world.client("live")
    live.subscribe(bm="0|1|", opts="timestamp", a="")
    publisher.publish(1, b"x", x="abc", e=5)
    replayed = world.client("replayed")
    replayed.subscribe(bm="0", opts="timestamp", a="")
    assert replayed.take_bytes() == live.take_bytes() != b""


@pytest.mark.row("RB17")
def test_the_timestamp_of_a_replayed_message_is_when_it_was_recorded() -> None:
    world = filled(1)
    world.advance(100)
    reader = world.client("reader")
    reader.subscribe(bm="0", opts="timestamp", a="")
    (message,) = reader.take()
    assert message.timestamp == "20231114T221500.000000Z"


@pytest.mark.row("RB15")
def test_a_filter_holds_in_replay_and_after() -> None:
    world = World()
    publisher = world.client("pubber")
    for number in range(4):
        publisher.publish(number + 1, b'{"n":%d}' % number)
    reader = world.client("reader")
    reader.subscribe(bm="0", filter="/n >= 2", a="completed")
    publisher.publish(5, b'{"n":1}')
    publisher.publish(6, b'{"n":9}')
    assert shape(reader.take()) == ['{"n":2}', '{"n":3}', "completed@['4']", '{"n":9}']


@pytest.mark.row("RB14")
def test_a_pattern_replays_and_delivers_logged_topics_only() -> None:
    world = World(log_topics=(LogTopic("^logged"),))
    publisher, reader = world.client("pubber"), world.client("reader")
    publisher.publish(1, b"1", t="logged/a")
    publisher.publish(2, b"2", t="plain/logged/b")
    publisher.publish(3, b"3", t="logged/c")
    reader.subscribe(t="logged", bm="0", opts="")
    reader.take()
    reader.subscribe("2", t="logged.*", bm="0", a="")
    publisher.publish(4, b"4", t="logged/a")
    publisher.publish(5, b"5", t="plain/logged/b")
    assert shape(reader.take()) == ["1", "3", "4"]


@pytest.mark.row("RB10")
def test_completed_is_told_even_when_nothing_matched() -> None:
    world = filled(3)
    reader = world.client("reader")
    reader.subscribe(t="other", bm="0", a="completed")
    assert shape(reader.take()) == ["completed@['3']"]


@pytest.mark.row("RB10")
def test_completed_of_an_empty_log_carries_the_epoch() -> None:
    reader = World().client("reader")
    reader.subscribe(bm="0")
    _, completed = reader.take()
    assert (completed.ack_type, completed.bookmark) == ("completed", "0")


@pytest.mark.row("RB10", "RB13")
def test_completed_marks_the_point_of_the_subscribe_however_late_the_reader_is() -> None:
    world = filled(3)
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.stalled = True
    reader.subscribe(bm="0", a="completed")
    for number in (4, 5):
        publisher.publish(number, b"%d" % number)
    reader.stalled = False
    world.replay_backlog(reader)
    assert shape(reader.take()) == ["1", "2", "3", "completed@['3']", "4", "5"]


@pytest.mark.row("RB9", "RB13")
def test_a_reader_over_its_high_water_mark_falls_back_to_the_log_and_misses_nothing() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0", a="")
    publisher.publish(1, b"1")
    reader.stalled = True
    world.engine.over_high_water(reader.number)
    for number in (2, 3):
        publisher.publish(number, b"%d" % number)
    assert shape(reader.take()) == ["1"]
    reader.stalled = False
    world.replay_backlog(reader)
    publisher.publish(4, b"4")
    assert shape(reader.take()) == ["2", "3", "4"]


@pytest.mark.row("RB9", "RB13")
@pytest.mark.parametrize("topic", ["quiet", "^qui"])
def test_idle_subscriptions_of_a_reader_over_its_high_water_mark_do_not_read_the_log(
    topic: str,
) -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0", a="")
    for number in range(2, 100):
        reader.subscribe(str(number), bm="0", a="", t=topic)
    reader.stalled = True
    for number in (1, 2, 3):
        world.engine.over_high_water(reader.number)
        publisher.publish(number, b"%d" % number)
    reader.stalled = False
    world.apply(world.engine.pump(reader.number, world.now))
    assert shape(reader.take()) == ["1", "2", "3"]
    assert not world.engine.has_backlog(reader.number)
    publisher.publish(4, b"4")
    publisher.publish(5, b"5", t="quiet")
    world.replay_backlog(reader)
    assert shape(reader.take()) == ["4"] + ["5"] * 98
    publisher.publish(6, b"6", t="quiet")
    (message,) = reader.take()  # they are live again, and share it
    assert len(message.sub_ids) == 98


@pytest.mark.row("OP4", "CC23")
def test_a_pause_holds_messages_back_and_resume_brings_them() -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="0", a="")
    reader.send(c="subscribe", cid="7", sub_id="1", opts="pause", a="processed")
    publisher.publish(1, b"1")
    assert shape(reader.take()) == ["processed@[]"]
    reader.send(c="subscribe", cid="8", sub_id="1", opts="resume", a="processed")
    assert shape(reader.take()) == ["processed@[]", "1"]


@pytest.mark.row("OP4", "CC23")
def test_a_subscription_may_begin_paused() -> None:
    world = filled(2)
    reader = world.client("reader")
    reader.subscribe(bm="0", opts="pause", a="")
    assert reader.take() == []
    reader.send(c="subscribe", sub_id="1", opts="resume")
    assert shape(reader.take()) == ["1", "2"]


@pytest.mark.row("OP4", "CC23")
@pytest.mark.parametrize("bookmark", ["0", "0|1|"])
def test_one_that_begins_paused_at_the_end_of_the_log_is_paused_too(bookmark: str) -> None:
    world = World()
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm=bookmark, opts="pause", a="")
    publisher.publish(1, b"1")
    assert reader.take() == []
    reader.send(c="subscribe", sub_id="1", t="orders", opts="resume")
    publisher.publish(2, b"2")
    assert shape(reader.take()) == ["1", "2"]


@pytest.mark.row("RB8")
@pytest.mark.parametrize(
    ("bookmark", "wanted"),
    [
        ("[{2}:{4}]", ["2", "3", "4"]),
        ("({2}:{4})", ["3"]),
        ("(0:{2}]", ["1", "2"]),
        ("[{3}:0|1|)", ["3", "4", "5"]),
        ("[{3}:{2}]", []),
        ("[{4}:{1},{5}]", ["4", "5"]),
    ],
)
def test_a_range_ends_with_completed_and_nothing_follows(bookmark: str, wanted: list[str]) -> None:
    world = filled(5)
    for number in range(1, 6):
        bookmark = bookmark.replace(f"{{{number}}}", f"{PUBBER}|{number}|")
    reader = world.client("reader")
    reader.subscribe(bm=bookmark, a="completed")
    world.client("pubber").publish(6, b"6")
    *messages, completed = shape(reader.take())
    assert messages == wanted
    assert completed.startswith("completed")


@pytest.mark.row("RB8")
@pytest.mark.parametrize(
    ("brackets", "wanted"), [("[]", "1234"), ("[)", "12"), ("(]", "34"), ("()", "")]
)
def test_the_ends_of_a_range_of_times_are_in_it_or_not(brackets: str, wanted: str) -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in (1, 3):  # two in one batch have the same time
        world.advance(1)
        frames = [
            encode_frame({"c": "p", "t": "orders", "s": each}, b"%d" % each)
            for each in (number, number + 1)
        ]
        publisher.send_all(frames)
    reader.subscribe("all", bm="0", opts="timestamp", a="")
    times = [message.timestamp for message in reader.take()]
    assert len(set(times)) == 2
    reader.subscribe("r", bm=f"{brackets[0]}{times[0]}:{times[2]}{brackets[1]}", a="")
    assert shape(reader.take()) == [*wanted]


@pytest.mark.row("RB8")
def test_a_range_into_the_future_waits_and_ends_by_the_clock() -> None:
    world = filled(1)
    reader, publisher = world.client("reader"), world.client("pubber")
    reader.subscribe(bm="[0:20231114T221510)", a="completed")
    world.advance(5)
    publisher.publish(2, b"2")
    assert shape(reader.take()) == ["1", "2"]
    world.advance(5)
    assert shape(reader.take()) == ["completed@['2']"]
    publisher.publish(3, b"3")
    assert reader.take() == []


@pytest.mark.row("RB8")
@pytest.mark.parametrize("refused", [0, 3])
@pytest.mark.parametrize("end", ["0|1|]", "0]", "20231114T221510]"])
def test_a_range_that_begins_at_now_ends_where_there_is_no_message(end: str, refused: int) -> None:
    world = World(log_topics=(LogTopic("^orders"),))
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in range(refused):  # noted in the log, but no messages
        publisher.publish(number + 1, t="elsewhere")
    reader.subscribe(bm=f"[0|1|:{end}", a="completed")
    world.advance(20)
    assert [each.bookmark for each in reader.take()] == ["0"]


@pytest.mark.row("RB8", "CC23")
def test_a_paused_range_ends_by_the_clock_where_no_message_follows() -> None:
    world = World(log_topics=(LogTopic("^orders"),))
    publisher, reader = world.client("pubber"), world.client("reader")
    publisher.publish(1, b"1")
    reader.subscribe(bm="(0|1|:20231114T221510]", opts="pause", a="completed")
    publisher.publish(2, t="elsewhere")
    world.advance(20)
    assert shape(reader.take()) == ["completed@['1']"]


def test_the_tick_at_the_end_of_a_range_comes_once_however_its_seconds_are_rounded() -> None:
    world = filled(1)
    reader = world.client("reader")
    first = 128_000_000
    rounded = [us for us in range(first, first + 50) if int(us / 1e6 * 1e6) < us]
    assert rounded
    for number, us in enumerate(rounded):
        end = f"20231114T2215{(us - 1) / 1e6 - 100:09.6f}"
        reader.subscribe(str(number), bm=f"[0:{end}]", a="completed")
    while (due := world.engine.next_due) < 200.0:
        world.now = due
        world.apply(world.engine.tick(due))
        assert world.engine.next_due > due
    assert sum(each.ack_type == "completed" for each in reader.take()) == len(rounded)


@pytest.mark.row("RB8")
@pytest.mark.parametrize("opts", ["", "rate=1000"])
def test_a_range_ends_at_the_first_message_behind_its_time(opts: str) -> None:
    world = filled(1)
    reader, publisher = world.client("reader"), world.client("pubber")
    world.advance(30)
    for number in (2, 3, 4):
        publisher.publish(number, b"%d" % number)
    reader.subscribe(bm="[0:20231114T221510]", opts=opts, a="completed")
    assert shape(reader.take()) == ["1", "completed@['1']"]


def test_top_n_limits_what_a_bookmark_subscription_gets() -> None:
    world = filled(5)
    reader = world.client("reader")
    reader.subscribe(bm="0", top_n=2, a="completed")
    assert shape(reader.take()) == ["1", "2", "completed@['2']"]
    reader.subscribe("2", bm="0", opts="top_n=7", a="completed")
    assert shape(reader.take()) == ["1", "2", "3", "4", "5", "completed@['5']"]
    publisher = world.client("pubber")
    for number in (6, 7, 8):
        publisher.publish(number, b"%d" % number)
    assert shape(reader.take()) == ["6", "7"]


@pytest.mark.row("RB12")
def test_nothing_of_a_replay_is_left_when_its_connection_has_gone() -> None:
    before = alive()
    world = filled(3)
    for stalled in (True, False):
        reader = world.client("reader")
        reader.send(c="heartbeat", opts="start,60")
        reader.subscribe("live", bm="0")
        reader.subscribe("paused", bm="0", opts="pause")
        reader.subscribe("durable", bm="0", opts="fully_durable")
        reader.subscribe("range", bm="[0:20991231T000000]")
        reader.subscribe("over", bm="[0:0|1|]")
        reader.stalled = stalled
        reader.subscribe("replaying", bm="0")
        world.engine.over_high_water(reader.number)
        assert alive() - before >= 6
        reader.close()
        assert alive() == before
        world.advance(5.0)
        assert world.engine.next_due == math.inf or alive() == before


@pytest.mark.row("RB13")
def test_a_connection_with_many_subscriptions_is_fed_a_little_at_a_time() -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in range(1, 11):
        publisher.publish(number, b"%06d" % number * 10_000, a="")
    reader.stalled = True
    for number in range(20):
        reader.subscribe(str(number), bm="0", a="")
    sizes: list[int] = []
    while world.engine.has_backlog(reader.number):
        effects = world.engine.pump(reader.number, world.now)
        sizes.append(sum(len(data) for _, data in effects.sends))
        world.apply(effects)
    assert max(sizes) < FEED_BYTES + 2 * CHUNK_BYTES
    received = reader.take()
    for number in range(20):
        of_one = [each.data[:6] for each in received if str(number) in each.sub_ids]
        assert of_one == [b"%06d" % each for each in range(1, 11)]
    first = [each.sids for each in received[: len(received) // 10]]
    assert len(set(first)) >= 10, "each gets its turn"


class _Scanned(dict[int, BookmarkSubscription]):
    """Counts how often its first keys are looked for, which passes all that were removed."""

    scans = 0

    @override
    def __iter__(self) -> Iterator[int]:
        self.scans += 1
        return super().__iter__()

    @override
    def values(self) -> dict_values[int, BookmarkSubscription]:
        self.scans += 1
        return super().values()


def test_a_turn_looks_once_for_those_whose_turn_it_is_however_many_wait() -> None:
    settings, journal, clock = EngineSettings(), MemoryJournal(), Clock(0.0, 0)
    log = LogWriter(journal, KnownPublishers("", started_s=0), now_us=0)
    routes, durability = Routes(settings, journal), Durability()
    outbox = Outbox(durability)
    conflation = Conflation(settings, routes, clock, outbox)
    acks = PersistedAcks(log, durability, clock, outbox)
    replay = Replay(log, routes, durability, clock, outbox, conflation, acks)
    connection = Connection(1, peer="", now=0.0)
    selection = Selection(TopicMatcher("orders"))
    for number in range(1, 2001):
        item = BookmarkSubscription(connection, str(number), number=number, selection=selection)
        item.paused = True
        replay.enter(item, Span(1))
        replay.set_paused(item, paused=False)
    backlog = connection.backlog = _Scanned(connection.backlog)
    turns = 0
    while backlog:
        replay.pump(connection)
        turns += 1
    assert backlog.scans == turns < 10
    assert len(connection.live_replays) == 2000


AT_THE_END: dict[str, dict[str, str | int]] = {
    "live": {"bm": "0", "a": ""},
    "fully durable": {"bm": "0", "a": "", "opts": "fully_durable"},
    "with acks": {"bm": "0", "opts": "fully_durable"},
    "limited in number": {"bm": "0", "top_n": 3},
    "limited in time": {"bm": "[0:20990101T000000Z]"},
    "a pattern": {"bm": "0", "top_n": 3, "t": "^quiet"},
}


def calls_of_a_publish(subscriptions: int, fields: dict[str, str | int]) -> int:
    """The Python and C calls of a batch of one publish beside idle bookmark subscriptions."""
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    for number in range(subscriptions):
        reader.subscribe(str(number), **{"t": f"quiet-{number}", **fields})
    publisher.publish(1)
    publisher.publish(2)
    messages = decode(encode_frame({"c": "p", "t": "orders", "s": 3, "a": "persisted"}))
    with counted_calls() as receiving:
        effects = world.engine.received(publisher.number, messages, world.now)
    assert effects.with_backlog == []
    return receiving.count


@pytest.mark.parametrize("fields", AT_THE_END.values(), ids=AT_THE_END)
def test_a_publish_costs_the_same_beside_any_number_of_subscriptions_to_other_topics(
    fields: dict[str, str | int],
) -> None:
    assert calls_of_a_publish(300, fields) == calls_of_a_publish(10, fields)


@pytest.mark.parametrize("fields", AT_THE_END.values(), ids=AT_THE_END)
def test_a_subscription_that_has_waited_at_the_end_gets_the_next_message(
    fields: dict[str, str | int],
) -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    publisher.publish(1, b"1", t="quiet")
    reader.subscribe(**{"t": "quiet", **fields})
    for sequence in range(2, 1500):
        publisher.publish(sequence, t="orders")
    publisher.publish(1500, b"2", t="quiet")
    publisher.publish(1501, t="orders")
    publisher.publish(1502, b"3", t="quiet")
    assert reader.bodies() == [b"1", b"2", b"3"]


def test_a_waiting_subscription_is_acknowledged_what_others_publish_and_ends_in_time() -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    until = Timestamp(START_US + int((world.now + 10) * 1e6))
    reader.subscribe("range", bm=f"[0:{until}]")
    reader.subscribe("durable", bm="0", opts="fully_durable")
    reader.take()
    publisher.publish(1, t="elsewhere")
    world.advance(1)
    acked = [(ack.sub_id, ack.ack_type, ack.bookmark) for ack in reader.acks()]
    last = f"{publisher_id('pubber')}|1|"
    assert acked == [("range", "persisted", last), ("durable", "persisted", last)]
    world.advance(10)
    (ack,) = reader.acks()
    assert (ack.sub_id, ack.ack_type, ack.bookmark) == ("range", "completed", last)


def test_a_replaced_selection_of_a_waiting_subscription_holds_from_there_on() -> None:
    world = World()
    publisher, reader = world.client("pubber"), world.client("reader")
    reader.subscribe(bm="0", opts="fully_durable", a="")
    publisher.publish(1, b"1", t="elsewhere")
    reader.subscribe(t="elsewhere", opts="replace", a="")
    publisher.publish(2, b"2")
    publisher.publish(3, b"3", t="elsewhere")
    assert reader.bodies() == [b"3"]


@pytest.mark.parametrize("options", ["pause", "pause,fully_durable"])
def test_one_that_begins_paused_at_the_end_of_the_log_is_complete_when_it_is_resumed(
    options: str,
) -> None:
    world = filled()
    reader = world.client("reader")
    reader.subscribe(bm="0|1|", opts=options, a="completed")
    assert reader.acks() == []
    reader.subscribe(opts="resume", a="")
    assert [ack.ack_type for ack in reader.acks()] == ["completed"]


def test_a_durable_subscription_to_what_is_new_gets_nothing_that_was_there_before() -> None:
    destination = ReplicateTo("tcp://elsewhere:1")
    world = World(replicate_to=(destination,))
    publisher, reader = world.client("pubber"), world.client("reader")
    publisher.publish(1, b"1")
    reader.subscribe(bm="0|1|", opts="fully_durable")
    publisher.publish(2, b"2")
    world.advance(1)
    assert [ack.ack_type for ack in reader.take()] == ["processed", "completed"]
    world.apply(world.engine.downgrade(destination.address, world.now))
    assert reader.bodies() == [b"2"]


def test_a_durable_subscription_waits_for_its_own_records_only() -> None:
    destination = ReplicateTo("tcp://elsewhere:1")
    world = World(replicate_to=(destination,))
    publisher, reader = world.client("pubber"), world.client("reader")
    reader.subscribe("early", bm="0", opts="fully_durable", a="completed")
    publisher.publish(1, b"1", t="elsewhere")
    publisher.publish(2, b"2")
    publisher.publish(3, b"3", t="elsewhere")
    reader.subscribe("late", bm="0", opts="fully_durable", a="completed")
    assert [ack.sub_id for ack in reader.take()] == ["early"]
    world.apply(world.engine.downgrade(destination.address, world.now))
    found = [(each.kind, each.sub_id or each.sids, each.data) for each in reader.take()]
    assert sorted(found) == [("ack", "late", b""), ("p", "early", b"2"), ("p", "late", b"2")]


@pytest.mark.row("TL1", "ID1")
def test_a_replay_after_a_restart_is_the_same_as_before() -> None:
    world = filled(4)
    before = world.client("reader")
    before.subscribe(bm="0", a="completed")
    wanted = before.take_bytes()
    world.restart()
    after = world.client("reader")
    after.subscribe(bm="0", a="completed")
    assert after.take_bytes() == wanted


KINDS: list[dict[str, str | int]] = [
    {},
    {"opts": "fully_durable"},
    {"top_n": 1000},
    {"t": "^ord", "opts": "fully_durable"},
    {"bm": "[0:20990101T000000Z]"},
]


@pytest.mark.row("TL4", "RB9")
@settings(max_examples=length(60))
@given(st.data())
def test_all_subscribers_see_one_order_however_late_or_slow_they_are(data: st.DataObject) -> None:
    world = World()
    publishers = [world.client(f"p{number}") for number in range(3)]
    sequences, published = [0, 0, 0], 0
    readers: list[Peer] = []
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["publish", "publish", "subscribe", "stall", "congest"])):
            case "publish":
                who = data.draw(st.integers(0, 2))
                frames = []
                for _ in range(data.draw(st.integers(1, 3))):
                    sequences[who] += 1
                    body = b"%d:%d" % (who, sequences[who])
                    topic = data.draw(st.sampled_from(["orders", "elsewhere"]))
                    head: dict[str, str | int] = {"c": "p", "t": topic, "s": sequences[who]}
                    published += topic == "orders"
                    frames.append(encode_frame(head, body))
                publishers[who].send_all(frames)
            case "subscribe":
                reader = world.client(f"r{len(readers)}")
                kind: dict[str, str | int] = data.draw(st.sampled_from(KINDS))
                reader.subscribe(**{"bm": "0", "a": "", **kind})
                readers.append(reader)
            case "stall" if readers:
                reader = data.draw(st.sampled_from(readers))
                reader.stalled = not reader.stalled
                world.replay_backlog(reader)
            case _ if readers:
                world.engine.over_high_water(data.draw(st.sampled_from(readers)).number)
            case _:
                pass
    witness = world.client("witness")
    witness.subscribe(bm="0", a="")
    history = witness.bodies()
    assert len(history) == published
    for reader in readers:
        reader.stalled = False
        world.replay_backlog(reader)
        assert reader.bodies() == history


A, B = publisher_id("A"), publisher_id("B")


@pytest.fixture
def world() -> World:
    """A1 B1 A2 B2, ten seconds apart."""
    world = World()
    a, b = world.client("A"), world.client("B")
    for number in (1, 2):
        for name, peer in (("A", a), ("B", b)):
            peer.publish(number, f"{name}{number}".encode())
            world.advance(10)
    return world


def replayed(world: World, bookmark: str, **fields: str) -> list[str]:
    reader = world.client("reader")
    reader.subscribe(bm=bookmark, a="processed", **fields)
    ack, *messages = reader.take()
    assert ack.status == "success", ack
    return [message.data.decode() for message in messages]


def refusal(reader: Peer, bookmark: str, **fields: str) -> str:
    reader.subscribe(bm=bookmark, **fields)
    (ack,) = reader.take()
    assert ack.status == "failure"
    return ack.reason


def at(seconds: float) -> str:
    return str(Timestamp(START_US + int((100 + seconds) * 1e6)))


ROUGH_CHUNK_BYTES = 400


@pytest.mark.row("RB8", "RB11")
@settings(max_examples=length(60))
@given(data=st.data())
def test_a_replay_is_the_same_whether_or_not_each_record_is_looked_at(data: st.DataObject) -> None:
    world = World(sow_topics=(SowTopic("keyed", keys=("/id",)),))
    peers = {name: world.client(name) for name in ("A", "B")}
    bookmarks = ["0", "0|1|"]
    for number in range(1, data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from(["A", "B"]))
        topic = data.draw(st.sampled_from(["orders", "keyed", "elsewhere"]))
        more: dict[str, str | int] = data.draw(st.sampled_from([{}, {"x": "é7"}, {"e": 60}]))
        body = b'{"id":%d}' % data.draw(st.integers(1, 3))
        if data.draw(st.integers(0, 5)):
            peers[name].publish(number, body, t=topic, **more)
        else:
            peers[name].send(body, c="sow_delete", cid="1", t="keyed", filter="/id = 1", s=number)
        bookmarks += [f"{publisher_id(name)}|{number}|", at(world.now - 100)]
        world.advance(data.draw(st.sampled_from([0, 0.25, 3])))
    begin, end = (data.draw(st.sampled_from(bookmarks)) for _ in range(2))
    bookmark: str = data.draw(st.sampled_from(["0", begin, f"[{begin}:{end}]", f"({begin}:{end})"]))
    options = data.draw(st.sampled_from(["", "timestamp", "no_sowkey", "timestamp,no_sowkey"]))
    wanted = {
        "bm": bookmark,
        "t": data.draw(st.sampled_from(["orders", "keyed", "^(orders|keyed)"])),
    }
    readers = [world.client(name) for name in ("quick", "careful")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("haclient_fake_server.engine.replay.CHUNK_BYTES", ROUGH_CHUNK_BYTES)
        for reader, filter_ in zip(readers, ("", "1 = 1"), strict=True):  # a filter needs care
            reader.subscribe(**wanted, opts=options, filter=filter_)
    world.advance(1)
    quick, careful = (reader.take_bytes() for reader in readers)
    assert quick == careful


@pytest.mark.row("RB3")
def test_epoch_is_the_start_of_the_log(world: World) -> None:
    assert replayed(world, "0") == ["A1", "B1", "A2", "B2"]


@pytest.mark.row("RB4")
def test_now_replays_nothing(world: World) -> None:
    assert replayed(world, "0|1|") == []


@pytest.mark.row("RB1")
def test_a_bookmark_starts_right_after_its_message(world: World) -> None:
    assert replayed(world, f"{A}|1|") == ["B1", "A2", "B2"]
    assert replayed(world, f"{B}|2|") == []


@pytest.mark.row("RB5")
def test_a_list_starts_after_the_earliest_that_is_found(world: World) -> None:
    assert replayed(world, f"{A}|2|,{B}|1|") == ["A2", "B2"]
    assert replayed(world, f"{A}|99|,{B}|1|,5|5|") == ["A2", "B2"]


@pytest.mark.row("RB5")
def test_a_list_may_hold_a_timestamp(world: World) -> None:
    assert replayed(world, f"{A}|2|,{at(10)}") == ["B1", "A2", "B2"]


@pytest.mark.row("RB6", "TL17")
@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (-1000, ["A1", "B1", "A2", "B2"]),
        (0, ["A1", "B1", "A2", "B2"]),
        (0.000001, ["B1", "A2", "B2"]),
        (20, ["A2", "B2"]),
        (30.5, []),
    ],
)
def test_a_timestamp_starts_with_what_came_after(
    world: World, seconds: float, wanted: list[str]
) -> None:
    assert replayed(world, at(seconds)) == wanted


@pytest.mark.row("RB7", "X6")
def test_an_unknown_bookmark_is_now(world: World) -> None:
    assert replayed(world, f"{A}|99|") == []
    assert replayed(world, f"{A}|99|", opts="bookmark_not_found=now") == []


@pytest.mark.row("RB7", "X6")
def test_an_unknown_bookmark_may_be_epoch_or_a_failure(world: World) -> None:
    assert len(replayed(world, f"{A}|99|", opts="bookmark_not_found=epoch")) == 4
    reason = refusal(world.client("reader"), f"{A}|99|", opts="bookmark_not_found=fail")
    assert reason == "bookmark not found"
    assert f"{A}|99|" in world.events[-1]


@pytest.mark.row("RB7")
def test_a_known_bookmark_is_found_whatever_not_found_says(world: World) -> None:
    assert replayed(world, f"{A}|2|", opts="bookmark_not_found=epoch") == ["B2"]


@pytest.mark.row("RB2")
def test_a_topic_that_is_not_logged_is_refused() -> None:
    reader = World(log_topics=()).client("reader")
    assert refusal(reader, "0") == "invalid topic"
    assert refusal(reader, "0", t="or.*") == "invalid topic"


@pytest.mark.row("OP17")
@pytest.mark.parametrize("bookmark", ["recent", "yesterday", "1|2|3:4", "[0:", "20231301T000000"])
def test_an_unknown_bookmark_word_is_refused_by_name(world: World, bookmark: str) -> None:
    reason = refusal(world.client("reader"), bookmark)
    assert reason == "invalid bookmark"
    assert bookmark in world.events[-1]


@pytest.mark.row("RB8")
def test_a_range_whose_end_is_unknown_is_refused(world: World) -> None:
    reason = refusal(world.client("reader"), f"[0:{A}|99|]")
    assert reason == "bookmark not found"


@pytest.mark.row("RB8")
def test_an_inclusive_now_gives_the_last_message(world: World) -> None:
    assert replayed(world, "[0|1|:20990101T000000]") == ["B2"]


@pytest.mark.row("RB8")
def test_an_inclusive_now_gives_the_last_message_also_when_a_refusal_follows(world: World) -> None:
    world.client("B").publish(100, t="")
    assert replayed(world, "[0|1|:20990101T000000]") == ["B2"]
    world.restart()
    assert replayed(world, "[0|1|:20990101T000000]") == ["B2"]


@pytest.mark.row("RB10", "RB16")
@pytest.mark.parametrize("options", ["", "fully_durable"])
@pytest.mark.parametrize("fields", [{}, {"filter": "/id IS NULL"}], ids=["all", "filtered"])
def test_a_refusal_in_the_log_is_no_message_to_anybody(
    options: str, fields: dict[str, str]
) -> None:
    world = World(ack_interval_s=0.0)
    publisher = world.client("pubber")
    for number in range(1, 7):
        publisher.publish(number, b"%d" % number, t="" if number in {1, 3, 5, 6} else "orders")
    reader = world.client("reader")
    for sub_id, bookmark in (("epoch", "0"), ("4", f"{PUBBER}|4|"), ("now", "0|1|")):
        reader.subscribe(sub_id, bm=bookmark, a="completed,persisted", opts=options, **fields)
    world.advance(0.0)
    taken = reader.take()
    assert [each.data for each in taken if each.kind == "p"] == [b"2", b"4"]
    acks = [(each.sub_id, each.ack_type, each.bookmark) for each in taken if each.kind == "ack"]
    wanted = {(s, "completed", f"{PUBBER}|4|") for s in ("epoch", "4", "now")}
    assert set(acks) == wanted | {(s, "persisted", bookmark) for s, _, bookmark in wanted}
    assert len(acks) == 6
    publisher.publish(7, t="")
    publisher.publish(8, b"8")
    delivered = [
        (sub_id, each.data)
        for each in reader.take()
        if each.kind == "p"
        for sub_id in each.sids.split(",")
    ]
    assert sorted(delivered) == [("4", b"8"), ("epoch", b"8"), ("now", b"8")]


@pytest.mark.row("RB8")
def test_a_range_that_ends_at_epoch_is_empty(world: World) -> None:
    assert replayed(world, "[0:0]") == []


def test_a_bookmark_of_the_very_same_batch_is_found(world: World) -> None:
    peer = world.client("C")
    peer.send_all(
        [
            encode_frame({"c": "p", "t": "orders", "s": 1}, b"C1"),
            encode_frame({"c": "p", "t": "orders", "s": 2}, b"C2"),
            encode_frame(
                {"c": "subscribe", "t": "orders", "cid": "1", "bm": f"{publisher_id('C')}|1|"}
            ),
            encode_frame(
                {"c": "subscribe", "t": "orders", "cid": "2", "bm": f"{publisher_id('C')}|9|"}
            ),
        ]
    )
    assert [(m.sids, m.data) for m in peer.take()] == [("1", b"C2")]


def test_an_empty_list_means_the_start(world: World) -> None:
    assert len(replayed(world, "0")) == 4


def remove_from_queue(world: World, count: int = 1) -> None:
    """Append a block with nothing but removals from a queue."""
    position, now_us = world.engine.next_position, START_US
    data = encode_removals(b"work", b"json", [(PUBBER, 1, 1)], now_us=now_us) * count
    world.journal.append(Block(data, count, position, position, now_us, now_us))


@pytest.mark.row("QB31")
@pytest.mark.parametrize("options", [{}, {"filter": "/id > 0"}, {"opts": "fully_durable"}])
def test_a_replay_passes_over_removals_from_queues(options: dict[str, str]) -> None:
    world = World()
    publisher = world.client("pubber")
    for number in (1, 2, 3):
        publisher.publish(number, b'{"id": %d}' % number)
        remove_from_queue(world, number)
    many = 2 * CHUNK_BYTES // 69  # more than is read at a time
    remove_from_queue(world, many)
    publisher.publish(4, b'{"id": 4}')
    remove_from_queue(world, many)
    reader = world.client("reader")
    reader.subscribe(bm="0", **options)
    found = reader.take()
    assert [m.data for m in found if m.kind == "p"] == [b'{"id": %d}' % n for n in (1, 2, 3, 4)]
    assert [m.bookmark for m in found if m.ack_type == "completed"] == [f"{PUBBER}|4|"]
    publisher.publish(5, b'{"id": 5}')
    assert reader.bodies() == [b'{"id": 5}']


@pytest.mark.parametrize("acks", ["", "completed"])
def test_a_record_without_a_length_ends_its_reader_and_not_the_broker(acks: str) -> None:
    world = World()
    world.client("p").publish(1)
    assert isinstance(world.journal, MemoryJournal)
    data = world.journal._data  # damage that no file shows
    at = data.index(b"{}", len(data) - 2) - RECORD_HEADER_BYTES
    data[at : at + 4] = bytes(4)
    reader = world.client("reader")
    reader.subscribe(bm="0", a=acks)
    assert reader.closed
    assert "JournalFormatError" in world.events[-1]
    assert world.client("other").closed == ""
