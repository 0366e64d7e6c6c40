"""The batch source of `format("amps")`: a range of the log.

The end of a range is fixed when the query is planned, so a task that is tried again reads the same
rows. The planner counts the range with the server and cuts it into partitions: of equal numbers of
messages, one for each topic or slice of time, or one for each content filter of `splits`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias, cast

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceReader, InputPartition
from typing_extensions import override

from haclient.client import Client
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import Counted, ask_first, count, log_info
from haclient.pyspark.server.offsets import VECTOR, OffsetPlace, merged
from haclient.pyspark.server.range_reader import LogRange, RangeReader, batches_of
from haclient.pyspark.server.settings import TIME, TOPIC, ServerOptions, task_name, topic_of
from haclient_stores.bookmark import EPOCH, BookmarkList, Timestamp

_log = logging.getLogger(__name__)

PIECE_MESSAGES: Final = 2**13
"""Messages of a part of a range, at first."""

_Ask: TypeAlias = Callable[..., Awaitable[Counted]]
_Piece: TypeAlias = tuple[OffsetPlace, Counted]
"""Some messages, with the place after which they begin."""


class ServerLogReader(DataSourceReader):
    """Reads a range of the log."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options

    @override
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        return trio.run(ask_first, options.uris, f"{options.name}-plan", self._plan) or [LogRange()]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, cast("LogRange", partition))

    async def _plan(self, client: Client) -> list[LogRange]:
        options = self._options
        await log_info(client, options.topics)
        is_cut = options.min_partitions > 1 or options.splits or options.partition_by == TOPIC
        found = await self._count(client, messages=1 if is_cut else None)
        if not found.messages:
            return []
        start, covered = found.log.place(found.begins - 1), None
        if options.mode == VECTOR:
            # Whatever the filter is: nothing of the range comes before its first message.
            before = await count(client, topic=options.topic, until=start.position)
            covered = before.publishers
        if not is_cut:
            return [_part(options.filter, found, start, covered)]
        return await plan_parts(client, options, start=start, until=found.until, covered=covered)

    async def _count(self, client: Client, *, messages: int | None) -> Counted:
        """Count the range; the bookmark of its start or end may not be in the log."""
        options = self._options
        end = f"{options.end}{')' if isinstance(options.end, Timestamp) else ']'}"
        count_from = partial(
            count,
            client,
            topic=options.topic,
            filter=options.filter,
            fully_durable=options.fully_durable,
        )
        begin = f"({options.start}"
        try:
            if isinstance(options.start, BookmarkList):  # which a range cannot begin with
                first = await count_from(bookmark=str(options.start), messages=1)
                if not first.messages:
                    return first
                begin = f"[{first.first}"
            return await count_from(bookmark=f"{begin}:{end}", messages=messages)
        except DataLoss as error:
            try:
                rest = await count_from(bookmark=f"({EPOCH}:{end}", messages=messages)
            except DataLoss as no_end:  # so it is not the start, and failOnDataLoss is no help
                raise DataLoss(
                    f"amps: endingBookmark {options.end} is not in the log: end elsewhere"
                ) from no_end
            if options.fails_on_loss:
                raise
            _log.warning("%s: reading begins at the oldest message", error)
            return rest


async def plan_parts(
    client: Client,
    options: ServerOptions,
    *,
    start: OffsetPlace,
    until: int,
    covered: Mapping[int, int] | None = None,
) -> list[LogRange]:
    """Cut a range of one log into partitions.

    Args:
        client: It has logged on to the server of the log.
        options: What is read.
        start: The range begins after it.
        until: The last position of the range.
        covered: A vector of everything up to the start, with which the partitions can be read from
            any replica; `None` where they are to be read from this log.
    """
    ask = partial(count, client, until=until)
    parts: list[LogRange] = []
    if options.splits or options.partition_by == TOPIC:
        topics = [topic_of([each]) for each in options.topics if options.partition_by == TOPIC]
        for topic in topics or [options.topic]:
            for each in options.filters:
                found = await ask(topic=topic, filter=each, after=start.position)
                parts.append(_part(each, found, start, covered, topic if topics else ""))
        return [part for part in parts if part.ends]
    ask = partial(ask, topic=options.topic, filter=options.filter)
    number = options.min_partitions
    if number > 1 and options.partition_by == TIME:
        times = partial(count, client, topic=options.topic, messages=1)
        cut = await _slices(ask, times, number, start)
    else:
        pieces = partial(_pieces, ask, most=2 * number, start=start, until=until)
        cut = await pieces(PIECE_MESSAGES if number > 1 else None)
        total = sum(piece.messages for _, piece in cut)
        if len(cut) < min(number, total):  # so little that it may be counted once more
            cut = await pieces(-(-total // number))
    for place, piece in cut:
        parts.append(_part(options.filter, piece, place, covered))
        covered = None if covered is None else merged(covered, piece.publishers)
    return parts


async def _slices(ask: _Ask, ask_time: _Ask, number: int, start: OffsetPlace) -> list[_Piece]:
    """Cut a range into slices of equal time; those without messages are left out.

    Args:
        ask: Counts messages after a position, up to the end of the range.
        ask_time: Finds the first message after a bookmark, which is here a time.
        number: How many slices there are.
        start: The range begins after it.
    """
    first, whole = await ask(after=start.position, messages=1), await ask(after=start.position)
    if not whole.messages:
        return []
    begin_us, end_us = (Timestamp.parse(each.timestamp).microseconds for each in (first, whole))
    span_us = max(0, end_us - begin_us)
    pieces: list[_Piece] = []
    place = start
    for each in range(1, number + 1):
        end = whole.position
        if each < number:
            later = await ask_time(bookmark=str(Timestamp(begin_us + span_us * each // number)))
            end = min(later.begins - 1, end)
        if place.position < end:
            found = await ask(after=place.position, until=end)
            pieces += [(place, found)] if found.messages else []
            place = found.place
    return pieces


async def _pieces(
    ask: _Ask, messages: int | None, *, most: int, start: OffsetPlace, until: int
) -> list[_Piece]:
    """Cut a range into pieces of equal size.

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
    pieces: list[_Piece] = []
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
    filter_: str,
    found: Counted,
    start: OffsetPlace,
    covered: Mapping[int, int] | None,
    topic: str = "",
) -> LogRange:
    return LogRange(
        filter=filter_,
        topic=topic,
        ends=found.publishers,
        covered={} if covered is None else covered,
        places={start.instance: start},
        messages=found.messages,
        end=found.place,
        last=found.last,
        is_pinned=covered is None,
    )


def read_range(options: ServerOptions, part: LogRange) -> Generator[pa.RecordBatch]:
    """Read a range in a task."""
    if not part.ends:
        return
    name = task_name(options.name)

    async def run(emit: Callable[[pa.RecordBatch], None]) -> None:
        await RangeReader(options, part, name=name, emit=emit).run()

    yield from options.rows(batches_of(run))
