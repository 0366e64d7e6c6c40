"""A subscription whose queue is full is paused at the server, while all else goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import CommandError, DisconnectedError, HAClientError
from haclient.events import Event, EventListener, SubscriptionPaused, SubscriptionResumed
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.session import back_pressure
from haclient.session.connection_state import ConnectionState
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import SubscriptionLog
from support.broker import running_broker
from support.clock import in_virtual_time
from support.listening import on_losses
from support.peer import Peer, Server, answering, together

pytestmark = pytest.mark.row("MS5", "CC23")

CAP = 10_000
BODY = bytes(1_000)


@dataclass
class Slow:
    """A consumer that waits until it is allowed to go on."""

    gate: trio.Event = field(default_factory=trio.Event)
    got: list[bytes] = field(default_factory=list[bytes])
    arrival: trio.Event = field(default_factory=trio.Event)

    async def take(self, message: Message) -> None:
        await self.gate.wait()
        self.got.append(message.data)
        message.discard()
        self.arrival.set()
        self.arrival = trio.Event()

    async def has(self, count: int) -> None:
        """Wait for so many messages."""
        while len(self.got) < count:
            await self.arrival.wait()


@asynccontextmanager
async def subscribed(
    server: Server,
    slow: Slow,
    *,
    options: str = "",
    seen: list[bytes] | None = None,
    on_event: EventListener | None = None,
) -> AsyncGenerator[tuple[Client, Peer]]:
    """A client with the slow subscription `s` and a plain one `t`, and its server."""
    client = Client(
        "c",
        bookmark_store=MemoryBookmarkStore(),
        max_queued_bytes=CAP,
        exit_timeout=0,
        on_event=on_event,
    )
    async with client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", bookmark=EPOCH, sub_id="s", handler=slow.take, options=options
            )
            await client.subscribe(
                "trades", sub_id="t", handler=lambda m: (seen or []).append(m.data)
            )
        yield client, peer


async def fill(peer: Peer, count: int, *, first: int = 1, sub_id: str = "s") -> None:
    for number in range(first, first + count):
        await peer.publish(sub_id, b"%04d" % number + BODY, bm=f"7|{number}|")
        await wait_all_tasks_blocked()  # what is read at once is taken at once


async def says_nothing(peer: Peer) -> None:
    with pytest.raises(trio.TooSlowError), trio.fail_after(60):
        await peer.hear()


@asynccontextmanager
async def paused(
    server: Server,
    slow: Slow,
    *,
    on_event: EventListener | None = None,
) -> AsyncGenerator[tuple[Client, Peer]]:
    """As `subscribed`; `s` is over its cap, and the client has paused it."""
    async with subscribed(server, slow, on_event=on_event) as (client, peer):
        await fill(peer, 12)
        await peer.ack(await peer.expect("subscribe", options="pause"))
        await wait_all_tasks_blocked()
        yield client, peer


def log_of(client: Client | HAClient) -> SubscriptionLog:
    store = client.bookmark_store
    assert isinstance(store, MemoryBookmarkStore)
    return store.subscription("s")


def numbers(bodies: list[bytes]) -> list[int]:
    return [int(body[:4]) for body in bodies]


@in_virtual_time
@pytest.mark.row("OB1")
async def test_it_is_paused_over_its_cap_and_resumed_when_half_of_it_is_free(
    server: Server,
) -> None:
    slow, seen = Slow(), [b"first"]
    async with subscribed(server, slow, seen=seen) as (client, peer):
        events: list[Event] = []
        client.add_event_listener(events.append)
        await fill(peer, 12)
        pause = await peer.expect("subscribe", options="pause", sub_id="s", topic="")
        await fill(peer, 3, first=13)  # what was on the way
        await peer.publish("t", b"of the other")
        await wait_all_tasks_blocked()
        assert seen == [b"first", b"of the other"], "the connection is read on"
        await peer.ack(pause)
        await wait_all_tasks_blocked()
        log = log_of(client)
        assert log.paused
        slow.gate.set()
        resume = await peer.expect("subscribe", options="resume", sub_id="s")
        await peer.ack(resume)
        await fill(peer, 2, first=16)
        assert numbers(slow.got) == list(range(1, 18))
        assert not log.paused
        assert [(type(each), each.sub_id) for each in events if hasattr(each, "sub_id")] == [
            (SubscriptionPaused, "s"),
            (SubscriptionResumed, "s"),
        ]


@in_virtual_time
async def test_what_arrives_though_it_is_paused_stops_the_reading_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "IN_FLIGHT_BYTES", CAP)
    slow, seen = Slow(), [b"first"]
    async with subscribed(server, slow, seen=seen) as (client, peer):
        await fill(peer, 40)
        await peer.publish("t", b"behind them")
        await wait_all_tasks_blocked()
        assert seen == [b"first"], "memory stays bounded"
        (metrics,) = [each for each in client.metrics.subscriptions if each.sub_id == "s"]
        assert 2 * CAP < metrics.queued_bytes < 3 * CAP
        slow.gate.set()
        async with answering(peer):
            await wait_all_tasks_blocked()
            assert seen == [b"first", b"behind them"]
            assert numbers(slow.got) == list(range(1, 41))


@in_virtual_time
async def test_what_may_arrive_though_they_are_paused_is_shared_by_all_of_a_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "IN_FLIGHT_BYTES", CAP)
    slow, seen = Slow(), [b"first"]
    others = {sub_id: Slow() for sub_id in "ab"}
    async with subscribed(server, slow, seen=seen) as (client, peer):
        async with answering(peer):
            for sub_id, each in others.items():
                await client.bookmark_subscribe(
                    "o", bookmark=EPOCH, sub_id=sub_id, handler=each.take
                )
        await fill(peer, 18)  # the fullest, whose consumer never goes on
        for sub_id in others:
            await fill(peer, 12, sub_id=sub_id)
        await peer.publish("t", b"behind them")
        await wait_all_tasks_blocked()
        queued_bytes = sum(each.queued_bytes for each in client.metrics.subscriptions)
        assert 4 * CAP < queued_bytes < 4 * CAP + 3_000, "three caps, and what all share"
        assert seen == [b"first"]
        others["a"].gate.set()
        async with answering(peer):
            await wait_all_tasks_blocked()
            assert seen == [b"first", b"behind them"], (
                "there is room again, though not in the fullest"
            )
            for each in others.values():
                each.gate.set()
            await wait_all_tasks_blocked()
        assert [len(each.got) for each in others.values()] == [12, 12]


@in_virtual_time
@pytest.mark.parametrize("kind", ["live", "plain", "delta"])
async def test_a_subscription_that_cannot_be_paused_stops_the_reading(
    server: Server, kind: str
) -> None:
    slow = Slow()
    async with subscribed(server, slow, options="live" if kind == "live" else "") as (client, peer):
        sub_id = "s"
        if kind != "live":
            sub_id = "u"
            async with answering(peer):
                if kind == "plain":
                    await client.subscribe("orders", sub_id="u", handler=slow.take)
                else:
                    await client.subscribe("orders", delta=True, sub_id="u", handler=slow.take)
        await fill(peer, 30, sub_id=sub_id)
        await says_nothing(peer)
        (metrics,) = [each for each in client.metrics.subscriptions if each.sub_id == sub_id]
        assert metrics.queued_bytes < 2 * CAP


@in_virtual_time
async def test_a_server_that_refuses_is_asked_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    slow, seen = Slow(), [b"first"]
    async with subscribed(server, slow, seen=seen) as (_, peer):
        await fill(peer, 12)
        await peer.refuse(await peer.expect("subscribe", options="pause"), "bad options")
        await wait_all_tasks_blocked()
        await fill(peer, 1, first=13)
        await peer.publish("t", b"later")
        await wait_all_tasks_blocked()
        assert seen == [b"first"], "as without pauses"
        slow.gate.set()
        await wait_all_tasks_blocked()
        assert seen == [b"first", b"later"]
        assert numbers(slow.got) == list(range(1, 14))
        slow.gate = trio.Event()
        await fill(peer, 15, first=14)
        await says_nothing(peer)
        slow.gate.set()
    assert (
        caplog.text.count(
            "does not pause a subscription with a full queue (pause of s: bad options"
        )
        == 1
    )


async def query(client: Client, peer: Peer, slow: Slow) -> Message:
    """Have the client send a query of the past, `q`, that a replay follows; return its command."""
    _, asked = await together(
        lambda: client.sow_and_subscribe("orders", bookmark=EPOCH, sub_id="q", handler=slow.take),
        lambda: peer.answer("sow_and_subscribe"),
    )
    return asked


@in_virtual_time
@pytest.mark.row("CC15")
async def test_a_query_of_the_past_is_paused_once_it_is_answered(server: Server) -> None:
    slow, other, seen = Slow(), Slow(), [b"first"]
    async with subscribed(server, other, seen=seen) as (client, peer):
        asked = await query(client, peer, slow)
        await peer.records(asked, b"0000")
        await fill(peer, 12, sub_id="q")
        pause = await peer.expect("subscribe", options="pause", sub_id="q", topic="")
        await fill(peer, 3, first=13, sub_id="q")  # what was on the way
        await peer.publish("t", b"of the other")
        await wait_all_tasks_blocked()
        assert seen == [b"first", b"of the other"], "the connection is read on"
        await peer.ack(pause)
        await wait_all_tasks_blocked()
        slow.gate.set()
        await peer.ack(await peer.expect("subscribe", options="resume", sub_id="q"))
        await fill(peer, 2, first=16, sub_id="q")
        assert numbers([each for each in slow.got if each]) == list(range(18))


@in_virtual_time
@pytest.mark.row("CC15")
async def test_a_query_that_is_not_answered_yet_stops_the_reading(server: Server) -> None:
    slow, other, seen = Slow(), Slow(), [b"first"]
    async with subscribed(server, other, seen=seen) as (client, peer):
        asked = await query(client, peer, slow)
        await peer.say("group_begin", query_id="q")
        await fill(peer, 30, sub_id="q")
        await says_nothing(peer)
        (metrics,) = [each for each in client.metrics.subscriptions if each.sub_id == "q"]
        assert metrics.queued_bytes < 2 * CAP
        assert asked.query_id == "q"


@in_virtual_time
@pytest.mark.row("CC15")
@pytest.mark.parametrize("first", ["q", "s"])
async def test_a_server_that_refuses_to_pause_one_kind_is_asked_for_the_other(
    server: Server, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    slow, of_query = Slow(), Slow()
    async with subscribed(server, slow) as (client, peer):
        await peer.records(await query(client, peer, of_query), b"0000")
        second = "s" if first == "q" else "q"
        await fill(peer, 12, sub_id=first)
        refused = await peer.expect("subscribe", options="pause", sub_id=first)
        await peer.refuse(refused, "bad options")
        await wait_all_tasks_blocked()
        slow.gate.set()
        of_query.gate.set()
        await wait_all_tasks_blocked()
        slow.gate, of_query.gate = trio.Event(), trio.Event()
        await fill(peer, 12, sub_id=second, first=13)
        await peer.ack(await peer.expect("subscribe", options="pause", sub_id=second))
        slow.gate.set()
        of_query.gate.set()
        await peer.ack(await peer.expect("subscribe", options="resume", sub_id=second))
        slow.gate, of_query.gate = trio.Event(), trio.Event()
        await fill(peer, 15, sub_id=first, first=25)
        await says_nothing(peer)
        slow.gate.set()
        of_query.gate.set()
    assert caplog.text.count("does not pause a subscription with a full queue") == 1


@in_virtual_time
@pytest.mark.parametrize("answer", ["refused", "none"])
async def test_a_subscription_that_is_not_resumed_ends_the_connection(
    server: Server, answer: str
) -> None:
    """It would be silent for ever, and nobody would know why."""
    slow, reasons = Slow(), list[HAClientError]()
    async with paused(server, slow, on_event=on_losses(reasons.append)) as (client, peer):
        slow.gate.set()
        resume = await peer.expect("subscribe", options="resume")
        if answer == "refused":
            await peer.refuse(resume, "bad options")
        await peer.expect_end()
        await wait_all_tasks_blocked()
    (reason,) = reasons
    assert isinstance(reason, DisconnectedError)
    assert "does not resume it" in str(reason)
    assert numbers(slow.got) == list(range(1, 13))
    changes = client._core.changes  # pyright: ignore[reportPrivateUsage]  # what it remembers
    assert bool(changes.cannot_pause) == (answer == "refused")


@in_virtual_time
async def test_several_that_are_not_resumed_at_once_end_the_connection_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    slow, reasons = Slow(), list[HAClientError]()
    async with subscribed(server, slow, on_event=on_losses(reasons.append)) as (client, peer):
        async with answering(peer):
            await client.bookmark_subscribe("o", bookmark=EPOCH, sub_id="u", handler=slow.take)
        for sub_id in ("s", "u"):
            await fill(peer, 12, sub_id=sub_id)
            await peer.ack(await peer.expect("subscribe", options="pause", sub_id=sub_id))
        await wait_all_tasks_blocked()
        slow.gate.set()
        resumes = [await peer.expect("subscribe", options="resume") for _ in range(2)]
        both = [
            encode_frame(
                {"c": "ack", "a": "processed", "status": "failure", "cid": each.command_id}
                | {"reason": "bad options"}
            )
            for each in resumes
        ]
        await peer.send(b"".join(both))  # read at once
        await peer.expect_end()
        await wait_all_tasks_blocked()
    (reason,) = reasons
    assert "does not resume it" in str(reason)
    assert caplog.text.count("does not pause a subscription with a full queue") == 1


@in_virtual_time
@pytest.mark.row("BS9")
async def test_what_the_application_pauses_meanwhile_is_not_resumed(server: Server) -> None:
    slow = Slow()
    async with paused(server, slow) as (client, peer):
        await together(lambda: client.pause("s"), lambda: peer.answer("subscribe"))
        slow.gate.set()
        await wait_all_tasks_blocked()
        await says_nothing(peer)
        log = log_of(client)
        assert log.paused
        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        assert not log.paused
        await fill(peer, 3, first=13)
        assert numbers(slow.got) == list(range(1, 16))


@in_virtual_time
async def test_what_the_application_resumes_while_it_is_full_is_paused_again(
    server: Server,
) -> None:
    slow = Slow()
    async with paused(server, slow) as (client, peer):
        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        await fill(peer, 1, first=13)
        await peer.ack(await peer.expect("subscribe", options="pause"))
        await wait_all_tasks_blocked()
        assert log_of(client).paused
        slow.gate.set()
        async with answering(peer):
            await slow.has(13)
            await wait_all_tasks_blocked()
        assert not log_of(client).paused


@in_virtual_time
async def test_what_the_application_resumes_meanwhile_is_not_resumed_twice(
    server: Server,
) -> None:
    slow = Slow()
    async with paused(server, slow) as (client, peer):
        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        assert not log_of(client).paused
        slow.gate.set()
        await says_nothing(peer)
        assert numbers(slow.got) == list(range(1, 13))


@in_virtual_time
async def test_a_pause_of_the_application_that_is_refused_leaves_the_clients_own(
    server: Server,
) -> None:
    slow = Slow()
    async with paused(server, slow) as (client, peer):

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe", options="pause"), "not entitled")

        with pytest.raises(CommandError):
            await together(lambda: client.pause("s"), refuse)
        log = log_of(client)
        assert log.paused, "the server has paused it for the client"
        slow.gate.set()
        await peer.ack(await peer.expect("subscribe", options="resume"))
        await wait_all_tasks_blocked()
        assert not log.paused


@in_virtual_time
async def test_one_that_has_ended_meanwhile_is_not_resumed(server: Server) -> None:
    slow = Slow()
    async with paused(server, slow) as (client, peer):
        await together(lambda: client.unsubscribe("s"), lambda: peer.answer("unsubscribe"))
        slow.gate.set()
        await says_nothing(peer)
        assert client.state is ConnectionState.LOGGED_ON


@in_virtual_time
@pytest.mark.row("HA17")
async def test_the_next_connection_begins_without_the_pause(server: Server) -> None:
    slow = Slow()
    client = HAClient(
        "c",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore(),
        max_queued_bytes=CAP,
        heartbeat=None,
        exit_timeout=0,
    )

    async def serve() -> Peer:
        peer = await server.accept()
        await peer.log_on()
        return peer

    async with trio.open_nursery() as nursery:

        async def run() -> None:
            async with client:
                await client.bookmark_subscribe(
                    "^orders/.*$",
                    bookmark=EPOCH,
                    sub_id="s",
                    handler=slow.take,
                    filter="/px > 1",
                    options="timestamp",
                )
                await trio.sleep_forever()

        nursery.start_soon(run)
        peer = await serve()
        first = await peer.answer("subscribe")
        await fill(peer, 12)
        await peer.ack(await peer.expect("subscribe", options="pause"))
        peer.link.close()
        again = await serve()
        heard = await again.answer("subscribe")
        assert (
            (heard.topic, heard.filter) == (first.topic, first.filter) == ("^orders/.*$", "/px > 1")
        )
        assert (heard.options, first.options) == ("bookmark_not_found=epoch,timestamp", "timestamp")
        assert not log_of(client).paused
        slow.gate.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


# -- with the broker ----------------------------------------------------------------------


@pytest.mark.row("MS5", "BS9")
async def test_a_slow_subscription_holds_up_no_other_of_its_connection() -> None:
    count, size = 400, 50_000
    async with running_broker() as broker, Client("publisher") as publisher:
        uri = f"{broker.uris[0]}/amps/json"
        await publisher.connect(uri)
        await publisher.logon()
        client = Client("c", bookmark_store=MemoryBookmarkStore(), max_queued_bytes=100_000)
        async with client:
            await client.connect(uri)
            await client.logon()
            slow, quick = Slow(), Slow()
            quick.gate.set()
            for sub_id, consumer in (("slow", slow), ("quick", quick)):
                await client.bookmark_subscribe(
                    "orders", bookmark=EPOCH, sub_id=sub_id, handler=consumer.take
                )
            with trio.fail_after(60):
                for number in range(count):
                    await publisher.publish("orders", b"%04d" % number + bytes(size))
                await quick.has(count)
                held = {each.sub_id: each.queued_bytes for each in client.metrics.subscriptions}
                assert 100_000 < held["slow"] <= 100_000 + back_pressure.IN_FLIGHT_BYTES
                assert not slow.got
                slow.gate.set()
                await slow.has(count)
        assert numbers(quick.got) == numbers(slow.got) == list(range(count))


@pytest.mark.row("CC15")
async def test_a_slow_query_of_the_past_holds_up_no_other_of_its_connection() -> None:
    count, size = 400, 50_000
    config = BrokerConfig(sow_topics=(SowTopic("prices", ("/id",), history=True),))
    async with running_broker(config) as broker, Client("publisher") as publisher:
        uri = f"{broker.uris[0]}/amps/json"
        await publisher.connect(uri)
        await publisher.logon()
        client = Client("c", bookmark_store=MemoryBookmarkStore(), max_queued_bytes=100_000)
        events = list[Event]()
        async with client:
            client.add_event_listener(events.append, SubscriptionPaused, SubscriptionResumed)
            await client.connect(uri)
            await client.logon()
            slow, quick = Slow(), Slow()
            quick.gate.set()
            await client.bookmark_subscribe(
                "prices", bookmark=EPOCH, sub_id="quick", handler=quick.take
            )
            await publisher.publish("prices", b'{"id":0}')
            await quick.has(1)
            await client.sow_and_subscribe(
                "prices", bookmark=EPOCH, sub_id="slow", handler=slow.take
            )
            with trio.fail_after(60):
                for number in range(1, count):
                    await publisher.publish("prices", b'{"id":%d,"x":"%s"}' % (number, b"x" * size))
                await quick.has(count)
                slow.gate.set()
                while not slow.got or slow.got[-1] != quick.got[-1]:
                    await slow.arrival.wait()
        assert [each for each in slow.got if each] == quick.got
        assert {(type(each), each.sub_id) for each in events if hasattr(each, "sub_id")} >= {
            (SubscriptionPaused, "slow"),
            (SubscriptionResumed, "slow"),
        }
