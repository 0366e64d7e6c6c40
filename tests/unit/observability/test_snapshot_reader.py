"""A client is read from any thread, and an exporter never waits for long."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a thread that runs it scrapes
import threading
from collections.abc import Generator
from contextlib import suppress
from threading import Event

import pytest
import trio

from haclient import Message, aio, blocking
from haclient.client import Client
from haclient.errors import DisconnectedError, UsageError
from haclient.observability.instruments import ClientSnapshot
from haclient.observability.snapshot_reader import SnapshotReader
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker_thread import BrokerThread, broker_thread

NOTHING = ClientSnapshot(None, None)


async def test_a_client_of_trio_is_read_in_its_own_thread_and_in_others() -> None:
    async with Client("c", publish_store=MemoryPublishStore(), exit_timeout=0) as client:
        reader = SnapshotReader(client, answer_limit=60)
        here = reader.read()
        there = await trio.to_thread.run_sync(reader.read)
        assert here.metrics is not None
        assert (here.metrics, here.health) == (there.metrics, there.health)
        assert here.metrics.state == "disconnected"
    left = reader.read()
    assert left.metrics is not None
    assert left.health is not None
    assert (left.metrics.state, left.health.is_alive) == ("shutdown", False)


def test_a_client_of_trio_is_refused_outside_of_its_program() -> None:
    client = Client("c")
    with pytest.raises(UsageError, match=r"^client c runs on trio: give it to the exporter inside"):
        SnapshotReader(client)


async def test_a_held_up_event_loop_is_waited_for_within_the_limit() -> None:
    client = Client("c")
    reader = SnapshotReader(client, answer_limit=0.01)
    found: list[ClientSnapshot] = []
    thread = threading.Thread(target=lambda: found.append(reader.read()))
    thread.start()
    thread.join()  # which holds up the event loop that has to answer
    assert found == [NOTHING]
    await trio.lowlevel.checkpoint()  # the late answer goes nowhere
    assert reader.read() != NOTHING
    async with client:
        pass


def test_a_client_whose_program_has_ended_has_no_snapshot() -> None:
    readers: list[SnapshotReader] = []

    async def main() -> None:
        async with Client("c") as client:
            readers.append(SnapshotReader(client))

    trio.run(main)
    assert readers[0].read() == NOTHING


@pytest.mark.parametrize("error", [UsageError("closed"), trio.RunFinishedError(), KeyError("k")])
async def test_a_client_that_refuses_has_no_snapshot(error: Exception) -> None:
    class Refusing:
        name = "other"

        @property
        def metrics(self) -> object:
            raise error

    reader = SnapshotReader(Refusing())  # type: ignore[arg-type]  # as a client that is closed
    assert (reader.client_name, reader.read()) == ("other", NOTHING)


# -- clients of facades, whose thread is known ---------------------------------------------


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread() as running:
        yield running


def test_a_client_is_read_before_its_run_in_it_and_after_it(broker: BrokerThread) -> None:
    client = blocking.HAClient.memory_backed("c", servers=[broker.uri])
    reader = SnapshotReader(client, answer_limit=60)
    assert reader.read() == NOTHING
    with client:
        found = reader.read()
        assert found.metrics is not None
        assert (found.metrics.logons, found.health) == (1, client.health())
    assert reader.read() == NOTHING


def test_a_client_that_a_handler_has_ended_has_no_snapshot(broker: BrokerThread) -> None:
    def handle(_: Message) -> None:
        raise LookupError("mine")

    client = blocking.HAClient.memory_backed("c", servers=[broker.uri]).open()
    reader = SnapshotReader(client, answer_limit=60)
    client.subscribe("orders", handler=handle)
    with suppress(LookupError, DisconnectedError):
        client.publish_persisted("orders", b"1")
    client.__bridge__.thread.join()
    assert reader.read() == NOTHING
    with pytest.raises(LookupError):
        client.close()
    assert reader.read() == NOTHING


def test_a_client_whose_thread_is_held_up_is_waited_for_within_the_limit(
    broker: BrokerThread,
) -> None:
    with blocking.HAClient.memory_backed("c", servers=[broker.uri]) as client:
        token, holds, goes_on = client.__bridge__.thread.token, Event(), Event()
        assert token is not None

        def hold() -> None:
            holds.set()
            goes_on.wait(60)

        token.run_sync_soon(hold)
        assert holds.wait(60)
        assert SnapshotReader(client, answer_limit=0.01).read() == NOTHING
        goes_on.set()


@pytest.mark.parametrize("kind", ["blocking", "aio"])
def test_a_client_is_read_in_a_thread_that_runs_asyncio(kind: str, broker: BrokerThread) -> None:
    async def read(client: blocking.HAClient | aio.HAClient) -> ClientSnapshot:
        return SnapshotReader(client, answer_limit=60).read()

    async def main() -> ClientSnapshot:
        async with aio.HAClient.memory_backed("c", servers=[broker.uri]) as client:
            return await read(client)

    if kind == "aio":
        found = asyncio.run(main())
    else:
        with blocking.HAClient.memory_backed("c", servers=[broker.uri]) as client:
            found = asyncio.run(read(client))
    assert found.metrics is not None
    assert found.health is not None
    assert (found.metrics.logons, found.health.is_ready) == (1, True)
