"""The streaming source of `format("amps")`.

An offset is one JSON object in the checkpoint (see `haclient.pyspark.server.offsets`). The driver
plans the end of each batch by asking the server where it is after the next messages, so a batch is
a fixed set of messages before any task begins, and the same set when it is repeated. PySpark keeps
one reader for each query in a process of its own; what it remembers only saves work.

With `offsetMode=vector` any replica of `uri` can plan a batch and serve it. A replica that lags
has nothing new to plan; the tasks of a batch that another server has planned wait for it.

`commit` and `stop` are not relied on: PySpark does not call them for the last batch.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from haclient.client import Client
from haclient.errors import HAClientError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import (
    Answer,
    ask_first,
    connected,
    count,
    known_position,
    log_info,
    set_guard,
)
from haclient.pyspark.server.offsets import POSITION, Offset, OffsetPlace, ends_between
from haclient.pyspark.server.range_reader import LogRange
from haclient.pyspark.server.settings import (
    EARLIEST,
    LATEST,
    WORDS,
    SourceSettings,
    read_common,
)
from haclient.pyspark.server.source import plan_parts, read_range

_log = logging.getLogger(__name__)

_LIMITS: Final = ("maxMessagesPerTrigger", "maxOffsetsPerTrigger", "maxBytesPerTrigger")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The options of a stream.

    Attributes:
        common: What batch and stream have in common.
        max_messages: The most messages of a batch, `None` for all.
        max_bytes: The most bytes of payload of a batch, `None` for all.
        guard: The name of the guard against removal that the stream sets; empty for none.
    """

    common: SourceSettings
    max_messages: int | None
    max_bytes: int | None
    guard: str


