"""An engine that starts again from its journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from haclient.protocol.messages import Message
from haclient_fake_server.engine.journal import Block, MemoryJournal
from haclient_fake_server.engine.replication.durability import ReplicationProgress
from haclient_fake_server.engine.settings import QueueTopic, ReplicateTo, SowTopic
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import encode_removals
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreCorrupt
from support.engine import START_US, World
from support.replicas import Group


@pytest.mark.row("TL1", "ID1", "RB10")
def test_positions_bookmarks_and_the_logs_end_are_the_same() -> None:
    world = World()
    world.client("pubber").publish(3, t="caf\udce9")
    before = world.engine.next_position
    world.restart()
    assert world.engine.next_position == before
    reader = world.client("reader")
    reader.subscribe(bm="0|1|", a="completed")
    (completed,) = reader.take()
    assert completed.bookmark == "7094790850998930143|3|"


def test_topics_keep_their_numbers() -> None:
    world = World()
    for topic in ("a", "b"):
        world.client("pubber").publish(None, t=topic)
    world.restart()
    for topic in ("c", "b"):
        world.client("pubber").publish(None, t=topic)
    reader = world.client("reader")
    reader.subscribe(t="[abc]", bm="0", a="")
    assert [message.topic for message in reader.take()] == ["a", "b", "c", "b"]


@pytest.mark.row("TL17")
def test_time_never_falls_even_when_the_clock_does() -> None:
    world = World()
    world.now = 1000.0
    world.client("pubber").publish(1)
    world.now = 10.0
    world.restart()
    world.client("pubber").publish(2)
    reader = world.client("reader")
    reader.subscribe(bm="0", opts="timestamp", a="")
    first, second = reader.take()
    assert first.timestamp <= second.timestamp


@pytest.mark.row("TL15", "SW1")
def test_a_state_of_the_world_may_be_given_to_a_topic_afterwards() -> None:
    world = World()
    world.client("pubber").publish(1, b'{"id":1}')
    world.client("pubber").publish(2, b"no json")
    world.settings = type(world.settings)(sow_topics=(SowTopic("orders", ("/id",)),))
    world.restart()
    peer = world.client("pubber")
    peer.send(c="sow", cid="1", t="orders")
    (record,) = [message for message in peer.take() if message.kind == "sow"]
    assert record.data == b'{"id":1}'
    assert record.sow_key.isdigit()


@pytest.mark.row("ID2")
def test_an_empty_journal_is_a_fine_start() -> None:
    world = World()
    world.restart()
    assert world.engine.next_position == 1


@pytest.mark.row("SW3", "TL15")
def test_a_deleted_key_with_blanks_stays_deleted() -> None:
    group = Group({"a": ("b",), "b": ()}, sow_topics=(SowTopic("named"),))
    group.settle()
    peer = group["a"].client()
    for key in (" blank ", "other"):
        peer.send(c="p", t="named", k=key)
    peer.send(c="sow_delete", t="named", filter="1=1")
    group.settle()
    group.restart("a")
    for name in ("a", "b"):
        reader = group[name].client("reader")
        reader.send(c="sow", cid="1", t="named")
        assert [each.kind for each in reader.take()] == ["group_begin", "group_end"]


@pytest.mark.row("TL1", "RB10")
def test_a_log_that_ends_with_a_refusal_ends_with_the_message_before_it() -> None:
    world = World()
    peer = world.client("pubber")
    peer.publish(3)
    for sequence in (4, 5):
        peer.publish(sequence, t="")
    world.restart()
    reader = world.client("reader")
    reader.subscribe(bm="0|1|", a="completed")
    (completed,) = reader.take()
    assert completed.bookmark == "7094790850998930143|3|"


def test_a_log_with_nothing_but_refusals_has_no_last_message() -> None:
    world = World()
    world.client("pubber").publish(1, t="")
    world.restart()
    reader = world.client("reader")
    reader.subscribe(bm="0", a="completed")
    (completed,) = reader.take()
    assert completed.bookmark == "0"
    world.client("pubber").publish(2, b"2")
    assert reader.bodies() == [b"2"]


@pytest.mark.row("QB31")
@pytest.mark.parametrize("sow_topics", [(), (SowTopic("orders", ("/id",)),)])
def test_removals_from_queues_change_neither_positions_nor_records(
    sow_topics: tuple[SowTopic, ...],
) -> None:
    world = World(sow_topics=sow_topics)
    world.client("pubber").publish(1, b'{"id": 1}')
    data = encode_removals(b"orders", b"json", [(7094790850998930143, 1, 1)], now_us=START_US)
    world.journal.append(Block(data, 1, 2, 2, START_US, START_US))
    world.restart()
    assert world.engine.next_position == 2
    reader = world.client("reader")
    reader.subscribe(bm="0", a="completed")
    *bodies, completed = reader.take()
    assert [message.data for message in bodies] == [b'{"id": 1}']
    assert completed.bookmark == "7094790850998930143|1|"
    reader.send(c="sow", cid="3", query_id="3", t="orders", a="completed")
    found = [message.data for message in reader.take() if message.kind == "sow"]
    assert found == ([b'{"id": 1}'] if sow_topics else [])


class WatchedJournal(MemoryJournal):
    """Notes what is read of the log: ranges of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[range] = []

    @override
    def read_bytes(self, number: int, count: int, offset: int) -> bytes:
        self.reads.append(range(offset, offset + count))
        return super().read_bytes(number, count, offset)


