from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from math import inf

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import (
    DisconnectedError,
    HAClientError,
    StoreLocked,
    TimedOut,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.session.subscriptions import Subscription
from haclient.transport.core import Core, drain, release_queues
from haclient.transport.memory_network import link_pair
from haclient.transport.message_queue import Delivery
from haclient.transport.publisher import Publisher
from haclient.transport.settings import Settings
from haclient.transport.writer import Writer
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore, DictPublishStore
from support.peer import Peer, Server, answering, listening, together

pytestmark = in_virtual_time


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    async with listening() as found:
        yield found


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
        core.running()
    await core.leave(None, None, None)


@pytest.mark.row("CC9")
async def test_a_lost_connection_is_told_and_what_waits_is_released(server: Server) -> None:
    told: list[HAClientError] = []
    core = Core(Settings(name="c", publish_store=MemoryPublishStore(), on_disconnect=told.append))
    await core.enter()
    peer = await logged_on(core, server)
    await core.publisher.publish("t", b"x")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(DisconnectedError):
                await core.flush_persisted(timeout=inf)

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
                await core.sow_delete({"c": "sow_delete", "t": "t"}, "{}", timeout=inf)
    ids = [message.command_id for message in peer.heard if message.command == "sow_delete"]
    assert ids == [f"sow_delete-{store.last_sequence - 1}", f"sow_delete-{store.last_sequence}"]
    await core.leave(None, None, None)


# -- before a client is left ------------------------------------------------------


async def flushed(*, timeout: float) -> None:
    """A flush that succeeds at once."""
    assert timeout == inf or 0.0 <= timeout <= 3.0


@pytest.mark.row("HA25")
@pytest.mark.parametrize("error", [TimedOut("too late"), DisconnectedError("hopeless")])
async def test_what_is_left_is_told_with_the_reason(error: HAClientError) -> None:
    async def failing(*, timeout: float) -> None:
        await flushed(timeout=timeout)
        raise error

    publisher = Publisher(MemoryPublishStore(), would_deadlock=lambda _: None)
    assert await drain(publisher, failing, limit_s=3.0) == str(error)
    assert await drain(publisher, flushed, limit_s=inf) == ""
    publisher.publish_nowait("t", b"by a handler that goes on")
    assert await drain(publisher, flushed, limit_s=inf) == "1 were published while it was left"


@pytest.mark.row("HA25")
@pytest.mark.parametrize(("limit_s", "left"), [(3.0, False), (inf, True)])
async def test_without_a_store_the_outbox_leaves_first(limit_s: float, *, left: bool) -> None:
    near, far = link_pair(capacity_bytes=10)
    publisher = Publisher(None, would_deadlock=lambda _: None)
    writer = Writer(near, None, publisher.gate)
    publisher.connected(writer)
    publisher.open_log()
    publisher.publish_nowait("t", bytes(1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        nursery.start_soon(partial(drain, publisher, flushed, limit_s=limit_s))
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 2
        if left:
            buffer = memoryview(bytearray(10))
            while writer.outbox_bytes:
                far.recv_into(buffer)
                await wait_all_tasks_blocked()
        await trio.sleep(3.0)
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA25")
@pytest.mark.parametrize(("leaves_after_s", "rest_s"), [(0.0, 3.0), (2.0, 1.0), (10.0, 0.0)])
async def test_the_outbox_and_the_flush_have_one_limit_together(
    leaves_after_s: float, rest_s: float
) -> None:
    timeouts: list[float] = []

    async def flush(*, timeout: float) -> None:
        timeouts.append(timeout)

    near, _ = link_pair(capacity_bytes=10)
    publisher = Publisher(None, would_deadlock=lambda _: None)
    writer = Writer(near, None, publisher.gate)
    publisher.connected(writer)
    publisher.open_log()
    publisher.publish_nowait("t", bytes(1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(drain, publisher, flush, limit_s=3.0))
        await trio.sleep(leaves_after_s)
        publisher.lost()  # nothing will leave any more, and nobody waits for that
        writer.release()
    assert timeouts == [rest_s]


@pytest.mark.row("HA25")
async def test_the_queues_of_the_exiting_task_are_dropped_and_others_stay() -> None:
    mine, theirs, nobodys = Delivery(), Delivery(), Delivery()
    batch = [Message(kind="p")]
    for delivery in (mine, theirs, nobodys):
        delivery.put(batch, 10)
    await mine.next_batch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(theirs.next_batch)
    for delivery in (mine, theirs):
        delivery.put(batch, 10)
    release_queues([Subscription("s", each, command_id="1") for each in (mine, theirs, nobodys)])
    assert (mine.ended, theirs.ended, nobodys.ended) == (True, False, True)
    assert (mine.held_bytes, theirs.held_bytes, nobodys.held_bytes) == (0, 10, 0)
