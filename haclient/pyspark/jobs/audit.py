"""The audit: was every message logged once, in order, and delivered once, in order?

The journal is what a server has logged. The audit logs of publishers and subscribers say what these
saw: which publishes were acknowledged, which messages were received and discarded. `audit` compares
the three and names each violation with its bookmark. What is a violation, and what is not, is in
`docs/pyspark_jobs.md`.

Of a journal whose oldest segments were removed, a publish can be judged if its sequence is not
below those that the journal has of its publisher, or if it was published after the oldest message
that the journal has. The others are counted as not compared. What was asked for and could not be
compared at all is in `Audit.not_verified`: such an audit is not good, although it has found no
violation.

Take the journal after the audit logs: what was acknowledged or received in between would seem lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.journals import HEADER_COLUMNS, AnyJournal, Journal
from haclient.pyspark.jobs.order import audit_holes, audit_order, journal_facts, read_earlier
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.rows import check_columns

PUBLISHES: Final = ("publisher_id", "sequence", "topic", "published_at", "acked_at")
"""Columns of the audit logs of publishers; `acked_at` is null until the server has it.

The column `is_delete` may say which of them are deletes."""

DELIVERIES: Final = (
    *("client", "sub_id", "publisher_id", "sequence", "received_at", "discarded_at", "ordinal"),
)
"""Columns of the audit logs of subscribers; `ordinal` rises in the order of receipt."""

CLOCK_SKEW_S: Final = 1.0
"""How far the clock of a publisher is expected to be ahead of the server's."""

_NAMED: Final = 10  # subscriptions that a line names
_BOOKMARK: Final = ("publisher_id", "sequence")


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
        """The rows of a journal that belong to this subscription: without deletes."""
        journal = _without_deletes(journal)
        if self.topic is not None:
            journal = journal.where(sf.col("topic") == self.topic)
        if self.topic_pattern is not None:
            journal = journal.where(sf.col("topic").rlike(self.topic_pattern))
        return journal if self.condition is None else journal.where(sf.expr(self.condition))

    def received_in(self, deliveries: DataFrame) -> DataFrame:
        """When each client has received each message first, from the audit logs."""
        rows = deliveries.where(sf.col("sub_id") == self.sub_id)
        if self.client is not None:
            rows = rows.where(sf.col("client") == self.client)
        first = sf.min("received_at").alias("timestamp")
        return rows.groupBy("client", *_BOOKMARK).agg(first)


