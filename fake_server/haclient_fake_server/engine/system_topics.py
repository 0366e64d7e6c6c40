"""The broker's own topics under `/HACLIENT/`, which answer `sow` queries about the broker itself.

AMPS has no such topics. They hold no messages: a query has its parameters as one JSON object in its
body, and its result is one JSON record that is computed for it.

========================  ========================================================================
`/HACLIENT/status`        the log: its identity, its oldest, last, confirmed and durable position
`/HACLIENT/position`      where a reader is after a number of messages or bytes
`/HACLIENT/guards`        sets, renews and drops guards against removal, and lists them
`/HACLIENT/publisher`     the last sequence and the last message of a publisher
`/HACLIENT/queues`        the message queues, or one of them
`/HACLIENT/clients`       the connections
`/HACLIENT/subscriptions` the subscriptions, with their positions in the log
========================  ========================================================================

No pattern matches these topics, and every other command on them is refused. What the broker does
not know is left out of an answer.

A query is accepted or refused at once. It is answered in steps between the batches of the broker
(see `log_query`), in the order of the queries of a connection, and so after the records of its own
batch are written. The result of a query belongs to one instant, that of its first step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.answers import Answer
from haclient_fake_server.engine.connections import Connection, LongCommand
from haclient_fake_server.engine.filters import FilterError, compile_filter
from haclient_fake_server.engine.guards import DEFAULT_TTL_S, MAX_TTL_S, Guards
from haclient_fake_server.engine.log_query import (
    Limits,
    Selected,
    Steps,
    Tally,
    count_messages,
    count_of_publisher,
    find_last_message,
)
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import TopicMatcher, TopicPatternError, to_text
from haclient_fake_server.engine.queues.dispatcher import QueueDispatcher
from haclient_fake_server.engine.queues.points import oldest_needed
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.replication.durability import Durability
from haclient_fake_server.engine.requests import MAX_PENDING_COMMANDS, SYSTEM_PREFIX
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.span import Span, span_of
from haclient_fake_server.engine.statistics import MAX_ROWS, Row, Statistics
from haclient_fake_server.engine.timers import Clock, timestamp_text
from haclient_fake_server.journal.format import Record, RecordCommand
from haclient_stores.bookmark import Bookmark, BookmarkList

STATUS: Final = SYSTEM_PREFIX + "status"
POSITION: Final = SYSTEM_PREFIX + "position"
GUARDS: Final = SYSTEM_PREFIX + "guards"
PUBLISHER: Final = SYSTEM_PREFIX + "publisher"
QUEUES: Final = SYSTEM_PREFIX + "queues"
CLIENTS: Final = SYSTEM_PREFIX + "clients"
SUBSCRIPTIONS: Final = SYSTEM_PREFIX + "subscriptions"

_STEP_TOPICS: Final = 1000
"""Topics that one step looks up, each against every pattern of the log's configuration."""

_STATUS_FIELDS: Final = (
    "confirmed_position",
    "durable_position",
    "publishers",
    "connections",
    "faults",
)

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Answer = Mapping[str, object]


class _Table(Protocol):
    """A table of which a query may want a part."""

    __name__: str

    def __call__(self, after: int = 0, *, name: str = "") -> list[Row]:
        """The rows."""
        ...


class _StatusQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which topics are looked up."""

    topics: tuple[str, ...] = ()


class _PublisherQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which publisher, exactly one of the first two; and which of its sequences are counted.

    With `identified_from` the last message that has a correlation id is found, too, if its sequence
    is not below that.
    """

    id: str | int | None = None
    name: str | None = None
    first_counted: _Positive | None = None
    last_counted: _Positive | None = None
    identified_from: _Positive | None = None


class _PositionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to count and up to where."""

    topic: str
    after: _Natural | None = None
    bookmark: str = ""
    bookmarks: str | None = None
    messages: _Positive | None = None
    bytes: _Positive | None = None
    until: _Natural | None = None
    filter: str = ""
    fully_durable: bool = False


class _GuardsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which guard is set or dropped; without a name, none."""

    name: str | None = None
    after: _Natural | None = None
    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_TTL_S)] = DEFAULT_TTL_S
    drop: bool = False


class _QueuesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which queue; without a name, all of the connection's message type."""

    name: str | None = None


