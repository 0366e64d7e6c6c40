"""`format("amps-journal")`: the journal files of the reference broker as a batch or a stream.

Where the files can be read by all workers this is by far the fastest way to a log: no broker takes
part, and a range of positions is split by bytes. The driver fixes the range and plans splits by the
manifests of the segments; a task reads its bytes and yields Arrow batches.

An offset of a stream is a position and the identity of the log (`haclient.pyspark.journal.log`), so
that a stream never continues silently in another log. PySpark keeps one reader for each query
and pickles it into the tasks; tasks use its settings alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.journal.log import JournalLog, JournalPlace
from haclient.pyspark.journal.pieces import pack, wanted_pieces
from haclient.pyspark.journal.reading import Split, SplitReader
from haclient.pyspark.journal.records import MAX_POSITION, RowRange
from haclient.pyspark.journal.sealed import Extent
from haclient.pyspark.options import JOURNAL, LOCAL_SCHEME, OptionReader
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.sources import LogDataSource, SourceOptions
from haclient_stores.bookmark import Bookmark, BookmarkList, Epoch, Now, Timestamp

_READ_ONLY: Final = f'{JOURNAL} is read only: publish to a server with format("amps")'

MAX_PARTITION_BYTES: Final = 128 * 2**20
"""A task costs 60 ms of CPU, as much as 50 000 rows: it should have more of them."""

OFFSET_VERSION: Final = 1


class JournalSettings(SourceOptions):
    """The options of the source.

    Attributes:
        path: The journal's directory.
        instance: Name of the broker that has to have written it; `None` takes any.
        message_type: Topics of this message type are wanted; `None` takes any.
        start_position: The first position that is read, instead of `start`.
        end_position: The first position that is not read any more.
        partition_bytes: Bytes of a split.
    """

    starting = (*SourceOptions.starting, "startingPosition")
    ending = (*SourceOptions.ending, "endingPosition")

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType | None = None,
        *,
        is_stream: bool = False,
    ) -> None:
        read = OptionReader(JOURNAL, options)
        path = read.required("journalPath", "the --data directory of a broker")
        self.path = Path(LOCAL_SCHEME.sub("", path))
        super().__init__(read, schema, is_stream=is_stream)
        self.instance = read.text("instance", None)
        self._pattern = read.pattern("topicPattern")
        self.message_type = read.text("messageType", None)
        self.start_position = read.integer("startingPosition", None)
        self.end_position = read.integer("endingPosition", MAX_POSITION - 1) + 1
        if self.end_position < (self.start_position or 0):
            raise read.error("endingPosition", "no lower than startingPosition")
        self.partition_bytes = read.size("maxPartitionBytes", MAX_PARTITION_BYTES)
        read.check_unknown()

    def is_wanted(self, message_type: str, topic: str) -> bool:
        """Whether a topic is wanted."""
        if self.message_type not in {None, message_type}:
            return False
        if self._pattern is not None:
            return self._pattern.search(topic) is not None
        return not self.topics or topic in self.topics

    def open_log(self) -> JournalLog:
        """The log as it is now."""
        return JournalLog(self.path, instance=self.instance, sealed=True)

    def first_position(self, log: JournalLog) -> int:
        """The position at which reading begins.

        Raises:
            DataLoss: The position or the bookmark is not there any more.
        """
        if self.start_position is not None:
            if self.start_position < log.first_position and self.fails_on_loss:
                raise log.removed(self.start_position)
            return max(self.start_position, log.first_position)
        match self.start:
            case Now():
                return log.end_position
            case Bookmark() | Timestamp() as bookmark:
                return self._after(log, [bookmark])
            case BookmarkList() as several:
                return self._after(log, several)
            case _:
                return self._oldest(log)

    def range_of(self, log: JournalLog) -> RowRange:
        """The rows of a batch.

        Raises:
            DataLoss: The start or the end is not there any more.
        """
        wanted = RowRange(self.first_position(log), min(self.end_position, log.end_position))
        if isinstance(self.start, Timestamp):
            wanted = wanted._replace(from_us=self.start.microseconds)
        match self.end:
            case Epoch():
                return wanted._replace(end_position=log.first_position)
            case Timestamp(microseconds=until_us):
                return wanted._replace(until_us=until_us)
            case Bookmark() as last:
                position = log.position_of_message(last.publisher_id, last.sequence)
                if position is None:
                    raise DataLoss(
                        f"{log.directory}: endingBookmark {last} is not in the log: end elsewhere"
                    )
                return wanted._replace(end_position=min(wanted.end_position, position + 1))
            case _:
                return wanted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a split, as batches of a limited size.

        Raises:
            DataLoss, StoreCorrupt, StoreError: As `SplitReader.read`.
        """
        reader = SplitReader(self.path, self.columns, self.fails_on_loss)
        return self.rows(
            batch.slice(start, self.batch_rows)
            for batch in reader.read(cast("Split", partition))
            for start in range(0, batch.num_rows, self.batch_rows)
        )

    def _oldest(self, log: JournalLog) -> int:
        """The oldest position that is there, unless damage hides an older one."""
        if log.damage is not None and self.fails_on_loss:
            raise DataLoss(
                f"{log.damage}, and its segment was removed: restore the file, or read with "
                f"failOnDataLoss=false from position {log.first_position} on"
            )
        return log.first_position

    def _after(self, log: JournalLog, bookmarks: Iterable[Bookmark | Timestamp]) -> int:
        """The position after the earliest of some bookmarks."""
        found: list[int] = []
        for bookmark in bookmarks:
            if isinstance(bookmark, Timestamp):
                at = log.position_of_time(bookmark.microseconds)
                found.append(at if at > log.first_position else self._oldest(log))
                continue
            position = log.position_of_message(bookmark.publisher_id, bookmark.sequence)
            if position is not None:
                found.append(position + 1)
            elif self.fails_on_loss:
                raise DataLoss(
                    f"{log.directory}: the message {bookmark} is not in the log: begin elsewhere, "
                    "or read with failOnDataLoss=false from the oldest message on"
                )
            else:
                found.append(log.first_position)
        return min(found)


