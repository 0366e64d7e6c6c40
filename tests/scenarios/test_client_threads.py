"""What other threads than the client's and forked processes may do, as server and stores see it.

In real time: under the autojump clock time would jump while a thread works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker import port_of, running_broker
from support.custom import DictBookmarkStore
from support.forks import refusals
from support.peer import Server, together
from support.process import LIMIT_S


@pytest.mark.row("BS3", "MS10")
async def test_messages_may_be_discarded_in_worker_threads(server: Server, tmp_path: Path) -> None:
    path, count = tmp_path / "s.bm", 300

    def work(message: Message) -> None:
        with message:  # discards when the block has succeeded
            assert threading.current_thread() is not threading.main_thread()

    async with Client("c", bookmark_store=LoggedBookmarkStore(path), exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.bookmark_subscribe(
                "orders",
                sub_id="s",
                bookmark=EPOCH,
                handler=lambda message: trio.to_thread.run_sync(work, message),
            ),
            lambda: peer.answer("subscribe"),
        )
        for first in range(0, count, 10):  # arrivals and discards are mixed
            await peer.publish("s", *[b"x"] * 10, bm=f"7|{first + 1}|")
        store = client.bookmark_store
        assert store is not None
        with trio.fail_after(LIMIT_S):
            while store.oldest_undiscarded("s") or not store.is_discarded("s", f"7|{count}|"):
                await trio.lowlevel.checkpoint()
    reopened = LoggedBookmarkStore(path)
    reopened.open_for("c")
    assert all(reopened.is_discarded("s", f"7|{n}|") for n in range(1, count + 1))
    reopened.close()


class NotingStore(DictBookmarkStore):
    """Notes in which thread messages are discarded."""

    def __init__(self) -> None:
        super().__init__()
        self.discarded_in: list[int] = []

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.discarded_in.append(threading.get_ident())
        super().discard(sub_id, number)


@pytest.mark.row("BS3", "BS22")
async def test_a_store_sees_discards_on_the_clients_thread_only(server: Server) -> None:
    store = NotingStore()
    async with Client("c", bookmark_store=store, exit_timeout=0) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        await together(stream.open, lambda: peer.answer("subscribe"))
        await peer.publish("s", b"a", b"b", bm="7|1|")
        await trio.to_thread.run_sync((await anext(stream)).discard)
        assert store.is_discarded("s", "7|1|"), "carried out before the call returns"
        (await anext(stream)).discard()
        assert store.discarded_in == [threading.get_ident()] * 2


@pytest.mark.row("QC3", "QC13", "MS10")
async def test_messages_of_a_queue_may_be_acknowledged_in_worker_threads(server: Server) -> None:
    count = 100

    def work(message: Message) -> None:
        assert threading.current_thread() is not threading.main_thread()
        deadline = message.lease_deadline
        message.extend_lease(60)
        assert deadline is not None
        assert (message.lease_deadline or 0) > deadline
        message.ack(cancel=message.data == b"1")
        message.ack()

    async with Client("c", ack_batch_size=7, exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.queue_subscribe(
                "work",
                sub_id="s",
                max_backlog=count,
                workers=3,
                auto_ack=False,
                handler=lambda message: trio.to_thread.run_sync(work, message),
            ),
            lambda: peer.answer("subscribe", opts=f"max_backlog={count}"),
        )
        for number in range(1, count + 1):
            await peer.say("p", b"%d" % number, t="work", sids="s", bm=f"7|{number}|", lp="30s")
        acknowledged: list[str] = []
        cancelled: list[str] = []
        with trio.fail_after(LIMIT_S):
            while len(acknowledged) < count - 1:
                message = await peer.expect("sow_delete")
                await peer.ack(message)
                if message.options == "cancel":
                    cancelled += message.bookmark.split(",")
                elif not message.options:
                    acknowledged += message.bookmark.split(",")
        assert cancelled == ["7|1|"]
        assert sorted(acknowledged) == sorted(f"7|{n}|" for n in range(2, count + 1))


Call = Callable[[Client], object]

CALLS: dict[str, Call] = {
    "publish": lambda c: c.publish("t", b"x"),
    "publish with a key": lambda c: c.publish("t", b"x", sow_key="k"),
    "publish with a sequence": lambda c: c.publish("t", b"x", sequence=1),
    "publish_many numbered": lambda c: c.publish_many("t", [b"x"], first_sequence=1),
    "publish_many": lambda c: c.publish_many("t", [b"x"]),
    "publish_persisted": lambda c: c.publish_persisted("t", b"x"),
    "publish_json": lambda c: c.publish_json("t", 1),
    "publish_nowait": lambda c: c.publish_nowait("t", b"x"),
    "publish a delta": lambda c: c.publish("t", b"x", delta=True),
    "publish_flush": lambda c: c.publish_flush(),
    "publish_flush durable": lambda c: c.publish_flush(durable=True),
    "wait_persisted": lambda c: c.wait_persisted(1),
    "flush": lambda c: c.flush(),
    "sow_delete": lambda c: c.sow_delete("t", filter="1=1"),
    "connect": lambda c: c.connect("tcp://localhost:1/amps/json"),
    "logon": lambda c: c.logon(),
    "disconnect": lambda c: c.disconnect(),
    "set_heartbeat": lambda c: c.set_heartbeat(3.0),
    "add_event_listener": lambda c: c.add_event_listener(print),
    "remove_event_listener": lambda c: c.remove_event_listener(print),
    "health": lambda c: c.health(),
    "explain_recovery": lambda c: c.explain_recovery("s"),
    "report": lambda c: c.report(),
    "subscribe": lambda c: c.subscribe("t", handler=print),
    "stream": lambda c: c.stream("t").open(),
    "bookmark_subscribe": lambda c: c.bookmark_subscribe("t", sub_id="s", handler=print),
    "bookmark_stream": lambda c: c.bookmark_stream("t", sub_id="s").open(),
    "queue_subscribe": lambda c: c.queue_subscribe("t", handler=print),
    "queue_stream": lambda c: c.queue_stream("t").open(),
    "ack": lambda c: c.ack("t", "1|1|"),
    "ack_matching": lambda c: c.ack_matching("t", "1=1"),
    "flush_acks": lambda c: c.flush_acks(),
    "sow": lambda c: c.sow("t").open(),
    "records": lambda c: c.records("t").open(),
    "sow_and_stream": lambda c: c.sow_and_stream("t").open(),
    "sow_and_subscribe": lambda c: c.sow_and_subscribe("t", handler=print),
    "pause": lambda c: c.pause("s"),
    "resume": lambda c: c.resume("s"),
    "replace": lambda c: c.replace("s", filter="/a"),
    "unsubscribe": lambda c: c.unsubscribe(),
    "execute": lambda c: c.execute(Command("sow", topic="t")),
    "execute_async": lambda c: c.execute_async(Command("publish", topic="t", data="x")),
    "execute_async sow_delete": lambda c: c.execute_async(
        Command("sow_delete", topic="t", filter="1=1")
    ),
    "anext": lambda c: anext(c.stream("t")),
    "batches": lambda c: anext(c.stream("t").batches()),
    "aclose": lambda c: c.stream("t").aclose(),
}


@pytest.mark.row("CC6")
async def test_the_age_of_what_is_unpersisted_is_refused_to_another_thread() -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:

        def ask() -> None:
            with pytest.raises(UsageError, match="by the thread"):
                _ = client.metrics.oldest_unpersisted_age

        await trio.to_thread.run_sync(ask)
        assert client.metrics.oldest_unpersisted_age == 0


def test_every_public_call_is_tried() -> None:
    methods = {
        name
        for name in dir(Client)
        if not name.startswith("_") and callable(getattr(Client, name, None))
    }
    assert methods <= set(CALLS)


@pytest.mark.row("CC6", "CC11")
@pytest.mark.parametrize("name", CALLS)
async def test_every_other_call_from_another_thread_is_refused_before_anything_happens(
    server: Server, name: str
) -> None:
    store = MemoryPublishStore()
    errors: list[UsageError] = []

    def in_another_thread(client: Client) -> None:
        async def call() -> None:
            result = CALLS[name](client)
            if isawaitable(result):
                await result

        # A thread with a trio of its own gets furthest: nothing else would stop it.
        try:
            trio.run(call)
        except UsageError as error:
            errors.append(error)

    async with Client("c", publish_store=store) as client:
        peer = await server.log_on(client)
        await trio.to_thread.run_sync(in_another_thread, client)
        await wait_all_tasks_blocked()
        assert ["by the thread" in str(error) for error in errors] == [True]
        assert store.unpersisted_count == 0
        assert [message.command for message in peer.heard] == ["logon"]
        sequence = await client.publish("t", b"mine")
        await peer.expect("publish", sequence=sequence)
        await peer.persisted(sequence or 0)


@pytest.mark.row("CC6", "CC11")
async def test_every_call_in_a_forked_process_is_refused_before_anything_happens(
    server: Server,
) -> None:
    """Its thread has the ident of the client's, which forked."""
    store = MemoryPublishStore()
    async with Client("c", publish_store=store) as client:
        peer = await server.log_on(client)

        def calling(call: Call) -> None:
            result = call(client)
            if isawaitable(result):
                next(result.__await__())

        assert refusals(*(partial(calling, call) for call in CALLS.values())) == len(CALLS)
        await wait_all_tasks_blocked()
        assert [message.command for message in peer.heard] == ["logon"]
        sequence = await client.publish("t", b"mine")
        await peer.expect("publish", sequence=sequence)
        await peer.persisted(sequence or 0)


