"""The audit: was every message logged once, in order, and delivered once, in order?

The journal is what a server has logged. The audit logs of publishers and subscribers say what these
saw: which publishes were acknowledged, which messages were received and discarded. `audit` compares
the three and names each violation with its bookmark.

What is a violation, and what is not:

* The journal holds each sequence of a publisher once, and they rise: else a *duplicate* or an
  *order break*.
* A sequence that is missing in the journal is no loss by itself: sequences only have to rise. It is
  a *hole* for publishers that are said to number without gaps (`dense`).
* A publish that the server has acknowledged and that is not in the journal is *lost*. One that was
  not acknowledged is in flight, in the journal or not.
* A message that lies between two received ones of its publisher, belongs to the subscription and
  was not received, is *undelivered*. After the last received one it is backlog, unless the
  subscription is said to be `complete`.
* A message that is received again after it was discarded is *received twice*. Received again before
  that, it is a redelivery, which at-least-once delivery makes after a restart.
* A message that was received and is not in the journal is *not logged*: the journal has lost it, or
  belongs to another server with another content.

Take the journal after the audit logs: what was acknowledged or received in between would seem lost.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs import kernels
from haclient.pyspark.rows import signed, unsigned


class Kind(enum.StrEnum):
    """The kinds of violations."""

    DUPLICATE = "duplicate"
    ORDER_BREAK = "order break"
    HOLE = "hole"
    LOST = "lost"
    NOT_LOGGED = "not logged"
    UNDELIVERED = "undelivered"
    RECEIVED_TWICE = "received twice"
    RECEIVED_OUT_OF_ORDER = "received out of order"
    MISSING_IN_REPLICA = "missing in replica"
    REPLICA_ORDER = "other order in replica"
    CONTENT = "other content in replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One message that breaks a promise.

    Attributes:
        kind: Which promise.
        bookmark: The message.
        topic: Its topic, where it is known.
        position: Its position in the journal, where it has one.
        timestamp: When it was logged or, if it was not, published or received.
        client: The subscriber, for violations of a delivery.
        sub_id: The subscription, for violations of a delivery.
        detail: What was wanted and what was found.
    """

    kind: Kind
    bookmark: str
    topic: str | None = None
    position: int | None = None
    timestamp: datetime | None = None
    client: str | None = None
    sub_id: str | None = None
    detail: str = ""


PUBLISHES: Final = ("publisher_id", "sequence", "topic", "published_at", "acked_at")
"""Columns of the audit logs of publishers; `acked_at` is null until the server has it."""

DELIVERIES: Final = (
    "client",
    "sub_id",
    "publisher_id",
    "sequence",
    "received_at",
    "discarded_at",
    "ordinal",
)
"""Columns of the audit logs of subscribers; `ordinal` rises in the order of receipt."""

