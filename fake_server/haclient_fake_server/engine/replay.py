"""Replay: bookmark subscriptions that read the log, at the reader's pace.

A subscription in phase REPLAY has a cursor, and each `pump` turns the next chunk of the log into
frames; the shell pumps a connection only while its outgoing buffer has room. When the chunk was the
last one the subscription goes LIVE in the same call: `pump` runs between batches, so nothing can be
published between the last record read and the first one sent live. When its connection's buffer
exceeds the high-water mark, it returns to REPLAY at exactly the next position, and reads on when
there is a message for it. The log is the buffer; the broker keeps no other state.

A subscription with a `rate` goes through the log at its `ReplayPace`, one record at a time: it is
*held* until its next message is due. That ends when it goes live.

`completed` is sent between the last record that was in the log when the subscribe came and the
first that was not.

A subscription that begins with a query of the past keeps its place in phase QUERY, in which it
receives nothing and may be paused, changed and ended, until the query was answered.

Subscriptions with an end of their own, and `fully_durable` ones, never go live: they wait at the
end of the log, as do those that left the live stream. A batch wakes those that subscribe to the
topic of one of its records. The others follow the end without reading, so they cost a batch
nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from haclient.protocol.codec import encode_string
from haclient.protocol.framing import LENGTH
from haclient_fake_server.engine import replay_group
from haclient_fake_server.engine.acks import ack
from haclient_fake_server.engine.conflation import Conflation
from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    LogEnd,
    Phase,
    Selection,
    Style,
)
from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import Cursor, records_of
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.pace import ReplayPace
from haclient_fake_server.engine.patterns import to_text
from haclient_fake_server.engine.persisted_acks import PersistedAcks
from haclient_fake_server.engine.replication.durability import Durability
from haclient_fake_server.engine.routes import Route, Routes, frame_head
from haclient_fake_server.engine.span import Span
from haclient_fake_server.engine.timers import Clock, timestamp_text
from haclient_fake_server.journal.format import (
    BLOCK_HEADER,
    BLOCK_HEADER_BYTES,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    JournalFormatError,
    Record,
    RecordCommand,
    blocks_of,
    read_records,
)

CHUNK_BYTES: Final = 128 * 1024
"""What is read for one subscription at a time: enough to make the cost of a call vanish, little
enough that others get their turn within milliseconds."""

FEED_BYTES: Final = 512 * 1024
"""What is read for one connection at a time, however many subscriptions it has."""

AHEAD_BYTES: Final = 16 * 1024
"""What is read for a `rate` or for a group of subscriptions; it is kept in memory until it is sent
to all of them."""

MIN_HOLD_S: Final = 0.01
"""The shortest wait for the next message of a `rate`: several are sent together at high rates."""

EMPTY_BYTES: Final = 1024
"""What a turn counts for that finds nothing to read."""

MAX_HEADS: Final = 4096
"""Topics of which a replay remembers the beginning of its frames."""

MAX_TIME_US: Final = 2**63 - 1


class Replay:
    """Feeds bookmark subscriptions."""

    def __init__(  # noqa: PLR0913, PLR0917  # its collaborators
        self,
        log: LogWriter,
        routes: Routes,
        durability: Durability,
        clock: Clock,
        outbox: Outbox,
        conflation: Conflation,
        acks: PersistedAcks,
    ) -> None:
        self._log = log
        self._routes = routes
        self._durability = durability
        self._clock = clock
        self._outbox = outbox
        self._conflation = conflation
        self._acks = acks
        self._following: dict[int, BookmarkSubscription] = {}
        self._waiting: dict[int, BookmarkSubscription] = {}
        self._log_end, self._durable_end = LogEnd(), LogEnd()
        self._move_ends()

    def enter(self, item: BookmarkSubscription, span: Span) -> None:
        """Start a subscription; it goes live at once if the log has nothing for it."""
        item.phase = Phase.REPLAY
        item.position = span.start
        item.last_position, item.last_us = span.last_position, span.last_us
        item.target = self._log.messages_end - 1
        item.start = span.start
        item.passed = self._log.last_bookmark if span.start > item.target else ""
        if item.wants_persisted:
            self._acks.enter(item)
        if item.bounded:
            self._check_end(item)
        elif span.start > item.target and not item.paused:
            self._catch_up(item)
        self._place(item)

    def enter_after_query(self, item: BookmarkSubscription, span: Span) -> None:
        """Keep a place in the log for a subscription, which `query_answered` starts."""
        item.phase = Phase.QUERY
        item.position = item.start = span.start
        item.last_position, item.last_us = span.last_position, span.last_us
        item.covered = span.covered

    def pass_covered(self, item: BookmarkSubscription) -> Generator[None, None, int]:
        """Let a subscription in phase QUERY pass the messages that its bookmarks cover.

        It stops before the first message for it that they do not cover.

        Returns:
            A position: the records of its query include what is before it in the log.
        """
        cursor = self._log.journal.seek(item.position)
        while item.covered:
            chunk, cursor = self._log.journal.read(cursor, CHUNK_BYTES)
            for record in records_of(chunk):
                if record.position < item.start or self._wanted_head(item, record) is None:
                    continue
                if record.sequence > item.covered.get(record.publisher_id, 0):
                    return item.position
                item.position = record.position + 1
            if not chunk:
                break
            yield
        return item.position

    def query_answered(self, item: BookmarkSubscription) -> None:
        """Start a subscription at its place in the log, now that its query was answered."""
        if item.query is not None:
            item.connection.subscription_queries -= 1
        item.query, item.covered = None, {}
        self.enter(item, Span(item.position, item.last_position, item.last_us))

    def rest_of(self, item: BookmarkSubscription) -> Span:
        """The part of the log that a subscription has not passed yet."""
        position = self._log.position if item.is_live else item.reached[0]
        return Span(position, item.last_position, item.last_us, item.covered)

    def fall_back(self, connection: Connection) -> None:
        """The connection's buffer is full: live bookmark subscriptions read the log from here."""
        for item in tuple(connection.live_replays.values()):
            item.fell_back = True
            self.detach(item)

    def detach(self, item: BookmarkSubscription) -> None:
        """A live bookmark subscription leaves the live stream at the next position."""
        self._routes[item.connection.message_type].leave(item)
        item.connection.live_replays.pop(item.number, None)
        item.phase = Phase.REPLAY
        item.position = self._log.position
        item.passed = self._log.last_bookmark
        item.cursor = None
        self._place(item)

    def select(self, item: BookmarkSubscription, selection: Selection) -> None:
        """Give a subscription other topics or another filter; its position is kept."""
        table = self._routes[item.connection.message_type]
        self._leave_group(item)
        item.leave_end()
        self._stop_following(item)  # it is found by its old topic
        table.leave(item)
        item.select(selection)
        if item.is_live:
            table.enter(item)
        self._place(item)

    def set_paused(self, item: BookmarkSubscription, *, paused: bool) -> None:
        """Pause a bookmark subscription, or let it continue from where it is."""
        self._leave_group(item)
        if paused and item.phase is Phase.LIVE:
            self.detach(item)
        item.paused = paused
        if paused:
            item.fell_back = False  # what it misses from here on comes at its rate
            self._conflation.disarm(item)
        else:
            self._conflation.arm_replay(item)
        self._place(item)

    def resume(self, items: Sequence[BookmarkSubscription]) -> None:
        """Resume subscriptions of one connection; those that can share a replay do so."""
        for item in items:
            self.set_paused(item, paused=False)
        in_order = sorted(set(items), key=lambda item: item.number)
        replay_group.join(item for item in in_order if item.number in item.connection.backlog)

    def _leave_group(self, item: BookmarkSubscription) -> None:
        if item.group is not None:
            if item.is_held:
                self._release(item)
            replay_group.leave(item)

    def set_pace(self, item: BookmarkSubscription, pace: ReplayPace | None) -> None:
        """Give a bookmark subscription another pace, or none; the next message is due at once."""
        self._leave_group(item)
        item.read_anew()  # what was read ahead, too
        item.pace = pace
        self._release(item)

    def end(self, item: BookmarkSubscription) -> None:
        """Stop sending anything to a subscription, whether it was replayed or not."""
        self._leave_group(item)
        item.phase = Phase.ENDED
        item.connection.live_replays.pop(item.number, None)
        self._clock.timers.cancel(("range", item.number))
        self._clock.timers.cancel(("rate", item.number))
        self._place(item)

    def pump(self, connection: Connection) -> None:
        """Send a chunk each to subscriptions with a backlog, in turn, up to the limit."""
        backlog, room = connection.backlog, FEED_BYTES
        # Taken together: a dict finds its first key by passing all that were removed before it.
        for item in tuple(islice(backlog.values(), FEED_BYTES // EMPTY_BYTES)):
            if item.number not in backlog:  # its group was already served in this round
                continue
            together = replay_group.members_of(item)
            for each in together:
                backlog.pop(each.number, None)
            room -= max(self._advance(together), EMPTY_BYTES)
            for each in together:  # at the end, after those that wait for their turn
                self._place(each)
            if room <= 0:
                return

    def end_batch(self) -> None:
        """Put subscriptions that have more to read since the last batch into the backlog.

        Those that follow an end of the log are looked at only if the batch has a record of one of
        their topics.
        """
        for route in self._log.take_routes():
            if not self._following:
                continue
            plan = route.plan or self._routes[route.message_type].plan(route)
            for item in plan.waiting:
                item.leave_end()
                item.read_until = self._log.position
                if item.number not in item.connection.backlog:
                    self._waiting[item.number] = item
        if self._move_ends():
            for item in [item for item in self._waiting.values() if self._has_more(item)]:
                self._place(item)
            if self._following:
                self._acks.log_moved()

    def _move_ends(self) -> bool:
        """Let the subscriptions that follow an end pass what the batch has added to the log."""
        durability, position = self._durability, self._log.position
        log_end, durable_end = self._log_end, self._durable_end
        before = (log_end.position, durable_end.position)
        log_end.position, durable_end.position = position, durability.end_of_durable(position)
        log_end.bookmark = durable_end.bookmark = self._log.last_bookmark
        if durability.waits:
            passed = durability.passed
            durable_end.bookmark = f"{passed[0]}|{passed[1]}|" if passed else ""
        return (log_end.position, durable_end.position) != before

    def _place(self, item: BookmarkSubscription) -> None:
        """Move a subscription to the right set after a change to it.

        While it has records to replay, it is in the backlog of its connection. When it has read
        every available record, it is at the end of the log: it waits there for records that it may
        not read yet, or follows the end if there are none. While it is live, paused or ended, it is
        in none of these sets.
        """
        item.leave_end()
        backlog, number = item.connection.backlog, item.number
        if item.wants_replay and self._has_more(item):
            self._waiting.pop(number, None)
            backlog[number] = item
            self._outbox.wake(item.connection)
            return
        backlog.pop(number, None)
        if not item.wants_replay:
            self._waiting.pop(number, None)
            self._stop_following(item)
            return
        self._conflation.arm(item)  # what it holds is due at the latest when its interval is over
        if number not in self._following:
            # Which of the records that are not durable yet are for it is not known.
            item.read_until = self._log.position
            self._following[number] = item
            self._routes[item.connection.message_type].enter(item)
        # These depend on the end itself, whatever the topics of the records there are.
        watches_end = item.fully_durable and (item.wants_completed or item.last_us is not None)
        end = self._durable_end if item.fully_durable else self._log_end
        # One that began at the end of the log may be ahead of the durable records.
        if item.position < item.read_until or item.position > end.position or watches_end:
            self._waiting[number] = item
        else:
            self._waiting.pop(number, None)
            item.end = end

    def _stop_following(self, item: BookmarkSubscription) -> None:
        if self._following.pop(item.number, None) is not None:
            self._routes[item.connection.message_type].leave(item)

    def _has_more(self, item: BookmarkSubscription) -> bool:
        """Whether there is more to read for a subscription, or it can go live."""
        if item.fully_durable:
            # One that began paused at the end of the log has to be told that nothing is before it.
            is_told = not item.wants_completed or item.bounded or item.position <= item.target
            durable_end = self._durability.end_of_durable(self._log.position)
            return item.position < durable_end or not is_told
        return item.position < self._log.position or not (item.bounded or item.fell_back)

    def _advance(self, members: Sequence[BookmarkSubscription]) -> int:
        """Send the next chunk of a replay, record by record to each of its subscriptions.

        Args:
            members: The subscriptions that share it, one or more.

        Returns:
            The size of the chunk in the log, in bytes, as often as it was looked at.
        """
        reader = members[0]
        if _pace_of(reader) is not None or len(members) > 1:
            frames, size = self._scan_together(members)
        else:
            chunk = self._read(reader, CHUNK_BYTES)
            scanned = None if _needs_general_scan(reader, chunk) else self._scan(reader, chunk)
            frames = self._scan_general(reader, records_of(chunk)) if scanned is None else scanned
            size = len(chunk)
        for item in members:
            self._advanced(item, frames)  # all of them are of one connection
            frames = []
        if not all(map(self._has_more, members)):
            for item in members:  # from here on each waits for its own topics
                self._leave_group(item)
        return size

    def _scan_together(self, members: Sequence[BookmarkSubscription]) -> tuple[list[bytes], int]:
        """The next records for several subscriptions, up to the first that is not due yet.

        All of them have the same position, and pass what is read together: there may be thousands,
        so that a record is looked at only by those of its topic.

        Returns:
            The frames, and the size of the records, which counts for each of these.
        """
        reader, pace = members[0], _pace_of(members[0])
        if not reader.ahead:
            records = records_of(self._read(reader, AHEAD_BYTES if pace else CHUNK_BYTES))
            reader.ahead = [each for each in records if each.position >= reader.position]
            reader.ahead.reverse()
        frames: list[bytes] = []
        size, end, passed = 0, reader.position, ""
        wanting: dict[int, Sequence[BookmarkSubscription]] = {}
        while reader.ahead and size < FEED_BYTES:
            record = reader.ahead[-1]
            here: Sequence[BookmarkSubscription] = ()
            if record.command == RecordCommand.PUBLISH:
                if record.topic_id not in wanting:
                    topic = self._routes.by_id[record.topic_id].topic
                    wanting[record.topic_id] = replay_group.of_topic(reader, topic)
                here = wanting[record.topic_id]
            if pace is not None and any(self._is_for(item, record) for item in here):
                for item in here:
                    frames += self._end_of_replay(item, record)
                if self._is_early(reader, pace, record):
                    break
            for item in here:
                frames += self._scan_general(item, (record,))
            size += (1 + len(here)) * (RECORD_HEADER_BYTES + len(record.payload))
            end = record.position + 1
            passed = record.bookmark if record.is_data else passed
            reader.ahead.pop()
        _pass_together(members, end, passed)
        return frames, size

    def _end_of_replay(self, item: BookmarkSubscription, record: Record) -> list[bytes]:
        """What a subscription gets when its replay is over, if that is before this record."""
        if item.wants_completed and not item.bounded and record.position > item.target:
            return [*self._conflation.take_frames(item), _completed(item)]
        return []

    def _is_for(self, item: BookmarkSubscription, record: Record) -> bool:
        """Whether a subscription has to receive a record."""
        if item.bounded and _is_past(item, record):
            return False
        return self._wanted_head(item, record) is not None

    def _wanted_head(self, item: BookmarkSubscription, record: Record) -> bytes | None:
        """The beginning of the frame for a record; `None` if it does not match."""
        if record.command != RecordCommand.PUBLISH:
            return None
        head = self._heads(item)[record.topic_id]
        return head if head is not None and self._wants(item, record) else None

    def _is_early(self, item: BookmarkSubscription, pace: ReplayPace, record: Record) -> bool:
        """Whether a message is not due yet; then its subscription or group waits until it is."""
        due = pace.due(self._clock.now, record.timestamp_us)
        if due <= self._clock.now:
            pace.sent(self._clock.now, len(record.payload), record.timestamp_us)
            return False
        for each in replay_group.members_of(item):
            each.is_held = True
        at = max(due, self._clock.now + MIN_HOLD_S)
        client = item.connection.id
        self._clock.timers.set(
            ("rate", item.number), at, lambda: self._release(item), client=client
        )
        return True

    def _release(self, item: BookmarkSubscription) -> None:
        self._clock.timers.cancel(("rate", item.number))
        for each in replay_group.members_of(item):
            each.is_held = False
            self._place(each)

    def _read(self, item: BookmarkSubscription, max_bytes: int) -> bytes:
        """Read on in the log: whole blocks."""
        cursor = self._log.journal.seek(item.position) if item.cursor is None else item.cursor
        chunk, item.cursor = self._log.journal.read(cursor, max_bytes)
        if item.fully_durable:
            chunk, item.cursor = _cut(
                chunk, item.cursor, limit=self._durability.end_of_durable(self._log.position)
            )
        return chunk

    def _advanced(self, item: BookmarkSubscription, frames: list[bytes]) -> None:
        """Send frames, and note how far the subscription has come with them."""
        if frames:
            self._outbox.touch(item.connection).extend(frames)
        if item.wants_persisted:
            self._acks.passed(item)
        if item.bounded:
            self._check_end(item)
        elif item.position >= self._log.position:
            self._catch_up(item)
        elif item.position > item.target:
            self._complete(item)

    def _scan(self, item: BookmarkSubscription, chunk: bytes) -> list[bytes] | None:
        """The common case: all messages of the topic are sent, and nothing ends within the chunk.

        Returns:
            The frames; `None` if a record lies after the last time of the subscription. Then
            nothing was passed.
        """
        length_of, unpack = LENGTH.pack, RECORD_HEADER.unpack_from
        heads, start, publish = self._heads(item), item.position, int(RecordCommand.PUBLISH)
        dated, keyed = bool(item.style & Style.TIMESTAMP), not item.style & Style.NO_SOW_KEY
        last_us = MAX_TIME_US if item.last_us is None else item.last_us
        last, of, head, begin = -1, (0, 0), None, b""
        frames: list[bytes] = []
        for offset, end in blocks_of(chunk):  # not `headers`, which takes a fifth more time
            at = offset
            while at < end:
                size, _, command, skip, position, publisher, sequence, time_us, topic, key, x = (
                    unpack(chunk, at)
                )
                if size < RECORD_HEADER_BYTES:
                    raise JournalFormatError(at, "the length of a record is too small")
                if position >= start:
                    if time_us > last_us:
                        return None
                    last = at
                    if command == publish and of != (publisher, topic):
                        of, head = (publisher, topic), heads[topic]
                        begin = b"%b%d|" % (head or b"", publisher)
                    if head is not None and command == publish:
                        body_at = at + RECORD_HEADER_BYTES + key + x + skip
                        if key or x or dated:
                            key_at = at + RECORD_HEADER_BYTES
                            more = _optional_headers(
                                chunk[key_at : key_at + key] if keyed else b"",
                                time_us if dated else None,
                                chunk[key_at + key : key_at + key + x],
                            )
                            header = b'%b%d|"%b}' % (begin, sequence, more)
                        else:
                            header = b'%b%d|"}' % (begin, sequence)
                        body = chunk[body_at : at + size]
                        frames += (length_of(len(header) + len(body)), header, body)
                at += size
        if last >= 0:
            _pass_chunk(item, chunk, next(read_records(chunk, last, len(chunk))))
        return frames

    def _scan_general(self, item: BookmarkSubscription, records: Iterable[Record]) -> list[bytes]:
        """The general case: filters, limits and ends are checked for each record."""
        frames: list[bytes] = []
        for record in records:
            if record.position < item.position:
                continue
            if item.bounded and _is_past(item, record):
                break
            head = self._wanted_head(item, record)
            if item.wants_completed:
                frames += self._end_of_replay(item, record)
            _pass(item, record)
            if head is not None and item.conflator is not None:
                route = self._routes.by_id[record.topic_id]
                frames += self._conflation.conflate_record(item, route, record)
            elif head is not None:
                frames.append(_frame(item, head, record, self._wanted_body(item, record)))
                if item.remaining is not None:
                    item.remaining -= 1
        return frames

    def _wants(self, item: BookmarkSubscription, record: Record) -> bool:
        if item.filter is None:
            return True
        route = self._routes.by_id[record.topic_id]
        return item.filter(Document(record.payload, route.message_type))

    def _wanted_body(self, item: BookmarkSubscription, record: Record) -> bytes:
        if item.fields is None:
            return record.payload
        return item.fields.apply(record.payload, item.connection.message_type)

    def _heads(self, item: BookmarkSubscription) -> Mapping[int, bytes | None]:
        if item.heads is None:
            item.heads = Heads(item, self._routes.by_id)
        return item.heads

    def _catch_up(self, item: BookmarkSubscription) -> None:
        """The end of the log is reached: go live, unless new records have to be confirmed first."""
        self._complete(item)
        self._leave_group(item)
        if item.fully_durable:
            return
        item.phase, item.fell_back = Phase.LIVE, False
        self._following.pop(item.number, None)
        self._conflation.arm(item)
        item.cursor = item.heads = None
        item.connection.live_replays[item.number] = item
        self._routes[item.connection.message_type].enter(item)

    def _check_end(self, item: BookmarkSubscription) -> None:
        """Whether a subscription with an end has reached it; otherwise it waits for more."""
        over = item.remaining == 0 or (
            item.last_position is not None and item.position > item.last_position
        )
        at_end = item.position >= self._log.messages_end
        if not over and item.last_us is not None and at_end:
            over = self._log.now_us > item.last_us
            if not over:
                due = self._clock.due_at_us(item.last_us + 1)
                key, client = ("range", item.number), item.connection.id
                self._clock.timers.set(key, due, lambda: self._on_range_due(item), client=client)
        if over:
            self._conflation.flush(item)
            self._complete(item)
            self.end(item)
        elif item.last_position is None and item.last_us is None and item.position > item.target:
            self._complete(item)

    def _on_range_due(self, item: BookmarkSubscription) -> None:
        item.leave_end()
        self._check_end(item)
        self._place(item)

    def _complete(self, item: BookmarkSubscription) -> None:
        if item.wants_completed:
            self._conflation.flush(item)
            self._outbox.touch(item.connection).append(_completed(item))


class Heads(dict[int, bytes | None]):
    """The constant beginnings of a subscription's frames by topic id, each built when first needed.

    `None` if the subscription does not match the topic.
    """

    def __init__(self, item: BookmarkSubscription, topics: Mapping[int, Route]) -> None:
        super().__init__()
        self._item = item
        self._topics = topics

    def __missing__(self, topic_id: int) -> bytes | None:
        route, item = self._topics[topic_id], self._item
        wanted = route.message_type == item.connection.message_type and item.matcher.matches(
            route.topic
        )
        head = frame_head(b"p", route.wire, item.id) + b',"bm":"' if wanted else None
        if len(self) >= MAX_HEADS:
            self.clear()
        self[topic_id] = head
        return head


def _cut(chunk: bytes, after: Cursor, *, limit: int) -> tuple[bytes, Cursor]:
    """The blocks of a chunk that begin before a position, and the cursor after them."""
    for start, _ in blocks_of(chunk):
        offset = start - BLOCK_HEADER_BYTES
        if BLOCK_HEADER.unpack_from(chunk, offset)[6] >= limit:
            return chunk[:offset], after._replace(offset=after.offset - len(chunk) + offset)
    return chunk, after


def _needs_general_scan(item: BookmarkSubscription, chunk: bytes) -> bool:
    """Whether each record of a chunk has to be looked at: the last time is left to the scan."""
    if item.filter is not None or item.remaining is not None or item.fields is not None:
        return True
    if item.conflator is not None:
        return True
    ends = (item.last_position, item.target if item.wants_completed else None)
    return any(end is not None and _reaches_beyond(chunk, end, start=item.position) for end in ends)


def _reaches_beyond(chunk: bytes, position: int, *, start: int) -> bool:
    """Whether a chunk, read to continue at `start`, has a record above a position.

    The size of the chunk usually decides.
    """
    most = start + len(chunk) // RECORD_HEADER_BYTES
    return most > position and _highest_position(chunk) > position


def _highest_position(chunk: bytes) -> int:
    """The highest position of the records in a chunk."""
    highest = 0
    for start, _ in blocks_of(chunk):
        fields = BLOCK_HEADER.unpack_from(chunk, start - BLOCK_HEADER_BYTES)
        highest = fields[6] + fields[3] - 1
    return highest


def _pace_of(item: BookmarkSubscription) -> ReplayPace | None:
    """The pace of a replay; one that was live had caught up, and has none."""
    return None if item.fell_back else item.pace


def _pass(item: BookmarkSubscription, record: Record) -> None:
    item.position = record.position + 1
    if record.is_data:
        item.passed = record.bookmark


def _pass_chunk(item: BookmarkSubscription, chunk: bytes, last: Record) -> None:
    """Pass the records of a chunk; `last` is the last of them."""
    if not last.is_data:  # a mark, which has no bookmark: look for that of the last message
        for record in records_of(chunk):
            if record.position >= item.position:
                _pass(item, record)
    _pass(item, last)


def _pass_together(members: Iterable[BookmarkSubscription], end: int, bookmark: str) -> None:
    """Let subscriptions pass the records before a position, each as far as its end.

    Args:
        members: Subscriptions that have passed what there is for them.
        end: The position.
        bookmark: That of the last message before it; empty if they had passed all.
    """
    for item in members:
        if item.last_position is not None and item.last_position < end - 1:
            item.position = item.last_position + 1
        elif item.remaining != 0:
            item.position = end
            item.passed = bookmark or item.passed


def _is_past(item: BookmarkSubscription, record: Record) -> bool:
    """Whether a record lies after the end of a subscription's span."""
    if item.last_us is not None and record.timestamp_us > item.last_us:
        # The first such record ends the span; a shared or paced replay looks at later ones, too.
        ends = record.position - 1, item.last_position
        item.last_position = min(end for end in ends if end is not None)
    return item.remaining == 0 or (
        item.last_position is not None and record.position > item.last_position
    )


def _completed(item: BookmarkSubscription) -> bytes:
    item.wants_completed = False
    more = {"sub_id": item.id, "bm": item.passed}
    return ack("completed", item.cid, more=more)


def _frame(item: BookmarkSubscription, head: bytes, record: Record, body: bytes) -> bytes:
    """A replayed message with all headers that it and the subscription have."""
    more = _optional_headers(
        b"" if item.style & Style.NO_SOW_KEY else record.key,
        record.timestamp_us if item.style & Style.TIMESTAMP else None,
        record.correlation_id,
    )
    header = b'%b%d|%d|"%b}' % (head, record.publisher_id, record.sequence, more)
    return LENGTH.pack(len(header) + len(body)) + header + body


def _optional_headers(key: bytes, timestamp_us: int | None, correlation_id: bytes) -> bytes:
    """The headers after the bookmark; empty ones are left out."""
    found = b',"k":' + encode_string(to_text(key)) if key else b""
    if timestamp_us is not None:
        found += b',"ts":"%b"' % timestamp_text(timestamp_us)
    if correlation_id:
        found += b',"x":' + encode_string(to_text(correlation_id))
    return found
