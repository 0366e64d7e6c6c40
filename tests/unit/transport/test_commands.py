from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import (
    CommandError,
    DisconnectedError,
    HAClientError,
    InvalidBookmark,
    StoreFull,
    SubIdInUse,
    TimedOut,
    WouldBlock,
)
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand
from haclient.session.connection_state import ConnectionStatus
from haclient.session.custom_stores import StoreSubscription
from haclient.session.logon import LoggedOn
from haclient.session.session import Session
from haclient.session.subscriptions import SubscribeRequest, Subscription
from haclient.transport.commands import (
    Commander,
    Fields,
    best_first,
    delete_stored,
    lost_error,
    subscription_log,
)
from haclient.transport.connection import Connection
from haclient.transport.events import Events
from haclient.transport.memory_network import link_pair
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher
from haclient.transport.writer import SendGate, Writer
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.ring import MIN_RING_BYTES, RingPublishStore
from haclient_stores.publish_stores.segment import MIN_SEGMENT_BYTES
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.peer import Peer, Server, answering, listening, together
from support.recovery import entered, live, lose
from support.reporting import unheard

pytestmark = in_virtual_time


class Bench:
    """A commander on a connection in memory."""

    def __init__(self, store: BookmarkStore | None = None) -> None:
        near, far = link_pair()
        self.session = Session()
        self.status = ConnectionStatus()
        self.peer = Peer(far)
        self.commander = Commander(self.session, store, self.status, unheard())
        self.connection = self.commander.connection = Connection(
            near,
            self.session,
            writer=Writer(near, None, SendGate(1 << 40)),
            on_received=lambda _: None,
            events=Events(),
            ack_awaited=lambda: True,
            on_stopped=lambda: None,
            on_caught_up=lambda _until, _last: None,
        )
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


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    async with listening() as found:
        yield found


