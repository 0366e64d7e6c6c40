"""A stream keeps exactly-once while the server that it reads from is killed in mid-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from haclient.protocol.identity import publisher_id
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.log_server import connected
from haclient.pyspark.server.stream import LogStreamReader, read_stream
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.broker import RawClient, port_of

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


@pytest.mark.row("SS3")
def test_a_fail_over_in_the_middle_of_a_batch_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Two replicated brokers as processes; the one that is read from is killed by SIGKILL."""
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
            found = read_stream_and_kill(east, west)
    wanted = {"A": COUNT + LATE, "B": COUNT}
    assert sorted(found) == sorted(
        f"{publisher_id(name)}|{number}|"
        for name in wanted
        for number in range(1, wanted[name] + 1)
    )


def read_stream_and_kill(east: BrokerProcess, west: BrokerProcess) -> list[str]:
    """Read batch after batch as PySpark does; the bookmarks of all rows."""
    found: list[str] = []
    source = reader(east, west)
    offset = source.initialOffset()
    while True:
        end = source.latestOffset(offset, source.getDefaultReadLimit())
        if end == offset:
            break
        for part in source.partitions(offset, end):
            for batch in reader(east, west).read(part):  # as in a process of its own
                found += batch.column("bookmark").to_pylist()
                if east.is_running:
                    assert set(end["places"]) == {"east"}  # planned there
                    assert len(found) < COUNT  # and the rest of the batch is read at the other
                    east.kill()
                    trio.run(publish, west.uri, "A", COUNT + 1, LATE)
        offset = end
    assert set(offset["places"]) == {"east", "west"}
    return found


def reader(*brokers: BrokerProcess) -> LogStreamReader:
    given = {
        "uri": ",".join(broker.uri for broker in brokers),
        "topic": "orders",
        "startingBookmark": "EPOCH",
        "maxMessagesPerTrigger": str(COUNT),
        "batchRows": "100",
    }
    return LogStreamReader(read_stream(OptionReader("amps", given)))
