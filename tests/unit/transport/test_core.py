from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    StoreError,
    StoreLocked,
    UsageError,
)
from haclient.options import Settings
from haclient.protocol.commands import Command
from haclient.session.connection_state import ConnectionState
from haclient.session.custom_stores import StoreSubscription
from haclient.subscription_manager import FileSubscriptionManager, MemorySubscriptionManager
from haclient.transport.core import Core
from haclient.transport.message_queue import MessageQueue
from haclient.transport.subscriber import Subscriber
from haclient_stores.audit_log import AuditLog
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.listening import on_losses
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time


async def logged_on(core: Core, server: Server, *, seen: int = 0) -> Peer:
    await together(lambda: core.connect(server.uri, timeout=1), trio.lowlevel.checkpoint)
    peer = await server.accept()
    await together(lambda: core.logon(timeout=1), lambda: peer.log_on(seen=seen))
    return peer


@pytest.mark.row("PS8")
async def test_a_store_without_history_counts_from_the_clock(server: Server) -> None:
    store = MemoryPublishStore()
    core = Core(Settings(name="c", publish_store=store, clock_us=lambda: 1_000_000))
    await core.enter()
    await logged_on(core, server, seen=5)
    assert store.last_sequence == 1_000_000
    await core.leave(None, None, None)


@pytest.mark.row("PS12", "BS21")
async def test_stores_belong_to_the_client_and_are_closed_with_it() -> None:
    publishes, bookmarks = DictPublishStore(), DictBookmarkStore()
    core = Core(Settings(name="c", publish_store=publishes, bookmark_store=bookmarks))
    assert (publishes.client_name, bookmarks.client_name) == ("c", "c")
    await core.enter()
    await core.leave(None, None, None)
    assert publishes.closed
    assert bookmarks.closed


@pytest.mark.row("PS12")
def test_a_store_of_another_client_is_refused() -> None:
    store = MemoryPublishStore()
    store.open_for("other")
    with pytest.raises(StoreLocked, match="other"):
        Core(Settings(name="c", publish_store=store))


def owned_by_other(path: Path) -> None:
    for made in (
        FilePublishStore(path / "publish"),
        LoggedBookmarkStore(path / "bookmarks"),
        FileSubscriptionManager(path / "subscriptions"),
    ):
        made.open_for("other")
        made.close()


@pytest.mark.row("PS12")
@pytest.mark.parametrize("other", ["publish", "bookmarks", "subscriptions", "audit"])
def test_a_client_that_is_refused_leaves_no_store_locked(tmp_path: Path, other: str) -> None:
    owned_by_other(tmp_path / "other")

    def place(kind: str) -> Path:
        return tmp_path / ("other" if kind == other else "own") / kind

    def made() -> tuple[Settings, FileSubscriptionManager]:
        settings = Settings(
            name="c",
            publish_store=FilePublishStore(place("publish")),
            bookmark_store=LoggedBookmarkStore(place("bookmarks")),
            audit_log=AuditLog(place("audit")),
        )
        return settings, FileSubscriptionManager(place("subscriptions"))

    (tmp_path / "own").mkdir()
    (tmp_path / "other" / "audit" / "audit-00000001.log").mkdir(parents=True)  # it cannot be read
    with pytest.raises(StoreError) as refused:  # its traceback keeps what was given
        Core(*made())
    settings, manager = made()
    for each in (settings.publish_store, settings.bookmark_store, settings.audit_log, manager):
        assert each is not None
        each.close()
    assert refused.value is not None


@pytest.mark.row("PS12")
@pytest.mark.parametrize(
    "shared", ["publish_store", "bookmark_store", "subscriptions", "audit_log"]
)
async def test_a_client_that_is_refused_leaves_the_stores_of_others_open(
    tmp_path: Path, shared: str
) -> None:
    settings = Settings(
        name="c",
        publish_store=FilePublishStore(tmp_path / "publish_store"),
        bookmark_store=LoggedBookmarkStore(tmp_path / "bookmark_store"),
        audit_log=AuditLog(tmp_path / "audit_log"),
    )
    manager = FileSubscriptionManager(tmp_path / "subscriptions")
    user = Core(settings, manager)
    other, others = Settings(name="other"), manager if shared == "subscriptions" else None
    if others is None:
        other = replace(other, **{shared: getattr(settings, shared)})
    with pytest.raises((StoreLocked, UsageError)):
        Core(other, others)
    for made in (FilePublishStore, LoggedBookmarkStore, FileSubscriptionManager):
        place = {FilePublishStore: "publish_store", LoggedBookmarkStore: "bookmark_store"}
        with pytest.raises(StoreLocked, match="open already in this process"):
            made(tmp_path / place.get(made, "subscriptions"))
    assert settings.audit_log is not None
    with pytest.raises(UsageError, match="belongs to one client at a time"):
        settings.audit_log.open_for("c", 1, 1)
    await user.enter()
    await user.leave(None, None, None)
    FilePublishStore(tmp_path / "publish_store").close()
    settings.audit_log.open_for("c", 1, 1)
    settings.audit_log.close()


