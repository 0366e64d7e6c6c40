"""Consumers and brokers that are killed: every message has its effect, and has it once."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from haclient.delay import FixedDelayStrategy
from haclient.ha import HAClient
from haclient.stores import ProcessedMessages
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.process import LIMIT_S, Child, running_broker

MESSAGES = 800
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
            for number in range(MESSAGES):
                await client.publish("orders", b'{"id": %d}' % number)
            await client.publish_flush(timeout=LIMIT_S)
            for round_ in range(4):  # workers are killed in the middle of their work
                victim = round_ % 3
                workers[victim].lines(40)
                workers[victim].kill()
                start(victim)
                if victim == 1:
                    broker.kill()
                    broker.start()
            with trio.fail_after(LIMIT_S):
                while _count(connection) < MESSAGES:
                    for worker in workers.values():
                        assert worker.is_running, worker.err
                        while worker.has_output:  # or it would wait for room in the pipe
                            worker.lines(1)
                    await client.flush(timeout=LIMIT_S)
            with trio.fail_after(LIMIT_S):
                while await _depth(client) > 0:
                    await client.flush(timeout=LIMIT_S)
    rows = connection.execute("select body, count(*) from results group by body").fetchall()
    assert sorted(rows) == sorted((f'{{"id": {number}}}', 1) for number in range(MESSAGES))
    connection.close()


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
