"""Kernels of the audit: what a log of many rows says about the order of each publisher.

A window over all rows, publisher by publisher, costs a shuffle and a sort of the whole log. The
kernels avoid both. They shrink the rows to summaries first, and only summaries are shuffled.

**Split summary.** `ordered_runs` reads the rows of one task as they come and yields one summary for
each *run*: the rows of one publisher in one stretch of at most `CHUNK_ROWS` rows in which the
position rises. PySpark packs several files into one task, in any order, so a stretch ends where the
position falls, or rises by more than `max_jump`. `publishers_of` puts the summaries of a publisher
in the order of positions. A run is *suspect* if it holds a row whose sequence is not above all
sequences before it, or if it overlaps another run of its publisher in positions, since then the
order of their rows is not known from the summaries. All other runs are proven to be in order.
`late_rows` reads these again; in a healthy log there are none.

Correctness does not depend on `max_jump`: stretches that were joined although rows of another task
lie between them overlap these, and are read again.

**Bucket checksum.** `differing_buckets` shrinks two sets of (publisher, sequence) to the difference
of their counts, and of their hashes, for each 16 384 sequences of a publisher; equal sets leave
zeros. The rows of the buckets that differ are then compared one by one.

What is small is collected: one row for each publisher, and the buckets that differ. Each further
query is planned for longer than it runs on so little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from haclient.pyspark.jobs.damage import Damage, DamagedJournal
from haclient.pyspark.rows import arrow_schema_of, union_of

Int64s: TypeAlias = npt.NDArray[np.int64]

CHUNK_ROWS: Final = 2**18
"""Rows that are summarised at a time: summaries stay few, and the rows fit into a cache."""

MAX_JUMP: Final = 2**16
"""A greater step of the position is taken for the begin of another file."""

BUCKET_BITS: Final = 14
"""Sequences of one bucket, as a power of two: what is read again for each difference."""


class RunLengths(NamedTuple):
    """Summaries of runs, as columns.

    `not_rising` counts the rows whose sequence is not above all sequences before it in the run;
    `end_sequence` is the one at the highest position.
    """

    publisher_id: Int64s
    rows: Int64s
    first_position: Int64s
    last_position: Int64s
    min_sequence: Int64s
    max_sequence: Int64s
    not_rising: Int64s
    end_sequence: Int64s


ORDER_COLUMNS: Final = ("publisher_id", "sequence", "position")
"""What the order is judged by."""

RUNS_DDL: Final = ", ".join([*(f"{name} BIGINT" for name in RunLengths._fields), "damage STRING"])
"""The summaries of a task; instead of one, a row may say what is damaged."""

_RUNS_SCHEMA: Final = pa.schema(
    [*((name, pa.int64()) for name in RunLengths._fields), ("damage", pa.string())]
)


def summarize(
    publisher_id: Int64s, sequence: Int64s, position: Int64s, *, max_jump: int = MAX_JUMP
) -> RunLengths:
    """Summarise rows in the order in which they were read, as `ordered_runs` does."""
    if not len(position):
        return RunLengths(*(np.empty(0, np.int64) for _ in RunLengths._fields))
    step = np.diff(position)
    stretch = np.concatenate(([0], np.cumsum((step <= 0) | (step > max_jump))))
    order = np.argsort(publisher_id, kind="stable")  # stable: rows of a publisher keep their order
    publishers, sequences = publisher_id[order], sequence[order]
    positions, stretches = position[order], stretch[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (np.diff(publishers) != 0) | (np.diff(stretches) != 0)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(order))
    return RunLengths(
        publishers[starts],
        ends - starts,
        positions[starts],
        positions[ends - 1],
        np.minimum.reduceat(sequences, starts),
        np.maximum.reduceat(sequences, starts),
        _count_not_rising(sequences, is_first, starts, ends),
        sequences[ends - 1],
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
    batches: Iterable[pa.RecordBatch], *, max_jump: int = MAX_JUMP
) -> Iterator[pa.RecordBatch]:
    """Summarise rows (`ORDER_COLUMNS`) as a task reads them; for `DataFrame.mapInArrow`."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= CHUNK_ROWS:
            yield _summary_of(held, max_jump)
            held, count = [], 0
    if count:
        yield _summary_of(held, max_jump)


def _summary_of(batches: list[pa.RecordBatch], max_jump: int) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count:
            raise ValueError(
                f"the audit needs the {name} of every row, but {column.null_count} rows have none: "
                "read the journal's files, or an export of them"
            )
    runs = summarize(*(column.to_numpy() for column in table.columns), max_jump=max_jump)
    arrays = [*map(pa.array, runs), pa.nulls(len(runs.rows), pa.string())]
    return pa.RecordBatch.from_arrays(arrays, schema=_RUNS_SCHEMA)


