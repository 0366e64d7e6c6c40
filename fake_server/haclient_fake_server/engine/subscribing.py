"""Subscribe, replace, pause, resume and unsubscribe."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from operator import itemgetter
from typing import Final

from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient_fake_server.engine.acks import SLOW_CLIENT_ACK, Reason, Refused, requested
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.conflator import Conflator
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    Hold,
    LongCommand,
    QueueSubscription,
    Subscription,
)
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.pace import ReplayPace
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.queues.dispatcher import QueueDispatcher
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.replay import Replay
from haclient_fake_server.engine.requests import DELTA_COMMANDS, Request, read_options, read_request
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.page import Page, PageSubscription
from haclient_fake_server.engine.span import Span, span_of
from haclient_stores.bookmark import Now, parse_bookmark

MAX_SUBSCRIPTIONS = 100_000
"""Subscriptions of one connection: a client that leaks them is refused more."""

MAX_IDS = 10_000
"""Ids of one command, which is carried out in one step: a resume of so many takes about 0.15 s."""

ENDS_PER_STEP: Final = 1000
"""How many subscriptions are ended in one step: about 10 ms."""

MAX_SUB_ID_CHARACTERS = 1024
"""The longest id of a subscription, which the broker keeps and writes into each message."""


class Subscribing:
    """Executes the commands that concern subscriptions."""

    def __init__(  # noqa: PLR0913, PLR0917  # its collaborators
        self,
        settings: EngineSettings,
        log: LogWriter,
        routes: Routes,
        outbox: Outbox,
        conflation: Conflation,
        replay: Replay,
        acks: PersistedAcks,
        queues: QueueDispatcher,
    ) -> None:
        self._settings = settings
        self._log = log
        self._routes = routes
        self._outbox = outbox
        self._conflation = conflation
        self._replay = replay
        self._acks = acks
        self._queues = queues
        self._numbers = count(1)  # of all subscriptions, in their order
        self._held: dict[int, Subscription] = {}  # those whose query is answered, by number

    def subscribe(self, connection: Connection, message: Message) -> None:
        """Add, replace, pause or resume a subscription.

        Raises:
            Refused: Nothing has changed.
        """
        sub_id = message.sub_id or message.command_id
        options = read_options(message)
        _check_count(message.sub_id, message.sids)
        if self._is_pause_or_resume(connection, message, options):
            self._pause_or_resume(connection, message, options)
            return
        request = read_request(
            message, self._for_queue(connection, message, options), connection.reading
        )
        queues = self._queues.matching(connection, request)
        replaced = self.check_id(connection, request, sub_id)
        keeps_place = isinstance(replaced, BookmarkSubscription) and not message.bookmark
        if queues and not message.bookmark and not keeps_place:
            self._consume(connection, request, sub_id, queues)
            return
        if options.max_backlog is not None:
            why = (
                "with a bookmark a subscription to a queue replays its topic and has no backlog"
                if queues
                else f"{message.topic!r} is no queue"
            )
            raise Refused(Reason.INVALID_OPTIONS, f"max_backlog: {why}")
        if queues:
            request = replace(request, matcher=_underlying(request.matcher, queues))
        if keeps_place:
            self._check_kept_place(connection, request, sub_id)
        elif not message.bookmark:
            check_live_only(request)
        _check_top_n(request)
        span = self._span(connection, request) if message.bookmark else None
        conflator = self._conflation.conflator_of(request, connection.message_type)
        if replaced is not None:  # held messages were published under the old options
            self._conflation.flush(replaced)
            self.release(replaced)
        self._confirm(connection, message, sub_id)
        match replaced:
            case _ if span is not None:
                self._subscribe_to_log(connection, request, sub_id, span, conflator)
            case BookmarkSubscription():
                replaced.conflator = conflator
                self._change(replaced, request)
            case _:
                self.subscribe_live(connection, request, sub_id, conflator)

    def check_id(
        self, connection: Connection, request: Request, sub_id: str
    ) -> Subscription | None:
        """The subscription that a request replaces, if any.

        Raises:
            Refused: The id is missing, in use, or one too many.
        """
        if not sub_id:
            raise Refused(Reason.INVALID_SUBID, "a subscribe needs a sub_id or a cid")
        if len(sub_id) > MAX_SUB_ID_CHARACTERS:
            detail = f"{len(sub_id)} characters, at most {MAX_SUB_ID_CHARACTERS}"
            raise Refused(Reason.INVALID_SUBID, detail)
        known = connection.subscriptions.get(sub_id)
        if known is not None and not request.options.replace:
            raise Refused(Reason.SUBID_IN_USE, f"{sub_id!r} is active on this connection")
        if known is not None:
            return known
        if "," in sub_id:
            # Deliveries list the ids of a connection's subscriptions with commas between them.
            raise Refused(Reason.INVALID_SUBID, f"{sub_id!r} holds a comma")
        if len(connection.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Refused(Reason.TOO_MANY_SUBSCRIPTIONS, f"the limit is {MAX_SUBSCRIPTIONS}")
        return None

    def _for_queue(self, connection: Connection, message: Message, options: Options) -> Options:
        """The name of a queue is not a pattern, although it may have a dot."""
        if self._routes.queues.get(message.topic, connection.message_type) is None:
            return options
        return replace(options, non_regex_topic=True)

    def subscribe_live(
        self,
        connection: Connection,
        request: Request,
        sub_id: str,
        conflator: Conflator | None = None,
    ) -> Subscription:
        """Send what is published from now on, in place of any subscription of this id."""
        number = self._number(connection, sub_id)
        item = Subscription(connection, sub_id, number=number, selection=request.selection)
        item.conflator = conflator
        self._replace(item)
        self._routes[connection.message_type].enter(item)
        return item

    def subscribe_page(
        self, connection: Connection, request: Request, sub_id: str, page: Page
    ) -> PageSubscription:
        """Send how a page changes from now on, in place of any subscription of this id."""
        number, selection = self._number(connection, sub_id), request.selection
        item = PageSubscription(connection, sub_id, number=number, selection=selection, page=page)
        self._replace(item)
        self._routes[connection.message_type].enter(item)
        return item

    def _consume(
        self, connection: Connection, request: Request, sub_id: str, queues: list[Queue]
    ) -> None:
        """Subscribe to queues; a consumer that is replaced keeps the messages that it has."""
        message, options = request.message, request.options
        for name in ("pause", "rate", "conflation", "top_n", "oof"):
            if getattr(request if name == "top_n" else options, name):
                raise Refused(Reason.INVALID_OPTIONS, f"{name} is not for a queue")
        more = {"sub_id": sub_id, **self._queues.terms(queues, options.max_backlog)}
        self._outbox.acknowledge(connection, message, "received", "processed", more=more)
        known = connection.subscriptions.get(sub_id)
        table = self._routes[connection.message_type]
        if isinstance(known, QueueSubscription):
            table.leave(known)
            known.select(request.selection)
            consumer = known
        else:
            number = self._number(connection, sub_id)
            consumer = QueueSubscription(
                connection, sub_id, number=number, selection=request.selection
            )
            self._replace(consumer)
        self._queues.enter(consumer, request, queues)
        if request.matcher.is_regex:  # it may also match topics that are no queues
            table.enter(consumer)

    def _subscribe_to_log(
        self,
        connection: Connection,
        request: Request,
        sub_id: str,
        span: Span,
        conflator: Conflator | None,
    ) -> None:
        """Replay a span of the log, in place of any subscription of this id."""
        item = self._log_subscription(connection, request, sub_id, conflator)
        item.fully_durable = request.options.fully_durable
        item.wants_persisted = "persisted" in requested(request.message.ack_type)
        item.remaining = request.top_n
        self._replace(item)
        self._replay.enter(item, span)

    def subscribe_after_query(
        self,
        connection: Connection,
        request: Request,
        sub_id: str,
        span: Span,
        conflator: Conflator | None,
    ) -> BookmarkSubscription:
        """Replay a span of the log once the query of the same command was answered.

        Returns:
            The subscription, which replaces one with the same id; `query_answered` starts its
            replay. It stays paused if the replaced one was paused and no bookmark was given.
        """
        item = self._log_subscription(connection, request, sub_id, conflator)
        known = connection.subscriptions.get(sub_id)
        if not request.message.bookmark and isinstance(known, BookmarkSubscription):
            item.paused |= known.paused
        self._replace(item)
        self._replay.enter_after_query(item, span)
        return item

    def hold(self, item: Subscription) -> None:
        """Hold back what is published to a live subscription until its query was answered.

        The query is the youngest of its connection.
        """
        connection = item.connection
        item.query = connection.queries[-1]
        connection.subscription_queries += 1
        self._held[item.number] = item
        self._routes[connection.message_type].set_outlet(item, Hold(item))

    def release(self, item: Subscription) -> None:
        """Send what was held back for a subscription, if anything was."""
        if self._held.pop(item.number, None) is None:
            return
        frames = item.outlet.out
        self._routes[item.connection.message_type].set_outlet(item, item.connection)
        if not item.connection.closing:
            self._outbox.touch(item.connection).extend(frames)

    def go_on(self, item: Subscription) -> None:
        """Go on with a live subscription whose query was answered."""
        if item.query is not None:
            item.query = None
            item.connection.subscription_queries -= 1
        self.release(item)

    def cut_slow(self) -> None:
        """Cut the subscribers for which too much is held back: they do not read their answers.

        Those are all above their own limit, and the largest until the rest is below the common one.
        """
        held: list[tuple[int, Subscription]] = []
        for item in self._held.values():
            outlet = item.outlet
            if item.connection.closing:  # nothing of it is sent any more
                outlet.closing, outlet.out = True, []
            elif isinstance(outlet, Hold):
                held.append((outlet.held_bytes, item))
        most, most_together = self._settings.max_held_bytes, self._settings.max_held_together_bytes
        together = sum(size for size, _ in held)
        if together > most_together:
            held.sort(key=itemgetter(0), reverse=True)
        for size, item in held:
            if size > most or together > most_together:
                together -= size
                detail = f"{size} bytes wait behind the query of {item.id!r}"
                self._outbox.send(item.connection, SLOW_CLIENT_ACK)
                self._outbox.close(item.connection, "slow client", detail)

    def _log_subscription(
        self, connection: Connection, request: Request, sub_id: str, conflator: Conflator | None
    ) -> BookmarkSubscription:
        number = self._number(connection, sub_id)
        item = BookmarkSubscription(connection, sub_id, number=number, selection=request.selection)
        item.cid = request.message.command_id
        item.conflator = conflator
        item.wants_completed = "completed" in requested(request.message.ack_type)
        item.paused = request.options.pause
        item.pace = _pace(request)
        return item

    def _number(self, connection: Connection, sub_id: str) -> int:
        """The place of a subscription in the order of all: that of the one which it replaces."""
        known = connection.subscriptions.get(sub_id)
        return next(self._numbers) if known is None or known.is_over else known.number

    def _replace(self, item: Subscription) -> None:
        self._end(item.connection, item.id)
        item.connection.subscriptions[item.id] = item

    def _change(self, item: BookmarkSubscription, request: Request) -> None:
        """Give a bookmark subscription another topic or filter; its place in the log is kept."""
        self._replay.select(item, request.selection)
        self._replay.set_pace(item, _pace(request))
        if request.options.pause:
            self._replay.set_paused(item, paused=True)

    def unsubscribe(self, connection: Connection, message: Message) -> None:
        """End some or all subscriptions; unknown ids are fine.

        Raises:
            Refused: It has no id, more than a connection can have, or options.
        """
        read_options(message)
        _check_count(message.sub_id, message.sids, message.query_id)
        if message.sub_id.strip() == "all":
            ids = list(connection.subscriptions)
        else:
            ids = message.sub_ids + [part.strip() for part in message.query_id.split(",")]
        if not any(ids) and not message.sub_id:
            raise Refused(Reason.INVALID_SUBID, "an unsubscribe needs a sub_id or a query_id")
        steps = self._end_in_steps(connection, message, ids)
        if next(steps, self) is not self:
            connection.blocking = steps
            self._outbox.wake(connection)

    def _end_in_steps(
        self, connection: Connection, message: Message, ids: Sequence[str]
    ) -> LongCommand:
        for sub_id in ids:  # of queues at once: none gets what another one gives back
            if isinstance(connection.subscriptions.get(sub_id), QueueSubscription):
                self._end(connection, sub_id)
        for number, sub_id in enumerate(ids, 1):
            self._end(connection, sub_id)
            if not number % ENDS_PER_STEP and number < len(ids):
                yield
        self._outbox.acknowledge(connection, message, "received", "processed")

    def leave_topics(self, connection: Connection) -> None:
        """A connection has ended with many subscriptions: they receive no more messages.

        This is quick, and done in one step: with each pattern that leaves all plans are made anew.
        """
        for item in connection.subscriptions.values():
            self._routes[connection.message_type].leave(item)

    def leave(self, connection: Connection, *, limit: int | None = None) -> None:
        """A connection has ended: end its subscriptions, or as many of them."""
        for sub_id in list(islice(connection.subscriptions, limit)):
            self._end(connection, sub_id)

    def _end(self, connection: Connection, sub_id: str) -> None:
        item = connection.subscriptions.pop(sub_id, None)
        if item is not None:
            self._routes[connection.message_type].leave(item)
            self._conflation.disarm(item)
            self._held.pop(item.number, None)
            if item.query is not None:
                connection.queries.remove(item.query)
                connection.subscription_queries -= 1
            if isinstance(item, BookmarkSubscription):
                self._replay.end(item)
                self._acks.leave(item)
            elif isinstance(item, QueueSubscription):
                self._queues.leave(item)

    def _check_kept_place(self, connection: Connection, request: Request, sub_id: str) -> None:
        """Check a replacement of a replay that goes on where it is: it has a bookmark, too.

        Raises:
            Refused: With a bookmark it would be refused.
        """
        if request.message.kind in DELTA_COMMANDS:
            detail = f"{sub_id!r} has a bookmark, and gets whole messages"
            raise Refused(Reason.INVALID_OPTIONS, f"replace: {detail}")
        if request.options.oof:
            raise Refused(Reason.INVALID_OPTIONS, "oof cannot have a bookmark")
        self._check_logged(connection, request)

    def _check_logged(self, connection: Connection, request: Request) -> None:
        topic, matcher = request.message.topic, request.matcher
        if not self._log.is_logging or not (
            matcher.is_regex or self._routes.is_logged(matcher.text, connection.message_type)
        ):
            raise Refused(Reason.INVALID_TOPIC, f"{topic!r} is not in the transaction log")

    def _span(self, connection: Connection, request: Request) -> Span:
        message = request.message
        self._check_logged(connection, request)
        span = span_of(
            self._log, message.bookmark, not_found=request.options.bookmark_not_found or "now"
        )
        if request.top_n is not None and isinstance(parse_bookmark(message.bookmark), Now):
            raise Refused(Reason.INVALID_OPTIONS, "top_n needs a bookmark other than now")
        if span.asks_for_removed:
            begins = f"begins at position {span.start}: what it asks to begin after was removed"
            self._outbox.report_command(connection, message, begins)
        return span

    def _confirm(self, connection: Connection, message: Message, sub_id: str) -> None:
        more = {"sub_id": sub_id}
        self._outbox.acknowledge(connection, message, "received", "processed", more=more)

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

    def _pause_or_resume(self, connection: Connection, message: Message, options: Options) -> None:
        """Pause or resume all listed subscriptions, or none of them when one is refused."""
        items: list[BookmarkSubscription] = []
        for sub_id in message.sub_ids:
            item = connection.subscriptions.get(sub_id)
            if not isinstance(item, BookmarkSubscription):
                raise Refused(Reason.INVALID_SUBID, f"{sub_id!r} is no bookmark subscription")
            items.append(item)
        if not items:
            raise Refused(Reason.INVALID_SUBID, "pause and resume need a sub_id")
        if options.rate:
            raise Refused(Reason.INVALID_OPTIONS, "rate: pause and resume keep the rate there is")
        if options.pause:
            for item in items:
                self._replay.set_paused(item, paused=True)
        else:
            self._replay.resume(items)
        self._confirm(connection, message, message.sub_id)


def _check_count(*ids: str) -> None:
    """Check that a command has no more ids than are handled in one step.

    Raises:
        Refused: It has more.
    """
    if sum(each.count(",") for each in ids) >= MAX_IDS:
        raise Refused(Reason.INVALID_SUBID, f"more than {MAX_IDS} ids in a command")


def check_live_only(request: Request) -> None:
    """Check that a request has no option that is for a replay only.

    Raises:
        Refused: It has one.
    """
    for name in ("pause", "rate"):
        if getattr(request.options, name):
            raise Refused(Reason.INVALID_OPTIONS, f"{name} needs a bookmark")


def _check_top_n(request: Request) -> None:
    if request.top_n is not None and not request.message.bookmark:
        raise Refused(Reason.INVALID_OPTIONS, "top_n of a subscribe needs a bookmark")


def _pace(request: Request) -> ReplayPace | None:
    rate = request.options.rate_limit
    return None if rate is None else ReplayPace(rate, request.options.rate_max_gap_s)


def _underlying(matcher: TopicMatcher, queues: list[Queue]) -> TopicMatcher:
    """The topics to replay for a bookmark subscription to queues: those that feed them.

    A pattern selects topics of its own, too.
    """
    matchers = [each for queue in queues for each in queue.settings.matchers]
    if not matcher.is_regex and len(matchers) == 1:
        return matchers[0]
    patterns = [
        each.text if each.is_regex else f"^{re.escape(each.text)}$"
        for each in ([matcher] if matcher.is_regex else []) + matchers
    ]
    return TopicMatcher(
        "|".join(f"(?:{pattern})" for pattern in patterns),
        allowed=lambda topic: any(each.matches(topic) for each in (matcher, *matchers)),
    )
