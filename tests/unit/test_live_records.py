"""A view of a topic's records: what the messages do to it, and what its consumer gets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import trio
import trio.testing

from haclient.client import Client, HAClient
from haclient.codecs import Topic
from haclient.errors import (
    DecodeError,
    DisconnectedError,
    UsageError,
)
from haclient.live_records import JsonRecord, LiveRecords, RecordChange
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.transport.links.memory_network import network
from haclient.transport.message_queue import ClientLeft
from support.clock import in_virtual_time
from support.instances import Instance, durable, instances

pytestmark = [in_virtual_time]


class Price(msgspec.Struct):
    id: int
    px: float


def by_id(record: JsonRecord) -> object:
    return record["id"]


@asynccontextmanager
async def serving(path: Path) -> AsyncGenerator[tuple[Instance, HAClient]]:
    """A broker with two records, and their publisher."""
    async with (
        instances("east", config=durable(path)) as (east,),
        HAClient.memory_backed("pub", servers=[east.uri]) as publisher,
    ):
        await publisher.publish_many("prices", [b'{"id":1,"px":1}', b'{"id":2,"px":2}'])
        await publisher.publish_flush(timeout=60)
        yield east, publisher


async def next_of(prices: LiveRecords[JsonRecord]) -> tuple[str, object]:
    with trio.fail_after(60):
        change = await anext(prices.changes())
    return change.kind, change.key


@pytest.mark.row("CC12")
@pytest.mark.parametrize("deltas", [False, True])
async def test_a_program_sees_the_records_and_each_change(tmp_path: Path, *, deltas: bool) -> None:
    async with (
        serving(tmp_path) as (east, publisher),
        HAClient("sub", servers=[east.uri]) as client,
        client.records("prices", key=by_id, filter="/px < 10", deltas=deltas) as prices,
    ):
        assert prices[1] == {"id": 1, "px": 1}
        assert (len(prices), 2 in prices, prices.get(3)) == (2, True, None)
        assert list(prices) == [1, 2]
        assert list(prices.items()) == list(prices.snapshot().items())
        assert [each["px"] for each in prices.values()] == [1, 2]
        assert prices.caught_up
        await publisher.publish("prices", b'{"id":1,"px":5}', delta=True)
        await publisher.publish("prices", b'{"id":3,"px":3}')
        with trio.fail_after(60):
            first = await anext(prices)
        assert first == RecordChange("changed", 1, {"id": 1, "px": 1}, {"id": 1, "px": 5})
        assert await next_of(prices) == ("added", 3)
        await publisher.publish("prices", b'{"id":3,"px":33}')  # it leaves the filter
        assert await next_of(prices) == ("removed", 3)
        await publisher.sow_delete("prices", filter="/id = 2")
        assert await next_of(prices) == ("removed", 2)
        assert dict(prices) == {1: {"id": 1, "px": 5}}


@pytest.mark.row("CC12", "HA5")
async def test_after_a_fail_over_the_difference_comes_and_the_view_was_never_empty(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path / "east") as (east, _),
        instances("west", config=durable(tmp_path / "west")) as (west,),
        HAClient.memory_backed("other", servers=[west.uri]) as publisher,
        HAClient("sub", servers=[east.uri, west.uri]) as client,
        client.records("prices", key=by_id) as prices,
    ):
        await publisher.publish_many("prices", [b'{"id":2,"px":2}', b'{"id":3,"px":3}'])
        await publisher.publish_flush(timeout=60)
        await east.stop()
        assert len(prices) == 2
        assert sorted([await next_of(prices), await next_of(prices)], key=str) == [
            ("added", 3),
            ("removed", 1),
        ]
        assert prices.caught_up
        with trio.move_on_after(60):
            pytest.fail(f"no further change, not {await anext(prices)}")


@pytest.mark.row("CC12")
async def test_a_client_that_does_not_reconnect_raises_and_the_last_records_stay(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (east, _), Client("sub") as client:
        await client.connect(east.uri)
        await client.logon()
        async with client.records("prices", key=by_id) as prices:
            await east.stop()
            with pytest.raises(DisconnectedError), trio.fail_after(60):
                await anext(prices)
            assert prices.ended
            assert not prices.caught_up
            assert len(prices) == 2


async def test_leaving_ends_the_iteration_and_unsubscribes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (east, _), HAClient("sub", servers=[east.uri]) as client:
        async with client.records("prices") as prices, trio.open_nursery() as nursery:

            async def consume() -> None:
                assert [change async for change in prices] == []

            nursery.start_soon(consume)
            await trio.testing.wait_all_tasks_blocked()
            await prices.aclose()
        await prices.aclose()
        assert client.metrics.subscriptions == ()
        with pytest.raises(UsageError, match="opened before"):
            await prices.open()
        prices = client.records("prices")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prices.aclose)
            with pytest.raises(DisconnectedError, match="closed before"):
                await prices.open()


async def test_the_end_of_the_client_ends_the_iteration(tmp_path: Path) -> None:
    async with serving(tmp_path) as (east, _):
        async with HAClient("sub", servers=[east.uri]) as client:
            prices = await client.records("prices").open()
        assert prices.ended
        with pytest.raises(StopAsyncIteration):
            await anext(prices)


async def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (east, publisher), HAClient("s", servers=[east.uri]) as client:
        async with client.records("orders") as orders:
            await publisher.publish("orders", b"{}")
            with pytest.raises(UsageError, match="has no SOW key"), trio.fail_after(60):
                await anext(orders)
        with pytest.raises(UsageError, match="key function of records raised KeyError"):
            await client.records("prices", key=lambda record: record["no"]).open()
        async with client.records(Topic("prices", Price), key=lambda price: price.id) as prices:
            assert prices[1] == Price(1, 1.0)
            await publisher.publish("prices", b'{"id":1}')
            with pytest.raises(DecodeError, match="px"), trio.fail_after(60):
                await anext(prices)
        assert client.metrics.subscriptions == ()


async def test_a_cancelled_wait_loses_no_change(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as (east, publisher),
        HAClient("sub", servers=[east.uri]) as client,
        client.records("prices", key=by_id) as prices,
    ):
        with trio.move_on_after(1):
            await anext(prices)
        await publisher.publish_persisted("prices", b'{"id":4}')
        with trio.CancelScope() as scope:
            scope.cancel()
            await anext(prices)
        assert await next_of(prices) == ("added", 4)


async def test_records_that_a_handler_reads_never_seem_complete_too_early(tmp_path: Path) -> None:
    """Of a client that is left: the message of the other client would count as processed."""
    errors: list[DisconnectedError] = []
    async with (
        serving(tmp_path) as (east, publisher),
        HAClient("other", servers=[east.uri]) as other,
    ):
        entered = trio.Event()
        async with HAClient("sub", servers=[east.uri]) as client:

            async def follow(_: Message) -> None:
                async with client.records("prices", key=by_id) as prices:
                    entered.set()
                    with pytest.raises(DisconnectedError, match="their client is left") as raised:
                        await anext(prices)
                errors.append(raised.value)

            await other.subscribe("orders", handler=follow)
            await publisher.publish("orders", b"{}")
            with trio.fail_after(60):
                await entered.wait()
                await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert len(errors) == 1


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_policy_gets_what_a_handler_raises_since_another_client_was_left(
    tmp_path: Path, *, is_lost: bool
) -> None:
    """Its own client goes on, and the message would never come again."""
    failed: list[Exception] = []
    async with (
        serving(tmp_path) as (east, publisher),
        HAClient(
            "other", servers=[east.uri], on_handler_error=lambda _, error: failed.append(error)
        ) as other,
    ):
        entered = trio.Event()
        async with HAClient("sub", servers=[east.uri], exit_timeout=0) as client:

            async def follow(_: Message) -> None:
                async with client.records("prices", key=by_id) as prices:
                    entered.set()
                    await anext(prices)

            await other.subscribe("orders", handler=follow)
            await publisher.publish("orders", b"{}")
            with trio.fail_after(60):
                await entered.wait()
            if is_lost:
                await east.stop()
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
        assert [type(each) for each in failed] == [ClientLeft]


@pytest.mark.parametrize("is_lost", [False, True])
async def test_records_of_a_client_that_is_left_end_without_an_error(
    tmp_path: Path, *, is_lost: bool
) -> None:
    async def follow(client: HAClient, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.records("prices", key=by_id) as prices:
            task_status.started()
            assert [change async for change in prices] == []

    async with (
        trio.open_nursery() as nursery,
        serving(tmp_path) as (east, _),
        HAClient("sub", servers=[east.uri], exit_timeout=0) as client,
    ):
        await nursery.start(follow, client)
        if is_lost:
            await east.stop()
            await trio.testing.wait_all_tasks_blocked()
            assert client.state is ConnectionState.RECONNECTING


async def test_records_that_a_leave_cuts_off_are_not_complete(tmp_path: Path) -> None:
    async def refused(prices: LiveRecords[JsonRecord]) -> None:
        with pytest.raises(DisconnectedError, match="their client is left"):
            await prices.open()

    async with serving(tmp_path) as (east, publisher), trio.open_nursery() as nursery:
        many = [b'{"id":%d,"text":"%b"}' % (number, b"x" * 2_000) for number in range(1_000)]
        await publisher.publish_many("prices", many)
        await publisher.publish_flush(timeout=60)
        async with HAClient("sub", servers=[east.uri], exit_timeout=0) as client:
            prices = client.records("prices", key=by_id)
            nursery.start_soon(refused, prices)
            while not prices:
                await trio.lowlevel.checkpoint()
        assert len(prices) < len(many)


async def test_the_changes_follow_what_the_records_are_when_they_are_entered(
    tmp_path: Path,
) -> None:
    """Also where a record has changed right after the query, and changes back."""
    async with serving(tmp_path) as (east, publisher), HAClient("s", servers=[east.uri]) as client:
        link = network().connections[-1].client.receiving
        link.held = True  # until the records and the change after them arrive together
        prices = client.records("prices", key=by_id)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prices.open)
            await trio.testing.wait_all_tasks_blocked()
            await publisher.publish_persisted("prices", b'{"id":1,"px":7}')
            link.held = False
            link.changed()
        assert prices[1] == {"id": 1, "px": 7}
        await publisher.publish_persisted("prices", b'{"id":1,"px":1}')
        assert await next_of(prices) == ("changed", 1)
        await prices.aclose()


@pytest.mark.parametrize("call", ["aclose", "__anext__", "wait_change"])
async def test_another_thread_is_refused_and_changes_nothing(tmp_path: Path, call: str) -> None:
    async with (
        serving(tmp_path) as (east, publisher),
        HAClient("sub", servers=[east.uri]) as client,
        client.records("prices", key=by_id) as prices,
    ):
        refused = list[BaseException]()

        def elsewhere() -> None:
            try:
                trio.run(getattr(prices, call))
            except BaseException as error:  # of any kind
                refused.append(error)

        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert [type(each) for each in refused] == [UsageError]
        await publisher.publish("prices", b'{"id":3,"px":3}')
        assert await next_of(prices) == ("added", 3)
