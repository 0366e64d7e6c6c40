"""A stream keeps exactly-once while the server that it reads from is killed in mid-batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from haclient.protocol.identity import publisher_id
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.stream import LogStreamReader
from haclient_fake_server.testing.processes import BrokerProcess
from support.two_logs import COUNT, LATE, brokers_with_messages, publish


@pytest.mark.row("SS3")
def test_a_fail_over_in_the_middle_of_a_batch_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Two replicated brokers as processes; the one that is read from is killed by SIGKILL."""
    with brokers_with_messages(tmp_path) as (east, west):
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
    return LogStreamReader(ServerOptions(OptionReader("amps", given), is_stream=True))
