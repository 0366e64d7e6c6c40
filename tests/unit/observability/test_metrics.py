"""Counters, gauges and health of a client."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import ReconnectGaveUp, UsageError
from haclient.observability.health import NO_PROGRESS_S, Health
from haclient.observability.metrics import ClientMetrics, SubscriptionMetrics
from haclient.options import wall_clock
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, client_with_stores, listening
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"


@pytest.mark.row("OB3")
async def test_the_counters_and_gauges_of_a_client_follow_what_it_does() -> None:
    async with (
        listening() as server,
        client_with_stores("c") as client,
    ):
        before = client.metrics
        assert (before.state, before.server, before.subscriptions) == ("disconnected", "", ())
        assert not any(getattr(before, each.name) for each in fields(before) if each.type == "int")
        peer = await server.log_on(client)
        first = await client.publish("orders", b"1") or 0
        second = await client.publish("orders", b"22") or 0
        for _ in range(2):
            await peer.expect("publish")
        await trio.sleep(3)
        now = client.metrics
        assert (now.connections, now.logons, now.disconnections) == (1, 1, 0)
        assert (now.unpersisted, now.unsent_bytes) == (2, 0)
        assert now.bytes_sent > now.unpersisted_bytes > 0
        assert now.oldest_unpersisted_age == pytest.approx(3, abs=0.01)
        await peer.persisted(first)
        await peer.ack(None, "persisted", s=second, status="failure", reason="not entitled")
        await wait_all_tasks_blocked()
        now = client.metrics
        assert (now.unpersisted, now.oldest_unpersisted_age, now.failed_writes) == (0, 0.0, 1)
        assert now.frames_received > before.frames_received
        await drop(peer)
        assert (client.metrics.disconnections, client.metrics.state) == (1, "disconnected")
        assert client.metrics.bytes_received == now.bytes_received


@pytest.mark.row("OB3", "OB8", "OB9")
async def test_a_command_without_a_topic_that_is_under_way_has_gauges_too() -> None:
    async with (
        listening() as server,
        Client("c", exit_timeout=0) as client,
        trio.open_nursery() as nursery,
    ):
        peer = await server.log_on(client)
        nursery.start_soon(client.execute, Command("flush", ack_type="processed"))
        await peer.expect("flush")
        (under_way,) = client.metrics.subscriptions
        assert under_way.topic == ""
        assert client.health().is_ready
        assert f"subscription {under_way.sub_id}" in client.report()
        nursery.cancel_scope.cancel()


@pytest.mark.row("OB9")
async def test_a_client_that_could_not_be_entered_says_why() -> None:
    client = HAClient(
        "c",
        servers=["unix://localhost:0/amps/json?path=/nowhere/haclient.sock"],
        delay_strategy=FixedDelayStrategy(1.0, give_up_after=3.0),
    )
    with pytest.raises(ReconnectGaveUp):
        async with client:
            pass
    (reason,) = client.health().reasons
    assert reason.startswith("the client was not entered, or was left; its last attempt failed: ")
    assert "nowhere" in reason


@pytest.mark.row("OB3")
async def test_each_subscription_has_gauges_of_its_own() -> None:
    async with (
        listening() as server,
        Client(
            "c", bookmark_store=MemoryBookmarkStore(), exit_timeout=0, max_queued_bytes=5_000
        ) as client,
    ):
        peer = await server.log_on(client)
        async with answering(peer):
            stream = client.bookmark_stream("orders", sub_id="b")
            messages = await stream.__aenter__()
            await client.subscribe("prices", sub_id="p", handler=lambda _: None)
        await peer.publish("b", b"1", b"2", bm="7|1|")
        await peer.publish("p", b"3", topic="prices")
        await wait_all_tasks_blocked()
        metrics = client.metrics
        orders, prices = metrics.subscriptions
        assert (orders.sub_id, orders.topic, orders.undiscarded) == ("b", "orders", 2)
        assert (orders.queued, orders.receive_lag) == (2, None)  # its replay is not complete
        assert orders.queued_bytes > 0
        assert not orders.is_full
        wanted = SubscriptionMetrics(
            sub_id="p",
            topic="prices",
            queued=0,
            queued_bytes=0,
            is_full=False,
            is_caught_up=False,
            gaps=0,
            undiscarded=None,
            redelivered=None,
            message_lag=None,
            receive_lag=0.0,
            process_lag=None,
        )
        assert prices == wanted
        assert metrics.messages_delivered == 3
        (await anext(messages)).discard()
        assert client.metrics.subscriptions[0].undiscarded == 1
        await peer.publish("b", b"x" * 6_000, bm="7|3|")
        await wait_all_tasks_blocked()
        assert client.metrics.subscriptions[0].is_full
        (why,) = client.health().reasons
        assert why.startswith("the queue of subscription b is full: it holds")
        await peer.publish("b", b"1", bm="7|1|")  # again
        async for message in messages:
            message.discard()
            if message.data[:1] == b"x":
                break
        await wait_all_tasks_blocked()
        assert client.metrics.duplicates == 1
        await stream.aclose()
        assert [each.sub_id for each in client.metrics.subscriptions] == ["p"]


@pytest.mark.row("OB3", "HB9")
async def test_the_time_of_a_round_trip_and_of_a_silence_are_known_with_a_heartbeat() -> None:
    async with listening() as server, Client("c", heartbeat=5.0, exit_timeout=0) as client:
        peer = await server.connect(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.logon)
            await peer.log_on()
            start = await peer.expect("heartbeat")
            await trio.sleep(2)
            await peer.ack(start)
        assert client.metrics.heartbeat_round_trip == 2.0
        await trio.sleep(4)
        assert client.metrics.silence == 4.0
        await drop(peer)
        assert client.metrics.heartbeat_round_trip is None
        assert client.metrics.silence is None


@pytest.mark.row("OB9")
async def test_a_client_is_ready_when_it_has_recovered_and_alive_until_it_gives_up() -> None:
    found: list[Health] = []

    async def run(server: Server) -> None:
        async with entered(client, partial(live, server)) as peer:
            found.append(client.health())
            await refuse_from_now_on(server, peer)
            found.append(client.health())
            assert client.metrics.failed_attempts > 0
            try:
                await trio.sleep_forever()
            finally:
                found.append(client.health())

    async with listening() as server:
        client = HAClient(
            "ha",
            server_chooser=DefaultServerChooser([server.uri]),
            delay_strategy=FixedDelayStrategy(1.0, give_up_after=30.0),
            heartbeat=None,
        )
        found.append(client.health())
        with pytest.raises(ReconnectGaveUp):
            await run(server)
        found.append(client.health())
    assert [(each.is_alive, each.is_ready) for each in found] == [
        (False, False),
        (True, True),
        (True, False),
        (False, False),
        (False, False),
    ]
    before, ready, reconnecting, stopped, _ = [each.reasons for each in found]
    assert (before, ready) == (("the client was not entered, or was left",), ())
    assert reconnecting[0].startswith(("reconnecting: ", "connected: "))
    assert stopped[0].startswith("the client has stopped: ")


async def refuse_from_now_on(server: Server, peer: Peer) -> None:
    await drop(peer)
    for _ in range(3):
        refusing = await server.accept()
        await refusing.refuse(await refusing.expect("logon"), "recovering")
        await refusing.expect_end()
    await wait_all_tasks_blocked()


@pytest.mark.row("OB9")
async def test_a_publisher_that_waits_for_acks_says_so() -> None:
    async with (
        listening() as server,
        Client(
            "c", publish_store=MemoryPublishStore(), max_unpersisted_bytes=100, exit_timeout=0
        ) as client,
    ):
        await server.log_on(client)
        await client.publish("orders", bytes(200))
        health = client.health()
        assert (health.is_alive, health.is_ready) == (True, True)
        assert re.match(r"publishing waits: \d+ bytes are not persisted", health.reasons[0])


@pytest.mark.row("OB9")
async def test_a_publish_that_is_not_persisted_for_a_minute_degrades_a_client() -> None:
    async with (
        listening() as server,
        Client("c", publish_store=MemoryPublishStore(), exit_timeout=0) as client,
    ):
        peer = await server.log_on(client)
        sequence = await client.publish("orders", b"1") or 0
        await trio.sleep(NO_PROGRESS_S - 1)
        assert client.health() == Health(
            is_alive=True, is_ready=True, is_degraded=False, reasons=()
        )
        await trio.sleep(2)
        health = client.health()
        assert (health.is_ready, health.is_degraded) == (True, True)
        assert health.reasons[0].startswith("nothing is persisted: the oldest publish has waited")
        await peer.persisted(sequence)
        await wait_all_tasks_blocked()
        assert not client.health().is_degraded


@pytest.mark.row("OB4")
async def test_the_lag_in_messages_is_known_while_the_server_holds_none_back() -> None:
    def counts() -> tuple[int | None, int | None]:
        (found,) = client.metrics.subscriptions
        return found.message_lag, found.redelivered

    async with listening() as server:
        client = HAClient(
            "c",
            servers=[server.uri],
            bookmark_store=MemoryBookmarkStore(),
            heartbeat=None,
            exit_timeout=0,
        )
        async with entered(client, partial(live, server)) as peer:
            stream = client.bookmark_stream("orders", sub_id="b")
            async with answering(peer):
                messages = await stream.__aenter__()
                await peer.publish("b", b"1", b"2", bm="7|1|")
                await wait_all_tasks_blocked()
                assert counts() == (None, 0)  # its replay is not complete
                await peer.ack(None, "completed", sub_id="b")
                await wait_all_tasks_blocked()
                assert counts() == (2, 0)
                await client.pause("b")
                assert counts() == (None, 0)
                await client.resume("b")
                assert counts() == (2, 0)
            await drop(peer)
            assert counts() == (None, 0)
            again = await live(server)
            await again.answer("subscribe")
            await again.publish("b", b"1", b"2", b"3", bm="7|1|")
            await again.ack(None, "completed", sub_id="b")
            await wait_all_tasks_blocked()
            assert counts() == (3, 2)  # those in the queue were dropped with the connection
            (await anext(messages)).discard()
            assert counts() == (2, 2)
            async with answering(again):
                await stream.aclose()


@pytest.mark.row("OB3", "OB4")
async def test_how_far_a_program_is_behind_is_known_in_messages_and_in_seconds() -> None:
    wall_clock.set(lambda: 1_700_000_000_000_000 + int(trio.current_time() * 1_000_000))
    kept: list[Message] = []

    def lags() -> tuple[float | None, float | None, int | None]:
        (found,) = client.metrics.subscriptions
        return found.receive_lag, found.process_lag, found.undiscarded

    async with (
        listening() as server,
        Client("c", bookmark_store=MemoryBookmarkStore(), exit_timeout=0) as client,
    ):
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=kept.append)
        assert lags() == (None, None, 0)
        await trio.sleep(2)
        await peer.ack(None, "completed", sub_id="b")
        await wait_all_tasks_blocked()
        assert lags() == (2.0, 2.0, 0)  # what came during the replay is sent after it
        await trio.sleep(3600)  # idle, and not behind
        assert lags() == (0.0, 0.0, 0)
        await peer.publish("b", b"1", bm="7|1|")
        await trio.sleep(10)
        receive_lag, process_lag, undiscarded = lags()
        assert (receive_lag, undiscarded) == (0.0, 1)
        assert process_lag == pytest.approx(10, abs=0.1)
        for number in range(2, 82):  # steady work, of which the last message is always undiscarded
            await peer.publish("b", b"1", bm=f"7|{number}|")
            await wait_all_tasks_blocked()
            kept[-2].discard()
            await trio.sleep(1)
        _, process_lag, undiscarded = lags()
        assert undiscarded == 1
        assert process_lag is not None
        assert process_lag <= 4
        assert not client.health().is_degraded
        await trio.sleep(90)
        _, process_lag, _ = lags()
        assert process_lag is not None
        assert 90 <= process_lag <= 94
        health = client.health()
        assert health.is_degraded
        assert re.fullmatch(
            r"subscription b does not progress: 1 messages are undiscarded, the oldest for about "
            r"9\d s",
            health.reasons[0],
        )
        kept[-1].discard()
        assert lags() == (0.0, 0.0, 0)
        assert not client.health().is_degraded


async def test_another_thread_is_refused() -> None:
    async with Client("c") as client:
        for call in (lambda: client.metrics, client.health):
            with pytest.raises(UsageError, match="thread"):
                await trio.to_thread.run_sync(call)


@pytest.mark.row("OB3")
def test_the_page_has_a_row_for_each_of_them() -> None:
    _, client, subscription = DOCS.read_text(encoding="utf-8").split("\n## ")[0:3]
    for kind, section in ((ClientMetrics, client), (SubscriptionMetrics, subscription)):
        documented = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
        assert documented == [each.name for each in fields(kind)]
