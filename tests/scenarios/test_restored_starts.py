"""Where the subscriptions of earlier processes begin: what they have received, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.subscription_manager import Entry, FileSubscriptionManager
from haclient_fake_server.engine import span
from haclient_fake_server.testing.cluster import Cluster
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time

pytestmark = [in_virtual_time, pytest.mark.row("SM10")]

IDS = ("part", "from_now")


def bookmark_store(kind: str, folder: Path) -> BookmarkStore:
    if kind == "memory":
        return MemoryBookmarkStore()
    return (LoggedBookmarkStore if kind == "logged" else RingBookmarkStore)(folder / kind)


async def publish(uri: str, *bodies: str, name: str = "pub") -> None:
    async with HAClient(name, servers=[uri]) as publisher:
        for body in bodies:
            await publisher.publish("orders", body)
        await publisher.publish_flush()


async def bookmarks(uri: str, count: int) -> list[str]:
    """The bookmarks of the first messages of the log."""
    found: list[str] = []
    async with (
        HAClient("reader", servers=[uri]) as reader,
        reader.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages,
    ):
        async for message in messages:
            found.append(message.bookmark)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("kind", ["memory", "logged", "ring"])
async def test_a_range_ends_where_it_was_to_end_in_every_later_process(
    amps_memory_broker: Cluster, tmp_path: Path, kind: str
) -> None:
    uri = amps_memory_broker.uri
    await publish(uri, *map(str, range(10)))
    places = await bookmarks(uri, 10)
    got: list[tuple[str, str]] = []

    def handle(message: Message) -> None:
        got.append((message.sub_id, message.text))
        if message.text != "4":  # which is delivered in each process
            message.discard()

    seen: list[list[tuple[str, str]]] = []
    for process in range(3):
        client = HAClient(
            "sub",
            servers=[uri],
            bookmark_store=bookmark_store(kind, tmp_path),
            subscription_manager=FileSubscriptionManager(tmp_path / "subscriptions"),
        )
        async with client:
            if process:
                restored = await client.restore_subscriptions(dict.fromkeys(IDS, handle))
                assert restored == list(IDS)
            else:
                part = f"[{places[2]}:{places[5]}]"
                await client.bookmark_subscribe(
                    "orders", sub_id=IDS[0], bookmark=part, handler=handle
                )
                await client.bookmark_subscribe(
                    "orders", sub_id=IDS[1], bookmark=NOW, handler=handle
                )
            await trio.sleep(5.0)
        seen.append(sorted(got))
        got.clear()
        await publish(uri, f"after {process}")
    whole = [("part", str(number)) for number in range(2, 6)]
    if kind == "memory":  # each process begins where the first one began
        assert seen == [whole, whole, whole]
    else:
        missed = [[("from_now", f"after {process}")] for process in range(2)]
        again = [("part", "4")] if kind == "logged" else [("part", "4"), ("part", "5")]
        assert seen == [whole, missed[0] + again, missed[1] + again]


class Noted(FileSubscriptionManager):
    """Notes what is written, one after the other: a kill may follow each."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.written: list[Entry] = []

    @override
    def add(self, entry: Entry) -> None:
        super().add(entry)
        self.written.append(next(each for each in self.entries() if each.sub_id == entry.sub_id))


async def test_the_file_has_the_end_of_a_range_at_each_moment(
    amps_memory_broker: Cluster, tmp_path: Path
) -> None:
    uri = amps_memory_broker.uri
    await publish(uri, *map(str, range(4)))
    places = await bookmarks(uri, 4)
    part = f"[{places[1]}:{places[2]}]"
    for process in range(3):
        manager = Noted(tmp_path / "subscriptions")
        client = HAClient(
            "sub",
            servers=[uri],
            bookmark_store=bookmark_store("logged", tmp_path),
            subscription_manager=manager,
        )
        async with client:
            if process:
                await client.restore_subscriptions({"part": Message.discard})
            else:
                await client.bookmark_subscribe(
                    "orders", sub_id="part", bookmark=part, handler=Message.discard
                )
            await trio.sleep(5.0)
            await client.pause("part")
            await client.resume("part")
        assert {each.fields["bm"] for each in manager.written} == {part}, process


@pytest.mark.parametrize("acks", ["completed", "stats,completed", ""])
async def test_a_restored_subscription_gets_the_acks_that_were_asked_for(
    amps_memory_broker: Cluster, tmp_path: Path, acks: str
) -> None:
    uri = amps_memory_broker.uri
    await publish(uri, "0")
    got: list[str] = []
    seen: list[list[str]] = []

    def handle(message: Message) -> None:
        got.append(message.ack_type or message.text)

    for process in range(3):
        client = HAClient(
            "sub",
            servers=[uri],
            bookmark_store=bookmark_store("logged", tmp_path),
            subscription_manager=FileSubscriptionManager(tmp_path / "subscriptions"),
        )
        async with client:
            if process:
                await client.restore_subscriptions({"s": handle})
            else:
                command = Command(
                    "subscribe", topic="orders", sub_id="s", bookmark=EPOCH, ack_type=acks
                )
                await client.execute_async(command, handle)
            await trio.sleep(5.0)
        seen.append(sorted(got))
        got.clear()
    assert seen[0][-1] == ("completed" if acks else "0")
    assert seen[1:] == [seen[0], seen[0]]


@pytest.mark.row("BS9")
async def test_whoever_has_met_more_publishers_than_a_server_takes_bookmarks_resumes_at_the_start(
    amps_memory_broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span, "MAX_BOOKMARKS", 1)
    uri, store, got = amps_memory_broker.uri, MemoryBookmarkStore(), list[str]()
    for name in "abc":
        await publish(uri, name, name=name)

    def handle(message: Message) -> None:
        got.append(message.text)
        if message.text != "c":  # which is delivered again to the next process
            message.discard()

    for wanted in (["a", "b", "c"], ["c", "d"]):
        got.clear()
        async with HAClient("sub", servers=[uri], bookmark_store=store) as client:
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=MOST_RECENT, handler=handle
            )
            await trio.sleep(5)
            assert got == wanted
        await publish(uri, "d", name="d")
        store.release_thread()
