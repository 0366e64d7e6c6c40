"""Received messages become the rows that they say they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.protocol.messages import Message
from haclient.pyspark.rows import COLUMNS, arrow_schema, signed
from haclient.pyspark.server import message_rows
from haclient.pyspark.server.message_rows import RowBatcher, batch_of, bookmark_numbers
from haclient_stores.bookmark import Timestamp

NUMBERS = st.integers(0, 2**64 - 1)
TIMES_US = st.integers(0, 4 * 10**15)


def message(publisher: int, sequence: int, time_us: int, body: bytes, text: str) -> Message:
    return Message(
        kind="p",
        topic="orders" + text,
        bookmark=f"{publisher}|{sequence}|",
        timestamp=str(Timestamp(time_us)) if time_us else "",
        sow_key=text,
        correlation_id=text,
        data=body,
    )


messages = st.builds(message, NUMBERS, NUMBERS, TIMES_US, st.binary(), st.text())


def slow_row(given_message: Message) -> dict[str, Any]:
    """One row, read without numpy and Arrow."""
    publisher, sequence, _ = given_message.bookmark.split("|")
    stamp = given_message.timestamp
    return {
        "topic": given_message.topic,
        "bookmark": given_message.bookmark,
        "publisher_id": signed(int(publisher)),
        "sequence": signed(int(sequence)),
        "position": None,
        "timestamp": Timestamp.parse(stamp).microseconds if stamp else None,
        "command": "publish",
        "sow_key": given_message.sow_key or None,
        "correlation_id": given_message.correlation_id or None,
        "data": given_message.data,
    }


@given(st.lists(messages), st.lists(st.sampled_from([*COLUMNS]), unique=True, min_size=1))
def test_every_row_is_the_one_of_a_slow_reader(
    given_messages: list[Message], columns: list[str]
) -> None:
    batch = batch_of(given_messages, columns)
    assert batch.schema.equals(arrow_schema(columns))
    wanted = [slow_row(each) for each in given_messages]
    for name in columns:
        column = batch.column(name)
        plain = column.cast(pa.int64()) if name == "timestamp" else column
        assert plain.to_pylist() == [row[name] for row in wanted]


@pytest.mark.parametrize("stamp", ["20240229T235959Z", "20240229T235959.125Z", ""])
def test_a_time_of_another_precision_is_read_too(stamp: str) -> None:
    given_messages = [Message(kind="sow", timestamp=stamp), Message(kind="sow", timestamp=stamp)]
    found = batch_of(given_messages, ["timestamp", "command"])
    expected = Timestamp.parse(stamp).microseconds if stamp else None
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [expected, expected]
    assert found.column("command").to_pylist() == ["sow", "sow"]


def test_a_record_without_a_bookmark_has_no_numbers() -> None:
    given_messages = [Message(kind="sow"), message(1, 2**64 - 1, 0, b"", "")]
    ids, sequences = bookmark_numbers(given_messages)
    assert (ids.to_pylist(), sequences.to_pylist()) == ([None, 1], [None, 2**64 - 1])
    rows = batch_of(given_messages, ["bookmark", "sequence"]).to_pylist()
    assert rows == [
        {"bookmark": None, "sequence": None},
        {"bookmark": f"1|{2**64 - 1}|", "sequence": -1},
    ]


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        ([100] * 25, [10, 10, 5]),  # rows
        ([400] * 6, [3, 3]),  # bytes
        ([100, 2000, 100, 100], [2, 2]),  # one message that is larger
        ([10] * 10 + [1000] * 2, [10, 1, 1]),
        ([], []),
    ],
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_a_batch_is_bounded_in_rows_and_bytes(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], batches: list[int], at_once: int
) -> None:
    monkeypatch.setattr(message_rows, "MAX_BATCH_BYTES", 1000)
    found: list[pa.RecordBatch] = []
    batcher = RowBatcher(["data"], 10, found.append)
    given_messages = [Message(kind="p", data=b"x" * size) for size in sizes]
    for at in range(0, len(sizes), at_once):
        batcher.add(given_messages[at : at + at_once])
    batcher.finish()
    assert [batch.num_rows for batch in found] == batches
    data = [value for batch in found for value in batch.column("data").to_pylist()]
    assert data == [each.data for each in given_messages]


@pytest.mark.parametrize("column", ["topic", "sow_key", "correlation_id"])
def test_a_header_of_bytes_that_are_not_utf_8_has_marks_instead_of_them(column: str) -> None:
    header = b"caf\xe9, \xff\xc3\xa9".decode("utf-8", "surrogateescape")
    odd = Message(kind="p", topic=header, sow_key=header, correlation_id=header)
    rows = batch_of([odd, message(1, 1, 0, b"", "é")], [column])
    expected = {"topic": "ordersé"}.get(column, "é")
    assert rows.column(column).to_pylist() == ["caf\ufffd, \ufffdé", expected]
