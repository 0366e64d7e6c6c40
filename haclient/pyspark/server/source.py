"""The batch source of `format("amps")`: a range of the log.

The end of a range is fixed when the query is planned, so a task that is tried again reads the same
rows. The planner counts the range with the server and cuts it into partitions of equal numbers of
messages, or into one for each content filter of the option `splits`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from typing_extensions import override

from haclient.client import Client
from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.pushdown import wanted_range, wanted_texts
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import Counted, ask_first, count, log_info
from haclient.pyspark.server.offsets import VECTOR, OffsetPlace, merged
from haclient.pyspark.server.range_reader import LogRange, RangeReader, ReadSettings, batches_of
from haclient.pyspark.server.settings import (
    EARLIEST,
    LATEST,
    WORDS,
    SourceSettings,
    pattern_of,
    read_bookmark,
    read_common,
    task_name,
)
from haclient_stores.bookmark import LAST_MICROSECOND, NOW, Timestamp

_log = logging.getLogger(__name__)

PIECE_MESSAGES: Final = 2**13
"""Messages of a part of a range, at first."""

_TO_THE_END: Final = f"{NOW}]"


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The options of a batch.

    Attributes:
        common: What batch and stream have in common.
        end: Where the range of the log ends, as the end of a bookmark range: `0|1|]`.
        has_pushdown: Whether filters of the query are used to read less.
        begin_us: Where the range begins if a filter of the query has set it, in microseconds.
        end_us: Where it ends, likewise.
    """

    common: SourceSettings
    end: str
    has_pushdown: bool
    begin_us: int | None = None
    end_us: int | None = None

    def with_topics(self, topics: Iterable[object]) -> BatchSettings:
        """The settings for those of some topics that are read at all.

        Args:
            topics: Names of topics.
        """
        common = self.common
        names = [name for name in topics if isinstance(name, str) and common.is_wanted(name)]
        if not names or common.read.topic in names:  # PySpark drops every row, or it is all
            return self
        # A pattern also of one topic: the server refuses a literal that it does not log.
        read = replace(common.read, topic=pattern_of(names))
        return replace(self, common=replace(common, read=read))

    def with_times(self, first_us: int, end_us: int) -> BatchSettings:
        """The settings for a range of time, at the ends that no option has set.

        Args:
            first_us: The first time that is wanted, in microseconds since 1970.
            end_us: The first time that is not wanted any more.
        """
        result = self
        # Times that no server can have, such as one for "ever", are left out.
        if 0 < first_us <= LAST_MICROSECOND and (
            self.common.begin == WORDS[EARLIEST] or self.begin_us is not None
        ):
            begin_us = max(first_us, self.begin_us or 0)
            common = replace(self.common, begin=str(Timestamp(begin_us)))
            result = replace(result, common=common, begin_us=begin_us)
        if end_us <= LAST_MICROSECOND and (self.end == _TO_THE_END or self.end_us is not None):
            last_us = end_us if self.end_us is None else min(end_us, self.end_us)
            result = replace(result, end=f"{Timestamp(max(0, last_us))})", end_us=last_us)
        return result


def read_batch(read: OptionReader) -> BatchSettings:
    """Read the options of a batch that reads the log.

    Args:
        read: The options.

    Raises:
        UsageError: An option is wrong; the message says how.
    """
    common = read_common(read, default_begin=EARLIEST)
    name = read.at_most_one("endingBookmark", "endingOffsets", "endingTimestamp")
    has_pushdown = read.flag("filterPushdown", default=False)
    read.check_unknown()
    if "," in common.begin:
        raise UsageError("amps: a batch begins at one bookmark or time, not at a list")
    if name == "endingTimestamp":
        end = f"{Timestamp(read.timestamp_us(name) or 0)})"
    else:
        end = f"{read_bookmark(read, name, LATEST)}]" if name else _TO_THE_END
    return BatchSettings(common, end, has_pushdown)