def damage_rows(damages: Sequence[Damage]) -> pa.RecordBatch:
    """What is damaged, among summaries."""
    rows = [dict.fromkeys(RunLengths._fields, 0) | {"damage": d.encode()} for d in damages]
    return pa.RecordBatch.from_pylist(rows, schema=_RUNS_SCHEMA)


def runs_of(rows: DataFrame, *, max_jump: int = MAX_JUMP) -> DataFrame:
    """The summaries of a DataFrame with the columns `ORDER_COLUMNS`."""
    summarize_task = partial(ordered_runs, max_jump=max_jump)
    return rows.select(*ORDER_COLUMNS).mapInArrow(summarize_task, RUNS_DDL)


PUBLISHERS_DDL: Final = (
    "publisher_id BIGINT, rows BIGINT, first_sequence BIGINT, last_sequence BIGINT, "
    "first_position BIGINT, last_position BIGINT, end_sequence BIGINT, suspect_runs BIGINT, "
    "overlaps BOOLEAN, intervals ARRAY<STRUCT<first_position: BIGINT, last_position: BIGINT, "
    "prior_sequence: BIGINT>>, damage STRING"
)
"""What `publishers_of` has of each publisher; `intervals` is where rows have to be read again."""


def publishers_of(runs: DataFrame) -> pa.Table:
    """One row for each publisher: what all its runs say together.

    Returns:
        The columns of `PUBLISHERS_DDL` but the last one; it is small.

    Raises:
        DamagedJournal: A task has met damage.
    """
    schema = arrow_schema_of(PUBLISHERS_DDL)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held = list(batches)
        table = pa.Table.from_batches(held) if held else _RUNS_SCHEMA.empty_table()
        damaged = table.filter(pc.is_valid(table["damage"])).select(["damage"]).to_pylist()
        table = table.filter(pc.is_null(table["damage"]))
        runs = RunLengths(*(table[name].to_numpy() for name in RunLengths._fields))
        if rows := [*judge_runs(runs), *damaged]:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    # All runs of a publisher meet in one task; one shuffle, of summaries alone.
    found = runs.repartition("publisher_id").mapInArrow(judge, PUBLISHERS_DDL).toArrow()
    damages = found["damage"].drop_null().to_pylist()
    if damages:
        raise DamagedJournal(map(Damage.decode, damages))
    publishers: pa.Table = found.drop_columns(["damage"])
    return publishers


def judge_runs(runs: RunLengths) -> Iterator[dict[str, object]]:
    """What all runs of each publisher say together, as rows of `PUBLISHERS_DDL`; in any order."""
    order = np.lexsort(
        (runs.min_sequence, runs.last_position, runs.first_position, runs.publisher_id)
    )
    ordered = RunLengths(*(column[order] for column in runs))
    starts = np.flatnonzero(np.diff(ordered.publisher_id, prepend=ordered.publisher_id[:1] - 1))
    ends = np.append(starts, len(order))[1:]
    for start, end in zip(starts, ends, strict=True):
        yield _judge_publisher(RunLengths(*(column[start:end] for column in ordered)))


def _judge_publisher(runs: RunLengths) -> dict[str, object]:
    """The row of one publisher, from its runs by position."""
    highest = np.maximum.accumulate(runs.max_sequence)
    reached = np.maximum.accumulate(runs.last_position)
    falls_back, overlaps = np.zeros((2, len(runs.rows)), dtype=np.bool_)
    falls_back[1:] = runs.min_sequence[1:] <= highest[:-1]
    overlaps[1:] = runs.first_position[1:] <= reached[:-1]
    suspects = np.flatnonzero((runs.not_rising > 0) | overlaps | falls_back).tolist()
    starts, ends = runs.first_position.tolist(), runs.last_position.tolist()
    intervals = [(starts[n], ends[n], int(highest[n - 1]) if n else None) for n in suspects]
    if overlaps.any():  # the order of rows is not known from summaries: read everything
        intervals = [(starts[0], int(reached[-1]), None)]
    return {
        "publisher_id": int(runs.publisher_id[0]),
        "rows": int(runs.rows.sum()),
        "first_sequence": int(runs.min_sequence.min()),
        "last_sequence": int(highest[-1]),
        "first_position": starts[0],
        "last_position": int(reached[-1]),
        "end_sequence": int(runs.end_sequence[np.argmax(runs.last_position)]),
        "suspect_runs": len(suspects),
        "overlaps": bool(overlaps.any()),
        "intervals": intervals,
    }


