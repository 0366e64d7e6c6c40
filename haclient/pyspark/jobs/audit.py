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
* Publishes to a topic that the server does not log are acknowledged, and never in the journal. The
  caller says which topics these are, or they are lost.
* A delete (`sow_delete`) is one record for each topic in which it deleted something, all under one
  bookmark, and none if it deleted nothing. So a delete is a duplicate only within a topic, it is
  never lost, and it is no hole where an audit log has it. Bookmark subscriptions do not receive it.

Of a journal whose oldest segments were removed, a publish can be judged if its sequence is not
below those that the journal has of its publisher, or if it was published after the oldest message
that the journal has. The others are counted as not compared.

What was asked for and could not be compared at all is in `Audit.not_verified`: such an audit is not
good, although it has found no violation.

Take the journal after the audit logs: what was acknowledged or received in between would seem lost.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs import kernels
from haclient.pyspark.rows import arrow_schema_of, signed, unsigned


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
"""Columns of the audit logs of publishers; `acked_at` is null until the server has it.

The column `is_delete` may say which of them are deletes."""

_NAMED: Final = 10  # subscriptions that a line names

CLOCK_SKEW_S: Final = 1.0
"""How far the clock of a publisher is expected to be ahead of the server's."""

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
        """The rows of a journal that belong to this subscription: without deletes."""
        if "command" in journal.columns:
            journal = journal.where("command <> 'sow_delete'")
        if self.topic is not None:
            journal = journal.where(sf.col("topic") == self.topic)
        if self.topic_pattern is not None:
            journal = journal.where(sf.col("topic").rlike(self.topic_pattern))
        return journal if self.condition is None else journal.where(sf.expr(self.condition))


class _Unlogged(NamedTuple):
    """The topics that the server does not log.

    Attributes:
        topics: Their names.
        pattern: A regular expression that further ones match anywhere.
    """

    topics: tuple[str, ...]
    pattern: str | None

    def __bool__(self) -> bool:
        return bool(self.topics or self.pattern)

    def is_topic(self) -> Column:
        """Whether the column `topic` is one of them."""
        is_one = sf.col("topic").isin(*self.topics) if self.topics else sf.lit(False)
        return is_one if self.pattern is None else is_one | sf.col("topic").rlike(self.pattern)


@dataclass(slots=True, kw_only=True)
class Audit:
    """The result of an audit.

    Attributes:
        counts: How many violations there are of each kind that was looked for.
        violations: The first ones of each kind, by position.
        facts: Figures about the journal and the logs, by name.
        tables: `publishers`, and with audit logs `latency`, `latency_by_publisher`,
            `latency_by_subscription`, `lag`.
        not_verified: What was asked for and could not be compared, a line for each.
    """

    counts: dict[Kind, int] = field(default_factory=dict[Kind, int])
    violations: list[Violation] = field(default_factory=list[Violation])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: dict[str, DataFrame] = field(default_factory=dict[str, DataFrame])
    not_verified: list[str] = field(default_factory=list[str])

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong, and everything that was asked for could be compared."""
        return not any(self.counts.values()) and not self.not_verified

    @property
    def judgement(self) -> str:
        """The verdict in a word: `good`, `bad`, or `not verified`."""
        if any(self.counts.values()):
            return "bad"
        return "not verified" if self.not_verified else "good"

    def verdict(self) -> dict[str, Any]:
        """What a machine needs to know, as plain JSON values."""
        return {
            "verdict": self.judgement,
            "violations": {str(kind): count for kind, count in self.counts.items()},
            "not_verified": self.not_verified,
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


def audit(  # noqa: PLR0913  # each is a fact of its own
    journal: DataFrame,
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
        journal: The rows of one instance's journal, from its files or from an export.
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
            since then is audited, and the new table continues the old one. Audit logs are for
            audits of the whole.
        limit: How many violations of each kind are named; all are counted.

    Raises:
        UsageError: A DataFrame lacks a column, a subscription is described twice, unlogged topics
            are given without publishes, the journal does not have the message with which the
            earlier audit ended, or that comes with audit logs.
    """
    unlogged = _Unlogged(tuple(unlogged_topics), unlogged_pattern)
    if unlogged and publishes is None:
        raise UsageError("unlogged topics are given, but no publishes: no audit log of a publisher")
    check_columns("journal", journal, ("topic", "publisher_id", "sequence", "position"))
    _check_subscriptions(subscriptions, deliveries)
    if publishes is not None:
        check_columns("publishes", publishes, PUBLISHES)
    if deliveries is not None:
        check_columns("deliveries", deliveries, DELIVERIES)
    if subscriptions:
        check_columns("journal", journal, ("command",))  # to leave out deletes
    if after is not None and (publishes is not None or deliveries is not None):
        raise UsageError("after: what was logged since an audit is compared with no audit logs")
    earlier = None if after is None else _read_earlier(journal, after)
    result = Audit()
    _audit_order(result, journal, earlier, limit)
    if publishes is not None:
        publishes = _with_recorded(publishes, unlogged)
    _audit_holes(result, journal, publishes, dense, earlier, limit)
    if publishes is not None:
        _check_unlogged(result, journal, unlogged)
        _audit_publishes(result, journal, publishes, clock_skew_s, limit)
    if deliveries is not None:
        _audit_receipts(result, deliveries, limit)
        for subscription in _seen(result, deliveries, subscriptions):
            _audit_deliveries(result, journal, deliveries, subscription, limit)
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


