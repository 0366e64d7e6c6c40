"""How messages are finished with: by a handler that returns, in a block, up to one, or never."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, NotEntitled, StoreFull
from haclient.protocol.messages import Message
from haclient.stores import LoggedBookmarkStore, PrunePolicy, UndiscardedWatch
from haclient.transport import store_maintenance
from haclient.transport.message_queue import HandlerErrorPolicy
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.record_file import BLOCK_BYTES, GROW_BYTES
from haclient_stores.disk.files import PAGE_BYTES
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Server, answering, close_link, together
from support.recovery import drop, entered, live

LIMIT_S = 300.0


def fail_on_b(message: Message) -> None:
    if message.data == b"b":
        raise ZeroDivisionError


@pytest.mark.row("BS20")
@in_virtual_time
async def test_what_a_handler_has_returned_for_never_comes_again(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path)
    async with Client("sub", bookmark_store=store, on_handler_error="continue") as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", handler=fail_on_b, auto_discard=True
            )
            await peer.publish("s", b"a", b"b", b"c", bm="7|1|")
            await wait_all_tasks_blocked()
    store = LoggedBookmarkStore(path)
    found = [(str(bookmark), done) for _, bookmark, done in store.entries("s")]
    assert found == [("7|1|", True), ("7|2|", False), ("7|3|", True)]
    store.close()


@pytest.mark.row("BS20")
@in_virtual_time
async def test_a_message_of_a_stream_is_discarded_at_the_end_of_its_block(
    server: Server, tmp_path: Path
) -> None:
    store = LoggedBookmarkStore(tmp_path / "s.bm")
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            stream = await client.bookmark_stream("orders", sub_id="s").open()
            await peer.publish("s", b"a", b"b", bm="7|1|")
            with await anext(stream):
                assert store.oldest_undiscarded("s") == 1
            assert store.oldest_undiscarded("s") == 2
            with pytest.raises(ZeroDivisionError), await anext(stream) as message:
                fail_on_b(message)
            assert store.oldest_undiscarded("s") == 2


@pytest.mark.row("BS17")
@pytest.mark.parametrize(
    ("policy", "batches"),
    [
        (PrunePolicy(every_messages=2000), 2),
        (PrunePolicy(over_bytes=60_000), 2),
        (PrunePolicy(growths=1), 40),
        (PrunePolicy(idle_s=0.2), 1),
        (PrunePolicy(on_exit=True), 1),
    ],
    ids=["messages", "size", "growths", "idle", "exit"],
)
async def test_a_client_prunes_when_its_policy_says_so_and_loses_nothing(  # cases
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: PrunePolicy,
    batches: int,
) -> None:
    monkeypatch.setattr(store_maintenance, "_PRUNE_CHECK_EVERY_S", 0.05)
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path, prune_policy=policy)
    pruned = trio.Event()
    prune = store.prune

    def noted() -> None:
        prune()
        trio.from_thread.run_sync(pruned.set)

    store.prune = noted  # type: ignore[method-assign]  # only to see when it is called
    with trio.fail_after(LIMIT_S):
        async with Client("sub", bookmark_store=store) as client:
            peer = await server.log_on(client)
            async with answering(peer):
                stream = await client.bookmark_stream("orders", sub_id="s").open()
                for batch in range(batches):
                    bodies = [b"x"] * 1000
                    await peer.publish("s", *bodies, bm=f"7|{batch * 1000 + 1}|")
                    for number in range(1000):
                        message = await anext(stream)
                        if batch or number:  # the very first one stays open
                            message.discard()
                if not policy.on_exit:
                    await pruned.wait()
                peer.link.close()  # so that the client does not wait for an answer to its flush
    assert pruned.is_set()
    store = LoggedBookmarkStore(path)
    assert store.most_recent("s").items == ()
    assert store.subscription("s").undiscarded_count == 1
    assert store.is_discarded("s", f"7|{batches * 1000}|")
    assert path.stat().st_size == PAGE_BYTES + GROW_BYTES  # as above
    store.close()


@pytest.mark.row("BS5")
@in_virtual_time
async def test_a_client_warns_of_a_message_that_nobody_discards(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryBookmarkStore(watch=UndiscardedWatch(after_s=10.0))
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=fail_on_b)
            await peer.publish("s", b"a", b"c", bm="7|1|")
            with caplog.at_level(logging.WARNING):
                await trio.sleep(12)
    line = caplog.records[0].getMessage()
    assert "subscription 's': message 1 has not been discarded for 1" in line
    assert line.endswith("2 are undiscarded")


@pytest.mark.row("BS19")
@in_virtual_time
async def test_everything_up_to_a_message_is_finished_in_one_call(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path)
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            stream = await client.bookmark_stream("orders", sub_id="s").open()
            await peer.publish("s", *[b"x"] * 10, bm="7|1|")
            taken = [await anext(stream) for _ in range(8)]
            store.discard_up_to("s", taken[-1].number)
            await peer.ack(None, "persisted", sub_id="s", bm="7|10|")
            await wait_all_tasks_blocked()
    store = LoggedBookmarkStore(path)
    assert str(store.most_recent("s")) == "7|8|"
    store.close()


@pytest.mark.usefixtures("small_growth")
@pytest.mark.row("BS18")
async def test_messages_for_which_the_store_may_not_grow_are_not_delivered(
    server: Server, tmp_path: Path
) -> None:
    asked: list[int] = []

    def refuse(size: int) -> bool:
        asked.append(size)
        return False

    path = tmp_path / "s.bm"
    store = LoggedBookmarkStore(path, resize_handler=refuse)
    taken = 0
    with pytest.raises(StoreFull, match="resize handler refused"):  # noqa: PT012  # from the block
        async with Client("sub", bookmark_store=store) as client:
            peer = await server.log_on(client)
            stream = client.bookmark_stream("orders", sub_id="s")
            await together(stream.open, lambda: peer.answer("subscribe"))
            for first in range(1, 2_501, 100):
                await peer.publish("s", *[b"x"] * 100, bm=f"7|{first}|")
                async for message in stream:  # none is ever discarded
                    taken = message.number
                    if taken == first + 99:
                        break
                else:
                    break
    assert asked[0] == PAGE_BYTES + 2 * BLOCK_BYTES
    assert taken > 1_600  # of 4 096 records: one for each, and room for its discard
    assert path.stat().st_size == PAGE_BYTES + BLOCK_BYTES  # a test may look at a file
    store = LoggedBookmarkStore(path)
    assert store.subscription("s").undiscarded_count == taken
    store.discard_up_to("s", store.log("s", f"7|{taken}|"))
    store.close()


@in_virtual_time
@pytest.mark.parametrize("policy", ["discard", "raise"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_call_that_fails_since_its_client_is_disconnected_finishes_no_message(
    server: Server, policy: Literal["discard", "raise"], *, is_lost: bool
) -> None:
    """The handler has not failed: its message comes again when the client has connected again."""
    store, began = MemoryBookmarkStore(), trio.Event()

    async def flush(_: Message) -> None:
        began.set()
        await client.flush()

    async with Client("sub", bookmark_store=store, on_handler_error=policy) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=flush)
        await peer.publish("s", b"a", bm="7|1|")
        await began.wait()
        if is_lost:
            await close_link(client, peer)
        else:
            await client.disconnect()
        await wait_all_tasks_blocked()
        assert store.subscription("s").undiscarded_count == 1


@in_virtual_time
@pytest.mark.parametrize("policy", ["discard", "raise", "function"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_handler_that_raises_when_its_client_has_connected_again_has_not_failed(
    server: Server, policy: str, *, is_lost: bool
) -> None:
    """What counts is the connection on which its message came, not the one after it."""
    store, began, may_raise = MemoryBookmarkStore(), trio.Event(), trio.Event()
    asked: list[Exception] = []
    policies: dict[str, HandlerErrorPolicy] = {
        "discard": "discard",
        "raise": "raise",
        "function": lambda _, error: asked.append(error),
    }

    async def flush(_: Message) -> None:
        try:
            began.set()
            await client.flush()
        finally:
            with trio.CancelScope(shield=True):
                await may_raise.wait()  # it cleans up

    policy_given = policies[policy]
    async with Client("sub", bookmark_store=store, on_handler_error=policy_given) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=flush)
        await peer.publish("s", b"a", bm="7|1|")
        await began.wait()
        if is_lost:
            await close_link(client, peer)
        else:
            await client.disconnect()
        await server.log_on(client)
        may_raise.set()
        await wait_all_tasks_blocked()
        assert (store.subscription("s").undiscarded_count, asked) == (1, [])


@in_virtual_time
@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.pause("s"),
        lambda client: client.resume("s"),
        lambda client: client.replace("s", filter="/id > 1"),
    ],
    ids=["pause", "resume", "replace"],
)
async def test_a_change_of_a_subscription_that_ended_with_the_connection_says_so(
    server: Server, call: Callable[[Client], Awaitable[None]]
) -> None:
    async with Client("sub", bookmark_store=MemoryBookmarkStore()) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=print)
        await client.disconnect()
        with pytest.raises(DisconnectedError):
            await call(client)


@in_virtual_time
async def test_no_policy_finishes_what_fails_when_the_connection_is_lost(server: Server) -> None:
    """In whatever way: what the handler uses may depend on the connection."""
    store, began, may_fail = MemoryBookmarkStore(), trio.Event(), trio.Event()

    async def fail(_: Message) -> None:
        began.set()
        await may_fail.wait()
        raise ZeroDivisionError

    async with Client("sub", bookmark_store=store, on_handler_error="discard") as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=fail)
        await peer.publish("s", b"a", bm="7|1|")
        await began.wait()
        await close_link(client, peer)
        may_fail.set()
        await wait_all_tasks_blocked()
        assert store.subscription("s").undiscarded_count == 1


@in_virtual_time
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_policy_finishes_what_comes_never_again_although_the_connection_is_lost(
    server: Server, *, is_lost: bool
) -> None:
    """A plain subscription redelivers nothing: without its policy a message would be gone."""
    asked, began, may_fail = list[bytes](), trio.Event(), trio.Event()

    async def fail(_: Message) -> None:
        began.set()
        await may_fail.wait()
        raise ZeroDivisionError

    def keep(message: Message, _: Exception) -> None:
        asked.append(message.data)

    async with Client("sub", on_handler_error=keep) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=fail)
        await peer.publish("s", b"a", b"b")
        await began.wait()
        if is_lost:
            await close_link(client, peer)
        may_fail.set()
        await wait_all_tasks_blocked()
        assert asked == [b"a", b"b"]


@in_virtual_time
@pytest.mark.parametrize("policy", ["discard", "raise"])
async def test_a_handler_that_waits_while_its_plain_client_is_left_has_not_failed(
    server: Server, policy: HandlerErrorPolicy
) -> None:
    store, began = MemoryBookmarkStore(), trio.Event()

    async def publish(message: Message) -> None:
        began.set()
        await client.publish_persisted("results", message.data)

    async with Client(
        "sub",
        bookmark_store=store,
        publish_store=MemoryPublishStore(),
        on_handler_error=policy,
        exit_timeout=0,
    ) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=publish)
        await peer.publish("s", b"a", bm="7|1|")
        await began.wait()
    assert store.subscription("s").undiscarded_count == 1


@in_virtual_time
@pytest.mark.parametrize("has_nursery", [False, True])
async def test_a_handler_that_waits_while_its_client_gives_up_has_not_failed(
    server: Server, *, has_nursery: bool
) -> None:
    """The reason is a refusal, and a nursery puts it into a group."""
    store, began, lost = MemoryBookmarkStore(), trio.Event(), trio.Event()

    async def flush(_: Message) -> None:
        began.set()
        await lost.wait()
        if not has_nursery:
            await client.flush()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.flush)

    client = HAClient(
        "sub",
        servers=[server.uri],
        bookmark_store=store,
        on_handler_error="discard",
        heartbeat=None,
        exit_timeout=0,
    )

    async def lose_for_good() -> None:
        async with entered(client, partial(live, server)) as peer:
            async with answering(peer):
                await client.bookmark_subscribe("orders", sub_id="s", handler=flush)
            await peer.publish("s", b"a", bm="7|1|")
            await began.wait()
            await drop(peer)
            lost.set()
            for _ in range(2):
                again = await live(server)
                await again.refuse(await again.expect("subscribe"), "not entitled")
            await trio.sleep_forever()

    with pytest.raises(NotEntitled):
        await lose_for_good()
    assert store.subscription("s").undiscarded_count == 1


@in_virtual_time
async def test_a_policy_that_uses_its_client_when_that_is_disconnected_does_not_end_it(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    began = trio.Event()

    async def report(_: Message, __: Exception) -> None:
        began.set()
        await client.flush()

    async with Client("sub", on_handler_error=report) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.subscribe("orders", sub_id="s", handler=fail_on_b)
        await peer.publish("s", b"b")
        await began.wait()
        await client.disconnect()
        await wait_all_tasks_blocked()
    assert "the handler of subscription s was cut short" in caplog.text
