"""Topics that the server does not record: what their acknowledgements are worth (PS25)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

from haclient.client import HAClient
from haclient.errors import InvalidTopic
from haclient.options import OnPublishGap
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.config import BrokerConfig, LogTopic
from support.broker import RawClient, running_broker
from support.clock import in_virtual_time
from support.instances import Instance, instances

NOTHING = BrokerConfig(log_topics=())


@pytest.mark.row("PS25")
async def test_acknowledgements_come_one_by_one_and_name_no_bookmark() -> None:
    async with running_broker(NOTHING) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("p")
        for number in (1, 2, 3):
            await client.send(b"x", c="p", t="orders", s=number, a="persisted")
        acks = [await client.ack("persisted") for _ in range(3)]
        assert [(ack.sequence, ack.bookmark) for ack in acks] == [(1, ""), (2, ""), (3, "")]


def client_of(broker: Instance, *, on_publish_gap: OnPublishGap = "refuse") -> HAClient:
    return HAClient.memory_backed(
        "c",
        servers=[broker.uri],
        delay_strategy=FixedDelayStrategy(0.1),
        on_publish_gap=on_publish_gap,
        exit_timeout=0,
    )


@in_virtual_time
@pytest.mark.row("PS25")
@pytest.mark.parametrize("on_publish_gap", ["refuse", "continue"])
async def test_a_server_that_records_nothing_forgets_what_it_acknowledged(
    on_publish_gap: OnPublishGap, caplog: pytest.LogCaptureFixture
) -> None:
    """After its restart it knows less than it said; only `continue` goes on with it."""
    caplog.set_level(logging.INFO)
    async with (
        instances("east", config=NOTHING) as (east,),
        client_of(east, on_publish_gap=on_publish_gap) as client,
    ):
        for number in range(10):
            await client.publish("orders", b"%d" % number)
        await client.publish_flush(timeout=1)
        await east.stop()
        await client.publish("orders", b"later")
        await east.start()
        await trio.sleep(10)
        refused = on_publish_gap == "refuse"
        assert (client.state.is_logged_on, client.unpersisted_count) == (not refused, int(refused))
        assert ("failed (reconciling): the server has persisted" in caplog.text) == refused
        if not refused:
            with pytest.raises(InvalidTopic):
                await client.bookmark_subscribe("orders", sub_id="s", handler=print)


@in_virtual_time
@pytest.mark.row("PS25")
async def test_beside_recorded_topics_the_numbers_are_remembered_and_the_messages_are_not(
    tmp_path: Path,
) -> None:
    config = BrokerConfig(log_topics=(LogTopic("kept"),), data_dir=tmp_path, segment_bytes=1 << 20)
    async with instances("east", config=config) as (east,), client_of(east) as client:
        for topic in ("kept", "fleeting", "kept", "fleeting"):
            await client.publish(topic, topic.encode())
        await client.publish_flush(timeout=10)
        await east.stop()
        await east.start()
        await client.publish("kept", b"last")
        await client.publish_flush(timeout=10)
        async with client.bookmark_stream(".*", sub_id="s") as messages:
            assert [(await anext(messages)).data for _ in range(3)] == [b"kept", b"kept", b"last"]
