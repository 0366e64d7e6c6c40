from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from typing_extensions import override

from haclient.errors import (
    BadFilter,
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    InvalidTopic,
    StoreError,
    SubIdInUse,
    TimedOut,
)
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand
from haclient.session.connection_state import ConnectionStatus
from haclient.session.custom_stores import StoreSubscription
from haclient.session.logon import LoggedOn
from haclient.session.session import Session
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.commands import Commander, Fields, best_first, lost_error, subscription_log
from haclient.transport.memory_network import link_pair
from haclient.transport.message_queue import Delivery
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, together
from support.reporting import unheard, unheard_connection

pytestmark = in_virtual_time


class Bench:
    """A commander on a connection in memory."""

    def __init__(self, store: BookmarkStore | None = None) -> None:
        near, far = link_pair()
        self.session = Session()
        self.status = ConnectionStatus()
        self.peer = Peer(far)
        self.commander = Commander(self.session, store, self.status, unheard())
        self.connection = self.commander.connection = unheard_connection(near, self.session)
        self.status.connected("localhost:1")
        server = LoggedOn(seen=None, persisted=None, server_version="", reason="")
        self.status.logged_on(server)
        self.commander.logged_on()

    async def open(self, **fields: str | int) -> tuple[Subscription, Message]:
        """Open a receiver; with the command as the server has accepted it."""
        command_id = self.session.next_command_id()
        has_store = self.commander.bookmark_store is not None
        request = SubscribeRequest.complete(fields, b"", command_id=command_id, has_store=has_store)
        return await together(
            lambda: self.commander.open(
                request, Delivery(), command_id=command_id, markers=False, timeout=5
            ),
            lambda: self.peer.answer(str(fields["c"])),
        )


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncGenerator[Bench]:
    found = Bench(MemoryBookmarkStore())
    nursery.start_soon(found.connection.run)
    yield found
    found.connection.close()


@pytest.mark.row("CC10")
async def test_a_command_waits_for_the_ack_that_it_asked_for(bench: Bench) -> None:
    fields: Fields = {"c": "sow_delete", "cid": "x", "a": "processed,stats"}

    async def script() -> None:
        command = await bench.peer.answer("sow_delete")
        await trio.sleep(3)
        await bench.peer.ack(command, "stats", records_deleted=2)

    ack, _ = await together(
        lambda: bench.commander.command(fields, what="delete", awaited="stats", timeout=5), script
    )
    assert (ack.records_deleted, trio.current_time()) == (2, 3)
    assert len(bench.session.pending) == 0


async def test_a_refusal_and_a_silence_leave_nothing(bench: Bench) -> None:
    async def refuse() -> None:
        await bench.peer.refuse(await bench.peer.hear(), "because")

    with pytest.raises(CommandError, match="flush: because"):
        await together(
            lambda: bench.commander.command({"c": "flush", "cid": "1"}, what="flush", timeout=5),
            refuse,
        )
    with pytest.raises(TimedOut, match="flush"):
        await bench.commander.command({"c": "flush", "cid": "2"}, what="flush", timeout=5)
    assert len(bench.session.pending) == 0


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
        await bench.peer.refuse(await bench.peer.hear(), reason)

    request = SubscribeRequest.complete(
        {"c": command, "t": topic}, b"", command_id="1", has_store=False
    )
    with pytest.raises(CommandError) as refused:
        await together(
            lambda: bench.commander.open(
                request, Delivery(), command_id="1", markers=False, timeout=5
            ),
            refuse,
        )
    hint = (
        ": a sow needs a topic with a state of the world, which the server has to be configured "
        "for (haclient broker run --sow orders:/id)"
    )
    assert str(refused.value) == f"{command} on {topic!r}: {reason}{hint if is_explained else ''}"
    assert (type(refused.value), refused.value.reason) == (kind, reason)


async def test_an_urgent_command_leaves_before_the_others(bench: Bench) -> None:
    async def ours() -> None:
        bench.connection.writer.send(b"\0\0\0\x0d" + b'{"c":"flush"}')
        fields: Fields = {"c": "heartbeat", "cid": "1"}
        await bench.commander.command(fields, what="heartbeat", urgent=True, timeout=5)

    async def theirs() -> None:
        await bench.peer.answer("heartbeat")
        await bench.peer.expect("flush")

    await together(ours, theirs)


async def test_commands_need_a_connection_that_has_logged_on(bench: Bench) -> None:
    bench.status.is_logged_on = False
    with pytest.raises(DisconnectedError, match="not logged on"):
        bench.commander.connected()
    bench.commander.connection = None
    bench.status.is_connected = False
    with pytest.raises(DisconnectedError, match="not connected"):
        bench.commander.connected()
    await bench.commander.unsubscribe([], timeout=1)


