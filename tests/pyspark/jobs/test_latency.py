"""Latency and lag are measured from the journal and the audit logs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from haclient.pyspark.jobs.audit import Subscription
from haclient.pyspark.jobs.latency import (
    POINTS,
    TO_ACK,
    TO_LOG,
    TO_RECEIVE,
    add_latency,
    upper_edge,
    width_of,
)
from haclient.pyspark.jobs.verdict import Audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)

pytestmark = pytest.mark.row("AU7")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def logs(spark: SparkSession, count: int = 100) -> tuple[DataFrame, DataFrame, DataFrame]:
    """One message each second; each stage takes n milliseconds more for the n-th message."""
    numbers = range(1, count + 1)
    journal = spark.createDataFrame(
        [("orders", 7, n, n, at(n)) for n in numbers],
        "topic STRING, publisher_id BIGINT, sequence BIGINT, position BIGINT, timestamp TIMESTAMP",
    )
    publishes = spark.createDataFrame(
        [(7, n, "orders", at(n - n / 1e3), at(n + n / 1e3)) for n in numbers],
        "publisher_id BIGINT, sequence BIGINT, topic STRING, published_at TIMESTAMP, "
        "acked_at TIMESTAMP",
    )
    deliveries = spark.createDataFrame(
        [("desk", "s1", 7, n, at(n + 3 * n / 1e3), None, n) for n in numbers],
        "client STRING, sub_id STRING, publisher_id BIGINT, sequence BIGINT, "
        "received_at TIMESTAMP, discarded_at TIMESTAMP, ordinal BIGINT",
    )
    return journal, publishes, deliveries


def rows_of(result: Audit, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in result.tables[name].collect()]


def test_percentiles_are_given_for_each_stage_and_publisher(spark: SparkSession) -> None:
    journal, publishes, deliveries = logs(spark)
    result = Audit()
    add_latency(result, journal, publishes=publishes, deliveries=deliveries)
    found = {row["stage"]: row for row in rows_of(result, "latency_by_publisher")}
    assert sorted(found) == sorted([TO_ACK, TO_LOG, TO_RECEIVE])
    assert found[TO_ACK]["p50"] == pytest.approx(0.100, abs=0.003)
    assert found[TO_LOG]["p95"] == pytest.approx(0.095, abs=0.003)
    assert found[TO_RECEIVE]["p99"] == pytest.approx(0.297, abs=0.005)
    assert found[TO_RECEIVE]["max"] == pytest.approx(0.3)
    assert {(row["publisher_id"], row["messages"]) for row in found.values()} == {(7, 100)}


def test_times_are_counted_in_buckets_of_a_logarithmic_scale(spark: SparkSession) -> None:
    journal, publishes, _ = logs(spark, 20)
    late = publishes.withColumn("acked_at", sf.expr("published_at - INTERVAL 1 SECOND"))
    result = Audit()
    add_latency(result, journal, publishes=publishes.where("sequence > 1").unionByName(late))
    rows = [row for row in rows_of(result, "latency_histogram") if row["stage"] == TO_ACK]
    assert (rows[0]["bucket"], rows[0]["messages"]) == (None, 20)  # acknowledged before
    assert sum(row["messages"] for row in rows[1:]) == 19
    # From 4 to 40 ms.
    assert 0.004 <= upper_edge(rows[1]["bucket"]) < 0.01
    assert 0.04 <= upper_edge(rows[-1]["bucket"]) < 0.08


def test_percentiles_are_given_for_each_subscription_and_over_time(spark: SparkSession) -> None:
    journal, publishes, deliveries = logs(spark)
    result = Audit()
    add_latency(result, journal, publishes=publishes, deliveries=deliveries)
    (row,) = rows_of(result, "latency_by_subscription")
    assert (row["client"], row["sub_id"], row["messages"]) == ("desk", "s1", 100)
    received = [row for row in rows_of(result, "latency") if row["stage"] == TO_RECEIVE]
    assert [row["p50"] for row in received] == sorted(row["p50"] for row in received)
    assert sum(row["messages"] for row in received) == 100
    assert len(received) == 100 // result.facts["seconds_per_point"]


def test_one_in_so_many_messages_is_enough(spark: SparkSession) -> None:
    journal, publishes, deliveries = logs(spark, 1000)
    result = Audit()
    add_latency(result, journal, publishes=publishes, deliveries=deliveries, one_in=10)
    counts = [row["messages"] for row in rows_of(result, "latency_by_publisher")]
    assert len(set(counts)) == 1  # the same messages at each stage
    assert 50 < counts[0] < 200


def test_the_backlog_is_what_was_logged_and_not_yet_received(spark: SparkSession) -> None:
    journal, _, deliveries = logs(spark)
    # The client stops at the 40th message; the 100th is received at last, at second 100.3.
    stuck = deliveries.where("sequence <= 40 OR sequence = 100")
    result = Audit()
    subscription = Subscription(sub_id="s1", topic="orders")
    add_latency(result, journal, deliveries=stuck, subscriptions=[subscription])
    backlog = {row["start"].astimezone(UTC): row["backlog"] for row in rows_of(result, "lag")}
    assert backlog[at(39)] == 0
    assert backlog[at(60)] == 20
    assert backlog[at(100)] == 59
    ages = [row["seconds_behind"] for row in rows_of(result, "lag")]
    assert max(age for age in ages if age is not None) == pytest.approx(0.3)


def test_without_audit_logs_there_is_no_latency(spark: SparkSession) -> None:
    result = Audit()
    add_latency(result, logs(spark)[0])
    assert result.tables == {}


@pytest.mark.parametrize(
    ("seconds", "width"), [(0, 1), (200, 1), (201, 2), (86_400, 600), (400 * 86_400, 2 * 86_400)]
)
def test_a_plot_has_a_bounded_number_of_points(
    spark: SparkSession, seconds: int, width: int
) -> None:
    samples = spark.createDataFrame([(at(0),), (at(seconds),)], "at TIMESTAMP")
    assert width_of(samples) == width
    assert seconds / width <= POINTS


def test_a_plot_of_nothing_has_the_smallest_width(spark: SparkSession) -> None:
    assert width_of(spark.createDataFrame([], "at TIMESTAMP")) == 1
