"""`HAClient.move_to`: a planned hand-over from one server to another."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import AuthenticationError, DisconnectedError, TimedOut, UsageError
from haclient.protocol.messages import Message
from haclient.transport.tasks import open_nursery
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering
from support.recovery import entered, live, not_answering, quiet_client

pytestmark = in_virtual_time


@pytest.fixture
async def cluster(amps_cluster: ClusterFactory) -> Cluster:
    queue = QueueTopic(name="jobs", topics=("work",), max_per_subscription_backlog=5)
    return await amps_cluster("east", "west", on="memory", config=BrokerConfig(queues=(queue,)))


@pytest.mark.row("HA29")
@pytest.mark.parametrize("has_store", [False, True])
async def test_a_move_back_and_forth_loses_and_doubles_nothing(
    cluster: Cluster, *, has_store: bool
) -> None:
    east, west = cluster.uris
    seen: list[str] = []

    async def handle(message: Message) -> None:
        await trio.sleep(0.001)
        seen.append(message.text)

    publisher = (
        HAClient.memory_backed("pub", servers=[east])
        if has_store
        else HAClient("pub", servers=[east])
    )
    async with HAClient.memory_backed("sub", servers=[east, west]) as subscriber, publisher:
        await subscriber.bookmark_subscribe("orders", sub_id="s", handler=handle, auto_discard=True)
        is_done = False
        count = 0

        async def publish() -> None:
            nonlocal count
            while not is_done:
                await publisher.publish("orders", str(count))
                count += 1
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for _ in range(3):
                for uri in (west, east):
                    await trio.sleep(0.3)
                    async with trio.open_nursery() as both:
                        both.start_soon(publisher.move_to, uri)
                        both.start_soon(subscriber.move_to, uri)
                        both.start_soon(partial(publisher.publish_flush, timeout=60.0))
                    assert publisher.connection_info["uri"] == uri
            is_done = True
        await publisher.publish_flush()
        await trio.sleep(10.0)
        assert count > 100
        assert seen == [str(number) for number in range(count)]


@pytest.mark.row("HA29")
async def test_messages_of_a_queue_are_acknowledged_before_a_move_or_go_back(
    cluster: Cluster,
) -> None:
    east, west = cluster.uris
    handled: list[str] = []

    async def handle(message: Message) -> None:
        await trio.sleep(0.5)
        handled.append(message.text)

    async with (
        HAClient.memory_backed("pub", servers=[east]) as publisher,
        HAClient("worker", servers=[east], ack_timeout=60.0) as worker,
    ):
        for number in range(20):
            await publisher.publish("work", str(number))
        await publisher.publish_flush()
        await worker.queue_subscribe("jobs", handler=handle, max_backlog=5)
        await trio.sleep(2.2)
        await worker.move_to(west)
        await worker.flush_acks()
        await trio.sleep(60.0)
    assert {int(each) for each in handled} == set(range(20))
    assert len(handled) <= 21  # the one that was at work during the move may come again


@asynccontextmanager
async def at(server: Server, *, has_store: bool = True) -> AsyncGenerator[tuple[HAClient, Peer]]:
    """A client that is live with a server."""
    client = HAClient(
        "ha",
        publish_store=MemoryPublishStore() if has_store else None,
        servers=[server.uri],
        heartbeat=None,
        connect_timeout=3.0,
        exit_timeout=0,
    )
    async with entered(client, partial(live, server)) as peer:
        yield client, peer
        assert client.state.is_logged_on
        await client.disconnect()


@pytest.mark.row("HA29")
async def test_a_client_stays_where_it_is_when_the_other_server_cannot_be_used(
    server: Server, other: Server
) -> None:
    async with at(server) as (client, peer), answering(peer):
        nowhere = "unix://localhost:0/amps/json?path=/nonexistent/amps"
        with pytest.raises(DisconnectedError) as caught:
            await client.move_to(nowhere)
        assert "the client stays at" in str(caught.value.__notes__)
        with not_answering() as mute, pytest.raises(TimedOut):
            await client.move_to(mute, timeout=2.0)
        async with trio.open_nursery() as nursery:

            async def refuse() -> None:
                refusing = await other.accept()
                await refusing.refuse(await refusing.expect("logon"), "auth failure")

            nursery.start_soon(refuse)
            with pytest.raises(AuthenticationError):
                await client.move_to(other.uri)
        await client.publish("orders", b"1")
        assert client.state.name == "RESUBSCRIBED"


@pytest.mark.row("HA29")
@pytest.mark.parametrize("has_store", [False, True])
async def test_publishes_go_on_during_a_move_and_the_new_server_gets_what_is_not_confirmed(
    server: Server, other: Server, *, has_store: bool
) -> None:
    async with at(server, has_store=has_store) as (client, peer), trio.open_nursery() as nursery:
        first = await client.publish("orders", b"1")
        await peer.expect("publish")
        began = trio.current_time()
        nursery.start_soon(client.move_to, other.uri)
        await checked(other)
        await peer.expect("flush")
        second = client.publish_nowait("orders", b"2")
        await peer.persisted(first)
        await wait_all_tasks_blocked()
        third = await client.publish("orders", b"3")  # between the two servers
        there = await live(other, seen=first, persisted=first)
        assert await there.sequences(2) == [second, third]
        assert trio.current_time() - began < 3.0  # nobody waits for what was published since
        await there.persisted(third)
        await client.publish_flush(timeout=1)


@pytest.mark.row("HA29")
@pytest.mark.parametrize("has_store", [False, True])
async def test_a_client_leaves_a_server_that_does_not_confirm_after_the_limit(
    server: Server, other: Server, *, has_store: bool
) -> None:
    async with at(server, has_store=has_store) as (client, _), trio.open_nursery() as nursery:
        sequence = await client.publish("orders", b"1")
        began = trio.current_time()
        nursery.start_soon(client.move_to, other.uri)
        await checked(other)
        there = await live(other)
        assert trio.current_time() - began == 3.0
        assert await there.sequences(1) == [sequence]


@pytest.mark.row("HA29")
async def test_a_move_that_is_cancelled_while_the_server_is_drained_does_not_happen(
    server: Server, other: Server
) -> None:
    async with at(server, has_store=False) as (client, peer), trio.open_nursery() as nursery:
        nursery.start_soon(checked, other)
        sequence = await client.publish("orders", b"1")
        await peer.expect("publish")
        with trio.CancelScope() as scope:
            nursery.start_soon(cancelled_when_drained, peer, scope)
            await client.move_to(other.uri)
        assert scope.cancelled_caught
        await peer.persisted(sequence)
        await wait_all_tasks_blocked()
        client.publish_nowait("orders", b"2")
        assert (await peer.expect("publish")).data == b"2"


async def cancelled_when_drained(peer: Peer, scope: trio.CancelScope) -> None:
    await peer.expect("flush")
    scope.cancel()


@pytest.mark.row("HA29")
async def test_a_client_that_has_come_to_the_server_during_its_check_stays_there(
    server: Server, other: Server
) -> None:
    client = HAClient("ha", servers=[server.uri, other.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(client.move_to, other.uri)
        check = await other.accept()
        peer.link.close()  # not live for long: the next server follows
        there = await live(other)
        await wait_all_tasks_blocked()
        await check.log_on()
        await check.expect_end()
        await wait_all_tasks_blocked()
        assert await next_frame_within(there, 1.0) is None
        await client.disconnect()


async def next_frame_within(peer: Peer, limit_s: float) -> Message | None:
    """The client's next frame; `None` if there is none, and it has not left."""
    with trio.move_on_after(limit_s):
        return await peer.hear()
    return None