def test_a_start_reads_the_log_once_for_records_queues_and_destinations() -> None:
    journal = WatchedJournal()
    world = World(
        journal=journal,
        sow_topics=(SowTopic("orders", ("/id",)),),
        queues=(QueueTopic(name="jobs", topics=("orders",)),),
        replicate_to=(ReplicateTo("tcp://127.0.0.1:1"),),
    )
    peer = world.client("pubber")
    for number in range(20):
        peer.publish(None, b'{"id":%d,"fill":"%b"}' % (number % 3, b"x" * 2**17))
    world.progress = ReplicationProgress(0)
    journal.reads.clear()
    world.restart()
    middle = journal.live.end // 2
    assert sum(middle in each for each in journal.reads) == 1
    assert world.engine._durability.limit == 1
    (queue,) = world.engine._routes.queues
    assert len(queue.table) == 20


def test_records_have_the_order_of_their_first_message_after_a_restart_too() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    peer = world.client("pubber")
    for number in (1, 2, 3, 1):
        peer.publish(None, b'{"id":%d}' % number)
    peer.send(c="sow_delete", t="orders", filter="/id = 2")
    for number in (4, 2, 3):
        peer.publish(None, b'{"id":%d,"again":1}' % number)
    for _ in range(2):
        reader = world.client("reader")
        reader.send(c="sow", cid="1", t="orders")
        found = [json.loads(each.data) for each in reader.take() if each.kind == "sow"]
        assert [(each["id"], "again" in each) for each in found] == [
            (1, False),
            (3, True),
            (4, True),
            (2, True),
        ]
        world.restart()


def test_a_record_that_no_broker_writes_is_refused_with_its_file(tmp_path: Path) -> None:
    journal = JournalFiles(tmp_path, RealDisk(), segment_bytes=4096, instance_id=1)
    world = World(journal=journal)
    peer = world.client("pubber")
    peer.publish(None)
    position = journal.next_position
    journal.append(Block(bytes(48), 1, position, position, START_US, START_US))
    for _ in range(3):
        peer.publish(None, b"x" * 2000)
    while journal.has_unsealed:
        journal.seal()
    with pytest.raises(StoreCorrupt, match=r"journal\.00000001: .*record .* is malformed"):
        World(journal=journal, sow_topics=(SowTopic("orders", ("/id",)),))
    journal.close()


_KEYS = st.sampled_from(("1", "2", " 2", "3", "a", ""))
_STEPS = st.one_of(
    st.tuples(st.just("publish"), _KEYS, st.booleans()),
    st.tuples(st.just("delta_publish"), _KEYS, st.booleans()),
    st.tuples(st.just("sow_delete"), _KEYS, st.booleans()),
)


def records(world: World) -> list[list[Message]]:
    """What queries of both topics answer, without what belongs to the query."""
    answers: list[list[Message]] = []
    for topic in ("keyed", "named"):
        reader = world.client("reader")
        reader.send(c="sow", cid="1", t=topic, opts="timestamp")
        answers.append([each for each in reader.take() if each.kind == "sow"])
    return answers


@given(st.lists(_STEPS, max_size=12))
def test_records_are_the_same_in_the_same_order_after_a_restart(
    steps: list[tuple[str, str, bool]],
) -> None:
    world = World(sow_topics=(SowTopic("keyed", ("/id",)), SowTopic("named")))
    peer = world.client("pubber")
    for number, (command, key, is_named) in enumerate(steps):
        world.now += 1.0
        topic = {"t": "named" if is_named else "keyed"}
        if command == "sow_delete":
            wanted = {"sow_keys": key} if is_named else {"filter": f"/id = '{key}'"}
            peer.send(c=command, **wanted, **topic)
        else:
            body = {"id": key, "n": number} if key else {"n": number}
            peer.send(json.dumps(body).encode(), c=command, **topic, **({"k": key} if key else {}))
    before = records(world)
    world.restart()
    assert records(world) == before