class _Earlier(NamedTuple):
    """What an earlier audit has seen of a journal.

    Attributes:
        publishers: Its table `publishers`, local.
        position: The last position that it has seen, 0 for none.
        messages: How many messages it has seen.
    """

    publishers: DataFrame
    position: int
    messages: int

    def later_rows(self, journal: DataFrame) -> DataFrame:
        """What was logged since."""
        return journal.where(sf.col("position") > self.position)

    def higher_rows(self, journal: DataFrame) -> DataFrame:
        """What was logged since and is in order: above the highest sequence that was seen."""
        ends = self.publishers.select("publisher_id", sf.col("last_sequence").alias("seen"))
        rows = self.later_rows(journal).join(sf.broadcast(ends), "publisher_id", "left")
        return rows.where("seen IS NULL OR sequence > seen").drop("seen")

    def with_ends(self, rows: DataFrame) -> DataFrame:
        """Some rows, after one row for each publisher: the highest sequence that was seen."""
        ends = self.publishers.select(
            "publisher_id",
            sf.col("last_sequence").alias("sequence"),
            sf.col("last_position").alias("position"),
        )
        return rows.unionByName(ends, allowMissingColumns=True)


def _read_earlier(journal: DataFrame, after: DataFrame) -> _Earlier:
    """Check that a journal continues the one of an earlier audit.

    Raises:
        UsageError: It does not, or the earlier table lacks a column.
    """
    names = [name for name in arrow_schema_of(kernels.PUBLISHERS_DDL).names if name != "intervals"]
    check_columns("after", after, names)
    table = after.select(*names).toArrow()  # it may be read from files that are replaced afterwards
    local = journal.sparkSession.createDataFrame(table)
    last: int = pc.max(table["last_position"]).as_py() or 0
    if last:
        (end, *_) = table.filter(pc.equal(table["last_position"], last)).to_pylist()
        wanted = (end["publisher_id"], end["end_sequence"])
        at_end = journal.where(sf.col("position") == last).select("publisher_id", "sequence").head()
        if at_end is None or tuple(at_end) != wanted:
            found = "nothing" if at_end is None else bookmark_text(*at_end)
            raise UsageError(
                f"after: the earlier audit ended with {bookmark_text(*wanted)} at position {last}, "
                f"and the journal has {found} there: it is another one, or was cut since; audit "
                "it without `after`"
            )
    return _Earlier(local, last, pc.sum(table["rows"]).as_py() or 0)


