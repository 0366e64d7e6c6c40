"""Queries of the state of the world, and deletes."""

from __future__ import annotations

import pytest

from haclient.protocol.messages import Message
from haclient_fake_server.engine import answers
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.engine.settings import LogTopic, SowTopic
from haclient_fake_server.engine.sow import queries
from haclient_fake_server.journal.format import RecordCommand, RecordFlag
from support.engine import Peer, World, decode

SOW = (SowTopic("orders", ("/id",)), SowTopic("named"))
ALL = "received,processed,completed,stats"


def world_with(*bodies: bytes) -> tuple[World, Peer]:
    world = World(sow_topics=SOW)
    publisher = world.client("pubber")
    for number, body in enumerate(bodies, 1):
        publisher.publish(number, body)
    publisher.take()
    return world, publisher


def records(count: int) -> tuple[bytes, ...]:
    return tuple(b'{"id":%d,"px":%d}' % (number, number * 10) for number in range(1, count + 1))


def kinds(messages: list[Message]) -> list[str]:
    return [message.ack_type if message.kind == "ack" else message.kind for message in messages]


def query(peer: Peer, **fields: str | int) -> list[Message]:
    peer.send(**{"c": "sow", "cid": "1", "t": "orders", "a": ALL, "bs": 10, **fields})
    return peer.take()


@pytest.mark.row("SW1", "SW2")
def test_a_result_is_one_group_with_its_acks_around_it() -> None:
    _, peer = world_with(*records(2))
    messages = query(peer, query_id="q")
    assert kinds(messages) == [
        "received",
        "processed",
        "group_begin",
        "sow",
        "sow",
        "group_end",
        "completed",
        "stats",
    ]
    assert {message.query_id for message in messages} == {"q"}
    stats = messages[-1]
    assert (stats.records_returned, stats.topic_matches, stats.matches) == (2, 2, 2)
    assert [message.data for message in messages if message.kind == "sow"] == list(records(2))


@pytest.mark.row("SW2")
def test_an_empty_result_is_framed_too() -> None:
    _, peer = world_with()
    assert kinds(query(peer, a="")) == ["group_begin", "group_end"]


@pytest.mark.row("SW2")
def test_records_come_in_batches_of_the_size_that_was_asked_for() -> None:
    _, peer = world_with(*records(25))
    peer.send(c="sow", cid="1", t="orders", bs=10)
    frames = [m for m in peer.take(expand_sow=False) if m.kind == "sow"]
    assert [(frame.batch_size, frame.topic, frame.query_id) for frame in frames] == [
        (10, "orders", "1"),
        (10, "orders", "1"),
        (5, "orders", "1"),
    ]
    peer.send(c="sow", cid="2", t="orders")
    sizes = [m.batch_size for m in peer.take(expand_sow=False) if m.kind == "sow"]
    assert sizes == [1] * 25


def test_large_records_are_not_put_into_one_giant_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_BATCH_BYTES", 50)
    _, peer = world_with(*records(5))
    peer.send(c="sow", cid="1", t="orders", bs=10)
    frames = [m for m in peer.take(expand_sow=False) if m.kind == "sow"]
    assert [frame.batch_size for frame in frames] == [3, 2]


@pytest.mark.row("SW2")
def test_filter_order_and_limit() -> None:
    _, peer = world_with(*records(5))
    messages = query(peer, filter="/px > 10", orderby="/px DESC", top_n=2)
    assert [m.data for m in messages if m.kind == "sow"] == [records(5)[4], records(5)[3]]
    assert (messages[-1].records_returned, messages[-1].matches) == (2, 4)
    assert messages[-1].topic_matches == 5
    messages = query(peer, opts="top_n=2,skip_n=1", top_n=9, orderby="/px")
    assert [m.data for m in messages if m.kind == "sow"] == [records(5)[1], records(5)[2]]


@pytest.mark.row("SW2")
def test_top_n_of_nought_only_counts() -> None:
    _, peer = world_with(*records(5))
    messages = query(peer, top_n=0, a="stats")
    assert kinds(messages) == ["group_begin", "group_end", "stats"]
    assert (messages[-1].matches, messages[-1].records_returned) == (5, 0)


def test_records_carry_key_time_and_correlation_as_asked() -> None:
    world, peer = world_with()
    peer.publish(1, b'{"id":1}', x="abc")
    (record,) = [m for m in query(peer, opts="timestamp") if m.kind == "sow"]
    assert (record.correlation_id, record.timestamp) == ("abc", "20231114T221500.000000Z")
    assert record.sow_key.isdigit()
    (record,) = [m for m in query(peer, opts="no_sowkey") if m.kind == "sow"]
    assert (record.sow_key, record.timestamp) == ("", "")
    assert world.engine.next_position == 2


