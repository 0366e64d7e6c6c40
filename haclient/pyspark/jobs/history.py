"""Jobs over a journal: export to Parquet, replay, the state of the world as of a moment.

Each job takes a journal: a directory, or rows with the columns of `haclient.pyspark.rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs.journals import AnyJournal, Journal, read_export
from haclient.pyspark.rows import arrow_schema_of, check_columns, only_row

POSITIONS_PER_SALT: Final = 1_000_000
"""Messages of one topic that an export leaves in one task: a busy topic is written by several."""

_BATCH_ROWS: Final = 10_000
"""Rows of a record batch that a replay yields, as many as PySpark's own."""

Handler: TypeAlias = Callable[[Iterator[dict[str, Any]]], Iterable[dict[str, Any]]]


def _rows_with_positions(journal: AnyJournal) -> DataFrame:
    """The rows of a journal; those that a server gave have no position, and fail the job."""
    rows = Journal.of(journal).rows
    if not isinstance(journal, DataFrame) or "position" not in rows.columns:
        return rows
    why = "the rows have no position, as those of a server have none: read the files of the journal"
    missing = sf.raise_error(sf.lit(why)).cast("BIGINT")
    return rows.withColumn("position", sf.coalesce("position", missing))


# --- export -----------------------------------------------------------------------------------


def between(
    journal: DataFrame, *, since: datetime | None = None, until: datetime | None = None
) -> DataFrame:
    """The messages that were logged in a range of time.

    Args:
        journal: The rows.
        since: The first moment, in UTC if it has no zone; `None` for the beginning.
        until: The first moment after the range, likewise; `None` for the end.

    Raises:
        UsageError: One is no `datetime`, or the range ends before it starts.
    """
    first, end = _moment("since", since), _moment("until", until)
    if first is not None and end is not None and end < first:
        raise UsageError(f"until has to be no earlier than since, {first}, found {end}")
    if first is not None:
        journal = journal.where(sf.col("timestamp") >= sf.lit(first))
    return journal if end is None else journal.where(sf.col("timestamp") < sf.lit(end))


def _moment(name: str, time: object) -> datetime | None:
    """A time with a zone: PySpark would take one without for one of this machine's zone.

    Raises:
        UsageError: It is none.
    """
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise UsageError(
            f"{name} has to be a datetime, such as datetime(2026, 1, 31), found {time!r}"
        )
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def export(
    journal: AnyJournal, path: str, *, partitions: int | None = None, mode: str = "errorifexists"
) -> None:
    """Write a journal as Parquet (zstd), one directory for each date (UTC) and topic.

    Within each file messages are ordered by position. A topic with many messages is spread over
    the tasks, `POSITIONS_PER_SALT` positions to each.

    Args:
        journal: A directory, or rows with all columns.
        path: The directory to write, on any file system of the cluster.
        partitions: How many tasks write; `spark.sql.shuffle.partitions` by default.
        mode: `errorifexists` or `append`. To replace an export, remove it.

    Raises:
        UsageError: A column is missing.
    """
    rows = Journal.of(journal).rows
    check_columns("journal", rows, ("topic", "position", "timestamp"))
    spark = rows.sparkSession
    count = partitions or int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    salt = sf.floor(sf.col("position") / POSITIONS_PER_SALT)
    task = sf.pmod(sf.xxhash64("date", "topic", salt), sf.lit(count)).cast("INT")
    in_utc = sf.to_utc_timestamp("timestamp", sf.current_timezone())
    dated = rows.withColumn("date", sf.to_date(in_utc))
    ordered = dated.repartitionById(count, task).sortWithinPartitions("date", "topic", "position")
    writer = ordered.write.mode(mode).option("compression", "zstd")
    writer.partitionBy("date", "topic").parquet(path)


def count_exported(spark: SparkSession, path: str) -> int:
    """How many messages an export has, from the ends of its files; 0 where there is none."""
    try:
        return read_export(spark, path).count()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return 0


# --- replay -----------------------------------------------------------------------------------


