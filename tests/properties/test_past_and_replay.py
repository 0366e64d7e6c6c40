"""Queries of the past that are followed by a replay, beside a list of what has happened.

A follower asks for the records of some moment and then follows the log, while others publish and
delete, and while it pauses, ends, asks again and loses its connection. What it receives is compared
with the records that there were at that moment, and with the messages after it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient_fake_server.engine import replay
from haclient_fake_server.engine.settings import SowTopic
from haclient_fake_server.engine.sow import history
from support.engine import START_US, Peer, World
from support.lengths import length

pytestmark = pytest.mark.row("CC15", "SW1")

FILTER = "/kind = 1"

ACTIONS = st.lists(
    st.tuples(st.just("publish"), st.integers(0, 4), st.integers(0, 1))
    | st.tuples(st.just("delete"), st.integers(0, 4), st.just(0))
    | st.tuples(st.just("follow"), st.integers(0, 9), st.integers(0, 3))
    | st.tuples(
        st.sampled_from(["step", "step", "pause", "resume", "end", "lose"]),
        st.just(0),
        st.just(0),
    ),
    min_size=8,
    max_size=40,
)


class Event(NamedTuple):
    """A publish, or a delete, which has no bookmark.

    Attributes:
        bookmark: The bookmark of the message.
        body: The message.
        time: After it, and before the next event.
        records: The records after it, by id.
    """

    bookmark: str
    body: bytes
    time: str
    records: dict[int, bytes]


class Follower:
    """What one command has to receive, and what it has received.

    Args:
        events: All events, also those to come.
        begins: How many of them are past for it.
        filtered: Whether it has a filter.
    """

    def __init__(self, events: list[Event], begins: int, *, filtered: bool) -> None:
        self._events = events
        self._begins = begins
        self._filtered = filtered
        self.received: list[Message] = []

    def _wants(self, body: bytes) -> bool:
        return not self._filtered or json.loads(body)["kind"] == 1

    def check(self, *, to_the_end: bool) -> None:
        messages = [each for each in self.received if each.ack_type != "processed"]
        kinds = [each.ack_type or each.kind for each in messages]
        if not messages:
            assert not to_the_end
            return
        end = kinds.index("group_end")
        assert kinds[:end] == ["group_begin", *["sow"] * (end - 1)]
        records = self._events[self._begins - 1].records if self._begins else {}
        assert sorted(each.data for each in messages[1:end]) == sorted(
            filter(self._wants, records.values())
        )
        after = [each for each in messages[end + 1 :] if each.ack_type != "completed"]
        found = [(each.kind, each.bookmark, each.data) for each in after]
        expected = [
            ("p", each.bookmark, each.body)
            for each in self._events[self._begins :]
            if each.bookmark and self._wants(each.body)
        ]
        assert found == (expected if to_the_end else expected[: len(found)])
        assert kinds.count("completed") <= 1
        if to_the_end:
            assert "completed" in kinds[end:]


class Conversation:
    """A broker, two publishers, a reader that tells the bookmarks, and one follower at a time."""

    def __init__(self) -> None:
        self.world = World(sow_topics=(SowTopic("orders", ("/id",), history=True),))
        self.publishers = [self.world.client("one"), self.world.client("two")]
        self.reader = self.world.client("reader")
        self.reader.subscribe(bm="0", a="")
        self.events: list[Event] = []
        self.peer = self._client()
        self.follower: Follower | None = None

    def _client(self) -> Peer:
        peer = self.world.client("follower")
        peer.stalled = True
        return peer

    def act(self, action: str, number: int, which: int) -> None:
        self.world.advance(1)
        match action:
            case "publish":
                n = len(self.events)
                body = b'{"id":%d,"kind":%d,"n":%d}' % (number, n % 2, n)
                self.publishers[which].publish(None, body)
                (message,) = [each for each in self.reader.take() if each.kind == "p"]
                self._happened(message.bookmark, body, {**self._records, number: body})
            case "delete":
                self.publishers[0].send(c="sow_delete", t="orders", filter=f"/id = {number}")
                left = {each: body for each, body in self._records.items() if each != number}
                self._happened("", b"", left)
            case "follow":
                self._follow(number, which)
            case "pause" | "resume":
                self.peer.send(c="subscribe", cid="p", sub_id="f", opts=action)
            case "end":
                self._end()
            case "lose":
                self._check_received()
                self.peer.close()
                self.peer, self.follower = self._client(), None
            case _:
                if self.world.engine.has_backlog(self.peer.number):
                    self.world.apply(self.world.engine.pump(self.peer.number, self.world.now))
        self._check_received()

    @property
    def _records(self) -> dict[int, bytes]:
        return self.events[-1].records if self.events else {}

    def _happened(self, bookmark: str, body: bytes, records: dict[int, bytes]) -> None:
        moment = datetime.fromtimestamp(START_US / 1_000_000 + self.world.now + 0.5, UTC)
        time = moment.strftime("%Y%m%dT%H%M%S.%fZ")
        self.events.append(Event(bookmark, body, time, records))

    def _follow(self, back: int, how: int) -> None:
        """Begin some events before the end: by a bookmark, by a time, or at the start."""
        self._end()
        begins = max(0, len(self.events) - back)
        bookmark = "0"
        if begins:
            last = self.events[begins - 1]
            bookmark = (how % 2 and last.bookmark) or last.time
        fields = {"filter": FILTER} if how > 1 else {}
        self.follower = Follower(self.events, begins, filtered=bool(fields))
        command = {"c": "sow_and_subscribe", "cid": "f", "sub_id": "f", "t": "orders"}
        self.peer.send(**command, bm=bookmark, bs=3, a="completed,processed", **fields)

    def _end(self) -> None:
        self._check_received()
        self.peer.send(c="unsubscribe", cid="u", sub_id="f")
        self.follower = None

    def _check_received(self) -> None:
        messages = [each for each in self.peer.take() if each.command_id != "p"]
        if self.follower is None:
            assert not messages
            return
        self.follower.received += messages
        self.follower.check(to_the_end=False)

    def finish(self) -> None:
        self.peer.stalled = False
        self.peer.send(c="subscribe", cid="p", sub_id="f", opts="resume")
        self.world.replay_backlog(self.peer)
        self._check_received()
        if self.follower is not None:
            self.follower.check(to_the_end=True)


@settings(max_examples=length(150))
@given(actions=ACTIONS, step=st.sampled_from([1, 300]))
def test_a_follower_gets_the_records_of_then_and_each_message_since_once(
    actions: list[tuple[str, int, int]], step: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "STEP_BYTES", step)
        patch.setattr(replay, "CHUNK_BYTES", step)
        conversation = Conversation()
        for action, number, which in actions:
            conversation.act(action, number, which)
        conversation.finish()
