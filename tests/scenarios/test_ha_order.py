"""What a handler sees across connections, and what a connection says about its end (SM11, HA26)."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    NameInUse,
    ProtocolError,
    SlowClient,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.tracker.tracker import SubscriptionTracker
from support.clock import in_virtual_time
from support.lengths import length
from support.listening import on_losses
from support.peer import Peer, Server, answering
from support.recovery import drop, entered, live, lose, until_stable

pytestmark = in_virtual_time


class Run:
    """A server's log of 40 messages, connections that break, and handlers that take their time."""

    def __init__(self, client: HAClient, seed: int) -> None:
        self.client = client
        self.chance = random.Random(seed)
        self.connection = 0
        self.published = 0
        self.logged: list[tuple[int, int]] = []
        self.plain: list[tuple[int, int]] = []
        self.finished: set[int] = set()
        self.held: list[Message] = []

    async def enter(self, peer: Peer) -> None:
        async with answering(peer):
            await self.client.bookmark_subscribe("orders", sub_id="b", handler=self.handle)
            await self.client.subscribe("prices", sub_id="p", handler=self.handle_plain)

    async def handle(self, message: Message) -> None:
        sent_by, number = map(int, message.data.split())
        assert number not in self.finished, "delivered again after its discard"
        self.logged.append((sent_by, number))
        await trio.sleep(self.chance.choice([0, 0, 0.1, 1.0]))
        self.held.append(message)
        while self.held and self.chance.random() < 0.7:
            self.finish(self.held.pop(self.chance.randrange(len(self.held))))

    def finish(self, message: Message) -> None:
        message.discard()
        self.finished.add(int(message.data.split()[1]))

    async def handle_plain(self, message: Message) -> None:
        sent_by, number = map(int, message.data.split())
        self.plain.append((sent_by, number))
        await trio.sleep(self.chance.choice([0, 0.1]))

    async def serve(self, peer: Peer, begin: int) -> None:
        """Replay from `begin`, publish some more, acknowledge some of it."""
        self.connection += 1
        self.published = min(40, self.published + self.chance.randrange(9))
        async with answering(peer):
            for number in range(begin, self.published + 1):
                body = b"%d %d" % (self.connection, number)
                await peer.publish("b", body, bm=f"7|{number}|")
                await peer.publish("p", body)
                if self.chance.random() < 0.3:
                    await peer.ack(None, "persisted", sub_id="b", bm=f"7|{number}|")
                    await trio.sleep(self.chance.choice([0, 0, 0.3]))
            await trio.sleep(self.chance.choice([0, 0.3, 2.0]))


@pytest.mark.row("SM11", "BS11")
@pytest.mark.parametrize("seed", range(length(40)))
async def test_no_message_of_an_old_connection_comes_after_one_of_the_new(
    server: Server, seed: int
) -> None:
    """Slow handlers, losses at any moment, discards in any order: each message once, in order."""
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=MemoryBookmarkStore(), heartbeat=None
    )
    run = Run(client, seed)
    async with entered(client, partial(live, server)) as first:
        peer, begin = first, 1
        await run.enter(peer)
        while True:
            await run.serve(peer, begin)
            if run.published == 40:
                break
            await lose(peer)
            peer = await live(server)
            resumed = await peer.answer("subscribe")
            await peer.answer("subscribe")
            begin = 1 if resumed.bookmark == "0" else int(resumed.bookmark.split("|")[1]) + 1
        async with answering(peer):
            await trio.sleep(1000)
    assert run.connection > 4
    for seen in (run.logged, run.plain):
        assert [sent_by for sent_by, _ in seen] == sorted(sent_by for sent_by, _ in seen)
    assert [number for _, number in run.logged] == list(range(1, 41))


@pytest.mark.row("HA9", "HA26")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("slow client", SlowClient),
        ("heartbeat", HeartbeatLost),
        ("entitlement reset", AuthenticationError),
        ("transport disabled", DisconnectedError),
    ],
)
async def test_the_application_hears_why_it_was_cut(
    server: Server, reason: str, kind: type[HAClientError]
) -> None:
    told: list[HAClientError] = []
    client = HAClient("ha", servers=[server.uri], heartbeat=None, on_event=on_losses(told.append))
    async with entered(client, partial(live, server)) as peer:
        await until_stable(peer)
        await peer.ack(None, status="failure", reason=reason)
        await drop(peer)
        assert [type(error) for error in told] == [kind]
        assert reason in str(told[0])
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("HA26", "HA27")
async def test_a_name_that_was_taken_is_told_and_ends_it(server: Server) -> None:
    told: list[HAClientError] = []
    client = HAClient("ha", servers=[server.uri], heartbeat=None, on_event=on_losses(told.append))
    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            await until_stable(peer)
            await peer.ack(None, status="failure", reason="name in use")
            await drop(peer)
            await trio.sleep_forever()


