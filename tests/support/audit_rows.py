"""A journal and audit logs as DataFrames, small and healthy, for tests to plant faults in."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from haclient.protocol.identity import publisher_id
from haclient.pyspark.rows import COLUMNS, schema_ddl, signed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from haclient.pyspark.jobs.verdict import Audit, FindingKind

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
ALICE, BOB, CAROL = map(publisher_id, ("alice", "bob", "carol"))
assert ALICE > 2**63 or BOB > 2**63  # an id that is negative as a BIGINT is among them

Message = tuple[int, int, str]  # publisher, sequence, topic


def healthy(count: int = 200) -> list[Message]:
    """Two publishers in turns, on two topics."""
    return [
        ((ALICE, BOB)[i % 2], i // 2 + 1, ("orders", "prices")[i % 4 // 2]) for i in range(count)
    ]


def at(seconds: float) -> datetime:
    """A time after the start."""
    return START + timedelta(seconds=seconds)


def journal_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    first_position: int = 1,
    deletes: Collection[tuple[int, int]] = (),
) -> DataFrame:
    """The rows of a journal; `deletes` are the publishers and sequences that are deletes."""
    rows = [
        (
            topic,
            f"{publisher}|{sequence}|",
            signed(publisher),
            sequence,
            position,
            at(position),
            "sow_delete" if (publisher, sequence) in deletes else "publish",
            None,
            None,
            b'{"id": %d}' % sequence,
        )
        for position, (publisher, sequence, topic) in enumerate(messages, first_position)
    ]
    return spark.createDataFrame(rows, schema_ddl(COLUMNS))


def publishes_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    unacked: Iterable[Message] = (),
    deletes: Collection[tuple[int, int]] = (),
) -> DataFrame:
    """Each was published half a second before it was logged, and acknowledged just after."""
    pending = set(unacked)
    rows = [
        (
            signed(publisher),
            sequence,
            topic,
            at(n - 0.5),
            None if (publisher, sequence, topic) in pending else at(n + 0.25),
            (publisher, sequence) in deletes,
        )
        for n, (publisher, sequence, topic) in enumerate(messages, 1)
    ]
    ddl = (
        "publisher_id BIGINT, sequence BIGINT, topic STRING, published_at TIMESTAMP, "
        "acked_at TIMESTAMP, is_delete BOOLEAN"
    )
    return spark.createDataFrame(rows, ddl)


def deliveries_of(
    spark: SparkSession,
    messages: Iterable[Message],
    *,
    discarded: bool = True,
    client: str = "desk",
    sub_id: str = "s1",
) -> DataFrame:
    """What a subscriber has received, a message each two seconds."""
    rows = [
        (
            client,
            sub_id,
            signed(publisher),
            sequence,
            at(2 * n),
            at(2 * n + 0.125) if discarded else None,
            n,
        )
        for n, (publisher, sequence, _) in enumerate(messages, 1)
    ]
    ddl = (
        "client STRING, sub_id STRING, publisher_id BIGINT, sequence BIGINT, "
        "received_at TIMESTAMP, discarded_at TIMESTAMP, ordinal BIGINT"
    )
    return spark.createDataFrame(rows, ddl)


def found(result: Audit) -> list[tuple[FindingKind, str]]:
    """The violations, by kind and bookmark."""
    return sorted((each.kind, each.bookmark) for each in result.violations)
