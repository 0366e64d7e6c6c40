"""Pages that clients follow, move to another window, and keep after a lost connection."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from haclient.client import HAClient
from haclient.errors import InvalidOptions, InvalidTopic, UsageError
from haclient.live_records import apply_delta
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.streams import MessageStream
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.clock import in_virtual_time
from support.instances import Instance, instances

pytestmark = [in_virtual_time, pytest.mark.row("CC15")]

Body = dict[str, object]
TOPICS = (SowTopic("prices", ("/id",)), SowTopic("other", ("/id",)))
CONFIG = BrokerConfig(ack_interval_s=0.05, sow_topics=TOPICS)


class Page:
    """What a program makes of the messages of a page with `oof`."""

    def __init__(self, messages: MessageStream, *, has_deltas: bool) -> None:
        self._messages = messages
        self._has_deltas = has_deltas
        self._bodies: dict[str, Body] = {}
        self.kinds: list[str] = []

    async def read(self, *expected: int) -> None:
        """Read until nothing comes, and compare the prices."""
        self.kinds.clear()
        async for message in self._messages.with_timeout(1):
            if message is None:
                break
            self._take(message)
        assert sorted(str(body["px"]) for body in self._bodies.values()) == sorted(
            map(str, expected)
        )
        assert all(body.keys() == {"id", "px", "of"} for body in self._bodies.values())

    def _take(self, message: Message) -> None:
        body: Body = json.loads(message.data)
        known = self._bodies.get(message.sow_key)
        self.kinds.append(message.command)
        if message.command == "oof":
            del self._bodies[message.sow_key]
        elif message.command == "publish" and known is not None and self._has_deltas:
            assert "of" not in body, "it has not changed"
            self._bodies[message.sow_key] = apply_delta(known, body)
        else:
            self._bodies[message.sow_key] = body


async def publish(client: HAClient, **prices: int) -> None:
    for name, px in prices.items():
        await client.publish("prices", json.dumps({"id": name, "px": px, "of": "x"}))
    await client.publish_flush(timeout=60)


@asynccontextmanager
async def following(
    *, has_deltas: bool
) -> AsyncGenerator[tuple[Instance, HAClient, HAClient, MessageStream, Page]]:
    """A page of two prices, the second and the third, of six."""
    async with (
        instances("east", config=CONFIG) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
    ):
        await publish(publisher, a=1, b=2, c=3, d=4, e=5, f=6)
        options = Options(top_n=2, skip_n=1, oof=True)
        stream = client.sow_and_stream(
            "prices", order_by="/px", options=options, sub_id="p", delta=has_deltas, resumes=True
        )
        async with stream as messages:
            page = Page(messages, has_deltas=has_deltas)
            await page.read(2, 3)
            yield east, publisher, client, messages, page


@pytest.mark.parametrize("has_deltas", [False, True])
async def test_a_page_is_moved_and_the_later_form_survives_a_lost_connection(
    has_deltas: bool,  # noqa: FBT001  # a parameter of pytest
) -> None:
    async with following(has_deltas=has_deltas) as (east, publisher, client, messages, page):
        await publish(publisher, b=-2)
        await page.read(1, 3)
        await publish(publisher, c=2)
        await page.read(1, 2)
        assert page.kinds == ["publish"]
        await client.replace("p", options=Options(top_n=3, skip_n=2, oof=True))
        await page.read(2, 4, 5)
        assert page.kinds == ["oof", "sow", "sow", "sow"]
        await client.replace("p", order_by="/px DESC")
        await page.read(4, 2, 1)
        await client.replace("p", filter="/px > 1")
        await page.read(4, 2)
        await east.cut()
        await page.read(4, 2)
        assert page.kinds == ["sow", "sow"]
        assert messages.gaps == 1
        await publish(publisher, g=3, h=9)
        await page.read(5, 4, 3)


async def test_a_handler_and_a_command_of_ones_own_move_a_page() -> None:
    got: list[str] = []

    def handle(message: Message) -> None:
        got.append(json.loads(message.data)["id"] if message.data else message.command)

    async with (
        instances("east", config=CONFIG) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
    ):
        await publish(publisher, a=1, b=2, c=3)
        page = Options(top_n=1, skip_n=0)
        await client.sow_and_subscribe(
            "prices", handler=handle, order_by="/px DESC", options=page, sub_id="p"
        )
        moved = Command(
            "sow_and_subscribe",
            topic="prices",
            sub_id="p",
            order_by="/px",
            options=Options(top_n=1, skip_n=1, replace=True),
        )
        await client.execute_async(moved)
        await trio.sleep(1)
        assert got == ["group_begin", "c", "group_end", "group_begin", "b", "group_end"]
        got.clear()
        await client.execute_async(replace(moved, order_by="", options="top_n=3,skip_n=0,replace"))
        await publish(publisher, d=0)
        await trio.sleep(1)
        assert sorted(got[1:4]) == ["a", "b", "c"]


async def test_what_cannot_be_replaced_goes_on_as_it_was() -> None:
    async with following(has_deltas=False) as (_, publisher, client, _, page):
        with pytest.raises(InvalidTopic):
            await client.replace("p", topic="other")
        with pytest.raises(InvalidOptions):
            await client.replace("p", options=Options(top_n=3))
        await publish(publisher, b=-2)
        await page.read(1, 3)
        await client.subscribe("prices", handler=print, sub_id="plain")
        with pytest.raises(UsageError, match="no query"):
            await client.replace("plain", order_by="/px")
        await client.sow_and_subscribe("prices", handler=lambda _: None, sub_id="whole")
        with pytest.raises(InvalidOptions):
            await client.replace("whole", options=Options(top_n=3, skip_n=0))