def audit(  # noqa: PLR0913  # each is a fact of its own
    journal: AnyJournal,
    *,
    publishes: DataFrame | None = None,
    deliveries: DataFrame | None = None,
    subscriptions: Sequence[Subscription] = (),
    dense: Iterable[str | int] = (),
    unlogged_topics: Iterable[str] = (),
    unlogged_pattern: str | None = None,
    clock_skew_s: float = CLOCK_SKEW_S,
    after: DataFrame | None = None,
    limit: int = 1000,
) -> Audit:
    """Compare a journal with itself and with the audit logs of publishers and subscribers.

    Args:
        journal: The directory of one instance, whose order is judged where its files are read; or
            the rows of its journal, from its files or from an export. A directory is known to have
            the beginning of its log; of rows, the first one then has the position 1.
        publishes: The audit logs of publishers; columns `PUBLISHES`.
        deliveries: The audit logs of subscribers; columns `DELIVERIES`.
        subscriptions: What should have been delivered; nothing is undelivered without it.
        dense: Names or ids of publishers whose sequences have no gaps.
        unlogged_topics: Topics that the server does not log: what was published there is not lost.
        unlogged_pattern: A regular expression that further such topics match anywhere.
        clock_skew_s: By how many seconds the clocks of publishers may be ahead of the server's:
            what they published so soon after the oldest message of a journal may have been removed
            with what was before it.
        after: The table `publishers` of an earlier audit of the same journal: only what was logged
            since is audited, without audit logs, and the new table continues the old one.
        limit: How many violations of each kind are named; all are counted.

    Raises:
        UsageError: A DataFrame lacks a column, arguments do not fit together, or the journal does
            not have the message with which the earlier audit ended.
        DataLoss: The oldest segments of the directory were removed while it was read.
    """
    is_unlogged = _is_unlogged(tuple(unlogged_topics), unlogged_pattern)
    _check_request(publishes, deliveries, subscriptions, after, is_unlogged)
    has_conditions = any(each.condition for each in subscriptions)
    result = Audit()
    with result.naming_damage():
        opened = Journal.of(journal, () if has_conditions else HEADER_COLUMNS)
        needed = ["command"] if subscriptions else []  # to leave out deletes
        opened.check_columns("journal", "topic", *kernels.ORDER_COLUMNS, *needed)
        earlier = None if after is None else read_earlier(opened, after)
        audit_order(result, opened, earlier, limit)
        recorded = None if publishes is None else _with_recorded(publishes, is_unlogged)
        audit_holes(result, opened, recorded, dense, earlier, limit)
        if publishes is not None and recorded is not None:
            if is_unlogged is not None:
                _check_unlogged(result, opened.rows.where(is_unlogged))
            logged = _without_deletes(opened.rows) if "is_delete" in publishes.columns else None
            _audit_publishes(result, opened, logged, recorded, clock_skew_s, limit)
        if deliveries is not None:
            _audit_receipts(result, deliveries, limit)
            for each in _seen(result, deliveries, subscriptions):
                _audit_deliveries(result, opened.rows, deliveries, each, limit)
        opened.check_unchanged()
    return result


def _without_deletes(journal: DataFrame) -> DataFrame:
    return journal.where("command <> 'sow_delete'") if "command" in journal.columns else journal


def _check_request(
    publishes: DataFrame | None,
    deliveries: DataFrame | None,
    subscriptions: Sequence[Subscription],
    after: DataFrame | None,
    is_unlogged: Column | None,
) -> None:
    if publishes is not None:
        check_columns("publishes", publishes, PUBLISHES)
    elif is_unlogged is not None:
        raise UsageError("unlogged topics are given, but no publishes: no audit log of a publisher")
    if deliveries is not None:
        check_columns("deliveries", deliveries, DELIVERIES)
    elif subscriptions:
        raise UsageError("subscriptions are given, but no deliveries: no audit log of a subscriber")
    if after is not None and (publishes is not None or deliveries is not None):
        raise UsageError("after: what was logged since an audit is compared with no audit logs")
    names = [(each.client, each.sub_id) for each in subscriptions]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the subscription {name[1]!r} is described twice")


# --- publishers -------------------------------------------------------------------------------


def _is_unlogged(topics: Sequence[str], pattern: str | None) -> Column | None:
    """Whether the column `topic` is one that the server does not log; `None` if it logs all."""
    if not topics and pattern is None:
        return None
    is_one = sf.col("topic").isin(*topics) if topics else sf.lit(False)
    if pattern is not None:
        is_one |= sf.col("topic").rlike(pattern)
    return sf.coalesce(is_one, sf.lit(False))  # a topic that is not known is no such topic


def _with_recorded(publishes: DataFrame, is_unlogged: Column | None) -> DataFrame:
    """Publishes with `is_delete` and `is_unlogged`: what the journal need not have of them."""
    knows_deletes = "is_delete" in publishes.columns
    is_delete = sf.coalesce(sf.col("is_delete"), sf.lit(False)) if knows_deletes else sf.lit(False)
    unlogged = sf.lit(False) if is_unlogged is None else is_unlogged
    return publishes.withColumns({"is_delete": is_delete, "is_unlogged": unlogged})


