"""Batches: what begins, what is queued and what comes out."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.journal import MemoryJournal
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.settings import EngineSettings, LogTopic, SowTopic
from haclient_fake_server.engine.state import Effects, State


def state(**settings: object) -> State:
    chosen = EngineSettings(**settings)  # type: ignore[arg-type]  # checked by its users
    return State(chosen, MemoryJournal(), now=10.0, now_us=50_000_000)


def finish(it: State) -> Effects:
    it.close_batch()
    return it.take_effects()


def test_sends_come_out_joined_and_in_order() -> None:
    it = state()
    connection = Connection(3, peer="", now=0)
    it.send(connection, b"a")
    it.touch(connection).append(b"b")
    it.send(connection, None)
    effects = finish(it)
    assert (effects.sends, effects.block, effects.closes) == ([(3, b"ab")], None, [])
    assert finish(it).sends == []


def test_a_connection_is_closed_once_and_sent_nothing_after() -> None:
    it = state()
    connection = Connection(3, peer="", now=0)
    it.send(connection, b"last")
    it.close(connection, "because")
    it.close(connection, "again")
    it.send(connection, b"more")
    effects = finish(it)
    assert (effects.sends, effects.closes) == ([(3, b"last")], [(3, "because")])


@pytest.mark.row("TL17")
def test_time_is_the_shells_clock_on_the_wall_and_never_falls() -> None:
    it = state()
    it.begin(11.5)
    assert it.now_us == 51_500_000
    it.begin(11.0)
    assert it.now_us == 51_500_000
    assert it.due_at_us(52_000_000) == 12.0


@pytest.mark.row("TL2", "AK5")
def test_what_is_logged_depends_on_topic_and_message_type() -> None:
    it = state(log_topics=(LogTopic("orders"), LogTopic("^fix", "nvfix")))
    assert it.logging
    assert it.is_logged("orders", "json")
    assert it.is_logged("fix1", "nvfix")
    assert not it.is_logged("fix1", "json")
    assert not it.is_logged("orders2", "json")
    assert not state(log_topics=()).logging


def test_sow_topics_come_in_the_order_of_the_configuration() -> None:
    topics = (SowTopic("b", ("/id",)), SowTopic("x", ("/id",), "bson"), SowTopic("a", ("/id",)))
    it = state(sow_topics=topics)
    assert [topic.name for topic in it.sow_topics("json", TopicMatcher(".*"))] == ["b", "a"]
    assert it.tables["json"].route("a").sow is it.sow_topics("json", TopicMatcher(".*"))[1]


def test_the_last_bookmark_of_nothing_is_the_epoch() -> None:
    it = state()
    assert it.last_bookmark == "0"
    it.last = (5, 6)
    assert it.last_bookmark == "5|6|"