def read_stream(read: OptionReader) -> StreamSettings:
    """Read the options of a stream.

    Args:
        read: The options.

    Raises:
        UsageError: An option is wrong; the message says how.
    """
    common = read_common(read, default_begin=LATEST)
    name = read.at_most_one(*_LIMITS)
    max_bytes = read.size(name) if name == "maxBytesPerTrigger" else None
    max_messages = read.integer(name) if name and max_bytes is None else None
    guard = read.text("guard", "")
    read.check_unknown()
    return StreamSettings(common, max_messages, max_bytes, guard)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log from an offset on, batch by batch.

    Args:
        settings: The options.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self._end: OffsetPlace | None = None  # of a query that ends with what is there at its start
        self._ends_now = False
        self._passed: OffsetPlace | None = None  # nothing for the query up to it
        self._last: Offset | None = None
        self._reported: Offset | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        return self._ask(self._initial).to_json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        settings = self._settings
        if settings.max_messages is not None:
            return ReadMaxRows(settings.max_messages)
        if settings.max_bytes is not None:
            return ReadMaxBytes(settings.max_bytes)
        return ReadAllAvailable()

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._ends_now = True

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        self._last = self._ask(partial(self._latest, self._offset(start), limit))
        return self._last.to_json()

    @override
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the log: with the end of the batch it gives the lag, in messages.

        Each call goes on where the last one has ended, and asks one question. So a long backlog is
        counted in the course of several batches, and the broker serves others in between.
        """
        if self._last is None:
            return None
        if self._reported is None or self._reported.messages < self._last.messages:
            self._reported = self._last
        try:
            self._reported = self._ask(partial(self._report, self._reported))
        except HAClientError as error:  # the next batch fails by it if it lasts
            _log.warning("amps: the lag is not known: %s", error)
        return self._reported.to_json()

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Move the guard; the last batch of a query is not committed."""
        if not self._settings.guard:
            return
        trio.run(self._set_guards, self._offset(end))

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = self._offset(start), self._offset(end)
        if begin.vector is not None and until.vector is not None:
            part = LogRange(
                self._settings.common.filter,
                ends_between(begin.vector, until.vector),
                begin.vector,
                begin.places,
                until.messages - begin.messages,
            )
            return [part]
        return self._ask(partial(self._plan, begin, until)) or [LogRange()]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._settings.common.read, cast("LogRange", partition))

    def _ask(self, question: Callable[[Client], Awaitable[Answer]]) -> Answer:
        read = self._settings.common.read
        return trio.run(ask_first, read.uris, f"{read.name}-driver", question)

    def _offset(self, found: Mapping[str, Any]) -> Offset:
        return Offset.from_json(found, mode=self._settings.common.mode)

    async def _initial(self, client: Client) -> Offset:
        common = self._settings.common
        topic = common.read.topic
        await log_info(client, common.topics)
        try:
            found = await count(client, topic=topic, bookmark=common.begin, messages=1)
        except DataLoss as error:
            if common.read.fails_on_loss:
                raise
            _log.warning("%s: reading begins at the oldest message", error)
            found = await count(client, topic=topic, bookmark=WORDS[EARLIEST], messages=1)
        place = found.log.place(found.begins - 1)
        if common.mode == POSITION:
            return Offset({place.instance: place})
        before = await count(client, topic=topic, until=place.position)
        return Offset({place.instance: place}, before.publishers)

    async def _latest(self, start: Offset, limit: ReadLimit, client: Client) -> Offset:
        """The offset after the next messages; `start` itself where there are none."""
        common = self._settings.common
        found = await count(
            client,
            topic=common.read.topic,
            filter=common.filter,
            after=await self._begin(client, start),
            covered=start.vector,
            until=await self._until(client),
            messages=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            payload_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            fully_durable=common.fully_durable,
        )
        if not found.messages:
            # The same offset again: another one would be a batch without rows.
            self._passed = found.place
            return start
        return start.advanced(found.place, found.publishers, found.messages)

    async def _report(self, start: Offset, client: Client) -> Offset:
        common = self._settings.common
        found = await count(
            client,
            topic=common.read.topic,
            filter=common.filter,
            after=await self._begin(client, start),
            covered=start.vector,
            most_questions=1,
        )
        return start.advanced(found.place, found.publishers, found.messages)

    async def _set_guards(self, end: Offset) -> None:
        """Set the guard at each instance that is up and of which the offset has a place."""
        async with trio.open_nursery() as nursery:  # the next batch waits for the slowest server
            for uri in self._settings.common.read.uris:
                nursery.start_soon(self._set_guard, uri, end)

    async def _set_guard(self, uri: str, end: Offset) -> None:
        name, guard = self._settings.common.read.name, self._settings.guard
        try:
            async with connected((uri,), f"{name}-driver") as client:
                log = await log_info(client)
                place = end.places.get(log.instance)
                if place is not None and log.has(place):
                    await set_guard(client, guard, place.position)
        except HAClientError as error:
            # An older guard keeps more, which does no harm.
            _log.warning("amps: the guard %r is not renewed at a server: %s", guard, error)

    async def _begin(self, client: Client, start: Offset) -> int | None:
        """After which position of this server's log the next messages are."""
        common = self._settings.common
        log = await log_info(client, common.topics)
        known = known_position(
            log,
            start.places,
            is_pinned=start.vector is None,
            fails_on_loss=common.read.fails_on_loss,
        )
        if self._passed is not None and log.has(self._passed):
            known = max(self._passed.position, -1 if known is None else known)
        return known

    async def _until(self, client: Client) -> int | None:
        """The last position of a query that reads what was there when it began."""
        if not self._ends_now:
            return None
        log = await log_info(client)
        if self._end is None or not log.has(self._end):
            # Its first batch, or one on another server, whose log has other positions.
            self._end = log.place(log.last_position)
        return self._end.position

    async def _plan(self, begin: Offset, until: Offset, client: Client) -> list[LogRange]:
        common = self._settings.common
        start, end = begin.place, until.place
        if start is None or end is None:
            return []
        log = await log_info(client)
        for place in (start, end):
            known_position(
                log,
                {place.instance: place},
                is_pinned=True,
                fails_on_loss=common.read.fails_on_loss,
            )
        return await plan_parts(client, common, start=start, until=end.position)
