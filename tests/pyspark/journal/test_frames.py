"""`read_journal` gives the rows of `amps-journal`, those of sealed segments without Python."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from haclient.errors import UsageError
from haclient.pyspark import read_journal
from haclient.pyspark.environment import job_errors
from haclient.pyspark.journal.sealing import seal_journal
from haclient.pyspark.rows import COLUMNS
from haclient_fake_server import maintenance
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.journal.format import manifest_name, segment_name
from support.broker_thread import broker_thread, publish
from support.journals import JournalWriter, message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 1000
ROUNDS, PER_ROUND = 20, 500


def publish_all(uri: str) -> None:
    for number in range(ROUNDS):
        publish(uri, "orders", [b"x" * 100] * PER_ROUND, name=f"pubber-{number}")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Several sealed segments and a live one; the oldest segment was removed after sealing."""
    folder = tmp_path / "east [1], {a b}"
    writer = JournalWriter(folder, segment_bytes=64 * 1024)
    for number in range(0, COUNT, 10):
        topic = "orders" if number % 30 else "prices"
        writer.append([message(b"x" * 100, topic=topic, publisher_id=2**64 - 1)] * 10)
    writer.seal()
    seal_journal(folder, compression="none")
    for name in (segment_name(1), manifest_name(1)):
        (folder / name).unlink()
    return folder


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(map(tuple, frame.collect()), key=str)


def test_the_rows_are_those_of_the_journal_for_any_options(
    spark: SparkSession, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = [
        {},
        {"columns": "position,data", "startingPosition": 77, "endingPosition": 555},
        {"topic": "prices", "columns": "topic,position"},
        {"endingTimestamp": "2026-01-31T09:30:00.000300Z", "columns": "position"},
        {"startingTimestamp": "2026-01-31T09:30:00.000300Z"},
        {"messageType": "xml"},
    ]
    for options in asked:
        columns = str(options.pop("columns", "")).split(",") if "columns" in options else []
        source = spark.read.format("amps-journal").option("journalPath", str(journal))
        if columns:
            source = source.option("columns", ",".join(columns))
        frame = read_journal(spark, journal, columns=columns, **options)
        assert frame.columns == (columns or [*COLUMNS])
        expected = source.options(**{name: str(value) for name, value in options.items()}).load()
        assert rows_of(frame) == rows_of(expected)
    capsys.readouterr()
    read_journal(spark, journal).explain()
    plan = capsys.readouterr().out.lower()
    assert "filescan parquet" in plan
    assert "amps-journal" in plan


def test_a_path_may_be_relative_or_a_uri(
    spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(journal.parent)  # workers stay where the session began
    for path in (journal.name, f"file://{journal}", f"file:{journal}"):
        assert read_journal(spark, path, columns=["position"]).count() == COUNT
    assert spark.read.format("amps-journal").load(f"file://{journal}").count() == COUNT


def test_a_snapshot_is_taken_and_wrong_options_are_refused(
    spark: SparkSession, journal: Path
) -> None:
    frame = read_journal(spark, journal, columns=["position"])
    JournalWriter(journal, start_id=78).append([message(b"later")])
    assert [row.position for row in frame.sort("position").collect()] == [*range(1, COUNT + 1)]
    assert read_journal(spark, journal, columns="topic,position").columns == ["topic", "position"]
    with pytest.raises(UsageError, match="unknown option topics"):
        read_journal(spark, journal, topics="orders")
    assert read_journal(spark, journal, startingPosition=COUNT + 2).count() == 0


@pytest.mark.usefixtures("pushing")
def test_the_condition_of_a_query_does_not_stay_with_its_dataframe(
    spark: SparkSession, journal: Path
) -> None:
    rows = read_journal(spark, journal, columns=["position"])
    assert rows.where(f"position < {COUNT}").count() == COUNT - 1
    assert rows.count() == COUNT


def test_a_damaged_file_fails_the_query_or_is_replaced_by_its_segment(
    spark: SparkSession, journal: Path
) -> None:
    path = journal / "parquet" / "journal.00000002.parquet"
    column = pq.read_metadata(path).row_group(0).column(9)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(data)
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    with pytest.raises(job_errors(), match=r"(?s)journal\.00000002\.parquet"):
        read_journal(spark, journal).collect()
    spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
    frame = read_journal(spark, journal, columns=["position"], verify=True)
    assert [row.position for row in frame.sort("position").collect()] == [*range(1, COUNT + 1)]


def test_each_message_is_there_once_while_a_broker_seals_and_removes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "RETURN_S", 0.0)
    config = BrokerConfig(
        data_dir=tmp_path, parquet=True, segment_bytes=128 * 1024, remove_after_s=0.2
    )
    counted = (
        "count(1) AS n",
        "count(DISTINCT position) AS different",
        "min(position) AS first",
        "coalesce(max(position), 0) AS last",
    )
    with broker_thread(config) as broker:
        publisher = threading.Thread(target=publish_all, args=(broker.uri,))
        publisher.start()
        ends: list[int] = []
        while publisher.is_alive() or (tmp_path / segment_name(1)).exists() or len(ends) < 2:
            found = read_journal(spark, tmp_path, columns=["position"]).selectExpr(*counted).first()
            assert found is not None
            assert found.n == found.different == found.last - (found.first or 1) + 1
            ends.append(found.last)
        publisher.join()
    assert read_journal(spark, tmp_path).count() == ROUNDS * PER_ROUND
    assert ends == sorted(ends)
