"""A process is killed; the next one has its subscriptions again, and misses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from haclient import blocking
from haclient.client import HAClient
from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.subscription_manager import FileSubscriptionManager
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from support.process import LIMIT_S

pytestmark = pytest.mark.row("SM10")

SUBSCRIBER = """
import sys, trio
from haclient import MOST_RECENT, FileSubscriptionManager, HAClient
from haclient.stores import LoggedBookmarkStore
uri, folder = sys.argv[1:]
async def main():
    count, three = 0, trio.Event()
    async def handle(message):
        nonlocal count
        count += 1
        message.discard()
        if count == 3:
            three.set()
    async with HAClient(
        "sub",
        servers=[uri],
        bookmark_store=LoggedBookmarkStore(f"{folder}/bookmarks"),
        subscription_manager=FileSubscriptionManager(f"{folder}/subscriptions"),
    ) as client:
        await client.bookmark_subscribe(
            "^orders/.*$",
            sub_id="o",
            bookmark=MOST_RECENT,
            handler=handle,
            filter="/n > 0",
            options="timestamp",
        )
        await client.bookmark_subscribe("ended", sub_id="e", handler=handle)
        await client.unsubscribe("e")
        await three.wait()
        print("three", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


async def publish(uri: str, numbers: range) -> None:
    async with HAClient("pub", servers=[uri]) as client:
        for number in numbers:
            topic = ("orders/eu", "orders/us")[number % 2]
            await client.publish(topic, b'{"n":%d}' % number)
            await client.publish("elsewhere", b'{"n":%d}' % (100 + number))
        await client.publish_flush(timeout=LIMIT_S)


async def resumed(uri: str, folder: Path, count: int) -> list[bytes]:
    got: list[bytes] = []
    enough = trio.Event()

    def handle(message: Message) -> None:
        assert message.timestamp, "its options were kept"
        got.append(message.data)
        message.discard()
        if len(got) == count:
            enough.set()

    client = HAClient(
        "sub",
        servers=[uri],
        bookmark_store=LoggedBookmarkStore(folder / "bookmarks"),
        subscription_manager=FileSubscriptionManager(folder / "subscriptions"),
    )
    async with client:
        assert await client.restore_subscriptions({"o": handle}) == ["o"]
        assert await client.restore_subscriptions({"o": handle}) == [], "it is active"
        with trio.fail_after(LIMIT_S):
            await enough.wait()
    return got


def test_after_a_kill_the_next_process_has_them_again(tmp_path: Path) -> None:
    with BrokerProcess(data_dir=tmp_path / "journal") as broker:
        uri = broker.uri
        command = [sys.executable, "-c", SUBSCRIBER, uri, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            trio.run(publish, uri, range(4))
            assert process.stdout is not None
            assert process.stdout.readline() == b"three\n"
            process.send_signal(signal.SIGKILL)
        trio.run(publish, uri, range(4, 7))
        got = trio.run(resumed, uri, tmp_path, 3)
        assert [each for each in got if each in {b'{"n":4}', b'{"n":5}', b'{"n":6}'}] == got[-3:]
        assert b'{"n":0}' not in got, "the filter was kept"
        assert len(got) == 3, "and the pattern"

        # Left in order, the subscriptions stay as well. A facade binds its handlers likewise.
        found: list[bytes] = []
        with blocking.HAClient(
            "sub",
            servers=[uri],
            bookmark_store=LoggedBookmarkStore(tmp_path / "bookmarks"),
            subscription_manager=FileSubscriptionManager(tmp_path / "subscriptions"),
        ) as client:
            with pytest.raises(UsageError, match="no handler for 'o'"):
                client.restore_subscriptions({})
            assert client.restore_subscriptions({"o": lambda m: found.append(m.data)}) == ["o"]
            client.unsubscribe("o")
        manager = FileSubscriptionManager(tmp_path / "subscriptions")
        assert list(manager.entries()) == []
        manager.close()
