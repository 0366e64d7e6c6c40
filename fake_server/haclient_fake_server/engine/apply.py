"""Applying records: the one place where messages and deletes change the state of the broker.

Publishes, replicated records and the recovery of a broker all use this module, so that a restart
and a replica reach the state of the first broker. A record is applied in two steps:

* `apply` changes the state of the world of its topic and returns what has changed. Recovery does
  only this, since its records are in the log already.
* `Applier.apply` does that for a record that is new here: first it goes into the log.

`Applier.deliver` hands the changes to subscribers; everything else that depends on them (queues,
views, conflation) consumes the same value.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from haclient.protocol.codec import encode_string
from haclient.protocol.framing import LENGTH
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import Style, Subscription
from haclient_fake_server.engine.field_selection import FieldSelection
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.log_writer import Extras, LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.publishers import KnownPublisher
from haclient_fake_server.engine.queues.message_reader import Content
from haclient_fake_server.engine.queues.message_table import MessageRow
from haclient_fake_server.engine.routes import FanoutGroup, Route, Routes, frame_head
from haclient_fake_server.engine.sow.delta import Delta
from haclient_fake_server.engine.sow.page import PageSubscription, page_headers
from haclient_fake_server.engine.sow.table import (
    NEVER_US,
    Changes,
    SowError,
    SowRecord,
    SowTable,
    recorded_keys,
)
from haclient_fake_server.engine.timers import NEVER, Clock, timestamp_text
from haclient_fake_server.journal.format import EXPIRATION, Record, RecordCommand, RecordFlag

# Plain numbers: of an enumeration, `&` takes a microsecond.
_USER_KEY: Final = int(RecordFlag.USER_KEY)
_REPLICATED: Final = int(RecordFlag.REPLICATED)
_BOOKMARK: Final = int(Style.BOOKMARK)
_TIMESTAMP: Final = int(Style.TIMESTAMP)
_NO_SOW_KEY: Final = int(Style.NO_SOW_KEY)
_LIVE: Final = int(Style.LIVE)

MAX_EXPIRED: Final = 1000
"""Records that expire in one step; others are served between two steps."""


def apply(
    route: Route, record: Record, document: Document | None = None, *, clock_us: int = sys.maxsize
) -> Changes:
    """Apply a record to the state of the world of its topic, if the topic has one.

    A message without a key may come from an instance without that state, or from before the topic
    had one. Then its key is computed here; without a valid key the message changes nothing. A key
    that the publisher has named counts only if the topic allows that.

    Args:
        route: The topic.
        record: The record, as it is or will be in the log.
        document: The message, if it was parsed already.
        clock_us: The running wall clock, which the log may be ahead of: then the life of a record
            begins now.
    """
    sow = route.sow
    if record.command == RecordCommand.SOW_DELETE:
        keys = recorded_keys(to_text(record.payload))
        return Changes(None, deleted=() if sow is None else sow.delete_keys(keys))
    if document is None:
        document = Document(record.payload, route.message_type)
    key = to_text(record.key)
    if sow is None:
        return Changes(document, key)
    try:
        if has_to_compute_key(sow, record.key, record.flags):
            key = sow.key_of(document, key)
    except SowError:  # it fits no key; it is in the log all the same
        return Changes(document)
    taken = timestamp_text(record.timestamp_us).decode("ascii")
    correlation_id = to_text(record.correlation_id)
    bookmark = record.bookmark if route.logged else ""
    own_s = record.expiration_s
    expires_us = sow.expires_us(min(record.timestamp_us, clock_us), own_s)
    stored = SowRecord(key, record.payload, taken, correlation_id, bookmark, expires_us, own_s)
    return Changes(document, key, sow.restore(stored))


def has_to_compute_key(sow: SowTable, key: bytes, flags: int) -> bool:
    """Whether the key of a record is not the one that it has in the log."""
    return not key or sow.has_user_keys or bool(flags & _USER_KEY)


class Applier:
    """Applies records that are new to this broker."""

    def __init__(
        self,
        log: LogWriter,
        routes: Routes,
        clock: Clock,
        outbox: Outbox,
        conflation: Conflation,
    ) -> None:
        self._log = log
        self._routes = routes
        self._clock = clock
        self._outbox = outbox
        self._conflation = conflation
        for topic in self._routes.sow:
            self._watch(topic)

    def _watch(self, sow: SowTable) -> None:
        """Be called when the next record expires."""
        due_us = sow.next_expiry_us
        due = NEVER if due_us == NEVER_US else self._clock.due_at_us(due_us)
        key = ("expiration of records of", sow.message_type, sow.name)
        self._clock.timers.set(key, due, partial(self._expire, sow))

    def _expire(self, sow: SowTable) -> None:
        """Remove records that have expired, and notify those that had them in focus."""
        expired = sow.take_expired(self._clock.wall_us, MAX_EXPIRED)
        self._watch(sow)
        if expired:
            route = self._routes[sow.message_type].route(sow.name)
            nothing = Record(0, 0, 0, 0, 0)
            self.deliver(route, nothing, Changes(None, deleted=expired, reason="expire"))

    def apply(
        self,
        route: Route,
        publisher: KnownPublisher,
        record: Record,
        document: Document | None = None,
    ) -> Changes:
        """Log a record, change the state, and deliver the changes.

        The record's sequence is above all seen sequences of its publisher, or equal to the last one
        when a delete covers several topics. Its time is that of this batch, its position comes from
        the log.
        """
        publisher.seen = record.sequence
        offset = 0
        if route.logged:
            expiration = record.expiration_s
            extras = Extras(
                record.key,
                record.correlation_id,
                b"" if expiration is None else EXPIRATION.pack(expiration),
                record.flags,
                record.command,
            )
            record = record._replace(position=self._log.position)
            offset = self._log.append(
                route, publisher, record.sequence, body=record.payload, extras=extras
            )
        elif not record.flags & RecordFlag.ASSIGNED:
            self._log.unnoted[publisher.id] = publisher
        changes = apply(route, record, document, clock_us=self._clock.wall_us)
        if route.sow is not None and route.sow.expiration_s is not None:
            self._watch(route.sow)
        if route.queues and changes.document is not None:
            self._routes.queues.enter(
                route.queues,
                MessageRow(record.position, publisher.id, record.sequence, offset),
                Content(record.payload, record.correlation_id, record.timestamp_us),
                expiration_s=record.expiration_s,
                document=changes.document,
                is_replicated=bool(record.flags & _REPLICATED),
            )
        self.deliver(route, record, changes)
        return changes

    def deliver(self, route: Route, record: Record, changes: Changes) -> None:
        """Send a message to its subscribers, and notify those whose filter a record has left."""
        plan = route.plan or self._routes[route.message_type].plan(route)
        self._routes[route.message_type].pattern_checks += plan.checks
        document, key = changes.document, _wire_key(changes.key)
        if plan.pages:
            self._turn_pages(route, plan.pages, changes)
        if plan.conflated:
            self.conflate(route, record, changes)
        if document is None:
            self._report_deleted(route, changes)
            return
        bookmark = record.bookmark.encode("ascii") if route.logged else b""
        correlation_id = to_text(record.correlation_id)
        more = b',"x":' + encode_string(correlation_id) if correlation_id else b""
        previous, sow = changes.previous, route.sow
        if previous is None or sow is None or not (plan.watched or plan.deltas):
            self.fan_out(plan.matching(document), document.body, bookmark, key, more)
            return
        before = sow.document(previous)
        deltas: dict[FieldSelection | None, Delta] = {}
        for group in plan.matching(document, before):
            try:
                delta = deltas.get(group.fields)
                if delta is None:
                    delta = deltas[group.fields] = sow.delta(previous, document.body, group.fields)
                body = delta.body(group.style)
            except Exception as error:
                self._fail(group, error)
                continue
            if body is not None:  # already the selected fields: `null` for one of them stays
                self.fan_out((group._replace(fields=None),), body, bookmark, key, more)
        if plan.watched:
            groups = plan.losing(before, document)
            self.fan_out(groups, document.body, b"", key, b',"reason":"match"')

    def conflate(self, route: Route, record: Record, changes: Changes) -> None:
        """Hold a message for the subscriptions with conflation on its planned topic."""
        for item in () if route.plan is None else route.plan.conflated:
            try:
                self._conflation.conflate(item, route, record, changes)
            except Exception as error:  # as everywhere here: the record is for the others, too
                self._outbox.fail(item.connection, error)

    def _turn_pages(
        self, route: Route, pages: Iterable[PageSubscription], changes: Changes
    ) -> None:
        """Send what a change means for pages: first what leaves them, then what is in them."""
        deleted = {record.key: record for record in changes.deleted}
        keys = tuple(deleted) if changes.document is None else (changes.key,)
        if route.sow is None or not any(keys):  # a message that fits no key changes no record
            return
        for item in pages:
            try:
                self._turn_page(route, item, keys, deleted, changes)
            except Exception as error:
                self._outbox.fail(item.connection, error)

    def _turn_page(
        self,
        route: Route,
        item: PageSubscription,
        keys: tuple[str, ...],
        deleted: Mapping[str, SowRecord],
        changes: Changes,
    ) -> None:
        sow = route.sow
        if sow is None:
            return
        change = item.page.update(keys)
        for key in change.left if item.oof else ():
            record = sow.get(key)
            if record is not None:
                self._send_record(route, item, record, reason="match")
            else:
                self._send_record(route, item, deleted[key], reason=changes.reason)
        for key in change.present:
            record = sow.get(key)
            if record is None:
                continue
            if item.style & Style.DELTA and key not in change.entered:
                self._send_delta_of_page(route, item, record, changes.previous)
            else:
                self._send_record(route, item, record)

    def _fail(self, group: FanoutGroup, error: Exception) -> None:
        for connection in group.connections:
            connection.failed(connection, error)

    def leave(self, item: Subscription, topic: str, records: Iterable[SowRecord]) -> None:
        """Send out-of-focus messages for records that a subscriber no longer selects."""
        route = self._routes[item.connection.message_type].route(topic)
        for record in records:
            self._send_record(route, item, record, reason="match")

    def _send_delta_of_page(
        self, route: Route, item: PageSubscription, record: SowRecord, previous: SowRecord | None
    ) -> None:
        """Send what an update has changed in a record that was in the page, and still is."""
        if route.sow is None or previous is None:
            return
        delta = route.sow.delta(previous, record.body, item.fields)
        body = delta.body(item.style)
        if body is not None:
            self._send_record(route, item, record, delta=body)

    def _send_record(
        self,
        route: Route,
        item: Subscription,
        record: SowRecord,
        *,
        reason: str = "",
        delta: bytes | None = None,
    ) -> None:
        """Send a record that has come into focus, has left it, or has changed in a page."""
        more = page_headers(record, dated=bool(item.style & Style.TIMESTAMP), reason=reason)
        head = frame_head(b"oof" if reason else b"p", route.wire, item.id)
        # Its own time is among its headers: a record that enters a page may be an old one.
        # The delta has only selected fields already: a `null` for one of them stays.
        fields = item.fields if delta is None else None
        group = FanoutGroup(head, item.style & ~Style.TIMESTAMP, (item.connection,), fields)
        bookmark = b"" if reason else record.bookmark.encode("ascii")
        body = record.body if delta is None else delta
        self.fan_out((group,), body, bookmark, _wire_key(record.key), more)

    def _report_deleted(self, route: Route, changes: Changes) -> None:
        """Notify the subscribers that had a record in focus that is gone."""
        plan, sow = route.plan, route.sow
        if plan is None or sow is None or not plan.watched:
            return
        reason = b',"reason":' + encode_string(changes.reason)
        for record in changes.deleted:
            document, key = sow.document(record), _wire_key(record.key)
            self.fan_out(plan.losing(document, None), document.body, b"", key, reason)

    def fan_out(
        self,
        groups: Iterable[FanoutGroup],
        body: bytes,
        bookmark: bytes,
        key: bytes = b"",
        more: bytes = b"",
    ) -> None:
        """Queue a message for the connections of some groups; `key` and `more` are headers."""
        outbox, now_us = self._outbox, self._log.now_us
        for group in groups:
            head, style, connections, fields = group
            if style & _BOOKMARK and bookmark:
                head = b'%b,"bm":"%b"' % (group.head, bookmark)
            if key and not style & _NO_SOW_KEY:
                head += key
            if style & _TIMESTAMP:
                head += b',"ts":"%b"' % timestamp_text(now_us)
            try:
                content = (
                    body if fields is None else fields.apply(body, connections[0].message_type)
                )
            except Exception as error:
                self._fail(group, error)
                continue
            size = len(head) + len(more) + 1 + len(content)
            frame = b"%b%b%b}%b" % (LENGTH.pack(size), head, more, content)
            queue = outbox.touch_early if style & _LIVE else outbox.touch
            for connection in connections:
                if not connection.closing:
                    queue(connection).append(frame)


def _wire_key(key: str) -> bytes:
    return b',"k":' + encode_string(key) if key else b""
