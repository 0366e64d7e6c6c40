"""A report of a client has what a support request needs, and nothing secret."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import ConnectionRefused
from haclient.observability.report import MAX_SUBSCRIPTIONS
from haclient.protocol.messages import Message
from haclient_fake_server.config import BrokerConfig
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import instances

pytestmark = [in_virtual_time, pytest.mark.row("OB8")]


async def test_a_client_tells_what_it_is_connected_to_and_how_it_is(tmp_path: Path) -> None:
    arrived = trio.Event()

    def keep(_: Message) -> None:
        arrived.set()

    config = BrokerConfig(data_dir=tmp_path / "broker", ack_interval_s=0.05)
    async with instances("east", config=config) as (east,):
        client = HAClient(
            "orders-7",
            servers=[east.uri.replace("://", "://user:secret@")],
            publish_store=MemoryPublishStore(),
            bookmark_store=LoggedBookmarkStore(tmp_path / "orders.bm"),
        )
        assert "  server         none\n" in client.report()
        async with client:
            await client.bookmark_subscribe(
                "orders", sub_id="in", handler=keep, bookmark=EPOCH, filter="/px > 1"
            )
            await client.publish_persisted("orders", b'{"px":2,"pin":"hidden"}')
            await arrived.wait()
            text = client.report()
        after = client.report()
    for line in (
        "client orders-7, haclient ",
        "  state          resubscribed\n",
        "  server         mem://user@east:1/amps/json\n",
        "  is alive       yes\n",
        "  is ready       yes\n",
        "  is degraded    no\n",
        "  publish store  MemoryPublishStore\n",
        f"  bookmark store LoggedBookmarkStore in {tmp_path / 'orders.bm'}\n",
        "  logons                 1\n",
        "\nsubscription in\n",
        "  filter                 /px > 1\n",
        "  undiscarded            1\n",
        "  subscription in on 'orders', if its connection were lost now\n",
        "\nwhat was sent (>), received (<), reached (=) and lost (!) last\n",
        " = logged_on\n",
    ):
        assert line in text, text
    assert "secret" not in text
    assert "hidden" not in text
    assert "  is alive       no\n" in after
    assert "the client was not entered, or was left" in after


async def test_the_last_error_is_named_and_many_subscriptions_are_counted(tmp_path: Path) -> None:
    async with (
        instances("east", config=BrokerConfig(data_dir=tmp_path)) as (east,),
        Client("many") as client,
    ):
        with pytest.raises(ConnectionRefused):
            await client.connect("mem://nowhere:1/amps/json")
        await client.connect(east.uri)
        await client.logon()
        for number in range(MAX_SUBSCRIPTIONS + 2):
            await client.subscribe(f"orders/{number}", handler=print)
        text = client.report()
        assert text.count("\nsubscription ") == MAX_SUBSCRIPTIONS
        assert "\n2 more subscriptions" in text
        await east.stop()
        while client.state != "disconnected":  # noqa: ASYNC110 - another task sees it
            await trio.sleep(0.1)
        lost = "  last loss      DisconnectedError: east:1 closed the connection\n"
        assert lost in client.report()
