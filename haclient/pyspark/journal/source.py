"""`format("amps-journal")`: the journal files of the reference broker as a batch or a stream.

Where the files can be read by all workers this is by far the fastest way to a log: no broker takes
part, and a range of positions is split by bytes. The driver fixes the range and plans splits by the
manifests of the segments; a task reads its bytes and yields Arrow batches.

An offset of a stream is a position and the identity of the log (`haclient.pyspark.journal.log`), so
that a stream never continues silently in another log. PySpark keeps one reader for each query
and pickles it into the tasks; tasks use its settings alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.journal.log import JournalLog, JournalPlace
from haclient.pyspark.journal.pieces import plan_splits
from haclient.pyspark.journal.reading import Split, SplitReader
from haclient.pyspark.journal.records import MAX_POSITION, RowRange
from haclient.pyspark.options import OptionReader
from haclient.pyspark.pushdown import wanted_range, wanted_texts
from haclient.pyspark.rows import DataLoss, check_schema, schema_ddl, select_columns
from haclient_stores.bookmark import (
    Bookmark,
    BookmarkList,
    BookmarkRange,
    MostRecent,
    Now,
    Timestamp,
    parse_bookmark,
)

FORMAT: Final = "amps-journal"

BATCH_ROWS: Final = 10_000
"""Rows of an Arrow batch: the fastest of 2 000, 10 000 and 50 000."""

MAX_PARTITION_BYTES: Final = 128 * 2**20
"""A task costs 60 ms of CPU, as much as 50 000 rows: it should have more of them."""

OFFSET_VERSION: Final = 1

_OFFSET_WORDS: Final = {"earliest": "0", "latest": "0|1|"}
"""The words of `startingOffsets`, as bookmarks."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """The options of the source.

    Attributes:
        path: The journal's directory.
        instance: Name of the broker that has to have written it; `None` takes any.
        topics: The topics that are wanted; empty means all.
        pattern: Topics that it matches anywhere are wanted.
        message_type: Topics of this message type are wanted; `None` takes any.
        columns: Names of the columns, in order.
        start: Where reading begins: a bookmark in its wire form.
        start_position: The first position that is read, instead of `start`.
        start_us: The first time that is read, in microseconds since 1970, instead of `start`.
        end_position: The first position that is not read any more.
        end_bookmark: The last message that is read.
        end_us: The first time that is not read any more.
        batch_rows: Rows of an Arrow batch, at most.
        partition_bytes: Bytes of a split.
        min_partitions: Splits are made smaller until there are so many.
        fail_on_data_loss: Whether removed positions are an error.
        has_pushdown: Whether filters of the query are used to read less.
        limit: What one trigger of a stream reads.
    """

    path: Path
    instance: str | None
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None
    message_type: str | None
    columns: tuple[str, ...]
    start: str | None
    start_position: int | None
    start_us: int | None
    end_position: int
    end_bookmark: Bookmark | None
    end_us: int | None
    batch_rows: int
    partition_bytes: int
    min_partitions: int
    fail_on_data_loss: bool
    has_pushdown: bool
    limit: ReadLimit

    @classmethod
    def read(cls, options: Mapping[str, str]) -> JournalSettings:
        """Read the options of a user.

        Args:
            options: The options.

        Raises:
            UsageError: One is missing, unknown, or has a value that cannot be.
        """
        read = OptionReader(FORMAT, options)
        read.at_most_one("topic", "topicPattern")
        read.at_most_one(
            "startingBookmark", "startingOffsets", "startingPosition", "startingTimestamp"
        )
        read.at_most_one("endingBookmark", "endingPosition", "endingTimestamp")
        read.at_most_one("maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger")
        last = read.integer("endingPosition")
        settings = cls(
            path=Path(read.required("journalPath", "the --data directory of a broker")),
            instance=read.text("instance"),
            topics=read.names("topic"),
            pattern=read.pattern("topicPattern"),
            message_type=read.text("messageType"),
            columns=select_columns(read.names("columns")),
            start=_starting_bookmark(read),
            start_position=read.integer("startingPosition"),
            start_us=read.timestamp_us("startingTimestamp"),
            end_position=MAX_POSITION if last is None else last + 1,
            end_bookmark=_ending_bookmark(read),
            end_us=read.timestamp_us("endingTimestamp"),
            batch_rows=read.integer("batchRows", BATCH_ROWS),
            partition_bytes=read.size("maxPartitionBytes", MAX_PARTITION_BYTES),
            min_partitions=read.integer("minPartitions", 1),
            fail_on_data_loss=read.flag("failOnDataLoss", default=True),
            has_pushdown=read.flag("filterPushdown", default=False),
            limit=_read_limit(read),
        )
        read.check_unknown()
        return settings

    def is_wanted(self, topic: str) -> bool:
        """Whether a topic is wanted.

        Args:
            topic: Its name.
        """
        if self.pattern is not None:
            return self.pattern.search(topic) is not None
        return not self.topics or topic in self.topics

    def open_log(self) -> JournalLog:
        """The log as it is now."""
        log = JournalLog(self.path, instance=self.instance, sealed=True)
        log.refresh()
        return log

    def first_position(self, log: JournalLog, default: str) -> int:
        """The position at which reading begins.

        Args:
            log: The log.
            default: Where it begins if the options do not say: a bookmark in its wire form.

        Raises:
            DataLoss: The position or the bookmark is not there any more.
        """
        if self.start_position is not None:
            if self.start_position < log.first_position and self.fail_on_data_loss:
                raise log.removed(self.start_position)
            return max(self.start_position, log.first_position)
        if self.start_us is not None:
            return log.position_of_time(self.start_us)
        match parse_bookmark(default if self.start is None else self.start):
            case Now():
                return log.end_position
            case Bookmark() | Timestamp() as bookmark:
                return self._after(log, [bookmark])
            case BookmarkList() as several:
                return self._after(log, several)
            case _:  # `_starting_bookmark` lets nothing else through
                return log.first_position

    def _after(self, log: JournalLog, bookmarks: Iterable[Bookmark | Timestamp]) -> int:
        """The position after the earliest of some bookmarks."""
        found: list[int] = []
        for bookmark in bookmarks:
            if isinstance(bookmark, Timestamp):
                found.append(log.position_of_time(bookmark.microseconds))
                continue
            position = log.position_of_message(bookmark.publisher_id, bookmark.sequence)
            if position is not None:
                found.append(position + 1)
            elif self.fail_on_data_loss:
                raise DataLoss(
                    f"{log.directory}: the message {bookmark} is not in the log: begin elsewhere, "
                    "or read with failOnDataLoss=false from the oldest message on"
                )
            else:
                found.append(log.first_position)
        return min(found)


class JournalDataSource(DataSource):
    """The data source that `register` makes known as `amps-journal`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._settings = JournalSettings.read(options)

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> str:
        return schema_ddl(self._settings.columns)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        settings = self._settings
        check_schema(schema.names, settings.columns)
        # PySpark fails a query whose reader has `pushFilters` while its own setting is off.
        kind = FilteringJournalReader if settings.has_pushdown else JournalRangeReader
        return kind(settings)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        settings = self._settings
        check_schema(schema.names, settings.columns)
        has_end = settings.end_bookmark is not None or settings.end_us is not None
        if has_end or settings.end_position != MAX_POSITION:
            raise UsageError(
                f"{FORMAT}: a stream has no end: leave endingBookmark, endingPosition and "
                "endingTimestamp out, and use Trigger.AvailableNow to stop at the present end"
            )
        return JournalStreamReader(settings)


