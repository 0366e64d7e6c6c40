"""Whatever clients send, the engine goes on, and its log stays the one truth.

Two laws: no command, however nonsensical, raises out of the engine; and whatever was interleaved, a
late reader of the whole log sees what a restarted broker would show.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient_fake_server.engine.settings import LogTopic, SowTopic
from support.engine import Peer, World
from support.lengths import length

WORDS = [
    "",
    "1",
    "s",
    "orders",
    "logged/a",
    "^o",
    "(",
    "all",
    "0",
    "0|1|",
    "5|5|",
    "recent",
    "\udcff",
]
OPTIONS = [
    "",
    "replace",
    "pause",
    "resume",
    "oof",
    "timestamp,bookmark",
    "top_n=2,skip_n=1",
    "bookmark_not_found=fail",
    "start,1",
    "beat",
    "nonsense",
    "non_regex_topic",
]
COMMANDS = [
    "p",
    "publish",
    "delta_publish",
    "subscribe",
    "unsubscribe",
    "sow",
    "sow_and_subscribe",
    "sow_delete",
    "flush",
    "heartbeat",
    "delta_subscribe",
]
ACKS = ["", "persisted", "processed,completed,stats", "received,persisted", "whatever"]

words = st.sampled_from(WORDS)
numbers = st.none() | st.integers(0, 9) | st.sampled_from([2**33, 2**63 - 1])


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = Message(
        kind=draw(st.sampled_from(COMMANDS)),
        topic=draw(words),
        command_id=draw(words),
        sub_id=draw(words),
        query_id=draw(words),
        bookmark=draw(
            st.sampled_from(["", "", "recent", "[0:0|1|]", "(5|5|:20200101T000000]", *WORDS])
        ),
        filter=draw(st.sampled_from(["", "", "/id > 1", "((", "/id IS NULL"])),
        order_by=draw(st.sampled_from(["", "/id DESC", "?"])),
        options=draw(st.sampled_from(OPTIONS)),
        ack_type=draw(st.sampled_from(ACKS)),
        sow_key=draw(words),
        sow_keys=draw(words),
        correlation_id=draw(words),
        sequence=draw(numbers),
        batch_size=draw(numbers),
        top_n=draw(numbers),
        expiration=draw(numbers),
    )
    message.data = draw(st.sampled_from([b"", b"{}", b'{"id":1}', b'{"id":2,"x":3}', b"\xff"]))
    return message


@pytest.mark.row("TL4", "AK7")
@settings(max_examples=length(200))
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(messages(), max_size=4)), max_size=12))
def test_no_command_ever_raises_and_a_restart_shows_the_same_log(
    batches: list[tuple[int, list[Message]]],
) -> None:
    world = World(
        log_topics=(LogTopic("^logged"), LogTopic("orders")),
        sow_topics=(SowTopic("orders", ("/id",)), SowTopic("logged/a")),
    )
    peers: dict[int, Peer] = {}
    for who, commands in batches:
        if who not in peers or peers[who].closed:
            peers[who] = world.client(f"client-{who}")
        world.deliver(peers[who], commands)
        world.advance(0.3)
    before = whole_log(world)
    world.restart()
    assert whole_log(world) == before


def whole_log(world: World) -> bytes:
    reader = world.client("reader")
    reader.subscribe(t=".*", bm="0", opts="timestamp", a="completed")
    reader.send(c="unsubscribe", sub_id="all")
    return reader.take_bytes()
