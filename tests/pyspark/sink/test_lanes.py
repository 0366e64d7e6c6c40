"""Lanes without a session: order, sequences, digests, fences and the guard."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.pyspark.sink.lanes import (
    LANE_COLUMN,
    MAX_BATCH_ID,
    MAX_ROWS,
    ChangedContent,
    Fenced,
    LaneGuard,
    check_count,
    check_fence,
    check_lane,
    check_resume,
    digest_of,
    lane_name,
    ordered,
    rows_done,
    sequence_before,
    without_rows,
)
from haclient.session.connection_state import MAX_SEEN_SEQUENCE


def test_a_lane_is_a_publisher_of_its_own() -> None:
    assert lane_name("spark", "0a-1b", 3) == "spark-0a-1b-3"


@given(batch=st.integers(0, MAX_BATCH_ID), row=st.integers(1, MAX_ROWS))
def test_sequences_tell_batch_and_row_and_never_pass_what_a_server_may_name(
    batch: int, row: int
) -> None:
    sequence = sequence_before(batch) + row
    assert sequence <= MAX_SEEN_SEQUENCE
    assert rows_done(batch, sequence) == row
    if batch < MAX_BATCH_ID:
        assert sequence <= sequence_before(batch + 1)
        assert rows_done(batch + 1, sequence) == 0


@pytest.mark.parametrize("batch", [-1, MAX_BATCH_ID + 1])
def test_a_batch_that_no_sequence_can_have_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match="a batch id is 0 to"):
        sequence_before(batch)


@pytest.mark.row("SK5")
def test_the_fence_lets_a_batch_be_repeated_and_none_before_it() -> None:
    last_of_4 = sequence_before(4) + 10
    check_fence("p", 4, last_of_4)
    check_fence("p", 5, last_of_4)
    with pytest.raises(Fenced, match="p has published batch 4 already, and is to publish batch 3"):
        check_fence("p", 3, last_of_4)
    with pytest.raises(Fenced):
        check_fence("p", 3, sequence_before(4) + 1)
    check_fence("p", 3, sequence_before(4) - 1)


def test_a_batch_that_has_become_shorter_is_refused() -> None:
    check_count("p", 2, 10, sequence_before(2) + 10)
    with pytest.raises(ChangedContent, match="there were 10 rows, and there are 9 now"):
        check_count("p", 2, 9, sequence_before(2) + 10)
    with pytest.raises(UsageError, match="more lanes"):
        check_count("p", 2, MAX_ROWS + 1, 0)


@pytest.mark.row("SK4")
def test_a_digest_tells_whether_all_rows_are_the_same() -> None:
    digest = digest_of("t", [b"a", b"b", b"c"])
    check_resume("p", 2, digest, found=digest)
    changed = digest_of("t", [b"a", b"b", b"x"])
    with pytest.raises(ChangedContent, match="their digest is another one"):
        check_resume("p", 2, changed, found=digest)


def test_a_digest_is_also_of_the_keys_which_are_all_that_a_delete_has() -> None:
    first, second = (digest_of("t", [b"", b""], keys) for keys in (["a", "b"], ["a", "c"]))
    assert first != second


def test_many_rows_have_a_digest_of_all_of_them() -> None:
    bodies = [b"%d" % number for number in range(3000)]
    assert digest_of("t", bodies) == digest_of(["t"], bodies) != digest_of("t", bodies[:-1])
    for place in (0, 1023, 1024, 2999):
        changed = [*bodies[:place], b"x", *bodies[place + 1 :]]
        assert digest_of("t", changed) != digest_of("t", bodies)


ROWS = st.lists(st.tuples(st.sampled_from(["a", "ab", ""]), st.binary(max_size=3)), max_size=5)


@given(first=ROWS, second=ROWS)
def test_digests_are_equal_for_equal_rows_alone(
    first: list[tuple[str, bytes]], second: list[tuple[str, bytes]]
) -> None:
    def digest(rows: list[tuple[str, bytes]]) -> str:
        return digest_of([each[0] for each in rows], [each[1] for each in rows])

    assert (digest(first) == digest(second)) == (first == second)


def table(rows: list[tuple[int | None, bytes, str]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    made: pa.Table = pa.table(
        {
            "n": pa.array(columns[0], pa.int64()),
            "data": pa.array(columns[1], pa.binary()),
            "topic": pa.array(columns[2], pa.string()),
        }
    )
    return made


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(0, 2), st.binary(max_size=2), st.sampled_from(["a", "b"])
        ),
        max_size=20,
    ),
    seed=st.integers(0, 2**16),
)
def test_the_order_depends_on_nothing_but_the_rows(
    rows: list[tuple[int | None, bytes, str]], seed: int
) -> None:
    shuffled = random.Random(seed).sample(rows, len(rows))  # a test's shuffle
    found = ordered(table(rows), ["n"])
    assert found.equals(ordered(table(shuffled), ["n"]))
    numbers = [each for each in found["n"].to_pylist() if each is not None]
    assert numbers == sorted(numbers)


def test_a_lane_may_have_more_of_a_column_than_offsets_of_32_bits_address() -> None:
    found = ordered(table([(2, b"b", "t"), (1, b"a", "t")]), ["n"])
    assert found.schema.field("data").type == pa.large_binary()
    assert found.schema.field("topic").type == pa.large_string()
    assert found["data"].to_pylist() == [b"a", b"b"]


def test_columns_that_have_no_order_are_refused() -> None:
    rows = pa.table({"data": [b"a"], "x": [[1, 2]]})
    with pytest.raises(UsageError, match="the order columns x cannot be sorted"):
        ordered(rows, ["x"])


def test_rows_of_another_lane_are_noticed() -> None:
    check_lane(pa.table({LANE_COLUMN: [2, 2]}), 2)
    with pytest.raises(UsageError, match=r"the task of lane 2 has rows of lanes \[1, 2\]"):
        check_lane(pa.table({LANE_COLUMN: [2, 1]}), 2)


def test_a_guard_is_what_it_wrote() -> None:
    guard = LaneGuard(4, "key", ("a", "b"), "spark")
    guard.check(guard.to_json(), "guard.json")
    with pytest.raises(UsageError, match="lanes is 5 and was 4 when this checkpoint began"):
        LaneGuard(5, "key", ("a", "b"), "spark").check(guard.to_json(), "guard.json")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"lanes": 3}', b'{"lanes": "x"}'])
def test_a_damaged_guard_is_refused(content: bytes) -> None:
    with pytest.raises(UsageError, match=r"guard\.json is damaged"):
        LaneGuard(4, "key", ("a",), "spark").check(content, "guard.json")


@pytest.mark.parametrize(
    ("left_out", "rest"),
    [
        ([], [(3, 9)]),
        ([(1, 2), (10, 10)], [(3, 9)]),
        ([(1, 3), (9, 12)], [(4, 8)]),
        ([(4, 4), (5, 6), (8, 8)], [(3, 3), (7, 7), (9, 9)]),
        ([(1, 20)], []),
    ],
)
def test_rows_are_left_out_of_a_range(
    left_out: list[tuple[int, int]], rest: list[tuple[int, int]]
) -> None:
    assert list(without_rows(3, 9, left_out)) == rest
    assert not list(without_rows(3, 2, left_out))


def test_a_correlation_id_that_is_no_digest_says_nothing_of_the_rows() -> None:
    """A delta without one has that of the record that it was merged into."""
    digest, other = digest_of("orders", [b"a"]), digest_of("orders", [b"b"])
    for found in ("", "abc", "order 17", "0123456789abcdef", digest):
        check_resume("lane", 0, digest, found=found)
    with pytest.raises(ChangedContent):
        check_resume("lane", 0, digest, found=other)
