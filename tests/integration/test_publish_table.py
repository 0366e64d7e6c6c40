"""The example that publishes a table goes on with the next row after each kill."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import trio

from haclient.client import HAClient
from support.process import LIMIT_S, SMALL_PIPE_BYTES, Child, running_broker

EXAMPLE = Path(__file__).parents[2] / "examples" / "publish_table.py"
ROWS = 3000
KILLS = (700, 1, 600)  # after so many rows; the others are published in the end
FIRST_ID = 10**18
"""Wide, so that few of them fit into the pipe: what was printed but not read before a kill is at
most what is in the pipe and in one read of it, 410 rows, so the last kill finds rows left."""


async def published(uri: str) -> list[str]:
    found: list[str] = []
    with trio.fail_after(LIMIT_S):
        async with (
            HAClient("reader", servers=[uri]) as client,
            client.bookmark_stream("outbox", sub_id="r", bookmark="epoch") as messages,
        ):
            async for message in messages:
                found.append(message.text)
                if message.text == "last":
                    return found
    return found


def test_a_table_is_published_exactly_once_however_often_the_publisher_is_killed(
    tmp_path: Path,
) -> None:
    database = tmp_path / "outbox.db"
    bodies = [*(f"row {number}" for number in range(1, ROWS)), "last"]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, body TEXT)")
        connection.executemany(
            "INSERT INTO outbox VALUES (?, ?)",
            [(FIRST_ID + 3 * n, body) for n, body in enumerate(bodies)],  # ids with gaps
        )
    with running_broker(tmp_path / "broker") as broker:
        command = [sys.executable, str(EXAMPLE), broker.uri, str(database), str(tmp_path / "store")]
        for rows in KILLS:
            with Child(command, pipe_bytes=SMALL_PIPE_BYTES) as process:
                assert len(process.lines(rows)) == rows
                process.kill()
        with Child(command) as process:
            process.rest()
            assert process.wait() == 0, process.err
        assert trio.run(published, broker.uri) == bodies
