"""Deltas on the side of the client: what they do to a record, and a copy that stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import UsageError
from haclient.live_records import apply_delta
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.clock import in_virtual_time
from support.instances import Instance, instances

pytestmark = [in_virtual_time, pytest.mark.row("CC12")]


@pytest.mark.parametrize(
    ("record", "delta", "after"),
    [
        ({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}),
        ({"a": 1}, {}, {"a": 1}),
        ({}, {"a": 0, "b": None}, {"a": 0}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}}, {"a": {"x": 1, "y": 3}}),
        ({"a": {"x": 1}}, {"a": {"x": None}}, {"a": {}}),
        ({"a": 1}, {"a": {"x": 1, "y": None}}, {"a": {"x": 1}}),
        ({"a": [1, 2]}, {"a": [None]}, {"a": [None]}),
        ({"a": {"x": 1}}, {"a": False}, {"a": False}),
    ],
)
def test_a_delta_changes_a_record(
    record: dict[str, object], delta: dict[str, object], after: dict[str, object]
) -> None:
    before = repr(record)
    assert apply_delta(record, delta) == after
    assert repr(record) == before


def durable(path: Path) -> BrokerConfig:
    sow = (SowTopic("prices", ("/id",)),)
    return BrokerConfig(data_dir=path, ack_interval_s=0.05, sow_topics=sow)


Prices = dict[str, dict[str, object]]


async def follow(client: HAClient, prices: Prices) -> None:
    """The program of docs/deltas.md."""
    async with client.sow_and_stream("prices", delta=True, options="oof", resumes=True) as messages:
        gaps = 0
        async for message in messages:
            if messages.gaps != gaps:
                gaps = messages.gaps
                prices.clear()
            if message.command == "oof":
                prices.pop(message.sow_key, None)
            elif message.command in {"sow", "publish"}:
                known = {} if message.command == "sow" else prices.get(message.sow_key, {})
                prices[message.sow_key] = apply_delta(known, message.json(dict[str, object]))


async def restarted(broker: Instance) -> None:
    await broker.stop()
    await trio.sleep(2)
    await broker.start()


async def test_a_copy_is_that_of_the_server_also_after_a_restart(tmp_path: Path) -> None:
    prices: Prices = {}

    async def until(*wanted: dict[str, object]) -> None:
        with trio.fail_after(60):
            while sorted(prices.values(), key=str) != sorted(wanted, key=str):  # noqa: ASYNC110 - of another task
                await trio.sleep(0.01)

    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri]) as client,
        trio.open_nursery() as nursery,
    ):
        await publisher.publish_json("prices", {"id": 1, "px": 1, "of": "a"})
        await publisher.publish_flush(timeout=60)
        nursery.start_soon(follow, client, prices)
        await until({"id": 1, "px": 1, "of": "a"})
        await publisher.publish("prices", b'{"id":1,"px":2}', delta=True)
        await publisher.publish_json("prices", {"id": 2, "px": 5})
        await until({"id": 1, "px": 2, "of": "a"}, {"id": 2, "px": 5})
        await restarted(east)
        await publisher.publish_json("prices", {"id": 1, "px": 3})
        await until({"id": 1, "px": 3}, {"id": 2, "px": 5})
        await publisher.sow_delete("prices", filter="/id = 2")
        await until({"id": 1, "px": 3})
        nursery.cancel_scope.cancel()


async def test_a_record_that_was_deleted_while_the_connection_was_lost_leaves_the_copy(
    tmp_path: Path,
) -> None:
    prices: Prices = {}

    async def until(count: int) -> None:
        with trio.fail_after(60):
            while len(prices) != count:  # noqa: ASYNC110 - of another task
                await trio.sleep(0.01)

    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("sub", servers=[east.uri], delay_strategy=FixedDelayStrategy(30)) as client,
        trio.open_nursery() as nursery,
    ):
        await publisher.publish_many("prices", [b'{"id": 1}', b'{"id": 2}'])
        await publisher.publish_flush(timeout=60)
        nursery.start_soon(follow, client, prices)
        await until(2)
        await restarted(east)
        await publisher.sow_delete("prices", filter="/id = 2")
        assert not client.state.is_logged_on
        await until(1)
        assert list(prices.values()) == [{"id": 1}]
        nursery.cancel_scope.cancel()


async def test_handlers_get_deltas_with_and_without_the_query(tmp_path: Path) -> None:
    bodies: dict[str, list[tuple[str, bytes]]] = {"deltas": [], "all": []}
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
        HAClient("one", servers=[east.uri]) as one,
        HAClient("two", servers=[east.uri]) as two,
    ):
        await publisher.publish_persisted("prices", b'{"id":1,"px":1,"q":1}')
        await one.subscribe(
            "prices",
            delta=True,
            handler=lambda each: bodies["deltas"].append((each.command, each.data)),
        )
        await two.sow_and_subscribe(
            "prices",
            delta=True,
            handler=lambda each: bodies["all"].append((each.command, each.data)),
        )
        await publisher.publish_persisted("prices", b'{"id":1,"px":2,"q":1}')
        with trio.fail_after(60):
            while len(bodies["all"]) < 4 or not bodies["deltas"]:  # noqa: ASYNC110 - two clients
                await trio.sleep(0.01)
    update = ("publish", b'{"px":2,"id":1}')
    assert bodies["deltas"] == [update]
    whole = ("sow", b'{"id":1,"px":1,"q":1}')
    assert bodies["all"] == [("group_begin", b""), whole, ("group_end", b""), update]


async def test_mistakes_are_refused_before_anything_is_sent() -> None:
    async with Client("one") as client:
        with pytest.raises(UsageError, match="resumes=True needs an HAClient"):
            client.stream("prices", delta=True, resumes=True)
        with pytest.raises(UsageError, match="resumes=True needs an HAClient"):
            client.sow_and_stream("prices", delta=True, resumes=True)
