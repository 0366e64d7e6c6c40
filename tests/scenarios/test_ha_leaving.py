"""A clean end at any moment: at once, with nothing left running and everything left in the stores.

The client is live with A, with something in each store; it loses that link, and its recovery comes
to a stop in one state of the plan because the server says nothing more. There it is disconnected,
left, or cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, ReconnectGaveUp, UsageError
from haclient.protocol.messages import Message
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.session.recovery import Recovery
from haclient.subscription_manager import FileSubscriptionManager
from haclient.transport.tasks import open_nursery
from haclient.workers import ThreadPool, run_workers
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.cluster import Cluster
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import instances
from support.listening import on_states
from support.peer import Peer, Server, answering, together
from support.recovery import World, drop, entered, live, lose, not_answering, running_tasks

pytestmark = in_virtual_time

LIMIT_S = 300.0
DRAIN_S = 5.0  # leaving waits so long for what may still be persisted
STATES = [
    Recovery.WAITING,
    Recovery.DIALLING,
    Recovery.LOGGING_ON,
    Recovery.HEARTBEAT,
    Recovery.REPLAYING,
    Recovery.RESUBSCRIBING,
    Recovery.LIVE,
]


@pytest.fixture
def mute() -> Iterator[str]:
    with not_answering() as uri:
        yield uri


@contextmanager
def kept(folder: Path, world_numbers: list[int]) -> Iterator[tuple[Path, Path]]:
    """Paths of two stores; afterwards they hold exactly what is unpersisted and undiscarded."""
    publishes, bookmarks = folder / "pub", folder / "bm"
    yield publishes, bookmarks
    store = FilePublishStore(publishes)
    assert [sequence for sequence, _ in store.replay()] == world_numbers[1:]
    store.close()
    known = LoggedBookmarkStore(bookmarks)
    log = known.subscription("b")
    assert (log.resume(), log.undiscarded_count) == ("7|2|", 1)
    assert [log.is_discarded(f"7|{number}|") for number in (1, 2, 3)] == [True, True, False]
    known.close()


async def come_to(world: World, server: Server, peer: Peer, state: Recovery) -> None:
    """Let the recovery come to this state and stay in it."""
    if state is Recovery.LIVE:
        return
    await lose(peer)
    if state is Recovery.DIALLING:
        await (await server.accept()).expect("logon")
        await drop(server.peers[-1])  # and the next one does not answer at all
        return
    again = await server.accept()
    if state is Recovery.WAITING:
        await drop(again)
        return
    await world.up_to(again, state)
    await wait_all_tasks_blocked()


@pytest.mark.row("HA8", "CC3")
@pytest.mark.parametrize("ending", ["disconnect", "leave", "cancel"])
@pytest.mark.parametrize("state", STATES)
async def test_it_ends_at_once_wherever_it_is(
    server: Server, mute: str, tmp_path: Path, state: Recovery, ending: str
) -> None:
    servers = [server.uri, mute] if state is Recovery.DIALLING else [server.uri]
    before, numbers = running_tasks(), list[int]()
    with kept(tmp_path, numbers) as (publishes, bookmarks):
        world = World(
            *servers,
            publish_store=FilePublishStore(publishes),
            bookmark_store=LoggedBookmarkStore(bookmarks),
            delay_s=1000.0,
        )
        started = 0.0
        with trio.CancelScope() as scope:
            async with entered(world.client, partial(world.first, server)) as peer:
                await world.work(peer)
                numbers += world.numbers
                await come_to(world, server, peer, state)
                started = trio.current_time()
                if ending == "disconnect":
                    await world.client.disconnect()
                    assert not world.client.state.is_logged_on
                elif ending == "cancel":
                    scope.cancel()
        took = trio.current_time() - started
        assert took <= (DRAIN_S if ending == "leave" else 0)
        assert running_tasks() == before


@pytest.mark.row("HA8")
async def test_it_ends_while_an_authenticator_takes_its_time(server: Server) -> None:
    class Slow:
        async def authenticate(self, user: str, password: str) -> str:
            await trio.sleep_forever()
            return f"{user}{password}"

        async def retry(self, user: str, password: str) -> str:
            return f"{user}{password}"

        def completed(self, user: str, password: str, reason: str) -> None: ...

    chooser = DefaultServerChooser()
    chooser.add(server.uri, Slow())
    client = HAClient("ha", server_chooser=chooser, heartbeat=None, connect_timeout=3.0)
    started = trio.current_time()
    with trio.move_on_after(1.0):
        async with client:
            pytest.fail("never entered")
    assert trio.current_time() - started == 1.0
    assert client.state is ConnectionState.SHUTDOWN


@pytest.mark.row("HA8")
@pytest.mark.parametrize("state", [Recovery.LOGGING_ON, Recovery.HEARTBEAT, Recovery.RESUBSCRIBING])
@pytest.mark.parametrize("turns", range(4))
async def test_a_disconnect_may_meet_the_answer_that_was_awaited(
    server: Server, state: Recovery, turns: int
) -> None:
    """The step's task may be running already when another one stops the plan."""
    world, before = World(server.uri), running_tasks()
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        await lose(peer)
        again = await server.accept()
        await world.up_to(again, state)
        message = await again.hear()
        await wait_all_tasks_blocked()
        await again.ack(message, client_name="ha", s=world.numbers[-1])
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        await world.client.disconnect()
        await wait_all_tasks_blocked()
        assert not world.client.state.is_logged_on
        with pytest.raises(DisconnectedError, match="on purpose"):
            await world.client.flush(timeout=1)
    assert running_tasks() == before