@pytest.mark.row("BS3", "BS22")
@pytest.mark.parametrize("make", [MemoryBookmarkStore, DictBookmarkStore])
async def test_a_discard_in_a_forked_process_is_refused(
    server: Server, make: Callable[[], BookmarkStore]
) -> None:
    store = make()
    async with Client("c", bookmark_store=store, exit_timeout=0) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        await together(stream.open, lambda: peer.answer("subscribe"))
        await peer.publish("s", b"a", bm="7|1|")
        message = await anext(stream)
        assert refusals(message.discard) == 1
        message.discard()
        assert store.is_discarded("s", "7|1|")


@pytest.mark.row("QC3", "QC13")
async def test_a_message_of_a_queue_is_not_acknowledged_in_a_forked_process(server: Server) -> None:
    async with Client("c", ack_batch_size=1, exit_timeout=0) as client:
        peer = await server.log_on(client)
        stream = client.queue_stream("work", sub_id="s", max_backlog=1)
        await together(stream.open, lambda: peer.answer("subscribe"))
        await peer.say("p", b"1", t="work", sids="s", bm="7|1|", lp="30s")
        message = await anext(stream)
        assert refusals(message.ack, lambda: message.extend_lease(60)) == 2
        message.ack()
        assert (await peer.expect("sow_delete")).bookmark == "7|1|"


@pytest.mark.timeout(LIMIT_S)
async def test_a_client_needs_none_of_the_threads_that_wait_for_it(tmp_path: Path) -> None:
    def work(uri: str) -> None:
        trio.from_thread.run(client.connect, uri)  # a name is looked up
        trio.from_thread.run(client.logon)
        trio.from_thread.run(client.publish, "orders", b"{}")  # and synced
        trio.from_thread.run(partial(client.publish_flush, durable=True))

    trio.to_thread.current_default_thread_limiter().total_tokens = 1  # this thread is the last one
    store = FilePublishStore(tmp_path / "s", durability="fsync")
    async with running_broker() as server, Client("pub", publish_store=store) as client:
        await trio.to_thread.run_sync(work, f"tcp://localhost:{port_of(server.uris[0])}/amps/json")
        await client.publish_flush()
