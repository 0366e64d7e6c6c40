"""What `format("amps")` and `format("amps-journal")` have in common: their columns and options."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.json_bodies import CORRUPT, BodyParser
from haclient.pyspark.options import OptionReader, Point
from haclient.pyspark.rows import check_schema, schema_ddl, select_columns
from haclient_stores.bookmark import (
    EPOCH,
    NOW,
    Bookmark,
    BookmarkList,
    Epoch,
    Now,
    Timestamp,
)

_NO_TABLE: Final = (
    "PySpark does not pass the OPTIONS of a table to a source in Python: create a TEMPORARY VIEW, "
    "or leave them out and give them in each query, FROM name WITH (...)"
)


class LogDataSource(DataSource):
    """A log as rows; what its two sources differ in is where the log is."""

    @override
    def schema(self) -> str:
        """The columns, after a check of all options.

        Raises:
            UsageError: Neither a batch nor a stream takes them, or they are those of a table, which
                no query would get.
        """
        if any(name.lower().startswith("option.") for name in self.options):
            raise UsageError(f"{self.name()}: {_NO_TABLE}")
        if "provider" not in self.options:  # of a new table, whose queries have the options
            self._check_options()
        return Columns(OptionReader(self.name(), self.options)).ddl

    def read_options(self, schema: StructType | None, *, is_stream: bool) -> SourceOptions:
        """The options of a reader."""
        raise NotImplementedError

    def _check_options(self) -> None:
        try:
            self.read_options(None, is_stream=False)
        except UsageError as refused:
            try:
                self.read_options(None, is_stream=True)
            except UsageError as also:
                raise (also if "unknown option" in str(refused) else refused) from None


class Columns:
    """The columns of a source: those of the log, and with `bodySchema` the fields of bodies.

    Attributes:
        names: The columns of the log.
        ddl: All columns, as PySpark's DDL.
    """

    def __init__(self, read: OptionReader) -> None:
        body = _ddl(read, read.text("bodySchema", ""))
        given = read.names("columns")
        names = select_columns(given)
        if body and not given:
            names = tuple(name for name in names if name != "data")
        self.names = names
        # The comment tells the user which part is his, where PySpark cannot parse it.
        fields = f", /* bodySchema: */ {body}, {CORRUPT} BINARY" if body else ""
        self.ddl = schema_ddl(names) + fields
        self._has_body = bool(body)

    def parser(self, schema: StructType | None) -> BodyParser | None:
        """What makes the fields of bodies; `None` where they are not wanted.

        Raises:
            UsageError: It is another one, or bodies cannot have these fields.
        """
        count = len(self.names)
        if schema is not None:
            is_made = self._has_body and schema.names[-1:] == [CORRUPT]
            check_schema(schema.names[:count] if is_made else schema.names, self.names)
        if schema is None or not self._has_body:
            return None
        fields = StructType(schema.fields[count:-1])
        if required := [field.name for field in fields if not field.nullable]:
            raise UsageError(
                f"bodySchema: {', '.join(required)} is NOT NULL, and a body may lack any field: "
                "leave NOT NULL out"
            )
        return BodyParser(self.names, to_arrow_schema(fields, timezone="UTC"))


class SourceOptions:
    """The options that both sources have; a task gets them pickled.

    Args:
        read: The options.
        schema: The one of the rows.
        is_stream: Whether a stream is read.
        has_range: Whether a range of the log is read, not the State of the World.

    Attributes:
        topics: The topics that were given by name; empty for a pattern.
        pattern: The pattern of topics; empty for none.
        columns: The columns of the log that are read.
        batch_rows: Rows of an Arrow batch, at most.

    Raises:
        UsageError: An option is wrong; the message says how.
    """

    starting: tuple[str, ...] = ("startingBookmark", "startingTimestamp")
    ending: tuple[str, ...] = ("endingBookmark", "endingTimestamp")

    def __init__(
        self,
        read: OptionReader,
        schema: StructType | None = None,
        *,
        is_stream: bool = False,
        has_range: bool = True,
    ) -> None:
        read.at_most_one("topic", "topicPattern")
        self.topics = read.names("topic")
        self.pattern = read.text("topicPattern", "")
        columns = Columns(read)
        self._parser = columns.parser(schema)
        self.columns = columns.names if self._parser is None else self._parser.needs
        # The fastest of 2 000, 10 000 and 50 000.
        self.batch_rows = read.integer("batchRows", 10_000)
        if has_range:
            self._read_range(read, is_stream=is_stream)

    def _read_range(self, read: OptionReader, *, is_stream: bool) -> None:
        read.at_most_one(*self.starting)
        self.start: Point = (
            read.time("startingTimestamp")
            or read.point("startingBookmark")
            or (NOW if is_stream else EPOCH)
        )
        ending = read.at_most_one(*self.ending)
        if is_stream and ending:
            raise read.error(ending, "left out: a stream has no end, use Trigger.AvailableNow")
        end: Point = read.time("endingTimestamp") or read.point("endingBookmark") or NOW
        if isinstance(end, BookmarkList):
            raise read.error("endingBookmark", "one bookmark")
        times = [each.microseconds for each in (self.start, end) if isinstance(each, Timestamp)]
        if ending and len(times) > 1 and times[1] < times[0]:
            raise read.error(ending, f"no earlier than the start, {self.start}")
        # A time is where the range ends; a bookmark is its last message.
        self.end: Epoch | Now | Bookmark | Timestamp = end
        self.min_partitions = read.integer("minPartitions", 1)
        self.fails_on_loss = read.flag("failOnDataLoss", default=True)
        self.limit = _read_limit(read) if is_stream else ReadAllAvailable()

    def check_start(self) -> None:
        """Check that a stream can begin where it is to: from its first place on, it reads all.

        Raises:
            UsageError: It is to begin at a time to come.
        """
        since_us = self.start.microseconds if isinstance(self.start, Timestamp) else 0
        if since_us > time.time_ns() // 1000:
            raise UsageError(
                f"the stream is to begin at {self.start}, a time to come: start it then"
            )

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows that a query gets: with the fields of bodies, where they are wanted."""
        return batches if self._parser is None else map(self._parser.parse, batches)


def _read_limit(read: OptionReader) -> ReadLimit:
    """What one trigger of a stream reads."""
    read.at_most_one("maxMessagesPerTrigger", "maxBytesPerTrigger")
    rows = read.integer("maxMessagesPerTrigger", None)
    size = read.size("maxBytesPerTrigger", None)
    if rows is not None:
        return ReadMaxRows(rows)
    return ReadAllAvailable() if size is None else ReadMaxBytes(size)


def _ddl(read: OptionReader, text: str) -> str:
    """The DDL of the option `bodySchema`: PySpark passes a `StructType` as its `repr`."""
    if not text.lstrip().startswith("StructType("):
        return text
    try:
        found = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise read.error("bodySchema", "DDL such as 'id BIGINT', or a StructType") from error
    fields = found.fields if isinstance(found, StructType) else []
    escaped = ((field.name.replace("`", "``"), field.dataType.simpleString()) for field in fields)
    return ", ".join(f"`{name}` {kind}" for name, kind in escaped)


def _evaluated(node: ast.AST) -> object:
    """The value of an expression of types, lists and constants.

    Raises:
        ValueError: It has something else.
    """
    match node:
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in types.__all__:
            return getattr(types, name)(*map(_evaluated, args))
        case ast.List(elts=items):
            return list(map(_evaluated, items))
        case ast.Constant(value=value):
            return value
        case _:
            raise ValueError(ast.unparse(node))
