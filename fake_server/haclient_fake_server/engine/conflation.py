"""The option `conflation`: which messages are held back for a subscription, and their delivery.

`conflator_of` checks the options of a subscribe. `conflate` passes a new message to a live
subscription, and `conflate_record` passes a message of the log to a replay. Each subscription has
one timer, for its oldest message. `flush` delivers all held messages before something that has to
follow them: `completed`, the end of a range, or a replacement.

Without `conflation_key` the key is that of the record, so the topic needs a state of the world.
Out-of-focus messages and deltas concern records, so with either the key is that of the record, too.
"""

from __future__ import annotations

from typing import Final

from haclient.protocol.codec import encode_string
from haclient.protocol.framing import LENGTH
from haclient_fake_server.engine.acks import Reason, Refused
from haclient_fake_server.engine.conflator import Conflator, Held, Update
from haclient_fake_server.engine.connections import BookmarkSubscription, Style, Subscription
from haclient_fake_server.engine.filters import Document, FilterError
from haclient_fake_server.engine.filters.parser import parse_path
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.requests import DELTA_COMMANDS, Request
from haclient_fake_server.engine.routes import Route, Routes, frame_head
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.table import Changes, SowRecord, SowTable
from haclient_fake_server.engine.timers import Clock, timestamp_text
from haclient_fake_server.journal.format import Record

MAX_KEY_FIELDS: Final = 100
"""The maximum number of fields of one `conflation_key`."""