async def checked(server: Server) -> None:
    peer = await server.accept()
    assert (await peer.log_on()).client_name.startswith("ha-check")
    await peer.expect_end()


@pytest.mark.row("HA29")
async def test_a_server_that_fails_after_its_check_sends_the_client_back_with_an_error(
    server: Server, other: Server
) -> None:
    async with at(server) as (client, peer), trio.open_nursery() as nursery:

        async def fail() -> None:
            await checked(other)
            failing = await other.accept()
            await failing.expect("logon")
            failing.link.close()

        nursery.start_soon(fail)
        async with answering(peer):
            with pytest.raises(DisconnectedError, match=r"the client is not at .* but reconnects"):
                await client.move_to(other.uri)
        await live(server)  # the chooser has heard of no failure
        await wait_all_tasks_blocked()


@pytest.mark.row("HA29")
async def test_a_move_while_the_client_reconnects_is_answered_at_once(
    server: Server, other: Server
) -> None:
    async with at(server) as (client, peer):
        peer.link.close()
        await wait_all_tasks_blocked()
        with pytest.raises(DisconnectedError, match="the client is reconnecting"):
            await client.move_to(other.uri)
        await live(server)
        await wait_all_tasks_blocked()


@pytest.mark.row("HA29")
async def test_a_connection_that_is_lost_during_a_move_ends_the_move(
    server: Server, other: Server
) -> None:
    async with at(server, has_store=False) as (client, peer), trio.open_nursery() as nursery:

        async def lose() -> None:
            await checked(other)
            await peer.expect("flush")
            peer.link.close()

        await client.publish("orders", b"1")
        await peer.expect("publish")
        nursery.start_soon(lose)
        with pytest.raises(DisconnectedError, match=r"is not at .* but reconnects"):
            await client.move_to(other.uri)
        await live(server)
        await wait_all_tasks_blocked()


