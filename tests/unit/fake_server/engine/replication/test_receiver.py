"""The receiving side of replication."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.protocol.codec import encode_frame
from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine import publishers
from haclient_fake_server.engine.journal import MemoryJournal, records_of
from haclient_fake_server.engine.log_writer import NO_EXTRAS, LogWriter
from haclient_fake_server.engine.publishers import KnownPublisher, KnownPublishers
from haclient_fake_server.engine.replication import receiver, wire
from haclient_fake_server.engine.replication.receiver import Holdings
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.engine.settings import Entitlement, LogTopic, SowTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import (
    Record,
    RecordCommand,
    RecordFlag,
    encode_record,
    encode_removals,
)
from support.engine import Peer, World
from support.recording import RecordingDisk
from support.replicas import Group

TOPIC = encode_record(Record(0, 0, 0, 0, 9, RecordCommand.TOPIC, key=b"json", payload=b"orders"))


def record(sequence: int, payload: bytes = b"{}", *, command: int = RecordCommand.PUBLISH) -> bytes:
    return encode_record(Record(1, 77, sequence, 5, 9, command, payload=payload))


def source(world: World, name: str = "east") -> Peer:
    peer = world.connect()
    peer.send_all([wire.logon(name, user="", password="", beat_interval_s=5.0)])
    (answer,) = peer.take()
    assert answer.status == "success", answer
    return peer


def log(world: World) -> list[Record]:
    chunk, _ = world.journal.read(world.journal.seek(1), 2**20)
    return [each for each in records_of(chunk) if each.position]


@pytest.mark.row("RE1", "RE2")
def test_a_record_keeps_its_bookmark_and_gets_a_place_and_a_time_of_its_own() -> None:
    world = World()
    reader = world.client("reader")
    reader.subscribe(bm="0|1|", opts="timestamp", a="")
    peer = source(world)
    flags = RecordFlag.ASSIGNED | RecordFlag.USER_KEY
    sent = Record(
        1, 77, 5, 5, 9, flags=flags, key=b"k", correlation_id=b"x", expiration_s=9, payload=b"body"
    )
    peer.send_all([wire.records([TOPIC, encode_record(sent)], 41)])
    (ack,) = peer.take()
    assert (ack.ack_type, ack.sequence) == ("replicated", 41)
    (message,) = reader.take()
    assert (message.bookmark, message.data) == ("77|5|", b"body")
    assert (message.sow_key, message.correlation_id) == ("k", "x")
    assert message.timestamp.startswith("202311")
    (found,) = log(world)
    assert (found.position, found.publisher_id, found.sequence) == (1, 77, 5)
    assert found.timestamp_us > 10**15
    assert found.flags == RecordFlag.REPLICATED | RecordFlag.USER_KEY
    assert (found.key, found.correlation_id, found.expiration_s) == (b"k", b"x", 9)


@pytest.mark.row("RE2", "ID2")
def test_duplicates_are_dropped_and_acknowledged() -> None:
    world = World()
    peer = source(world)
    peer.send_all([wire.records([TOPIC, record(5), record(4), record(6)], 3)])
    peer.send_all([wire.records([record(6), record(7)], 5)])
    assert [ack.sequence for ack in peer.take()] == [3, 5]
    assert [each.sequence for each in log(world)] == [5, 6, 7]


@pytest.mark.row("RE7")
def test_what_came_together_is_acknowledged_once() -> None:
    world = World()
    peer = source(world)
    peer.send_all([wire.records([TOPIC, record(1)], 1), wire.records([record(2)], 2)])
    (ack,) = peer.take()
    assert ack.sequence == 2


@pytest.mark.row("RE7")
def test_what_came_within_an_interval_is_acknowledged_once_at_its_end() -> None:
    world = World(replication_ack_interval_s=0.5)
    peer, other = source(world), source(world, "west")
    peer.send_all([wire.records([TOPIC, record(1)], 1)])
    other.send_all([wire.records([TOPIC, record(1)], 7)])
    world.advance(0.4)
    peer.send_all([wire.records([record(2)], 2)])
    assert (peer.take(), other.take()) == ([], [])
    world.advance(0.1)
    assert [ack.sequence for ack in (*peer.take(), *other.take())] == [2, 7]
    peer.send_all([wire.records([record(3)], 3)])
    peer.close()
    world.advance(0.5)
    assert [each.sequence for each in log(world)] == [1, 2, 3]


@pytest.mark.row("RE2", "TL15")
def test_the_state_of_the_world_follows() -> None:
    group = Group(
        {"a": ("b",), "b": ()},
        sow_topics=(SowTopic("orders", ("/id",)), SowTopic("more", ("/id",))),
    )
    group.settle()
    watcher = group["b"].client("watcher")
    watcher.send(c="sow_and_subscribe", cid="1", t="orders", opts="oof", filter="/x = 1")
    watcher.take()
    publisher = group["a"].client("p")
    publisher.publish(1, b'{"id":1,"x":1}')
    publisher.publish(2, b'{"id":2,"x":1}')
    publisher.publish(3, b'{"id":1,"x":2}')
    publisher.publish(4, b'{"id":9}', t="more")
    group.settle()
    assert [(each.kind, each.reason) for each in watcher.take()] == [
        ("p", ""),
        ("p", ""),
        ("oof", "match"),
    ]
    publisher.send(c="sow_delete", t=".*", filter="/id > 1", s=5, a="persisted")
    group.settle()
    assert [(each.kind, each.reason) for each in watcher.take()] == [("oof", "deleted")]
    assert len([each for each in group.log("b") if each.sequence == 5]) == 2
    group.restart("b")
    group.settle()
    reader = group["b"].client("reader")
    reader.send(c="sow", cid="1", t=".*")
    assert [each.data for each in reader.take() if each.kind == "sow"] == [b'{"id":1,"x":2}']


def test_a_topic_may_have_a_state_on_one_side_only() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    peer = source(world)
    peer.send_all([wire.records([TOPIC, record(1, b'{"id":1}'), record(2, b"no json")], 2)])
    assert [ack.sequence for ack in peer.take()] == [2]
    reader = world.client("reader")
    reader.send(c="sow", cid="1", t="orders")
    assert [each.data for each in reader.take() if each.kind == "sow"] == [b'{"id":1}']
    other = World()
    peer = source(other)
    peer.send_all([wire.records([TOPIC, record(1, command=RecordCommand.SOW_DELETE)], 1)])
    assert [ack.sequence for ack in peer.take()] == [1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"client_name": ""}, "two instances of one name"),
        ({"client_name": "broker"}, "two instances of one name"),
        ({"version": "9"}, "replication version '9', this is 2"),
        ({"user_id": "me", "pw": "wrong"}, "auth failure"),
        ({"opts": "start,never"}, "invalid options"),
    ],
)
def test_a_sender_that_cannot_be_right_is_refused(fields: dict[str, str], reason: str) -> None:
    world = World(users={"me": "right"})
    peer = world.connect()
    words = {
        "client_name": "east",
        "version": wire.VERSION,
        "opts": "start,1",
        "user_id": "me",
        "pw": "right",
    }
    peer.send(c=wire.LOGON, **{**words, **fields})
    assert reason in peer.take()[-1].reason
    assert peer.closed.startswith("replication refused")


@pytest.mark.row("AD6", "RE1")
def test_replication_needs_an_entitlement_of_its_own() -> None:
    granted = (Entitlement("bob", "all", "."), Entitlement("east", "replicate", "^orders$"))
    world = World(users={"bob": "", "east": ""}, entitlements=granted)
    bob, east = world.connect(), world.connect()
    bob.send_all([wire.logon("forged", user="bob", password="", beat_interval_s=5.0)])
    assert bob.take()[-1].reason == "not entitled: the user may not replicate"
    assert bob.closed.startswith("replication refused")
    east.send_all([wire.logon("east", user="east", password="", beat_interval_s=5.0)])
    east.send_all([wire.records([TOPIC, record(1)], 1)])
    assert [ack.status for ack in east.take()] == ["success", "success"]
    topic = Record(0, 0, 0, 0, 8, RecordCommand.TOPIC, key=b"json", payload=b"payments")
    east.send_all([wire.records([encode_record(topic), record(2)], 2)])
    assert east.take()[-1].reason == "not entitled: the user may not replicate 'payments'"
    assert [each.sequence for each in log(world)] == [1]


def test_an_instance_without_a_log_takes_no_replication() -> None:
    peer = World(log_topics=()).connect()
    peer.send_all([wire.logon("east", user="", password="", beat_interval_s=1.0)])
    assert peer.take()[-1].reason.startswith("invalid topic")


def test_a_topic_that_is_not_logged_here_is_refused_loudly() -> None:
    world = World(log_topics=(LogTopic("^other"),))
    peer = source(world)
    peer.send_all([wire.records([TOPIC, record(1)], 1)])
    (answer,) = peer.take()
    assert (answer.status, peer.closed[:19]) == ("failure", "replication refused")
    assert "'orders' is not in the log of this instance" in answer.reason


@pytest.mark.parametrize("body", [b"\1" * 60, record(1), b"short"])
def test_malformed_records_end_the_connection(body: bytes) -> None:
    world = World()
    peer = source(world)
    peer.send_all([wire.records([body], 1)])
    assert "malformed records" in peer.take()[-1].reason
    assert peer.closed


def test_a_newer_connection_of_an_instance_replaces_the_older() -> None:
    world = World()
    older, newer = source(world), source(world)
    assert older.closed.startswith("replaced")
    newer.send_all([wire.records([TOPIC, record(1)], 1)])
    assert [ack.sequence for ack in newer.take()] == [1]
    newer.close()
    assert not source(world).closed


def test_neither_can_be_mistaken_for_the_other() -> None:
    world = World()
    client = world.client("c")
    client.send_all([wire.records([TOPIC, record(1)], 1)])
    assert client.closed == "unknown command"
    late = world.client("d")
    late.send_all([wire.logon("east", user="", password="", beat_interval_s=1.0)])
    assert late.take()[-1].reason == "duplicate logon attempt"
    peer = source(world)
    peer.send_all([encode_frame({"c": "p", "t": "orders", "s": 1}, b"{}")])
    assert peer.closed == "unknown command"
    stranger = world.connect()
    stranger.send_all([wire.records([TOPIC, record(1)], 1)])
    assert stranger.closed
    assert log(world) == []


@pytest.mark.row("RE2", "RE7")
def test_a_delete_over_several_topics_is_taken_whole_or_not_at_all() -> None:
    """Half of it would be a duplicate when the topic is logged at last, and be dropped."""
    world = World(log_topics=(LogTopic("^orders"),))
    more = encode_record(Record(0, 0, 0, 0, 8, RecordCommand.TOPIC, key=b"json", payload=b"more"))
    parts = [
        TOPIC,
        record(5, command=RecordCommand.SOW_DELETE),
        more,
        encode_record(Record(2, 77, 5, 5, 8, RecordCommand.SOW_DELETE)),
    ]
    peer = source(world)
    peer.send_all([wire.records(parts, 2)])
    assert "'more' is not in the log" in peer.take()[-1].reason
    assert log(world) == []
    world.settings = replace(world.settings, log_topics=(LogTopic(".*"),))
    world.restart()
    peer = source(world)
    peer.send_all([wire.records(parts, 2)])
    assert [ack.sequence for ack in peer.take()] == [2]
    assert [each.sequence for each in log(world)] == [5, 5]


def lacking(world: World, publisher: KnownPublisher, sequences: range) -> list[int]:
    found = Holdings(LogWriter(world.journal, KnownPublishers("", started_s=0), now_us=0))
    return [sequence for sequence in sequences if found.lacks(publisher, sequence)]


def test_a_publisher_remembers_the_runs_of_its_messages() -> None:
    publisher = KnownPublisher(1)
    for sequence in (5, 6, 7, 10, 10, 11, 20):
        if sequence != publisher.logged + 1:
            publisher.begin_run(sequence)
        publisher.logged = sequence
    assert [publisher.holds(sequence) for sequence in (4, 5, 7, 8, 10, 11, 12, 20, 21)] == [
        None,
        True,
        True,
        False,
        True,
        True,
        False,
        True,
        False,
    ]


def test_messages_from_1_on_are_remembered_without_a_look_at_the_journal() -> None:
    batch = LogWriter(MemoryJournal(), KnownPublishers("", started_s=0), now_us=0)
    route, publisher = Route("orders", "json", logged=True, sow=None), KnownPublisher(1)
    for sequence in (1, 2, 5):
        batch.append(route, publisher, sequence, body=b"{}", extras=NO_EXTRAS)
    assert [publisher.holds(sequence) for sequence in range(7)] == [
        None,
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_of_too_many_runs_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishers, "MAX_RUNS", 4)
    publisher = KnownPublisher(1)
    for sequence in range(2, 22, 2):
        publisher.begin_run(sequence)
        publisher.logged = sequence
    assert publisher.holds(2) is None
    assert [publisher.holds(sequence) for sequence in (16, 17, 18, 19, 20)] == [
        True,
        False,
        True,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("chunk_bytes", "max_cached"), [(1, 2**20), (256 * 1024, 2**20), (1, 0), (256 * 1024, 0)]
)
def test_after_a_restart_the_journal_is_looked_at(
    chunk_bytes: int, max_cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(receiver, "MAX_CACHED", max_cached)
    world = World()
    peer, other = world.client("p"), world.client("q")
    for sequence in (3, 4, 7, 8, 9, 12):
        peer.publish(sequence)
        other.publish(sequence)
    publisher = KnownPublisher(publisher_id("p"))
    publisher.seen = 12
    assert lacking(world, publisher, range(1, 13)) == [1, 2, 5, 6, 10, 11]


def test_only_what_may_have_been_removed_is_not_missed() -> None:
    """The removed segments had a later message of its publisher."""
    journal = JournalFiles(Path("/log"), RecordingDisk(), segment_bytes=4096, instance_id=1)
    world = World(journal=journal)
    early, late = world.client("early"), world.client("late")
    for sequence in range(2, 82, 2):
        early.publish(sequence, b"x" * 300)
    for sequence in range(2, 82, 2):
        early.publish(sequence + 80, b"x" * 300)
        late.publish(sequence, b"x" * 300)
    while journal.has_unsealed:
        journal.seal()
    journal.remove_files(journal.forget_oldest())
    removed = 2 * (journal.first_position - 1)
    assert 2 < removed < 80
    publisher = KnownPublisher(publisher_id("early"))
    assert lacking(world, publisher, range(1, 80)) == [*range(removed + 1, 80, 2)]
    publisher = KnownPublisher(publisher_id("late"))
    assert lacking(world, publisher, range(1, 80)) == [*range(1, 80, 2)]


class _CountingJournal(MemoryJournal):
    """Counts how often it is read."""

    reads = 0

    @override
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        self.reads += 1
        return super().read_bytes(number, count, offset)


def test_duplicates_of_publishers_who_are_far_apart_in_the_log_are_found_without_a_read_each() -> (
    None
):
    journal = _CountingJournal()
    batch = LogWriter(journal, KnownPublishers("", started_s=0), now_us=0)
    route = Route("orders", "json", logged=True, sow=None)
    numbers, sequences = range(1, 21), range(2, 152, 2)
    for number in numbers:
        publisher = KnownPublisher(number)
        for sequence in sequences:
            batch.append(route, publisher, sequence, body=bytes(5000), extras=NO_EXTRAS)
            block = batch.build()
            assert block is not None
            journal.append(block)
    holdings = Holdings(batch)
    restarted = [KnownPublisher(number) for number in numbers]
    for sequence in sequences:
        for publisher in restarted:
            assert not holdings.lacks(publisher, sequence)
            assert sequence == 150 or holdings.lacks(publisher, sequence + 1)
    assert journal.reads < 6 * len(numbers), "two for each stride of a log of 7.5 MB"


def test_removals_from_a_queue_that_is_not_here_are_skipped() -> None:
    world = World()
    peer = source(world)
    removal = encode_removals(b"work", b"json", [(77, 1, 1)], now_us=5)
    peer.send_all([wire.records([TOPIC, record(1), removal, record(2)], 2)])
    assert [ack.sequence for ack in peer.take()] == [2]
    assert [each.sequence for each in log(world)] == [1, 2]
