"""Kernels of the audit: what a log of many rows says about the order of each publisher.

A window over all rows, publisher by publisher, costs a shuffle and a sort of the whole log. The
kernels avoid both. They shrink the rows to summaries first, and only summaries are shuffled.

**Split summary.** `ordered_runs` reads the rows of one task as they come and yields one summary for
each *run*: the rows of one publisher in one stretch of at most `CHUNK_ROWS` rows in which the
position rises. PySpark packs several files into one task, in any order, so a stretch ends where the
position falls, or rises by more than `max_jump`. `judge_runs` orders the summaries of a publisher
by position. A run is *suspect* if it holds a row whose sequence is not above all sequences before
it, or if it overlaps another run of its publisher in positions, since then the order of their rows
is not known from the summaries. All other runs are proven to be in order. `suspect_intervals` names
where the rows have to be read again; for a healthy log that is nowhere.

Correctness does not depend on `max_jump`: stretches that were joined although rows of another task
lie between them overlap these, and are read again.

**Bucket checksum.** `bucket_checksums` shrinks a set of (publisher, sequence) to a count, an XOR of
hashes and a sum for each 16 384 sequences of a publisher. `differing_buckets` compares two sets;
the rows of the buckets that differ are then compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

Int64s: TypeAlias = npt.NDArray[np.int64]

CHUNK_ROWS: Final = 2**18
"""Rows that are summarised at a time: summaries stay few, and the rows fit into a cache."""

MAX_JUMP: Final = 2**16
"""A greater step of the position is taken for the begin of another file."""

BUCKET_BITS: Final = 14
"""Sequences of one bucket, as a power of two: what is read again for each difference."""


class Runs(NamedTuple):
    """Summaries of runs, as columns; `RUNS_DDL` is the same as a PySpark schema.

    Attributes:
        publisher_id: The publisher of the run.
        rows: How many rows it has.
        first_position: The lowest position.
        last_position: The highest position.
        min_sequence: The lowest sequence.
        max_sequence: The highest sequence.
        not_rising: Rows whose sequence is not above all sequences before it in the run.
    """

    publisher_id: Int64s
    rows: Int64s
    first_position: Int64s
    last_position: Int64s
    min_sequence: Int64s
    max_sequence: Int64s
    not_rising: Int64s


RUNS_DDL: Final = ", ".join(f"{name} BIGINT" for name in Runs._fields)
_RUNS_SCHEMA: Final = pa.schema([(name, pa.int64()) for name in Runs._fields])


def summarize(
    publisher_id: Int64s, sequence: Int64s, position: Int64s, *, max_jump: int = MAX_JUMP
) -> Runs:
    """Summarise rows in the order in which they were read.

    Args:
        publisher_id: Of each row.
        sequence: Of each row.
        position: Of each row.
        max_jump: A run ends where the position falls or rises by more than this.
    """
    if not len(position):
        return Runs(*(np.empty(0, np.int64) for _ in Runs._fields))
    step = np.diff(position)
    stretch = np.concatenate(([0], np.cumsum((step <= 0) | (step > max_jump))))
    order = np.argsort(publisher_id, kind="stable")  # stable: rows of a publisher keep their order
    publishers, sequences = publisher_id[order], sequence[order]
    positions, stretches = position[order], stretch[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (np.diff(publishers) != 0) | (np.diff(stretches) != 0)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))
    return Runs(
        publishers[starts],
        ends - starts,
        positions[starts],
        positions[ends - 1],
        np.minimum.reduceat(sequences, starts),
        np.maximum.reduceat(sequences, starts),
        _count_not_rising(sequences, is_first, starts, ends),
    )


def _count_not_rising(
    sequences: Int64s, is_first: npt.NDArray[np.bool_], starts: Int64s, ends: Int64s
) -> Int64s:
    counts = np.zeros(len(starts), np.int64)
    falls = np.flatnonzero(~is_first[1:] & (np.diff(sequences) <= 0)) + 1
    # A log in order has no such run, so this loop is over the exceptions.
    for run in np.unique(np.searchsorted(starts, falls, side="right") - 1):
        of_run = sequences[starts[run] : ends[run]]
        highest = np.maximum.accumulate(of_run)
        counts[run] = np.count_nonzero(of_run[1:] <= highest[:-1])
    return counts


def ordered_runs(
    *, max_jump: int = MAX_JUMP
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `DataFrame.mapInArrow` over publisher_id, sequence, position, in this order.

    Args:
        max_jump: A run ends where the position falls or rises by more than this.
    """

    def runs_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[tuple[Int64s, ...]] = []
        count = 0
        for batch in batches:
            held.append(tuple(_without_nulls(batch, column) for column in range(3)))
            count += batch.num_rows
            if count >= CHUNK_ROWS:
                yield _summary_of(held, max_jump)
                held, count = [], 0
        if held:
            yield _summary_of(held, max_jump)

    return runs_of


