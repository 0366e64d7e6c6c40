"""What is sent for a command, and what is left when it fails; see also tests/scenarios."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
from typing_extensions import override

from haclient.errors import (
    BadFilter,
    CommandError,
    DisconnectedError,
    InvalidBookmark,
    InvalidTopic,
    StoreError,
    SubIdInUse,
)
from haclient.options import Settings
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core
from haclient.transport.message_queue import MessageQueue
from haclient.transport.subscriber import Subscriber
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, Server, together
from support.requests import request_of

pytestmark = in_virtual_time


class Bench:
    """A subscriber of a client that is logged on."""

    def __init__(self, core: Core, peer: Peer) -> None:
        self.core = core
        self.peer = peer
        self.subscriber = Subscriber(core)

    async def open(self, name: str, **parts: str) -> tuple[Subscription, Message]:
        """Open a receiver; with the command as the server has accepted it."""
        topic = "" if name in {"flush", "unsubscribe"} else "orders"
        command = Command(name, topic=topic, timeout=5, **parts)  # type: ignore[arg-type]  # texts
        return await together(
            lambda: self.subscriber.open(command, MessageQueue()), lambda: self.peer.answer(name)
        )


@asynccontextmanager
async def bench_with(server: Server, store: BookmarkStore) -> AsyncGenerator[Bench]:
    core = Core(Settings(name="c", bookmark_store=store, exit_timeout=0))
    await core.enter()
    await together(lambda: core.connect(server.uri, timeout=1), trio.lowlevel.checkpoint)
    peer = await server.accept()
    await together(lambda: core.logon(timeout=1), peer.log_on)
    yield Bench(core, peer)
    await core.leave(None, None, None)


@pytest.fixture
async def bench(server: Server) -> AsyncGenerator[Bench]:
    async with bench_with(server, MemoryBookmarkStore()) as found:
        yield found


@pytest.mark.row("CC37")
@pytest.mark.parametrize(
    ("command", "topic", "reason", "kind", "is_explained"),
    [
        ("sow", "nosuch", "invalid topic", InvalidTopic, True),
        ("sow_and_subscribe", "nosuch", "invalid topic", InvalidTopic, False),
        ("sow", "nosuch", "bad filter", BadFilter, False),
        ("sow", "/HACLIENT/queues", "invalid topic", InvalidTopic, False),
        ("subscribe", "nosuch", "invalid topic", InvalidTopic, False),
    ],
)
async def test_a_sow_of_a_topic_that_keeps_no_records_says_what_it_needs(
    bench: Bench, command: str, topic: str, reason: str, kind: type, *, is_explained: bool
) -> None:
    async def refuse() -> None:
        await bench.peer.refuse(await bench.peer.expect(command), reason)

    with pytest.raises(CommandError) as refused:
        await together(
            lambda: bench.subscriber.open(Command(command, topic=topic), MessageQueue()), refuse
        )
    hint = (
        ": a sow needs a topic with a state of the world, which the server has to be configured "
        "for (the reference broker makes one with --sow orders:/id)"
    )
    assert str(refused.value) == f"{command} on {topic!r}: {reason}{hint if is_explained else ''}"
    assert (type(refused.value), refused.value.reason) == (kind, reason)


@pytest.mark.row("CC11", "CC13", "CC15", "BS8")
@pytest.mark.parametrize(
    ("name", "parts", "wanted"),
    [
        ("subscribe", {}, ("CID", "", "processed", "")),
        ("subscribe", {"sub_id": "s", "ack_type": "none"}, ("s", "", "processed", "")),
        (
            "subscribe",
            {"sub_id": "s", "bookmark": "recent"},
            ("s", "", "completed,persisted,processed", "0"),
        ),
        (
            "subscribe",
            {"sub_id": "s", "bookmark": "0|1|"},
            ("s", "", "completed,persisted,processed", "0|1|"),
        ),
        ("sow", {}, ("", "CID", "completed,processed", "")),
        (
            "sow",
            {"query_id": "q", "ack_type": "stats"},
            ("", "q", "completed,processed,stats", ""),
        ),
        ("sow_and_subscribe", {"sub_id": "s"}, ("s", "s", "completed,processed", "")),
        ("flush", {"ack_type": " persisted , processed"}, ("", "", "persisted,processed", "")),
    ],
)
async def test_ids_acks_and_bookmarks_that_are_missing_are_added(
    bench: Bench, name: str, parts: dict[str, str], wanted: tuple[str, ...]
) -> None:
    _, command = await bench.open(name, **parts)
    found = (command.sub_id, command.query_id, command.ack_type, command.bookmark)
    assert found == tuple(command.command_id if each == "CID" else each for each in wanted)


@pytest.mark.row("CC17")
async def test_an_id_in_use_is_refused_before_anything_is_sent(bench: Bench) -> None:
    await bench.open("subscribe", sub_id="s")
    sent = len(bench.peer.heard)
    with pytest.raises(SubIdInUse):
        await bench.open("subscribe", sub_id="s")
    assert len(bench.peer.heard) == sent


async def test_a_command_about_a_subscription_is_not_that_subscription(bench: Bench) -> None:
    await bench.open("subscribe", sub_id="s")
    await bench.open("unsubscribe", sub_id="s")
    assert bench.peer.heard[-1].sub_id == "s"


async def test_what_was_not_answered_is_ended_at_the_server_even_if_the_store_fails(
    server: Server,
) -> None:
    class FailingStore(DictBookmarkStore):
        @override
        def purge(self, sub_id: str | None = None) -> None:
            raise StoreError("the database is gone")

    async with bench_with(server, FailingStore()) as bench:
        command = Command("subscribe", topic="t", bookmark=EPOCH, timeout=1)  # with a generated id
        with pytest.raises(StoreError, match="database"):
            await bench.subscriber.open(command, MessageQueue())
        with trio.fail_after(1):
            sent = await bench.peer.expect("subscribe")
            await bench.peer.expect("unsubscribe", sub_id=sent.sub_id)


@pytest.mark.row("CC17")
async def test_unsubscribing_names_subscriptions_and_queries(bench: Bench) -> None:
    await bench.open("subscribe", sub_id="s")
    await bench.open("sow_and_subscribe", sub_id="t", query_id="q")
    _, command = await together(
        lambda: bench.subscriber.unsubscribe(["s", "t", "s"], timeout=5),
        lambda: bench.peer.answer("unsubscribe"),
    )
    assert (command.sub_id, command.query_id) == ("s,t", "q")
    assert bench.core.session.router.all() == []
    await bench.subscriber.unsubscribe(["gone"], timeout=1)


@pytest.mark.row("BS9")
@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([""], None),
        (["invalid bookmark", ""], None),
        (["invalid bookmark: a list of 50001, at most 50000"] * 2 + [""], None),
        (["invalid bookmark"] * 3, InvalidBookmark),
    ],
)
async def test_the_next_bookmark_is_asked_for_only_where_one_is_not_understood(
    bench: Bench, answers: list[str], error: type[CommandError] | None
) -> None:
    log = bench.core.settings.bookmark_store
    assert isinstance(log, MemoryBookmarkStore)
    tracked = log.subscription("s")
    tracked.begin(acked=False, start="0")
    tracked.entered("another server")
    tracked.discard(tracked.log("7|1|"))
    tracked.caught_up(1_700_000_000_000_000)
    asked: list[str] = []

    async def answer() -> None:
        for reason in answers:
            sent = await bench.peer.expect("subscribe")
            asked.append(sent.bookmark)
            await (bench.peer.refuse(sent, reason) if reason else bench.peer.ack(sent))

    command = Command("subscribe", topic="t", sub_id="s", bookmark="recent", timeout=5)
    try:
        await together(lambda: bench.subscriber.open(command, MessageQueue()), answer)
    except CommandError as refused:
        assert error is not None
        assert isinstance(refused, error)
    else:
        assert error is None
    assert [each.rpartition(",")[0] or each for each in asked] == ["7|1|", "7|1|", "0"][
        : len(answers)
    ]


async def test_a_lost_connection_is_no_refusal_of_a_bookmark(bench: Bench) -> None:
    async def lose() -> None:
        await bench.peer.expect("subscribe")
        await bench.core.abandon()

    command = Command("subscribe", topic="t", sub_id="s", bookmark=EPOCH, timeout=5)
    with pytest.raises(DisconnectedError):
        await together(lambda: bench.subscriber.open(command, MessageQueue()), lose)


async def test_what_undoes_a_subscribe_costs_the_same_however_many_are_active(
    server: Server,
) -> None:
    async with bench_with(server, MemoryBookmarkStore()) as bench:
        for number in range(1_000):
            bench.core.session.router.add(
                Subscription(request_of(f"s{number}"), MessageQueue(), command_id=f"c{number}")
            )
        tracemalloc.start()
        try:
            bench.subscriber.undo()
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 4_096


@pytest.mark.row("SM5")
async def test_a_query_that_is_unsubscribed_says_that_its_result_is_cut(server: Server) -> None:
    async with bench_with(server, MemoryBookmarkStore()) as bench:
        query, _ = await bench.open("sow")
        waiting, _ = await bench.open("sow_and_subscribe")
        waiting.is_query_answered = True
        waiting.queue.put([Message(kind="sow"), Message(kind="group_end")], 20)
        read, _ = await bench.open("sow_and_subscribe")
        read.is_query_answered = True
        read.queue.put([Message(kind="publish")], 10)
        lost, _ = await bench.open("sow_and_subscribe")
        lost.is_query_answered = True
        lost.queue.put([Message(kind="sow")], 10)
        lost.lost(DisconnectedError("away"), is_kept=True, is_followed=True)
        lasting, _ = await bench.open("subscribe")
        await together(
            lambda: bench.subscriber.unsubscribe("all", timeout=5),
            lambda: bench.peer.answer("unsubscribe"),
        )
        cut = {query, waiting, lost}
        for each in (query, waiting, read, lost, lasting):
            is_cut = each in cut
            assert isinstance(each.queue, MessageQueue)
            reason = str(each.queue.end_reason or "")
            assert ("before its result was complete" in reason) == is_cut