@pytest.mark.row("HA29")
async def test_moves_that_make_no_sense_are_refused_or_nothing(
    server: Server, other: Server
) -> None:
    async with at(server) as (client, peer):
        await client.move_to(server.uri)  # it is there
        with pytest.raises(UsageError):
            await client.move_to("nonsense")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.move_to, other.uri)
            await other.accept()
            with pytest.raises(UsageError, match="is under way: wait for its end"):
                await client.move_to(other.uri)
            nursery.cancel_scope.cancel()
        # A move that was cancelled is forgotten.
        async with answering(peer), trio.open_nursery() as nursery:
            nursery.start_soon(client.move_to, other.uri)
            await checked(other)
            await live(other)


@pytest.mark.row("HA29")
@pytest.mark.parametrize("moment", ["check", "drain"])
async def test_a_client_that_is_disconnected_during_a_move_ends_it(
    server: Server, other: Server, moment: str
) -> None:
    client = quiet_client(server)
    async with entered(client, partial(live, server)) as peer, trio.open_nursery() as nursery:

        async def move() -> None:
            with pytest.raises(DisconnectedError, match="move_to: "):
                await client.move_to(other.uri)

        await client.publish("orders", b"1")
        await peer.expect("publish")
        nursery.start_soon(move)
        if moment == "check":
            check = await other.accept()
            await client.disconnect()
            await check.log_on()
        else:
            await checked(other)
            await peer.expect("flush")
            await client.disconnect()


class Relay:
    """A handler that hands each message to another task, and waits until that has published it."""

    def __init__(self, client: HAClient) -> None:
        self._client = client
        self._jobs, self._work = trio.open_memory_channel[Message](0)
        self._done, self._results = trio.open_memory_channel[bytes](0)
        self.copied: list[bytes] = []

    async def handle(self, message: Message) -> None:
        await self._jobs.send(message)
        self.copied.append(await self._results.receive())

    async def work(self) -> None:
        async for message in self._work:
            body = message.data.rstrip(b"\0")
            await self._client.publish("copies", body)
            await self._done.send(body)


async def everything(client: HAClient, topic: str) -> list[bytes]:
    """The bodies of all messages in the log of a topic."""
    found: list[bytes] = []
    async with client.bookmark_stream(topic, sub_id=topic, bookmark="epoch") as stream:
        async for message in stream.with_timeout(10.0):
            if message is None:
                break
            found.append(message.data)
    return found


@pytest.mark.row("HA29")
async def test_moves_of_a_client_without_a_store_that_relays_steadily_lose_and_double_nothing(
    cluster: Cluster,
) -> None:
    """Its handler waits for a task that publishes, while another task publishes all the time."""
    east, west = cluster.uris
    client = HAClient("relay", servers=[east, west], connect_timeout=100.0, max_queued_bytes=4_000)
    relay, is_done, own = Relay(client), False, 0

    async def publish_input(source: HAClient) -> None:
        number = 0
        while not is_done:
            await source.publish("orders", b"%d" % number + bytes(3_000))
            number += 1
            await trio.sleep(0.1)

    async def publish_own() -> None:
        nonlocal own
        while not is_done:
            await client.publish("own", str(own))
            own += 1
            await trio.sleep(0.1)

    async with (
        HAClient.memory_backed("source", servers=[east]) as source,
        HAClient("reader", servers=[east]) as reader,
        client,
        trio.open_nursery() as nursery,
    ):
        await client.subscribe("orders", sub_id="s", handler=relay.handle)
        nursery.start_soon(relay.work)
        async with trio.open_nursery() as publishing:
            publishing.start_soon(publish_own)
            publishing.start_soon(publish_input, source)
            for uri in (west, east, west):
                await client.move_to(uri)
            is_done = True
        await trio.sleep(10.0)
        await client.publish_flush()
        copies, others = await everything(reader, "copies"), await everything(reader, "own")
        nursery.cancel_scope.cancel()
    assert copies == relay.copied
    assert others == [b"%d" % number for number in range(own)]


@pytest.mark.row("HA29", "HA8")
@pytest.mark.parametrize("turns", range(8))
async def test_a_disconnect_as_the_check_of_a_move_ends_is_the_end_of_the_move(
    server: Server, other: Server, turns: int
) -> None:
    """The recovery ends before the connection: nobody else would end the move."""
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)

    async def move() -> None:
        with pytest.raises(DisconnectedError):
            await client.move_to(other.uri)

    async with entered(client, partial(live, server)):
        with trio.fail_after(60):
            async with open_nursery() as nursery:
                nursery.start_soon(move)
                checking = await other.accept()
                await checking.log_on()
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                await client.disconnect()
