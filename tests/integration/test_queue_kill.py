"""Consumers and brokers that are killed: every message has its effect, and has it once."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from haclient.cli.demo.processes import reserved_ports
from haclient.client import HAClient
from haclient.servers.delay import FixedDelayStrategy
from haclient.stores import ProcessedMessages
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.process import LIMIT_S, Child, running_broker

MESSAGES = 800
PORTION = 200
WORKER = Path(__file__).parents[1] / "support/queue_worker.py"


@pytest.mark.row("QC10", "QC14", "QC15")
async def test_killed_workers_and_a_killed_broker_lose_and_repeat_nothing(tmp_path: Path) -> None:
    database = tmp_path / "results.db"
    connection = sqlite3.connect(database, timeout=60)
    connection.execute("create table results (body text, worker text)")
    connection.commit()
    ProcessedMessages(connection)
    options = ("--queue", "jobs:orders,max_backlog=20,lease=30")
    with running_broker(tmp_path / "journal", *options) as broker, ExitStack() as children:
        workers: dict[int, Child] = {}

        def start(number: int) -> None:
            command = [sys.executable, str(WORKER), broker.uri, f"worker-{number}", str(database)]
            workers[number] = children.enter_context(Child(command))

        for number in range(3):
            start(number)
        async with HAClient(
            "publisher",
            servers=[broker.uri],
            publish_store=MemoryPublishStore(),
            delay_strategy=FixedDelayStrategy(0.1),
        ) as client:
            for first in range(0, MESSAGES, PORTION):
                for number in range(first, first + PORTION):
                    await client.publish("orders", b'{"id": %d}' % number)
                await client.publish_flush(timeout=LIMIT_S)
                await _until_count(client, connection, first + PORTION // 4)
                victim = first // PORTION % 3  # in the middle of its work
                workers[victim].kill()
                start(victim)
                if victim == 1:
                    broker.kill()
                    broker.start()
            await _until_done(client, connection, list(workers.values()))
    rows = connection.execute("select body, count(*) from results group by body").fetchall()
    assert sorted(rows) == sorted((f'{{"id": {number}}}', 1) for number in range(MESSAGES))
    connection.close()


@pytest.mark.row("QC14", "QC15")
async def test_workers_continue_on_the_replica_of_a_killed_broker(tmp_path: Path) -> None:
    """What had left the queue there does not come again but for what was on its way."""
    database = tmp_path / "results.db"
    connection = sqlite3.connect(database, timeout=60)
    connection.execute("create table results (body text, worker text)")
    connection.commit()
    ProcessedMessages(connection)
    with ExitStack() as stack:
        numbers = stack.enter_context(reserved_ports(2))
        ports = dict(zip(("east", "west"), numbers, strict=True))
        brokers = {
            name: stack.enter_context(
                running_broker(
                    tmp_path / name,
                    *("--name", name, "--queue", "jobs:orders,max_backlog=20,lease=30"),
                    *("--replicate-to", f"tcp://127.0.0.1:{ports[other]}{mode}"),
                    port=ports[name],
                )
            )
            # The one that is killed has nothing that the other lacks, and that one does not wait.
            for name, other, mode in (("east", "west", ""), ("west", "east", ",async"))
        }
        uris = [broker.uri for broker in brokers.values()]
        workers = [
            stack.enter_context(
                Child([sys.executable, str(WORKER), ",".join(uris), f"worker-{n}", str(database)])
            )
            for n in range(2)
        ]
        async with HAClient(
            "publisher",
            servers=uris,
            publish_store=MemoryPublishStore(),
            delay_strategy=FixedDelayStrategy(0.1),
        ) as client:
            for number in range(MESSAGES):
                await client.publish("orders", b'{"id": %d}' % number)
                if number == MESSAGES // 2:
                    await client.publish_flush(timeout=LIMIT_S)
                    await _until_count(client, connection, MESSAGES // 4)
                    brokers["east"].kill()
            await client.publish_flush(timeout=LIMIT_S)
            await _until_done(client, connection, workers)
    rows = connection.execute("select body, count(*) from results group by body").fetchall()
    assert sorted(rows) == sorted((f'{{"id": {number}}}', 1) for number in range(MESSAGES))
    connection.close()


async def _until_count(client: HAClient, connection: sqlite3.Connection, count: int) -> None:
    """Wait until so many messages have had their effect."""
    with trio.fail_after(LIMIT_S):
        while _count(connection) < count:
            await client.flush(timeout=LIMIT_S)


async def _until_done(
    client: HAClient, connection: sqlite3.Connection, workers: list[Child]
) -> None:
    """Wait until each message has had its effect, and has left the queue."""
    with trio.fail_after(LIMIT_S):
        while _count(connection) < MESSAGES:
            for worker in workers:
                assert worker.is_running, worker.err
                while worker.has_output:  # or it would wait for room in the pipe
                    worker.lines(1)
            await client.flush(timeout=LIMIT_S)
    with trio.fail_after(LIMIT_S):
        while await _depth(client) > 0:
            await client.flush(timeout=LIMIT_S)


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("select count(*) from results").fetchone()
    return int(count)


async def _depth(client: HAClient) -> int:
    """How many messages are in the queue, leased or not."""
    async with client.sow("/HACLIENT/queues") as found:
        async for message in found:
            body = message.json()
            assert isinstance(body, dict)
            return sum(queue["depth"] for queue in body["queues"])
    return 0
