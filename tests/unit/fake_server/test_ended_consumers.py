"""Queues and consumers whose connections have ended: what they are given would go to nobody."""

from __future__ import annotations

import trio
import trio.testing

from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import LogTopic, QueueTopic
from support.broker import RawClient, port_of, running_broker

MIB = 2**20
LIMIT_S = 60.0  # of a test that hangs


async def test_queues_give_nothing_to_connections_that_wait_for_their_end() -> None:
    queue = QueueTopic(name="jobs", semantics="at-most-once", max_per_subscription_backlog=100)
    config = BrokerConfig(log_topics=(LogTopic("jobs"),), queues=(queue,))
    async with running_broker(config) as server:
        streams = [await trio.open_tcp_stream("127.0.0.1", port_of(server.uris[0])) for _ in "1234"]
        *ending, other = [RawClient(stream) for stream in streams]
        for number, client in enumerate((*ending, other)):
            await client.logon(f"client-{number}")
            await client.send(c="subscribe", cid="1", t="jobs", opts="max_backlog=9", a="processed")
            await client.ack("processed", "1")
        async with RawClient.connect(server.uris[0]) as publisher:
            await publisher.logon("publisher")
            await publisher.send(b"1", c="p", t="jobs")  # from here on all are known to have room
            await ending[0].until(lambda it: it.kind == "p")
            hub = server._hub
            assert hub is not None
            async with hub.end_turn:  # that of another one
                for stream in streams[:-1]:
                    stream.socket.close()
                await trio.testing.wait_all_tasks_blocked(0.01)
                await publisher.send(b"2", c="p", t="jobs")
                with trio.fail_after(LIMIT_S):
                    assert (await other.until(lambda it: it.kind == "p")).data == b"2"
        await streams[-1].aclose()


async def test_queues_give_nothing_to_a_slow_client_that_reads_its_last_ack() -> None:
    """The broker can send to it again, and looked for more that it might have."""
    queue = QueueTopic(name="jobs", semantics="at-most-once", max_per_subscription_backlog=100)
    config = BrokerConfig(
        log_topics=(LogTopic("jobs"),), queues=(queue,), slow_client_bytes=4 * MIB
    )
    async with (
        running_broker(config) as server,
        RawClient.connect(server.uris[0]) as slow,
        RawClient.connect(server.uris[0]) as other,
        RawClient.connect(server.uris[0]) as publisher,
    ):
        for name, client in {"slow": slow, "other": other, "publisher": publisher}.items():
            await client.logon(name)
        await slow.send(c="subscribe", cid="0", t="flood", sub_id="flood")
        await slow.send(c="subscribe", cid="1", t="jobs", opts="max_backlog=9", a="processed")
        await slow.ack("processed", "1")
        for _ in range(24):  # more than the kernel and the broker keep
            await publisher.send(b"x" * MIB, c="p", t="flood")
        for number in range(4):
            await publisher.send(b"%d" % number, c="p", t="jobs")
        await publisher.send(c="flush", cid="f", a="processed")
        await publisher.ack("processed", "f")
        await slow.until(lambda it: it.reason == "slow client")
        await other.send(c="subscribe", cid="1", t="jobs", opts="max_backlog=9", a="processed")
        with trio.fail_after(LIMIT_S):
            for number in range(4):
                assert (await other.until(lambda it: it.kind == "p")).data == b"%d" % number
