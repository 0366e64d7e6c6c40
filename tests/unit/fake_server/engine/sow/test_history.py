"""Queries of an earlier moment, beside a copy of the records that was made then."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.engine.requests import MAX_PENDING_COMMANDS
from haclient_fake_server.engine.settings import LogTopic, SowTopic
from haclient_fake_server.engine.sow import history
from support.engine import START_US, Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("CC15")

SOW = (SowTopic("orders", ("/id",), history=True), SowTopic("forgetful", ("/id",)))


def query(peer: Peer, bookmark: str, **fields: str | int) -> list[Message]:
    command: dict[str, str | int] = {"c": "sow", "cid": "1", "t": "orders", "bm": bookmark}
    peer.send(**{**command, "a": "processed", **fields})
    return peer.take()


def records(messages: list[Message]) -> list[bytes]:
    return sorted(message.data for message in messages if message.kind == "sow")


CHANGES = st.lists(
    st.tuples(st.sampled_from(["p", "delta_publish", "sow_delete"]), st.integers(1, 4)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=length(50))
@given(changes=CHANGES, step=st.sampled_from([1, 300, history.STEP_BYTES]))
def test_each_moment_has_the_records_that_there_were(
    changes: list[tuple[str, int]], step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "STEP_BYTES", step)
        world = World(sow_topics=SOW)
        peer, reader = world.client(), world.client("reader")
        reader.subscribe(bm="0", a="")
        moments = list[tuple[str, list[bytes]]]()
        for number, (kind, key) in enumerate(changes):
            world.advance(1)
            peer.send(b'{"id":%d,"n%d":%d}' % (key, number % 2, number), c=kind, t="orders")
            peer.publish(None, b'{"id":9}', t="forgetful")
            marks = [m.bookmark for m in reader.take() if m.kind == "p" and m.topic == "orders"]
            state = records(query(peer, ""))
            moments.append((_time(world.now + 0.5), state))
            moments += [(mark, state) for mark in marks]
        for again in range(2):
            for bookmark, state in moments:
                assert records(query(peer, bookmark)) == state, (again, bookmark)
            world.restart()
            peer = world.client()
        assert records(query(peer, "0")) == []
        assert records(query(peer, "0|1|")) == moments[-1][1]


def _time(now: float) -> str:
    moment = datetime.fromtimestamp(START_US // 1_000_000 + now, UTC)
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")


def test_the_rest_of_a_query_works_on_the_records_of_then() -> None:
    world = World(sow_topics=SOW)
    peer = world.client()
    for number in range(1, 6):
        peer.publish(None, b'{"id":%d,"px":%d}' % (number, number))
    moment = _time(world.now + 1)
    world.advance(2)
    peer.send(c="sow_delete", t="orders", filter="1=1")
    fields = {"filter": "/px > 2", "orderby": "/px DESC", "opts": "top_n=1,skip_n=1,select=[-/px]"}
    messages = query(peer, moment, a="processed,completed,stats", **fields)
    assert [m.ack_type or m.kind for m in messages] == [
        "processed",
        "group_begin",
        "sow",
        "group_end",
        "completed",
        "stats",
    ]
    assert records(messages) == [b'{"id":4}']
    assert (messages[-1].matches, messages[-1].topic_matches) == (3, 5)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"t": "forgetful"}, "invalid bookmark"),
        ({"t": ".*"}, "invalid bookmark"),
        ({"bm": "[0:0|1|)"}, "invalid bookmark"),
        ({"bm": "recent"}, "invalid bookmark"),
        ({"bm": "hello"}, "invalid bookmark"),
        ({"bm": "77|1|"}, "bookmark not found"),
        ({"t": "unknown"}, "invalid topic"),
    ],
)
def test_a_moment_that_is_not_kept_is_refused(fields: dict[str, str], reason: str) -> None:
    world = World(sow_topics=SOW)
    (answer,) = query(world.client(), "0", **fields)
    assert (answer.status, answer.reason) == ("failure", reason)


def test_the_queries_of_subscriptions_do_not_count_as_queries_that_are_not_answered() -> None:
    world = World(sow_topics=SOW)
    peer = world.client()
    peer.publish(None, b'{"id":1}')
    moment = _time(world.now + 0.5)
    world.advance(1)
    peer.publish(None, b'{"id":2}')

    def statuses() -> list[str]:
        """Of one query more than may wait."""
        return [query(peer, moment)[0].status for _ in range(MAX_PENDING_COMMANDS + 1)]

    for _ in range(2):  # the second time without any that wait
        peer.stalled = True
        for number in range(MAX_PENDING_COMMANDS + 4):
            ids = {"cid": f"s{number}", "sub_id": f"s{number}"}
            peer.send(c="sow_and_subscribe", t="orders", bm=moment, a="processed", **ids)
        assert {message.status for message in peer.take()} == {"success"}
        peer.send(c="unsubscribe", cid="u", sub_id="s1")
        assert statuses() == ["success"] * MAX_PENDING_COMMANDS + ["failure"]
        peer.stalled = False
        world.replay_backlog(peer)
        ends = [message for message in peer.take() if message.kind == "group_end"]
        assert len(ends) == 2 * MAX_PENDING_COMMANDS + 3
        peer.send(c="unsubscribe", cid="u", sub_id="all")
        peer.take()
    assert statuses() == ["success"] * (MAX_PENDING_COMMANDS + 1)  # each is answered at once


def test_a_history_needs_the_log() -> None:
    with pytest.raises(UsageError, match="no log topic matches"):
        World(sow_topics=SOW, log_topics=(LogTopic("other"),))