def test_keys_restrict_a_query() -> None:
    _, peer = world_with(*records(3))
    keys = [m.sow_key for m in query(peer) if m.kind == "sow"]
    messages = query(peer, sow_keys=f"{keys[0]},{keys[2]},5")
    assert [m.sow_key for m in messages if m.kind == "sow"] == [keys[0], keys[2]]


def test_too_many_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MAX_KEYS", 2)
    _, peer = world_with(*records(3))
    assert query(peer, sow_keys="1,2")[0].status == "success"
    for kind in ("sow", "sow_delete"):
        peer.send(c=kind, cid="1", t="orders", sow_keys="1,2,3", a="processed")
        (refused,) = peer.take()
        assert (refused.reason, refused.detail) == (
            "bad sow key",
            "3 keys, at most 2 in one command",
        )


def test_a_pattern_queries_all_matching_topics() -> None:
    _, peer = world_with(*records(2))
    peer.publish(3, b"any body", t="named", k="n1")
    messages = query(peer, t="^(orders|named)$", top_n=3)
    assert [m.topic for m in messages if m.kind == "sow"] == ["orders", "orders", "named"]
    assert [m.topic for m in query(peer, t=".*", top_n=1) if m.kind == "sow"] == ["orders"]


@pytest.mark.row("AK7", "SW2")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "elsewhere"}, "invalid topic"),
        ({"t": ""}, "invalid topic: no topic"),
        ({"filter": "/px >"}, "bad filter"),
        ({"orderby": "/px SIDEWAYS"}, "invalid orderby"),
        ({"bs": 10_001}, "invalid batch size"),
        ({"bm": "0"}, "invalid bookmark"),
        ({"opts": "top_n=1,skip_n=1"}, "invalid options: skip_n"),
        ({"opts": "projection=[/a]"}, "invalid options: projection"),
    ],
)
def test_a_query_that_cannot_be_answered_is_refused(
    fields: dict[str, str | int], reason: str
) -> None:
    world, peer = world_with()
    (ack,) = query(peer, **fields)
    assert (ack.ack_type, ack.status) == ("processed", "failure")
    assert ack.reason == reason.partition(":")[0]
    assert reason in world.events[-1]


@pytest.mark.row("SW1")
def test_query_and_subscription_see_the_same_instant() -> None:
    _, peer = world_with(*records(1))
    peer.send(c="sow_and_subscribe", cid="1", t="orders", a=ALL)
    peer.publish(5, b'{"id":1,"px":11}', a="")
    messages = peer.take()
    assert kinds(messages) == [
        "received",
        "processed",
        "group_begin",
        "sow",
        "group_end",
        "completed",
        "stats",
        "p",
    ]
    assert (messages[3].query_id, messages[-1].sids) == ("1", "1")
    assert messages[-1].sow_key == messages[3].sow_key
    assert messages[1].sub_id == "1"


def test_sow_and_subscribe_without_a_sow_is_an_empty_group_and_a_subscription() -> None:
    _, peer = world_with()
    peer.send(c="sow_and_subscribe", cid="1", t="elsewhere")
    peer.send(c="p", t="elsewhere")
    assert kinds(peer.take()) == ["group_begin", "group_end", "p"]


def test_a_topic_without_history_takes_now_and_no_other_bookmark() -> None:
    _, peer = world_with()
    peer.send(c="sow_and_subscribe", cid="1", t="orders", bm="0|1|", a="processed")
    peer.publish(1, b'{"id":1}', a="")
    assert peer.take()[-1].bookmark
    peer.send(c="sow_and_subscribe", cid="2", t="orders", bm="0", a="processed")
    assert peer.take()[0].reason == "invalid bookmark"


@pytest.mark.parametrize("option", ["pause", "rate=5", "fully_durable", "live", "max_backlog=2"])
def test_sow_and_subscribe_refuses_what_it_cannot_do(option: str) -> None:
    _, peer = world_with()
    peer.send(c="sow_and_subscribe", cid="1", t="orders", opts=option, a="processed")
    (ack,) = peer.take()
    assert ack.reason == "invalid options"


