"""The outbox: what a batch has queued comes out together, once."""

from __future__ import annotations

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.replication.durability import Durability


def outbox() -> Outbox:
    return Outbox(Durability())


def test_sends_come_out_joined_and_in_order() -> None:
    it = outbox()
    connection = Connection(3, peer="", now=0)
    it.send(connection, b"a")
    it.touch(connection).append(b"b")
    it.send(connection, None)
    effects = it.take_effects(None)
    assert (effects.sends, effects.block, effects.closes) == ([(3, b"ab")], None, [])
    assert it.take_effects(None).sends == []


def test_a_connection_is_closed_once_and_sent_nothing_after() -> None:
    it = outbox()
    connection = Connection(3, peer="", now=0)
    it.send(connection, b"last")
    it.close(connection, "because")
    it.close(connection, "again")
    it.send(connection, b"more")
    effects = it.take_effects(None)
    assert (effects.sends, effects.closes) == ([(3, b"last")], [(3, "because")])