class _TableQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rows: those after a number, of one client or of all."""

    client: str = ""
    after: _Natural = 0


_Parameters = TypeVar(
    "_Parameters",
    _StatusQuery,
    _PublisherQuery,
    _PositionQuery,
    _GuardsQuery,
    _QueuesQuery,
    _TableQuery,
)


class SystemTopics:
    """Executes queries of the broker's own topics."""

    def __init__(  # noqa: PLR0913, PLR0917  # its collaborators
        self,
        log: LogWriter,
        routes: Routes,
        durability: Durability,
        clock: Clock,
        outbox: Outbox,
        guards: Guards,
        queues: QueueDispatcher,
        statistics: Statistics,
    ) -> None:
        self._log = log
        self._routes = routes
        self._durability = durability
        self._clock = clock
        self._outbox = outbox
        self._guards = guards
        self._queues = queues
        self._statistics = statistics
        self._answers: dict[str, Callable[[Connection, Message], Steps[_Answer]]] = {
            STATUS: self._status,
            POSITION: self._position,
            PUBLISHER: self._publisher,
            GUARDS: self._change_guards,
            QUEUES: self._read_queues,
            CLIENTS: self._clients,
            SUBSCRIPTIONS: self._subscriptions,
        }

    def sow(self, connection: Connection, message: Message) -> None:
        """Accept a query, which is answered by `pump`.

        Raises:
            Refused: There is no such topic, the parameters are malformed, or too many queries of
                the connection wait for their answers.
        """
        answer = self._answers.get(message.topic)
        if answer is None:
            known = ", ".join(self._answers)
            raise Refused(Reason.INVALID_TOPIC, f"{message.topic!r}: this broker has {known}")
        for name in ("filter", "order_by", "bookmark", "options", "sow_keys", "top_n"):
            if getattr(message, name):
                detail = f"{name}: {message.topic} has its parameters in the body alone"
                raise Refused(Reason.INVALID_OPTIONS, detail)
        if len(connection.queries) >= MAX_PENDING_COMMANDS:
            detail = f"{len(connection.queries)} are not answered yet"
            raise Refused(Reason.TOO_MANY_QUERIES, detail)
        steps = answer(connection, message)
        ids = {"query_id": _query_id(message)}
        self._outbox.acknowledge(connection, message, "received", "processed", more=ids)
        connection.queries.append(self._answer(connection, message, steps))
        self._outbox.wake(connection)

    def _answer(
        self, connection: Connection, message: Message, steps: Steps[_Answer]
    ) -> LongCommand:
        """Take the steps of a query, and send the answer."""
        found = yield from steps
        answer = Answer(self._outbox, connection, message, {"query_id": _query_id(message)})
        fields: dict[str, str | int] = {"k": message.topic.removeprefix(SYSTEM_PREFIX)}
        answer.add(message.topic, fields, json.dumps(found).encode("ascii"))
        answer.end(topic_matches=1, matches=1)

    # --- status --------------------------------------------------------------------------------

    def _status(self, connection: Connection, message: Message) -> Steps[_Answer]:
        return self._read_status(_read(message, _StatusQuery).topics, connection.message_type)

    def _read_status(self, topics: Sequence[str], message_type: str) -> Steps[_Answer]:
        instance = self._statistics.instance()
        answer: dict[str, object] = {
            **self._describe_log(),
            **{name: instance[name] for name in _STATUS_FIELDS},
            "guards": len(self._guards.current(self._clock.wall_us)),
            "ended_connections": dict(self._outbox.ends),
        }
        if topics:
            answer["unlogged_topics"] = yield from self._unlogged(topics, message_type)
        return self._with_oldest_needed(answer)

    def _unlogged(self, topics: Sequence[str], message_type: str) -> Steps[list[str]]:
        """Those topics that the transaction log does not record."""
        unlogged: list[str] = []
        for number, topic in enumerate(topics, 1):
            if not self._routes.is_logged(topic, message_type):
                unlogged.append(topic)
            if number % _STEP_TOPICS == 0:
                yield
        return unlogged

    def _with_oldest_needed(self, answer: dict[str, object]) -> dict[str, object]:
        of_queues = oldest_needed(self._queues.written_points)
        of_guards = self._guards.oldest_needed(self._clock.wall_us)
        found = [each for each in (of_queues, of_guards) if each is not None]
        if found:
            answer["oldest_needed_position"] = min(found)
        return answer

    def _describe_log(self) -> dict[str, object]:
        """Which log it is, and from where to where it goes."""
        return {
            "instance": self._statistics.settings.name,
            "starts": [
                [f"{start.id:016x}", start.first_position] for start in self._log.journal.log_starts
            ],
            "oldest_position": self._log.journal.first_position,
            "last_position": self._log.position - 1,
        }

    # --- position ------------------------------------------------------------------------------

    def _position(self, connection: Connection, message: Message) -> Steps[_Answer]:
        query = _read(message, _PositionQuery)
        access = connection.reading
        try:
            matcher = TopicMatcher(query.topic, allowed=None if access is None else access.is_free)
            filter_ = compile_filter(query.filter) if query.filter else None
        except (TopicPatternError, FilterError) as error:
            raise Refused(error.reason, error.detail) from error
        if access is not None and not matcher.is_regex:
            _, filter_ = access.with_filter(query.topic, query.filter or "", filter_)
        if not self._log.is_logging or not (
            matcher.is_regex or self._routes.is_logged(query.topic, connection.message_type)
        ):
            raise Refused(Reason.INVALID_TOPIC, f"{query.topic!r} is not in the transaction log")
        vector = None if query.bookmarks is None else _vector(query.bookmarks)
        selected = Selected(matcher, connection.message_type, filter_, vector)
        if query.bookmark and query.after is not None:
            raise Refused(Reason.INVALID_OPTIONS, "after and bookmark exclude each other")
        span = span_of(self._log, query.bookmark, not_found="fail") if query.bookmark else None
        return self._count(query, selected, span)

    def _count(
        self, query: _PositionQuery, selected: Selected, span: Span | None
    ) -> Steps[_Answer]:
        log = self._describe_log()
        start = self._log.journal.first_position if query.after is None else query.after + 1
        log_end = self._log.position
        if query.fully_durable:
            log_end = self._durability.end_of_durable(log_end)
        ends = [log_end]
        if query.until is not None:
            ends.append(query.until + 1)
        if span is not None:
            start = span.start
            if span.last_position is not None:
                ends.append(span.last_position + 1)
            if span.last_us is not None:
                ends.append(self._log.journal.at_time(span.last_us + 1))
        limited = min(ends) < log_end
        limits = Limits(min(ends), query.messages, query.bytes)
        tally: Tally = yield from count_messages(
            self._log.journal, self._routes.by_id, selected, start=start, limits=limits
        )
        answer: dict[str, object] = {
            **log,
            "position": tally.position,
            "until": limits.end - 1,
            "messages": tally.messages,
            "bytes": tally.payload_bytes,
            "publishers": {str(each): sequence for each, sequence in tally.publishers.items()},
            "begins": tally.begins,
            "ended_by": "until" if limited and tally.ended_by == "end" else tally.ended_by,
        }
        if tally.first is not None and tally.last is not None:
            answer["first"], answer["last"] = map(_bookmark, (tally.first, tally.last))
            answer["timestamp"] = timestamp_text(tally.timestamp_us).decode("ascii")
        return answer

    # --- publisher -----------------------------------------------------------------------------

    def _publisher(self, connection: Connection, message: Message) -> Steps[_Answer]:
        del connection
        query = _read(message, _PublisherQuery)
        if (query.id is None) == (query.name is None):
            raise Refused(Reason.INVALID_OPTIONS, "wanted either the id or the name of a publisher")
        if (query.first_counted is None) != (query.last_counted is None):
            raise Refused(Reason.INVALID_OPTIONS, "first_counted and last_counted come together")
        if query.name is not None:
            return self._find_publisher(publisher_id(query.name), query)
        try:
            number = int(query.id or 0)
        except ValueError as error:
            detail = f"the id of a publisher is a number, found {query.id!r:.40}"
            raise Refused(Reason.INVALID_OPTIONS, detail) from error
        return self._find_publisher(number, query)

    def _find_publisher(self, number: int, query: _PublisherQuery) -> Steps[_Answer]:
        publisher, end = self._log.publishers.get(number), self._log.position
        answer: dict[str, object] = {"id": str(number), "last_sequence": 0, "persisted": 0}
        if query.first_counted is not None and query.last_counted is not None:
            tally = yield from count_of_publisher(
                self._log.journal,
                number,
                first=query.first_counted,
                last=query.last_counted,
                end=end,
            )
            answer |= {"messages": tally.messages, "counted_to": tally.counted_to}
        if publisher is None or not publisher.seen:
            return answer
        answer["last_sequence"] = publisher.seen
        answer["persisted"] = self._durability.confirmed_of(publisher)
        found = yield from find_last_message(self._log.journal, number, end=end)
        if found is not None:
            answer |= self._describe(found)
        if query.identified_from is not None:
            found = yield from find_last_message(
                self._log.journal, number, end=end, identified_from=query.identified_from
            )
            if found is not None:
                answer["identified"] = self._describe(found)
        return answer

    def _describe(self, record: Record) -> dict[str, object]:
        return {
            "sequence": record.sequence,
            "command": RecordCommand(record.command).name.lower(),
            "topic": self._routes.by_id[record.topic_id].topic,
            "position": record.position,
            "timestamp": timestamp_text(record.timestamp_us).decode("ascii"),
            "correlation_id": to_text(record.correlation_id),
        }

    # --- guards --------------------------------------------------------------------------------

    def _change_guards(self, connection: Connection, message: Message) -> Steps[_Answer]:
        query = _read(message, _GuardsQuery)
        if query.name is None and (query.after is not None or query.drop):
            raise Refused(Reason.INVALID_OPTIONS, "a guard that is set or dropped needs a name")
        if query.name is not None and (query.after is None) != query.drop:
            raise Refused(Reason.INVALID_OPTIONS, "a guard with a name needs either after or drop")
        if query.name is not None and query.after is not None:
            self._guards.set(
                query.name,
                query.after,
                ttl_s=query.ttl_s,
                now_us=self._clock.wall_us,
                first=self._log.journal.first_position,
                last=self._log.position - 1,
            )
            self._guards.note_change(connection.id)
        elif query.name is not None:
            self._guards.drop(query.name, now_us=self._clock.wall_us)
            self._guards.note_change(connection.id)
        return self._list_guards()

    def _list_guards(self) -> Steps[_Answer]:
        yield from ()
        guards = [
            {
                "name": guard.name,
                "after": guard.after,
                "set": timestamp_text(guard.set_us).decode("ascii"),
                "expires": timestamp_text(guard.expires_us).decode("ascii"),
            }
            for guard in self._guards.current(self._clock.wall_us)
        ]
        return self._with_oldest_needed({**self._describe_log(), "guards": guards})

    # --- queues ----------------------------------------------------------------------------------

    def _read_queues(self, connection: Connection, message: Message) -> Steps[_Answer]:
        name, kind = _read(message, _QueuesQuery).name, connection.message_type
        queues = [each for each in self._routes.queues if each.settings.message_type == kind]
        if name is not None:
            queues = [each for each in queues if each.settings.name == name]
            if not queues:
                raise Refused(Reason.INVALID_TOPIC, f"{name!r} is no queue")
        return self._list_queues(queues)

    def _list_queues(self, queues: list[Queue]) -> Steps[_Answer]:
        yield from ()
        return {
            "instance": self._statistics.settings.name,
            "queues": [self._queues.statistics(queue) for queue in queues],
        }

    # --- clients and subscriptions ---------------------------------------------------------------

    def _clients(self, connection: Connection, message: Message) -> Steps[_Answer]:
        del connection
        return self._table(self._statistics.clients, _read(message, _TableQuery))

    def _subscriptions(self, connection: Connection, message: Message) -> Steps[_Answer]:
        del connection
        return self._table(self._statistics.subscriptions, _read(message, _TableQuery))

    def _table(self, table: _Table, query: _TableQuery) -> Steps[_Answer]:
        yield from ()
        rows = table(query.after, name=query.client)
        log = self._describe_log()
        return {
            "instance": log["instance"],
            "last_position": log["last_position"],
            table.__name__: rows,
            "is_complete": len(rows) < MAX_ROWS,
        }


def _read(message: Message, kind: type[_Parameters]) -> _Parameters:
    """The parameters of a query; an empty body has none."""
    try:
        return msgspec.json.decode(message.data or b"{}", type=kind)
    except (msgspec.DecodeError, RecursionError) as error:  # no JSON, or of another shape
        raise Refused(Reason.INVALID_OPTIONS, f"{message.topic}: {error}") from error


def _vector(text: str) -> dict[int, int]:
    """By publisher id, the highest sequence in a list of bookmarks."""
    try:
        items = BookmarkList.parse(text).items
    except UsageError as error:
        raise Refused(Reason.INVALID_BOOKMARK, str(error)) from error
    vector: dict[int, int] = {}
    for item in items:
        if not isinstance(item, Bookmark):
            raise Refused(Reason.INVALID_BOOKMARK, f"wanted bookmarks of messages, found {item}")
        sequence = vector.get(item.publisher_id, 0)
        vector[item.publisher_id] = max(sequence, item.sequence)
    return vector


def _bookmark(message: tuple[int, int]) -> str:
    return f"{message[0]}|{message[1]}|"


def _query_id(message: Message) -> str:
    return message.query_id or message.sub_id or message.command_id
