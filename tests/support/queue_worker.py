"""A consumer of the queue `jobs` as a process, to be killed: `queue_worker.py URIS NAME DATABASE`.

It inserts the body of each message into the table `results`, in one transaction with the message's
id, and writes one line for each message that it has handled, new or not.
"""

from __future__ import annotations

import sqlite3
import sys

import trio

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient.stores import ProcessedMessages


async def main(uris: str, name: str, database: str) -> None:
    """Consume until the process is killed."""
    connection = sqlite3.connect(database, timeout=60)
    connection.execute("pragma synchronous = off")  # what a kill leaves is the same
    ledger = ProcessedMessages(connection, create_table=False)

    def work(message: Message) -> None:
        with connection:
            connection.execute("begin immediate")  # or two could read before either writes
            if ledger.is_new(message):
                connection.execute("insert into results values (?, ?)", [message.text, name])
                ledger.record(message)
        sys.stdout.write(f"{message.text}\n")
        sys.stdout.flush()

    servers, delay = uris.split(","), FixedDelayStrategy(0.1)
    async with HAClient(name, servers=servers, delay_strategy=delay) as client:
        await client.queue_subscribe("jobs", handler=work, max_backlog=20)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
