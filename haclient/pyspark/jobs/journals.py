"""The journal that a job reads: its rows, and where its files lie.

Jobs take a DataFrame, or the directory of a broker or of an export. Of a directory the order is
judged where it is read: each task summarises the rows of its part, and no row leaves the worker
(`haclient.pyspark.jobs.kernels`). Of a DataFrame it is not known where its rows come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from haclient.errors import UsageError
from haclient.pyspark.jobs import kernels
from haclient.pyspark.jobs.damage import Damage, note_damage
from haclient.pyspark.journal.frames import read_journal
from haclient.pyspark.journal.log import JournalLog, is_broker_directory
from haclient.pyspark.journal.reading import Split, SplitReader
from haclient.pyspark.journal.source import JournalSettings, plan
from haclient.pyspark.rows import COLUMNS, STRICT, DataLoss, check_columns, in_tasks, schema_ddl

HEADER_COLUMNS: Final = ("topic", "publisher_id", "sequence", "position", "timestamp", "command")
"""What jobs read that need no payloads."""


class Journal:
    """What a job reads.

    A directory is looked at once, and its rows are planned when they are first asked for: the order
    of a healthy journal is judged without them.

    Args:
        rows: The rows; `None` takes those of the log.
        log: The log of a broker's directory.
        options: The options of `read_journal` for its rows.
        is_whole: Whether the journal has its beginning, so that what it lacks was never logged;
            `None` if only the rows are known.
    """

    def __init__(
        self,
        rows: DataFrame | None,
        *,
        log: JournalLog | None = None,
        options: Mapping[str, Any] | None = None,
        is_whole: bool | None = None,
    ) -> None:
        self.is_whole = is_whole
        self._given = rows
        self._log = log
        self._options = dict(options or {})

    @classmethod
    def of(
        cls, journal: AnyJournal, columns: Sequence[str] = (), *, message_type: str | None = None
    ) -> Journal:
        """Open what a user has given.

        Args:
            journal: Rows, or where they are; then the active session reads them.
            columns: Which ones the job needs; all by default.
            message_type: The message type of the topics that are read; all by default.

        Raises:
            UsageError: There is no such directory, or it is neither, or it is an export, and a
                message type is given, or the rows are a stream.
        """
        if isinstance(journal, Journal):
            return journal
        if isinstance(journal, DataFrame):
            if journal.isStreaming:
                raise UsageError("the rows are a stream, and jobs take batches: use spark.read")
            return cls(journal)
        if not is_broker_directory(journal):
            if message_type is not None:
                raise UsageError(
                    f"{journal}: an export does not tell message types: give the directory of a "
                    "broker, or leave out --message-type"
                )
            return cls(read_export(SparkSession.active(), str(journal)))
        log = JournalLog(Path(journal), sealed=True)
        options: dict[str, Any] = {"columns": columns}
        if message_type is not None:
            options["messageType"] = message_type
        return cls(None, log=log, options=options, is_whole=log.first_position == 1)

    @cached_property
    def spark(self) -> SparkSession:
        """The session that reads it."""
        return SparkSession.active() if self._given is None else self._given.sparkSession

    @cached_property
    def rows(self) -> DataFrame:
        """All rows; of a log, up to the end that it had when it was opened."""
        return self._given if self._given is not None else self.rows_from(0)

    def chosen(self, rows: DataFrame) -> Journal:
        """The same journal with some of its rows."""
        return Journal(rows, log=self._log, is_whole=self.is_whole)

    def rows_from(self, first: int, last: int | None = None) -> DataFrame:
        """The rows from one position to another or, without that, to the end."""
        if self._given is not None or self._log is None:
            rows = self.rows.where(sf.col("position") >= first)
            return rows if last is None else rows.where(sf.col("position") <= last)
        log, options = self._log, dict(self._options)
        if first:
            options["startingPosition"] = first
        options["endingPosition"] = max(1, log.end_position - 1) if last is None else last
        return read_journal(self.spark, log.directory, **options)

    def runs(self, first: int = 0) -> DataFrame:
        """Summaries of all rows from a position on, as `kernels.runs_of` makes them."""
        if self._given is not None or self._log is None or "messageType" in self._options:
            return kernels.runs_of(self.rows_from(first) if first else self.rows)
        reader, splits = parts_of(self._log, first)

        def summarize(split: Split) -> Iterator[pa.RecordBatch]:
            found: list[Damage] = []
            yield from kernels.ordered_runs(note_damage(reader, split, found))
            if found:
                yield kernels.damage_rows(found)

        return in_tasks(self.spark, splits, summarize, kernels.RUNS_DDL)

    def check_columns(self, name: str, *wanted: str) -> None:
        """Check that there are the columns that a job needs; a log has all.

        Raises:
            UsageError: One is missing.
        """
        if self._given is not None:
            check_columns(name, self._given, wanted)

    def check_unchanged(self) -> None:
        """Check that the log has not lost its beginning while it was read, in several passes.

        Raises:
            DataLoss: It has.
        """
        if self._log is None or not self.is_whole:
            return
        self._log.refresh()
        if self._log.first_position > 1:
            raise DataLoss(
                f"{self._log.directory}: its oldest segments were removed while it was read: run "
                "again"
            )


AnyJournal: TypeAlias = Journal | DataFrame | str | Path
"""Rows, or a directory: that of a broker or of an export, or an address such as `s3a://...`."""


def parts_of(log: JournalLog, first: int = 0) -> tuple[SplitReader, list[Split]]:
    """What tasks read of a log from a position on to judge the order, and how."""
    options = {"journalPath": str(log.directory), "columns": ",".join(kernels.ORDER_COLUMNS)}
    if first:
        options["startingPosition"] = str(first)
    settings = JournalSettings(options)
    splits = plan(settings, log, settings.range_of(log))
    return SplitReader(log.directory, settings.columns), splits


def read_export(spark: SparkSession, path: str) -> DataFrame:
    """The rows of an export, with the columns of a journal and `date`.

    The schema is given, not inferred: else a topic named `2024` would be read as a number.
    """
    rows = spark.read.schema(f"{schema_ddl(COLUMNS)}, date DATE").options(**STRICT).parquet(path)
    return rows.select(*COLUMNS, "date")  # the topic is in the path, and would come last
