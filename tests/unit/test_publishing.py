"""Publishing without a server; with one it is in tests/scenarios."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import DisconnectedError, TimedOut, UsageError
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import listening

pytestmark = in_virtual_time


@pytest.mark.row("CC6")
async def test_with_a_store_a_publish_needs_no_connection() -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        first = await client.publish("orders", b"a")
        second = client.publish_nowait("orders", "b")
        third = await client.delta_publish("orders", b"c")
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
    async with Client("c", publish_store=store) as client:
        with pytest.raises(UsageError, match=wanted):
            await client.publish("orders", data)
        with pytest.raises(UsageError, match=wanted):
            await client.delta_publish("orders", data)
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
