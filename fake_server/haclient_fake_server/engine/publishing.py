"""Publishing: from a command to a record, to deliveries and to an ack; the hot path of the broker.

For each message, in this order: is there a topic -> is it a duplicate -> who is the publisher ->
record -> state of the world -> deliver -> acknowledge. All of it happens in memory; the shell writes
the record before it sends any of the rest (TL7).

Acks (protocol 4.3): a logged publish with a sequence is covered by the next conflated ack of its
connection. A refusal is told at once, after a success ack up to its predecessor. A publish that is
not logged, or that has no sequence, is acknowledged alone, since nothing later would cover it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from haclient.protocol.encoding import encode_string
from haclient.protocol.framing import LENGTH
from haclient_fake_server.engine.acks import ack, requested
from haclient_fake_server.engine.batch import NO_EXTRAS, Extras
from haclient_fake_server.engine.connections import NEVER
from haclient_fake_server.engine.routes import Style
from haclient_fake_server.engine.times import timestamp_text
from haclient_fake_server.journal_format import EXPIRATION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from haclient.protocol.messages import Message
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.identity import Publisher
    from haclient_fake_server.engine.routes import Lane, Route
    from haclient_fake_server.engine.state import State

__all__ = ["Publishing", "extra_headers", "owe_persisted", "pay_persisted"]

MAX_HEADER_BYTES: Final = 65_535
"""The longest SOW key or correlation id: a record has 16 bits for its length."""
MAX_EXPIRATION_S: Final = 2**32 - 1
RESERVED: Final = "/AMPS"
DEVNULL: Final = "/AMPS/devnull"


class Publishing:
    """Carries out publishes."""

    def __init__(self, state: State) -> None:
        self._state = state

    def publish(self, connection: Connection, message: Message) -> None:
        """Carry out one publish (protocol 3.2)."""
        state = self._state
        route = connection.routes.get(message.topic)
        if route is None or message.correlation_id or message.sow_key or message.expiration:
            problem = _problem(message)
            if problem:
                self.refuse(connection, message, problem)
                return
            route = state.table(connection.message_type).route(message.topic)
        sequence = message.sequence
        publisher = connection.publisher
        if sequence:
            if sequence <= publisher.seen:
                self.acknowledge_duplicate(connection, message)
                return
            publisher.seen = sequence
        elif route.logged:
            publisher = connection.origin
            publisher.seen = sequence = state.publishers.assign()
        extras = _extras(message)
        if route.logged:
            state.batch.append(route, publisher, sequence or 0, body=message.data, extras=extras)
            state.last = (publisher.id, sequence or 0)
        elif sequence:
            state.unnoted[publisher.id] = publisher
        plan = route.plan or state.table(connection.message_type).plan(route)
        if plan.subscriptions:
            if plan.filtered:
                lanes = plan.matching(Document(message.data, route.message_type))
            else:
                lanes = plan.everyone
            more = b"" if extras is NO_EXTRAS else extra_headers(extras)
            bookmark = publisher.prefix + b"%d|" % sequence if route.logged else b""
            self.deliver(lanes, message.data, bookmark=bookmark, key=b"", more=more)
        if message.ack_type:
            self._acknowledge(connection, message, route, publisher, sequence or 0)

    def deliver(
        self, lanes: Iterable[Lane], body: bytes, *, bookmark: bytes, key: bytes, more: bytes
    ) -> None:
        """Queue a message for all connections of some lanes; `key` and `more` are headers."""
        state = self._state
        for head, style, connections in lanes:
            if style & Style.BOOKMARK and bookmark:
                head = b'%b,"bm":"%b"' % (head, bookmark)  # noqa: PLW2901 - the head, completed
            if key and not style & Style.NO_SOW_KEY:
                head += key  # noqa: PLW2901
            if style & Style.TIMESTAMP:
                head += b',"ts":"%b"' % timestamp_text(state.now_us)  # noqa: PLW2901
            frame = b"%b%b%b}%b" % (
                LENGTH.pack(len(head) + len(more) + 1 + len(body)),
                head,
                more,
                body,
            )
            for connection in connections:
                if not connection.closing:
                    state.touch(connection).append(frame)

    def refuse(self, connection: Connection, message: Message, reason: str) -> None:
        """Refuse a publish or delete: success for what came before it, failure for it (AK3)."""
        state = self._state
        sequence = message.sequence or 0
        wanted = requested(message.ack_type)
        if "persisted" in wanted and connection.owes_persisted:
            pay_persisted(state, connection)
        if sequence > connection.publisher.seen:
            connection.publisher.seen = connection.acked = sequence
            state.unnoted[connection.publisher.id] = connection.publisher
        more = {"s": sequence} if sequence else None
        for kind in ("processed", "persisted"):
            if kind in wanted:
                frame = ack(kind, message.command_id, status="failure", reason=reason, more=more)
                state.send(connection, frame)

    def acknowledge_duplicate(self, connection: Connection, message: Message) -> None:
        """Drop a duplicate, but say that all is well (ID2)."""
        wanted = requested(message.ack_type)
        more = {"s": message.sequence or 0}
        for kind in ("received", "processed", "completed"):
            if kind in wanted:
                reason = "duplicate" if kind == "processed" else ""
                frame = ack(kind, message.command_id, reason=reason, more=more)
                self._state.send(connection, frame)
        if "persisted" in wanted:
            owe_persisted(self._state, connection)

    def _acknowledge(
        self,
        connection: Connection,
        message: Message,
        route: Route,
        publisher: Publisher,
        sequence: int,
    ) -> None:
        own = publisher is connection.publisher and bool(sequence)
        if message.ack_type == "persisted" and own and route.logged:
            if connection.ack_due == NEVER or not connection.owes_persisted:
                owe_persisted(self._state, connection)
            return
        more: dict[str, str | int] = {"s": sequence} if own else {}
        wanted = requested(message.ack_type)
        for kind in ("received", "processed", "completed"):
            if kind in wanted:
                self._state.send(connection, ack(kind, message.command_id, more=more))
        if "persisted" not in wanted:
            return
        if own and route.logged:
            owe_persisted(self._state, connection)
            return
        if route.logged:
            more["bm"] = publisher.bookmark(sequence)
        self._state.send(connection, ack("persisted", message.command_id, more=more))


def owe_persisted(state: State, connection: Connection) -> None:
    """The connection is to get a conflated persisted ack when its interval is over (AK2)."""
    connection.owes_persisted = True
    if connection.ack_due == NEVER:
        connection.ack_due = state.now + connection.ack_interval_s
        state.wake_at(connection.ack_due)


def pay_persisted(state: State, connection: Connection) -> None:
    """Send the conflated persisted ack: all up to `s` is persisted or was refused."""
    connection.owes_persisted = False
    publisher = connection.publisher
    connection.acked = publisher.seen
    more: dict[str, str | int] = {"s": publisher.seen, "bm": publisher.bookmark(publisher.seen)}
    state.send(connection, ack("persisted", more=more))


def extra_headers(extras: Extras) -> bytes:
    """The headers that a delivery takes over from its publish: the correlation id."""
    if not extras.correlation_id:
        return b""
    text = extras.correlation_id.decode("utf-8", "surrogateescape")
    return b',"x":' + encode_string(text)


def _problem(message: Message) -> str:
    if not message.topic:
        return "no topic"
    if message.topic.startswith(RESERVED) and message.topic != DEVNULL:
        return "not entitled"
    if len(message.correlation_id) * 4 > MAX_HEADER_BYTES or (
        len(message.sow_key) * 4 > MAX_HEADER_BYTES
    ):
        return "bad sow key" if message.sow_key else "invalid correlation id"
    if (message.expiration or 0) > MAX_EXPIRATION_S:
        return "invalid expiration"
    return ""


def _extras(message: Message) -> Extras:
    if not message.correlation_id and not message.sow_key and message.expiration is None:
        return NO_EXTRAS
    return Extras(
        key=message.sow_key.encode("utf-8", "surrogateescape"),
        correlation_id=message.correlation_id.encode("utf-8", "surrogateescape"),
        expiration=b"" if message.expiration is None else EXPIRATION.pack(message.expiration),
    )