@pytest.mark.row("HA8")
@pytest.mark.parametrize("connected", [True, False])
async def test_whoever_waits_hears_of_a_disconnect(server: Server, *, connected: bool) -> None:
    """A stream ends, a command and a publish that waits for room raise; nobody waits for ever."""
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=MemoryPublishStore(),
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        max_unpersisted_bytes=500_000,
    )
    raised: list[str] = []

    async def fails(name: str, call: Callable[[], Awaitable[object]]) -> None:
        try:
            await call()
        except DisconnectedError as error:
            assert "on purpose" in str(error) or "closed by this client" in str(error)
            raised.append(name)

    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        async with answering(peer):
            await stream.open()
        if not connected:
            server.stop_listening()
            await lose(peer)
        started = trio.current_time()
        for _ in range(4):
            await client.publish("orders", bytes(150_000))
        assert client.unpersisted_count
        async with open_nursery() as nursery:
            nursery.start_soon(fails, "publish", partial(client.publish, "orders", b"x"))
            nursery.start_soon(fails, "flush", partial(client.publish_flush, timeout=60))
            nursery.start_soon(fails, "command", partial(client.flush, timeout=60))
            nursery.start_soon(
                fails, "delete", partial(client.sow_delete, "orders", filter="1=1", timeout=60)
            )
            await wait_all_tasks_blocked()
            await client.disconnect()
            assert [message async for message in stream] == []
        assert isinstance(stream.end_reason, DisconnectedError)
        assert set(raised) == {"publish", "flush", "command", "delete"}
        assert trio.current_time() == started


@pytest.mark.row("HA25")
async def test_a_publish_that_waits_for_room_outside_of_the_block_ends_with_it(
    server: Server, tmp_path: Path
) -> None:
    """Its store is closed by then, which is not what it failed for."""
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=FilePublishStore(tmp_path / "p"),
        max_unpersisted_bytes=1000,
        heartbeat=None,
        exit_timeout=0,
    )

    async def publish_for_ever() -> None:
        while True:
            await client.publish("orders", b"x" * 100)

    async def expect_end() -> None:
        with pytest.raises(DisconnectedError, match="publish waits for acks, but the client was l"):
            await publish_for_ever()

    async with open_nursery() as nursery, entered(client, partial(live, server)) as peer:
        nursery.start_soon(peer.listen_until_end)
        nursery.start_soon(expect_end)
        await wait_all_tasks_blocked()