VIOLATIONS_DDL: Final = (
    "kind STRING, bookmark STRING, topic STRING, position BIGINT, timestamp TIMESTAMP, "
    "client STRING, sub_id STRING, detail STRING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a subscription should have received.

    Attributes:
        sub_id: Its id, as in the audit log.
        client: The client that has it; `None` for each client that has this id.
        topic: The topic; `None` for every topic, or with `topic_pattern`.
        topic_pattern: A regular expression that the topic matches anywhere.
        condition: A SQL expression over the journal's columns that says what its content filter
            says, for example `get_json_object(CAST(data AS STRING), '$.px') > 10`.
        conflated: The server may skip messages, so none is undelivered.
        complete: It has received everything since the first message that it received.
    """

    sub_id: str
    client: str | None = None
    topic: str | None = None
    topic_pattern: str | None = None
    condition: str | None = None
    conflated: bool = False
    complete: bool = False

    def expected_in(self, journal: DataFrame) -> DataFrame:
        """The rows of a journal that belong to this subscription."""
        if self.topic is not None:
            journal = journal.where(sf.col("topic") == self.topic)
        if self.topic_pattern is not None:
            journal = journal.where(sf.col("topic").rlike(self.topic_pattern))
        return journal if self.condition is None else journal.where(sf.expr(self.condition))


@dataclass(slots=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        counts: How many violations there are of each kind that was looked for.
        violations: The first ones of each kind, by position.
        facts: Figures about the journal and the logs, by name.
        tables: `publishers`, and with audit logs `latency`, `latency_by_publisher`,
            `latency_by_subscription`, `lag`.
    """

    counts: dict[Kind, int] = field(default_factory=dict[Kind, int])
    violations: list[Violation] = field(default_factory=list[Violation])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: dict[str, DataFrame] = field(default_factory=dict[str, DataFrame])

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.counts.values())

    def verdict(self) -> dict[str, Any]:
        """What a machine needs to know, as plain JSON values."""
        return {
            "verdict": "good" if self.is_good else "bad",
            "violations": {str(kind): count for kind, count in self.counts.items()},
            "facts": {name: _plain(value) for name, value in self.facts.items()},
        }

    def add(self, kind: Kind, rows: DataFrame, detail: Column, *, limit: int) -> None:
        """Count the violations in `rows`, and keep the first ones.

        Args:
            kind: What they are.
            rows: publisher_id and sequence, and any of topic, position, timestamp, client, sub_id.
            detail: What was wanted and what was found, for each row.
            limit: How many are kept.
        """
        self.counts.setdefault(kind, 0)
        self.add_each(rows.select("*", sf.lit(kind).alias("kind"), detail.alias("detail")), limit)

    def add_each(self, rows: DataFrame, limit: int) -> dict[str, int]:
        """Count the violations in `rows`, which have a kind each, and keep the first ones.

        Args:
            rows: As for `add`, with `detail` and `kind`, which is null for what is no violation.
            limit: How many of each kind are kept.

        Returns:
            How many rows of each kind there are; those without one are under the empty text.
        """
        names = ("topic", "position", "timestamp", "client", "sub_id")
        known = [name for name in names if name in rows.columns]
        order = [name for name in ("position", "timestamp", "sequence") if name in rows.columns]
        detail = sf.coalesce("detail", sf.lit("")).alias("detail")
        kind = sf.coalesce("kind", sf.lit("")).alias("kind")
        shown = rows.select("publisher_id", "sequence", *known, detail, kind)
        # Few faults are the rule, and take one job: it has all of them.
        found = shown.orderBy(*order).limit(limit + 1).collect()
        if len(found) <= limit:
            counts = dict(Counter(row.kind for row in found))
        else:
            counts = {row.kind: row["count"] for row in shown.groupBy("kind").count().collect()}
            firsts = [
                shown.where(sf.col("kind") == each).orderBy(*order)
                for each in Kind
                if each in counts
            ]
            found = [row for each in firsts for row in each.limit(limit).collect()]
        for each in Kind:
            if each in counts:
                self.counts[each] = self.counts.get(each, 0) + counts[each]
                self.violations += [_violation(each, row) for row in found if row.kind == each]
        return counts


def bookmark_text(publisher: int, sequence: int) -> str:
    """The bookmark of a signed publisher id, as rows have it."""
    return f"{unsigned(publisher)}|{unsigned(sequence)}|"


def _violation(kind: Kind, row: Row) -> Violation:
    values = row.asDict()
    del values["kind"]
    bookmark = bookmark_text(values.pop("publisher_id"), values.pop("sequence"))
    return Violation(kind=kind, bookmark=bookmark, **values)


def _plain(value: Any) -> Any:  # noqa: ANN401  # any fact
    # PySpark hands out times of the local zone, without saying so.
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def audit(
    journal: DataFrame,
    *,
    publishes: DataFrame | None = None,
    deliveries: DataFrame | None = None,
    subscriptions: Sequence[Subscription] = (),
    dense: Iterable[str | int] = (),
    limit: int = 1000,
) -> Audit:
    """Compare a journal with itself and with the audit logs of publishers and subscribers.

    Args:
        journal: The rows of one instance's journal, from its files or from an export.
        publishes: The audit logs of publishers; columns `PUBLISHES`.
        deliveries: The audit logs of subscribers; columns `DELIVERIES`.
        subscriptions: What should have been delivered; nothing is undelivered without it.
        dense: Names or ids of publishers whose sequences have no gaps.
        limit: How many violations of each kind are named; all are counted.

    Raises:
        UsageError: A DataFrame lacks a column, or a subscription is described twice.
    """
    check_columns("journal", journal, ("topic", "publisher_id", "sequence", "position"))
    _check_subscriptions(subscriptions, deliveries)
    result = Audit()
    publishers = _audit_order(result, journal, limit)
    _audit_holes(result, journal, publishers, list(map(_signed_id, dense)), limit)
    if publishes is not None:
        check_columns("publishes", publishes, PUBLISHES)
        _audit_publishes(result, journal, publishes, publishers, limit)
    if deliveries is not None:
        check_columns("deliveries", deliveries, DELIVERIES)
        _audit_receipts(result, deliveries, limit)
        for subscription in subscriptions:
            _audit_deliveries(result, journal, deliveries, publishers, subscription, limit)
    return result