def _check_unlogged(result: Audit, found: DataFrame) -> None:
    """Note topics that are said not to be logged, and are: their losses would not be seen."""
    topics = found.select("topic").distinct().limit(_NAMED).collect()
    result.not_verified += [
        f"the topic {topic!r} is said not to be logged, but the journal has messages of it: losses "
        "there were not looked for"
        for topic in sorted(row["topic"] for row in topics)
    ]


def _audit_publishes(
    result: Audit,
    journal: Journal,
    logged: DataFrame | None,
    publishes: DataFrame,
    clock_skew_s: float,
    limit: int,
) -> None:
    """Name acknowledged publishes that are not among the `logged` rows; by default, all rows."""
    judged = _with_comparable(result, journal, publishes, clock_skew_s)
    is_acked = sf.col("acked_at").isNotNull()
    is_left_out = sf.expr("NOT is_comparable AND NOT is_unlogged")
    counted = {
        "published": sf.count("*"),
        "acknowledged": sf.count("acked_at"),
        "deletes": sf.count_if("is_delete"),
        "unlogged": sf.count_if(is_acked & sf.col("is_unlogged")),
        "not_compared": sf.count_if(is_acked & is_left_out),
    }
    columns = [count.alias(name) for name, count in counted.items()]
    totals = judged.groupBy("publisher_id").agg(*columns).toArrow()
    counts: dict[str, int] = {name: pc.sum(totals[name]).as_py() or 0 for name in counted}
    result.facts |= counts
    result.facts["in_flight"] = counts["published"] - counts["acknowledged"]
    result.counts[FindingKind.LOST] = 0
    if not counts["published"]:
        result.not_verified.append("the audit logs of publishers have no publish")
        return
    left_out = counts["not_compared"] + counts["unlogged"]
    if 0 < counts["acknowledged"] == left_out:
        why = (
            "they are from before the oldest message of the journal, of which segments were removed"
            if counts["not_compared"]
            else "they are to topics that are said not to be logged"
        )
        result.not_verified.append(
            f"none of the {left_out} acknowledged publishes could be compared: {why}"
        )
    # Whether a delete has a record depends on what it found, so it cannot be told to be lost.
    comparable = judged.where(
        is_acked & sf.expr("is_comparable AND NOT is_delete AND NOT is_unlogged")
    )
    # The journal has messages of publishers without an audit log; these are not compared.
    audited = journal.spark.createDataFrame(totals.select(["publisher_id"]))
    logged = (
        (journal.rows if logged is None else logged)
        .select(*_BOOKMARK)
        .join(sf.broadcast(audited), "publisher_id", "left_semi")
    )
    differ = kernels.differences(comparable, logged)
    if differ is not None:
        _add_lost(result, journal.rows, differ.only_left, limit)


def _add_lost(result: Audit, journal: DataFrame, lost: DataFrame, limit: int) -> None:
    """Add what is lost; where nothing of its topic is in the journal, the topic may be unlogged."""
    topics = journal.select("topic").distinct().withColumn("has_messages", sf.lit(True))
    advice = sf.when(
        sf.col("has_messages").isNull(),
        sf.lit(
            ", which has no message of this topic: if the server does not log it, say so "
            "(unlogged_topics, --unlogged)"
        ),
    ).otherwise("")
    rows = lost.join(topics, "topic", "left").withColumn("timestamp", sf.col("published_at"))
    detail = sf.concat(
        sf.lit("acknowledged at "), "acked_at", sf.lit(", not in the journal"), advice
    )
    result.add(FindingKind.LOST, rows, detail, limit=limit)


