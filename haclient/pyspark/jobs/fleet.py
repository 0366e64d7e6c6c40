"""The fleet report: what the bookmark logs and publish stores of many clients say, read-only.

Each file is read by a worker through the store's own inspection (`viewed`): nothing is locked,
changed or pruned, so clients may have the files in use. A file that cannot be read is one row with
its error, and does not stop the others.

With a journal the report also says what a restart of each client would do. Of a subscription it
says how old the oldest undiscarded message is, how many messages the log has after it, and whether
the journal still has it: when it was removed, the server cannot serve it again. Of a publish store
it says whether store and journal fit together. A journal that ends before what the store has
forgotten as persisted has lost messages. One that ends after the store's last sequence knows a
later store, so that the server would drop new messages as duplicates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from haclient.errors import HAClientError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs.journals import HEADER_COLUMNS, AnyJournal, Journal
from haclient.pyspark.rows import arrow_schema_of, in_tasks, only_row, signed
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.tools.store_files import StoreFile, size_of, viewed

_DDL: Final = (
    "path STRING, kind STRING, client STRING, sub_id STRING, bytes BIGINT, recovery_point STRING, "
    "undiscarded BIGINT, publisher_id BIGINT, sequence BIGINT, owner_id BIGINT, "
    "last_persisted BIGINT, last_sequence BIGINT, error STRING"
)
_FILES_PER_TASK: Final = 64
"""A task has a fixed cost of some 60 ms, about that of reading so many small files."""


def fleet(
    spark: SparkSession,
    paths: Iterable[str | Path],
    *,
    journal: AnyJournal | None = None,
) -> DataFrame:
    """One row for each subscription of each store, one for each publish store and unreadable file.

    Args:
        spark: The session.
        paths: The files, or the directories of publish stores, as workers see them.
        journal: The journal that the clients read and write: its directory, or its rows; adds
            `oldest_at`, `backlog`, `is_removed` and `problem` (what a restart of the client would
            do wrong).

    Returns:
        `path`, `kind`, `client` (the owner), `sub_id`, `bytes`, `recovery_point`, `undiscarded` (of
        a publish store: unpersisted), `publisher_id` and `sequence` (of the oldest undiscarded
        message), of a publish store `owner_id` (its publisher), `last_persisted` and
        `last_sequence`, and `error`.

    Raises:
        UsageError: There is no path.
    """
    names = [str(path) for path in paths]
    if not names:
        raise UsageError("the fleet report needs the path of at least one store")
    tasks = [names[i : i + _FILES_PER_TASK] for i in range(0, len(names), _FILES_PER_TASK)]
    schema = arrow_schema_of(_DDL)

    def read(some: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for path in some:
            yield pa.RecordBatch.from_pylist(list(store_rows(Path(path))), schema=schema)

    rows = in_tasks(spark, tasks, read, _DDL)
    if journal is None:
        return rows
    opened = Journal.of(journal, HEADER_COLUMNS)
    return _with_journal(rows, opened.rows, is_whole=opened.is_whole)


def store_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of one store, or one row with the error that it cannot be read for."""
    try:
        with viewed(path) as store:
            common = {"path": str(path), "bytes": size_of(path), "client": store.client_name}
            yield from [common | row for row in _contents(store)]
    except (HAClientError, OSError) as error:  # of any store: the others are read all the same
        yield {"path": str(path), "error": " ".join(str(error).split())}


def _contents(store: StoreFile) -> Iterator[dict[str, Any]]:
    if isinstance(store, FilePublishStore):
        row: dict[str, Any] = {"kind": "publish", "undiscarded": store.unpersisted_count}
        if store.client_name:
            row["owner_id"] = signed(publisher_id(store.client_name))
        yield row | {"last_persisted": store.last_persisted, "last_sequence": store.last_sequence}
        return
    for sub_id, handle in store.subscriptions.items():
        oldest = next((mark for _, mark, done in store.entries(sub_id) if not done), None)
        row = {
            "kind": "ring bookmark" if isinstance(store, RingBookmarkStore) else "logged bookmark",
            "sub_id": sub_id,
            "recovery_point": str(handle.recovery_point()),
            "undiscarded": handle.undiscarded_count,
        }
        if oldest is not None:
            row |= {"publisher_id": signed(oldest.publisher_id), "sequence": oldest.sequence}
        yield row


def _with_journal(rows: DataFrame, journal: DataFrame, *, is_whole: bool | None) -> DataFrame:
    span = journal.agg(sf.min("position").alias("first"), sf.max("position").alias("last"))
    ends = only_row(span)
    if is_whole is None:
        is_whole = ends["first"] in {None, 1}
    keys = ["publisher_id", "sequence"]
    wanted = sf.broadcast(rows.where("sequence IS NOT NULL").select(*keys).distinct())
    known = (
        journal.join(wanted, keys, "left_semi")
        .groupBy(*keys)
        .agg(sf.min("timestamp").alias("oldest_at"), sf.min("position").alias("oldest_position"))
    )
    is_missing = sf.col("sequence").isNotNull() & sf.col("oldest_position").isNull()
    return (
        rows.join(known, keys, "left")
        .join(_logged_of_owners(rows, journal), "owner_id", "left")
        .withColumn("backlog", sf.lit(ends["last"]) - sf.col("oldest_position") + 1)
        .withColumn("is_removed", is_missing & sf.lit(not is_whole))
        .withColumn("problem", _problem(is_whole=is_whole))
        .select(*rows.columns, "oldest_at", "backlog", "is_removed", "problem")
    )


def _logged_of_owners(rows: DataFrame, journal: DataFrame) -> DataFrame:
    """The last sequence that the journal has of each owner of a publish store."""
    owners = sf.broadcast(rows.where("owner_id IS NOT NULL").select("owner_id").distinct())
    logged = journal.select(sf.col("publisher_id").alias("owner_id"), "sequence")
    last = logged.join(owners, "owner_id", "left_semi").groupBy("owner_id")
    return last.agg(sf.max("sequence").alias("logged"))


def _problem(*, is_whole: bool) -> Column:
    """What a restart would lose; null where nothing.

    Args:
        is_whole: No segment of the journal was removed; else a publisher that is not in it may
            have been in one of those.
    """
    logged = "coalesce(logged, 0)" if is_whole else "logged"
    return sf.expr(f"""CASE
        WHEN last_persisted > {logged} THEN
            concat('the store has forgotten messages up to sequence ', last_persisted,
            ', the journal ends at ', {logged})
        WHEN {logged} > last_sequence THEN
            concat('the store goes on after sequence ', last_sequence,
            ', the journal has messages up to ', {logged}, ': new ones are dropped as duplicates')
        WHEN is_removed THEN 'the journal does not have the oldest undiscarded message any more'
        END""")