@pytest.mark.row("HA26", "SM9")
async def test_a_connection_that_was_given_up_says_what_for(server: Server) -> None:
    told: list[HAClientError] = []
    client = HAClient(
        "ha",
        servers=[server.uri],
        heartbeat=None,
        connect_timeout=1.0,
        on_event=on_losses(told.append),
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=lambda _: None)
        await lose(peer)
        mute = await live(server)
        await mute.expect("subscribe")
        again = await live(server)
        await again.answer("subscribe")
        assert "did not answer within 1 s" in str(told[1])
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("SM9")
async def test_the_answer_to_a_subscription_that_is_sent_again_has_the_limit_of_a_step(
    server: Server,
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        connect_timeout=30.0,
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for sub_id in ("a", "b"):
                await client.bookmark_subscribe("orders", sub_id=sub_id, handler=lambda _: None)
        await lose(peer)
        slow = await live(server)
        sent = [await slow.expect("subscribe") for _ in range(2)]
        await trio.sleep(25.0)
        for each in sent:
            await slow.ack(each)
        async with answering(slow):
            await client.flush(timeout=1)
        await drop(slow)
        mute = await live(server)
        waited = trio.current_time()
        for _ in sent:
            await mute.expect("subscribe")
        await mute.expect_end()
        assert trio.current_time() - waited == pytest.approx(30.0, abs=1.0)


@pytest.mark.row("SM9", "HA17")
@pytest.mark.parametrize("progress", ["takes", "persists", "none"])
async def test_a_backlog_before_a_subscription_is_no_delay_of_its_answer(
    server: Server, progress: str
) -> None:
    client = HAClient.memory_backed(
        "ha", servers=[server.uri], heartbeat=None, connect_timeout=1.0, exit_timeout=0
    )
    count = 300
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=lambda _: None)
        await drop(peer)
        for _ in range(count):
            await client.publish("orders", bytes(10_000))
        slow = await live(server)
        began, sequence = trio.current_time(), 0
        for _ in range(count):
            sequence = (await slow.expect("publish")).sequence or 0
            await trio.sleep(0.02 if progress == "takes" else 0)
        for at in range(20 if progress == "persists" else 0):
            await slow.persisted(sequence - count + 1 + at)
            await trio.sleep(0.5)
        again = await slow.expect("subscribe")
        assert (trio.current_time() - began > 5.0) == (progress != "none")
        if progress == "none":
            await slow.expect_end()
            assert trio.current_time() - began == pytest.approx(2.0, abs=1.0)
        else:
            await slow.ack(again)
            async with answering(slow):
                await client.flush(timeout=1)
        assert len(server.peers) == 2
        await client.disconnect()


@pytest.mark.row("BS2", "BS11")
async def test_what_stood_before_something_unreadable_is_delivered_once(server: Server) -> None:
    """It is in the bookmark store already: forgotten, it would never come again."""

    class Strict(SubscriptionTracker):
        @override
        def log_batch(self, bookmarks: list[str]) -> list[int] | range:
            if "nonsense" in bookmarks:
                raise UsageError("no bookmark")
            return super().log_batch(bookmarks)

    class Store(MemoryBookmarkStore):
        def __init__(self) -> None:
            super().__init__()
            self._handles = {
                n: SubscriptionHandle(StoreNotes(Strict(), self._thread)) for n in "ab"
            }

        @override
        def subscription(self, sub_id: str) -> SubscriptionHandle:
            return self._handles[sub_id]

    told, got = list[HAClientError](), list[bytes]()

    def keep(message: Message) -> None:
        got.append(message.data)
        message.discard()

    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=Store(),
        heartbeat=None,
        on_event=on_losses(told.append),
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for name in "ab":
                await client.bookmark_subscribe("orders", sub_id=name, handler=keep)
        await peer.send(
            b"".join(
                bytes([0, 0, 0, len(frame)]) + frame
                for frame in (
                    b'{"c":"p","t":"orders","sids":"a","bm":"7|1|"}1',
                    b'{"c":"p","t":"orders","sids":"b","bm":"nonsense"}2',
                    b'{"c":"p","t":"orders","sids":"a","bm":"7|2|"}3',
                )
            )
        )
        await wait_all_tasks_blocked()
        again = await live(server)
        assert isinstance(told[0], ProtocolError)
        await again.answer("subscribe")
        await again.answer("subscribe")
        await again.publish("a", b"1", b"3", bm="7|1|")
        async with answering(again):
            await client.flush(timeout=1)
        assert got == [b"1", b"3"]
