"""Commands and ends of connections that take several steps."""

from __future__ import annotations

from typing import cast

import pytest
import trio
import trio.abc
import trio.lowlevel
import trio.testing
from typing_extensions import override

from haclient.transport.links.memory_network import link_pair
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.engine import broker, subscribing
from haclient_fake_server.hub import Hub
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.session import Session
from support.broker import RawClient, port_of, running_broker

KIB = 1024
LIMIT_S = 60.0  # of a test that hangs


async def test_a_client_that_has_fallen_behind_ends_its_subscriptions_before_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each step of the command waited until all was sent, while more was queued for the others."""
    monkeypatch.setattr(subscribing, "ENDS_PER_STEP", 2)
    async with (
        running_broker() as server,
        RawClient.connect(server.uris[0]) as slow,
        RawClient.connect(server.uris[0]) as publisher,
    ):
        await slow.logon("slow")
        for each in range(5):
            await slow.send(c="subscribe", cid="s", t=f"topic-{each}", sub_id=f"{each}")
        await publisher.logon("publisher")
        for _ in range(16):
            await publisher.send(b"x" * KIB * KIB, c="p", t="topic-4")
        await publisher.send(c="flush", cid="f", a="processed")
        await publisher.ack("processed", "f")
        assert any(row["unsent_bytes"] for row in server.rows("clients"))
        await slow.send(c="unsubscribe", cid="u", sub_id="all", a="processed")
        with trio.fail_after(LIMIT_S):
            while any(row["subscriptions"] for row in server.rows("clients")):
                await trio.lowlevel.checkpoint()
        assert any(row["unsent_bytes"] for row in server.rows("clients"))


@pytest.mark.parametrize("deletes", [1, 40])
async def test_messages_of_long_deletes_go_at_the_pace_of_their_own_reader(deletes: int) -> None:
    config = BrokerConfig(
        sow_topics=tuple(SowTopic(f"{each}", ()) for each in range(deletes)),
        high_water_bytes=KIB * KIB,
        low_water_bytes=KIB * KIB // 2,
        slow_client_bytes=4 * KIB * KIB,
    )
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        for number in range(240):
            await client.send(b"x" * 100 * KIB, c="p", t=f"{number % deletes}", k=f"{number}")
        await client.send(c="sow_and_subscribe", cid="s", t=".", top_n=1, opts="oof", a="completed")
        await client.ack("completed", "s")
        for each in map(str, range(deletes)):
            await client.send(c="sow_delete", cid=each, t=each, filter="1=1", a="completed")
        for _ in range(300):
            await trio.lowlevel.checkpoint()
            assert all(int(row["unsent_bytes"]) < 3 * KIB * KIB for row in server.rows("clients"))
        with trio.fail_after(LIMIT_S):
            await client.ack("completed", f"{deletes - 1}")
        assert not server.ended_connections


class _OneStep:
    """A hub with one step of a command, which makes more unsent than the high-water mark."""

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self.is_done = False

    def is_busy(self, _: Session) -> bool:
        return not self.is_done

    def go_on(self, session: Session) -> None:
        session.put(b"x" * KIB)
        self.is_done = True


async def test_after_the_last_step_of_a_command_its_connection_is_read() -> None:
    """Heartbeats count again then, and those in front of it would not have been read."""
    link, _ = link_pair()
    hub = cast("Hub", _OneStep())
    session = Session(1, link, hub=hub, config=BrokerConfig(high_water_bytes=1, low_water_bytes=1))
    with trio.fail_after(LIMIT_S):
        await session._finish_commands()


class _SubscriptionsOfRounds(trio.abc.Instrument):
    """How many subscriptions the only connection has after each round of the event loop."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self.counts: list[int] = []

    @override
    def before_io_wait(self, timeout: float) -> None:
        count = sum(int(row["subscriptions"]) for row in self._server.rows("clients"))
        if self.counts[-1:] != [count]:
            self.counts.append(count)


async def test_the_subscriptions_of_one_connection_end_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker, "ENDS_PER_STEP", 2)
    async with running_broker() as server:
        async with RawClient.connect(server.uris[0]) as client:
            await client.logon("reader")
            for each in range(5):
                await client.send(c="subscribe", cid="s", t="^a", sub_id=f"{each}", a="processed")
                await client.ack("processed", "s")
            rounds = _SubscriptionsOfRounds(server)
            trio.lowlevel.add_instrument(rounds)
        with trio.fail_after(LIMIT_S):
            while server.rows("clients"):
                await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(rounds)
    assert rounds.counts[:3] == [5, 3, 1]


class _EndsOfRounds(trio.abc.Instrument):
    """How many connections, and how many tasks, end in each round of the event loop."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._tasks = 0
        self.ends = 0
        self.most = 0
        self.most_tasks = 0

    @override
    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._tasks += 1

    @override
    def before_io_wait(self, timeout: float) -> None:
        self.most_tasks, self._tasks = max(self.most_tasks, self._tasks), 0
        ends = sum(self._server.ended_connections.values())
        self.most, self.ends = max(self.most, ends - self.ends), ends


@pytest.mark.parametrize("is_http", [False, True])
async def test_of_many_connections_that_end_at_once_one_ends_in_a_round(*, is_http: bool) -> None:
    async with running_broker() as server:
        streams = [
            await trio.open_tcp_stream("127.0.0.1", port_of(server.uris[0])) for _ in "12345"
        ]
        for number, stream in enumerate(streams):
            if is_http:
                await stream.send_all(b"GET / HTTP/1.1\r\n")
            else:
                await RawClient(stream).logon(f"client-{number}")
        await trio.testing.wait_all_tasks_blocked(0.01)
        rounds = _EndsOfRounds(server)
        trio.lowlevel.add_instrument(rounds)
        for stream in streams:
            stream.socket.close()
        while rounds.ends < len(streams):  # which the instrument counts
            await trio.lowlevel.checkpoint()
        trio.lowlevel.remove_instrument(rounds)
    assert rounds.most == 1
    assert rounds.most_tasks <= 2  # the reader of one connection, and the end of another
