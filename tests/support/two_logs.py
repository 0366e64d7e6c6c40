"""Two brokers that replicate to each other and have the same messages in different orders."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import trio

from haclient.pyspark.server.log_server import connected
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.broker import RawClient, port_of

__all__ = ["COUNT", "LATE", "brokers_with_messages", "publish"]

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


@contextmanager
def brokers_with_messages(directory: Path) -> Generator[tuple[BrokerProcess, BrokerProcess]]:
    """Processes of a broker east and a broker west, each with all messages of both publishers."""
    west = BrokerProcess("--name", "west", data_dir=directory / "west")
    west.start()  # for its port; then again, with the address of the other one
    to_west = ("--replicate-to", f"{west.address},async")
    with BrokerProcess("--name", "east", *to_west, data_dir=directory / "east") as east:
        west.close()
        to_east = ("--replicate-to", f"{east.address},async")
        with BrokerProcess(
            "--name", "west", *to_east, data_dir=directory / "west", listen=west.address
        ) as west:
            trio.run(publish_on_both_sides, east.uri, west.uri, 1, COUNT)
            orders = [trio.run(wait_for, each.uri, 2 * COUNT) for each in (east, west)]
            assert orders[0] != orders[1]
            assert sorted(orders[0]) == sorted(orders[1])
            yield east, west
