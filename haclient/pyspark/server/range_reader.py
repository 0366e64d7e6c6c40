"""Reading a range of a log in a task, as Arrow record batches.

A range is described by what it contains (see `Membership` in `haclient.pyspark.server.offsets`),
not by where it is in one log. So a task can go on at another server in the middle of its range: it
asks there where what it still lacks begins, and takes what belongs to the range and did not come
before. A server that lacks messages of the range may still get them by replication: the task waits,
visits the other servers in turn, and fails when nothing has come for the time-out. Where loss is
accepted, it does not wait for the publishers of which the servers have removed all that is missing.

trio runs in a thread of its own while the task's generator is read, a few batches ahead of it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final

import pyarrow as pa
import trio
from pyspark.sql.datasource import InputPartition

from haclient.client import Client
from haclient.errors import HAClientError, UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import (
    Counted,
    connected,
    count,
    known_position,
    last_sequence,
    log_info,
)
from haclient.pyspark.server.message_rows import RowBatcher, bookmark_numbers
from haclient.pyspark.server.offsets import Membership, OffsetPlace
from haclient.pyspark.server.settings import ServerOptions

_log = logging.getLogger(__name__)

QUEUED_BATCHES: Final = 4
"""Batches that wait for the task: the network and the JVM work at the same time."""

WAIT_S: Final = 0.2
"""Between two looks at servers that lack something."""

VISIT_S: Final = 2.0
"""How long a server may be silent before another one is asked; a single one has the time-out."""

_LATER: Final = "99991231T235959Z"
"""The end of a subscription whose end is not known on this server yet."""


@dataclass(frozen=True)
class LogRange(InputPartition):
    """The messages that one task reads.

    Attributes:
        filter: Their content filter.
        ends: By publisher id, the last sequence; other publishers have no messages in it.
        covered: By publisher id, the sequence up to which messages come before the range.
        places: By instance, a place before which nothing of the range is.
        messages: How many they are, `None` where nobody has counted.
        end: The place of the last one, `None` where it is not known.
        last: Its bookmark there.
        is_pinned: Whether `covered` is incomplete, so that the range can be read only from the log
            of its only place.
        topic: Their topic; empty for all that the query reads.
    """

    filter: str = ""
    ends: Mapping[int, int] = field(default_factory=dict[int, int])
    covered: Mapping[int, int] = field(default_factory=dict[int, int])
    places: Mapping[str, OffsetPlace] = field(default_factory=dict[str, OffsetPlace])
    messages: int | None = None
    end: OffsetPlace | None = None
    last: str = ""
    is_pinned: bool = False
    topic: str = ""


class RangeReader:
    """Reads one range, and emits its batches in order; `name` is the client's."""

    def __init__(
        self,
        settings: ServerOptions,
        part: LogRange,
        *,
        name: str,
        emit: Callable[[pa.RecordBatch], None],
    ) -> None:
        self._settings = settings
        self._part = part
        self._topic = part.topic or settings.topic
        self._name = name
        self._rows = RowBatcher(settings.columns, settings.batch_rows, emit)
        self._members = Membership(part.covered, part.ends)
        self._removed: list[frozenset[int]] = []  # of which publishers, by server of this round

    async def run(self) -> None:
        """Read the range to its end.

        Raises:
            DataLoss: Messages of the range are gone.
            HAClientError: No server had the rest of the range in time.
        """
        members, timeout_s = self._members, self._settings.timeout_s
        deadline = trio.current_time() + timeout_s
        while not members.is_complete:
            taken = members.taken
            reason = await self._visit_servers()
            if members.taken > taken:
                deadline = trio.current_time() + timeout_s
            is_late = trio.current_time() > deadline
            self._give_up_removed(is_late=is_late)
            if members.is_complete:
                break
            if is_late:
                raise HAClientError(
                    f"amps: no server has sent {members.describe_missing()} of "
                    f"{self._topic!r} within {timeout_s:g} s: {reason}"
                )
            await trio.sleep(WAIT_S)
        self._rows.finish()
        self._check_number()

    async def _visit_servers(self) -> str:
        """Read what each server has, in turn; why the range is not complete after that."""
        settings, reason = self._settings, ""
        self._removed.clear()
        for number, uri in enumerate(settings.uris, 1):
            try:
                async with connected((uri,), self._name) as client:
                    await self._read_from(client)
                reason = f"server {number} of uri does not have it"  # a uri may have a password
            except (UsageError, DataLoss):  # nothing that another attempt could change
                raise
            except HAClientError as error:  # down, restarting, or lost on the way
                if len(settings.uris) == 1 and not self._members.taken:
                    raise  # an error at once is clearer than one after the time-out
                reason = str(error)
            if self._members.is_complete:
                break
        return reason

    def _give_up_removed(self, *, is_late: bool) -> None:
        """Give up what all servers have removed, at last those that could be asked."""
        if not self._removed or not (is_late or len(self._removed) == len(self._settings.uris)):
            return
        first, *others = self._removed
        removed = first.intersection(*others)
        if removed:
            _log.warning(
                "amps: all that was left of %d publishers in a range of %r was removed: it is read "
                "without them",
                len(removed),
                self._topic,
            )
            self._members.give_up(removed)

    def _check_number(self) -> None:
        part, taken = self._part, self._members.taken
        if part.messages is not None and taken != part.messages and self._settings.fails_on_loss:
            raise DataLoss(
                f"amps: a range of {self._topic!r} had {part.messages} messages when it "
                f"was planned, and {taken} were read: set failOnDataLoss=false to go on without"
            )

    async def _read_from(self, client: Client) -> None:
        """Read from one server until the range is complete or the server has no more of it."""
        settings = self._settings
        log = await log_info(client)
        after = known_position(
            log,
            self._part.places,
            is_pinned=self._part.is_pinned,
            fails_on_loss=settings.fails_on_loss,
        )
        removed: frozenset[int] = frozenset()
        if not settings.fails_on_loss:
            removed = await self._find_removed(client, after, log.oldest_position)
            self._removed.append(removed)
            if removed >= self._members.missing.keys():
                return
        found = await self._count(client, after, messages=1)
        if not found.first:
            return
        until, end = _LATER, self._part.end
        if end is not None and log.has(end) and found.begins <= end.position:
            until = self._part.last  # else the server goes on until it is told to stop
        patience_s = min(VISIT_S if len(settings.uris) > 1 else inf, settings.timeout_s)
        async with client.bookmark_stream(
            self._topic,
            sub_id="range",
            bookmark=f"[{found.first}:{until}]",
            filter=self._part.filter,
            options=Options(timestamp=True, bookmark_not_found="fail"),
        ) as stream:
            batches = stream.batches()
            # What was removed does not come: whoever waits for it waits for the time-out.
            while not (removed >= self._members.missing.keys()):
                messages: list[Message] = []
                with trio.move_on_after(patience_s):
                    messages = await anext(batches, list[Message]())
                if not messages:  # the rest is not on this server, or the link is lost
                    return
                self._take(messages)

    async def _find_removed(self, client: Client, after: int | None, oldest: int) -> frozenset[int]:
        """The publishers whose rest of the range this server had, and has removed."""
        if (after or 0) + 1 >= oldest:
            return frozenset()
        left = (await self._count(client, after)).publishers
        gone = [(each, end) for each, end in self._members.missing.items() if each not in left]
        # A server that has not seen the end of a publisher's range may still get it.
        return frozenset([each for each, end in gone if await last_sequence(client, each) >= end])

    async def _count(
        self, client: Client, after: int | None, *, messages: int | None = None
    ) -> Counted:
        """Count what the topic has on this server that was not read and is not before the range."""
        part, reached = self._part, self._members.reached
        return await count(
            client,
            topic=self._topic,
            filter=part.filter,
            after=after,
            covered=reached if reached or not part.is_pinned else None,
            messages=messages,
        )

    def _take(self, messages: Sequence[Message]) -> None:
        """Add the messages that belong to the range to its rows."""
        take = self._members.take
        ids, sequences = bookmark_numbers(messages)
        numbers = zip(messages, ids.to_pylist(), sequences.to_pylist(), strict=True)
        self._rows.add([message for message, each, number in numbers if take(each, number)])


class _Stopped(Exception):
    """The generator of the task was closed."""


def batches_of(
    read: Callable[[Callable[[pa.RecordBatch], None]], Awaitable[None]],
) -> Generator[pa.RecordBatch]:
    """What an async function emits, as a generator; it runs in a thread of its own."""
    waiting: queue.Queue[pa.RecordBatch | BaseException | None] = queue.Queue(QUEUED_BATCHES)
    stopped, scope = threading.Event(), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []

    def emit(batch: pa.RecordBatch | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                waiting.put(batch, timeout=WAIT_S)
                return
        raise _Stopped

    async def run() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        with scope:
            if not stopped.is_set():  # else it was closed before it could be cancelled
                await read(emit)

    def work() -> None:
        end: BaseException | None = None
        try:
            trio.run(run)
        except BaseException as error:  # the generator raises it in the task's thread
            end = error
        with suppress(_Stopped):
            emit(end)

    thread = threading.Thread(target=work, name="haclient-reader", daemon=True)
    thread.start()
    try:
        while (batch := waiting.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
    finally:
        stopped.set()
        for token in tokens:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(scope.cancel)  # it may wait for a silent server
        thread.join()
