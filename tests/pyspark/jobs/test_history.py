"""Export, replay and the state of the world as of a moment."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.environment import job_errors
from haclient.pyspark.jobs.history import (
    between,
    export,
    replay,
    sow_as_of,
)
from haclient.pyspark.jobs.journals import read_export
from haclient.pyspark.rows import COLUMNS, schema_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)


def row(
    position: int, topic: str, key: str | None, data: str, command: str = "publish"
) -> tuple[object, ...]:
    """One message each second, the tenth at midnight."""
    at = MIDNIGHT + timedelta(seconds=position - 10)
    bookmark = f"7|{position}|"
    return (topic, bookmark, 7, position, position, at, command, key, None, data.encode())


def journal_of(spark: SparkSession, rows: list[tuple[object, ...]]) -> DataFrame:
    return spark.createDataFrame(rows, schema_ddl(COLUMNS))


def prices(spark: SparkSession) -> DataFrame:
    """Twenty prices of two topics."""
    topics = ("prices/eur usd", "2024")
    return journal_of(
        spark, [row(n, topics[n % 2], str(n % 3), f"price {n}") for n in range(1, 21)]
    )


def test_rows_without_a_position_have_neither_an_order_nor_a_newest_one(
    spark: SparkSession,
) -> None:
    rows = prices(spark).withColumn("position", sf.lit(None).cast("BIGINT"))  # as of a server
    stream = spark.readStream.format("rate").load()
    with pytest.raises(UsageError, match="the rows are a stream, and jobs take batches"):
        replay(stream, changes, schema="topic STRING")
    for job in (sow_as_of(rows), replay(rows, lambda found: found, schema="topic STRING")):
        with pytest.raises(job_errors(), match="the rows have no position, as those of a server"):
            job.collect()


def test_an_export_has_a_directory_for_each_date_and_topic(
    spark: SparkSession, tmp_path: Path
) -> None:
    export(prices(spark), str(tmp_path / "out"), partitions=2)
    folders = {path.parent.relative_to(tmp_path / "out") for path in tmp_path.rglob("*.parquet")}
    assert sorted(map(str, folders)) == [
        "date=2026-01-31/topic=2024",
        "date=2026-01-31/topic=prices%2Feur usd",
        "date=2026-02-01/topic=2024",
        "date=2026-02-01/topic=prices%2Feur usd",
    ]


def test_an_export_is_read_back_as_the_rows_of_the_journal(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal = prices(spark)
    export(journal, str(tmp_path / "out"))
    rows = read_export(spark, str(tmp_path / "out"))
    assert [*rows.columns] == [*COLUMNS, "date"]
    assert sorted(rows.drop("date").collect()) == sorted(journal.collect())
    days = {row.date for row in rows.select("date").distinct().collect()}
    assert days == {date(2026, 1, 31), date(2026, 2, 1)}


def test_a_damaged_file_of_an_export_is_an_error_whatever_the_session_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    export(prices(spark), str(folder), partitions=2)
    next(folder.rglob("*.parquet")).write_bytes(b"damaged")
    spark.conf.set("spark.sql.files.ignoreCorruptFiles", "true")
    try:
        with pytest.raises(job_errors(), match="parquet"):
            read_export(spark, str(folder)).collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")


def test_each_file_of_an_export_is_in_the_order_of_positions_and_compressed(
    spark: SparkSession, tmp_path: Path
) -> None:
    shuffled = spark.range(1, 4001).orderBy("id", ascending=False)
    journal = shuffled.selectExpr(
        "'t' AS topic", "'' AS bookmark", "1L AS publisher_id", "id AS sequence",
        "id * 997 % 4001 AS position", "TIMESTAMP '2026-01-31 00:00:00Z' AS timestamp",
        "'publish' AS command", "'' AS sow_key", "'' AS correlation_id",
        "CAST('x' AS BINARY) AS data",
    )  # fmt: skip
    export(journal, str(tmp_path / "out"), partitions=3)
    files = [pq.ParquetFile(path) for path in tmp_path.rglob("*.parquet")]
    positions = [file.read(["position"]).column(0).to_pylist() for file in files]
    assert sum(map(len, positions)) == 4000
    assert all(each == sorted(each) for each in positions)
    assert {file.metadata.row_group(0).column(0).compression for file in files} == {"ZSTD"}


def test_an_export_replaces_nothing_and_is_appended_to_if_it_is_told_to(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = str(tmp_path / "out")
    export(prices(spark).where("position > 18"), target)
    with pytest.raises(Exception, match="PATH_ALREADY_EXISTS"):
        export(prices(spark), target)
    export(prices(spark).where("position < 2"), target, mode="append")
    assert read_export(spark, target).count() == 3


def test_a_range_of_time_includes_its_first_moment_and_not_its_last(spark: SparkSession) -> None:
    chosen = between(prices(spark), since=MIDNIGHT, until=MIDNIGHT + timedelta(seconds=3))
    assert sorted(row.position for row in chosen.collect()) == [10, 11, 12]
    assert between(prices(spark)).count() == 20
    with pytest.raises(UsageError, match=r"since has to be a datetime, such as .*, found '2026-0"):
        between(prices(spark), since="2026-02-01")  # type: ignore[arg-type]  # what a user may try
    with pytest.raises(UsageError, match="until has to be no earlier than since, 2026-02-01 00:00"):
        between(prices(spark), since=MIDNIGHT, until=datetime(2026, 1, 31))  # noqa: DTZ001  # is UTC


def test_a_time_without_a_zone_is_utc_wherever_the_program_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        chosen = between(prices(spark), since=MIDNIGHT.replace(tzinfo=None))
    time.tzset()
    assert min(row.position for row in chosen.collect()) == 10


def changes(messages: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The step from one message to the next, which needs order and state."""
    before = None
    for message in messages:
        if before is not None:
            step = message["position"] - before
            yield {"topic": message["topic"], "position": message["position"], "step": step}
        before = message["position"]


