"""The comparison of two instances that replicate each other.

Both instances must hold the same messages of each publisher, in the same order and with the same
content; how the messages of different publishers interleave may differ. The comparison uses the
kernels of the audit: only summaries of both journals are shuffled, and rows are read again where
summaries differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.audit import Audit, Kind, check_columns, journal_facts, publishers_table

_CONTENT: Final = ("command", "sow_key", "data")
"""What is compared of each message besides its topic."""


def reconcile(
    left: DataFrame,
    right: DataFrame,
    *,
    names: tuple[str, str] = ("left", "right"),
    content: bool = True,
    is_live: bool = False,
    limit: int = 1000,
) -> Audit:
    """Compare the journals of two instances that replicate each other.

    Both must hold the same messages of each publisher, in the same order and with the same content.
    How the messages of different publishers interleave may differ. Of a publisher whose first
    messages one instance has removed with its oldest segments, only what both can have is compared.

    Args:
        left: The journal of one instance.
        right: The journal of the other instance.
        names: What the instances are called in the result.
        content: Whether to compare topics, commands, keys and payloads as well.
        is_live: The instances are at work: what follows the last message that the other one has of
            a publisher is counted as behind, not as missing.
        limit: How many differences of each kind are named; all are counted.
    """
    wanted = ("topic", "publisher_id", "sequence", "position")
    for name, journal in zip(names, (left, right), strict=True):
        check_columns(name, journal, (*wanted, *(_CONTENT if content else ())))
    result = Audit()
    result.counts = {Kind.MISSING_IN_REPLICA: 0, Kind.REPLICA_ORDER: 0}
    ends = [kernels.publishers_of(kernels.runs_of(each)).toArrow() for each in (left, right)]
    for name, publishers in zip(names, ends, strict=True):
        facts = journal_facts(publishers)
        result.facts |= {f"{name}_{fact}": value for fact, value in facts.items()}
        table = publishers_table(left.sparkSession, publishers)
        result.tables[f"publishers_of_{name}"] = table
    compared = ("topic", *_CONTENT) if content else ()
    differ = kernels.differences(
        _comparable(left, ends[1], result, names[1], is_live=is_live),
        _comparable(right, ends[0], result, names[0], is_live=is_live),
        content=compared,
    )
    if content:
        result.counts[Kind.CONTENT] = 0
    if differ is not None:
        for missing, other_name in zip(differ[:2], reversed(names), strict=True):
            detail = sf.lit(f"missing in {other_name}")
            result.add(Kind.MISSING_IN_REPLICA, missing, detail, limit=limit)
        if content:
            detail = sf.lit(
                f"{names[0]} and {names[1]} hold different messages under this bookmark"
            )
            result.add(Kind.CONTENT, differ.changed, detail, limit=limit)
    if any(result.facts[f"{name}_suspect_runs"] for name in names):
        _compare_order(result, (left, right), ends, names, limit)
    return result


def _comparable(
    rows: DataFrame, other_ends: pa.Table, result: Audit, other_name: str, *, is_live: bool
) -> DataFrame:
    """The rows that the other instance can have."""
    removed = result.facts[f"{other_name}_first_position"] not in {None, 1}
    if not removed and not is_live:
        return rows
    chosen = other_ends.select(["publisher_id", "first_sequence", "last_sequence"])
    ends = rows.sparkSession.createDataFrame(chosen)
    joined = rows.join(sf.broadcast(ends), "publisher_id", "left")
    is_comparable = sf.lit(True)
    if removed:
        is_comparable &= sf.col("sequence") >= sf.col("first_sequence")
    if is_live:
        is_ahead = sf.coalesce(sf.col("sequence") > sf.col("last_sequence"), sf.lit(True))
        result.facts[f"{other_name}_behind"] = joined.where(is_ahead).count()
        is_comparable &= ~is_ahead
    return joined.where(is_comparable).drop("first_sequence", "last_sequence")


def _compare_order(
    result: Audit,
    journals: tuple[DataFrame, DataFrame],
    ends: Sequence[pa.Table],
    names: tuple[str, str],
    limit: int,
) -> None:
    """Compare row by row the publishers that one of the journals does not have in order."""
    unclear = {
        publisher
        for each in ends
        for publisher in each.filter(pc.field("suspect_runs") > 0)["publisher_id"].to_pylist()
    }
    by_position = Window.partitionBy("publisher_id").orderBy("position")
    common = ["publisher_id", "sequence"]
    first, second = (
        journal.where(sf.col("publisher_id").isin(*unclear))
        .join(other.select(*common).distinct(), common, "left_semi")
        .select(*common, "topic", "position", sf.row_number().over(by_position).alias("place"))
        for journal, other in (journals, journals[::-1])
    )
    there = second.select("publisher_id", "place", sf.col("sequence").alias("other_sequence"))
    differ = first.join(there, ["publisher_id", "place"]).where("sequence <> other_sequence")
    # Everything after the first difference differs as well, so one message is named.
    first_one = Window.partitionBy("publisher_id").orderBy("place")
    named = differ.withColumn("n", sf.row_number().over(first_one)).where("n = 1")
    detail = sf.concat(
        sf.lit(f"in this place {names[1]} has sequence "),
        "other_sequence",
        sf.lit(f", {names[0]} has "),
        "sequence",
    )
    result.add(Kind.REPLICA_ORDER, named, detail, limit=limit)
