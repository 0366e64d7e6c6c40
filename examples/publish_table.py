"""Publish the rows of a table, each exactly once, however often this program is killed.

    python examples/publish_table.py URI DATABASE STORE

The table `outbox` of a SQLite database has the columns `id` and `body`. Rows are published in the
order of `id`, and printed. Run it again after a kill: it goes on with the next row.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import haclient
from haclient import HAClient, SourcePosition
from haclient.stores import FilePublishStore

NOTE_EVERY = 1000


async def publish_table(uri: str, database: sqlite3.Connection, path: str) -> None:
    """Publish what was not published yet."""
    store = FilePublishStore(path)
    async with HAClient("outbox", servers=[uri], publish_store=store) as client:
        position = SourcePosition(store, "outbox")
        start = position.resume()
        rows = database.execute(
            "SELECT id, body FROM outbox WHERE id > ? ORDER BY id LIMIT -1 OFFSET ?",
            (int(start.position or 0), start.skip),
        )
        for count, (row, body) in enumerate(rows, 1):
            await client.publish("outbox", body)
            print(row, flush=True)  # so that one can see how far it is
            if count % NOTE_EVERY == 0:
                position.note(str(row))
        await client.publish_flush()


async def main() -> None:
    """Run the program."""
    uri, database, path = sys.argv[1:]
    with closing(sqlite3.connect(database)) as connection:
        await publish_table(uri, connection, path)


if __name__ == "__main__":
    haclient.run(main)