def check_columns(name: str, frame: DataFrame, wanted: Sequence[str]) -> None:
    """Check that a DataFrame has the columns that a job needs.

    Raises:
        UsageError: It lacks one.
    """
    missing = [column for column in wanted if column not in frame.columns]
    if missing:
        raise UsageError(
            f"{name} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}"
        )


def _check_subscriptions(
    subscriptions: Sequence[Subscription], deliveries: DataFrame | None
) -> None:
    if subscriptions and deliveries is None:
        raise UsageError("subscriptions are given, but no deliveries: no audit log of a subscriber")
    names = [(each.client, each.sub_id) for each in subscriptions]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the subscription {name[1]!r} is described twice")


def _signed_id(publisher: str | int) -> int:
    """The id of a publisher as rows have it; a name is hashed as servers do it."""
    number = publisher_id(publisher) if isinstance(publisher, str) else publisher
    return signed(unsigned(number))  # an id may be given as rows have it


# --- the journal alone ------------------------------------------------------------------------


def _audit_order(result: Audit, journal: DataFrame, limit: int) -> pa.Table:
    """Find duplicates and order breaks; returns what the journal has of each publisher."""
    publishers = kernels.publishers_of(kernels.runs_of(journal)).toArrow()
    result.tables["publishers"] = publishers_table(journal.sparkSession, publishers)
    result.facts |= journal_facts(publishers)
    result.counts |= {Kind.DUPLICATE: 0, Kind.ORDER_BREAK: 0}
    if result.facts["suspect_runs"]:
        intervals = journal.sparkSession.createDataFrame(kernels.suspect_intervals(publishers))
        late = kernels.rows_not_rising(journal, intervals)
        result.add_each(_classify_late(journal, late.persist()), limit)
    return publishers


def publishers_table(spark: SparkSession, publishers: pa.Table) -> DataFrame:
    """What a journal has of each publisher, as a table of a report."""
    return spark.createDataFrame(publishers.drop_columns(["intervals"]))


def journal_facts(publishers: pa.Table) -> dict[str, Any]:
    """Figures about a whole journal, from what it has of each publisher."""
    return {
        "messages": pc.sum(publishers["rows"]).as_py() or 0,
        "publishers": publishers.num_rows,
        "first_position": pc.min(publishers["first_position"]).as_py(),
        "last_position": pc.max(publishers["last_position"]).as_py(),
        "suspect_runs": pc.sum(publishers["suspect_runs"]).as_py() or 0,
    }


def only_row(aggregate: DataFrame) -> dict[str, Any]:
    """The one row of an aggregate without groups."""
    values: dict[str, Any] = aggregate.collect()[0].asDict()
    return values


def _classify_late(journal: DataFrame, late: DataFrame) -> DataFrame:
    """Tell the rows that the journal has before from those that come too late."""
    keys = late.select("publisher_id", "sequence").distinct()
    first = (
        journal.select("publisher_id", "sequence", "position")
        .join(sf.broadcast(keys), ["publisher_id", "sequence"], "left_semi")
        .groupBy("publisher_id", "sequence")
        .agg(sf.min("position").alias("first_at"))
    )
    is_again = sf.col("position") > sf.col("first_at")
    before = sf.concat(sf.lit("logged before at position "), "first_at")
    after = sf.concat(sf.lit("logged after sequence "), "highest_before")
    return late.join(sf.broadcast(first), ["publisher_id", "sequence"]).select(
        *late.columns,
        sf.when(is_again, sf.lit(Kind.DUPLICATE)).otherwise(sf.lit(Kind.ORDER_BREAK)).alias("kind"),
        sf.when(is_again, before).otherwise(after).alias("detail"),
    )


