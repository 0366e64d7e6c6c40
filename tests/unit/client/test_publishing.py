"""Publishing without a server; with one it is in tests/scenarios."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import DisconnectedError, TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient_stores.errors import StoreFull
from haclient_stores.publish_stores.memory import MemoryPublishStore
from haclient_stores.publish_stores.ring import RingPublishStore
from support.clock import in_virtual_time
from support.peer import listening

pytestmark = in_virtual_time


@pytest.mark.row("CC6")
async def test_with_a_store_a_publish_needs_no_connection() -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        first = await client.publish("orders", b"a")
        second = client.publish_nowait("orders", "b")
        third = await client.publish("orders", b"c", delta=True)
        fourth = await client.publish("orders", b"d", sow_key="k")
        assert first is not None
        assert [second, third, fourth] == [first + 1, first + 2, first + 3]
        assert client.unpersisted_count == 4


@pytest.mark.parametrize("topic", ["", "\udc80\ud800"])
async def test_a_topic_that_cannot_be_written_is_refused(topic: str) -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        with pytest.raises(UsageError):
            await client.publish(topic, b"a")
        assert client.unpersisted_count == 0


@pytest.mark.row("CC6", "CC7")
@pytest.mark.parametrize("data", [{"a": 1}, 5, None])
@pytest.mark.parametrize("stored", [True, False])
async def test_data_that_is_neither_bytes_nor_text_is_refused(data: Any, stored: bool) -> None:  # noqa: ANN401, FBT001  # what is tested
    store = MemoryPublishStore() if stored else None
    wanted = f"data is bytes, bytearray, memoryview or str, not {type(data).__name__}"
    async with listening() as server, Client("c", publish_store=store) as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match=wanted):
            await client.publish("orders", data)
        with pytest.raises(UsageError, match=wanted):
            await client.publish("orders", data, delta=True)
        with pytest.raises(UsageError, match=wanted):
            client.publish_nowait("orders", data)
        assert client.unpersisted_count == 0


@pytest.mark.row("CC8")
async def test_one_message_can_be_waited_for() -> None:
    async with listening() as server, Client("c", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)
        first = await client.publish("orders", b"a")
        second = await client.publish("orders", b"b")
        assert first is not None
        assert second is not None
        await peer.persisted(first)
        await client.wait_persisted(first)
        with pytest.raises(TimedOut, match=f"{second} is not persisted after 1 s"):
            await client.wait_persisted(second, timeout=1)
        peer.link.close()
        await wait_all_tasks_blocked()
        with pytest.raises(DisconnectedError, match="stay in memory"):
            await client.wait_persisted(second)


@pytest.mark.row("CC16")
async def test_a_delete_takes_exactly_one_criterion_and_a_connection() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="exactly one"):
            await client.sow_delete("orders")
        with pytest.raises(UsageError, match="exactly one"):
            await client.sow_delete("orders", filter="1=1", data="x")
        with pytest.raises(DisconnectedError):
            await client.sow_delete("orders", keys=["1"])
        assert trio.current_time() == 0


@pytest.mark.row("CC6")
async def test_many_messages_are_published_in_one_call_and_in_order() -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        before = await client.publish_many("orders", [])
        first = await client.publish("orders", b"a")
        assert before == first - 1
        last = await client.publish_many("orders", [b"b", "c", bytearray(b"d"), memoryview(b"e")])
        assert last == first + 4
        assert client.unpersisted_count == 5


@pytest.mark.parametrize(
    "bodies", [[b"a", 5], b"abc", "text", [b"a", None], map(str, range(3)), memoryview(b"")]
)
async def test_of_many_messages_with_a_wrong_one_none_is_published(bodies: Any) -> None:  # noqa: ANN401  # what is tested
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        with pytest.raises(UsageError, match=r"data is bytes|bodies is a list or a tuple"):
            await client.publish_many("orders", bodies)
        with pytest.raises(UsageError):
            await client.publish_many("", [b"a"])
        assert client.unpersisted_count == 0


async def test_an_error_in_the_middle_says_how_many_messages_were_accepted() -> None:
    store = RingPublishStore(None, capacity_bytes=65_536, when_full="raise")
    async with Client("c", publish_store=store, exit_timeout=0) as client:
        with pytest.raises(StoreFull) as caught:
            await client.publish_many("orders", [bytes(3000)] * 100)
        count = client.unpersisted_count
        assert 0 < count < 100
        assert caught.value.__notes__ == [f"publish_many: {count} of 100 messages were accepted"]
    async with Client("c") as client:
        with pytest.raises(DisconnectedError) as lost:
            await client.publish_many("orders", [b"a", b"b"])
        assert lost.value.__notes__ == ["publish_many: 0 of 2 messages were accepted"]


async def test_many_messages_wait_for_room_like_one() -> None:
    async with (
        listening() as server,
        Client("c", publish_store=MemoryPublishStore(), max_unpersisted_bytes=10_000) as client,
        trio.open_nursery() as nursery,
    ):
        peer = await server.log_on(client)
        nursery.start_soon(client.publish_many, "orders", [bytes(1000)] * 300)
        for _ in range(300):
            published = await peer.expect("publish")
            assert client.unpersisted_count < 300  # never all of them at once
            await peer.persisted(published.sequence or 0)


@pytest.mark.row("CC8")
async def test_a_publish_that_waits_until_it_is_persisted() -> None:
    async with listening() as server, Client("c", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)
        with pytest.raises(TimedOut, match=r"^publish_persisted: \d+ is not persisted"):
            await client.publish_persisted("orders", b"late", timeout=1)
        late = await peer.expect("publish")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.publish_persisted, "orders", b"now")
            now = await peer.expect("publish")
            assert (late.data, now.data) == (b"late", b"now")
            await wait_all_tasks_blocked()
            assert nursery.child_tasks
            await peer.persisted(now.sequence or 0)


@pytest.mark.row("CC8")
async def test_a_wait_for_persistence_has_one_limit_for_room_and_ack() -> None:
    store = MemoryPublishStore()
    async with (
        listening() as server,
        Client("c", publish_store=store, max_unpersisted_bytes=100, exit_timeout=0) as client,
    ):
        await server.log_on(client)
        began = trio.current_time()
        with pytest.raises(TimedOut):
            await client.publish_persisted("orders", bytes(200_000), timeout=5)
        assert trio.current_time() == began + 5
        with pytest.raises(TimedOut, match="no room to publish within 5 s"):
            await client.publish_persisted("orders", b"1", timeout=5)
        assert trio.current_time() == began + 10


@dataclass
class Order:
    number: int
    when: datetime
    price: Decimal


async def test_a_value_is_published_as_json() -> None:
    order = Order(1, datetime(2026, 1, 2, tzinfo=UTC), Decimal("10.50"))
    async with listening() as server, Client("c", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)
        for value, body in (
            ({"id": 1, "note": "ä", "open": None}, '{"id":1,"note":"ä","open":null}'),
            ([order], '[{"number":1,"when":"2026-01-02T00:00:00Z","price":"10.50"}]'),
        ):
            await client.publish_json("orders", value, sow_key="k")
            published = await peer.expect("publish")
            assert (published.text, published.sow_key) == (body, "k")
            await peer.persisted(published.sequence or 0)
            await wait_all_tasks_blocked()
        count = client.unpersisted_count
        loop: list[object] = []
        loop.append(loop)
        for wrong in (
            math.nan,
            Decimal("NaN"),
            {"px": math.inf},
            object(),
            loop,
            "\ud800",
            {(1, 2): 3},
        ):
            with pytest.raises(UsageError, match="cannot be written as json"):
                await client.publish_json("orders", wrong)
        assert client.unpersisted_count == count == 0


@pytest.mark.row("CC7")
async def test_a_change_of_a_record_is_published_with_all_its_fields() -> None:
    async with listening() as server, Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await client.publish(
            "orders", b"{}", expiration=7, correlation_id="abc", sow_key="k", sequence=9, delta=True
        )
        sent = await peer.expect("delta_publish")
        fields = (sent.expiration, sent.correlation_id, sent.sow_key, sent.sequence)
        assert fields == (7, "abc", "k", 9)


@pytest.mark.row("CC6")
@pytest.mark.parametrize("topic", ["orders\n", "a\x00b", "a\x7f", "a\x85"])
async def test_a_topic_with_a_control_character_is_refused_before_anything_is_stored(
    topic: str,
) -> None:
    store = MemoryPublishStore()
    async with listening() as server, Client("c", publish_store=store) as client:
        await server.log_on(client)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.publish(topic, b"1"),
            lambda: client.publish(topic, b"1", sow_key="k"),
            lambda: client.publish_many(topic, [b"1"]),
            lambda: client.publish_json(topic, {"id": 1}),
            lambda: client.publish(topic, b"{}", delta=True),
            lambda: client.sow_delete(topic, filter="/id = 1"),
            lambda: client.execute_async(Command("publish", topic=topic, data=b"1")),
            lambda: client.subscribe(topic, handler=print),
        ]
        for call in calls:
            with pytest.raises(UsageError, match="has a control character at"):
                await call()
        with pytest.raises(UsageError, match="has a control character at"):
            client.publish_nowait(topic, b"1")
        assert store.unpersisted_count == 0
        await client.publish("\u00a0 \u2028 \u20ac", b"1")  # unusual, but no control character
        assert store.unpersisted_count == 1
    async with listening() as server, Client("d") as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match="has a control character at"):
            await client.publish(topic, b"1")


@pytest.mark.row("CC6")
@pytest.mark.parametrize("value", [{"id": 1}, [1], 1])
async def test_a_value_is_told_to_be_published_as_json(value: object) -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        with pytest.raises(UsageError, match="use publish_json"):
            await client.publish("orders", value)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # on purpose


def test_with_alone_names_the_client_that_has_it() -> None:
    client = Client("c")
    with pytest.raises(UsageError, match=r"for `with` use haclient\.blocking\.Client"), client:
        pass


def test_without_trio_the_other_forms_are_named() -> None:
    entering = Client("c").__aenter__()
    with pytest.raises(UsageError, match=r"haclient\.aio under asyncio, or haclient\.blocking"):
        entering.send(None)
