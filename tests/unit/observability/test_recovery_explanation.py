"""What a subscription would ask for is explained as it then happens."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import UsageError
from haclient.observability.recovery_explanation import RecoveryExplanation
from haclient.protocol.messages import Message
from haclient.session.resume import ResumeRule
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, Server, answering, listening
from support.recovery import drop, entered, live

pytestmark = in_virtual_time

DOCS = Path(__file__).parents[3] / "docs" / "observability.md"


@pytest.fixture(params=["memory", "logged", "custom"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BookmarkStore:
    match request.param:
        case "memory":
            return MemoryBookmarkStore()
        case "logged":
            return LoggedBookmarkStore(tmp_path / "b.log")
        case _:
            return DictBookmarkStore()


@asynccontextmanager
async def connected(
    server: Server, store: BookmarkStore | None = None
) -> AsyncGenerator[tuple[HAClient, Peer]]:
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=store, heartbeat=None, exit_timeout=0
    )
    async with entered(client, partial(live, server)) as peer:
        yield client, peer


async def asked_after_a_loss(server: Server, peer: Peer) -> str:
    """The bookmark of the subscribe that follows a lost connection."""
    await drop(peer)
    return (await (await live(server)).answer("subscribe")).bookmark


def keep(_: Message) -> None: ...


def discard(message: Message) -> None:
    message.discard()


@pytest.mark.row("B5")
@pytest.mark.parametrize("completed", [True, False])
@pytest.mark.parametrize("acked", [True, False])
async def test_what_is_finished_is_the_bookmark_that_it_then_asks_for(
    store: BookmarkStore, *, completed: bool, acked: bool
) -> None:
    async with listening() as server, connected(server, store) as (client, peer):
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=discard)
            if completed:
                await peer.ack(None, "completed", sub_id="b")
            await peer.publish("b", b"1", b"2", bm="7|1|")
            if acked:
                await peer.ack(None, "persisted", sub_id="b", bm="7|2|")
            await wait_all_tasks_blocked()
        found = client.explain_recovery("b")
        assert (found.undelivered, found.in_progress, found.oldest_undiscarded) == (0, 0, "")
        assert found.bookmark == await asked_after_a_loss(server, peer)
        if acked:
            assert (found.bookmark, found.reason) == ("7|2|", ResumeRule.IN_ORDER.value)


@pytest.mark.row("B5")
@pytest.mark.parametrize("publisher", [7, 8])
@pytest.mark.parametrize("finished", [0, 1])
async def test_messages_that_wait_in_a_queue_are_redelivered_from_where_it_says(
    store: BookmarkStore, publisher: int, finished: int
) -> None:
    async with listening() as server, connected(server, store) as (client, peer):
        async with answering(peer):
            stream = client.bookmark_stream("orders", sub_id="b")
            messages = await stream.__aenter__()
            await peer.publish("b", b"1", bm="7|1|")
            first = await anext(messages)
            await peer.publish("b", b"2", b"3", bm=f"{publisher}|2|")
            await wait_all_tasks_blocked()
            if finished:
                first.discard()
                await peer.ack(None, "persisted", sub_id="b", bm="7|1|")
                await wait_all_tasks_blocked()
        found = client.explain_recovery("b")
        assert found.undelivered == 2
        if not isinstance(store, DictBookmarkStore):  # which does not count
            assert found.in_progress == 1 - finished
            wanted = f"{publisher}|2|" if finished else "7|1|"
            assert found.oldest_undiscarded == wanted
        assert found.bookmark == await asked_after_a_loss(server, peer)


@pytest.mark.row("B5")
async def test_a_message_in_progress_holds_the_recovery_point_and_is_named(
    store: BookmarkStore,
) -> None:
    async with listening() as server, connected(server, store) as (client, peer):
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=keep)
            await peer.publish("b", b"1", b"2", bm="7|1|")
            await wait_all_tasks_blocked()
        found = client.explain_recovery("b")
        assert (found.undelivered, found.topic) == (0, "orders")
        text = str(found)
        if isinstance(store, DictBookmarkStore):
            assert found.next_process is None
        else:
            assert (found.in_progress, found.oldest_undiscarded) == (2, "7|1|")
            assert "held by       7|1|, the oldest undiscarded one" in text
            assert found.next_process == store.explain("b")  # type: ignore[attr-defined]  # ours
            assert f"if this process died: {found.next_process}" in text
        assert text.splitlines()[1] == f"  resumes at    {found.bookmark}"
        assert json.loads(json.dumps(found.as_dict()))["sub_id"] == "b"
        assert found.bookmark == await asked_after_a_loss(server, peer)


@pytest.mark.row("B5")
async def test_on_another_server_it_asks_for_a_time_or_for_the_start() -> None:
    async with listening() as a, listening() as b:
        client = HAClient(
            "ha",
            servers=[a.uri, b.uri],
            bookmark_store=MemoryBookmarkStore(),
            heartbeat=None,
            exit_timeout=0,
        )
        async with entered(client, partial(live, a)) as peer:
            async with answering(peer):
                await client.bookmark_subscribe("orders", sub_id="b", handler=discard)
                await peer.publish("b", b"1", b"2", bm="7|1|")
                await wait_all_tasks_blocked()
                before = client.explain_recovery("b")
                assert before.elsewhere == ("0",)
                await peer.ack(None, "completed", sub_id="b")
                await peer.ack(None, "persisted", sub_id="b", bm="7|2|")
                await trio.sleep(2)
                await peer.publish("b", b"3", bm="7|3|")
                await peer.ack(None, "persisted", sub_id="b", bm="7|3|")
                await wait_all_tasks_blocked()
            found = client.explain_recovery("b")
            assert found.bookmark == "7|3|"
            bookmark, time = found.elsewhere[0].split(",")
            assert (bookmark, len(time)) == ("7|3|", len("20260101T000000.000000Z"))
            assert found.elsewhere[1] == "7|3|"
            a.stop_listening()
            await drop(peer)
            asked = (await (await live(b)).answer("subscribe")).bookmark
            assert asked.split(",")[0] == bookmark
            # The end of the link notes the caught-up time once more: only later, never earlier.
            assert time <= asked.split(",")[1]


@pytest.mark.row("B5")
async def test_subscriptions_without_a_store_say_what_becomes_of_them() -> None:
    async with listening() as server, connected(server) as (client, peer):
        async with answering(peer):
            await client.subscribe("orders", sub_id="plain", handler=keep)
            await client.bookmark_subscribe("orders", sub_id="replay", handler=keep, bookmark="0")
            stream = client.stream("orders", sub_id="stream")
            await stream.__aenter__()
            await peer.publish("stream", b"1")
            await wait_all_tasks_blocked()
        plain, replay, ends = map(client.explain_recovery, ("plain", "replay", "stream"))
        assert (plain.bookmark, plain.elsewhere, plain.recovery_point) == ("", (), "")
        assert plain.reason == "it has no bookmark: what is published until it is back is missing"
        assert "resumes at    nothing" in str(plain)
        assert (replay.bookmark, replay.elsewhere) == ("0", ("0",))
        assert replay.reason.endswith("so it begins again where it has begun")
        assert ends.reason == "it was not opened to be sent again: it ends with its connection"
        assert ends.undelivered == 0  # it is still delivered
        await drop(peer)
        again = await live(server)
        assert [(await again.answer("subscribe")).sub_id for _ in "12"] == ["plain", "replay"]


@pytest.mark.row("B5")
async def test_a_client_that_does_not_reconnect_says_where_the_next_subscribe_resumes() -> None:
    async with (
        listening() as server,
        Client("c", bookmark_store=MemoryBookmarkStore(), exit_timeout=0) as client,
    ):
        peer = await server.log_on(client)
        async with answering(peer):
            await client.subscribe("orders", sub_id="plain", handler=keep)
            await client.bookmark_subscribe("orders", sub_id="b", handler=discard)
            await peer.publish("b", b"1", bm="7|1|")
            await peer.ack(None, "persisted", sub_id="b", bm="7|1|")
            await wait_all_tasks_blocked()
        assert client.explain_recovery("plain").reason.startswith("a Client does not reconnect")
        found = client.explain_recovery("b")
        assert found.bookmark == "7|1|"
        assert found.reason.endswith("subscribe again with MOST_RECENT to resume there")
        await drop(peer)
        peer = await server.log_on(client)
        async with trio.open_nursery() as nursery:
            again = partial(client.bookmark_subscribe, "orders", sub_id="b", handler=discard)
            nursery.start_soon(again)
            assert (await peer.answer("subscribe")).bookmark == found.bookmark


async def test_asking_changes_nothing_and_an_unknown_id_is_refused_with_those_that_exist() -> None:
    async with listening() as server, connected(server, MemoryBookmarkStore()) as (client, peer):
        with pytest.raises(UsageError, match=r"^no subscription 'x' in this client; it has none$"):
            client.explain_recovery("x")
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=keep)
            await peer.publish("b", b"1", bm="7|1|")
            await wait_all_tasks_blocked()
        first, second = client.explain_recovery("b"), client.explain_recovery("b")
        assert isinstance(first, RecoveryExplanation)
        assert first == second
        with pytest.raises(UsageError, match=r"it has b$"):
            client.explain_recovery("x")


def test_the_page_has_a_row_for_each_field() -> None:
    _, section = DOCS.read_text(encoding="utf-8").split("## Why a subscription would replay")
    documented = re.findall(r"^\| `(\w+)` \|", section.split("\n## ")[0], flags=re.MULTILINE)
    assert documented == [each.name for each in fields(RecoveryExplanation)]