def _with_comparable(
    result: Audit, journal: Journal, publishes: DataFrame, clock_skew_s: float
) -> DataFrame:
    """Publishes with `is_comparable`: whether the journal has not removed them.

    What is published is logged later: so what was published after the oldest message that is left
    was not removed, nor was anything that follows a message that is left of the same publisher.
    """
    if result.facts["is_whole"]:
        return publishes.withColumn("is_comparable", sf.lit(True))
    journal.check_columns("journal", "timestamp")
    first = result.facts["first_position"] or 0
    oldest = journal.rows_from(first, first).select(sf.unix_micros("timestamp").alias("at")).head()
    since_us = (0 if oldest is None else oldest["at"]) + round(clock_skew_s * 1e6)
    edges = result.tables["publishers"].select("publisher_id", "first_sequence")
    is_later = sf.coalesce(sf.expr("sequence >= first_sequence"), sf.lit(False))
    is_comparable = is_later | (sf.unix_micros("published_at") > since_us)
    joined = publishes.join(sf.broadcast(edges), "publisher_id", "left")
    return joined.withColumn("is_comparable", is_comparable).drop("first_sequence")


# --- subscribers ------------------------------------------------------------------------------


def _seen(
    result: Audit, deliveries: DataFrame, subscriptions: Sequence[Subscription]
) -> list[Subscription]:
    """Those that an audit log has; of the others it is noted that nothing could be compared."""
    if not result.facts["received"]:
        result.not_verified.append("the audit logs of subscribers have no delivery")
        return []
    if not subscriptions:
        return []
    pairs = deliveries.select("client", "sub_id").distinct().collect()
    names = sorted((row["client"], row["sub_id"]) for row in pairs)
    found: list[Subscription] = []
    for each in subscriptions:
        if any(each.sub_id == sub_id and each.client in {None, client} for client, sub_id in names):
            found.append(each)
            continue
        whose = "" if each.client is None else f" of {each.client!r}"
        known = ", ".join(f"{sub_id!r} of {client!r}" for client, sub_id in names[:_NAMED])
        more = ", ..." if len(names) > _NAMED else ""
        result.not_verified.append(
            "the audit logs of subscribers have no delivery to the subscription "
            f"{each.sub_id!r}{whose}; they have: {known}{more}"
        )
    return found


def _audit_receipts(result: Audit, deliveries: DataFrame, limit: int) -> None:
    """Judge order and repetition of what was received, without the journal."""
    # The order of receipt is to a publisher of a subscription what the position is in a journal.
    receiver = sf.xxhash64("client", "sub_id", "publisher_id")
    received = deliveries.withColumn("receiver", receiver)
    rows = received.select(
        sf.col("receiver").alias("publisher_id"), "sequence", sf.col("ordinal").alias("position")
    )
    receivers = kernels.publishers_of(kernels.runs_of(rows))
    counted = (FindingKind.RECEIVED_TWICE, FindingKind.RECEIVED_OUT_OF_ORDER)
    result.counts |= dict.fromkeys(counted, 0)
    facts = journal_facts(receivers)
    result.facts |= {"received": facts["messages"], "redelivered": 0}
    if facts["suspect_runs"]:
        late = kernels.late_rows(rows, receivers).toDF(
            "receiver", "sequence", "ordinal", "highest_before"
        )
        counts = result.add_each(_classify_receipts(received, late.persist()), limit)
        result.facts["redelivered"] = counts.get("", 0)


def _classify_receipts(received: DataFrame, late: DataFrame) -> DataFrame:
    """Tell receipts after a discard, redeliveries and late messages apart."""
    keys = ("receiver", "sequence")
    before = Window.partitionBy(*keys).orderBy("ordinal").rowsBetween(Window.unboundedPreceding, -1)
    receipts = (
        received.join(sf.broadcast(late.select(*keys).distinct()), list(keys), "left_semi")
        .withColumns(
            {
                "first_received": sf.min("received_at").over(before),
                "discarded_before": sf.min("discarded_at").over(before),
                "timestamp": sf.col("received_at"),
            }
        )
        .join(late, [*keys, "ordinal"])
    )
    is_again = sf.col("first_received").isNotNull()
    # Received again and not discarded before, it is a redelivery: no violation.
    is_twice = sf.col("discarded_before") <= sf.col("received_at")
    kind = sf.when(~is_again, sf.lit(FindingKind.RECEIVED_OUT_OF_ORDER)).when(
        is_twice, sf.lit(FindingKind.RECEIVED_TWICE)
    )
    texts = sf.lit("received first at "), sf.lit(", discarded at ")
    twice = sf.concat(texts[0], "first_received", texts[1], "discarded_before")
    after = sf.concat(sf.lit("received after sequence "), "highest_before")
    detail = sf.when(is_again, twice).otherwise(after).alias("detail")
    return receipts.select(*received.columns, "timestamp", kind.alias("kind"), detail)


