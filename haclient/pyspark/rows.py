"""The rows of every source: their schema in PySpark and in Arrow.

Sources yield Arrow record batches, which is three to four times as fast as rows. PySpark takes only
a batch whose schema is exactly the one that it derives from the DataFrame's: the order of the
columns, plain `string` and `binary`, and `timestamp[us, tz=UTC]` count.

`publisher_id` and `sequence` are unsigned numbers of 64 bits, and Apache Spark has none. The same
64 bits are read as a signed number: comparing for equality and grouping stay exact, and `bookmark`
has the unsigned one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import pyarrow as pa

from haclient.errors import StoreError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Item = TypeVar("_Item")


class DataLoss(StoreError):
    """Rows that a query needs are not in the log any more, or it is another log."""


class Column(NamedTuple):
    """A column: its type in PySpark's DDL and in Arrow."""

    ddl: str
    arrow: pa.DataType


_BIGINT: Final = Column("BIGINT", pa.int64())
_STRING: Final = Column("STRING", pa.string())

COLUMNS: Final[dict[str, Column]] = {
    "topic": _STRING,
    "bookmark": _STRING,
    "publisher_id": _BIGINT,
    "sequence": _BIGINT,
    "position": _BIGINT,
    "timestamp": Column("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "command": _STRING,
    "sow_key": _STRING,
    "correlation_id": _STRING,
    "data": Column("BINARY", pa.binary()),
}
"""All columns, in the order of the schema. Each may be null."""

SEALED_COLUMNS: Final[dict[str, Column]] = {**COLUMNS, "topic_id": Column("INT", pa.int32())}
"""What a sealed segment has as Parquet: the topic ids of the log tell message types apart, too."""

STRICT: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options of Parquet: whatever the session says, rows that are missing are an error."""

_SIGN_BIT: Final = 1 << 63
_WRAP: Final = 1 << 64


def select_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Check the names of the option `columns`.

    Raises:
        UsageError: There is no such column.
    """
    for name in names:
        if name not in COLUMNS:
            raise UsageError(
                f"the option columns names {name!r}, which does not exist: known are "
                f"{', '.join(COLUMNS)}"
            )
    return tuple(names) or tuple(COLUMNS)


def schema_ddl(columns: Iterable[str]) -> str:
    """The DataFrame's schema, as PySpark's DDL."""
    return ", ".join(f"{name} {SEALED_COLUMNS[name].ddl}" for name in columns)


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """The Arrow schema that PySpark demands of each batch."""
    return pa.schema([(name, SEALED_COLUMNS[name].arrow) for name in columns])


def check_schema(found: Iterable[str], columns: Sequence[str]) -> None:
    """Check that a user gave no schema of his own.

    Raises:
        UsageError: They differ.
    """
    if tuple(found) != tuple(columns):
        raise UsageError(
            f"the schema is ({schema_ddl(columns)}), found the columns ({', '.join(found)}): "
            "give no schema, and choose columns by the option columns"
        )


def signed(number: int) -> int:
    """An unsigned number of 64 bits as the BIGINT with the same bits."""
    return number - _WRAP if number & _SIGN_BIT else number


def unsigned(number: int) -> int:
    """The unsigned number of 64 bits of a BIGINT."""
    return number & (_WRAP - 1)


def printable(text: str) -> str:
    """A text with marks (U+FFFD) instead of bytes that are not UTF-8, which Arrow does not take.

    Args:
        text: A name or header; such bytes are surrogate escapes in it.
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def arrow_schema_of(ddl: str) -> pa.Schema:
    """The Arrow schema that PySpark demands of a function for `mapInArrow`; needs a session.

    Raises:
        UsageError: The DDL is not a list of columns.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - builders need none
    from pyspark.sql.types import StructType  # noqa: PLC0415 - the same

    parsed = StructType.fromDDL(ddl)
    if not isinstance(parsed, StructType):
        raise UsageError(f"a schema is a list of columns such as 'a BIGINT', found {ddl!r}")
    return to_arrow_schema(parsed, timezone="UTC")


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


def in_tasks(
    spark: SparkSession,
    items: Sequence[_Item],
    read: Callable[[_Item], Iterable[pa.RecordBatch]],
    ddl: str,
) -> DataFrame:
    """What a function yields for each item, in a task of its own on a worker.

    Args:
        spark: The session.
        items: What the function is called with.
        read: The function; it travels to the workers with the items.
        ddl: The schema of what it yields.
    """
    # Of equal plans Apache Spark takes what it has cached of one: what is read may have changed.
    first = random.getrandbits(48)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in cast("list[int]", batch.column(0).to_pylist()):
                yield from read(items[number - first])

    numbers = spark.range(first, first + len(items), 1, max(1, len(items)))
    return numbers.mapInArrow(run, ddl)


def union_of(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of several DataFrames with the same columns."""
    return reduce(lambda left, right: left.unionByName(right), frames)


def only_row(aggregate: DataFrame) -> dict[str, Any]:
    """The one row of an aggregate without groups."""
    values: dict[str, Any] = aggregate.collect()[0].asDict()
    return values
