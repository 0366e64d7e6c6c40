"""The comparison of two instances that replicate each other.

The comparison uses the kernels of the audit: only summaries of both journals are shuffled, and rows
are read again where summaries differ. What is compared is decided by sequence and by time. Each
instance has its own clock, and logs a message when it gets it: so two instances log one message
within `allowed_lag_s` of each other.

* Of an instance that has removed its oldest segments, all is compared that follows a message that
  is left of the same publisher, or was logged later than the oldest message that is left. So a
  publisher of which nothing is left must have been silent since.
* Of running instances, what follows the last message that the other one has of the publisher, and
  was logged later than the newest message that the other one has, is *behind*. Everything else
  that the other one lacks is missing, however much it is.

A publisher of which nothing could be compared is in `Audit.not_verified`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.journals import HEADER_COLUMNS, AnyJournal, Journal
from haclient.pyspark.jobs.order import journal_facts
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.rows import check_columns, only_row, unsigned
from haclient_stores.checks import check_seconds

ALLOWED_LAG_S: Final = 10.0
"""How much later an instance may log a message than the other one, by its own clock."""

_NAMED: Final = 10  # publishers that a line names
_CONTENT: Final = ("command", "sow_key", "data")
"""What is compared of each message besides its topic."""


def reconcile(  # noqa: PLR0913  # each is a fact of its own
    left: AnyJournal,
    right: AnyJournal,
    *,
    names: tuple[str, str] = ("left", "right"),
    content: bool = True,
    is_live: bool = False,
    allowed_lag_s: float = ALLOWED_LAG_S,
    limit: int = 1000,
) -> Audit:
    """Compare the journals of two instances that replicate each other.

    Both must hold the same messages of each publisher, in the same order and with the same content.
    How the messages of different publishers interleave may differ. What one instance has removed
    with its oldest segments is counted as not compared; a publisher of which nothing could be
    compared is in `not_verified`.

    Args:
        left: The directory of one instance, or the rows of its journal.
        right: That of the other instance.
        names: What the instances are called in the result.
        content: Whether to compare topics, commands, keys and payloads as well.
        is_live: The instances are running: what is newer than everything that the other one has is
            counted as behind, not as missing.
        allowed_lag_s: By how many seconds one instance may log a message later than the other one,
            with the difference of their clocks. It extends what counts as behind, and what may have
            been removed with the oldest segments.
        limit: How many differences of each kind are named; all are counted.

    Raises:
        UsageError: A DataFrame lacks a column, or the lag is negative.
        DataLoss: The oldest segments of a directory were removed while it was read.
    """
    check_seconds("allowed_lag_s", allowed_lag_s, zero=True)
    compared = ("topic", *_CONTENT) if content else ("topic",)
    columns = (*HEADER_COLUMNS, *_CONTENT[1:]) if content else HEADER_COLUMNS
    result = Audit()
    with result.naming_damage():
        journals = [Journal.of(each, columns) for each in (left, right)]
        for name, journal in zip(names, journals, strict=True):
            journal.check_columns(name, *kernels.ORDER_COLUMNS, *compared)
        result.counts = {FindingKind.MISSING_IN_REPLICA: 0, FindingKind.REPLICA_ORDER: 0}
        sides = tuple(_Side.of(result, *each) for each in zip(names, journals, strict=True))
        lag_us = round(allowed_lag_s * 1e6)
        differ = kernels.differences(
            _comparable(result, *sides, lag_us=lag_us, is_live=is_live),
            _comparable(result, *sides[::-1], lag_us=lag_us, is_live=is_live),
            content=compared if content else (),
        )
        _add_differences(result, differ, names, content=content, limit=limit)
        if any(result.facts[f"{name}_suspect_runs"] for name in names):
            _compare_order(result, sides, limit)
        for journal in journals:
            journal.check_unchanged()
    return result


def _add_differences(
    result: Audit,
    differ: kernels.Differences | None,
    names: tuple[str, str],
    *,
    content: bool,
    limit: int,
) -> None:
    if content:
        result.counts[FindingKind.CONTENT] = 0
    if differ is None:
        return
    for missing, other_name in zip(differ[:2], reversed(names), strict=True):
        detail = sf.lit(f"missing in {other_name}")
        result.add(FindingKind.MISSING_IN_REPLICA, missing, detail, limit=limit)
    if content:
        detail = sf.lit(f"{' and '.join(names)} hold different messages under this bookmark")
        result.add(FindingKind.CONTENT, differ.changed, detail, limit=limit)


class _Side(NamedTuple):
    """One of the two instances: its name, its rows, and what it has of each publisher."""

    name: str
    rows: DataFrame
    ends: pa.Table

    @classmethod
    def of(cls, result: Audit, name: str, journal: Journal) -> _Side:
        """Read what a journal has of each publisher, and add it to the result."""
        ends = kernels.publishers_of(journal.runs())
        facts = journal_facts(ends, is_whole=journal.is_whole)
        result.facts |= {f"{name}_{fact}": value for fact, value in facts.items()}
        table = journal.spark.createDataFrame(ends.drop_columns(["intervals"]))
        result.tables[f"publishers_of_{name}"] = table
        return cls(name, journal.rows, ends)


def _comparable(
    result: Audit, side: _Side, other: _Side, *, lag_us: int, is_live: bool
) -> DataFrame:
    """The rows of one instance that the other one must have; the others are counted."""
    is_shortened = not result.facts[f"{other.name}_is_whole"]
    if not is_shortened and not is_live:
        return side.rows
    for each in (side, other):
        check_columns(each.name, each.rows, ("timestamp",))
    at = sf.unix_micros("timestamp")
    span = only_row(other.rows.agg(sf.min(at).alias("oldest"), sf.max(at).alias("newest")))
    edges = other.ends.select(["publisher_id", "first_sequence", "last_sequence"])
    known = sf.broadcast(side.rows.sparkSession.createDataFrame(edges))
    is_removed = is_behind = sf.lit(False)
    if is_shortened:
        is_kept = sf.coalesce(sf.expr("sequence >= first_sequence"), sf.lit(False))
        is_removed = ~is_kept & (at <= span["oldest"] + lag_us)
    if is_live:
        is_ahead = sf.coalesce(sf.expr("sequence > last_sequence"), sf.lit(True))
        is_newer = sf.lit(True) if span["newest"] is None else at > span["newest"] - lag_us
        is_behind = ~is_removed & is_ahead & is_newer
    judged = side.rows.join(known, "publisher_id", "left").withColumns(
        {"is_removed": is_removed, "is_behind": is_behind}
    )
    counted = judged.groupBy("publisher_id").agg(
        sf.count("*").alias("rows"),
        sf.count_if("is_removed").alias("removed"),
        sf.count_if("is_behind").alias("behind"),
    )
    counts = counted.toArrow()
    if is_live:
        result.facts[f"{other.name}_behind"] = _sum(counts["behind"])
    if is_shortened:
        result.facts[f"{other.name}_not_compared"] = _sum(counts["removed"])
    _note_not_compared(result, side.name, other.name, counts, span["oldest"], lag_us)
    added = ("first_sequence", "last_sequence", "is_removed", "is_behind")
    return judged.where("NOT is_removed AND NOT is_behind").drop(*added)


def _note_not_compared(
    result: Audit, name: str, other_name: str, counts: pa.Table, oldest_us: int, lag_us: int
) -> None:
    """Note the publishers of which nothing could be compared, since segments were removed."""
    total, removed = _sum(counts["rows"]), _sum(counts["removed"])
    if 0 < total == removed + _sum(counts["behind"]):
        result.not_verified.append(
            f"none of the {total} messages of {name} could be compared with {other_name}"
        )
        return
    none_left = (pc.field("removed") > 0) & (
        pc.field("removed") + pc.field("behind") == pc.field("rows")
    )
    publishers = sorted(map(unsigned, counts.filter(none_left)["publisher_id"].to_pylist()))
    if publishers:
        begin = datetime.fromtimestamp(oldest_us / 1e6, UTC)
        named = ", ".join(map(str, publishers[:_NAMED]))
        more = f" and {len(publishers) - _NAMED} more" if len(publishers) > _NAMED else ""
        result.not_verified.append(
            f"{other_name} begins at {begin:%Y-%m-%dT%H:%M:%SZ}: what {name} has of these "
            f"publishers is older, or at most {lag_us / 1e6:g} seconds younger, and could not be "
            f"compared: {named}{more}"
        )


def _sum(column: pa.ChunkedArray) -> int:
    total: int | None = pc.sum(column).as_py()
    return total or 0


def _compare_order(result: Audit, sides: Sequence[_Side], limit: int) -> None:
    """Compare row by row the publishers that one of the journals does not have in order."""
    unclear = {
        publisher
        for side in sides
        for publisher in side.ends.filter(pc.field("suspect_runs") > 0)["publisher_id"].to_pylist()
    }
    by_position = Window.partitionBy("publisher_id").orderBy("position")
    common = ["publisher_id", "sequence"]
    first, second = (
        side.rows.where(sf.col("publisher_id").isin(*unclear))
        .join(other.rows.select(*common).distinct(), common, "left_semi")
        .select(*common, "topic", "position", sf.row_number().over(by_position).alias("place"))
        for side, other in (sides, sides[::-1])
    )
    there = second.select("publisher_id", "place", sf.col("sequence").alias("other_sequence"))
    differ = first.join(there, ["publisher_id", "place"]).where("sequence <> other_sequence")
    # Everything after the first difference differs as well, so one message is named.
    first_one = Window.partitionBy("publisher_id").orderBy("place")
    named = differ.withColumn("n", sf.row_number().over(first_one)).where("n = 1")
    detail = sf.concat(
        sf.lit(f"in this place {sides[1].name} has sequence "),
        "other_sequence",
        sf.lit(f", {sides[0].name} has "),
        "sequence",
    )
    result.add(FindingKind.REPLICA_ORDER, named, detail, limit=limit)
