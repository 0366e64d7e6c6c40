"""Brokers that replicate to each other, over real sockets and as processes that are killed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from haclient.cli.app import run
from haclient.cli.demo.processes import reserved_ports
from haclient.errors import UsageError
from haclient.protocol.codec import encode_frame
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import Kill, Restart
from support.broker import RawClient
from support.process import LIMIT_S

FAST = "ack_conflation=1ms"


@pytest.fixture
def port() -> Iterator[int]:
    """A port of a broker that another one must know before it runs."""
    with reserved_ports(1) as (number,):
        yield number


def frames(first: int, last: int) -> bytes:
    return b"".join(
        encode_frame({"c": "p", "t": "orders", "a": "persisted", "s": number}, b"%d" % number)
        for number in range(first, last + 1)
    )


async def bodies(uri: str, count: int) -> list[int]:
    async with RawClient.connect(uri) as client:
        await client.logon("reader")
        await client.send(c="subscribe", cid="r", t="orders", bm="0")
        return [int(message.data) for message in await client.publishes(count)]


@pytest.mark.row("RE1", "RE2", "RE4", "AK6")
async def test_two_brokers_that_are_synchronous_to_each_other() -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(Cluster("east", "west"))
        clients = []
        for uri, name in zip(cluster.uris, ("p", "q"), strict=True):
            client = await stack.enter_async_context(RawClient.connect(uri))
            await client.logon(name, opts=FAST)
            await client.send_bytes(frames(1, 5000))
            clients.append(client)
        for client in clients:
            await client.persisted(5000)
        for uri in cluster.uris:
            found = await bodies(uri, 10_000)
            assert sorted(found) == sorted([*range(1, 5001), *range(1, 5001)])
        for pair in (("east", "west"), ("west", "east")):
            status = cluster.destination(*pair)
            assert (status.is_sync, status.is_connected, status.links) == (True, True, 1)


@pytest.mark.row("RE3", "RE5", "RE11")
async def test_a_destination_that_comes_back_gets_what_it_missed(tmp_path: Path, port: int) -> None:
    west = BrokerConfig(
        name="west",
        listen=(f"tcp://127.0.0.1:{port}",),
        data_dir=tmp_path / "west",
        segment_bytes=1 << 20,
    )
    east = BrokerConfig(
        name="east",
        data_dir=tmp_path / "east",
        segment_bytes=1 << 20,
        redial_s=0.01,
        redial_max_s=0.02,
        replicate_to=(ReplicateTo(f"tcp://127.0.0.1:{port}"),),
    )
    async with BrokerServer(east) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("p", opts=FAST)
        for round_ in range(3):
            await client.send_bytes(frames(1000 * round_ + 1, 1000 * round_ + 1000))
            async with BrokerServer(west) as replica:
                await client.persisted(1000 * round_ + 1000)
                count = 1000 * round_ + 1000
                assert await bodies(replica.uris[0], count) == list(range(1, count + 1))
        await client.send_bytes(frames(3001, 3001))
        (status,) = server.destinations
        assert status.is_sync
        server.downgrade(status.address)
        await client.persisted(3001)
        server.upgrade(status.address)
        with pytest.raises(UsageError, match="no synchronous destination"):
            server.upgrade("tcp://elsewhere:1")
    async with BrokerServer(east) as server, RawClient.connect(server.uris[0]) as client:
        answer = await client.logon("p")
        assert (answer.sequence, answer.position and answer.position.sequence) == (3001, 3001)


@pytest.mark.row("RE3", "RE4", "RE11")
async def test_sigkill_of_either_broker_loses_nothing_that_was_acknowledged() -> None:
    acknowledged = last = 0
    async with Cluster("east", "west", on="process") as cluster:
        uris = dict(zip(cluster.names, cluster.uris, strict=True))
        for victim, survivor in (("east", "west"), ("west", "east"), ("east", "west")):
            async with RawClient.connect(uris[victim]) as client:
                answer = await client.logon("p", opts=FAST)
                seen = answer.sequence or 0
                assert acknowledged <= seen <= last
                last = seen + 5_000
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send_until_broken, client, frames(seen + 1, last))
                    acknowledged = (await client.ack("persisted")).sequence or 0
                    await cluster.apply(Kill(victim))
                    nursery.cancel_scope.cancel()
            async with RawClient.connect(uris[survivor]) as client:
                answer = await client.logon("p", opts=FAST)
                seen = answer.sequence or 0
                assert acknowledged <= seen <= last
                assert answer.position is not None
                assert acknowledged <= answer.position.sequence <= seen
                await client.send_bytes(frames(1, last))
                await cluster.apply(Restart(victim))
                await client.persisted(last)
                acknowledged = last
            await _whole_again(uris[victim], last)
        for uri in cluster.uris:
            assert await bodies(uri, last) == list(range(1, last + 1))


async def _whole_again(uri: str, last: int) -> None:
    """Wait until a broker that was started again has reached the other one, too.

    Before that it cannot know that the other one has what it sent, and says so in its logon acks.
    """
    with trio.fail_after(LIMIT_S):
        while True:
            async with RawClient.connect(uri) as client:
                answer = await client.logon("p", opts=FAST)
                if answer.position is not None and answer.position.sequence == last:
                    return


async def _send_until_broken(client: RawClient, data: bytes) -> None:
    with contextlib.suppress(trio.BrokenResourceError):  # killed while we were sending
        await client.send_bytes(data)


def test_a_mode_that_is_none_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["broker", "run", "--replicate-to", "tcp://127.0.0.1:1,maybe"]) == 2
    assert "'maybe' after the address is not sync, async or downgrade" in capsys.readouterr().err