def _audit_order(result: Audit, journal: DataFrame, earlier: _Earlier | None, limit: int) -> None:
    """Find duplicates and order breaks, and note what the journal has of each publisher."""
    rows = journal if earlier is None else earlier.later_rows(journal)
    runs = kernels.runs_of(rows)
    if earlier is not None:
        runs = runs.unionByName(kernels.runs_before(earlier.publishers))
        rows = earlier.with_ends(rows)
    publishers = kernels.publishers_of(runs).toArrow()
    result.tables["publishers"] = publishers_table(journal.sparkSession, publishers)
    result.facts |= journal_facts(publishers)
    if earlier is not None:
        result.facts["messages"] -= earlier.messages
        result.facts |= {"messages_before": earlier.messages, "audited_after": earlier.position}
    result.counts |= {Kind.DUPLICATE: 0, Kind.ORDER_BREAK: 0}
    if result.facts["suspect_runs"]:
        intervals = journal.sparkSession.createDataFrame(kernels.suspect_intervals(publishers))
        late = kernels.rows_not_rising(rows, intervals)
        result.add_each(_classify_late(journal, late.persist()), limit)


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
    bookmark = ("publisher_id", "sequence")
    keys = late.select(*bookmark).distinct()
    has_command = "command" in journal.columns
    is_delete = sf.col("command") == "sow_delete" if has_command else sf.lit(False)
    same_bookmark = Window.partitionBy(*bookmark)
    same_row = Window.partitionBy(*bookmark, "position")
    first = (
        journal.select(*bookmark, "position", "topic", is_delete.alias("is_delete"))
        .join(sf.broadcast(keys), [*bookmark], "left_semi")
        .withColumns(
            {
                "first_at": sf.min("position").over(same_bookmark),
                "first_of_topic": sf.min("position").over(Window.partitionBy(*bookmark, "topic")),
                "only_deletes": sf.every("is_delete").over(same_bookmark),
                "copies": sf.count("*").over(same_row),
            }
        )
        .select(*bookmark, "position", "first_at", "first_of_topic", "only_deletes", "copies")
        .distinct()
    )
    # Rows of one position are one record, read more than once: from an export that was written
    # twice. All but one are copies, and this one may be late itself.
    late = late.withColumns(
        {
            "place": sf.row_number().over(same_row.orderBy("sequence")),
            "of_late": sf.count("*").over(same_row),
        }
    )
    is_copy = sf.expr("place > of_late - copies + 1")
    is_again = is_copy | (sf.col("position") > sf.col("first_at"))
    before = sf.when(is_copy, sf.lit("this position is there more than once")).otherwise(
        sf.concat(sf.lit("logged before at position "), "first_at")
    )
    after = sf.concat(sf.lit("logged after sequence "), "highest_before")
    # A delete on several topics is one record for each of them under one bookmark.
    is_part_of_delete = sf.expr(
        "only_deletes AND position = first_of_topic AND position > first_at"
    )
    known = late.join(sf.broadcast(first), [*bookmark, "position"])
    return known.where(is_copy | ~is_part_of_delete).select(
        *late.columns,
        sf.when(is_again, sf.lit(Kind.DUPLICATE)).otherwise(sf.lit(Kind.ORDER_BREAK)).alias("kind"),
        sf.when(is_again, before).otherwise(after).alias("detail"),
    )


def _audit_holes(
    result: Audit,
    journal: DataFrame,
    publishes: DataFrame | None,
    dense: Iterable[str | int],
    earlier: _Earlier | None,
    limit: int,
) -> None:
    """Name the first sequence of each hole of publishers that number without gaps."""
    names = {_signed_id(each): each for each in dense}
    if not names:
        return
    result.counts[Kind.HOLE] = 0
    publishers = result.tables["publishers"].where(sf.col("publisher_id").isin(*names)).collect()
    logged = {row["publisher_id"] for row in publishers}
    result.not_verified += [
        f"the journal has no message of the publisher {name!r}, which is said to have no gaps"
        for publisher, name in names.items()
        if publisher not in logged
    ]
    gaps = [
        row["publisher_id"]
        for row in publishers
        if row["last_sequence"] - row["first_sequence"] + 1 > row["rows"] or row["suspect_runs"]
    ]
    if not gaps:
        return
    rows = journal.select("publisher_id", "sequence", "position")
    if earlier is not None:
        rows = earlier.with_ends(earlier.higher_rows(rows))
    if publishes is not None:
        # They have numbers: a delete that deleted nothing, and a publish that is not logged.
        others = publishes.where("is_delete OR is_unlogged").select("publisher_id", "sequence")
        rows = rows.unionByName(others, allowMissingColumns=True)
    rows = rows.where(sf.col("publisher_id").isin(gaps))
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


def _with_recorded(publishes: DataFrame, unlogged: _Unlogged) -> DataFrame:
    """Publishes with `is_delete` and `is_unlogged`: what the journal need not have of them."""
    knows_deletes = "is_delete" in publishes.columns
    is_delete = sf.coalesce(sf.col("is_delete"), sf.lit(False)) if knows_deletes else sf.lit(False)
    return publishes.withColumns({"is_delete": is_delete, "is_unlogged": unlogged.is_topic()})


def _check_unlogged(result: Audit, journal: DataFrame, unlogged: _Unlogged) -> None:
    """Note topics that are said not to be logged, and are: their losses would not be seen."""
    if not unlogged:
        return
    topics = journal.where(unlogged.is_topic()).select("topic").distinct().limit(_NAMED).collect()
    result.not_verified += [
        f"the topic {topic!r} is said not to be logged, but the journal has messages of it: losses "
        "there were not looked for"
        for topic in sorted(row["topic"] for row in topics)
    ]


