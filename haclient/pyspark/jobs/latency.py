"""Latency and lag: how long messages take from the publisher to the log and to each subscriber.

*Latency* is the time between two events of one message; percentiles are given over time, for each
publisher and for each subscription. *Lag* says how far a subscription is behind at a moment: the
messages that were logged for it and not yet received, and the age of the newest one received.

Times are of the machines that took them. A latency between two machines includes the difference of
their clocks, and may be negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from haclient.pyspark.jobs.audit import Subscription
from haclient.pyspark.jobs.journals import HEADER_COLUMNS, AnyJournal, Journal
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.rows import check_columns, only_row, union_of

POINTS: Final = 200
"""Points in time of a plot: what a screen can show."""

_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400)
"""Round distances of points in time."""

_ACCURACY: Final = 1000
"""Of approximate percentiles: their rank is wrong by at most one in so many rows."""

BUCKETS_PER_DECADE: Final = 5
"""Bars of a histogram between 1 ms and 10 ms: its scale is logarithmic."""

TO_ACK: Final = "publish to ack"
TO_LOG: Final = "publish to log"
TO_RECEIVE: Final = "log to receive"


def add_latency(
    result: Audit,
    journal: AnyJournal,
    *,
    publishes: DataFrame | None = None,
    deliveries: DataFrame | None = None,
    subscriptions: Sequence[Subscription] = (),
    one_in: int = 1,
) -> None:
    """Add the tables of latency and lag to an audit.

    Args:
        result: The audit; it gets `latency`, `latency_histogram`, `latency_by_publisher`,
            `latency_by_subscription` and, for subscriptions that are described, `lag`.
        journal: What was audited; rows with `timestamp`.
        publishes: The audit logs of publishers, as for `audit`.
        deliveries: The audit logs of subscribers, as for `audit`.
        subscriptions: What should have been delivered, as for `audit`.
        one_in: Latencies of one in so many messages are measured, chosen by a hash of the bookmark:
            they are looked up in the journal, which shuffles them.
    """
    if (publishes is None and deliveries is None) or FindingKind.DAMAGED in result.counts:
        return
    has_conditions = any(each.condition for each in subscriptions)
    rows = Journal.of(journal, () if has_conditions else HEADER_COLUMNS).rows
    check_columns("journal", rows, ("publisher_id", "sequence", "timestamp"))
    samples = _samples(rows, publishes, deliveries, one_in).persist()
    width_s = width_of(samples)
    result.facts["seconds_per_point"] = width_s
    keys = {
        "latency": ("stage", sf.window("at", f"{width_s} seconds")["start"].alias("start")),
        "latency_by_publisher": ("stage", "publisher_id", "topic"),
        "latency_by_subscription": ("stage", "client", "sub_id"),
    }
    for name, by in keys.items():
        chosen = samples.where("sub_id IS NOT NULL") if "subscription" in name else samples
        result.tables[name] = percentiles_of(chosen, *by)
    bucket = sf.ceil(sf.log10("seconds") * BUCKETS_PER_DECADE).cast("INT")  # null up to 0
    result.tables["latency_histogram"] = (
        samples.groupBy("stage", bucket.alias("bucket"))
        .agg(sf.count("*").alias("messages"))
        .orderBy("stage", "bucket")
    )
    if deliveries is not None and subscriptions:
        lags = [_lag(rows, deliveries, each, width_s) for each in subscriptions]
        result.tables["lag"] = union_of(lags).orderBy("client", "sub_id", "start")


def percentiles_of(samples: DataFrame, *keys: str | Column) -> DataFrame:
    """Percentiles of the column `seconds` by some keys, and how many values they are of."""
    found = sf.percentile_approx("seconds", [0.5, 0.95, 0.99], _ACCURACY)
    table = samples.groupBy(*keys).agg(
        sf.count("*").alias("messages"), found.alias("p"), sf.max("seconds").alias("max")
    )
    names = [each for each in table.columns if each not in {"p", "max"}]
    parts = [sf.col("p")[i].alias(name) for i, name in enumerate(("p50", "p95", "p99"))]
    return table.select(*names, *parts, "max").orderBy(*names)


def upper_edge(bucket: int) -> float:
    """The longest time in a bucket of the histogram, in seconds."""
    return float(10 ** (bucket / BUCKETS_PER_DECADE))


def width_of(samples: DataFrame) -> int:
    """The distance of points in time, in seconds, that makes at most `POINTS` of them."""
    ends = only_row(samples.agg(sf.min("at").alias("first"), sf.max("at").alias("last")))
    first, last = ends["first"], ends["last"]
    if not isinstance(first, datetime):
        return _WIDTHS_S[0]
    seconds = (last - first).total_seconds()
    fitting = [width for width in _WIDTHS_S if seconds / width <= POINTS]
    return fitting[0] if fitting else -(-int(seconds) // POINTS // 86400) * 86400


def _samples(
    journal: DataFrame, publishes: DataFrame | None, deliveries: DataFrame | None, one_in: int
) -> DataFrame:
    """One row for each measured time of a message."""
    is_chosen = sf.pmod(sf.xxhash64("publisher_id", "sequence"), sf.lit(one_in)) == 0
    logged = journal.where(is_chosen).select(
        "publisher_id", "sequence", "topic", sf.col("timestamp").alias("logged_at")
    )
    both = ["publisher_id", "sequence"]
    parts: list[DataFrame] = []
    if publishes is not None:
        nobody = sf.lit(None).cast("STRING")
        sent = publishes.where(is_chosen).withColumns({"client": nobody, "sub_id": nobody})
        acked = sent.where("acked_at IS NOT NULL")
        parts.append(_measured(acked, TO_ACK, "published_at", "acked_at"))
        found = sent.drop("topic").join(logged, both)
        parts.append(_measured(found, TO_LOG, "published_at", "logged_at"))
    if deliveries is not None:
        first = (
            deliveries.where(is_chosen)
            .groupBy("client", "sub_id", *both)
            .agg(sf.min("received_at").alias("received_at"))
        )
        parts.append(_measured(first.join(logged, both), TO_RECEIVE, "logged_at", "received_at"))
    return union_of(parts)


def _measured(rows: DataFrame, stage: str, begin: str, end: str) -> DataFrame:
    """The time between two events of each message."""
    seconds = (sf.unix_micros(end) - sf.unix_micros(begin)) / 1e6
    return rows.select(
        *(sf.lit(stage).alias("stage"), sf.col(end).alias("at"), seconds.alias("seconds")),
        *("topic", "publisher_id", "client", "sub_id"),
    )


def _lag(
    journal: DataFrame, deliveries: DataFrame, subscription: Subscription, width_s: int
) -> DataFrame:
    """How far the clients of one subscription are behind at the end of each point in time."""
    first = subscription.received_in(deliveries).withColumnRenamed("timestamp", "at")
    rows = subscription.expected_in(journal).select(
        "publisher_id", "sequence", sf.col("timestamp").alias("logged_at")
    )
    known = first.join(rows, ["publisher_id", "sequence"]).select("client", "at", "logged_at")
    # A client's backlog begins with the first message that it received.
    begins = sf.broadcast(known.groupBy("client").agg(sf.min("logged_at").alias("begin")))
    due = rows.join(begins, sf.col("logged_at") >= sf.col("begin")).select(
        "client",
        sf.col("logged_at").alias("at"),
        sf.lit(1).alias("step"),
        sf.lit(None).cast("DOUBLE").alias("age"),
    )
    age = (sf.unix_micros("at") - sf.unix_micros("logged_at")) / 1e6
    done = known.select("client", "at", sf.lit(-1).alias("step"), age.alias("age"))
    steps = (
        due.unionByName(done)
        .groupBy("client", sf.window("at", f"{width_s} seconds")["start"].alias("start"))
        .agg(sf.sum("step").alias("change"), sf.max("age").alias("seconds_behind"))
    )
    so_far = Window.partitionBy("client").orderBy("start")  # from the first row to each
    return steps.select(
        "client",
        sf.lit(subscription.sub_id).alias("sub_id"),
        "start",
        sf.sum("change").over(so_far).alias("backlog"),
        "seconds_behind",
    )
