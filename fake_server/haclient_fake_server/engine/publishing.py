"""Publishing: from a command to a record, to deliveries and to an ack; the hot path of the broker.

For each message, in this order: is there a topic -> is it a duplicate -> who is the publisher ->
record -> state of the world -> deliver -> acknowledge. All of it happens in memory; the shell
writes the record before it sends any of the rest.

Acks: a logged publish with a sequence is covered by the next conflated ack of its
connection. A refusal is reported at once, after a success ack up to its predecessor. A publish that
is not logged, or that has no sequence, is acknowledged alone, since nothing later would cover it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from haclient.protocol.codec import encode_string
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import Reason, Refused, ack, requested
from haclient_fake_server.engine.apply import Applier
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.filters.bodies import TOO_LARGE, is_too_large
from haclient_fake_server.engine.log_writer import ASSIGNED, NO_EXTRAS, Extras, LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import to_bytes, topic_problem
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.queues.message_reader import Content
from haclient_fake_server.engine.queues.message_table import MessageRow
from haclient_fake_server.engine.requests import (
    SYSTEM_TOPIC_REFUSAL,
    WITHOUT_OPTIONS,
    is_system_topic,
    read_options,
)
from haclient_fake_server.engine.routes import DEVNULL, Route, Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.delta import has_deltas, merge_delta
from haclient_fake_server.engine.sow.table import Changes, SowError
from haclient_fake_server.journal.format import Record, RecordFlag

MAX_HEADER_BYTES: Final = 65_535
"""The longest SOW key or correlation id: a record has 16 bits for its length."""
MAX_HEADER_CHARACTERS: Final = MAX_HEADER_BYTES // 4
"""This many characters always fit: a character has up to four bytes."""
MAX_FAST_CORRELATION_ID: Final = 1024
"""Characters of a correlation id that is surely within the limit, whatever they are."""
MAX_EXPIRATION_S: Final = 2**32 - 1

RESERVED: Final = "/AMPS"

PUBLISHES: Final = frozenset({"delta_publish", "p", "publish"})


@dataclass(eq=False, slots=True)
class Publishing:
    """Executes publishes."""

    settings: EngineSettings
    log: LogWriter
    routes: Routes
    outbox: Outbox
    applier: Applier
    acks: PersistedAcks

    def publish(
        self, connection: Connection, message: Message, routes: Mapping[str, Route]
    ) -> None:
        """Execute one publish; `routes` says where those of its message type go by topic."""
        route = routes.get(message.topic)
        correlation_id = message.correlation_id
        if (
            route is None
            or route.needs_general_path
            or message.sow_key
            or message.expiration is not None
            or message.options
            or len(correlation_id) > MAX_FAST_CORRELATION_ID
        ):
            self._publish_general(connection, message)
            return
        sequence = message.sequence
        publisher, log = connection.publisher, self.log
        extras = NO_EXTRAS
        if not sequence:
            publisher, sequence, extras = connection.origin, log.publishers.assign(), ASSIGNED
        elif sequence <= publisher.seen:
            self.acks.acknowledge_duplicate(connection, message)
            return
        if correlation_id:
            extras = Extras(correlation_id=to_bytes(correlation_id), flags=extras.flags)
        publisher.seen = sequence
        body = message.data
        if route.logged:
            position = log.position
            offset = log.append(route, publisher, sequence, body=body, extras=extras)
            if route.queues:
                row = MessageRow(position, publisher.id, sequence, offset)
                content = Content(body, extras.correlation_id, log.now_us)
                self.routes.queues.enter(route.queues, row, content)
        elif message.sequence:
            log.unnoted[publisher.id] = publisher
        plan = route.plan or self.routes[connection.message_type].plan(route)
        self.routes[connection.message_type].pattern_checks += plan.checks
        if plan.subscriptions:
            groups = (
                plan.matching(Document(body, route.message_type))
                if plan.filtered
                else plan.everyone
            )
            bookmark = b"%b%d|" % (publisher.prefix, sequence) if route.logged else b""
            more = b',"x":' + encode_string(correlation_id) if correlation_id else b""
            self.applier.fan_out(groups, body, bookmark, more=more)
        self._conflate(route, publisher, sequence, message)
        if message.ack_type:
            self._acknowledge(connection, message, route, publisher)

    def prepare(self, connection: Connection, message: Message, checks: int) -> bool:
        """Compare the topic of a publish with patterns that are new to it, so many at most.

        Args:
            connection: The publisher's connection; its user may publish to the topic.
            message: The publish.
            checks: The most comparisons.

        Returns:
            Whether the publish can be carried out: with all patterns, or none since it is refused.
        """
        table, topic = self.routes[connection.message_type], message.topic
        route = table.targets.get(topic)
        if route is None:
            is_queue = self.routes.queues.get(topic, connection.message_type) is not None
            if is_queue or _problem(message) or not self.routes.has_room_for(topic):
                return True
            route = table.route(topic)
        connection.compared = None if route.plan else table.try_patterns(route.topic, checks)
        return connection.compared is None

    def _conflate(
        self, route: Route, publisher: KnownPublisher, sequence: int, message: Message
    ) -> None:
        """Hold a message of a topic without records for the subscriptions with conflation."""
        if route.plan is None or not route.plan.conflated:
            return
        record = Record(
            position=0,
            publisher_id=publisher.id,
            sequence=sequence,
            timestamp_us=self.log.now_us,
            topic_id=0,
            correlation_id=to_bytes(message.correlation_id),
            payload=message.data,
        )
        self.applier.conflate(route, record, Changes(Document(message.data, route.message_type)))

    def _publish_general(self, connection: Connection, message: Message) -> None:
        """Execute a publish: the first of its topic, with rare headers, or to a SOW topic."""
        problem = _problem(message)
        if problem is not None:
            self.refuse(connection, message, *problem)
            return
        table = self.routes[connection.message_type]
        known = message.topic in table.targets
        queue = self.routes.queues.get(message.topic, connection.message_type)
        if not known and queue is not None and not queue.settings.publish_target:
            detail = "this queue has no topic that a publish to its name goes to"
            self.refuse(connection, message, Reason.INVALID_TOPIC, detail)
            return
        if not known and not self.routes.has_room_for(message.topic):
            limit = self.settings.max_topic_bytes
            detail = f"a new topic, and all together may take {limit} bytes"
            self.refuse(connection, message, Reason.INVALID_TOPIC, detail)
            return
        route = table.targets.get(message.topic) or table.route(message.topic)
        document = Document(message.data, route.message_type)
        route = route.for_message(document)
        key = message.sow_key
        if route.sow is not None:
            try:
                key = route.sow.key_of(document, key)
            except SowError as error:
                self.refuse(connection, message, error.reason, str(error))
                return
        if message.kind == "delta_publish":
            detail = _complete(message, route, key, self.settings)
            if detail:
                self.refuse(connection, message, Reason.BAD_MESSAGE, detail)
                return
            document = Document(message.data, route.message_type)
        # After all reasons to refuse it: a publisher that has not read the failure ack sends the
        # message again, and must not be acknowledged as persisted.
        if message.sequence and message.sequence <= connection.publisher.seen:
            self.acks.acknowledge_duplicate(connection, message)
            return
        sequence = message.sequence
        publisher = connection.publisher if sequence else connection.origin
        record = Record(
            position=0,
            publisher_id=publisher.id,
            sequence=sequence or self.log.publishers.assign(),
            timestamp_us=self.log.now_us,
            topic_id=0,
            flags=(RecordFlag.USER_KEY if key and key == message.sow_key else 0)
            | (0 if sequence else RecordFlag.ASSIGNED),
            key=to_bytes(key),
            correlation_id=to_bytes(message.correlation_id),
            expiration_s=message.expiration,
            payload=message.data,
        )
        self.applier.apply(route, publisher, record, document)
        if message.ack_type:
            self._acknowledge(connection, message, route, publisher)

    def refuse(
        self, connection: Connection, message: Message, reason: str, detail: str = ""
    ) -> None:
        """Refuse a publish or delete: acknowledge everything before it, then report its failure."""
        self.outbox.report_refusal(connection, message, reason, detail)
        sequence = message.sequence or 0
        wanted = requested(message.ack_type)
        if "persisted" in wanted:
            self.acks.flush(connection, before=sequence, always=True)
        self.log.note_seen(connection.publisher, sequence)
        more = {"s": sequence} if sequence else None
        for kind in ("processed", "persisted"):
            if kind in wanted:
                frame = ack(
                    kind,
                    message.command_id,
                    status="failure",
                    reason=reason,
                    detail=detail,
                    more=more,
                )
                send = self.outbox.confirm if kind == "persisted" and sequence else self.outbox.send
                send(connection, frame)

    def _acknowledge(
        self, connection: Connection, message: Message, route: Route, publisher: KnownPublisher
    ) -> None:
        """Send the acks for an applied publish; its record names `publisher`."""
        collected = route.logged and publisher is connection.publisher
        if collected and message.ack_type == "persisted":
            self.acks.schedule(connection)
            return
        wanted = requested(message.ack_type)
        more: dict[str, str | int] = {"s": message.sequence} if message.sequence else {}
        self.outbox.acknowledge(
            connection, message, "received", "processed", "completed", more=more
        )
        if "persisted" not in wanted:
            return
        if collected:
            self.acks.schedule(connection)
            return
        if route.logged:
            more["bm"] = publisher.bookmark(publisher.seen)
        self.outbox.confirm(connection, ack("persisted", message.command_id, more=more))


def _complete(message: Message, route: Route, key: str, settings: EngineSettings) -> str:
    """Merge a delta with its record, if there is one; return why that cannot be."""
    stored = route.sow.get(key) if route.sow is not None else None
    if stored is None or not has_deltas(route.message_type):
        return ""
    try:
        body = merge_delta(stored.body, message.data, route.message_type)
    except RecursionError:
        return f"a record of {len(stored.body)} bytes and its delta have too many levels"
    if len(body) > settings.max_message_bytes:  # no reader would take it
        return f"the record would have {len(body)} bytes"
    if is_too_large(body, route.message_type):  # the next delta could not be merged
        return f"the record would be {TOO_LARGE}"
    message.data = body
    message.correlation_id = message.correlation_id or stored.correlation_id
    return ""


def _problem(message: Message) -> tuple[str, str] | None:
    """The reason and the detail of a publish that no topic takes."""
    topic = message.topic
    unfit = topic_problem(topic) if topic else "no topic"
    if unfit:
        return Reason.INVALID_TOPIC, unfit
    if is_system_topic(topic):
        return Reason.NOT_ENTITLED, SYSTEM_TOPIC_REFUSAL
    if topic.startswith(RESERVED) and topic != DEVNULL:
        return Reason.NOT_ENTITLED, f"topics that begin with {RESERVED} are the server's own"
    if message.options and message.kind in WITHOUT_OPTIONS:
        try:
            read_options(message)
        except Refused as error:
            return error.reason, error.detail
    return problem_of_headers(message)


def problem_of_headers(message: Message) -> tuple[Reason, str] | None:
    """The reason and the detail of a publish or delete whose record would not have room for it."""
    for reason, text in (
        (Reason.BAD_SOW_KEY, message.sow_key),
        (Reason.INVALID_CORRELATION_ID, message.correlation_id),
    ):
        if len(text) > MAX_HEADER_CHARACTERS:
            return reason, f"{len(text)} characters, at most {MAX_HEADER_CHARACTERS}"
    if (message.expiration or 0) > MAX_EXPIRATION_S:
        return Reason.INVALID_EXPIRATION, f"{message.expiration} s, at most {MAX_EXPIRATION_S}"
    return None