def runs_before(publishers: DataFrame) -> DataFrame:
    """An earlier result of `publishers_of`, as a run of each publisher.

    Nothing in them is suspect, since that was judged then; what follows is judged after them.
    """
    return publishers.selectExpr(
        *("publisher_id", "rows", "first_position", "last_position"),
        *("first_sequence AS min_sequence", "last_sequence AS max_sequence"),
        *("0L AS not_rising", "end_sequence", "CAST(NULL AS STRING) AS damage"),
    )


def late_rows(rows: DataFrame, publishers: pa.Table) -> DataFrame:
    """The rows whose sequence is not above all sequences of its publisher before it.

    They are read again, from the suspect runs alone; or from everything of a publisher whose runs
    overlap.

    Returns:
        Those of `rows`, with the column `highest_before`.
    """
    table = rows.sparkSession.createDataFrame(publishers.select(["publisher_id", "intervals"]))
    edges = sf.broadcast(table.selectExpr("publisher_id AS of_publisher", "inline(intervals)"))
    is_inside = sf.expr(
        "publisher_id = of_publisher AND position BETWEEN first_position AND last_position"
    )
    found = rows.join(edges, is_inside)
    before = (
        Window.partitionBy("publisher_id", "first_position")
        .orderBy("position", "sequence")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # `greatest` ignores nulls: the first row of an interval has only what is before the interval.
    highest = sf.greatest(sf.max("sequence").over(before), sf.col("prior_sequence"))
    late = found.withColumn("highest_before", highest).where("sequence <= highest_before")
    return late.select(*rows.columns, "highest_before")


def bucket_of() -> Column:
    """The bucket of a row."""
    return sf.shiftright("sequence", BUCKET_BITS).alias("bucket")


def differing_buckets(
    left: DataFrame, right: DataFrame, *keys: str, content: Sequence[str] = ()
) -> DataFrame:
    """The buckets in which two sets differ, or which only one has; as for `differences`.

    The rows of the second set count negatively, so equal sets cancel out in one aggregation.
    """
    names = (*keys, "publisher_id")
    digest = sf.xxhash64("publisher_id", "sequence", *content).alias("digest")
    counted = [
        rows.select(*names, bucket_of(), digest, sf.lit(side).cast("BIGINT").alias("side"))
        for rows, side in ((left, 1), (right, -1))
    ]
    # A row that is there twice vanishes from the XOR, so a sum of parts of the hashes is compared
    # too: 40 bits of each, else the sum of a bucket could overflow.
    part = sf.shiftrightunsigned("digest", 24)
    sums = union_of(counted).groupBy(*names, "bucket")
    differing = sums.agg(
        sf.sum("side").alias("rows"),
        sf.bit_xor("digest").alias("hashes"),
        sf.sum(sf.col("side") * part).alias("parts"),
    ).where("rows <> 0 OR hashes <> 0 OR parts <> 0")
    return differing.select(*names, "bucket")


class Differences(NamedTuple):
    """Two sets of (keys, publisher, sequence) that are not equal; the rows keep their columns.

    Attributes:
        only_left: The rows of the first set that the second does not have.
        only_right: The rows of the second set that the first does not have.
        changed: The rows of the first set that the second has with another content.
    """

    only_left: DataFrame
    only_right: DataFrame
    changed: DataFrame


def differences(
    left: DataFrame, right: DataFrame, *keys: str, content: Sequence[str] = ()
) -> Differences | None:
    """Compare two sets by checksums, and row by row where these differ.

    Args:
        left: Rows with the keys, publisher_id, sequence and the content.
        right: Rows with the same columns.
        keys: Columns that are compared besides publisher_id and sequence.
        content: Columns of a row that are compared where both have it.

    Returns:
        `None` when they are equal: then no rows were shuffled.
    """
    names = (*keys, "publisher_id")
    differing = differing_buckets(left, right, *keys, content=content).toArrow()  # few rows
    if not differing.num_rows:
        return None
    buckets = sf.broadcast(left.sparkSession.createDataFrame(differing))
    mine, others = (
        each.withColumn("bucket", bucket_of())
        .withColumn("content", sf.xxhash64(*content) if content else sf.lit(0))
        .join(buckets, [*names, "bucket"], "left_semi")
        .drop("bucket")
        for each in (left, right)
    )
    exact = [*names, "sequence"]

    def contents(rows: DataFrame, name: str) -> DataFrame:
        # A delete on several topics is several records under one bookmark: all are compared.
        return rows.groupBy(*exact).agg(sf.sort_array(sf.collect_set("content")).alias(name))

    both = contents(mine, "contents").join(contents(others, "other_contents"), exact)
    changed = both.where("contents <> other_contents").select(*exact)
    return Differences(
        mine.join(others.select(*exact), exact, "left_anti"),
        others.join(mine.select(*exact), exact, "left_anti"),
        mine.join(changed, exact, "left_semi"),
    )