class JournalRangeReader(DataSourceReader):
    """Reads a range that ends where the log ended when the query was planned.

    Args:
        settings: The options.
    """

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self._wanted: RowRange = RowRange()
        self._is_pushed: list[Callable[[str], bool]] = []

    @override
    def partitions(self) -> list[InputPartition]:
        log = self._settings.open_log()
        return plan(self._settings, log, self.range_of(log), self._is_wanted)

    def range_of(self, log: JournalLog) -> RowRange:
        """The positions and times that are wanted of a log, up to its end.

        Args:
            log: The log.

        Raises:
            DataLoss: It does not have what is wanted.
        """
        settings = self._settings
        end = min(settings.end_position, self._wanted.end_position, log.end_position)
        if settings.end_bookmark is not None:
            bookmark = settings.end_bookmark
            position = log.position_of_message(bookmark.publisher_id, bookmark.sequence)
            if position is None:
                raise DataLoss(
                    f"{log.directory}: endingBookmark {bookmark} is not in the log: end elsewhere"
                )
            end = min(end, position + 1)
        wanted = self._wanted._replace(
            first_position=max(settings.first_position(log, "0"), self._wanted.first_position),
            end_position=end,
        )
        if settings.start_us is not None:
            wanted = wanted._replace(from_us=max(wanted.from_us, settings.start_us))
        if settings.end_us is not None:
            wanted = wanted._replace(until_us=min(wanted.until_us, settings.end_us))
        return wanted

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self._settings, cast("Split | None", partition.value))

    def _is_wanted(self, topic: str) -> bool:
        return self._settings.is_wanted(topic) and all(test(topic) for test in self._is_pushed)