def _audit_holes(
    result: Audit, journal: DataFrame, publishers: pa.Table, dense: Sequence[int], limit: int
) -> None:
    """Name the first sequence of each hole of publishers that number without gaps."""
    if not dense:
        return
    result.counts[Kind.HOLE] = 0
    names = ("publisher_id", "first_sequence", "last_sequence", "rows", "suspect_runs")
    gaps = [
        publisher
        for publisher, first, last, rows, suspects in zip(
            *(publishers[name].to_pylist() for name in names), strict=True
        )
        if publisher in dense and (last - first + 1 > rows or suspects)
    ]
    if not gaps:
        return
    rows = journal.where(sf.col("publisher_id").isin(gaps))
    by_sequence = Window.partitionBy("publisher_id").orderBy("sequence")
    holes = (
        rows.withColumn("before", sf.lag("sequence").over(by_sequence))
        .where("sequence > before + 1")
        .select(
            "publisher_id",
            (sf.col("before") + 1).alias("sequence"),
            "position",
            (sf.col("sequence") - sf.col("before") - 1).alias("missing"),
        )
    )
    detail = sf.concat("missing", sf.lit(" sequences are missing before this position"))
    result.add(Kind.HOLE, holes, detail, limit=limit)


# --- publishers -------------------------------------------------------------------------------


def _audit_publishes(
    result: Audit, journal: DataFrame, publishes: DataFrame, publishers: pa.Table, limit: int
) -> None:
    totals = (
        publishes.groupBy("publisher_id")
        .agg(sf.count("*").alias("published"), sf.count("acked_at").alias("acknowledged"))
        .toArrow()
    )
    published, acknowledged = (
        pc.sum(totals[name]).as_py() or 0 for name in ("published", "acknowledged")
    )
    result.facts |= {"published": published, "acknowledged": acknowledged}
    result.facts["in_flight"] = published - acknowledged
    acked = publishes.where("acked_at IS NOT NULL")
    checkable = _not_removed(result, acked, publishers)
    logged = journal.select("publisher_id", "sequence")
    # The journal has messages of publishers without an audit log; these are not compared.
    audited = journal.sparkSession.createDataFrame(totals.select(["publisher_id"]))
    logged = logged.join(sf.broadcast(audited), "publisher_id", "left_semi")
    result.counts[Kind.LOST] = 0
    differ = kernels.differences(checkable, logged)
    if differ is not None:
        result.add(
            Kind.LOST,
            differ.only_left.withColumn("timestamp", sf.col("published_at")),
            sf.concat(sf.lit("acknowledged at "), "acked_at", sf.lit(", not in the journal")),
            limit=limit,
        )


def _not_removed(result: Audit, rows: DataFrame, publishers: pa.Table) -> DataFrame:
    """Those of `rows` that the journal would still have: its oldest segments may be removed."""
    if result.facts["first_position"] in {None, 1}:
        return rows
    chosen = publishers.select(["publisher_id", "first_sequence"])
    edges = sf.broadcast(rows.sparkSession.createDataFrame(chosen))
    return (
        rows.join(edges, "publisher_id").where("sequence >= first_sequence").drop("first_sequence")
    )


# --- subscribers ------------------------------------------------------------------------------


def _audit_receipts(result: Audit, deliveries: DataFrame, limit: int) -> None:
    """Judge order and repetition of what was received, without the journal."""
    # The order of receipt is to a publisher of a subscription what the position is in a journal.
    names = ("client", "sub_id", "publisher_id")
    received = deliveries.withColumn("receiver", sf.xxhash64(*names))
    rows = received.select(
        sf.col("receiver").alias("publisher_id"), "sequence", sf.col("ordinal").alias("position")
    )
    receivers = kernels.publishers_of(kernels.runs_of(rows)).toArrow()
    counted = (Kind.RECEIVED_TWICE, Kind.RECEIVED_OUT_OF_ORDER)
    result.counts |= dict.fromkeys(counted, 0)
    facts = journal_facts(receivers)
    result.facts |= {"received": facts["messages"], "redelivered": 0}
    if not facts["suspect_runs"]:
        return
    intervals = deliveries.sparkSession.createDataFrame(kernels.suspect_intervals(receivers))
    late = kernels.rows_not_rising(rows, intervals).select(
        sf.col("publisher_id").alias("receiver"),
        "sequence",
        "highest_before",
        sf.col("position").alias("ordinal"),
    )
    counts = result.add_each(_classify_receipts(received, late.persist()), limit)
    result.facts["redelivered"] = counts.get("", 0)