def _without_nulls(batch: pa.RecordBatch, column: int) -> Int64s:
    values = batch.column(column)
    if values.null_count:
        name = batch.schema.names[column]
        raise ValueError(
            f"the audit needs the {name} of every row, but {values.null_count} rows have none: "
            "read the journal's files, or an export of them"
        )
    array: Int64s = values.to_numpy()
    return array


def _summary_of(held: list[tuple[Int64s, ...]], max_jump: int) -> pa.RecordBatch:
    publisher_id, sequence, position = (np.concatenate(each) for each in zip(*held, strict=True))
    runs = summarize(publisher_id, sequence, position, max_jump=max_jump)
    return pa.RecordBatch.from_arrays([pa.array(each) for each in runs], schema=_RUNS_SCHEMA)


def runs_of(rows: DataFrame, *, max_jump: int = MAX_JUMP) -> DataFrame:
    """The summaries of a DataFrame with the columns publisher_id, sequence and position."""
    chosen = rows.select("publisher_id", "sequence", "position")
    return chosen.mapInArrow(ordered_runs(max_jump=max_jump), RUNS_DDL)


def judge_runs(runs: DataFrame) -> DataFrame:
    """Summaries with what comes before them in the log.

    Returns:
        `runs` and the columns `prior_sequence` (the highest sequence of the publisher before this
        run, null for its first run), `overlaps` and `is_suspect`.
    """
    before = (
        Window.partitionBy("publisher_id")
        .orderBy("first_position", "last_position", "min_sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    prior_position = sf.max("last_position").over(before)
    with_prior = runs.withColumns(
        {
            "prior_sequence": sf.max("max_sequence").over(before),
            "overlaps": sf.coalesce(sf.col("first_position") <= prior_position, sf.lit(False)),
        }
    )
    falls_back = sf.coalesce(sf.col("min_sequence") <= sf.col("prior_sequence"), sf.lit(False))
    return with_prior.withColumn(
        "is_suspect", (sf.col("not_rising") > 0) | sf.col("overlaps") | falls_back
    )


def publishers_of(judged: DataFrame) -> DataFrame:
    """One row for each publisher: what all its runs say together."""
    return judged.groupBy("publisher_id").agg(
        sf.sum("rows").alias("rows"),
        sf.min("min_sequence").alias("first_sequence"),
        sf.max("max_sequence").alias("last_sequence"),
        sf.min("first_position").alias("first_position"),
        sf.max("last_position").alias("last_position"),
        sf.count_if("is_suspect").alias("suspect_runs"),
        sf.max("overlaps").alias("overlaps"),
    )


def suspect_intervals(judged: DataFrame, publishers: DataFrame) -> DataFrame:
    """Where rows have to be read again to find those that are not in order.

    Args:
        judged: The result of `judge_runs`.
        publishers: The result of `publishers_of`.

    Returns:
        publisher_id, first_position, last_position, prior_sequence: each suspect run; or everything
        of a publisher whose runs overlap.
    """
    columns = ("publisher_id", "first_position", "last_position", "prior_sequence")
    unclear = publishers.where("overlaps").withColumn("prior_sequence", sf.lit(None).cast("BIGINT"))
    clear = publishers.where("NOT overlaps AND suspect_runs > 0").select("publisher_id")
    runs = judged.where("is_suspect").join(clear, "publisher_id", "left_semi")
    return runs.select(*columns).unionByName(unclear.select(*columns))


def rows_not_rising(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """The rows whose sequence is not above all sequences of its publisher before it.

    Args:
        rows: The rows that `runs_of` has summarised, with any further columns.
        intervals: The result of `suspect_intervals`.

    Returns:
        Those of `rows`, with the column `highest_before`.
    """
    found = rows_in(rows, intervals)
    before = (
        Window.partitionBy("publisher_id", "interval")
        .orderBy("position", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # `greatest` ignores nulls: the first row of an interval has only what is before the interval.
    highest = sf.greatest(sf.max("sequence").over(before), sf.col("prior_sequence"))
    late = found.withColumn("highest_before", highest).where("sequence <= highest_before")
    return late.drop("interval", "prior_sequence")


def rows_in(rows: DataFrame, intervals: DataFrame) -> DataFrame:
    """The rows in intervals of positions, with the columns `interval` and `prior_sequence`."""
    edges = sf.broadcast(
        intervals.select(
            sf.col("publisher_id").alias("of_publisher"),
            sf.col("first_position").alias("interval"),
            sf.col("last_position").alias("until"),
            "prior_sequence",
        )
    )
    is_inside = (
        (sf.col("publisher_id") == sf.col("of_publisher"))
        & (sf.col("position") >= sf.col("interval"))
        & (sf.col("position") <= sf.col("until"))
    )
    return rows.join(edges, is_inside).drop("of_publisher", "until")


def bucket_of() -> Column:
    """The bucket of a row."""
    return sf.shiftright("sequence", BUCKET_BITS).alias("bucket")


def bucket_checksums(rows: DataFrame, *keys: str) -> DataFrame:
    """A count and two checksums for each bucket of a DataFrame with publisher_id and sequence.

    Args:
        rows: The rows; repeated ones count again.
        keys: Further columns that a bucket belongs to.
    """
    return rows.groupBy(*keys, "publisher_id", bucket_of()).agg(
        sf.count("*").alias("rows"),
        sf.bit_xor(sf.xxhash64("publisher_id", "sequence")).alias("hashes"),
        sf.sum("sequence").alias("sequences"),
    )


def differing_buckets(left: DataFrame, right: DataFrame, *keys: str) -> DataFrame:
    """The buckets in which two results of `bucket_checksums` differ, or which only one has.

    Returns:
        The keys, publisher_id and bucket.
    """
    names = (*keys, "publisher_id", "bucket")
    sums = ("rows", "hashes", "sequences")
    other = right.withColumnsRenamed({name: f"right_{name}" for name in (*names, *sums)})
    same_bucket = reduce(
        lambda left, right: left & right,
        (sf.col(name).eqNullSafe(sf.col(f"right_{name}")) for name in names),
    )
    is_equal = reduce(
        lambda left, right: left & right,
        (sf.col(name).eqNullSafe(sf.col(f"right_{name}")) for name in sums),
    )
    differing = left.join(other, same_bucket, "full_outer").where(~is_equal)
    return differing.select(*(sf.coalesce(name, f"right_{name}").alias(name) for name in names))


class Differences(NamedTuple):
    """Two sets of (keys, publisher, sequence) that are not equal; the rows keep their columns.

    Attributes:
        only_left: The rows of the first set that the second does not have.
        only_right: The rows of the second set that the first does not have.
    """

    only_left: DataFrame
    only_right: DataFrame


def differences(left: DataFrame, right: DataFrame, *keys: str) -> Differences | None:
    """Compare two sets by checksums, and row by row where these differ.

    Args:
        left: Rows with the keys, publisher_id and sequence.
        right: Rows with the same columns.
        keys: Columns that are compared besides publisher_id and sequence.

    Returns:
        `None` when they are equal: then no rows were shuffled.
    """
    names = (*keys, "publisher_id")
    sums = bucket_checksums(left, *keys), bucket_checksums(right, *keys)
    differing = differing_buckets(sums[0], sums[1], *keys).persist()  # few rows
    if differing.isEmpty():
        return None
    mine, others = (
        each.withColumn("bucket", bucket_of())
        .join(sf.broadcast(differing), [*names, "bucket"], "left_semi")
        .drop("bucket")
        for each in (left, right)
    )
    exact = [*names, "sequence"]
    return Differences(
        mine.join(others.select(*exact), exact, "left_anti"),
        others.join(mine.select(*exact), exact, "left_anti"),
    )