def replay(
    journal: AnyJournal, handler: Handler, *, schema: str, by: Sequence[str] = ("topic",)
) -> DataFrame:
    """Run a function over messages in the order in which they were logged: a back-test.

    The messages are grouped, and the groups are replayed beside each other. Of each group the
    handler is handed every message in the order of positions, as an iterator, so it may hold
    state and never holds the group. It yields result rows whenever it likes::

        def moving_average(messages):
            price = None
            for message in messages:
                price = 0.9 * (price or px(message)) + 0.1 * px(message)
                yield {"position": message["position"], "price": price}

        averages = replay(journal, moving_average, schema="position BIGINT, price DOUBLE")

    Args:
        journal: A directory, or rows: of one instance, since positions of two say nothing about
            each other.
        handler: Called once for each group, in a worker.
        schema: The schema of the rows that it yields, as DDL. A column that a row lacks is null.
        by: The columns that make up a group; with none of them, all messages are one group.

    Raises:
        UsageError: A column is missing. What the handler yields is checked by the query.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    rows = _rows_with_positions(journal)
    check_columns("journal", rows, ("position", *by))
    in_groups = rows.repartition(*by) if by else rows.coalesce(1)
    ordered = in_groups.sortWithinPartitions(*by, "position")
    return ordered.mapInArrow(_replayer(handler, by, arrow_schema_of(schema)), schema)


def _replayer(
    handler: Handler, by: tuple[str, ...], schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def group_of(message: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(message[name] for name in by)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        messages = (message for batch in batches for message in batch.to_pylist())
        rows: list[Mapping[str, Any]] = []
        for _, group in groupby(messages, key=group_of):
            for row in _results(handler, group, schema):
                rows.append(row)
                if len(rows) >= _BATCH_ROWS:
                    yield _batch_of(handler, rows, schema)
                    rows = []
            for _unread in group:  # the handler may stop early; the next group begins after this
                pass
        if rows:
            yield _batch_of(handler, rows, schema)

    return run


def _results(
    handler: Handler, group: Iterator[dict[str, Any]], schema: pa.Schema
) -> Iterator[Mapping[str, Any]]:
    """What a handler yields for a group; Arrow would leave out a name that the schema lacks.

    Raises:
        UsageError: It is not rows of the schema.
    """
    known = frozenset(schema.names)
    rows: Any = handler(group)
    if rows is None:
        raise UsageError(f"{_name(handler)} has to yield dictionaries, and returns None")
    for row in rows:
        if not isinstance(row, Mapping):
            raise UsageError(
                f"{_name(handler)} has to yield dictionaries, found {type(row).__name__}"
            )
        found = cast("Mapping[str, Any]", row)
        if not found.keys() <= known:
            unknown = ", ".join(str(name) for name in found if name not in known)
            raise UsageError(
                f"{_name(handler)} yields {unknown}, which is not in its schema "
                f"({', '.join(schema.names)})"
            )
        yield found


def _batch_of(
    handler: Handler, rows: Sequence[Mapping[str, Any]], schema: pa.Schema
) -> pa.RecordBatch:
    """Rows of a handler.

    Raises:
        UsageError: A value is not of the type of its column.
    """
    arrays: list[pa.Array] = []
    for field in schema:
        try:
            arrays.append(pa.array([row.get(field.name) for row in rows], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"{_name(handler)} yields for {field.name} what is no {field.type}: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _name(handler: Handler) -> str:
    return f"replay: {getattr(handler, '__name__', repr(handler))}"


# --- state of the world -----------------------------------------------------------------------


def sow_as_of(
    journal: AnyJournal,
    *,
    until: datetime | None = None,
    position: int | None = None,
    base: DataFrame | None = None,
) -> DataFrame:
    """The state of the world of each topic with keys as it was at a moment.

    The newest message of each key counts, unless its record was deleted after it. The journal has
    a merged delta as the whole message, so one message is enough for a key. A state taken from a
    journal whose oldest segments were removed lacks the keys that were last written there; give the
    state of an earlier moment as `base`.

    A server has a topic for each message type, and the rows do not tell them apart. Where one name
    has several, read each with the option `messageType` of `amps-journal`.

    Args:
        journal: A directory, or rows with all columns, of one message type for each topic.
        until: The first moment whose messages do not count; `None` for the end of the journal.
        position: The last position that counts.
        base: An earlier result of this function; only what follows it is read of the journal.

    Raises:
        UsageError: Both `until` and `position` are given.
    """
    if until is not None and position is not None:
        raise UsageError("the state of the world is of a moment or of a position, not of both")
    opened = _rows_with_positions(journal)
    check_columns(
        "journal", opened, ("topic", "position", "timestamp", "command", "sow_key", "data")
    )
    rows = between(opened, until=until)
    if position is not None:
        rows = rows.where(sf.col("position") <= position)
    if base is not None:
        reached = only_row(base.agg(sf.max("position").alias("position")))["position"] or 0
        rows = rows.where(sf.col("position") > reached).select(*base.columns).union(base)
    is_delete = sf.col("command") == "sow_delete"
    # A delete names the keys of all records that it removed.
    deleted = rows.where(is_delete).select(
        "topic",
        sf.explode(sf.split(sf.col("data").cast("STRING"), ",")).alias("sow_key"),
        "position",
    )
    written = rows.where(~is_delete & sf.col("sow_key").isNotNull())
    # Only numbers are aggregated and shuffled; payloads are looked up by position afterwards.
    newest = (
        written.select("topic", "sow_key", "position", sf.lit(False).alias("is_delete"))
        .unionByName(deleted.withColumn("is_delete", sf.lit(True)))
        .groupBy("topic", "sow_key")
        .agg(
            sf.max("position").alias("position"),
            sf.max(sf.when(sf.col("is_delete"), sf.col("position"))).alias("deleted_at"),
        )
        .where("deleted_at IS NULL OR position > deleted_at")
    )
    return written.join(newest.select("position"), "position", "left_semi").select(*rows.columns)
