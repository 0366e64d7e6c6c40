"""An HAClient that consumes a queue: what a lost connection does to leases and acknowledgements."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import InvalidOptions
from haclient.options import HAOptions
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient.session import leases
from haclient.session.dead_letter import DeadLetter
from haclient.streams import MessageStream
from haclient.transport.tasks import open_nursery
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, together
from support.recovery import drop, entered, live

pytestmark = in_virtual_time


def ha_client(*servers: Server, **options: object) -> HAClient:
    given: HAOptions = {
        "servers": [server.uri for server in servers],
        "delay_strategy": FixedDelayStrategy(0.5),
        "heartbeat": None,
        "ack_timeout": 60.0,
    }
    return HAClient("ha", **{**given, **options})  # type: ignore[arg-type]  # as each test gives them


async def leased(peer: Peer, *numbers: int) -> None:
    """Deliver messages; the body of each is its number."""
    for number in numbers:
        await peer.say("p", b"%d" % number, t="work", sids="s", bm=f"7|{number}|", lp="1h")


async def accept(peer: Peer, backlog: int = 30) -> Message:
    """Expect the subscribe and grant a backlog."""
    message = await peer.expect("subscribe", topic="work", options="max_backlog=30", bookmark="")
    await peer.ack(message, opts=f"max_backlog={backlog}")
    return message


async def subscribed(
    client: HAClient, peer: Peer, handler: Callable[[Message], Awaitable[None] | None]
) -> None:
    await together(
        lambda: client.queue_subscribe("work", handler=handler, sub_id="s", max_backlog=30),
        lambda: accept(peer),
    )


@asynccontextmanager
async def streaming(client: HAClient, server: Server) -> AsyncGenerator[tuple[Peer, MessageStream]]:
    """Enter a client, whose queue stream is open."""
    async with entered(client, lambda: live(server)) as peer:
        stream = client.queue_stream("work", sub_id="s", max_backlog=30)
        await together(stream.open, lambda: accept(peer))
        yield peer, stream


async def numbers(stream: MessageStream, count: int) -> list[int]:
    return [int((await anext(stream)).text) for _ in range(count)]


@pytest.mark.row("QC14", "SM2")
async def test_what_was_acknowledged_and_not_confirmed_is_sent_again_after_the_subscription(
    server: Server,
) -> None:
    seen: list[int] = []
    client = ha_client(server)
    async with entered(client, lambda: live(server)) as peer:
        await subscribed(client, peer, lambda message: seen.append(int(message.text)))
        await leased(peer, *range(1, 13))  # ten leave together, two are collected
        sent = await peer.expect("sow_delete")
        assert sent.bookmark == ",".join(f"7|{n}|" for n in range(1, 11))
        await drop(peer)
        again = await live(server)
        await accept(again)
        await leased(again, 1, 11, 13)  # at once, before it has read what follows
        repeated = await again.expect("sow_delete", options="", sequence=None)
        assert repeated.bookmark.split(",") == [f"7|{n}|" for n in range(1, 13)]
        await again.ack(repeated)
        await wait_all_tasks_blocked()
        assert seen == [*range(1, 14)], "no acknowledged message comes twice"
        assert client.metrics.dropped_acks == 0
        async with answering(again):
            await client.flush_acks()
            assert again.heard[-2].bookmark == "7|1|,7|11|,7|13|", "the copies, too"
            assert client._core.queue_acks.is_idle
        await drop(again)
        third = await live(server)
        await accept(third)
        await leased(third, 1)
        await wait_all_tasks_blocked()
        assert seen[-1] == 1, "all was confirmed: a queue that was begun again"


@pytest.mark.row("QC14")
async def test_an_acknowledgement_in_the_middle_of_a_reconnect_waits_for_the_subscription(
    server: Server,
) -> None:
    client = ha_client(server)
    async with streaming(client, server) as (peer, stream):
        await leased(peer, 1, 2, 3)
        first, second, third = [await anext(stream) for _ in range(3)]
        await drop(peer)
        first.ack()  # without a connection
        again = await server.accept()
        logon = await again.expect("logon")
        second.ack()  # without a subscription
        await again.ack(logon, s=0, client_name="ha", version="5.3.5.1")
        subscribe = await again.expect("subscribe")
        third.ack(cancel=True)  # of a lease that is gone
        third.extend_lease(5)
        await again.ack(subscribe, opts="max_backlog=30")
        repeated = await again.expect("sow_delete", bookmark="7|1|,7|2|", options="")
        await again.ack(repeated)
        async with answering(again):
            await client.flush_acks()
            await stream.aclose()
        # Before it there is a flush where the client has not read the acknowledgement yet.
        assert [m.command for m in again.heard[3:] if m.command != "flush"] == ["unsubscribe"]


@pytest.mark.row("QC14")
async def test_a_message_in_hand_is_acknowledged_by_itself_after_its_link_is_lost(
    server: Server,
) -> None:
    client = ha_client(server)
    async with streaming(client, server) as (peer, stream):
        await leased(peer, 1)
        old = await anext(stream)
        await drop(peer)
        again = await live(server)
        await accept(again)
        await leased(again, 1)
        new = await anext(stream)
        assert (old.lease is not None, new.lease is not None) == (True, True)
        old.ack(expire=True)  # dies with its link
        assert old.lease is None
        new.ack(cancel=True)
        await again.ack(await again.expect("sow_delete", bookmark="7|1|", options="cancel"))
        await leased(again, 2)
        other = await anext(stream)
        await drop(again)
        third = await live(server)
        await accept(third)
        other.ack()
        await third.ack(await third.expect("sow_delete", bookmark="7|2|", options=""))
        async with answering(third):
            await stream.aclose()


@pytest.mark.row("QC14", "MS1")
async def test_what_was_not_taken_before_the_link_was_lost_comes_again(server: Server) -> None:
    client = ha_client(server)
    async with streaming(client, server) as (peer, stream):
        await leased(peer, 1, 2, 3, 4)
        await wait_all_tasks_blocked()
        assert await numbers(stream, 2) == [1, 2]
        await drop(peer)
        again = await live(server)
        await accept(again)
        await leased(again, 3, 4, 1, 2)
        assert await numbers(stream, 4) == [3, 4, 1, 2]
        assert (stream.gaps, stream.ended) == (0, False)
        async with answering(again):
            await stream.aclose()


@pytest.mark.row("QC14", "QC19")
async def test_workers_get_nothing_of_a_lost_link(server: Server) -> None:
    seen: list[int] = []

    async def handler(message: Message) -> None:
        seen.append(int(message.text))
        await trio.sleep(5)

    client = ha_client(server)
    async with entered(client, lambda: live(server)) as peer:
        await together(
            lambda: client.queue_subscribe(
                "work", handler=handler, sub_id="s", max_backlog=30, workers=2, key=lambda _: 1
            ),
            lambda: accept(peer),
        )
        await leased(peer, 1, 2, 3, 4)
        await wait_all_tasks_blocked()
        await drop(peer)
        again = await live(server)
        await accept(again)
        await leased(again, 1, 3)
        await trio.sleep(20)
        assert seen == [1, 3], "the others waited for a worker; the first one was at work"


@pytest.mark.row("QC11", "QC14")
async def test_a_cancel_that_was_put_off_ends_with_its_link(server: Server) -> None:
    def handler(message: Message) -> None:
        raise ValueError(message.text)

    client = ha_client(server)
    async with entered(client, lambda: live(server)) as peer:
        await subscribed(client, peer, handler)
        await leased(peer, 1)
        await wait_all_tasks_blocked()
        await drop(peer)
        again = await live(server)
        await accept(again)
        await trio.sleep(10)
        async with answering(again):
            await client.flush()
        assert [m.command for m in again.heard] == ["logon", "subscribe", "flush"]


@pytest.mark.row("QC14")
async def test_what_is_kept_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers no acknowledgement and sends beyond its backlog."""
    monkeypatch.setattr(leases, "MAX_CARRIED", 3)
    client = ha_client(server)
    async with entered(client, lambda: live(server)) as peer:
        await subscribed(client, peer, lambda _: None)
        await leased(peer, *range(1, 51))
        await wait_all_tasks_blocked()
        await drop(peer)
        assert len(client._core.queue_acks.retained) == 30 + 3
        assert client.metrics.dropped_acks == 17
        again = await live(server)
        await accept(again)
        repeated = await again.expect("sow_delete")
        assert repeated.bookmark.split(",") == [f"7|{n}|" for n in range(18, 51)]


