"""Subscribe, replace, pause, resume and unsubscribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from haclient_fake_server.engine.acks import Reason, Refused, ack, requested
from haclient_fake_server.engine.requests import Request, read_options, read_request
from haclient_fake_server.engine.starting import Span, span_of
from haclient_fake_server.engine.subscriptions import Phase, Subscription
from haclient_stores.bookmark import Now, parse_bookmark

if TYPE_CHECKING:
    from haclient.protocol.messages import Message
    from haclient.protocol.options import Options
    from haclient_fake_server.engine.connections import Connection
    from haclient_fake_server.engine.replay import Replay
    from haclient_fake_server.engine.state import State

__all__ = ["MAX_SUBSCRIPTIONS", "Subscribing"]

MAX_SUBSCRIPTIONS = 100_000
"""Subscriptions of one connection: a client that leaks them is told, not served for ever."""


class Subscribing:
    """Carries out what concerns subscriptions."""

    def __init__(self, state: State, replay: Replay) -> None:
        self._state = state
        self._replay = replay

    def subscribe(self, connection: Connection, message: Message) -> None:
        """Enter, replace, pause or resume a subscription.

        Raises:
            Refused: Nothing has changed.
        """
        state = self._state
        wanted = requested(message.ack_type)
        sub_id = message.sub_id or message.command_id
        options = read_options(message)
        if self._is_pause_or_resume(connection, message, options):
            self._pause_or_resume(connection, message, paused=options.pause)
            return
        request = read_request(message, options)
        item = self.admit(connection, request, sub_id)
        if options.pause and not message.bookmark and not item.from_log:
            raise Refused(Reason.INVALID_OPTIONS, "pause needs a bookmark")
        if request.top_n is not None and not message.bookmark:
            raise Refused(Reason.INVALID_OPTIONS, "top_n of a subscribe needs a bookmark")
        span = self._span(connection, request) if message.bookmark else None
        self._confirm(connection, message, sub_id)
        self._register(connection, item, request)
        if span is None:
            if item.phase is Phase.LIVE:
                state.table(connection.message_type).enter(item)
            if options.pause:
                self._replay.set_paused(item, paused=True)
            return
        item.from_log = True
        item.fully_durable = request.options.fully_durable
        item.cid = message.command_id
        state.acks.leave(item)
        item.wants_completed = "completed" in wanted
        item.wants_persisted = "persisted" in wanted
        item.paused = request.options.pause
        item.remaining = request.top_n
        connection.live_replays.pop(item.number, None)
        self._replay.enter(item, span)

    def admit(self, connection: Connection, request: Request, sub_id: str) -> Subscription:
        """The subscription that a request is about: a new one, or the one that it replaces.

        Raises:
            Refused: The id is missing, in use, or one too many.
        """
        if not sub_id:
            raise Refused(Reason.INVALID_SUBID, "a subscribe needs a sub_id or a cid")
        known = connection.subscriptions.get(sub_id)
        if known is not None and not request.options.replace:
            raise Refused(Reason.SUBID_IN_USE, f"{sub_id!r} is active on this connection")
        if known is not None and known.phase is not Phase.ENDED:
            return known
        if known is None and "," in sub_id:
            # Deliveries list the ids of a connection's subscriptions with commas between them.
            raise Refused(Reason.INVALID_SUBID, f"{sub_id!r} holds a comma")
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refused(Reason.TOO_MANY_SUBSCRIPTIONS, f"the limit is {MAX_SUBSCRIPTIONS}")
        number = self._state.next_number()
        return Subscription(connection, sub_id, number=number, matcher=request.matcher)

    def _register(self, connection: Connection, item: Subscription, request: Request) -> None:
        """Give the subscription what the request wants; where it stands is left alone."""
        if connection.subscriptions.get(item.id) is not item:
            self._end(connection, item.id)  # one whose range is over is replaced by a new one
            connection.subscriptions[item.id] = item
        self._state.table(connection.message_type).leave(item)  # it is found by its old topic
        item.matcher = request.matcher
        item.filter = request.filter
        item.style = request.style
        item.oof = request.options.oof
        item.heads = None
        if item.from_log:
            item.style |= item.style.BOOKMARK

    def enter_live(self, connection: Connection, item: Subscription, request: Request) -> None:
        """From now on the subscription hears what is published."""
        self._register(connection, item, request)
        self._state.table(connection.message_type).enter(item)

    def unsubscribe(self, connection: Connection, message: Message) -> None:
        """End some or all subscriptions; unknown ids are fine."""
        if message.sub_id.strip() == "all":
            ids = list(connection.subscriptions)
        else:
            ids = message.sub_ids + [part.strip() for part in message.query_id.split(",")]
        for sub_id in ids:
            self._end(connection, sub_id)
        for kind in ("received", "processed"):
            if kind in requested(message.ack_type):
                self._state.send(connection, ack(kind, message.command_id))

    def leave(self, connection: Connection) -> None:
        """The connection has gone, and all its subscriptions with it."""
        for sub_id in list(connection.subscriptions):
            self._end(connection, sub_id)

    def _end(self, connection: Connection, sub_id: str) -> None:
        item = connection.subscriptions.pop(sub_id, None)
        if item is not None:
            self._state.table(connection.message_type).leave(item)
            self._replay.end(item)
            self._state.acks.leave(item)

    def _span(self, connection: Connection, request: Request) -> Span:
        state, message = self._state, request.message
        if not state.logging or not (
            request.matcher.is_regex or state.is_logged(message.topic, connection.message_type)
        ):
            raise Refused(Reason.INVALID_TOPIC, f"{message.topic!r} is not in the transaction log")
        span = span_of(
            state, message.bookmark, not_found=request.options.bookmark_not_found or "now"
        )
        if request.top_n is not None and isinstance(parse_bookmark(message.bookmark), Now):
            raise Refused(Reason.INVALID_OPTIONS, "top_n needs a bookmark other than now")
        return span

    def _confirm(self, connection: Connection, message: Message, sub_id: str) -> None:
        wanted = requested(message.ack_type)
        for kind in ("received", "processed"):
            if kind in wanted:
                frame = ack(kind, message.command_id, more={"sub_id": sub_id})
                self._state.send(connection, frame)

    def _is_pause_or_resume(
        self, connection: Connection, message: Message, options: Options
    ) -> bool:
        """Whether a subscribe is about existing subscriptions only, whatever its topic says.

        `pause` with a topic and a new id creates a subscription that begins paused.
        """
        if options.replace or not (options.pause or options.resume):
            return False
        creates = bool(message.topic) and len(message.sub_ids) <= 1
        return not (
            options.pause and creates and message.sub_id.strip() not in connection.subscriptions
        )

    def _pause_or_resume(self, connection: Connection, message: Message, *, paused: bool) -> None:
        """Pause or resume all listed subscriptions, or none of them when one is refused."""
        items: list[Subscription] = []
        for sub_id in message.sub_ids:
            item = connection.subscriptions.get(sub_id)
            if item is None or not item.from_log:
                raise Refused(Reason.INVALID_SUBID, f"{sub_id!r} is no bookmark subscription")
            items.append(item)
        if not items:
            raise Refused(Reason.INVALID_SUBID, "pause and resume need a sub_id")
        for item in items:
            self._replay.set_paused(item, paused=paused)
        self._confirm(connection, message, message.sub_id)
