from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.errors import (
    DisconnectedError,
    PublishGap,
    StoreError,
    StoreFull,
    UsageError,
    WouldBlock,
)
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.custom_stores import SendingStore
from haclient.transport.links.memory_network import link_pair
from haclient.transport.publisher import Publisher
from haclient.transport.writer import FLUSH_BYTES, Writer
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore, VolatilePublishLog
from haclient_stores.publish_stores.ring import RingPublishStore
from support.client_threads import bound_thread
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.peer import Peer

pytestmark = in_virtual_time


class Bench:
    """A publisher and, when it is connected, its writer over a link in memory."""

    def __init__(self, store: PublishStore | None = None, *, reconnects: bool = False) -> None:
        self.status = ConnectionStatus(reconnects=reconnects)
        self.publisher = Publisher(
            store,
            max_unpersisted_bytes=1 << 20,
            status=self.status,
            thread=bound_thread(),
        )

    def log_on(self, seen: int = 0, persisted: int = 0) -> Peer:
        near, far = link_pair()
        self.near = near
        self.writer = Writer(near, self.publisher.log, self.publisher.gate)
        self.publisher.connected(self.writer)
        server = LoggedOn(seen=seen, persisted=persisted, server_version="", reason="")
        self.publisher.reconcile(server, 0)
        self.publisher.open_log()
        return Peer(far)


def failure(sequence: int) -> Message:
    return Message(kind="ack", ack_type="persisted", sequence=sequence, reason="no")


@pytest.fixture(params=[MemoryPublishStore, DictPublishStore], ids=["memory", "custom"])
def store(request: pytest.FixtureRequest) -> PublishStore:
    made: PublishStore = request.param()
    return made


@pytest.mark.row("PS1", "BS22")
async def test_a_store_of_our_own_is_its_own_log_and_any_other_gets_one() -> None:
    ours, custom = MemoryPublishStore(), DictPublishStore()
    assert Bench(ours).publisher.log is ours
    assert isinstance(Bench(custom).publisher.log, SendingStore)
    assert isinstance(Bench().publisher.log, VolatilePublishLog)


@pytest.mark.row("CC6", "PS2", "PS4")
async def test_a_publish_is_stored_under_the_next_number_and_sent(store: PublishStore) -> None:
    bench = Bench(store)
    peer = bench.log_on(seen=4, persisted=4)
    assert [await bench.publisher.publish("t", b"x"), bench.publisher.publish_nowait("t", "y")] == [
        5,
        6,
    ]
    bench.writer.pump()
    await peer.expect("publish", sequence=5, ack_type="persisted", data=b"x")
    await peer.expect("publish", sequence=6, ack_type="persisted", data=b"y")