@pytest.mark.row("QC14")
async def test_flush_acks_outlasts_a_fail_over(server: Server, other: Server) -> None:
    client = ha_client(server, other, publish_store=MemoryPublishStore())
    async with streaming(client, server) as (peer, stream):
        await leased(peer, 1)
        (await anext(stream)).ack()

        async def fail_over() -> Peer:
            await peer.expect("sow_delete", bookmark="7|1|")
            await peer.expect("flush")
            server.stop_listening()
            await drop(peer)
            again = await live(other)
            await accept(again)
            await again.ack(await again.expect("sow_delete", bookmark="7|1|"))
            await again.answer("flush")
            return again

        _, again = await together(lambda: client.flush_acks(timeout=100), fail_over)
        assert client._core.queue_acks.is_idle
        assert client.unpersisted_count == 0
        async with answering(again):
            await stream.aclose()


@pytest.mark.row("QC14")
async def test_a_queue_that_no_server_takes_back_follows_the_policy(server: Server) -> None:
    client = ha_client(server, on_resubscribe_failure="drop")
    async with streaming(client, server) as (peer, stream):
        await leased(peer, 1)
        message = await anext(stream)
        await drop(peer)
        again = await live(server)
        await again.refuse(await again.expect("subscribe"), "invalid topic")
        again = await live(server)
        await again.refuse(await again.expect("subscribe"), "invalid topic")
        message.ack()  # it was processed all the same
        await again.ack(await again.expect("sow_delete", bookmark="7|1|"))
        assert stream.end_reason is not None


