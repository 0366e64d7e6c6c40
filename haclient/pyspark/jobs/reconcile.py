"""The comparison of two instances that replicate each other.

Both instances must hold the same messages of each publisher, in the same order and with the same
content; how the messages of different publishers interleave may differ. The comparison uses the
kernels of the audit: only summaries of both journals are shuffled, and rows are read again where
summaries differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.audit import Audit, Kind, check_columns, journal_facts

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
    runs = [kernels.judge_runs(kernels.runs_of(journal)).persist() for journal in (left, right)]
    ends = [kernels.publishers_of(each).persist() for each in runs]
    for name, publishers in zip(names, ends, strict=True):
        result.facts |= {
            f"{name}_{fact}": value for fact, value in journal_facts(publishers).items()
        }
        result.tables[f"publishers_of_{name}"] = publishers
    comparable = (
        _comparable(left, ends[1], result, names[1], is_live=is_live),
        _comparable(right, ends[0], result, names[0], is_live=is_live),
    )
    differ = kernels.differences(*comparable)
    if differ is not None:
        for missing, other_name in zip(differ, reversed(names), strict=True):
            detail = sf.lit(f"missing in {other_name}")
            result.add(Kind.MISSING_IN_REPLICA, missing.persist(), detail, limit=limit)
    if any(result.facts[f"{name}_suspect_runs"] for name in names):
        _compare_order(result, (left, right), ends, names, limit)
    if content:
        _compare_content(result, left, right, names, limit)
    return result


def _comparable(
    rows: DataFrame, other_ends: DataFrame, result: Audit, other_name: str, *, is_live: bool
) -> DataFrame:
    """The rows that the other instance can have."""
    removed = result.facts[f"{other_name}_first_position"] not in {None, 1}
    if not removed and not is_live:
        return rows
    ends = other_ends.select("publisher_id", "first_sequence", "last_sequence")
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
    ends: Sequence[DataFrame],
    names: tuple[str, str],
    limit: int,
) -> None:
    """Compare row by row the publishers that one of the journals does not have in order."""
    unclear = [each.where("suspect_runs > 0").select("publisher_id") for each in ends]
    chosen = sf.broadcast(unclear[0].union(unclear[1]).distinct())
    by_position = Window.partitionBy("publisher_id").orderBy("position")
    common = ["publisher_id", "sequence"]
    first, second = (
        journal.join(chosen, "publisher_id", "left_semi")
        .join(other.select(*common).distinct(), common, "left_semi")
        .select(*common, "topic", "position", sf.row_number().over(by_position).alias("place"))
        for journal, other in (journals, journals[::-1])
    )
    there = second.select("publisher_id", "place", sf.col("sequence").alias("other_sequence"))
    differ = first.join(there, ["publisher_id", "place"]).where("sequence <> other_sequence")
    # Everything after the first difference differs as well, so one message is named.
    first_one = Window.partitionBy("publisher_id").orderBy("place")
    named = differ.withColumn("n", sf.row_number().over(first_one)).where("n = 1").persist()
    detail = sf.concat(
        sf.lit(f"in this place {names[1]} has sequence "),
        "other_sequence",
        sf.lit(f", {names[0]} has "),
        "sequence",
    )
    result.add(Kind.REPLICA_ORDER, named, detail, limit=limit)


def _compare_content(
    result: Audit, left: DataFrame, right: DataFrame, names: tuple[str, str], limit: int
) -> None:
    """Compare hashes of the content: first of buckets, then of messages in those that differ."""

    def hashed(journal: DataFrame) -> DataFrame:
        content: list[Column] = [sf.col(name) for name in ("topic", *_CONTENT)]
        return journal.select(
            "publisher_id",
            "sequence",
            "topic",
            "position",
            sf.xxhash64(*content).alias("content"),
            kernels.bucket_of(),
        )

    def checksums(rows: DataFrame) -> DataFrame:
        return rows.groupBy("publisher_id", "bucket").agg(
            sf.bit_xor(sf.xxhash64("sequence", "content")).alias("hashes")
        )

    mine, others = hashed(left), hashed(right)
    sums = checksums(mine).withColumnRenamed("hashes", "mine")
    both = ["publisher_id", "bucket"]
    bad = sf.broadcast(sums.join(checksums(others), both).where("mine <> hashes").select(*both))
    theirs = others.join(bad, both, "left_semi").select(
        "publisher_id", "sequence", sf.col("content").alias("other_content")
    )
    differ = (
        mine.join(bad, both, "left_semi")
        .join(theirs, ["publisher_id", "sequence"])
        .where("content <> other_content")
    )
    detail = sf.lit(f"{names[0]} and {names[1]} hold different messages under this bookmark")
    result.add(Kind.CONTENT, differ.persist(), detail, limit=limit)
