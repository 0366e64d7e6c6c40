"""Consumers of queues that an earlier process had, restored from its file of subscriptions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio

from haclient import Client, FileSubscriptionManager, HAClient, Message, blocking
from haclient.errors import UsageError
from haclient.subscription_manager import Entry
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import QueueTopic
from support.broker import running_broker
from support.process import LIMIT_S

pytestmark = pytest.mark.row("SM10")

QUEUE = QueueTopic(name="work", topics=("orders",), max_per_subscription_backlog=8)


def a_client(uri: str, folder: Path) -> HAClient:
    manager = FileSubscriptionManager(folder / "subscriptions")
    return HAClient("consumer", servers=[uri], subscription_manager=manager, exit_timeout=1.0)


def kept(folder: Path) -> list[Entry]:
    """What the file of the client says."""
    manager = FileSubscriptionManager(folder / "subscriptions")
    try:
        return list(manager.entries())
    finally:
        manager.close()


async def publish(uri: str, numbers: range) -> None:
    async with HAClient("pub", servers=[uri]) as client:
        for number in numbers:
            await client.publish("orders", b'{"id":%d}' % number)


async def consumed_by_nobody(uri: str, folder: Path) -> None:
    """A consumer of an earlier process, which ends without having acknowledged anything."""

    async def keep(_: Message) -> None:
        await trio.sleep_forever()

    async with a_client(uri, folder) as client:
        await client.queue_subscribe(
            "work", handler=keep, sub_id="q", filter="/id != 3", max_backlog=4
        )
        await publish(uri, range(6))


async def left(uri: str) -> list[bytes]:
    async with Client("browser") as client:
        await client.connect(uri)
        await client.logon()
        async with client.sow("work") as messages:
            return [message.data async for message in messages]


async def test_a_restored_consumer_is_as_it_was_and_acknowledges(tmp_path: Path) -> None:
    got: list[bytes] = []
    failed: list[bytes] = []
    done = trio.Event()

    async def handle(message: Message) -> None:
        if message.data == b'{"id":1}' and not failed:
            failed.append(message.data)
            raise LookupError("not yet")
        got.append(message.data)
        if len(got) == 5:
            done.set()

    with trio.fail_after(LIMIT_S):
        async with running_broker(BrokerConfig(queues=(QUEUE,))) as server:
            uri = f"{server.uris[0]}/amps/json"
            await consumed_by_nobody(uri, tmp_path)
            async with a_client(uri, tmp_path) as client:
                with pytest.raises(UsageError, match="consumes a queue"):
                    await client.restore_subscriptions({"q": handle})
                assert client.metrics.subscriptions == ()
                restored = await client.restore_subscriptions({"q": handle}, queues={"q": {}})
                assert restored == ["q"]
                await done.wait()
                await client.flush_acks(timeout=LIMIT_S)
            assert sorted(got) == [b'{"id":%d}' % number for number in (0, 1, 2, 4, 5)]
            assert failed == [b'{"id":1}'], "it was given back, and came again"
            assert await left(uri) == [b'{"id":3}'], "the filter was kept"
            assert [entry.fields["opts"] for entry in kept(tmp_path)] == ["max_backlog=4"]


def test_callbacks_of_a_restored_consumer_run_in_the_threads_of_a_blocking_client(
    tmp_path: Path,
) -> None:
    called: list[tuple[bytes, bool]] = []
    refused = threading.Event()

    def fail(_: Message) -> None:
        raise LookupError("never")

    def give_up(message: Message, error: Exception) -> None:
        assert isinstance(error, LookupError)
        called.append((message.data, trio.lowlevel.in_trio_run()))
        message.ack(expire=True)
        if len(called) == 5:
            refused.set()

    async def main() -> None:
        async with running_broker(BrokerConfig(queues=(QUEUE,))) as server:
            uri = f"{server.uris[0]}/amps/json"
            await consumed_by_nobody(uri, tmp_path)
            await trio.to_thread.run_sync(restored, uri)
            assert await left(uri) == [b'{"id":3}']

    def restored(uri: str) -> None:
        manager = FileSubscriptionManager(tmp_path / "subscriptions")
        with blocking.HAClient("consumer", servers=[uri], subscription_manager=manager) as client:
            client.restore_subscriptions({"q": fail}, queues={"q": {"on_handler_error": give_up}})
            assert refused.wait(LIMIT_S)
            client.flush_acks(timeout=LIMIT_S)

    trio.run(main)
    assert sorted(called) == [(b'{"id":%d}' % number, False) for number in (0, 1, 2, 4, 5)]
