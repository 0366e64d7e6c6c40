"""The commands about queues: acknowledgements, which are deletes, and browsing.

What looks at many messages is carried out in steps between the batches of the broker. Each step
sees the queue as it is then. The commands that follow an acknowledgement on its connection wait for
its end, with which its sequence is used up: a client that is cut before sends it again. A query
holds nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.acks import Reason, Refused, ack, requested
from haclient_fake_server.engine.answers import Answer, check_batch_size
from haclient_fake_server.engine.connections import Connection, LongCommand, Style
from haclient_fake_server.engine.filters import Document, Filter
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.queues.message_reader import Content
from haclient_fake_server.engine.queues.message_table import MessageRow
from haclient_fake_server.engine.queues.queue import MICROSECONDS, Queue
from haclient_fake_server.engine.requests import (
    MAX_PENDING_COMMANDS,
    Request,
    read_options,
    read_request,
)
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.timers import Clock, timestamp_text
from haclient_stores.bookmark import Bookmark
from haclient_stores.errors import StoreCorrupt

STEP_MESSAGES: Final = 500
"""Messages that one step reads."""
PAGED_STEP_MESSAGES: Final = 4
"""Messages that are acknowledged between two looks at what a paged table has read for them."""
STEP_BYTES: Final = 2**20
"""What one step of a query sends, at least one message: large messages must not fill the memory."""

_NO_OPTIONS: Final = Options()

Action: TypeAlias = Callable[[Collection[int]], None]


@dataclass(eq=False, slots=True)
class QueueCommands:
    """Executes acknowledgements and queries of queues."""

    log: LogWriter
    routes: Routes
    clock: Clock
    outbox: Outbox
    acks: PersistedAcks

    def queue_of(self, connection: Connection, topic: str) -> Queue | None:
        """The queue of this name, if there is one."""
        return self.routes.queues.get(topic, connection.message_type)

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledge(self, connection: Connection, message: Message, queue: Queue) -> None:
        """Acknowledge, cancel or expire messages, or extend their leases.

        Raises:
            Refused: Nothing has changed.
        """
        options = read_options(message) if message.options else _NO_OPTIONS
        act = self._action(connection, queue, options)
        if bool(message.bookmark) == bool(message.filter):
            raise Refused(Reason.INVALID_BOOKMARK, "wanted either bookmarks or a filter")
        allowed: Filter | None = None
        if connection.reading is not None:
            _, allowed = connection.reading.with_filter(message.topic, "", None)
        if message.filter:
            request = read_request(message, _literal(options), connection.reading)
            if self._is_duplicate(connection, message, queue):
                return
            steps = self._end_matching(connection, request, queue, act)
        else:
            steps = self._end_listed(connection, message, queue, act, allowed)
        if next(steps, self) is not self:
            connection.blocking = steps
            self.outbox.wake(connection)

    def _is_duplicate(self, connection: Connection, message: Message, queue: Queue) -> bool:
        """Whether a command was carried out before; then it is confirmed again."""
        if not message.sequence or message.sequence > connection.publisher.seen:
            return False
        self.acks.acknowledge_duplicate(connection, message)
        self._stats(connection, message, queue)
        return True

    def _action(self, connection: Connection, queue: Queue, options: Options) -> Action:
        """What an acknowledgement does with the messages of some positions."""
        if options.lease_extension_s is not None:
            extension_us = round(options.lease_extension_s * MICROSECONDS)
            return lambda positions: queue.extend(
                positions, connection, self.clock.wall_us + extension_us
            )
        if options.cancel:
            return lambda positions: queue.cancel(positions, connection)
        if options.expire:
            return lambda positions: queue.expire(positions, connection)
        return lambda positions: queue.acknowledge(positions, connection)

    def _end_listed(  # the parts of a command
        self,
        connection: Connection,
        message: Message,
        queue: Queue,
        act: Action,
        allowed: Filter | None,
    ) -> LongCommand:
        """Acknowledge a list of bookmarks, once all of them are known to be well-formed.

        Those of messages that the user may not read are as if there were no such messages.
        """
        found: dict[int, None] = {}
        try:
            for number, text in enumerate(message.bookmark.split(","), 1):
                lease = queue.lease_of(text)  # as it was sent, mostly
                position = _position(queue, text.strip()) if lease is None else lease.row.position
                if position is not None and (
                    allowed is None or _is_allowed(queue, position, allowed)
                ):
                    found[position] = None
                if number % STEP_MESSAGES == 0 or queue.has_read_enough:
                    yield
        except Refused as error:
            self.outbox.refuse(connection, message, error)
            return
        if self._is_duplicate(connection, message, queue):
            return
        positions = list(found)
        some = PAGED_STEP_MESSAGES if queue.settings.file_backed else STEP_MESSAGES
        removed = 0
        for start in range(0, len(positions), some):
            if start and (start % STEP_MESSAGES == 0 or queue.has_read_enough):
                yield
            before = len(queue.removals)
            act(positions[start : start + some])
            removed += len(queue.removals) - before
        self.log.note_seen(
            connection.publisher, message.sequence or 0
        )  # a client that is cut before sends it again
        if message.ack_type:
            self._confirm(connection, message, queue, matches=len(positions), removed=removed)

    def _end_matching(
        self, connection: Connection, request: Request, queue: Queue, act: Action
    ) -> LongCommand:
        """Acknowledge by filter, whoever has the messages."""
        matches = removed = 0
        for number, position in enumerate(queue.unfinished(), 1):
            if number % STEP_MESSAGES == 0:
                yield
            content = queue.content(position)
            if content is None or not _matches(request, queue, content):
                continue
            before = len(queue.removals)
            act((position,))
            matches += 1
            removed += len(queue.removals) - before
        message = request.message
        self.log.note_seen(connection.publisher, message.sequence or 0)
        self._confirm(connection, message, queue, matches=matches, removed=removed)

    def _confirm(
        self, connection: Connection, message: Message, queue: Queue, *, matches: int, removed: int
    ) -> None:
        wanted = requested(message.ack_type)
        more = {"s": message.sequence} if message.sequence else None
        self.outbox.acknowledge(
            connection, message, "received", "processed", "completed", more=more
        )
        if "persisted" in wanted:
            self.outbox.confirm(connection, ack("persisted", message.command_id, more=more))
        self._stats(connection, message, queue, matches=matches, removed=removed)

    def _stats(
        self,
        connection: Connection,
        message: Message,
        queue: Queue,
        *,
        matches: int = 0,
        removed: int = 0,
    ) -> None:
        if "stats" not in requested(message.ack_type):
            return
        counts: dict[str, str | int] = {
            "records_deleted": removed,
            "topic_matches": len(queue.table),
            "matches": matches,
        }
        if message.query_id:
            counts["query_id"] = message.query_id
        self.outbox.send(connection, ack("stats", message.command_id, more=counts))

    # --- browsing --------------------------------------------------------------------------------

    def browse(self, connection: Connection, message: Message, queue: Queue) -> None:
        """Answer a query with the available messages, which stay available.

        Raises:
            Refused: Why.
        """
        request = read_request(message, _literal(read_options(message)), connection.reading)
        if message.bookmark or message.order_by or message.sow_keys:
            detail = "a query of a queue has the order of the log, and no bookmark or keys"
            raise Refused(Reason.INVALID_OPTIONS, detail)
        check_batch_size(message)
        _check_pending(connection)
        query_id = message.query_id or message.sub_id or message.command_id
        more = {"query_id": query_id}
        self.outbox.acknowledge(connection, message, "received", "processed", more=more)
        self._begin(connection, self._answer(connection, request, queue, query_id))

    def _answer(
        self, connection: Connection, request: Request, queue: Queue, query_id: str
    ) -> LongCommand:
        answer = Answer(self.outbox, connection, request.message, {"query_id": query_id})
        matches = examined = size = 0
        skipped = request.options.skip_n or 0
        for position in queue.available():
            if answer.returned == request.top_n:
                break
            examined += 1
            row, content = queue.row(position), queue.content(position)
            if row is not None and content is not None and _matches(request, queue, content):
                matches += 1
                if matches > skipped:
                    body = request.wanted_of(content.body, queue.settings.message_type)
                    answer.add(request.message.topic, _fields(request, row, content), body)
                    size += len(content.body)
            if size >= STEP_BYTES:  # not kept for a fuller frame: large messages fill the memory
                answer.send_batch()
            if size >= STEP_BYTES or examined % STEP_MESSAGES == 0:
                size = 0
                yield
        answer.end(topic_matches=request.seen_of(examined, matches), matches=matches)

    def _begin(self, connection: Connection, command: LongCommand) -> None:
        connection.queries.append(command)
        self.outbox.wake(connection)


def _check_pending(connection: Connection) -> None:
    """Check that a connection may begin another command that takes several steps.

    Raises:
        Refused: It has too many that have not ended.
    """
    pending = len(connection.queries)
    if pending >= MAX_PENDING_COMMANDS:
        raise Refused(Reason.TOO_MANY_QUERIES, f"{pending} are not answered yet")


def _position(queue: Queue, text: str) -> int | None:
    try:
        bookmark = Bookmark.parse(text)
    except UsageError as error:
        raise Refused(Reason.INVALID_BOOKMARK, str(error)) from error
    lease = queue.lease_of(str(bookmark))
    if lease is not None:
        return lease.row.position
    return queue.table.find(bookmark.publisher_id, bookmark.sequence)


def _is_allowed(queue: Queue, position: int, allowed: Filter) -> bool:
    try:
        document = queue.document(position)
    except StoreCorrupt:  # nobody can read it
        return False
    return document is not None and allowed(document)


def _matches(request: Request, queue: Queue, content: Content) -> bool:
    return request.filter is None or request.filter(
        Document(content.body, queue.settings.message_type)
    )


def _fields(request: Request, row: MessageRow, content: Content) -> dict[str, str | int]:
    fields: dict[str, str | int] = {"bm": row.bookmark}
    if request.style & Style.TIMESTAMP:
        fields["ts"] = timestamp_text(content.timestamp_us).decode("ascii")
    if content.correlation_id:
        fields["x"] = to_text(content.correlation_id)
    return fields


def _literal(options: Options) -> Options:
    """The name of a queue is not a pattern, although it may have a dot."""
    return replace(options, non_regex_topic=True)
