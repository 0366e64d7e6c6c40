"""The audit logs of clients as DataFrames, for the audit.

Each log is read by one task with the reader of `haclient_stores.audit_log`, which joins the events
of a log to one row for each publish and each delivery. Logs may be read while clients write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from haclient.errors import UsageError
from haclient.pyspark.rows import arrow_schema_of, in_tasks, signed
from haclient_stores.audit_log import AuditLogReader

PUBLISHES_DDL: Final = (
    "client STRING, publisher_id BIGINT, sequence BIGINT, topic STRING, published_at TIMESTAMP, "
    "acked_at TIMESTAMP, refused_at TIMESTAMP, is_delete BOOLEAN"
)
DELIVERIES_DDL: Final = (
    "client STRING, sub_id STRING, publisher_id BIGINT, sequence BIGINT, received_at TIMESTAMP, "
    "discarded_at TIMESTAMP, ordinal BIGINT"
)
_BATCH_ROWS: Final = 10_000
_LOG_BITS: Final = 40
"""Ordinals of one log fit into so many bits; the number of the log is above them."""

_Rows: TypeAlias = Iterator[tuple[object, ...]]


def read_publishes(spark: SparkSession, paths: Iterable[str | Path]) -> DataFrame:
    """What the audit logs say of publishes, one row for each.

    Args:
        spark: The session.
        paths: The directories of the logs, as workers see them.

    Returns:
        `client`, `publisher_id`, `sequence`, `topic`, `published_at`, `acked_at`, `refused_at` and
        `is_delete`.

    Raises:
        UsageError: There is no path.
    """

    def rows(_: int, path: str) -> _Rows:
        for each in AuditLogReader(path).publishes():
            names = each.client, signed(each.publisher_id), each.sequence, each.topic
            yield *names, each.published_us, each.acked_us, each.refused_us, each.is_delete

    return _read(spark, paths, rows, PUBLISHES_DDL)


def read_deliveries(spark: SparkSession, paths: Iterable[str | Path]) -> DataFrame:
    """What the audit logs say of deliveries, one row for each.

    Args:
        spark: The session.
        paths: The directories of the logs, as workers see them. Of a client with several logs they
            are in the order in which it wrote them.

    Returns:
        `client`, `sub_id`, `publisher_id`, `sequence`, `received_at`, `discarded_at` and `ordinal`,
        which rises in the order of receipt.

    Raises:
        UsageError: There is no path.
    """

    def rows(number: int, path: str) -> _Rows:
        for each in AuditLogReader(path).deliveries():
            names = each.client, each.sub_id, signed(each.publisher_id), each.sequence
            ordinal = (number << _LOG_BITS) + each.ordinal
            yield *names, each.received_us, each.discarded_us, ordinal

    return _read(spark, paths, rows, DELIVERIES_DDL)


def _read(
    spark: SparkSession,
    paths: Iterable[str | Path],
    rows: Callable[[int, str], _Rows],
    ddl: str,
) -> DataFrame:
    logs = list(enumerate(map(str, paths)))
    if not logs:
        raise UsageError("no audit log is given")
    schema = arrow_schema_of(ddl)

    def read(log: tuple[int, str]) -> Iterator[pa.RecordBatch]:
        found = rows(*log)
        while chunk := list(islice(found, _BATCH_ROWS)):
            columns = pa.array(chunk, pa.struct(schema)).flatten()
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return in_tasks(spark, logs, read, ddl)
