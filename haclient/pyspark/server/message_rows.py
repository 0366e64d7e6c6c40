"""Messages as a client has received them, as Arrow record batches.

Columns are built one by one, for a whole batch, and only those that were asked for. Numbers of
64 bits and times are read from their text by Arrow and numpy: a loop in Python over every message
of a batch would take longer than receiving them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, takewhile
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from haclient.protocol.messages import Message
from haclient.pyspark.rows import arrow_schema, printable
from haclient_stores.bookmark import Timestamp

_STAMP: Final = len("20260131T093000.000000Z")
_STAMP_DIGITS: Final = np.array([*range(8), *range(9, 15), *range(16, 22)])
"""Where a timestamp of that length has its digits: date, time and microseconds."""

_WEIGHTS: Final = 10 ** np.arange(5, -1, -1, dtype=np.int64)
_SECOND_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _SECOND_US


MAX_BATCH_BYTES: Final = 64 * 2**20
"""Payloads of a record batch, but for a single one that is larger; a column holds 2 GiB at most."""


class RowBatcher:
    """Makes record batches of messages as they come, bounded in rows and bytes.

    Args:
        columns: Names of the columns, in their order.
        max_rows: The most rows of a batch.
        emit: Takes the batches, in order.
    """

    def __init__(
        self, columns: Sequence[str], max_rows: int, emit: Callable[[pa.RecordBatch], None]
    ) -> None:
        self._columns = columns
        self._max_rows = max_rows
        self._emit = emit
        self._pending: list[Message] = []
        self._bytes = 0

    def add(self, messages: Sequence[Message]) -> None:
        """Add messages, and emit the batches that are full."""
        self._pending += messages
        self._bytes += _payload_bytes(messages)
        while len(self._pending) >= self._max_rows or self._bytes >= MAX_BATCH_BYTES:
            sizes = accumulate(len(each.data) for each in self._pending[: self._max_rows])
            rows = sum(1 for _ in takewhile(lambda size: size < MAX_BATCH_BYTES, sizes))
            self._flush(min(rows + 1, self._max_rows))

    def finish(self) -> None:
        """Emit the rest."""
        if self._pending:
            self._flush(len(self._pending))

    def _flush(self, rows: int) -> None:
        messages, self._pending = self._pending[:rows], self._pending[rows:]
        self._bytes -= _payload_bytes(messages)
        self._emit(batch_of(messages, self._columns))


def _payload_bytes(messages: Sequence[Message]) -> int:
    return sum(len(each.data) for each in messages)


def batch_of(messages: Sequence[Message], columns: Sequence[str]) -> pa.RecordBatch:
    """The rows of some messages."""
    schema = arrow_schema(columns)
    build = {**_BUILDERS}
    if {"publisher_id", "sequence"} & {*columns}:
        ids, sequences = bookmark_numbers(messages)  # once for both
        build |= {"publisher_id": lambda _: _signed(ids), "sequence": lambda _: _signed(sequences)}
    arrays = [build[field.name](messages).cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bookmark_numbers(messages: Sequence[Message]) -> tuple[pa.Array, pa.Array]:
    """The publisher ids and the sequences in bookmarks `<id>|<sequence>|`, unsigned."""
    bookmarks = _texts([message.bookmark for message in messages])
    parts = pc.split_pattern(bookmarks, "|")
    ids, sequences = pc.list_element(parts, 0), pc.list_element(parts, 1)
    return ids.cast(pa.uint64()), sequences.cast(pa.uint64())


def _texts(values: Sequence[str]) -> pa.Array:
    """Texts, with null for an empty one, which the wire does not know."""
    array = _strings(values)
    return pc.if_else(pc.equal(array, ""), None, array) if "" in values else array


def _strings(values: Sequence[str]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # bytes that are not UTF-8, which are rare, so only now is it asked
        return pa.array([printable(value) for value in values], pa.string())


def _signed(array: pa.Array) -> pa.Array:
    return array.view(pa.int64())


def _times(messages: Sequence[Message]) -> pa.Array:
    """The times of the server, in microseconds since 1970."""
    stamps = [message.timestamp for message in messages]
    text = "".join(stamps)
    if len(text) != _STAMP * len(stamps) or any(len(stamp) != _STAMP for stamp in stamps):
        return pa.array(  # another precision, or a message without a time
            [Timestamp.parse(stamp).microseconds if stamp else None for stamp in stamps], pa.int64()
        )
    characters = np.frombuffer(text.encode("ascii"), np.uint8).reshape(-1, _STAMP)
    digits = characters[:, _STAMP_DIGITS].astype(np.int64) - ord("0")

    def number(begin: int, end: int) -> npt.NDArray[np.int64]:
        return digits[:, begin:end] @ _WEIGHTS[begin - end :]

    months = (number(0, 4) - 1970) * 12 + number(4, 6) - 1
    days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + number(6, 8) - 1
    seconds = (number(8, 10) * 60 + number(10, 12)) * 60 + number(12, 14)
    return pa.array(days * _DAY_US + seconds * _SECOND_US + number(14, 20))


_BUILDERS: Final[dict[str, Callable[[Sequence[Message]], pa.Array]]] = {
    "topic": lambda messages: _strings([each.topic for each in messages]),
    "bookmark": lambda messages: _texts([each.bookmark for each in messages]),
    "position": lambda messages: pa.nulls(len(messages), pa.int64()),
    "timestamp": _times,
    "command": lambda messages: pa.array([each.command for each in messages], pa.string()),
    "sow_key": lambda messages: _texts([each.sow_key for each in messages]),
    "correlation_id": lambda messages: _texts([each.correlation_id for each in messages]),
    "data": lambda messages: pa.array([each.data for each in messages], pa.binary()),
}
"""By column, what builds it, but for the numbers in a bookmark; the log sends no positions."""
