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
from functools import partial
from typing import Any, cast

import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from typing_extensions import override

from haclient.client import Client
from haclient.errors import HAClientError
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import (
    Answer,
    Counted,
    ask_first,
    connected,
    count,
    known_position,
    log_info,
    set_guard,
)
from haclient.pyspark.server.offsets import POSITION, Offset, OffsetPlace, ends_between
from haclient.pyspark.server.range_reader import LogRange
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import plan_parts, read_range
from haclient_stores.bookmark import EPOCH

_log = logging.getLogger(__name__)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log from an offset on, batch by batch."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._end: OffsetPlace | None = None  # of a query that ends with what is there at its start
        self._ends_now = False
        self._passed: OffsetPlace | None = None  # nothing for the query up to it
        self._last: Offset | None = None
        self._reported: Offset | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        self._options.check_start()
        return self._ask(self._initial).to_json()

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return self._options.limit

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
        if self._options.guard:
            trio.run(self._set_guards, self._offset(end))

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = self._offset(start), self._offset(end)
        if begin.vector is not None and until.vector is not None:
            ends = ends_between(begin.vector, until.vector)
            messages = until.messages - begin.messages
            return [LogRange(self._options.filter, ends, begin.vector, begin.places, messages)]
        return self._ask(partial(self._plan, begin, until)) or [LogRange()]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, cast("LogRange", partition))

    def _ask(self, question: Callable[[Client], Awaitable[Answer]]) -> Answer:
        options = self._options
        return trio.run(ask_first, options.uris, f"{options.name}-driver", question)

    def _offset(self, found: Mapping[str, Any]) -> Offset:
        return Offset.from_json(found, mode=self._options.mode)

    async def _initial(self, client: Client) -> Offset:
        options = self._options
        topic = options.topic
        await log_info(client, options.topics)
        try:
            found = await count(client, topic=topic, bookmark=str(options.start), messages=1)
        except DataLoss as error:
            if options.fails_on_loss:
                raise
            _log.warning("%s: reading begins at the oldest message", error)
            found = await count(client, topic=topic, bookmark=str(EPOCH), messages=1)
        place = found.log.place(found.begins - 1)
        if options.mode == POSITION:
            return Offset({place.instance: place})
        before = await count(client, topic=topic, until=place.position)
        return Offset({place.instance: place}, before.publishers)

    async def _counter(self, client: Client, start: Offset) -> Callable[..., Awaitable[Counted]]:
        """What counts the messages after an offset."""
        after, options = await self._begin(client, start), self._options
        ask = partial(count, client, topic=options.topic, filter=options.filter)
        return partial(ask, after=after, covered=start.vector)

    async def _latest(self, start: Offset, limit: ReadLimit, client: Client) -> Offset:
        """The offset after the next messages; `start` itself where there are none."""
        count_next = await self._counter(client, start)
        found = await count_next(
            until=await self._until(client),
            messages=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            payload_bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
            fully_durable=self._options.fully_durable,
        )
        if not found.messages:
            # The same offset again: another one would be a batch without rows.
            self._passed = found.place
            return start
        return start.advanced(found.place, found.publishers, found.messages)

    async def _report(self, start: Offset, client: Client) -> Offset:
        count_next = await self._counter(client, start)
        found = await count_next(most_questions=1)
        return start.advanced(found.place, found.publishers, found.messages)

    async def _set_guards(self, end: Offset) -> None:
        """Set the guard at each instance that is up and of which the offset has a place."""
        async with trio.open_nursery() as nursery:  # the next batch waits for the slowest server
            for uri in self._options.uris:
                nursery.start_soon(self._set_guard, uri, end)

    async def _set_guard(self, uri: str, end: Offset) -> None:
        name, guard = self._options.name, self._options.guard
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
        options = self._options
        log = await log_info(client, options.topics)
        is_pinned, fails = start.vector is None, options.fails_on_loss
        known = known_position(log, start.places, is_pinned=is_pinned, fails_on_loss=fails)
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
        options = self._options
        start, end = begin.place, until.place
        if start is None or end is None:
            return []
        log, fails = await log_info(client), options.fails_on_loss
        for place in (start, end):
            known_position(log, {place.instance: place}, is_pinned=True, fails_on_loss=fails)
        return await plan_parts(client, options, start=start, until=end.position)
