"""A client is read from any thread, and an exporter never waits for long."""

from __future__ import annotations

import threading

import pytest
import trio

from haclient.client import Client
from haclient.errors import UsageError
from haclient.observing.instruments import Reading
from haclient.observing.snapshot_reader import SnapshotReader
from haclient_stores.publish_stores.memory import MemoryPublishStore

NOTHING = Reading(None, None)


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
    found: list[Reading] = []
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


@pytest.mark.parametrize("error", [UsageError("closed"), trio.RunFinishedError()])
async def test_a_client_that_refuses_has_no_snapshot(error: Exception) -> None:
    class Refusing:
        name = "other"

        @property
        def metrics(self) -> object:
            raise error

    reader = SnapshotReader(Refusing())  # type: ignore[arg-type]  # as a client that is closed
    assert (reader.client_name, reader.read()) == ("other", NOTHING)