class FilteringJournalReader(JournalRangeReader):
    """Also reads less where the filters of a query allow it; PySpark applies them again."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self._push(each)
        return filters

    def _push(self, condition: Filter) -> None:
        now = self._wanted
        topics = wanted_texts(condition, "topic")
        if topics is not None:
            self._is_pushed.append(topics.__contains__)
        positions = wanted_range(condition, "position")
        if positions is not None:
            self._wanted = now._replace(
                first_position=max(now.first_position, positions[0]),
                end_position=min(now.end_position, positions[1]),
            )
        times = wanted_range(condition, "timestamp")
        if times is not None:
            self._wanted = now._replace(
                from_us=max(now.from_us, times[0]), until_us=min(now.until_us, times[1])
            )


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log as it grows.

    Args:
        settings: The options.
    """

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
        log = self._log
        log.refresh()
        position = self._settings.first_position(log, "0|1|")
        if position > log.end_position:
            raise UsageError(
                f"{FORMAT}: the option startingPosition is {position}, but the next position of "
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
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._log.refresh()
        begin = self._begin(decode_place(start))
        last = decode_place(end)
        self._log.check_identity(last)
        wanted = RowRange(begin, last.position)
        # Starting options have chosen the first offset, and say nothing about what follows it.
        return plan(self._settings, self._log, wanted, self._settings.is_wanted)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(self._settings, cast("Split | None", partition.value))

    def _begin(self, place: JournalPlace) -> int:
        fail = self._settings.fail_on_data_loss
        begin = self._log.check_place(place, fail_on_data_loss=fail)
        if begin > place.position:
            _log.warning(
                "%s: positions %d to %d were removed before they were read",
                self._settings.path,
                place.position,
                begin - 1,
            )
        return begin


def plan(
    settings: JournalSettings,
    log: JournalLog,
    wanted: RowRange,
    is_wanted: Callable[[str], bool],
) -> list[InputPartition]:
    """The splits of a range; one without bytes if it has no rows.

    Args:
        settings: The options.
        log: The log.
        wanted: Positions and times of the rows.
        is_wanted: Whether a topic is wanted, by its name.
    """
    make = partial(
        plan_splits, log.manifests, wanted, is_wanted, message_type=settings.message_type
    )
    splits = make(settings.partition_bytes)
    if len(splits) < settings.min_partitions:
        size = sum(piece.end - piece.start for split in splits for piece in split)
        smaller = -(-size // settings.min_partitions)
        splits = make(smaller)
    topics = log.topics(is_wanted, message_type=settings.message_type)
    has_all = len(topics) == len(log.topics(lambda _: True))
    return [
        InputPartition(
            Split(
                pieces,
                wanted,
                topics,
                has_all,
                {each.segment: log.origins[each.segment] for each in pieces},
            )
        )
        for pieces in splits or [()]
    ]


def read_split(settings: JournalSettings, split: Split | None) -> Iterator[pa.RecordBatch]:
    """The rows of a split, as batches of a limited size.

    Args:
        settings: The options.
        split: What to read; PySpark plans `None` where there is nothing.

    Raises:
        DataLoss, StoreCorrupt, StoreError: As `SplitReader.read`.
    """
    if split is None:
        return
    read = SplitReader(settings.path, settings.columns, settings.fail_on_data_loss).read
    for batch in read(split):
        for start in range(0, batch.num_rows, settings.batch_rows):
            yield batch.slice(start, settings.batch_rows)


def encode_place(place: JournalPlace) -> dict[str, Any]:
    """A place as the offset of a stream.

    Args:
        place: The place.
    """
    return {
        "version": OFFSET_VERSION,
        "position": place.position,
        "start": f"{place.start_id:016x}",
    }


def decode_place(offset: Mapping[str, Any]) -> JournalPlace:
    """Read the offset of a stream back.

    Args:
        offset: The offset, as PySpark keeps it in the checkpoint.

    Raises:
        UsageError: It is of another source, or of a newer version.
    """
    match offset:
        case {"version": int(version)} if version > OFFSET_VERSION:
            raise UsageError(
                f"{FORMAT}: the checkpoint has an offset of version {version}, but this version of "
                f"haclient reads up to {OFFSET_VERSION}: use the newer one"
            )
        case {"version": int(), "position": int(position), "start": str(start)}:
            return JournalPlace(position, int(start, 16))
        case _:
            raise UsageError(
                f"{FORMAT}: the checkpoint is of another source (offset {dict(offset)}): give "
                "this query a checkpoint of its own"
            )


def _starting_bookmark(read: OptionReader) -> str | None:
    text = read.text("startingBookmark")
    if text is None:
        word = read.choice("startingOffsets", _OFFSET_WORDS, "")
        return _OFFSET_WORDS.get(word)
    wire = {"EPOCH": "0", "NOW": "0|1|"}.get(text.upper(), text)
    wanted = "EPOCH, NOW, bookmarks, or a time such as 20260131T093000"
    try:
        point = parse_bookmark(wire)
    except UsageError as error:
        raise read.error("startingBookmark", wanted) from error
    if isinstance(point, BookmarkRange | MostRecent):
        raise read.error("startingBookmark", wanted)
    return wire


def _ending_bookmark(read: OptionReader) -> Bookmark | None:
    text = read.text("endingBookmark")
    if text is None:
        return None
    try:
        return Bookmark.parse(text)
    except UsageError as error:
        raise read.error("endingBookmark", "the bookmark of one message") from error


def _read_limit(read: OptionReader) -> ReadLimit:
    rows = read.integer("maxMessagesPerTrigger") or read.integer("maxOffsetsPerTrigger")
    count = read.size("maxBytesPerTrigger")
    if rows is not None:
        return ReadMaxRows(rows)
    return ReadAllAvailable() if count is None else ReadMaxBytes(count)
