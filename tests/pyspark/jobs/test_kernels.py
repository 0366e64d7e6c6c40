"""The kernels say the same of a log as a slow look at every row."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.pyspark.jobs import kernels

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Entry = tuple[int, int, int]  # publisher, sequence, position

_logs = st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 12), st.integers(1, 40)), max_size=40)


def arrays(log: list[Entry]) -> list[np.ndarray]:
    columns = [[entry[i] for entry in log] for i in range(3)]
    return [np.array(column, dtype=np.int64) for column in columns]


def stretches(log: list[Entry], max_jump: int) -> list[list[Entry]]:
    """Cut where the position falls, stays, or jumps."""
    cut: list[list[Entry]] = []
    for entry in log:
        if cut and 0 < entry[2] - cut[-1][-1][2] <= max_jump:
            cut[-1].append(entry)
        else:
            cut.append([entry])
    return cut


def model_run(rows: list[Entry]) -> tuple[int, ...]:
    sequences = [sequence for _, sequence, _ in rows]
    falls = sum(max(sequences[:i]) >= sequences[i] for i in range(1, len(sequences)))
    ends = (rows[0][2], rows[-1][2], min(sequences), max(sequences))
    return (rows[0][0], len(rows), *ends, falls, sequences[-1])


def model(log: list[Entry], max_jump: int) -> list[tuple[int, ...]]:
    runs: list[tuple[int, ...]] = []
    for stretch in stretches(log, max_jump):
        runs += [
            model_run([entry for entry in stretch if entry[0] == publisher])
            for publisher in {entry[0] for entry in stretch}
        ]
    return runs


@given(log=_logs, max_jump=st.integers(1, 10))
def test_a_summary_says_of_each_run_what_its_rows_say(log: list[Entry], max_jump: int) -> None:
    found = kernels.summarize(*arrays(log), max_jump=max_jump)
    rows = [tuple(map(int, row)) for row in zip(*found, strict=True)]
    assert sorted(rows) == sorted(model(log, max_jump))


@given(log=_logs, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_batches_of_any_size_make_the_same_summaries(log: list[Entry], cuts: list[int]) -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("publisher_id", "sequence", "position")])

    def batch(part: list[Entry]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(each) for each in arrays(part)], schema=schema)

    ends = sorted({0, len(log), *(min(cut, len(log)) for cut in cuts)})
    pieces = iter([batch(log[begin:end]) for begin, end in pairwise(ends)])
    summaries = list(kernels.ordered_runs(pieces, max_jump=3))
    rows = [tuple(row.values())[:-1] for each in summaries for row in each.to_pylist()]
    assert sorted(rows) == sorted(model(log, 3))


def test_a_chunk_that_is_full_is_summarised_before_the_next_is_read() -> None:
    count = kernels.CHUNK_ROWS
    column = np.arange(1, count + 1, dtype=np.int64)
    names = ["publisher_id", "sequence", "position"]
    batch = pa.RecordBatch.from_arrays([pa.array(column * 0), *[pa.array(column)] * 2], names)
    summaries = list(kernels.ordered_runs([batch, batch]))
    assert [each.num_rows for each in summaries] == [1, 1]
    assert summaries[0].column(1).to_pylist() == [count]


def test_a_row_without_a_position_is_refused_in_one_line() -> None:
    names = ["publisher_id", "sequence", "position"]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array([1]), pa.nulls(1, pa.int64())], names
    )
    with pytest.raises(ValueError, match="needs the position of every row, but 1 rows have none"):
        list(kernels.ordered_runs([batch]))


def late_rows(log: list[Entry]) -> set[Entry]:
    """Rows whose sequence is not above all before it of their publisher, by position."""
    highest: dict[int, int] = {}
    late: set[Entry] = set()
    for publisher, sequence, position in sorted(log, key=lambda entry: entry[2]):
        if sequence <= highest.get(publisher, -1):
            late.add((publisher, sequence, position))
        highest[publisher] = max(highest.get(publisher, -1), sequence)
    return late


@given(
    messages=st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 12)), max_size=40),
    order=st.permutations(range(8)),
    max_jump=st.sampled_from([1, 6, 100]),
)
def test_every_row_out_of_order_is_in_an_interval_that_knows_what_came_before(
    messages: list[tuple[int, int]], order: list[int], max_jump: int
) -> None:
    log = [(*message, position) for position, message in enumerate(messages, 1)]
    files = [log[5 * n : 5 * n + 5] for n in order]
    runs = kernels.summarize(*arrays([row for file in files for row in file]), max_jump=max_jump)
    found: set[Entry] = set()
    for judged in kernels.judge_runs(runs):
        for first, last, prior in cast("list[tuple[int, int, int | None]]", judged["intervals"]):
            inside = [
                row for row in log if row[0] == judged["publisher_id"] and first <= row[2] <= last
            ]
            # What the interval knows stands for everything before it.
            before = [(row[0], prior, 0) for row in inside[:1] if prior is not None]
            found |= late_rows([*before, *inside])
    assert found == late_rows(log)


@pytest.mark.parametrize("seed", range(3))
def test_rows_out_of_order_are_found_however_files_are_packed_into_tasks(
    spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    log = [
        (rng.randrange(-3, 3), max(1, i // 2 + rng.choice([0, 0, 0, 0, -9, 5])), i + 1)
        for i in range(600)
    ]
    files = [log[i : i + 25] for i in range(0, len(log), 25)]
    rng.shuffle(files)
    rows = spark.createDataFrame(
        [entry for each in files for entry in each],
        "publisher_id BIGINT, sequence BIGINT, position BIGINT",
    ).coalesce(1 + seed % 2)
    # Jumps that are too great to notice join the files of a task, as others of them lie between.
    runs = kernels.runs_of(rows, max_jump=rng.choice([1, 60, 10_000]))
    late = kernels.late_rows(rows, kernels.publishers_of(runs))
    assert {tuple(row) for row in late.select(*rows.columns).collect()} == late_rows(log)


def test_a_log_in_order_is_not_read_again(spark: SparkSession) -> None:
    rows = spark.range(1, 5001).selectExpr(
        "id % 3 AS publisher_id", "id * 2 AS sequence", "id AS position"
    )
    publishers = kernels.publishers_of(kernels.runs_of(rows))
    assert sorted(publishers["rows"].to_pylist()) == [1666, 1667, 1667]
    assert publishers["intervals"].to_pylist() == [[], [], []]


@pytest.mark.parametrize("seed", range(2))
def test_sets_are_compared_by_their_checksums_and_exactly_where_these_differ(
    spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    everything = [(rng.randrange(3), rng.randrange(1, 100_000)) for _ in range(2000)]
    left = {entry for entry in everything if rng.random() < 0.99}
    right = {entry for entry in everything if rng.random() < 0.99}
    ddl = "publisher_id BIGINT, sequence BIGINT"
    frames = [spark.createDataFrame(sorted(each), ddl) for each in (left, right)]
    found = kernels.differences(frames[0], frames[1])
    assert found is not None
    rows = [{(row.publisher_id, row.sequence) for row in each.collect()} for each in found]
    assert rows == [left - right, right - left, set()]


def test_rows_with_another_content_are_told_from_those_that_are_missing(
    spark: SparkSession,
) -> None:
    ddl = "publisher_id BIGINT, sequence BIGINT, data STRING"
    left = spark.createDataFrame([(1, 1, "a"), (1, 2, "b"), (1, 3, None)], ddl)
    right = spark.createDataFrame([(1, 2, "other"), (1, 3, None), (1, 4, "d")], ddl)
    found = kernels.differences(left, right, content=["data"])
    assert found is not None
    assert [[row.sequence for row in each.collect()] for each in found] == [[1], [4], [2]]
    assert kernels.differences(left, left, content=["data"]) is None


def test_equal_sets_have_no_bucket_that_differs(spark: SparkSession) -> None:
    rows = spark.range(1, 50_001).selectExpr("id % 2 AS publisher_id", "id AS sequence")
    assert kernels.differing_buckets(rows, rows.orderBy("sequence")).isEmpty()
    assert kernels.differences(rows, rows.orderBy("sequence")) is None
    # 50 000 sequences in buckets of 16 384, of two publishers
    nothing = rows.where("false")
    assert kernels.differing_buckets(rows, nothing).count() == 8


def test_rows_that_are_there_twice_do_not_hide_each_other(spark: SparkSession) -> None:
    ddl = "publisher_id BIGINT, sequence BIGINT"
    left = spark.createDataFrame([(1, n) for n in (5, 5, 8, 8)], ddl)
    right = spark.createDataFrame([(1, n) for n in (6, 6, 7, 7)], ddl)
    assert kernels.differing_buckets(left, right).count() == 1
