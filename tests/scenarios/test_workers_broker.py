"""Workers on streams of the reference broker, across a restart of the client."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from haclient import MOST_RECENT, Command, HAClient, Message
from haclient.stores import LoggedBookmarkStore
from haclient.workers import ThreadPool, run_workers
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import QueueTopic
from support.broker import running_broker
from support.process import LIMIT_S


@pytest.mark.row("MS10")
async def test_what_no_worker_has_finished_comes_again_after_a_restart(tmp_path: Path) -> None:
    lock = threading.Lock()
    seen: list[bytes] = []
    refused = {b"7"}

    def work(message: Message) -> None:
        if message.data in refused:
            raise LookupError("not yet")
        with lock:
            seen.append(message.data)

    async def consume(uri: str, count: int) -> None:
        store = LoggedBookmarkStore(tmp_path / "s.bm")
        async with (
            HAClient("s", servers=[uri], bookmark_store=store) as client,
            client.bookmark_stream("orders", sub_id="s", bookmark=MOST_RECENT) as messages,
        ):
            with trio.CancelScope() as scope:

                def finished(_: Message, __: None) -> None:
                    if len(seen) == count:
                        scope.cancel()

                await run_workers(
                    messages,
                    work,
                    ThreadPool(3),
                    on_result=finished,
                    on_handler_error="continue",
                )

    with trio.fail_after(LIMIT_S):
        async with running_broker() as server:
            uri = f"{server.uris[0]}/amps/json"
            async with HAClient("p", servers=[uri]) as client:
                for number in range(20):
                    await client.publish("orders", b"%d" % number)
            await consume(uri, 19)
            assert sorted(map(int, seen)) == [each for each in range(20) if each != 7]
            seen.clear()
            refused.clear()
            await consume(uri, 1)
            assert seen == [b"7"]


@pytest.mark.row("MS10")
async def test_a_result_may_wait_for_an_ack_while_its_stream_is_full() -> None:
    """The ack comes behind messages that no worker can take before this one is finished."""
    count, done = 60, set[int]()
    with trio.fail_after(LIMIT_S):
        async with running_broker() as server:
            uri = f"{server.uris[0]}/amps/json"
            async with (
                HAClient("p", servers=[uri]) as publisher,
                HAClient("w", servers=[uri], max_queued_bytes=4096) as client,
                client.stream("orders") as messages,
            ):
                await publisher.publish_many("orders", [b"%01000d" % each for each in range(count)])

                async def publish(message: Message, _: None) -> None:
                    sequence = await client.publish("results", message.data)
                    await client.wait_persisted(sequence or 0)
                    done.add(int(message.data))
                    if len(done) == count:
                        await messages.aclose()

                await run_workers(
                    messages, lambda _: None, ThreadPool(20), on_result=publish, max_waiting=1
                )
    assert done == set(range(count))


def now() -> float:
    return time.monotonic()  # noqa: TID251  # a worker thread has no clock of trio


async def left(client: HAClient) -> list[bytes]:
    """What is in the queue."""
    async with client.sow("work") as messages:
        return [message.data async for message in messages]


class Attempts:
    """Work that fails for some messages so many times; threads call it."""

    def __init__(self, **failures: int) -> None:
        self.finished: list[bytes] = []
        self.times: dict[bytes, list[float]] = {}
        self._failures = {name.encode(): count for name, count in failures.items()}
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.times.setdefault(message.data, []).append(now())
            if self._failures.get(message.data, 0) >= len(self.times[message.data]):
                raise LookupError("not yet")
            self.finished.append(message.data)


async def work_through(uri: str, attempts: Attempts, count: int) -> None:
    """Consume the queue until so many messages are finished, and all acknowledgements sent."""
    async with (
        HAClient("worker", servers=[uri]) as client,
        client.queue_stream("work", max_backlog=8) as messages,
    ):
        with trio.CancelScope() as scope:

            def finished(_: Message, __: None) -> None:
                if len(attempts.finished) == count:
                    scope.cancel()

            await run_workers(messages, attempts, ThreadPool(3), on_result=finished)
        await client.flush_acks()


def with_a_queue() -> BrokerConfig:
    queue = QueueTopic(name="work", topics=("orders",), max_per_subscription_backlog=8)
    return BrokerConfig(queues=(queue,))


@pytest.mark.row("MS10")
async def test_a_queue_message_that_fails_is_given_back_later_and_later() -> None:
    attempts = Attempts(b=3)
    with trio.fail_after(LIMIT_S):
        async with running_broker(with_a_queue()) as server:
            uri = f"{server.uris[0]}/amps/json"
            async with HAClient("p", servers=[uri]) as client:
                for body in (b"a", b"b", b"c"):
                    await client.publish("orders", body)
                await client.flush()
                await work_through(uri, attempts, 3)
                assert sorted(attempts.finished) == [b"a", b"b", b"c"]
                assert [len(attempts.times[body]) for body in (b"a", b"b", b"c")] == [1, 4, 1]
                first, *later = attempts.times[b"b"]
                waits = (0.1, 0.1 + 0.2, 0.1 + 0.2 + 0.4)
                assert all(at - first >= wait for at, wait in zip(later, waits, strict=True))
                assert await left(client) == []  # all acknowledged


@pytest.mark.row("MS10")
async def test_a_queue_message_that_fails_is_given_back_also_behind_execute() -> None:
    attempts = Attempts(b=1)
    with trio.fail_after(LIMIT_S):
        async with (
            running_broker(with_a_queue()) as server,
            HAClient(
                "c", servers=[f"{server.uris[0]}/amps/json"], on_handler_error="discard"
            ) as client,
        ):
            for body in (b"a", b"b", b"c"):
                await client.publish("orders", body)
            await client.flush()
            command = Command("subscribe", topic="work", options="max_backlog=8")
            async with await client.execute(command) as messages:
                with trio.CancelScope() as scope:

                    def finished(_: Message, __: None) -> None:
                        if len(attempts.finished) == 3:
                            scope.cancel()

                    await run_workers(messages, attempts, ThreadPool(3), on_result=finished)
            assert sorted(attempts.finished) == [b"a", b"b", b"c"]
            await client.flush_acks()
            assert await left(client) == []


@pytest.mark.row("MS10")
async def test_work_that_outlasts_its_connection_is_acknowledged_once_on_the_next() -> None:
    lock, begun, go_on = threading.Lock(), threading.Event(), threading.Event()
    seen: list[bytes] = []

    def work(message: Message) -> None:
        with lock:
            seen.append(message.data)
        begun.set()
        assert go_on.wait(LIMIT_S)

    with trio.fail_after(LIMIT_S):
        async with running_broker(with_a_queue()) as server:
            uri = f"{server.uris[0]}/amps/json"
            async with (
                HAClient("p", servers=[uri]) as publisher,
                HAClient("worker", servers=[uri]) as client,
            ):
                await publisher.publish("orders", b"a")
                await publisher.flush()
                async with client.queue_stream("work", max_backlog=8) as messages:
                    with trio.CancelScope() as scope:
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(
                                partial(
                                    run_workers,
                                    messages,
                                    work,
                                    ThreadPool(2),
                                    on_result=lambda _, __: scope.cancel(),
                                )
                            )
                            await trio.to_thread.run_sync(begun.wait, LIMIT_S)
                            core = client._core
                            assert core.connection is not None
                            core.connection.link.close()
                            await core.wait_lost()
                            await client.flush()  # it is back, and so is the message
                            go_on.set()
                            await trio.sleep_forever()
                    await client.flush_acks()
                assert await left(publisher) == []
                assert set(seen) == {b"a"}
