"""The removals of a journal, read in blocks, are those that a plain reader finds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.removals import read_removal_batches, removal_splits, removals_of
from haclient.pyspark.rows import signed
from haclient_fake_server.journal.format import RecordCommand, read_removals
from support.journals import JournalWriter, message, model_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.row("AU4")


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several segments; the first removals are before any message."""
    folder = tmp_path_factory.mktemp("removals")
    rng = random.Random(5)
    writer = JournalWriter(folder, segment_bytes=8192)
    for number in range(150):
        if number % 3:
            data = b"x" * rng.randrange(300)
            writer.append([message(data, publisher_id=rng.choice([1, 2**64 - 1]))])
        else:
            writer.now_us += 1_000_000
            keys = [(rng.choice([1, 2**64 - 1]), rng.randrange(99)) for _ in range(number % 7 + 1)]
            entries = [(*key, rng.randrange(9)) for key in keys]
            writer.remove_from_queue(entries, queue=rng.choice(["work", "größe"]))
    writer.seal()
    writer.close()
    return folder


def expected(folder: Path) -> list[tuple[object, ...]]:
    """Queue, bookmark, reason, position of the last record before, and time in microseconds."""
    found: list[tuple[object, ...]] = []
    position = 0
    for record in model_records(folder):
        position = max(position, record.position)
        if record.command == RecordCommand.QUEUE_REMOVE:
            removals = read_removals(record)
            found += [
                (
                    removals.queue.decode(),
                    signed(entry.publisher_id),
                    entry.sequence,
                    entry.reason,
                    position,
                    record.timestamp_us,
                )
                for entry in removals.entries
            ]
    return found


@pytest.mark.parametrize("split_bytes", [1, 5000, 2**27])
def test_splits_of_every_size_have_each_removal_once(journal: Path, split_bytes: int) -> None:
    log = JournalLog(journal)
    assert len(log.manifests) > 2
    splits = removal_splits(log, split_bytes)
    batches = [batch for split in splits for batch in read_removal_batches(journal, split)]
    rows = pa.Table.from_batches(batches).to_pydict()
    columns = [rows[name] for name in ("queue", "publisher_id", "sequence", "reason", "position")]
    micros = [round(each.timestamp() * 1e6) for each in rows["timestamp"]]
    assert [*zip(*columns, micros, strict=True)] == expected(journal)
    assert set(rows["message_type"]) == {"json"}


def test_a_session_reads_them_all(spark: SparkSession, journal: Path) -> None:
    log = JournalLog(journal)
    assert removals_of(spark, log).count() == len(expected(journal))