def test_an_update_out_of_the_filter_goes_out_of_focus_with_the_new_body() -> None:
    _, peer = world_with(b'{"id":1,"px":5}')
    peer.send(c="sow_and_subscribe", cid="1", t="orders", filter="/px < 10", opts="oof")
    peer.take()
    peer.publish(2, b'{"id":1,"px":50}', a="")
    (oof,) = peer.take()
    assert (oof.kind, oof.reason, oof.sids) == ("oof", "match", "1")
    assert oof.data == b'{"id":1,"px":50}'
    assert oof.sow_key.isdigit()
    peer.publish(3, b'{"id":1,"px":60}', a="")
    assert peer.take() == []


@pytest.mark.row("SW3")
def test_a_deleted_record_goes_out_of_focus_with_its_last_body() -> None:
    _, peer = world_with(b'{"id":1,"px":5}', b'{"id":2,"px":50}')
    peer.subscribe("oof", filter="/px < 10", opts="oof", a="")
    peer.subscribe("plain", filter="/px < 10", a="")
    peer.send(c="sow_delete", cid="9", t="orders", filter="1=1", a="processed,stats")
    oof, processed, stats = peer.take()
    assert (oof.kind, oof.reason, oof.sids, oof.data) == (
        "oof",
        "deleted",
        "oof",
        b'{"id":1,"px":5}',
    )
    assert processed.status == "success"
    assert (stats.records_deleted, stats.matches, stats.topic_matches) == (2, 2, 2)


@pytest.mark.row("SW3")
def test_records_are_deleted_by_filter_by_keys_and_by_data() -> None:
    _, peer = world_with(*records(4))
    keys = [m.sow_key for m in query(peer) if m.kind == "sow"]
    peer.send(c="sow_delete", t="orders", filter="/id = 1", a="stats", query_id="q")
    peer.send(c="sow_delete", t="orders", sow_keys=f"{keys[1]},77", a="stats")
    peer.send(c="sow_delete", t="orders", k=keys[2], a="stats")
    peer.send(b'{"id":4}', c="sow_delete", t="orders", a="stats")
    stats = peer.take()
    assert [ack.records_deleted for ack in stats] == [1, 1, 1, 1]
    assert stats[0].query_id == "q"
    assert kinds(query(peer, a="")) == ["group_begin", "group_end"]


@pytest.mark.row("SW3", "AK7")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "elsewhere", "filter": "1=1"}, "invalid topic"),
        ({"t": "orders"}, "bad sow key"),
        ({"t": "orders", "filter": "1=1", "sow_keys": "1"}, "bad sow key"),
        ({"t": "orders", "filter": "1=1", "k": "1"}, "bad sow key"),
        ({"t": "orders", "sow_keys": "1", "k": "2"}, "bad sow key"),
        ({"t": "orders", "bm": "1|1|"}, "invalid topic"),
        ({"t": "orders", "filter": "((("}, "bad filter"),
        ({"t": "orders", "filter": "1=1", "opts": "cancel"}, "invalid options: cancel"),
    ],
)
def test_a_delete_that_cannot_be_carried_out_is_refused(
    fields: dict[str, str], reason: str
) -> None:
    world, peer = world_with()
    peer.send(c="sow_delete", cid="9", s=7, a="processed,persisted", **fields)
    processed, persisted = peer.take()
    assert processed.status == persisted.status == "failure"
    assert processed.reason == persisted.reason == reason.partition(":")[0]
    assert reason in world.events[-1]
    assert persisted.sequence == 7


def test_a_body_without_its_key_cannot_be_deleted_nor_published() -> None:
    world, peer = world_with()
    peer.send(b"{}", c="sow_delete", t="orders", a="processed")
    peer.publish(1, b"{}", a="processed")
    peer.publish(2, b"no json", a="persisted")
    peer.publish(3, b"{}", t="named", a="persisted")
    reasons = [ack.reason for ack in peer.take()]
    assert reasons == ["bad sow key", "bad sow key", "bad message", "bad sow key"]
    assert world.journal.last_before(world.engine.next_position) is None, "no message"


@pytest.mark.row("TL3", "SW3")
def test_a_delete_is_recorded_as_the_keys_that_it_removed() -> None:
    world, peer = world_with(*records(2))
    keys = [m.sow_key for m in query(peer) if m.kind == "sow"]
    peer.send(c="sow_delete", t="orders", filter="1=1", s=9)
    peer.publish(10, b'{"id":5}')
    peer.send(c="sow_delete", t="orders", filter="1=1")
    data, _ = world.journal.read(world.journal.seek(1), 1 << 20)
    deletes = [r for r in records_of(data) if r.command == RecordCommand.SOW_DELETE]
    assert deletes[0].payload.decode() == ",".join(keys)
    assert (deletes[0].sequence, deletes[0].flags) == (9, 0)
    assert deletes[1].flags == RecordFlag.ASSIGNED