@pytest.mark.row("CC3")
async def test_stores_are_closed_even_when_the_block_fails() -> None:
    store = DictPublishStore()
    core = Core(Settings(name="c", publish_store=store))
    await core.enter()
    error = ZeroDivisionError()
    await core.leave(type(error), error, None)
    assert store.closed
    assert core.status.state is ConnectionState.SHUTDOWN


async def test_everything_needs_the_block() -> None:
    core = Core(Settings(name="c"))
    with pytest.raises(UsageError, match="async with"):
        core.running("subscribe")
    await core.leave(None, None, None)


@pytest.mark.row("CC9")
async def test_a_lost_connection_is_told_and_what_waits_is_released(server: Server) -> None:
    told: list[HAClientError] = []
    core = Core(
        Settings(name="c", publish_store=MemoryPublishStore(), on_event=on_losses(told.append))
    )
    await core.enter()
    peer = await logged_on(core, server)
    await core.publisher.publish("t", b"x")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(DisconnectedError):
                await core.flusher.persisted(timeout=inf)

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        peer.link.close()
    assert len(told) == 1
    assert core.status.state is ConnectionState.DISCONNECTED
    with pytest.raises(DisconnectedError, match=r"closed the connection|was lost"):
        await core.logon(timeout=1)
    await core.leave(None, None, None)


@pytest.mark.row("CC16", "PS3")
async def test_a_stored_delete_has_an_id_that_no_later_command_repeats(server: Server) -> None:
    store = MemoryPublishStore()
    core = Core(Settings(name="c", publish_store=store))
    await core.enter()
    peer = await logged_on(core, server)
    async with answering(peer):
        for _ in range(2):
            with trio.move_on_after(1):
                await core.flusher.sow_delete({"c": "sow_delete", "t": "t"}, b"{}", timeout=inf)
    ids = [message.command_id for message in peer.heard if message.command == "sow_delete"]
    assert ids == [f"sow_delete-{store.last_sequence - 1}", f"sow_delete-{store.last_sequence}"]
    await core.leave(None, None, None)


async def test_a_connect_that_outlives_the_client_has_no_connection(server: Server) -> None:
    core = Core(Settings(name="c"))
    async with trio.open_nursery() as nursery:
        await core.enter()

        async def connect() -> None:
            with pytest.raises(DisconnectedError):
                await core.connect(f"{server.uri}&http_preflight=true", timeout=inf)

        nursery.start_soon(connect)
        await wait_all_tasks_blocked()  # until the server answers, which it never does
        await core.leave(None, None, None)


class FailingStore(DictPublishStore):
    """A store of the application whose database is gone."""

    is_failing = False

    @property
    @override
    def unpersisted_count(self) -> int:
        if self.is_failing:
            raise StoreError("the database is gone")
        return super().unpersisted_count


class FailingLog(StoreSubscription):
    """Its part in a bookmark store of the application, which fails likewise."""

    @override
    def dropped(self, numbers: Collection[int]) -> None:
        raise StoreError("the database is gone")


class FailingBookmarks(DictBookmarkStore):
    """A bookmark store of the application that fails when a connection ends."""

    def subscription(self, sub_id: str) -> StoreSubscription:
        return FailingLog(self, sub_id)


@pytest.mark.row("PS12", "BS21")
@pytest.mark.parametrize("failing", ["publishes", "bookmarks"])
async def test_when_a_store_fails_as_a_connection_ends_nobody_waits_on(
    server: Server, failing: str
) -> None:
    publishes = FailingStore()
    bookmarks = FailingBookmarks() if failing == "bookmarks" else DictBookmarkStore()
    settings = Settings(name="c", publish_store=publishes, bookmark_store=bookmarks, exit_timeout=0)
    core = Core(settings, MemorySubscriptionManager())  # it expects a further connection
    deliveries = [MessageQueue(), MessageQueue()]
    async with trio.open_nursery() as nursery:
        await core.enter()
        peer = await logged_on(core, server)
        core.live()
        async with answering(peer):
            for number, delivery in enumerate(deliveries):
                command = Command("subscribe", topic="orders", bookmark=EPOCH, sub_id=f"s{number}")
                await Subscriber(core).open(command, delivery, lasts=True)
        await peer.publish("s0,s1", b"1", bm="7|1|")

        async def flush() -> None:
            with pytest.raises(DisconnectedError):
                await core.flusher.flush(timeout=inf, ack="processed")

        nursery.start_soon(flush)
        await wait_all_tasks_blocked()
        publishes.is_failing = failing == "publishes"
        await core.abandon()
        with pytest.raises(StoreError, match="database"):
            await core.leave(None, None, None)
    assert [each.end_reason is None for each in deliveries] == [False, False]


@pytest.mark.row("PS12")
async def test_a_store_that_fails_when_a_connection_ends_holds_nobody_up(server: Server) -> None:
    store = FailingStore()
    core = Core(Settings(name="c", publish_store=store, exit_timeout=0))
    await core.enter()
    await logged_on(core, server)
    store.is_failing = True
    await core.abandon()
    with pytest.raises(StoreError, match="database"):
        await core.leave(None, None, None)