class JournalDataSource(LogDataSource):
    """The data source that `register` makes known as `amps-journal`."""

    @classmethod
    @override
    def name(cls) -> str:
        return JOURNAL

    @override
    def read_options(self, schema: StructType | None, *, is_stream: bool) -> JournalSettings:
        return JournalSettings(self.options, schema, is_stream=is_stream)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        settings = self.read_options(schema, is_stream=False)
        return JournalRangeReader(settings)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JournalStreamReader(self.read_options(schema, is_stream=True))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise UsageError(_READ_ONLY)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise UsageError(_READ_ONLY)


class JournalRangeReader(DataSourceReader):
    """Reads a range that ends where the log ended when the query was planned."""

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings

    @override
    def partitions(self) -> list[Split]:
        settings = self._settings
        log = settings.open_log()
        return plan(settings, log, settings.range_of(log))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._settings.read(partition)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log as it grows."""

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self._target: int | None = None

    @override
    def __getstate__(self) -> dict[str, object]:
        """For the tasks: they need no log."""
        return {"_settings": self._settings, "_target": None}

    @cached_property
    def _log(self) -> JournalLog:
        return self._settings.open_log()

    @override
    def initialOffset(self) -> dict[str, Any]:
        self._settings.check_start()
        log = self._log
        log.refresh()
        position = self._settings.first_position(log)
        if position > log.end_position:
            raise UsageError(
                f"{JOURNAL}: the option startingPosition is {position}, but the next position of "
                f"the log is {log.end_position}: begin there or before"
            )
        return encode_place(log.place(position))

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return self._settings.limit

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._log.refresh()
        self._target = self._log.end_position

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        log = self._log
        log.refresh()
        place = decode_place(start)
        begin = self._begin(place)
        end = log.end_position if self._target is None else self._target
        match limit:
            case ReadMaxRows(max_rows=count):
                end = min(end, begin + count)
            case ReadMaxBytes(max_bytes=count):
                end = min(end, log.end_after_bytes(begin, count))
            case _:
                pass
        # The same place as before, not one with a later start: there is nothing to read.
        return start if end <= place.position else encode_place(log.place(end))

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return encode_place(self._log.place(self._log.end_position))

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Split]:
        self._log.refresh()
        begin = self._begin(decode_place(start))
        last = decode_place(end)
        self._log.check_identity(last)
        wanted = RowRange(begin, last.position)
        # Starting options have chosen the first offset, and say nothing about what follows it.
        return plan(self._settings, self._log, wanted)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._settings.read(partition)

    def _begin(self, place: JournalPlace) -> int:
        return self._log.check_place(place, fail_on_data_loss=self._settings.fails_on_loss)


def plan(settings: JournalSettings, log: JournalLog, wanted: RowRange) -> list[Split]:
    """The splits of a range; one without bytes if it has no rows."""
    found = [*wanted_pieces(log.manifests, wanted, settings.is_wanted)]
    splits = pack(found, settings.partition_bytes)
    if len(splits) < settings.min_partitions:
        size = sum(piece.end - piece.start for piece in found)
        splits = pack(found, -(-size // settings.min_partitions))
    topics = log.topics(settings.is_wanted)
    has_all = len(topics) == len(log.topics(lambda _, __: True))
    extents = {each.number: Extent.of(each) for each in log.manifests}
    return [
        Split(pieces, wanted, topics, has_all, {n: extents[n] for n, *_ in pieces})
        for pieces in splits or [[]]
    ]


def encode_place(place: JournalPlace) -> dict[str, Any]:
    """A place as the offset of a stream."""
    return {
        "version": OFFSET_VERSION,
        "position": place.position,
        "start": f"{place.start_id:016x}",
    }


def decode_place(offset: Mapping[str, Any]) -> JournalPlace:
    """Read the offset of a stream back.

    Raises:
        UsageError: It is of another source, or of a newer version.
    """
    match offset:
        case {"version": int(version)} if version > OFFSET_VERSION:
            raise UsageError(
                f"{JOURNAL}: the checkpoint has an offset of version {version}, but this version "
                f"of haclient reads up to {OFFSET_VERSION}: use the newer one"
            )
        case {"version": int(), "position": int(position), "start": str(start)}:
            return JournalPlace(position, int(start, 16))
        case _:
            raise UsageError(
                f"{JOURNAL}: the checkpoint is of another source (offset {dict(offset)}): give "
                "this query a checkpoint of its own"
            )