def _audit_publishes(
    result: Audit, journal: DataFrame, publishes: DataFrame, clock_skew_s: float, limit: int
) -> None:
    judged = _with_comparable(result, journal, publishes, clock_skew_s)
    is_acked = sf.col("acked_at").isNotNull()
    totals = (
        judged.groupBy("publisher_id")
        .agg(
            sf.count("*").alias("published"),
            sf.count("acked_at").alias("acknowledged"),
            sf.count_if("is_delete").alias("deletes"),
            sf.count_if(is_acked & sf.col("is_unlogged")).alias("unlogged"),
            sf.count_if(is_acked & sf.expr("NOT is_comparable AND NOT is_unlogged")).alias(
                "not_compared"
            ),
        )
        .toArrow()
    )
    names = ("published", "acknowledged", "deletes", "unlogged", "not_compared")
    counts: dict[str, int] = {name: pc.sum(totals[name]).as_py() or 0 for name in names}
    result.facts |= counts
    result.facts["in_flight"] = counts["published"] - counts["acknowledged"]
    result.counts[Kind.LOST] = 0
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
    logged = journal
    if "command" in journal.columns:
        logged = journal.where("command <> 'sow_delete'")
    # The journal has messages of publishers without an audit log; these are not compared.
    audited = journal.sparkSession.createDataFrame(totals.select(["publisher_id"]))
    logged = logged.select("publisher_id", "sequence")
    logged = logged.join(sf.broadcast(audited), "publisher_id", "left_semi")
    differ = kernels.differences(comparable, logged)
    if differ is not None:
        _add_lost(result, journal, differ.only_left, limit)


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
    result.add(
        Kind.LOST,
        lost.join(topics, "topic", "left").withColumn("timestamp", sf.col("published_at")),
        sf.concat(sf.lit("acknowledged at "), "acked_at", sf.lit(", not in the journal"), advice),
        limit=limit,
    )


def _with_comparable(
    result: Audit, journal: DataFrame, publishes: DataFrame, clock_skew_s: float
) -> DataFrame:
    """Publishes with `is_comparable`: whether the journal has not removed them.

    What is published is logged later: so what was published after the oldest message that is left
    was not removed, nor was anything that follows a message that is left of the same publisher.
    """
    if not _is_truncated(result):
        return publishes.withColumn("is_comparable", sf.lit(True))
    check_columns("journal", journal, ("timestamp",))
    oldest = (
        journal.where(sf.col("position") == result.facts["first_position"])
        .select(sf.unix_micros("timestamp").alias("at"))
        .head()
    )
    since_us = (0 if oldest is None else oldest["at"]) + round(clock_skew_s * 1e6)
    edges = result.tables["publishers"].select("publisher_id", "first_sequence")
    is_later = sf.coalesce(sf.expr("sequence >= first_sequence"), sf.lit(False))
    return (
        publishes.join(sf.broadcast(edges), "publisher_id", "left")
        .withColumn("is_comparable", is_later | (sf.unix_micros("published_at") > since_us))
        .drop("first_sequence")
    )


def _is_truncated(result: Audit) -> bool:
    """Whether the journal does not have its beginning: its oldest segments may be removed."""
    return result.facts["first_position"] not in {None, 1}


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
    expected = _expected(result, journal, distinct, subscription)
    result.counts.setdefault(Kind.NOT_LOGGED, 0)
    if not subscription.conflated:
        result.counts.setdefault(Kind.UNDELIVERED, 0)
    differ = kernels.differences(expected, _not_removed(result, distinct), "client")
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


def _not_removed(result: Audit, received: DataFrame) -> DataFrame:
    """What the journal would still have, by sequence: a replay makes times of receipt late."""
    if not _is_truncated(result):
        return received
    edges = sf.broadcast(result.tables["publishers"].select("publisher_id", "first_sequence"))
    joined = received.join(edges, "publisher_id").where("sequence >= first_sequence")
    return joined.drop("first_sequence")


def _expected(
    result: Audit, journal: DataFrame, received: DataFrame, subscription: Subscription
) -> DataFrame:
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
    first = sf.broadcast(edges.select("client", "publisher_id", sf.col("lowest").alias("sequence")))
    begins = (
        journal.select("publisher_id", "sequence", "position")
        .join(first, ["publisher_id", "sequence"])
        .select("client", "position")
    )
    if _is_truncated(result):
        # A client whose first message was removed must have received all that is left.
        kept = result.tables["publishers"].select("publisher_id", "first_sequence")
        is_removed = sf.coalesce(sf.expr("lowest < first_sequence"), sf.lit(True))
        removed = edges.join(sf.broadcast(kept), "publisher_id", "left").where(is_removed)
        position = sf.lit(result.facts["first_position"]).alias("position")
        begins = begins.unionByName(removed.select("client", position))
    clients = begins.groupBy("client").agg(sf.min("position").alias("from_position"))
    return rows.join(sf.broadcast(clients), sf.col("position") >= sf.col("from_position")).select(
        "client", *columns
    )