@pytest.mark.row("AK2", "ID2")
def test_a_delete_with_a_sequence_counts_like_a_publish() -> None:
    world, peer = world_with(*records(1))
    delete = {"c": "sow_delete", "cid": "9", "t": "orders", "filter": "1=1"}
    peer.send(**delete, s=5, a="persisted,completed,stats")
    assert kinds(peer.take()) == ["completed", "stats"]
    world.advance(1)
    (ack,) = peer.take()
    assert (ack.ack_type, ack.sequence, ack.command_id) == ("persisted", 5, "")
    peer.publish(6, b'{"id":1}')
    peer.send(**delete, s=5, a="processed,stats")
    processed, stats = peer.take()
    assert (processed.reason, stats.records_deleted) == ("duplicate", 0)


def test_a_delete_without_a_sequence_is_acknowledged_alone() -> None:
    _, peer = world_with(*records(1))
    peer.send(c="sow_delete", cid="9", t="orders", filter="1=1", a="persisted")
    (ack,) = peer.take()
    assert (ack.ack_type, ack.command_id, ack.sequence) == ("persisted", "9", None)


@pytest.mark.row("AK5")
def test_without_a_log_a_delete_is_acknowledged_alone() -> None:
    world = World(sow_topics=SOW, log_topics=())
    peer = world.client()
    peer.publish(1, b'{"id":1}', a="")
    peer.send(c="sow_delete", cid="9", t="orders", filter="1=1", s=2, a="persisted")
    (ack,) = peer.take()
    assert (ack.sequence, ack.command_id) == (2, "9")


@pytest.mark.row("SW1", "TL1")
def test_the_state_of_the_world_is_the_same_after_a_restart() -> None:
    world, peer = world_with(*records(3))
    peer.publish(4, b'{"id":2,"px":0}', x="abc")
    peer.send(c="sow_delete", t="orders", filter="/id = 1", s=5)
    peer.publish(6, b"body", t="named", k="n,1"[:1])
    peer.take()
    before = [query(peer, t=topic, opts="timestamp") for topic in ("orders", "named")]
    world.restart()
    peer = world.client()
    after = [query(peer, t=topic, opts="timestamp") for topic in ("orders", "named")]
    assert after == before


def test_a_sow_topic_that_is_not_logged_is_empty_after_a_restart() -> None:
    world = World(sow_topics=SOW, log_topics=(LogTopic("elsewhere"),))
    peer = world.client()
    peer.publish(1, b'{"id":1}', a="")
    assert "sow" in kinds(query(peer))
    world.restart()
    assert "sow" not in kinds(query(world.client()))


def test_a_replayed_message_carries_its_key() -> None:
    world, peer = world_with(*records(1))
    (record,) = [m for m in query(peer) if m.kind == "sow"]
    reader = world.client("reader")
    reader.subscribe(bm="0", a="")
    reader.subscribe("2", bm="0", opts="no_sowkey", a="")
    assert [m.sow_key for m in reader.take()] == [record.sow_key, ""]


@pytest.mark.row("SW5")
def test_a_delta_is_merged_stored_recorded_and_delivered_whole() -> None:
    world, peer = world_with(b'{"id":1,"px":10,"at":{"x":1,"y":2}}')
    peer.subscribe(a="")
    peer.publish(2, b'{"id":1,"px":null,"at":{"y":3}}', c="delta_publish", a="", x="abc")
    whole = b'{"id":1,"px":10,"at":{"x":1,"y":3}}'
    assert peer.bodies() == [whole]
    peer.publish(3, b'{"id":1}', c="delta_publish", a="")
    peer.publish(4, b'{"id":9}', c="delta_publish", a="")
    assert [(m.data, m.correlation_id) for m in peer.take()] == [(whole, "abc"), (b'{"id":9}', "")]
    (first, second) = [m.data for m in query(peer) if m.kind == "sow"]
    assert (first, second) == (whole, b'{"id":9}')
    reader = world.client("reader")
    reader.subscribe(bm="0", a="")
    assert reader.bodies()[1:] == [whole, whole, b'{"id":9}']


def test_sow_frames_say_how_long_each_record_is() -> None:
    _, peer = world_with(b'{"id":1}')
    peer.send(c="sow", cid="1", t="orders")
    data = peer.take_bytes()
    assert b',"l":8}{"id":1}' in data
    assert len(decode(data)) == 3