@pytest.mark.row("HA8")
@pytest.mark.parametrize("state", [Recovery.LIVE, Recovery.LOGGING_ON, Recovery.WAITING])
async def test_a_stream_that_is_read_outside_of_the_block_ends_with_it(
    server: Server, state: Recovery
) -> None:
    """At once: a handler that cannot be cancelled may wait for whoever reads it."""
    store, began, ended = MemoryBookmarkStore(), trio.Event(), trio.Event()
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=store, heartbeat=None, exit_timeout=0
    )
    stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)

    async def handle(_: Message) -> None:
        began.set()
        with trio.move_on_after(LIMIT_S, shield=True):  # as work in a thread
            await ended.wait()

    async def consume() -> None:
        assert [message async for message in stream] == []
        ended.set()

    async with open_nursery() as nursery, entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("others", sub_id="o", handler=handle)
            await stream.open()
        nursery.start_soon(stream.wait_caught_up)
        nursery.start_soon(consume)
        await peer.publish("o", b"1")
        await began.wait()
        if state is not Recovery.LIVE:
            await lose(peer)
            again = await server.accept()
            if state is Recovery.WAITING:
                await drop(again)
            await wait_all_tasks_blocked()
        left_at = trio.current_time()
    assert trio.current_time() == left_at
    assert isinstance(stream.end_reason, DisconnectedError)


@pytest.mark.row("HA8")
async def test_a_disconnect_from_a_handler_and_in_the_midst_of_one(server: Server) -> None:
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=MemoryBookmarkStore(), heartbeat=None
    )
    before, began = running_tasks(), trio.Event()

    async def slow(_: Message) -> None:
        began.set()
        await trio.sleep_forever()

    async def leave(_: Message) -> None:
        await began.wait()
        await client.disconnect()

    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="slow", handler=slow)
            await client.subscribe("orders", sub_id="end", handler=leave)
            await peer.publish("slow", b"1", bm="7|1|")
            await peer.publish("end", b"2")
            await wait_all_tasks_blocked()
        assert not client.state.is_logged_on
    assert running_tasks() == before


async def test_a_memory_store_gives_the_next_client_what_was_not_discarded(
    server: Server,
) -> None:
    store, got = MemoryBookmarkStore(), list[bytes]()

    def keep(message: Message) -> None:
        got.append(message.data)
        if message.data == b"1":
            message.discard()

    for _ in range(2):
        client = HAClient("ha", servers=[server.uri], bookmark_store=store, heartbeat=None)
        async with entered(client, partial(live, server)) as peer, answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=keep)
            await peer.publish("b", b"1", b"2", bm="7|1|")
            await wait_all_tasks_blocked()
    assert got == [b"1", b"2", b"2"]


# -- the client that does each step by hand -------------------------------------------------------


@pytest.mark.row("CC2")
async def test_a_disconnect_ends_a_dial(mute: str) -> None:
    async with Client("c") as client:

        async def dial() -> None:
            with pytest.raises(DisconnectedError, match="on purpose"):
                await client.connect(mute)

        async with open_nursery() as nursery:
            nursery.start_soon(dial)
            await wait_all_tasks_blocked()
            with pytest.raises(UsageError, match="connect is under way"):
                await client.connect(mute)
            await client.disconnect()
        assert trio.current_time() == 0


@pytest.mark.row("CC2")
async def test_a_dial_that_was_ended_can_be_followed_by_another(server: Server, mute: str) -> None:
    async with Client("c") as client:
        async with open_nursery() as nursery:

            async def dial() -> None:
                with pytest.raises(DisconnectedError):
                    await client.connect(mute)

            nursery.start_soon(dial)
            await wait_all_tasks_blocked()
            await client.disconnect()
        peer = await server.log_on(client)
        await together(client.flush, lambda: peer.answer("flush"))


@pytest.mark.row("CC4")
async def test_of_two_logons_at_once_one_is_refused(server: Server) -> None:
    async with Client("c") as client:
        peer = await server.connect(client)

        async def second() -> None:
            await wait_all_tasks_blocked()
            with pytest.raises(UsageError, match="logon is under way"):
                await client.logon()
            await peer.log_on()

        await together(client.logon, second)
        await together(client.flush, lambda: peer.answer("flush"))


@pytest.mark.row("CC4")
async def test_a_disconnect_ends_a_logon(server: Server) -> None:
    async with Client("c") as client:
        peer = await server.connect(client)

        async def log_on() -> None:
            with pytest.raises(DisconnectedError, match="closed by this client"):
                await client.logon()

        async with open_nursery() as nursery:
            nursery.start_soon(log_on)
            await peer.expect("logon")
            await client.disconnect()
        assert trio.current_time() == 0
        assert client.state is ConnectionState.DISCONNECTED