class ServerLogReader(DataSourceReader):
    """Reads a range of the log.

    Args:
        settings: The options.
    """

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings

    @override
    def partitions(self) -> Sequence[InputPartition]:
        read = self._settings.common.read
        return trio.run(ask_first, read.uris, f"{read.name}-plan", self._plan) or [LogRange()]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._settings.common.read, cast("LogRange", partition))

    async def _plan(self, client: Client) -> list[LogRange]:
        common = self._settings.common
        await log_info(client, common.topics)
        whole = common.parts == 1 and not common.splits
        found = await self._count(client, messages=None if whole else 1)
        if not found.messages:
            return []
        start, covered = found.log.place(found.begins - 1), None
        if common.mode == VECTOR:
            # Whatever the filter is: nothing of the range comes before its first message.
            before = await count(client, topic=common.read.topic, until=start.position)
            covered = before.publishers
        if whole:
            return [_part(common.filter, found, start, covered)]
        return await plan_parts(client, common, start=start, until=found.until, covered=covered)

    async def _count(self, client: Client, *, messages: int | None) -> Counted:
        """Count the range; the bookmark of its start or end may not be in the log."""
        common = self._settings.common
        count_from = partial(
            count,
            client,
            topic=common.read.topic,
            filter=common.filter,
            fully_durable=common.fully_durable,
            messages=messages,
        )
        try:
            return await count_from(bookmark=f"({common.begin}:{self._settings.end}")
        except DataLoss as error:
            try:
                rest = await count_from(bookmark=f"({WORDS[EARLIEST]}:{self._settings.end}")
            except DataLoss as no_end:  # so it is not the start, and failOnDataLoss is no help
                end = self._settings.end[:-1]
                raise DataLoss(
                    f"amps: endingBookmark {end} is not in the log: end elsewhere"
                ) from no_end
            if common.read.fails_on_loss:
                raise
            _log.warning("%s: reading begins at the oldest message", error)
            return rest


class FilteringLogReader(ServerLogReader):
    """Also reads less where the filters of a query allow it; PySpark applies them again."""

    @override
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            self._push(each)
        return filters

    def _push(self, condition: Filter) -> None:
        topics = wanted_texts(condition, "topic")
        if topics is not None:
            self._settings = self._settings.with_topics(topics)
        times = wanted_range(condition, "timestamp")
        if times is not None:
            self._settings = self._settings.with_times(*times)


async def plan_parts(
    client: Client,
    settings: SourceSettings,
    *,
    start: OffsetPlace,
    until: int,
    covered: Mapping[int, int] | None = None,
) -> list[LogRange]:
    """Cut a range of one log into partitions.

    Args:
        client: It has logged on to the server of the log.
        settings: The options.
        start: The range begins after it.
        until: The last position of the range.
        covered: A vector of everything up to the start, with which the partitions can be read from
            any replica; `None` where they are to be read from this log.
    """
    ask = partial(count, client, topic=settings.read.topic, until=until)
    parts: list[LogRange] = []
    if settings.splits:
        for each in settings.filters:
            found = await ask(filter=each, after=start.position)
            parts.append(_part(each, found, start, None))
        return [part for part in parts if part.ends]
    ask = partial(ask, filter=settings.filter)
    cut = partial(_pieces, ask, most=2 * settings.parts, start=start, until=until)
    pieces = await cut(PIECE_MESSAGES if settings.parts > 1 else None)
    total = sum(piece.messages for _, piece in pieces)
    if len(pieces) < min(settings.parts, total):  # so little that it may be counted once more
        pieces = await cut(-(-total // settings.parts))
    for place, piece in pieces:
        parts.append(_part(settings.filter, piece, place, covered))
        covered = None if covered is None else merged(covered, piece.publishers)
    return parts


async def _pieces(
    ask: Callable[..., Awaitable[Counted]],
    messages: int | None,
    *,
    most: int,
    start: OffsetPlace,
    until: int,
) -> list[tuple[OffsetPlace, Counted]]:
    """Cut a range into pieces of equal size, each with the place after which it begins.

    The server reads the log once for all of them: each question goes on where the last one ended.
    How many messages there are is not known before. So the pieces become twice as large each time
    that there are too many.

    Args:
        ask: Counts messages after a position.
        messages: The size of the pieces at first; `None` for one piece.
        most: An even number; there are fewer pieces.
        start: The range begins after it.
        until: The last position of the range.
    """
    pieces: list[tuple[OffsetPlace, Counted]] = []
    place = start
    while place.position < until:
        found = await ask(after=place.position, messages=messages)
        if found.messages:
            pieces.append((place, found))
        place = found.place
        if messages is not None and len(pieces) == most:
            messages *= 2
            pairs = zip(pieces[::2], pieces[1::2], strict=True)
            pieces = [(begin, one.joined(two)) for (begin, one), (_, two) in pairs]
    return pieces


def _part(
    filter_: str, found: Counted, start: OffsetPlace, covered: Mapping[int, int] | None
) -> LogRange:
    return LogRange(
        filter=filter_,
        ends=found.publishers,
        covered={} if covered is None else covered,
        places={start.instance: start},
        messages=found.messages,
        end=found.place,
        last=found.last,
        is_pinned=covered is None,
    )


def read_range(settings: ReadSettings, part: LogRange) -> Generator[pa.RecordBatch]:
    """Read a range in a task.

    Args:
        settings: How.
        part: The range.
    """
    if not part.ends:
        return
    name = task_name(settings.name)

    async def run(emit: Callable[[pa.RecordBatch], None]) -> None:
        await RangeReader(settings, part, name=name, emit=emit).run()

    yield from batches_of(run)
