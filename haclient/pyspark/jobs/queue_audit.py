"""The audit of message queues: each message has left its queue once, or is still in it.

A queue is a view over the log: a message enters it with its record, and leaves it with a record of
its removal. Both are in the journal. So the audit joins the messages of the underlying topics with
the removals, for each queue, and judges each message:
it was removed once, for a reason; it is *queued*; or it is *undecided*, since the queue may have
begun after it. A removal of which the message is not in the journal is a violation, unless the
segment of the message may have been removed. What the journal cannot tell is in
`docs/pyspark_jobs.md`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs.journals import HEADER_COLUMNS
from haclient.pyspark.jobs.latency import percentiles_of
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.journal.frames import read_journal
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.removals import removals_of
from haclient.pyspark.rows import DataLoss, union_of
from haclient_fake_server.journal.format import RemovalReason

_REGEX_CHARACTERS: Final = frozenset(".*+?[](){}^$|\\")
"""A topic with one of these is a pattern, as in the broker's configuration."""

_KEYS: Final = ("publisher_id", "sequence")
_QUEUE: Final = ("queue", "message_type")
_REASONS: Final = {reason.value: reason.name.lower() for reason in RemovalReason}
OTHER_REASON: Final = "other"
"""A reason that a later version of the broker has added."""

DEAD_LETTER_DDL: Final = (
    "queue STRING, reason STRING, bookmark STRING, deliveries BIGINT, cancels BIGINT"
)
"""The correlation id of a message in a dead-letter topic: JSON, in Base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedQueue:
    """A queue of a broker, as it is configured there.

    Attributes:
        name: Its name.
        topics: Its underlying topics, literal or regular expressions that match anywhere; empty for
            the topic of its own name.
        message_type: Its message type.
        dead_letter: The topic that gets a copy of what expires; empty for none.
        is_from_epoch: It began with the oldest message of the log; otherwise (`recovery_point`),
            messages before the first one that was removed may never have been in it.
    """

    name: str
    topics: tuple[str, ...] = ()
    message_type: str = "json"
    dead_letter: str = ""
    is_from_epoch: bool = True

    def is_fed_by(self, message_type: str, topic: str) -> bool:
        """Whether the messages of a topic enter the queue."""
        if message_type != self.message_type:
            return False
        try:
            return any(_matches(each, topic) for each in self.topics or (self.name,))
        except re.error as error:
            raise UsageError(
                f"queue {self.name!r}: wanted topics or regular expressions, found "
                f"{self.topics!r}: {error}"
            ) from error


def _matches(pattern: str, topic: str) -> bool:
    if _REGEX_CHARACTERS.isdisjoint(pattern):
        return pattern == topic
    return re.search(pattern, topic) is not None


def audit_queues(
    spark: SparkSession, path: str | Path, queues: Sequence[AuditedQueue], *, limit: int = 1000
) -> Audit:
    """Check that each message of some queues has left it once, or is still in it.

    Args:
        spark: A session with our data sources.
        path: The directory of a broker, which all workers can read. An export has no removals.
        queues: The queues.
        limit: How many violations of each kind are named.

    Returns:
        The audit, with the tables `queues` (how the messages of each one ended), `queue_times`
        (seconds from the log of a message to its removal) and, with dead-letter topics,
        `queue_dead_letters` (deliveries and cancels of what expired).

    Raises:
        UsageError: There is no queue, one is given twice, or a topic is malformed.
        DataLoss: Segments were removed while they were read.
    """
    _check(queues)
    log = JournalLog(Path(path))
    result = Audit()
    first_position = log.first_position
    result.facts |= {"first_position": first_position, "is_whole": first_position == 1}
    # The removals end where the log ended now, messages are read later: none of them is missing.
    removals = removals_of(spark, log).persist()
    rows = [(each.name, each.message_type, each.is_from_epoch) for each in queues]
    ddl = "queue STRING, message_type STRING, is_from_epoch BOOLEAN"
    asked = sf.broadcast(spark.createDataFrame(rows, ddl))
    judged = _judged(_entered(spark, log, queues, result), removals, asked).persist()
    result.tables["queues"] = _queues_table(judged, asked)
    result.tables["queue_times"] = _times_table(judged)
    _add_violations(result, spark, log, judged, limit)
    _add_facts(result, removals, queues)
    _add_dead_letters(result, spark, log, queues)
    log.refresh()
    if log.first_position != first_position:
        raise DataLoss(f"{path}: its oldest segments were removed while it was read: run again")
    return result


def _check(queues: Sequence[AuditedQueue]) -> None:
    if not queues:
        raise UsageError("wanted at least one queue, found none: a journal does not define queues")
    names = [(each.message_type, each.name) for each in queues]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the queue {name[1]!r} is given twice")


def _rows(spark: SparkSession, log: JournalLog, message_type: str, *columns: str) -> DataFrame:
    """The rows of segments that are left: of a removed one, only the Parquet file may be there."""
    options = {"messageType": message_type, "startingPosition": max(1, log.first_position)}
    rows: DataFrame = read_journal(spark, log.directory, columns=columns, **options)  # type: ignore[arg-type]  # options of any type
    return rows


def _entered(
    spark: SparkSession, log: JournalLog, queues: Sequence[AuditedQueue], result: Audit
) -> DataFrame:
    """A row for each message of each queue."""
    parts: list[DataFrame] = []
    for kind in sorted({each.message_type for each in queues}):
        feeds: list[tuple[str, str, str]] = []
        for queue in queues:
            if queue.message_type != kind:
                continue
            names = sorted(set(log.topics(queue.is_fed_by).values()))
            fed = [(queue.name, kind, name) for name in names]
            feeds += fed
            if not fed:
                result.not_verified.append(
                    f"the journal has no topic that feeds the queue {queue.name!r}"
                )
        known = spark.createDataFrame(feeds, "queue STRING, message_type STRING, topic STRING")
        # Deletes of records are no messages.
        rows = _rows(spark, log, kind, *HEADER_COLUMNS).where("command = 'publish'")
        parts.append(rows.join(sf.broadcast(known), "topic"))
    return union_of(parts)


def _judged(entered: DataFrame, removals: DataFrame, asked: DataFrame) -> DataFrame:
    """A row for each message of each queue, and for each removal of an unknown one."""
    left = removals.join(asked, [*_QUEUE], "left_semi").selectExpr(
        *_QUEUE, *_KEYS, "STRUCT(position, timestamp, reason) AS removal"
    )
    came = entered.selectExpr(*_QUEUE, *_KEYS, "STRUCT(position, timestamp, topic) AS message")
    judged = (
        left.unionByName(came, allowMissingColumns=True)
        .groupBy(*_QUEUE, *_KEYS)
        .agg(
            sf.min("message").alias("message"),
            sf.min("removal").alias("removal"),
            sf.max("removal").alias("last_removal"),
            sf.count("removal").alias("removals"),
        )
    )
    reasons = sf.create_map(*(sf.lit(each) for pair in _REASONS.items() for each in pair))
    reason = sf.coalesce(reasons[sf.col("removal.reason")], sf.lit(OTHER_REASON))
    begins = judged.where("message IS NOT NULL AND removal IS NOT NULL").groupBy(*_QUEUE)
    edges = asked.where("NOT is_from_epoch").join(
        begins.agg(sf.min("message.position").alias("first_removed")), [*_QUEUE], "left"
    )
    # Of a queue from which nothing was removed yet, everything is undecided.
    never = sf.lit(2**63 - 1)
    edges = edges.select(*_QUEUE, sf.coalesce("first_removed", never).alias("begin"))
    is_before = sf.coalesce(sf.expr("message.position < begin"), sf.lit(False))
    state = (
        sf.when(sf.expr("message IS NULL"), sf.lit("unknown"))
        .when(sf.expr("removal IS NOT NULL"), reason)
        .when(is_before, sf.lit("undecided"))
        .otherwise(sf.lit("queued"))
    )
    reason = sf.when(sf.expr("removal IS NOT NULL"), reason)
    known = judged.join(sf.broadcast(edges), [*_QUEUE], "left")
    return known.withColumns({"state": state, "reason": reason})


def _queues_table(judged: DataFrame, asked: DataFrame) -> DataFrame:
    """How the messages of each queue ended."""
    states = [*_REASONS.values(), OTHER_REASON, "queued", "undecided"]
    counted = judged.groupBy(*_QUEUE).agg(
        sf.count("message").alias("messages"),
        *(sf.count_if(sf.col("state") == state).alias(state) for state in states),
        sf.count_if(sf.col("state") == "unknown").alias("removed_unknown"),
        sf.min(sf.when(sf.col("state") == "queued", sf.col("message.timestamp"))).alias(
            "oldest_queued"
        ),
    )
    table = asked.select(*_QUEUE).join(counted, [*_QUEUE], "left")
    return table.fillna(0, ["messages", *states, "removed_unknown"]).orderBy(*_QUEUE)


def _times_table(judged: DataFrame) -> DataFrame:
    """Percentiles of the time from the log of a message to its removal."""
    both = judged.where("message IS NOT NULL AND removal IS NOT NULL")
    micros = sf.unix_micros("removal.timestamp") - sf.unix_micros("message.timestamp")
    timed = both.withColumn("seconds", micros / 1e6)
    return percentiles_of(timed, *_QUEUE, "reason")


def _add_violations(
    result: Audit, spark: SparkSession, log: JournalLog, judged: DataFrame, limit: int
) -> None:
    whose = sf.concat(sf.lit("queue '"), "queue", sf.lit("': "))

    def add(kind: FindingKind, rows: DataFrame, at: str, *detail: Column | str) -> None:
        shown = rows.select(
            *_KEYS,
            sf.col("message.topic").alias("topic"),
            sf.coalesce("message.position", "removal.position").alias("position"),
            sf.col(f"{at}.timestamp").alias("timestamp"),
            sf.concat(whose, *detail).alias("text"),
        )
        result.add(kind, shown, sf.col("text"), limit=limit)

    add(
        FindingKind.REMOVED_TWICE,
        judged.where("removals > 1"),
        "last_removal",
        sf.lit("removed "),
        sf.col("removals").cast("STRING"),
        sf.lit(" times, first ("),
        "reason",
        sf.lit(") at "),
        sf.col("removal.timestamp").cast("STRING"),
    )
    unknown = _without_message(result, spark, log, judged)
    detail = sf.when(sf.expr("message IS NULL"), sf.lit(") and no message of the queue")).otherwise(
        sf.lit(") before it was logged")
    )
    add(FindingKind.NEVER_QUEUED, unknown, "removal", sf.lit("removed ("), "reason", detail)
    lost = judged.where(sf.col("state") == _REASONS[RemovalReason.LOST])
    why = "its record was not in the journal when it was to be delivered"
    add(FindingKind.LOST_FROM_QUEUE, lost, "removal", sf.lit(why))


def _without_message(
    result: Audit, spark: SparkSession, log: JournalLog, judged: DataFrame
) -> DataFrame:
    """Removals of what was not in the queue before; those that cannot be judged are counted."""
    result.facts["not_compared"] = 0
    early = judged.where("message.position > removal.position")
    unknown = judged.where("message IS NULL")
    if result.facts["is_whole"] or unknown.isEmpty():
        return early.unionByName(unknown)
    # Sequences of a publisher never fall: from the first one on that is left, all would be there.
    rows = read_journal(spark, log.directory, columns=_KEYS, startingPosition=log.first_position)
    firsts = rows.groupBy("publisher_id").agg(sf.min("sequence").alias("first_sequence"))
    joined = unknown.join(firsts, "publisher_id", "left")
    is_known = sf.coalesce(sf.expr("sequence >= first_sequence"), sf.lit(False))
    result.facts["not_compared"] = joined.where(~is_known).count()
    return early.unionByName(joined.where(is_known).select(*judged.columns))


def _add_facts(result: Audit, removals: DataFrame, queues: Sequence[AuditedQueue]) -> None:
    known = {(each.name, each.message_type) for each in queues}
    found = removals.select("queue", "message_type").distinct().collect()
    others = sorted({row["queue"] for row in found if tuple(row) not in known})
    result.facts["queues"] = ", ".join(each.name for each in queues)
    if others:
        result.facts["other_queues"] = ", ".join(others)
    names = ("messages", "queued", "undecided")
    rows = result.tables["queues"].collect()
    result.facts |= {name: sum(row[name] for row in rows) for name in names}


def _add_dead_letters(
    result: Audit, spark: SparkSession, log: JournalLog, queues: Sequence[AuditedQueue]
) -> None:
    """How often what expired was delivered and cancelled, as its copies say."""
    parts: list[DataFrame] = []
    for queue in queues:
        if not queue.dead_letter:
            continue
        rows = _rows(spark, log, queue.message_type, "topic", "correlation_id", "command")
        copies = rows.where((sf.col("topic") == queue.dead_letter) & sf.expr("command='publish'"))
        context = sf.try_to_binary("correlation_id", sf.lit("base64")).cast("STRING")
        read = copies.select(sf.from_json(context, DEAD_LETTER_DDL).alias("copy"))
        fields = read.select("copy.*").where(sf.col("queue") == queue.name)
        parts.append(fields.withColumn("message_type", sf.lit(queue.message_type)))
    if not parts:
        return
    copies = union_of(parts)
    keys = ("queue", "message_type", "reason", "deliveries", "cancels")
    table = copies.groupBy(*keys).agg(sf.count("*").alias("messages"))
    result.tables["queue_dead_letters"] = table.orderBy(*keys)
