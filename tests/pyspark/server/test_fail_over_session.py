"""A stream into Parquet keeps exactly-once while the server that it reads from is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.sql import SparkSession

from haclient.protocol.identity import publisher_id
from support.streams import run_stream, written
from support.two_logs import COUNT, LATE, brokers_with_messages, publish


def kill_once(pid: int, marker: Path) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """A function for `mapInArrow` that kills a process with the first rows that it sees."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and not marker.exists():
                marker.touch()
                os.kill(pid, signal.SIGKILL)
            yield batch

    return pass_on


@pytest.mark.row("SS3")
def test_a_fail_over_in_the_middle_of_a_batch_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    with brokers_with_messages(tmp_path) as (east, west):
        both, columns = f"{east.uri},{west.uri}", "publisher_id,sequence,data"
        marker = tmp_path / "killed"
        kill = kill_once(east.pid, marker)
        query = run_stream(
            spark,
            tmp_path,
            both,
            transform=lambda rows: rows.mapInArrow(kill, rows.schema),
            columns=columns,
            maxMessagesPerTrigger=str(COUNT),
            batchRows="100",
        )
        assert marker.exists()
        assert not east.is_running
        sources = [progress["sources"][0] for progress in query.recentProgress]
        places = [set(json.loads(text_of(each["endOffset"]))["places"]) for each in sources]
        assert places[0] == {"east"}  # planned there, and read to its end at the other one
        assert places[-1] == {"east", "west"}
        trio.run(publish, west.uri, "A", COUNT + 1, LATE)
        run_stream(spark, tmp_path, f"{east.uri},{west.uri}", columns="publisher_id,sequence,data")
    wanted = {"A": COUNT + LATE, "B": COUNT}
    assert written(spark, tmp_path) == sorted(
        (publisher_id(name), number) for name in wanted for number in range(1, wanted[name] + 1)
    )


def text_of(offset: object) -> str:
    """An offset of a query's progress as JSON."""
    return offset if isinstance(offset, str) else json.dumps(offset)