@pytest.mark.row("QC11", "QC14")
async def test_a_dead_letter_that_is_lost_with_its_link_leaves_its_message_in_the_queue(
    server: Server,
) -> None:
    """Its copy may not be on a disk: nothing may be acknowledged."""

    def handler(message: Message) -> None:
        raise ValueError(message.text)

    client = ha_client(server)
    async with entered(client, lambda: live(server)) as peer:
        await together(
            lambda: client.queue_subscribe(
                "work",
                handler=handler,
                sub_id="s",
                max_backlog=30,
                on_handler_error=DeadLetter("dead"),
            ),
            lambda: accept(peer),
        )
        await leased(peer, 1)
        await peer.expect("publish", topic="dead")
        await drop(peer)
        again = await live(server)
        await accept(again)
        async with answering(again):
            await trio.sleep(100)
            await client.flush_acks()
        assert [m.command for m in again.heard] == ["logon", "subscribe"]


@pytest.mark.row("QC13")
@pytest.mark.parametrize("cancels", [True, False])
async def test_the_end_of_an_old_handler_leaves_the_lease_of_the_redelivery_alone(
    server: Server,
    cancels: bool,  # noqa: FBT001  # a parameter
) -> None:
    """The first handler fails on a lost link, while the second one works on the same message."""
    calls: list[float] = []
    ended: list[str] = []

    async def handler(_: Message) -> None:
        calls.append(trio.current_time())
        if len(calls) == 1:
            await trio.sleep(10.0)
            raise LookupError("of the lost link")
        try:
            await trio.sleep(35.0)
        except trio.Cancelled:
            ended.append("cancelled")
            raise
        ended.append("finished")

    client = ha_client(server, ack_timeout=0.0)
    async with entered(client, lambda: live(server)) as peer:
        await together(
            lambda: client.queue_subscribe(
                "work",
                handler=handler,
                sub_id="s",
                max_backlog=30,
                workers=2,
                extend_lease=20.0,
                cancel_at_lease_end=cancels,
            ),
            lambda: accept(peer),
        )
        await peer.say("p", b"1", t="work", sids="s", bm="7|1|", lp="1h")
        await trio.sleep(5.0)
        await drop(peer)
        again = await live(server)
        await accept(again)
        await again.say("p", b"1", t="work", sids="s", bm="7|1|", lp="10s")
        times: list[float] = []
        while (message := await again.expect("sow_delete")).options:
            assert message.options == "lease_extension=20s"
            times.append(trio.current_time() - calls[1])
        assert len(times) >= 3, times
        assert message.bookmark == "7|1|"
        assert ended == ["finished"]
        await client.disconnect()


async def test_a_queue_that_a_server_lacks_at_the_resubscribe_is_named(server: Server) -> None:
    client = ha_client(server)

    async def lose_and_refuse() -> None:
        async with entered(client, lambda: live(server)) as peer:
            await subscribed(client, peer, print)
            await drop(peer)
            for _ in range(2):
                again = await live(server)
                await again.refuse(await again.expect("subscribe"), "invalid options")
            await trio.sleep_forever()

    with pytest.raises(InvalidOptions, match=r"invalid options: is 'work' a queue of this server"):
        await lose_and_refuse()


@pytest.mark.row("QC5")
@pytest.mark.parametrize("is_back", [True, False])
async def test_leaving_waits_for_a_connection_to_send_acknowledgements_of_a_lost_one(
    server: Server, caplog: pytest.LogCaptureFixture, *, is_back: bool
) -> None:
    acks: list[str] = []

    async def serve() -> None:
        peer = await live(server)
        await accept(peer)
        async with answering(peer):
            while not acks:
                acks.extend(m.bookmark for m in peer.heard if m.command == "sow_delete")
                await trio.sleep(0.1)

    async with (
        open_nursery() as nursery,
        streaming(ha_client(server, exit_timeout=3.0), server) as (peer, stream),
    ):
        await leased(peer, 1)
        message = await anext(stream)
        await drop(peer)
        message.ack()
        if is_back:
            nursery.start_soon(serve)
    assert acks == (["7|1|"] if is_back else [])
    assert ("leaves with unacknowledged messages" in caplog.text) != is_back
