"""Audit logs that a client has written are read as rows."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from haclient.errors import UsageError
from haclient.pyspark.jobs.audit_logs import read_deliveries, read_publishes
from haclient_stores.audit_log import AuditLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
START_US = int(START.timestamp() * 1e6)
LARGE = 2**64 - 7
"""A publisher id that is negative as a BIGINT."""


def write_log(path: Path, client: str) -> Path:
    """Three publishes, of which one is acknowledged and one refused; two deliveries."""
    with closing(AuditLog(path)) as log:
        log.open_for(client, LARGE, START_US)
        for sequence in (1, 2, 3):
            log.published(sequence, "orders", START_US + sequence, is_delete=sequence == 3)
        log.acknowledged(1, START_US + 10)
        log.refused(2, START_US + 20)
        log.received("s1", [(f"{LARGE}|5|", 1), ("8|6|", 2)], START_US + 30)
        log.discarded("s1", 2, START_US + 40)
    return path


def at(microseconds: int) -> datetime:
    """A time as PySpark hands it out: of the local zone, without saying so."""
    moment = START + timedelta(microseconds=microseconds)
    return moment.astimezone().replace(tzinfo=None)


def test_publishes_have_the_times_of_their_acks_and_refusals(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = read_publishes(spark, [write_log(tmp_path / "log", "gateway")]).orderBy("sequence")
    assert [tuple(row) for row in rows.collect()] == [
        ("gateway", -7, 1, "orders", at(1), at(10), None, False),
        ("gateway", -7, 2, "orders", at(2), None, at(20), False),
        ("gateway", -7, 3, "orders", at(3), None, None, True),
    ]


def test_deliveries_are_numbered_in_the_order_of_receipt_through_all_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = [write_log(tmp_path / name, "desk") for name in ("first", "second")]
    rows = read_deliveries(spark, logs).orderBy("ordinal").collect()
    assert [(row.publisher_id, row.sequence) for row in rows] == [(-7, 5), (8, 6)] * 2
    assert {(row.client, row.sub_id, row.received_at) for row in rows} == {("desk", "s1", at(30))}
    assert [row.discarded_at for row in rows] == [None, at(40)] * 2
    assert len({row.ordinal for row in rows}) == 4


def test_no_log_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="no audit log is given"):
        read_publishes(spark, [])