def _classify_receipts(received: DataFrame, late: DataFrame) -> DataFrame:
    """Tell receipts after a discard, redeliveries and late messages apart."""
    keys = ("receiver", "sequence")
    before = Window.partitionBy(*keys).orderBy("ordinal").rowsBetween(Window.unboundedPreceding, -1)
    receipts = (
        received.join(sf.broadcast(late.select(*keys).distinct()), list(keys), "left_semi")
        .withColumn("first_received", sf.min("received_at").over(before))
        .withColumn("discarded_before", sf.min("discarded_at").over(before))
        .join(late, [*keys, "ordinal"])
        .withColumn("timestamp", sf.col("received_at"))
    )
    is_again = sf.col("first_received").isNotNull()
    twice = (
        sf.lit("received first at "),
        "first_received",
        sf.lit(", discarded at "),
        "discarded_before",
    )
    after = sf.concat(sf.lit("received after sequence "), "highest_before")
    return receipts.select(
        *received.columns,
        "timestamp",
        # Received again and not discarded before, it is a redelivery: no violation.
        sf.when(~is_again, sf.lit(Kind.RECEIVED_OUT_OF_ORDER))
        .when(sf.col("discarded_before") <= sf.col("received_at"), sf.lit(Kind.RECEIVED_TWICE))
        .alias("kind"),
        sf.when(is_again, sf.concat(*twice)).otherwise(after).alias("detail"),
    )


def _audit_deliveries(
    result: Audit,
    journal: DataFrame,
    deliveries: DataFrame,
    publishers: pa.Table,
    subscription: Subscription,
    limit: int,
) -> None:
    """Compare what one subscription received with what the journal has for it."""
    received = deliveries.where(sf.col("sub_id") == subscription.sub_id)
    if subscription.client is not None:
        received = received.where(sf.col("client") == subscription.client)
    received = received.select("client", "publisher_id", "sequence", "received_at")
    distinct = (
        received.groupBy("client", "publisher_id", "sequence")
        .agg(sf.min("received_at").alias("timestamp"))
        .persist()
    )
    expected = _expected(journal, distinct, subscription)
    result.counts.setdefault(Kind.NOT_LOGGED, 0)
    if not subscription.conflated:
        result.counts.setdefault(Kind.UNDELIVERED, 0)
    differ = kernels.differences(expected, _not_removed(result, distinct, publishers), "client")
    if differ is None:
        return
    sub_id = sf.lit(subscription.sub_id)
    logged = journal.select("publisher_id", "sequence")
    unknown = differ.only_right.join(logged, ["publisher_id", "sequence"], "left_anti")
    detail = sf.lit("received, not in the journal")
    result.add(Kind.NOT_LOGGED, unknown.withColumn("sub_id", sub_id), detail, limit=limit)
    if not subscription.conflated:
        missing = differ.only_left.withColumn("sub_id", sub_id)
        detail = sf.lit("logged for this subscription, not received")
        result.add(Kind.UNDELIVERED, missing, detail, limit=limit)


def _expected(journal: DataFrame, received: DataFrame, subscription: Subscription) -> DataFrame:
    """The rows of the journal that each client of a subscription must have received."""
    ends = received.groupBy("client", "publisher_id").agg(
        sf.min("sequence").alias("lowest"), sf.max("sequence").alias("highest")
    )
    edges = journal.sparkSession.createDataFrame(ends.toArrow())  # it is needed several times
    rows = subscription.expected_in(journal)
    columns = [
        name
        for name in ("topic", "publisher_id", "sequence", "position", "timestamp")
        if name in journal.columns
    ]
    if not subscription.complete:
        chosen = rows.join(sf.broadcast(edges), "publisher_id")
        return chosen.where("sequence BETWEEN lowest AND highest").select("client", *columns)
    # From the first message that a client has received, whoever published it.
    clients = (
        journal.select("publisher_id", "sequence", "position")
        .join(
            sf.broadcast(
                edges.select("client", "publisher_id", sf.col("lowest").alias("sequence"))
            ),
            ["publisher_id", "sequence"],
        )
        .groupBy("client")
        .agg(sf.min("position").alias("from_position"))
    )
    return rows.join(sf.broadcast(clients), sf.col("position") >= sf.col("from_position")).select(
        "client", *columns
    )