def test_a_replay_hands_each_group_its_messages_in_order(spark: SparkSession) -> None:
    ddl = "topic STRING, position BIGINT, step BIGINT"
    shuffled = prices(spark).orderBy("data").repartition(3)
    found = replay(shuffled, changes, schema=ddl).collect()
    assert {each.step for each in found} == {2}
    assert len(found) == 18


def test_a_replay_of_one_group_has_every_message_in_one_order(spark: SparkSession) -> None:
    ddl = "topic STRING, position BIGINT, step BIGINT"
    found = replay(prices(spark).repartition(3), changes, schema=ddl, by=()).collect()
    assert [each.position for each in found] == list(range(2, 21))
    assert {each.step for each in found} == {1}


def first_only(messages: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield {"position": next(messages)["position"]}


def test_a_handler_may_stop_before_the_end_of_its_group(spark: SparkSession) -> None:
    rows = replay(
        prices(spark), first_only, schema="position BIGINT", by=("topic", "sow_key")
    ).collect()
    assert sorted(each.position for each in rows) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("yielded", "problem"),
    [
        ({"topik": "a"}, "misspelt yields topik, which is not in its schema (topic, position)"),
        ({"position": "no"}, "misspelt yields for position what is no int64"),
        ("a", "misspelt has to yield dictionaries, found str"),
        (None, "misspelt has to yield dictionaries, found NoneType"),
    ],
)
def test_a_replay_names_what_its_function_yields_wrongly(
    spark: SparkSession, yielded: object, problem: str
) -> None:
    def misspelt(_: Iterator[dict[str, Any]]) -> Iterator[Any]:
        yield yielded

    found = replay(prices(spark), misspelt, schema="topic STRING, position BIGINT", by="topic")
    with pytest.raises(job_errors(), match=re.escape(problem)):
        found.collect()


def test_a_replay_names_a_function_that_returns_nothing(spark: SparkSession) -> None:
    def silent(_: Iterator[dict[str, Any]]) -> Any:  # noqa: ANN401 - not what is wanted
        return None

    with pytest.raises(job_errors(), match="silent has to yield dictionaries, and returns None"):
        replay(prices(spark), silent, schema="topic STRING").collect()


def state(frame: DataFrame) -> dict[tuple[str, str], str]:
    return {(row.topic, row.sow_key): bytes(row.data).decode() for row in frame.collect()}


def orders(spark: SparkSession) -> DataFrame:
    return journal_of(
        spark,
        [
            row(1, "orders", "a", "a1"),
            row(2, "orders", "b", "b1"),
            row(3, "quotes", "a", "q1"),
            row(4, "orders", "a", "a2"),
            row(5, "log", None, "no key"),
            row(6, "orders", None, "b,c", "sow_delete"),
            row(7, "orders", "c", "c1"),
            row(8, "orders", None, "a", "sow_delete"),
            row(9, "orders", "a", "a3"),
        ],
    )


def test_the_state_of_the_world_is_the_newest_message_of_each_key(spark: SparkSession) -> None:
    assert state(sow_as_of(orders(spark))) == {
        ("orders", "a"): "a3",
        ("orders", "c"): "c1",
        ("quotes", "a"): "q1",
    }


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (5, {"a": "a2", "b": "b1"}),
        (6, {"a": "a2"}),
        (8, {"c": "c1"}),
        (9, {"a": "a3", "c": "c1"}),
    ],
)
def test_a_state_as_of_a_position_knows_nothing_of_what_follows(
    spark: SparkSession, position: int, expected: dict[str, str]
) -> None:
    rows = orders(spark).where("topic = 'orders'")
    found = state(sow_as_of(rows, position=position))
    assert {key: data for (_, key), data in found.items()} == expected


def test_a_state_as_of_a_moment_knows_nothing_of_what_follows(spark: SparkSession) -> None:
    moment = MIDNIGHT - timedelta(seconds=4)  # that of position 6
    found = state(sow_as_of(orders(spark).where("topic = 'orders'"), until=moment))
    assert found == {("orders", "a"): "a2", ("orders", "b"): "b1"}


@pytest.mark.parametrize("position", [3, 5, 8])
def test_a_state_continues_from_an_earlier_one(spark: SparkSession, position: int) -> None:
    journal = orders(spark)
    base = sow_as_of(journal, position=position)
    later = journal.where(f"position > {position}")
    assert state(sow_as_of(later, base=base)) == state(sow_as_of(journal))


def test_a_state_is_of_a_moment_or_of_a_position(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="of a moment or of a position, not of both"):
        sow_as_of(orders(spark), until=MIDNIGHT, position=1)