@pytest.mark.row("PS7")
async def test_nothing_leaves_before_the_logon_said_where_to_begin(store: PublishStore) -> None:
    bench = Bench(store)
    near, far = link_pair()
    writer = Writer(near, bench.publisher.log, bench.publisher.gate)
    bench.publisher.connected(writer)
    for _ in range(20):
        await bench.publisher.publish("t", bytes(FLUSH_BYTES // 8))
    assert writer.pump()
    assert near.sending.sent_bytes == 0
    assert far.recv_into(memoryview(bytearray(8))) is None


@pytest.mark.row("PS5")
async def test_waiters_are_released_by_their_acks(store: PublishStore) -> None:
    bench = Bench(store)
    bench.log_on()
    for _ in range(3):
        await bench.publisher.publish("t", b"x")
    done: list[int] = []
    async with trio.open_nursery() as nursery:

        async def wait(sequence: int) -> None:
            await bench.publisher.wait_persisted(sequence, "flush")
            done.append(sequence)

        base = store.last_sequence
        for sequence in (base - 2, base):
            nursery.start_soon(wait, sequence)
        await wait_all_tasks_blocked()
        bench.publisher.acknowledged(base - 1)
        await wait_all_tasks_blocked()
        assert done == [base - 2]
        bench.publisher.acknowledged(base)


async def test_waits_end_with_the_link_unless_another_will_come(store: PublishStore) -> None:
    bench = Bench(store)
    bench.log_on()
    await bench.publisher.publish("t", b"x")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(DisconnectedError, match="1 publishes are not persisted"):
                await bench.publisher.wait_persisted(store.last_sequence, "flush")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        bench.publisher.lost()


async def test_a_publisher_waits_through_a_lost_link_when_another_one_will_come(
    store: PublishStore,
) -> None:
    bench = Bench(store, reconnects=True)
    bench.log_on()
    await bench.publisher.publish("t", b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.publisher.wait_persisted, store.last_sequence, "flush")
        await wait_all_tasks_blocked()
        bench.publisher.lost()
        await wait_all_tasks_blocked()
        bench.log_on(seen=store.last_sequence, persisted=store.last_sequence)


async def test_a_wait_for_a_number_that_was_not_published_is_refused(
    store: PublishStore,
) -> None:
    bench = Bench(store)
    bench.log_on()
    sequence = await bench.publisher.publish("t", b"x") or 0
    why = f"up to {sequence}, found {sequence + 1}"
    with pytest.raises(UsageError, match=why):
        await bench.publisher.wait_persisted(sequence + 1, "test")
    bench.publisher.acknowledged(sequence)
    with pytest.raises(UsageError, match=why):
        await bench.publisher.wait_persisted(sequence + 1, "test")
    for each in (0, 1, sequence):
        await bench.publisher.wait_persisted(each, "test")


@pytest.mark.row("HA8")
async def test_a_publisher_waits_no_more_when_no_other_link_will_come(
    store: PublishStore,
) -> None:
    bench = Bench(store, reconnects=True)
    sequence = await bench.publisher.publish("t", b"x") or 0
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(DisconnectedError, match="not persisted and no more"):
                await bench.publisher.wait_persisted(sequence, "test")

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        bench.status.stop(DisconnectedError("no more"))
        bench.publisher.watermark.release()


@pytest.mark.row("HA18")
@pytest.mark.parametrize("was_connected", [False, True])
async def test_the_limit_is_kept_while_there_is_no_link(
    store: PublishStore, *, was_connected: bool
) -> None:
    publisher = Publisher(
        store,
        max_unpersisted_bytes=2000,
        status=ConnectionStatus(reconnects=True),
        thread=bound_thread(),
    )
    if was_connected:
        writer = Writer(link_pair()[0], publisher.log, publisher.gate)
        publisher.connected(writer)
        publisher.open_log()
        publisher.publish_nowait("t", bytes(500))
        writer.pump()
        publisher.lost()
    with pytest.raises(WouldBlock):  # noqa: PT012  # frames differ in length: any number may fit
        while store.unpersisted_count < 10:
            publisher.publish_nowait("t", bytes(500))
    assert 2000 <= store.unpersisted_bytes < 2700


@pytest.mark.row("PS6")
async def test_a_refused_publish_is_read_back_and_forgotten(store: PublishStore) -> None:
    bench = Bench(store)
    bench.log_on()
    for body in (b"a", b"b", b"c", b"d"):
        await bench.publisher.publish_with("t", body, correlation_id="abc")
    first = store.lowest_unpersisted
    message = bench.publisher.refused(failure(first + 2))
    assert message is not None
    assert (message.data, message.topic, message.correlation_id) == (b"c", "t", "abc")
    assert (message.reason, message.sequence) == ("no", first + 2)
    assert store.unpersisted_count == 4
    bench.publisher.refused(failure(first + 1))
    bench.publisher.acknowledged(first)
    assert store.lowest_unpersisted == first + 3
    unknown = bench.publisher.refused(failure(first + 99))
    assert unknown is not None
    assert (unknown.sequence, unknown.data) == (first + 99, b"")
    bench.publisher.acknowledged(first + 3)
    assert store.unpersisted_count == 0


@pytest.mark.row("PS9")
async def test_a_gap_is_an_error_where_the_store_minds() -> None:
    bench = Bench(MemoryPublishStore(error_on_publish_gap=True))
    bench.log_on(seen=9, persisted=9)
    with pytest.raises(PublishGap):
        bench.log_on(seen=3, persisted=3)


async def test_publishes_wait_in_the_log_when_the_socket_is_full_also_without_a_store() -> None:
    bench = Bench()
    peer = bench.log_on()
    bench.near.sending.capacity_bytes = 10
    count = 0
    with pytest.raises(WouldBlock, match="the socket is full"):  # noqa: PT012  # until it is full
        while True:
            bench.publisher.publish_nowait("t", bytes(100_000))
            count += 1
    assert 3 <= count <= 6
    bench.near.sending.capacity_bytes = 1 << 30
    bench.writer.pump()
    assert len(await peer.sequences(count)) == count
    bench.publisher.publish_nowait("t", b"")


@pytest.mark.row("PS20")
async def test_with_durability_fsync_a_publish_returns_after_the_disk() -> None:
    class Synced(DictPublishStore):
        durability = "fsync"

    store = Synced()
    bench = Bench(store)
    await bench.publisher.publish("t", b"a")
    await bench.publisher.publish_with("t", b"b", expiration=3)
    assert store.synced == 2
    with pytest.raises(UsageError, match="durability is fsync"):
        bench.publisher.publish_nowait("t", b"c")
    assert store.unpersisted_count == 2


async def test_a_sync_that_finds_no_room_is_no_refusal_of_the_publish_that_is_stored() -> None:
    class Full(DictPublishStore):
        durability = "fsync"

        @override
        def sync(self) -> None:
            raise StoreFull("no space left")

    store = Full()
    with pytest.raises(StoreError, match="stored, but not on the disk: no space") as caught:
        await Bench(store).publisher.publish("t", b"a")
    assert not isinstance(caught.value, StoreFull)  # who publishes it again would double it
    assert store.unpersisted_count == 1


async def test_heads_are_kept_for_many_topics_but_not_for_ever(store: PublishStore) -> None:
    bench = Bench(store)
    for number in range(5000):
        bench.publisher.publish_nowait(f"t{number}", b"")
    assert len(bench.publisher._heads) <= 4096


@pytest.mark.row("CC6")
async def test_a_publish_that_was_cancelled_while_it_waited_leaves_the_limit_in_force(
    store: PublishStore,
) -> None:
    bench = Bench(store)
    bench.log_on()
    bench.publisher.publish_nowait("t", bytes(1 << 20))
    for _ in range(2):
        with trio.move_on_after(1) as limit:
            await bench.publisher.publish("t", b"x")
        assert limit.cancelled_caught
    with pytest.raises(WouldBlock, match="too much is unpersisted"):
        bench.publisher.publish_nowait("t", b"x")
    assert store.unpersisted_count == 1


@pytest.mark.row("CC6")
@pytest.mark.parametrize("topic", [b"x", 5, None, [1]], ids=repr)
async def test_a_topic_that_is_no_text_is_refused_in_one_line_and_nothing_is_stored(
    store: PublishStore, topic: object
) -> None:
    for made in (Bench(store), Bench()):
        made.log_on()
        for publish in (made.publisher.publish, made.publisher.publish_with):
            with pytest.raises(UsageError, match="topic has to be a str, found"):
                await publish(topic, b"body")  # type: ignore[arg-type]  # what is tested
        with pytest.raises(UsageError, match="topic has to be a str, found"):
            made.publisher.publish_nowait(topic, b"body")  # type: ignore[arg-type]  # likewise
    assert store.unpersisted_count == 0


@pytest.mark.row("HA24")
async def test_once_publishes_are_held_none_passes_that_has_waited_for_room() -> None:
    bench = Bench(MemoryPublishStore())
    peer = bench.log_on()
    bench.publisher.gate.cap_bytes = 1
    accepted: list[int | None] = []

    async def publish() -> None:
        while True:
            accepted.append(await bench.publisher.publish("orders", bytes(FLUSH_BYTES)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.writer.run)
        nursery.start_soon(publish)
        await peer.expect("publish")
        await wait_all_tasks_blocked()
        bench.publisher.block_publishes(trio.Event())
        bench.publisher.gate.cap_bytes = 1 << 20
        bench.publisher.acknowledged(accepted[0] or 0)
        await wait_all_tasks_blocked()
        assert len(accepted) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA24")
async def test_once_publishes_are_held_none_passes_that_has_waited_for_room_in_the_store() -> None:
    store = RingPublishStore(None, capacity_bytes=1 << 16, when_full="wait")
    bench = Bench(store)
    bench.log_on()
    accepted: list[int | None] = []

    async def publish() -> None:
        while True:
            accepted.append(await bench.publisher.publish("orders", bytes(20_000)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.writer.run)
        nursery.start_soon(publish)
        await wait_all_tasks_blocked()
        before = accepted.copy()
        bench.publisher.block_publishes(trio.Event())
        bench.publisher.acknowledged(before[0] or 0)
        await wait_all_tasks_blocked()
        assert accepted == before
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA29")
async def test_during_a_planned_move_publishes_go_on_and_the_next_server_gets_them() -> None:
    bench = Bench(reconnects=True)
    bench.log_on()
    publish = bench.publisher.publish
    first = await publish("t", b"1")
    second = await publish("t", b"2")
    bench.publisher.acknowledged(first)
    bench.publisher.is_moving = True
    bench.publisher.lost()
    third = await publish("t", b"3")
    peer = bench.log_on()
    bench.writer.pump()
    assert [(await peer.expect("publish")).sequence for _ in range(2)] == [second, third]
    bench.publisher.publishes.check_none_lost("flush")


@pytest.mark.row("HA29")
async def test_a_planned_move_that_fails_loses_nothing_and_publishes_are_refused_again() -> None:
    bench = Bench(reconnects=True)
    bench.log_on()
    last = await bench.publisher.publish("t", b"1")
    bench.publisher.is_moving = True
    bench.publisher.lost()
    bench.publisher.move_failed()
    with pytest.raises(DisconnectedError, match="there is no publish store"):
        await bench.publisher.publish("t", b"2")
    near, _ = link_pair()
    bench.publisher.connected(Writer(near, bench.publisher.log, bench.publisher.gate))
    bench.publisher.lost()  # before its logon
    peer = bench.log_on()
    bench.writer.pump()
    assert (await peer.expect("publish")).sequence == last
    bench.publisher.lost()
    with pytest.raises(DisconnectedError, match="flush: 1 publishes were not persisted"):
        bench.publisher.publishes.check_none_lost("flush")


async def test_a_number_that_was_refused_may_be_published_again_on_the_next_connection() -> None:
    bench = Bench()
    for is_refused in (True, False):
        bench.log_on()
        await bench.publisher.publish_with("orders", b"1", sequence=5)
        if is_refused:
            bench.publisher.refused(failure(5))
        assert (5 in bench.publisher.publishes.refusals) is is_refused
        bench.publisher.lost()