@pytest.mark.parametrize("fails", [False, True])
async def test_a_handler_that_misses_its_client_at_the_end_is_only_logged(
    amps_memory_broker: Cluster, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    began, ended = trio.Event(), list[str]()

    async def handle(_: Message) -> None:
        began.set()
        with trio.CancelScope(shield=True):  # as work in a thread is, which cannot be cancelled
            await trio.sleep(DRAIN_S)
        ended.append("worked")
        await client.subscribe("elsewhere", handler=handle)

    with ExitStack() as raised:
        if fails:
            raised.enter_context(pytest.raises(ValueError, match="of the block"))
        async with HAClient("me", servers=amps_memory_broker.uris, exit_timeout=0) as client:
            await client.subscribe("orders", handler=handle, sub_id="s")
            await client.publish("orders", "x")
            await began.wait()
            if fails:
                raise ValueError("of the block")
    assert ended == ["worked"]
    assert "the handler of subscription s was cut short" in caplog.text


@pytest.mark.row("HA8")
@pytest.mark.parametrize("is_listener", [False, True])
async def test_a_nursery_of_a_handler_that_misses_its_client_at_the_end_is_only_logged(
    server: Server, caplog: pytest.LogCaptureFixture, *, is_listener: bool
) -> None:
    """A nursery wraps even a single error into a group."""

    async def use_client(_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.flush)

    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe("orders", handler=use_client, sub_id="s")
        if is_listener:
            client.add_event_listener(use_client)
        else:
            await peer.publish("s", b"1")
        await drop(peer)
    callback = "a callback used its client when that was left"
    assert (callback if is_listener else "subscription s was cut short") in caplog.text
    assert "raised" not in caplog.text


@pytest.mark.parametrize("fails", [False, True])
async def test_a_listener_that_misses_its_client_at_the_end_is_only_logged(
    amps_memory_broker: Cluster, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    began, states = trio.Event(), list[ConnectionState]()

    async def listen(state: ConnectionState) -> None:
        states.append(state)
        if not began.is_set():
            began.set()
            with trio.CancelScope(shield=True):
                await trio.sleep(DRAIN_S)
            await client.subscribe("elsewhere", handler=print)

    with ExitStack() as raised:
        if fails:
            raised.enter_context(pytest.raises(ValueError, match="of the block"))
        async with HAClient("me", servers=amps_memory_broker.uris, exit_timeout=0) as client:
            client.add_event_listener(on_states(listen))
            client._core.set_state(ConnectionState.RESUBSCRIBED)  # once more
            await began.wait()
            if fails:
                raise ValueError("of the block")
    assert states[1:] == [ConnectionState.DISCONNECTED, ConnectionState.SHUTDOWN]
    assert "a callback used its client when that was left" in caplog.text


@pytest.mark.row("HA8")
@pytest.mark.parametrize("with_workers", [False, True])
@pytest.mark.parametrize("end", ["leave", "disconnect", "give up"])
async def test_a_call_that_fails_since_its_client_ends_finishes_no_message(
    tmp_path: Path, end: str, *, with_workers: bool
) -> None:
    """A policy that gives up on failed messages would lose one that has not failed."""

    began = trio.Event()

    async def handler(_: Message, __: object = None) -> None:
        began.set()
        await trio.sleep(1)
        await client.flush()

    def work(_: Message) -> None:
        return None

    strategy = FixedDelayStrategy(0.1, give_up_after=3 if end == "give up" else None)
    async with instances("east") as (broker,), open_nursery() as nursery:
        async with HAClient("p", servers=[broker.uri]) as publisher:
            await publisher.publish_persisted("orders", b"1")
        with pytest.raises(ReconnectGaveUp) if end == "give up" else nullcontext():
            async with HAClient(
                "c",
                servers=[broker.uri],
                bookmark_store=LoggedBookmarkStore(tmp_path / "s"),
                delay_strategy=strategy,
                on_handler_error="discard",
            ) as client:
                if with_workers:
                    stream = await client.bookmark_stream(
                        "orders", sub_id="s", bookmark=EPOCH
                    ).open()
                    run = partial(run_workers, stream, work, ThreadPool(1), on_result=handler)
                    nursery.start_soon(_until_disconnected, run)
                else:
                    await client.bookmark_subscribe(
                        "orders", handler=handler, sub_id="s", bookmark=EPOCH
                    )
                await began.wait()  # a thread may take long while virtual time flies
                await broker.stop()
                await trio.sleep(60 if end == "give up" else 2)
                if end == "disconnect":
                    await client.disconnect()
    store = LoggedBookmarkStore(tmp_path / "s")
    assert store.subscription("s").undiscarded_count == 1
    store.close()


async def test_a_stream_that_its_handler_has_yet_to_read_does_not_seem_complete(
    tmp_path: Path,
) -> None:
    """It is dropped while the client waits for its publishes; the handler is cancelled then."""
    ended: list[str] = []

    async def handler(_: Message) -> None:
        async with client.stream("replies") as replies:
            await trio.sleep(2)
            async for _ in replies:
                pass
            ended.append("all replies are there")

    async with instances("east", "west", replicate=True) as (east, west):
        async with HAClient("p", servers=[east.uri]) as publisher:
            await publisher.publish_persisted("orders", b"1")
        await west.stop()
        store, publishes = LoggedBookmarkStore(tmp_path / "s"), MemoryPublishStore()
        async with HAClient(
            "c", servers=[east.uri], bookmark_store=store, publish_store=publishes
        ) as client:
            await client.bookmark_subscribe(
                "orders", handler=handler, sub_id="s", bookmark=EPOCH, auto_discard=True
            )
            await trio.sleep(1)
            await client.publish("results", b"1")
    assert ended == []
    store = LoggedBookmarkStore(tmp_path / "s")
    assert store.subscription("s").undiscarded_count == 1
    store.close()


@pytest.mark.parametrize("end", ["left", "lost"])
async def test_a_handler_gets_the_reason_for_which_another_client_ends_its_stream(
    end: str,
) -> None:
    ended, store = list[str](), MemoryBookmarkStore()
    async with (
        instances("east", "west") as (east, west),
        HAClient("c", servers=[east.uri], bookmark_store=store) as client,
    ):
        await client.publish_persisted("orders", b"1")
        async with Client("d") as other:

            async def handler(_: Message) -> None:
                try:
                    async with other.stream("replies") as replies:
                        async for _ in replies:
                            pass
                        ended.append("all replies are there")
                except DisconnectedError:
                    ended.append("cut")

            await other.connect(west.uri)
            await other.logon()
            await client.bookmark_subscribe("orders", handler=handler, sub_id="s", bookmark=EPOCH)
            await trio.sleep(1)
            if end == "lost":
                await west.cut()
                await trio.sleep(1)
        await trio.sleep(1)
    assert ended == ["cut"]


async def _until_disconnected(function: Callable[[], Awaitable[None]]) -> None:
    with suppress(DisconnectedError):
        await function()


async def test_a_stream_is_closed_in_order_after_its_client(tmp_path: Path) -> None:
    """By a task outside of the client's block, which is at work when that is left."""
    store, manager = LoggedBookmarkStore(tmp_path / "b"), FileSubscriptionManager(tmp_path / "s")
    has_ended = trio.Event()
    async with Cluster("a") as cluster, open_nursery() as nursery:
        client = HAClient(
            "c", servers=cluster.uris, bookmark_store=store, subscription_manager=manager
        )

        async def consume() -> None:
            async with client.bookmark_stream("t", sub_id="s", bookmark=EPOCH) as messages:
                async for message in messages:
                    message.discard()
                    await trio.sleep(10)
            has_ended.set()

        async with client:
            nursery.start_soon(consume)
            await client.publish("t", b"{}")
            await trio.sleep(1)
        await has_ended.wait()


async def test_a_delete_that_waits_where_nobody_listens_ends_at_once() -> None:
    errors: list[str] = []
    config = BrokerConfig(listen=("mem://gone:1",))
    async with open_nursery() as nursery, BrokerServer(config) as broker:
        client = HAClient.memory_backed("c", servers=[f"{broker.uris[0]}/amps/json"])

        async def delete() -> None:
            with pytest.raises(DisconnectedError) as raised:
                await client.sow_delete("t", filter="/id = 1", timeout=None)
            errors.append(str(raised.value))

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            async with client:
                task_status.started()
                await trio.sleep(30)
                nursery.start_soon(delete)
                await trio.sleep(30)
                await client.disconnect()
                await trio.sleep(1)
                assert len(errors) == 1

        await nursery.start(run)