def _audit_deliveries(
    result: Audit,
    journal: DataFrame,
    deliveries: DataFrame,
    subscription: Subscription,
    limit: int,
) -> None:
    """Compare what one subscription received with what the journal has for it."""
    received = subscription.received_in(deliveries).persist()
    expected = _expected(result, journal, received, subscription)
    if not result.facts["is_whole"]:
        # What the journal would still have, by sequence: a replay makes times of receipt late.
        edges = result.tables["publishers"].select("publisher_id", "first_sequence")
        joined = received.join(sf.broadcast(edges), "publisher_id")
        received = joined.where("sequence >= first_sequence").drop("first_sequence")
    result.counts.setdefault(FindingKind.NOT_LOGGED, 0)
    if not subscription.conflated:
        result.counts.setdefault(FindingKind.UNDELIVERED, 0)
    differ = kernels.differences(expected, received, "client")
    if differ is None:
        return
    sub_id = sf.lit(subscription.sub_id)
    unknown = differ.only_right.join(journal.select(*_BOOKMARK), [*_BOOKMARK], "left_anti")
    detail = sf.lit("received, not in the journal")
    result.add(FindingKind.NOT_LOGGED, unknown.withColumn("sub_id", sub_id), detail, limit=limit)
    if not subscription.conflated:
        missing = differ.only_left.withColumn("sub_id", sub_id)
        detail = sf.lit("logged for this subscription, not received")
        result.add(FindingKind.UNDELIVERED, missing, detail, limit=limit)


def _expected(
    result: Audit, journal: DataFrame, received: DataFrame, subscription: Subscription
) -> DataFrame:
    """The rows of the journal that each client of a subscription must have received."""
    ends = received.groupBy("client", "publisher_id").agg(
        sf.min("sequence").alias("lowest"), sf.max("sequence").alias("highest")
    )
    edges = journal.sparkSession.createDataFrame(ends.toArrow())  # it is needed several times
    rows = subscription.expected_in(journal)
    names = ("topic", *_BOOKMARK, "position", "timestamp")
    columns = ["client", *(name for name in names if name in journal.columns)]
    if not subscription.complete:
        chosen = rows.join(sf.broadcast(edges), "publisher_id")
        return chosen.where("sequence BETWEEN lowest AND highest").select(*columns)
    # From the first message that a client has received, whoever published it.
    first = edges.select("client", "publisher_id", sf.col("lowest").alias("sequence"))
    known = journal.select(*_BOOKMARK, "position").join(sf.broadcast(first), [*_BOOKMARK])
    begins = known.select("client", "position")
    if not result.facts["is_whole"]:
        # A client whose first message was removed must have received all that is left.
        kept = result.tables["publishers"].select("publisher_id", "first_sequence")
        is_removed = sf.coalesce(sf.expr("lowest < first_sequence"), sf.lit(True))
        removed = edges.join(sf.broadcast(kept), "publisher_id", "left").where(is_removed)
        position = sf.lit(result.facts["first_position"]).alias("position")
        begins = begins.unionByName(removed.select("client", position))
    clients = begins.groupBy("client").agg(sf.min("position").alias("from_position"))
    is_due = sf.col("position") >= sf.col("from_position")
    return rows.join(sf.broadcast(clients), is_due).select(*columns)
