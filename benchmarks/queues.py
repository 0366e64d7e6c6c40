"""Message queues of the reference broker: published, leased and acknowledged, through its process.

The queue is filled first, so that a consumer never waits for a publish; consumers have a backlog of
100 and acknowledge in batches. `shallow` has a few thousand messages in the queue, `deep` all of
them: the cost of a message should not depend on that.
"""

from __future__ import annotations

import time

import trio

from benchmarks.blast import payload
from benchmarks.brokers import broker_process, connected
from benchmarks.scenario import Scenario, Setting
from haclient import Client, Message
from haclient.stores import MemoryPublishStore

__all__ = ["SCENARIOS"]

_TOPIC = "jobs"
_QUEUE = f"{_TOPIC},max_backlog=100,lease=60"
_COUNT = 100_000
_SHALLOW = 5_000
_LIMIT_S = 300.0


class _Consumers:
    """Clients that acknowledge what they get, until they were given a number of messages."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients
        self._left = 0
        self._done = trio.Event()

    async def begin(self) -> None:
        """Subscribe them all."""
        for client in self._clients:
            await client.queue_subscribe(_TOPIC, handler=self._take, max_backlog=100)

    def expect(self, count: int) -> None:
        """Wait for so many messages from here on."""
        self._left, self._done = count, trio.Event()

    async def wait(self) -> None:
        """Until they have them, and the broker knows."""
        await self._done.wait()
        for client in self._clients:
            await client.flush_acks(timeout=_LIMIT_S)

    def _take(self, message: Message) -> None:
        del message  # acknowledged when this returns
        self._left -= 1
        if not self._left:
            self._done.set()


async def _publish(publisher: Client, count: int) -> None:
    body = payload(100)
    for _ in range(count):
        await publisher.publish(_TOPIC, body)
    await publisher.publish_flush(timeout=_LIMIT_S)


async def _measure(uri: str, count: int) -> dict[str, float]:
    async with (
        Client("bench-pub", publish_store=MemoryPublishStore()) as publisher,
        Client("bench-1") as first,
        Client("bench-2") as second,
    ):
        for client in (publisher, first, second):
            await connected(client, uri)
        start = time.perf_counter()
        await _publish(publisher, count)
        published = time.perf_counter() - start
        consumers = _Consumers([first, second])
        consumers.expect(count)
        start = time.perf_counter()
        await consumers.begin()
        await consumers.wait()
        consumed = time.perf_counter() - start
        whole = await _together(publisher, consumers, count)
        return {
            "queue publish": count / published,
            "queue consume, deep": count / consumed,
            "queue publish and consume, shallow": count / whole,
        }


async def _together(publisher: Client, consumers: _Consumers, count: int) -> float:
    """Publish in parts to consumers that wait; the seconds that it took."""
    start = time.perf_counter()
    for _ in range(0, count, _SHALLOW):
        consumers.expect(_SHALLOW)
        await _publish(publisher, _SHALLOW)
        await consumers.wait()
    return time.perf_counter() - start


def _rows(setting: Setting) -> dict[str, float]:
    with broker_process(setting, "--queue", _QUEUE) as uri:
        return trio.run(_measure, uri, max(_SHALLOW, int(_COUNT * setting.scale)))


SCENARIOS = [Scenario("queues", "messages/s", _rows)]
