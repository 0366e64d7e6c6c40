"""The client on each kind of publish store: waiting for room, durability, refused stores."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient import Client, ConnectionState, HAClient
from haclient.errors import (
    DisconnectedError,
    StoreFull,
    StoreLocked,
    TimedOut,
    UsageError,
    WouldBlock,
)
from haclient.protocol.codec import publish_head
from haclient.stores import (
    FilePublishStore,
    HybridPublishStore,
    LoggedBookmarkStore,
    MemoryPublishStore,
    PublishStore,
    RingPublishStore,
)
from haclient_fake_server.config import BrokerConfig
from haclient_stores.publish_stores.ring import MIN_RING_BYTES
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.broker import RawClient, running_broker
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.disks import WatchedDisk
from support.listening import on_states
from support.peer import Peer, answering, listening, together

LIMIT_S = 300.0
AMPS = "/amps/json"
KIB = b"k" * 1000
SMALL = MIN_SEGMENT_BYTES


def fill(client: Client) -> int:
    """Publish until the store is full to the last byte; the last number that it took."""
    last = 0
    for body in (KIB, b""):
        full = False
        while not full:
            try:
                last = client.publish_nowait("orders", body) or 0
            except WouldBlock as error:
                assert "publish_nowait: " in str(error)
                full = True
    return last


async def publish_for_ever(client: Client) -> None:
    while True:
        await client.publish("orders", KIB)


async def heard(peer: Peer, last: int) -> None:
    """The peer has got everything up to a number."""
    while (await peer.expect("publish")).sequence != last:
        pass


class Refusing:
    """A resize handler that says no until it is told otherwise."""

    def __init__(self) -> None:
        self.limit = 2 * SMALL
        self.asked: list[int] = []

    def __call__(self, size: int) -> bool:
        self.asked.append(size)
        return size <= self.limit


WAITING: dict[str, Callable[[], PublishStore]] = {
    "ring": lambda: RingPublishStore(None, MIN_RING_BYTES),
    "refused growth": lambda: MemoryPublishStore(segment_bytes=SMALL, resize_handler=Refusing()),
    "custom": lambda: DictPublishStore(max_count=30, waits=True),
}


@in_virtual_time
@pytest.mark.row("PS1", "PS17", "PS18", "CC6", "BS22")
@pytest.mark.parametrize("make", WAITING.values(), ids=WAITING)
async def test_publish_waits_for_an_ack_where_the_store_asks_for_it(
    make: Callable[[], PublishStore],
) -> None:
    async with listening() as server, Client("pub", publish_store=make()) as client:
        peer = await server.log_on(client)
        last = 0
        with trio.move_on_after(1) as waited:
            while True:
                last = await client.publish("orders", KIB) or 0
        assert waited.cancelled_caught
        await heard(peer, last)
        with pytest.raises(WouldBlock):
            client.publish_nowait("orders", KIB)

        async def ack() -> None:
            await wait_all_tasks_blocked()
            await peer.persisted(last)

        number, _ = await together(lambda: client.publish("orders", b"late"), ack)
        assert number == last + 1  # nobody has used a number for nothing
        await peer.expect("publish", sequence=number, data=b"late")
        await peer.persisted(number)
        await client.publish_flush(timeout=1)


@in_virtual_time
@pytest.mark.row("PS1", "PS7")
async def test_a_command_waits_for_a_backlog_that_is_still_being_measured() -> None:
    store, backlog = DictPublishStore(), 50
    for _ in range(backlog):
        store.store(publish_head("orders"), b"}", KIB * 300)
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.connect(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.logon)
            await peer.log_on()
            while not client.connection_info["seen_sequence"]:  # the logon was accepted
                await trio.lowlevel.checkpoint()
            await client.publish("orders", b"new")
            nursery.start_soon(client.publish_flush)
            assert await peer.sequences(backlog + 1) == list(range(1, backlog + 2))
            await peer.expect("flush")
            await peer.persisted(backlog + 1)


@in_virtual_time
@pytest.mark.row("PS1", "PS18", "CC6")
@pytest.mark.parametrize(
    "store",
    [
        RingPublishStore(None, MIN_RING_BYTES, "raise"),
        MemoryPublishStore(segment_bytes=SMALL, max_bytes=2 * SMALL),
    ],
    ids=["ring", "max_bytes"],
)
async def test_a_store_that_would_rather_raise_is_full_at_once(store: PublishStore) -> None:
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        with pytest.raises(StoreFull, match="wait for their persisted acks"):
            await publish_for_ever(client)
        with pytest.raises(StoreFull):
            client.publish_nowait("orders", KIB)
        with pytest.raises(StoreFull):
            await client.publish("orders", KIB, delta=True)
        async with answering(peer):
            await client.publish_flush(timeout=1)
        assert await client.publish("orders", KIB)
        async with answering(peer):
            await client.publish_flush(timeout=1)


@in_virtual_time
@pytest.mark.row("PS17")
async def test_a_growth_that_is_refused_while_nothing_waits_is_an_error() -> None:
    handler = Refusing()
    handler.limit = 0
    store = MemoryPublishStore(segment_bytes=SMALL, resize_handler=handler)
    async with listening() as server, Client("pub", publish_store=store) as client:
        await server.log_on(client)
        with pytest.raises(StoreFull, match="refused to let the store grow to 32768"):
            await client.publish("orders", b"a")
        assert handler.asked == [SMALL]


@in_virtual_time
@pytest.mark.row("PS17", "CC6")
async def test_delta_publish_and_sow_delete_wait_for_room_too() -> None:
    store = RingPublishStore(None, MIN_RING_BYTES)
    async with listening() as server, Client("pub", publish_store=store) as client:
        peer = await server.log_on(client)
        last = fill(client)
        await heard(peer, last)
        with pytest.raises(TimedOut, match="did not answer within 1 s"):
            await client.sow_delete("orders", filter="/id = 1", timeout=1)

        async def ack() -> None:
            await wait_all_tasks_blocked()
            await peer.persisted(last)

        number, _ = await together(lambda: client.publish("orders", KIB, delta=True), ack)
        assert number == last + 1
        await peer.expect("delta_publish", sequence=number)
        last = fill(client)
        await heard(peer, last)

        async def ack_and_answer() -> None:
            await ack()
            command = await peer.expect("sow_delete", sequence=last + 1)
            assert command.command_id == f"sow_delete-{last + 1}"
            await peer.ack(command, "stats", records_deleted=1)

        answer, _ = await together(
            lambda: client.sow_delete("orders", filter="/id = 1", timeout=9), ack_and_answer
        )
        assert answer.records_deleted == 1
        await peer.persisted(last + 1)
        await wait_all_tasks_blocked()


@in_virtual_time
@pytest.mark.row("PS17")
async def test_a_full_ring_without_a_connection_does_not_wait_for_ever() -> None:
    async with Client("pub", publish_store=RingPublishStore(None, MIN_RING_BYTES)) as client:
        fill(client)
        with pytest.raises(DisconnectedError, match="waits for acks, but the connection is lost"):
            await client.publish("orders", KIB)


@in_virtual_time
@pytest.mark.row("PS1")
async def test_a_frame_that_no_ring_takes_is_told_so() -> None:
    async with Client("pub", publish_store=RingPublishStore(None, MIN_RING_BYTES)) as client:
        with pytest.raises(UsageError, match="give it more capacity_bytes"):
            await client.publish("orders", bytes(2 * SMALL))


# -- against the broker ---------------------------------------------------------------------------


def stores(path: Path) -> dict[str, PublishStore]:
    return {
        "ring": RingPublishStore(path / "ring", MIN_RING_BYTES),
        "ring in memory": RingPublishStore(None, MIN_RING_BYTES),
        "hybrid": HybridPublishStore(path / "hybrid", memory_bytes=2 * SMALL, segment_bytes=SMALL),
    }


@pytest.mark.row("PS13", "PS17", "PS18")
@pytest.mark.parametrize("kind", ["ring", "ring in memory", "hybrid"])
async def test_more_than_a_store_holds_goes_through_it_in_order(kind: str, tmp_path: Path) -> None:
    quick = BrokerConfig(ack_interval_s=0.01)
    with trio.fail_after(LIMIT_S):
        async with (
            running_broker(quick) as server,
            Client("pub", publish_store=stores(tmp_path)[kind]) as client,
        ):
            await client.connect(server.uris[0] + AMPS)
            await client.logon()
            for number in range(500):
                await client.publish("orders", b"%d " % number + KIB)
            await client.publish_flush()
            async with RawClient.connect(server.uris[0]) as reader:
                await reader.logon("reader")
                await reader.send(c="subscribe", cid="1", t="orders", bm="0")
                bodies = [message.data.split()[0] for message in await reader.publishes(500)]
            assert bodies == [b"%d" % number for number in range(500)]


@pytest.mark.row("PS13", "PS7")
async def test_a_spilled_backlog_is_sent_in_order_after_a_restart(tmp_path: Path) -> None:
    def store() -> HybridPublishStore:
        return HybridPublishStore(tmp_path / "h", memory_bytes=2 * SMALL, segment_bytes=SMALL)

    async with Client("pub", publish_store=store()) as client:
        for number in range(300):
            await client.publish("orders", b"%d " % number + KIB)
    with trio.fail_after(LIMIT_S):
        async with (
            running_broker() as server,
            HAClient("pub", servers=[server.uris[0] + AMPS], publish_store=store()) as again,
        ):
            assert again.unpersisted_count == 300
            await again.publish("orders", b"300")
            await again.publish_flush()
            async with RawClient.connect(server.uris[0]) as reader:
                await reader.logon("reader")
                await reader.send(c="subscribe", cid="1", t="orders", bm="0")
                bodies = [message.data.split()[0] for message in await reader.publishes(301)]
            assert bodies == [b"%d" % number for number in range(301)]


@pytest.mark.row("PS7")
async def test_flush_ends_when_the_machine_was_restarted_before_the_last_publish_was_sent(
    tmp_path: Path,
) -> None:
    """The clock then skips numbers above the stored ones, which no server acknowledges."""

    def store(boot: bytes) -> FilePublishStore:
        return FilePublishStore(tmp_path / "p", disk=WatchedDisk(boot=boot))

    async with Client("pub", publish_store=store(b"first boot......")) as client:
        await client.publish("orders", b"{}")
    async with (
        running_broker() as server,
        HAClient(
            "pub", servers=[server.uris[0] + AMPS], publish_store=store(b"second boot.....")
        ) as again,
    ):
        assert again.unpersisted_count == 1
        await again.publish_flush(timeout=10)


# -- durability -----------------------------------------------------------------------------------


@pytest.mark.row("PS20")
async def test_group_syncs_by_itself_and_durable_waits_for_it(tmp_path: Path) -> None:
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", durability="group", group_interval_s=0.001, disk=disk)
    with trio.fail_after(LIMIT_S):
        async with Client("pub", publish_store=store) as client:
            number = await client.publish("orders", b"a")
            await client.publish_flush(durable=True)
            assert store.synced_sequence == number
            number = await client.publish("orders", b"b")
            while store.needs_sync:  # noqa: ASYNC110  # nobody tells when a thread has synced
                await trio.sleep(0.001)
            assert store.synced_sequence == number
            quiet = len(disk.events)
            await trio.sleep(0.02)
            assert len(disk.events) == quiet  # nothing was published: nothing is synced


def hold(released: threading.Event) -> None:
    assert released.wait(LIMIT_S)


@pytest.mark.row("PS20")
async def test_waiting_for_the_disk_has_a_limit_and_needs_one(tmp_path: Path) -> None:
    released = threading.Event()
    disk = WatchedDisk()
    store = FilePublishStore(tmp_path / "p", disk=disk)
    async with Client("pub", publish_store=store) as client:
        await client.publish("orders", b"a")
        disk.before = lambda *_: hold(released)
        with pytest.raises(TimedOut, match=r"not on disk after 0\.05 s"):
            await client.publish_flush(timeout=0.05, durable=True)
        released.set()
    for nowhere in (None, MemoryPublishStore()):
        async with Client("pub", publish_store=nowhere) as client:
            with pytest.raises(UsageError, match="needs a publish store with files"):
                await client.publish_flush(durable=True)


# -- no store, an old message, and stores that are refused ------------------------------------


@in_virtual_time
@pytest.mark.row("PS18")
async def test_the_age_of_the_oldest_unpersisted_message() -> None:
    async with listening() as server, Client("pub", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)
        assert client.metrics.oldest_unpersisted_age == 0.0
        first = await client.publish("orders", b"a") or 0
        await trio.sleep(5)
        await client.publish("orders", b"b")
        await trio.sleep(2)
        assert client.metrics.oldest_unpersisted_age == pytest.approx(7)
        await peer.persisted(first)
        await wait_all_tasks_blocked()
        assert client.metrics.oldest_unpersisted_age == pytest.approx(2)
        peer.link.close()
        await wait_all_tasks_blocked()
        await trio.sleep(3)
        assert client.metrics.oldest_unpersisted_age == pytest.approx(5)


@pytest.mark.row("PS12", "BS21")
def test_a_store_that_was_accepted_is_let_go_of_when_another_is_refused(tmp_path: Path) -> None:
    other = LoggedBookmarkStore(tmp_path / "b")
    other.open_for("somebody else")
    other.close()
    with pytest.raises(StoreLocked, match="somebody else"):
        Client(
            "pub",
            publish_store=FilePublishStore(tmp_path / "p"),
            bookmark_store=LoggedBookmarkStore(tmp_path / "b"),
        )
    FilePublishStore(tmp_path / "p").close()
    gc.collect()  # nobody holds the refused one any more
    LoggedBookmarkStore(tmp_path / "b").close()


async def test_what_is_published_after_the_last_wait_for_the_server_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By a listener here; in a program with threads by any of them."""

    def listener(state: ConnectionState) -> None:
        if state is ConnectionState.SHUTDOWN:
            client.publish_nowait("orders", b"2")
            client.publish_nowait("orders", b"3")

    async with running_broker(BrokerConfig()) as server:
        uri = server.uris[0] + AMPS
        async with HAClient.memory_backed("pub", servers=[uri]) as client:
            await client.publish("orders", b"1")
            client.add_event_listener(on_states(listener))
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning == (
        "client pub leaves with publishes not persisted: 2 were published after the last wait for "
        "the server"
    )