@pytest.mark.row("CC11", "CC13", "CC15", "BS8")
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"c": "subscribe"}, ("CID", "", "processed", "")),
        ({"c": "subscribe", "sub_id": "s", "a": "none"}, ("s", "", "processed", "")),
        (
            {"c": "subscribe", "sub_id": "s", "bm": "recent"},
            ("s", "", "completed,persisted,processed", "0"),
        ),
        (
            {"c": "subscribe", "sub_id": "s", "bm": "0|1|"},
            ("s", "", "completed,persisted,processed", "0|1|"),
        ),
        ({"c": "sow"}, ("", "CID", "completed,processed", "")),
        ({"c": "sow", "query_id": "q", "a": "stats"}, ("", "q", "completed,processed,stats", "")),
        ({"c": "sow_and_subscribe", "sub_id": "s"}, ("s", "s", "completed,processed", "")),
        ({"c": "flush", "a": " persisted , processed"}, ("", "", "persisted,processed", "")),
    ],
)
async def test_ids_acks_and_bookmarks_that_are_missing_are_added(
    bench: Bench, fields: Fields, wanted: tuple[str, ...]
) -> None:
    _, command = await bench.open(t="orders", **fields)
    found = (command.sub_id, command.query_id, command.ack_type, command.bookmark)
    assert found == tuple(command.command_id if each == "CID" else each for each in wanted)


@pytest.mark.row("CC17")
async def test_an_id_in_use_is_refused_before_anything_is_sent(bench: Bench) -> None:
    await bench.open(c="subscribe", t="orders", sub_id="s")
    with pytest.raises(SubIdInUse):
        await bench.open(c="subscribe", t="orders", sub_id="s")
    assert len(bench.peer.heard) == 1


async def test_a_command_about_a_subscription_is_not_that_subscription(bench: Bench) -> None:
    await bench.open(c="subscribe", t="orders", sub_id="s")
    await bench.open(c="unsubscribe", sub_id="s")
    assert bench.peer.heard[-1].sub_id == "s"


async def test_what_was_not_answered_is_ended_at_the_server_even_if_the_store_fails() -> None:
    class FailingStore(DictBookmarkStore):
        @override
        def purge(self, sub_id: str | None = None) -> None:
            raise StoreError("the database is gone")

    bench = Bench(FailingStore())
    fields = {
        "c": "subscribe",
        "t": "orders",
        "bm": "0",
        "sub_id": bench.commander.generate_id("1"),
    }
    request = SubscribeRequest.complete(fields, b"", command_id="1", has_store=True)
    with pytest.raises(StoreError, match="database"):
        await bench.commander.open(request, Delivery(), command_id="1", markers=False, timeout=1)
    with trio.fail_after(1):
        await bench.peer.expect("subscribe")
        await bench.peer.expect("unsubscribe", sub_id=request.sub_id)


@pytest.mark.row("CC17")
async def test_unsubscribing_names_subscriptions_and_queries(bench: Bench) -> None:
    one, _ = await bench.open(c="subscribe", t="orders", sub_id="s")
    two, _ = await bench.open(c="sow_and_subscribe", t="orders", sub_id="t", query_id="q")
    _, command = await together(
        lambda: bench.commander.unsubscribe([one, two, one], timeout=5),
        lambda: bench.peer.answer("unsubscribe"),
    )
    assert (command.sub_id, command.query_id) == ("s,t", "q")
    assert bench.session.router.all() == []


@pytest.mark.row("BS7")
def test_a_store_of_our_own_gives_its_fast_handle_and_any_other_gets_one() -> None:
    ours = MemoryBookmarkStore()
    assert subscription_log(ours, "s") is ours.subscription("s")
    assert isinstance(subscription_log(DictBookmarkStore(), "s"), StoreSubscription)


def test_a_lost_command_says_which_it_was_and_a_connection_says_why() -> None:
    reason: HAClientError = DisconnectedError("the peer closed it")
    pending = PendingCommand("1", "flush", awaited="processed", wake=lambda: None)
    assert lost_error(None, reason) is reason
    error = lost_error(pending, reason)
    assert str(error) == "flush: not confirmed: the peer closed it"
    assert error.__cause__ is reason


@pytest.mark.row("BS9")
async def test_the_next_form_is_asked_for_only_where_one_is_not_understood() -> None:
    asked: list[str] = []

    def refused() -> None:
        asked.append("refused")

    async def enter(bookmark: str) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(bookmark)
        if bookmark == "a,b":
            raise InvalidBookmark("no mixtures")
        if bookmark == "lost":
            raise DisconnectedError("lost")

    await best_first(("a,b", "a"), enter, refused)
    await best_first(("c", "a"), enter, refused)
    with pytest.raises(InvalidBookmark):
        await best_first(("a,b",), enter, refused)
    with pytest.raises(DisconnectedError):
        await best_first(("lost", "a"), enter, refused)
    assert asked == ["a,b", "refused", "a", "c", "a,b", "lost"]