class Conflation:
    """Holds messages back for the subscriptions that have asked for it.

    Args:
        settings: In what the intervals are measured during a replay.
        routes: The topics with a state of the world, for deltas.
        clock: When they are due.
        outbox: Where they go then.
    """

    def __init__(
        self, settings: EngineSettings, routes: Routes, clock: Clock, outbox: Outbox
    ) -> None:
        self._follows_messages = settings.conflation_time == "messages"
        self._routes = routes
        self._clock = clock
        self._outbox = outbox

    def conflator_of(self, request: Request, message_type: str) -> Conflator | None:
        """The conflator of a subscription; `None` without conflation.

        Raises:
            Refused: The topic needs a `conflation_key`, or the given one is invalid.
        """
        options = request.options
        if options.conflation in {None, "none"} or options.conflation_s == 0:
            return None
        names = options.conflation_key
        if len(names) > MAX_KEY_FIELDS:
            detail = f"conflation_key: {len(names)} fields, wanted at most {MAX_KEY_FIELDS}"
            raise Refused(Reason.INVALID_OPTIONS, detail)
        try:
            paths = tuple(parse_path(name) for name in names)
        except FilterError as error:
            raise Refused(Reason.INVALID_OPTIONS, f"conflation_key: {error.detail}") from error
        sow = self._sow_of(request, message_type)
        topic = request.message.topic
        if not paths and sow is None:
            detail = (
                f"{topic!r} is no topic with a state of the world, so it needs a conflation_key"
            )
            raise Refused(Reason.INVALID_OPTIONS, f"conflation: {detail}")
        is_of_records = options.oof or request.message.kind in DELTA_COMMANDS
        if paths and is_of_records:
            if sow is None or {path.text for path in paths} != set(sow.key_paths):
                detail = f"with oof or deltas it is the key of {topic!r}, or left out"
                raise Refused(Reason.INVALID_OPTIONS, f"conflation_key: {detail}")
            paths = ()
        if request.message.bookmark and request.top_n is not None:
            raise Refused(
                Reason.INVALID_OPTIONS, "top_n counts messages of a replay, not conflated"
            )
        return Conflator(options.conflation_s, paths, follows_messages=self._follows_messages)

    def _sow_of(self, request: Request, message_type: str) -> SowTable | None:
        """The state of the world of a topic; `None` for a pattern."""
        if request.matcher.is_regex:
            return None
        return next(iter(self._routes.sow_tables(message_type, request.matcher)), None)

    def conflate(self, item: Subscription, route: Route, record: Record, changes: Changes) -> None:
        """Hold a new message, or an out-of-focus message, for a live subscription."""
        conflator, document, previous = item.conflator, changes.document, changes.previous
        if conflator is None:
            return
        if document is None:
            self._conflate_deleted(item, conflator, route, changes)
            return
        was_in_focus = previous is not None and _is_in_focus(item, route, previous)
        reason = ""
        if item.filter is not None and not item.filter(document):
            if not (item.oof and was_in_focus):
                return
            reason = "match"
        has_before = previous is not None and (was_in_focus or not item.whole_on_entry)
        update = _update(route, record, changes.key, reason=reason)
        conflator.hold(
            conflator.key_of(route.wire, document, changes.key),
            update,
            now=self._clock.now,
            before=previous.body if previous is not None and has_before else None,
        )
        self.arm(item)

    def _conflate_deleted(
        self, item: Subscription, conflator: Conflator, route: Route, changes: Changes
    ) -> None:
        """Hold an out-of-focus message for each record that is gone, where `oof` is wanted."""
        if route.sow is None or not item.oof:
            return
        for each in changes.deleted:
            if _is_in_focus(item, route, each):
                update = Update(route.wire, each.body, each.key, reason=changes.reason)
                conflator.hold(
                    (route.wire, each.key), update, now=self._clock.now, before=each.body
                )
        self.arm(item)

    def conflate_record(
        self, item: BookmarkSubscription, route: Route, record: Record
    ) -> list[bytes]:
        """Hold a message of the log for a replay.

        Returns:
            The frames that are due: too much is held, or their intervals end before the message.
        """
        conflator = item.conflator
        if conflator is None:
            return []
        now, frames = self._clock.now, list[bytes]()
        if conflator.follows_messages:
            now = self._clock.due_at_us(record.timestamp_us)
            frames = self._due_frames(item, conflator, now)
        document, key = Document(record.payload, route.message_type), to_text(record.key)
        update = _update(route, record, key)
        conflator.hold(conflator.key_of(route.wire, document, key), update, now=now)
        if conflator.due <= now:
            frames += self._due_frames(item, conflator, now)
        self.arm_replay(item)
        return frames

    def take_frames(self, item: Subscription) -> list[bytes]:
        """Remove all held messages of a subscription and return their frames, in order."""
        if item.conflator is None:
            return []
        self._clock.timers.cancel(("conflation", item.number))
        return [frame for held in item.conflator.take_all() for frame in self._frames(item, held)]

    def flush(self, item: Subscription) -> None:
        """Deliver all held messages of a subscription now."""
        frames = self.take_frames(item)
        if frames and not item.connection.closing:
            self._outbox.touch(item.outlet).extend(frames)

    def arm(self, item: Subscription) -> None:
        """Deliver the held messages of a subscription when they are due, which may be at once."""
        conflator = item.conflator
        if conflator is None or not len(conflator):
            return
        if conflator.due <= self._clock.now:
            self._deliver_due(item)
        else:
            self._set_timer(item, conflator)

    def arm_replay(self, item: BookmarkSubscription) -> None:
        """`arm` for a subscription that may have messages of the log before it.

        With the time of its messages nothing is due before it has read them.
        """
        if item.conflator is not None and not item.conflator.follows_messages:
            self.arm(item)

    def disarm(self, item: Subscription) -> None:
        """Stop the timer of a subscription until `arm` is called."""
        self._clock.timers.cancel(("conflation", item.number))

    def _deliver_due(self, item: Subscription) -> None:
        conflator = item.conflator
        if conflator is None:
            return
        frames = self._due_frames(item, conflator, self._clock.now)
        if frames and not item.connection.closing:
            self._outbox.touch(item.outlet).extend(frames)
        if len(conflator):
            self._set_timer(item, conflator)

    def _set_timer(self, item: Subscription, conflator: Conflator) -> None:
        key, client = ("conflation", item.number), item.connection.id
        self._clock.timers.set(key, conflator.due, lambda: self._deliver_due(item), client=client)

    def _due_frames(self, item: Subscription, conflator: Conflator, now: float) -> list[bytes]:
        due = conflator.take_due(now, high_waters=item.connection.high_waters)
        return [frame for held in due for frame in self._frames(item, held)]

    def _frames(self, item: Subscription, held: Held) -> list[bytes]:
        """The frame of a held message; none if it would have no content."""
        update, style = held.update, item.style
        head = frame_head(b"oof" if update.reason else b"p", update.topic, item.id)
        if update.reason:
            if held.before is None:
                return []  # the subscriber never had the record
            body: bytes | None = _selected(item, held.before)
        else:
            if style & Style.BOOKMARK and update.bookmark:
                head += b',"bm":"%b"' % update.bookmark
            body = self._body(item, held)
        if body is None:
            return []
        if update.key and not style & Style.NO_SOW_KEY:
            head += b',"k":' + encode_string(update.key)
        if style & Style.TIMESTAMP and update.timestamp_us:
            head += b',"ts":"%b"' % timestamp_text(update.timestamp_us)
        if update.correlation_id and not update.reason:
            head += b',"x":' + encode_string(update.correlation_id)
        if update.reason:
            head += b',"reason":' + encode_string(update.reason)
        return [b"%b%b}%b" % (LENGTH.pack(len(head) + 1 + len(body)), head, body)]

    def _body(self, item: Subscription, held: Held) -> bytes | None:
        """The message, or its delta to the earlier record; `None` for an empty delta."""
        body, message_type = held.update.body, item.connection.message_type
        sow = None
        if item.style & Style.DELTA and held.before is not None:
            # Deltas need a single topic: see `conflator_of`.
            sow = next(iter(self._routes.sow_tables(message_type, item.matcher)), None)
        if sow is None or held.before is None:
            return _selected(item, body)
        return sow.delta(SowRecord(held.update.key, held.before), body, item.fields).body(
            item.style
        )


def _is_in_focus(item: Subscription, route: Route, record: SowRecord) -> bool:
    return item.filter is None or item.filter(Document(record.body, route.message_type))


def _update(route: Route, record: Record, key: str, *, reason: str = "") -> Update:
    return Update(
        route.wire,
        record.payload,
        key,
        to_text(record.correlation_id),
        record.bookmark.encode("ascii") if route.logged else b"",
        record.timestamp_us,
        reason,
    )


def _selected(item: Subscription, body: bytes) -> bytes:
    if item.fields is None:
        return body
    return item.fields.apply(body, item.connection.message_type)
