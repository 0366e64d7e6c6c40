"""A stream into Parquet keeps exactly-once while the server that it reads from is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql import SparkSession

from haclient.protocol.identity import publisher_id
from haclient.pyspark.server.log_server import connected
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.broker import RawClient, port_of
from support.streams import run_stream, written

COUNT = 5_000
"""Messages of each of two publishers: 20 MB, more than sockets and queues of a task hold."""

BODY = b'{"padding":"%s"}' % (b"x" * 2000)
LATE = 100


async def publish_on_both_sides(east: str, west: str, first: int, count: int) -> None:
    """Publish A on one instance and B on the other, at the same time."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, east, "A", first, count)
        nursery.start_soon(publish, west, "B", first, count)


async def publish(uri: str, name: str, first: int, count: int) -> None:
    async with RawClient.connect(f"tcp://127.0.0.1:{port_of(uri)}") as client:
        await client.logon(name, opts="ack_conflation=1ms")
        for number in range(first, first + count):
            await client.send(BODY, c="p", t="orders", s=number, a="persisted")
        while (await client.ack("persisted")).sequence != first + count - 1:
            pass


async def wait_for(uri: str, count: int) -> list[str]:
    """Wait until an instance has so many messages; their bookmarks, in its order."""
    found: list[str] = []
    async with (
        connected([uri], "waiting") as client,
        client.bookmark_stream("orders", sub_id="waiting", bookmark=EPOCH) as stream,
    ):
        async for messages in stream.batches():
            found += [message.bookmark for message in messages]
            if len(found) >= count:
                break
    return found


def kill_once(pid: int, marker: Path) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """A function for `mapInArrow` that kills a process with the first rows that it sees."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and not marker.exists():
                marker.touch()
                os.kill(pid, signal.SIGKILL)
            yield batch

    return pass_on


@pytest.mark.row("SS3")
def test_a_fail_over_in_the_middle_of_a_batch_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    west = BrokerProcess("--name", "west", data_dir=tmp_path / "west")
    west.start()  # for its port; then again, with the address of the other one
    to_west = ("--replicate-to", f"{west.address},async")
    with BrokerProcess("--name", "east", *to_west, data_dir=tmp_path / "east") as east:
        west.close()
        to_east = ("--replicate-to", f"{east.address},async")
        with BrokerProcess(
            "--name", "west", *to_east, data_dir=tmp_path / "west", listen=west.address
        ) as west:
            trio.run(publish_on_both_sides, east.uri, west.uri, 1, COUNT)
            orders = [trio.run(wait_for, each.uri, 2 * COUNT) for each in (east, west)]
            assert orders[0] != orders[1]
            assert sorted(orders[0]) == sorted(orders[1])
            both, columns = f"{east.uri},{west.uri}", "publisher_id,sequence,data"
            marker = tmp_path / "killed"
            kill = kill_once(east.pid, marker)
            query = run_stream(
                spark,
                tmp_path,
                both,
                transform=lambda rows: rows.mapInArrow(kill, rows.schema),
                columns=columns,
                maxMessagesPerTrigger=str(COUNT),
                batchRows="100",
            )
            assert marker.exists()
            assert not east.is_running
            sources = [progress["sources"][0] for progress in query.recentProgress]
            places = [set(json.loads(text_of(each["endOffset"]))["places"]) for each in sources]
            assert places[0] == {"east"}  # planned there, and read to its end at the other one
            assert places[-1] == {"east", "west"}
            trio.run(publish, west.uri, "A", COUNT + 1, LATE)
            run_stream(
                spark, tmp_path, f"{east.uri},{west.uri}", columns="publisher_id,sequence,data"
            )
    wanted = {"A": COUNT + LATE, "B": COUNT}
    assert written(spark, tmp_path) == sorted(
        (publisher_id(name), number) for name in wanted for number in range(1, wanted[name] + 1)
    )


def text_of(offset: object) -> str:
    """An offset of a query's progress as JSON."""
    return offset if isinstance(offset, str) else json.dumps(offset)
