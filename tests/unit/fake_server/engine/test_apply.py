"""What a record does: the same for a publisher, a replica and a restart."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.apply import apply
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.engine.settings import SowTopic as SowSettings
from haclient_fake_server.engine.sow.table import SowTable
from haclient_fake_server.journal.format import Record, RecordCommand
from support.engine import World
from support.replicas import Group


def route(sow: SowTable | None, *, logged: bool = True) -> Route:
    return Route("orders", "json", logged=logged, sow=sow)


def message(body: bytes, *, key: bytes = b"", sequence: int = 1) -> Record:
    return Record(1, 7, sequence, 1_700_000_000_000_000, 1, key=key, payload=body)


def delete(*keys: str) -> Record:
    payload = ",".join(keys).encode()
    return Record(2, 7, 2, 0, 1, RecordCommand.SOW_DELETE, payload=payload)


@pytest.mark.row("SW1", "TL15")
def test_a_message_becomes_the_record_of_its_key() -> None:
    topic = route(SowTable("orders", ("/id",)))
    first = apply(topic, message(b'{"id":1,"n":1}'))
    second = apply(topic, message(b'{"id":1,"n":2}', sequence=2))
    assert first.previous is None
    assert second.previous is not None
    assert second.previous.body == b'{"id":1,"n":1}'
    assert topic.sow is not None
    (stored,) = topic.sow
    assert (stored.body, stored.bookmark) == (b'{"id":1,"n":2}', "7|2|")
    assert (stored.key, stored.timestamp) == (second.key, "20231114T221320.000000Z")


def test_a_topic_that_is_not_logged_has_no_bookmarks() -> None:
    topic = route(SowTable("orders", ("/id",)), logged=False)
    apply(topic, message(b'{"id":1}'))
    assert topic.sow is not None
    assert [stored.bookmark for stored in topic.sow] == [""]


def test_what_fits_no_key_changes_no_state_and_is_delivered_all_the_same() -> None:
    topic = route(SowTable("orders", ("/id",)))
    changes = apply(topic, message(b"no json"))
    assert changes.document is not None
    assert (changes.document.body, changes.key, changes.previous) == (b"no json", "", None)
    assert topic.sow is not None
    assert len(topic.sow) == 0


@pytest.mark.row("SW1")
def test_a_key_named_where_the_topic_had_no_state_is_none_where_its_keys_are_fields() -> None:
    group = Group({"a": ("b",), "b": ()})
    group.worlds["b"] = World(
        name="b", sow_topics=(SowSettings("orders", ("/id",)), SowSettings("named"))
    )
    group.settle()
    group["a"].client().publish(1, b'{"id":1,"n":1}', k="mine", a="")
    group["a"].client().publish(2, b"x", t="named", k="one,two", a="")
    group.settle()
    group["b"].client().publish(3, b'{"id":1,"n":2}', a="")

    def bodies() -> list[bytes]:
        reader = group["b"].client("reader")
        reader.send(c="sow", cid="1", t="^orders$|^named$")
        return [each.data for each in reader.take() if each.kind == "sow"]

    assert bodies() == [b'{"id":1,"n":2}']
    group.restart("b")
    assert bodies() == [b'{"id":1,"n":2}']


def test_a_delete_removes_the_keys_that_it_names() -> None:
    topic = route(SowTable("orders"))
    for key in (b"a", b" b ", b"c"):
        apply(topic, message(b"x", key=key))
    changes = apply(topic, delete("a", " b ", "unknown"))
    assert changes.document is None
    assert [gone.key for gone in changes.deleted] == ["a", " b "]
    assert topic.sow is not None
    assert [stored.key for stored in topic.sow] == ["c"]


def test_without_a_state_of_the_world_a_message_keeps_its_key_and_a_delete_does_nothing() -> None:
    topic = route(None)
    assert apply(topic, message(b"x", key=b"k")).key == "k"
    assert apply(topic, delete("k")).deleted == ()


@pytest.mark.row("SW1", "SW3", "RE2", "TL15")
def test_a_replica_and_a_restart_end_up_with_the_same_state() -> None:
    topics = (SowSettings("orders", ("/id",)), SowSettings("named"))
    group = Group({"a": ("b",), "b": ()}, sow_topics=topics)
    group.settle()
    peer = group["a"].client()
    peer.publish(1, b'{"id":1,"n":1,"m":1}', a="")
    peer.publish(2, b'{"id":1,"n":2}', c="delta_publish", x="correlation", a="")
    peer.publish(3, b'{"id":2}', a="")
    peer.publish(4, b"x", t="named", k="k", a="")
    peer.publish(5, b"y", t="named", k="l", a="")
    peer.send(c="sow_delete", t="orders", filter="/id = 2", s=6)
    peer.send(c="sow_delete", t="named", sow_keys="k", s=7)
    group.settle()

    def state(name: str) -> list[tuple[str, str, bytes, str]]:
        reader = group[name].client("reader")
        reader.send(c="sow", cid="1", t="^orders$|^named$", opts="timestamp")
        found = [each for each in reader.take() if each.kind == "sow"]
        return [(each.topic, each.sow_key, each.data, each.correlation_id) for each in found]

    wanted = state("a")
    assert [(topic, body, x) for topic, _, body, x in wanted] == [
        ("orders", b'{"id":1,"n":2,"m":1}', "correlation"),
        ("named", b"y", ""),
    ]
    assert state("b") == wanted
    for name in "ab":
        group.restart(name)
        assert state(name) == wanted