class Deletion:
    """A delete on its way."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stats: list[Message] = []

    async def run(self) -> None:
        self.stats.append(await self.client.sow_delete("orders", filter="1=1", timeout=30))


def client_of(server: Server, store: PublishLog) -> HAClient:
    return HAClient("ha", servers=[server.uri], publish_store=store, heartbeat=None)


async def answer(peer: Peer, message: Message, count: int) -> None:
    await peer.ack(message)
    await peer.ack(message, "stats", records_deleted=count)
    await peer.persisted(message.sequence or 0)


@pytest.mark.row("PS3", "PS7")
async def test_its_answer_comes_from_the_next_server_and_it_is_stored_once(
    server: Server,
) -> None:
    store = MemoryPublishStore()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        deletion = Deletion(client)
        await client.publish("orders", b"before")
        nursery.start_soon(deletion.run)
        await wait_all_tasks_blocked()
        await client.publish("orders", b"after")
        await peer.expect("publish")
        first = await peer.expect("sow_delete")
        await lose(peer)
        again = await live(server)
        heard = [await again.hear() for _ in range(3)]
        assert [message.command for message in heard] == ["publish", "sow_delete", "publish"]
        assert heard[1].sequence == first.sequence
        await answer(again, heard[1], 7)
        await again.persisted(store.last_sequence)
        await wait_all_tasks_blocked()
        assert [message.records_deleted for message in deletion.stats] == [7]
        assert store.unpersisted_count == 0


@pytest.mark.row("PS3")
async def test_what_the_next_server_has_already_is_answered_without_counts(
    server: Server,
) -> None:
    store = MemoryPublishStore()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        deletion = Deletion(client)
        nursery.start_soon(deletion.run)
        sequence = (await peer.expect("sow_delete")).sequence or 0
        await lose(peer)
        await live(server, seen=sequence, persisted=sequence)
        await wait_all_tasks_blocked()
        (stats,) = deletion.stats
        assert (stats.ack_type, stats.sequence, stats.records_deleted) == ("stats", sequence, None)


@pytest.mark.row("PS3")
async def test_the_same_when_only_the_counts_were_lost(server: Server) -> None:
    store = MemoryPublishStore()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        deletion = Deletion(client)
        nursery.start_soon(deletion.run)
        await peer.persisted((await peer.expect("sow_delete")).sequence or 0)
        await wait_all_tasks_blocked()
        assert deletion.stats == []  # they may still come
        await lose(peer)
        assert [stats.status for stats in deletion.stats] == ["success"]


@pytest.mark.row("PS3")
async def test_without_a_connection_it_is_stored_at_once_and_in_order(server: Server) -> None:
    store = MemoryPublishStore()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        with pytest.raises(TimedOut, match="did not answer within 1 s"):
            await client.sow_delete("orders", filter="1=1", timeout=1)
        await client.publish("orders", b"after")
        again = await live(server)
        await again.expect("sow_delete")
        await again.expect("publish")
        await again.persisted(store.last_sequence)


@pytest.mark.row("PS3")
async def test_a_refusal_is_not_repeated(server: Server) -> None:
    client = client_of(server, MemoryPublishStore())
    async with entered(client, partial(live, server)) as peer:

        async def refuse() -> None:
            message = await peer.expect("sow_delete")
            await peer.refuse(message, "not today")
            await peer.persisted(message.sequence or 0)

        with pytest.raises(CommandError, match="not today"):
            await together(lambda: client.sow_delete("orders", filter="1=1"), refuse)


@pytest.mark.row("PS3", "HA18")
async def test_it_waits_for_room_like_a_publish(server: Server) -> None:
    store = MemoryPublishStore()
    async with Client("c", publish_store=store, max_unpersisted_bytes=1000) as client:
        peer = await server.log_on(client)
        await client.publish("orders", bytes(400_000))
        last = store.last_sequence
        deletion = Deletion(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deletion.run)
            assert (await peer.expect("publish")).sequence == last
            await wait_all_tasks_blocked()
            assert store.last_sequence == last  # nothing more was stored
            await peer.persisted(last)
            await answer(peer, await peer.expect("sow_delete"), 1)
        assert [message.records_deleted for message in deletion.stats] == [1]


@pytest.mark.row("PS3", "CC16")
async def test_without_a_store_it_is_never_said_twice(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:

        async def cut() -> None:
            await peer.expect("sow_delete")
            await lose(peer)

        with pytest.raises(DisconnectedError, match="sow_delete: not confirmed"):
            await together(lambda: client.sow_delete("orders", filter="1=1"), cut)
        with pytest.raises(TimedOut, match="the server did not answer within 1 s"):
            await client.sow_delete("orders", filter="1=1", timeout=1)
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
        assert [message.command for message in again.heard] == ["logon", "flush"]


@pytest.mark.row("PS3", "PS20")
async def test_durability_fsync_holds_for_it_too() -> None:
    class Synced(DictPublishStore):
        durability = "fsync"

    store = Synced()
    status = ConnectionStatus(reconnects=True)
    publisher = Publisher(store, would_deadlock=lambda _: None, status=status)
    commander = Commander(Session(), None, status, unheard(0))
    with pytest.raises(TimedOut):
        await delete_stored(commander, publisher, {"c": "sow_delete", "t": "t"}, b"", timeout=1)
    assert store.synced == 1
    assert len(commander.session.pending) == 0


def refusing_growth() -> MemoryPublishStore:
    return MemoryPublishStore(
        segment_bytes=MIN_SEGMENT_BYTES, resize_handler=lambda size: size <= MIN_SEGMENT_BYTES
    )


FULL: dict[str, Callable[[], PublishLog]] = {
    "ring": lambda: RingPublishStore(None, MIN_RING_BYTES),
    "refused growth": refusing_growth,
}


def publish_for_ever(client: Client, body: bytes) -> None:
    while True:
        client.publish_nowait("orders", body)


@pytest.mark.row("PS3", "PS17", "PS18")
@pytest.mark.parametrize("kind", FULL)
async def test_in_a_full_store_it_waits_for_acks_like_a_publish(server: Server, kind: str) -> None:
    store = FULL[kind]()
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        with pytest.raises(WouldBlock):
            publish_for_ever(client, bytes(1000))
        with pytest.raises(WouldBlock):  # nor is there room for anything small
            publish_for_ever(client, b"")
        last = store.last_sequence
        deletion = Deletion(client)
        nursery.start_soon(deletion.run)
        while (await peer.expect("publish")).sequence != last:
            pass
        await wait_all_tasks_blocked()
        assert (store.last_sequence, deletion.stats) == (last, [])
        await peer.persisted(last)
        await answer(peer, await peer.expect("sow_delete"), 3)
        await wait_all_tasks_blocked()
        assert [message.records_deleted for message in deletion.stats] == [3]


@pytest.mark.row("PS3", "PS18")
async def test_a_full_store_that_raises_does_so_for_it_too(server: Server) -> None:
    store = RingPublishStore(None, MIN_RING_BYTES, "raise")
    client = client_of(server, store)
    async with entered(client, partial(live, server)) as peer:
        with pytest.raises(StoreFull):
            publish_for_ever(client, bytes(1000))
        last = store.last_sequence
        with pytest.raises(StoreFull):
            await client.sow_delete("orders", filter="/id = " + "1" * 1500, timeout=30)
        assert store.last_sequence == last
        await peer.persisted(last)
