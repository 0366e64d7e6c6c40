"""What is refused before anything is sent; the rest is in tests/scenarios."""

from __future__ import annotations

import pytest

from haclient.client import Client
from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.options import Options
from haclient.session.dead_letter import DeadLetter


@pytest.mark.row("QC1")
async def test_the_backlog_is_an_argument_of_its_own() -> None:
    async with Client("c") as client:
        for options in ("max_backlog=3", Options(max_backlog=3)):
            with pytest.raises(UsageError, match="max_backlog=3, not in the options"):
                await client.queue_subscribe("work", handler=print, options=options)
            with pytest.raises(UsageError, match="max_backlog=3, not in the options"):
                client.queue_stream("work", options=options)


async def test_a_whole_queue_is_acknowledged_only_on_purpose() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="needs a filter; '1=1' matches every message"):
            await client.ack_matching("work", "")


async def test_a_queue_is_used_inside_the_block_and_while_connected() -> None:
    client = Client("c")
    with pytest.raises(UsageError, match="async with"):
        await client.queue_subscribe("work", handler=print, on_handler_error=DeadLetter("dead"))
    with pytest.raises(UsageError, match="async with"):
        await client.queue_stream("work").open()
    async with client:
        for call in (client.ack("work", "7|1|"), client.ack_matching("work", "1=1")):
            with pytest.raises(DisconnectedError):
                await call
        await client.flush_acks()
        assert client.metrics.dropped_acks == 0