@pytest.mark.row("SW3")
def test_a_delete_that_one_of_its_topics_refuses_changes_none_of_them() -> None:
    world = World(sow_topics=(SowTopic("a", ("/id",)), SowTopic("b", ("/other",))))
    peer = world.client()
    peer.publish(1, b'{"id":1}', t="a", a="")
    peer.send(b'{"id":1}', c="sow_delete", cid="1", t="^.$", a="processed")
    assert [ack.reason for ack in peer.take()] == ["bad sow key"]
    for _ in range(2):
        peer.send(c="sow", cid="2", t="a")
        assert [each.data for each in peer.take() if each.kind == "sow"] == [b'{"id":1}']
        world.restart()
        peer = world.client()


@pytest.mark.row("SW5")
def test_an_oof_without_its_key_has_its_reason() -> None:
    world = World(sow_topics=(SowTopic("orders", ("/id",)),))
    peer = world.client()
    peer.subscribe(filter="/x = 1", opts="oof,no_sowkey", a="")
    peer.publish(1, b'{"id":1,"x":1}', a="")
    peer.publish(2, b'{"id":1,"x":2}', a="")
    peer.publish(3, b'{"id":1,"x":1}', a="")
    peer.send(c="sow_delete", t="orders", filter="1=1")
    told = [(each.kind, each.reason, each.sow_key) for each in peer.take()]
    assert told == [("p", "", ""), ("oof", "match", ""), ("p", "", ""), ("oof", "deleted", "")]


@pytest.mark.row("OP16")
def test_a_query_and_its_subscription_send_the_selected_fields_only() -> None:
    world, peer = world_with(b'{"id":1,"px":1.50,"secret":7}')
    reader, whole = world.client("reader"), world.client("whole")
    whole.subscribe(a="")
    asked = query(reader, opts="select=[-/,+/id,+/px]", filter="/secret = 7")
    assert [m.data for m in asked if m.kind == "sow"] == [b'{"id":1,"px":1.50}']
    fields = {"c": "sow_and_subscribe", "opts": "select=[-/secret],oof"}
    asked = query(reader, **fields, sub_id="s", filter="/secret = 7")
    assert [m.data for m in asked if m.kind == "sow"] == [b'{"id":1,"px":1.50}']
    peer.publish(2, b'{"id":2,"secret":7}')
    peer.publish(3, b'{"id":2,"secret":8}')
    assert [(m.kind, m.data) for m in reader.take()] == [("p", b'{"id":2}'), ("oof", b'{"id":2}')]
    assert whole.bodies() == [b'{"id":2,"secret":7}', b'{"id":2,"secret":8}']


@pytest.mark.row("OP16")
def test_one_connection_may_select_and_have_whole_messages() -> None:
    world, peer = world_with()
    reader = world.client("reader")
    for sub_id, options in {"1": "", "2": "select=[-/,+/id]", "3": "select=[-/,+/id]"}.items():
        reader.subscribe(sub_id, a="", opts=options)
    peer.publish(1, b'{"id":1,"x":2}')
    received = {tuple(message.sub_ids): message.data for message in reader.take()}
    assert received == {("1",): b'{"id":1,"x":2}', ("2", "3"): b'{"id":1}'}


@pytest.mark.row("OP16")
def test_a_replay_sends_the_selected_fields_and_so_does_what_replaces_it() -> None:
    world, peer = world_with(*records(2))
    reader = world.client("reader")
    reader.subscribe(bm="0", a="", opts="select=[-/,+/px]")
    peer.publish(3, b'{"id":3,"px":30}')
    assert reader.bodies() == [b'{"px":10}', b'{"px":20}', b'{"px":30}']
    reader.subscribe(a="", opts="select=[-/px],replace")
    peer.publish(4, b'{"id":4,"px":40}')
    assert reader.bodies() == [b'{"id":4}']


@pytest.mark.row("OP16")
def test_a_select_list_that_cannot_be_read_is_refused() -> None:
    _, peer = world_with(*records(1))
    (answer,) = query(peer, a="processed", opts="select=[-/a[0]]")
    assert (answer.status, answer.reason) == ("failure", "invalid options")


@pytest.mark.parametrize("correlation_id", ["x" * 65_536, "\u20ac" * 21_846])
def test_a_delete_whose_correlation_id_fits_no_record_is_refused(correlation_id: str) -> None:
    world, peer = world_with(*records(1))
    peer.send(c="sow_delete", cid="9", t="orders", filter="1=1", a="processed", x=correlation_id)
    (ack,) = peer.take()
    assert (ack.status, ack.reason) == ("failure", "invalid correlation id")
    assert world.journal.next_position == 2
    assert "completed" in kinds(query(peer))
