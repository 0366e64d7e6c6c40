"""The sending side of replication: reads this instance's log for another one.

The shell dials, and redials after a failure. When a connection is made, the logon is sent. The
other instance answers with its vector, the highest sequence that it has of each publisher; then the
destination is *ready*, and reading starts at the first part of the log that has more than that.
`pump` turns the next chunk of the log into frames whenever the shell has room for them, as for a
replaying subscription: a burst and a catch-up after a day are the same thing, and the log is the
only buffer.

Records that the other side has acknowledged on an earlier connection are skipped, and so are
records of other instances that are in its vector. A record that was published here is sent until it
is acknowledged, even if the vector covers it: a publisher that lost its store may have gone on at
the other side, which then has later records of it and lacks this one. So at a first contact, or if
nothing is known of earlier ones, the log is sent from its first position, and the other side drops
what it has. If the vector shows that it has lost a record that it had acknowledged, the same is
done from this record on.

Together with duplicate detection this prevents loops in chains, rings and pairs: every path carries
each publisher's messages in their order.

Across connections and restarts a destination keeps its instance name and the acknowledged position;
another instance at the same address begins without one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from haclient.errors import ProtocolError
from haclient.protocol.framing import MAX_FRAME_BYTES
from haclient.protocol.messages import Message
from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.journal import Cursor, JournalReader
from haclient_fake_server.engine.log_writer import topic_definition
from haclient_fake_server.engine.replication.durability import (
    DestinationProgress,
    ReplicationProgress,
)
from haclient_fake_server.engine.replication.wire import decode_max_frame, decode_vector, records
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.engine.settings import ReplicateTo
from haclient_fake_server.journal.format import RecordCommand, RecordFlag, headers

CHUNK_BYTES: Final = 128 * 1024
"""How much of the log is read at a time."""

FRAME_BYTES: Final = 2**20
"""A frame ends with the record that exceeds this."""

NO_TOPIC: Final = 0
"""The topic id of a mark, which needs no definition."""

MAX_NAME_CHARACTERS: Final = 16_383
"""The longest instance name, whose bytes `ProgressFile` counts with 16 bits."""

CAUGHT_UP_S: Final = 1.0
"""A destination has caught up when it acknowledges within this time what was the end of the log."""


_REMOVAL: Final = int(RecordCommand.QUEUE_REMOVE)


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """The state of a destination of replication.

    Attributes:
        address: `tcp://HOST:PORT`, as configured.
        instance: Its instance name; empty while it was never reached.
        mode: As configured.
        is_sync: Whether persisted acks wait for it now.
        is_connected: Whether it has accepted the current connection.
        acknowledged: Position of this log up to which it has everything.
        behind: How many messages, deletes and marks of this log it has not acknowledged.
        links: How many connections it has accepted.
        missing: How many records of this log it lacks and can no longer accept, since it has later
            ones of a publisher that had lost them. They do not count as `behind`.
    """

    address: str
    instance: str
    mode: Literal["sync", "async"]
    is_sync: bool
    is_connected: bool
    acknowledged: int
    behind: int
    links: int
    missing: int = 0


class Destination:
    """One instance that this one replicates to.

    Args:
        settings: As configured.

    Attributes:
        settings: As configured.
        address: `tcp://HOST:PORT`, as configured.
        instance: Its instance name, once it was reached.
        connection: The current connection, if any.
        is_ready: Whether the destination has answered the logon on it.
        is_sync: Whether persisted acks wait for it now.
        acked: It has everything up to this position.
        position: The next one to read.
        links: How many connections it has accepted.
        missing: How many records it has dropped, since it has later ones of their publishers.
        has_removals: Whether the log may have removals from queues that it was not sent.
        removals_end: Until it acknowledges a record at this position or behind it, it may lack
            removals that are behind what it has acknowledged.
    """

    def __init__(self, settings: ReplicateTo) -> None:
        self.settings = settings
        self.address = settings.address
        self.instance = ""
        self.connection: Connection | None = None
        self.is_ready = False
        self.is_sync = settings.mode == "sync"
        self.acked = 0
        self.position = 1
        self.links = 0
        self.missing = 0
        self.has_removals = False
        self.removals_end = 0
        self._verified = 0
        self._pinned = False
        self._cursor: Cursor | None = None
        self._known: dict[int, int] = {}
        self._in_flight: deque[tuple[int, int]] = deque()
        self._defined_topics = {NO_TOPIC}
        self._catch_up_mark = (math.inf, math.inf)
        self._max_frame_bytes = MAX_FRAME_BYTES

    @property
    def mode_text(self) -> str:
        """Whether persisted acks wait for it, as a word."""
        return "synchronous" if self.is_sync else "asynchronous"

    # --- the connection ------------------------------------------------------------------------

    def leave(self) -> None:
        """End the connection; unacknowledged records on it will be sent again."""
        self.connection = None
        self.is_ready = False
        self._in_flight.clear()
        self._known = {}
        self.position = self.acked + 1
        self._cursor = None

    def restore(self, progress: ReplicationProgress | None, *, end: int) -> None:
        """Take over what an earlier run of this broker knew of the destination.

        Args:
            progress: As `progress` of that run returned it; `None` if there is none.
            end: The next position of the log, which a loss of power may have cut.
        """
        self.removals_end = end  # the log may have some that it lacks
        for known in () if progress is None else progress.destinations:
            if known.address == self.address:
                self.instance = known.instance
                self._verified = min(known.position, end - 1)

    @property
    def progress(self) -> DestinationProgress | None:
        """The state to keep for the next start; `None` while the destination was never reached."""
        if not self.instance:
            return None
        return DestinationProgress(self.address, self.instance, self._verified)

    def welcome(self, message: Message, journal: JournalReader, *, end: int, now: float) -> None:
        """The other side has answered the logon: its vector says where to begin.

        Args:
            message: The answer.
            journal: The log of this instance.
            end: Its next position.
            now: The time of the shell's clock in seconds.

        Raises:
            ProtocolError: The answer is malformed.
        """
        if (size := len(message.client_name)) > MAX_NAME_CHARACTERS:
            raise ProtocolError(f"an instance name of {size} characters: wanted a shorter one")
        self._known = decode_vector(message.data)
        self._max_frame_bytes = decode_max_frame(message.options)
        if self.instance != message.client_name:  # another instance has acknowledged nothing
            self.instance, self._verified = message.client_name, 0
        # What it has never acknowledged is sent even where its vector covers it: a publisher
        # without a store may have gone on there, and then it lacks some of these records.
        begin = min(journal.first_beyond(self._known), self._verified + 1)
        self.position = max(begin, journal.first_position)
        self.acked = self.position - 1
        self._cursor = None
        self.has_removals = True
        self._defined_topics = {NO_TOPIC}
        self._in_flight.clear()
        self._catch_up_mark = (end - 1, now)
        self.is_ready = True
        self.links += 1

    def lacks_removed(self, journal: JournalReader) -> bool:
        """Whether it lacks what was removed with the beginning of the log, as its answer says."""
        first = journal.first_position
        if self._verified + 1 >= first:
            return False
        removed = journal.highest_before(first).items()
        return any(high > self._known.get(number, 0) for number, high in removed)

    def acknowledge(self, position: int) -> None:
        """The other side has written everything that was sent up to a position.

        Raises:
            ProtocolError: The position was never sent.
        """
        if position >= self.position:
            raise ProtocolError(f"position {position} was acknowledged and never sent")
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= position:
            self.acked = in_flight.popleft()[1]
        self._verified = max(self._verified, self.acked)

    @property
    def may_lack_removals(self) -> bool:
        """Whether it may lack removals that are behind what it has acknowledged."""
        return self.acked < self.removals_end

    # --- sending -------------------------------------------------------------------------------

    def pump(self, journal: JournalReader, topics: Mapping[int, Route]) -> list[bytes]:
        """Read the next chunk of the log.

        Args:
            journal: The log of this instance.
            topics: By number, the topics in it.

        Returns:
            Frames with those of its records that the other side lacks; maybe none.
        """
        # Removals have no position: those after the last record that it has are sent again.
        cursor = journal.seek(max(self.position - 1, 1)) if self._cursor is None else self._cursor
        chunk, self._cursor = journal.read(cursor, CHUNK_BYTES)
        self.has_removals = self._cursor != Cursor(journal.live.number, journal.live.end)
        frames: list[bytes] = []
        parts: list[bytes] = []
        known, start = self._known, self.position
        verified, from_elsewhere = self._verified, RecordFlag.REPLICATED
        size = last = covered = 0
        unit = (0, 0)
        for at, fields in headers(chunk):
            after, position, publisher, sequence = at + fields[0], *fields[4:7]
            if position >= start:
                same = unit == (publisher, sequence)
                is_new = sequence > known.get(publisher, 0)
                if same or is_new or (position > verified and not fields[1] & from_elsewhere):
                    if size > FRAME_BYTES and not same:
                        frames.append(self._frame(parts, last, position - 1))
                        parts, size = [], 0
                    if is_new:
                        known[publisher] = sequence
                        verified = min(verified, position - 1)  # it may be lost there again
                    unit, last = (publisher, sequence), position
                    if fields[8] not in self._defined_topics:
                        parts.append(self._definition(fields[8], topics))
                    parts.append(chunk[at:after])
                    size += fields[0]
                covered = position
            elif fields[2] == _REMOVAL:
                parts.append(chunk[at:after])
                size += fields[0]
        self._verified = verified
        self.position = max(start, covered + 1)
        if parts or (covered and self.may_lack_removals):
            frames.append(self._last_frame(parts, last, covered))
        elif covered:
            self._skip(covered)
        return frames

    def note_removals(self, end: int) -> None:
        """Removals from queues were written, before position `end` of the log."""
        self.has_removals = True
        self.removals_end = end

    def _last_frame(self, parts: list[bytes], last: int, covered: int) -> bytes:
        """The frame of what is left of a chunk: maybe removals alone, or nothing but its end."""
        if last:
            return self._frame(parts, last, covered)
        if covered:  # acknowledged with the removals before it, which it may lack
            return self._frame(parts, covered, covered)
        return records(parts, self.position - 1, max_frame_bytes=self._max_frame_bytes)

    def _frame(self, parts: list[bytes], last: int, covered: int) -> bytes:
        """A frame; when its record at `last` is acknowledged, everything up to `covered` is."""
        self._in_flight.append((last, covered))
        return records(parts, last, max_frame_bytes=self._max_frame_bytes)

    def _skip(self, covered: int) -> None:
        """The other side has everything up to a position, and nothing is sent."""
        if self._in_flight:
            self._in_flight[-1] = (self._in_flight[-1][0], covered)
        else:
            self.acked = covered
            self._verified = max(self._verified, covered)

    def _definition(self, topic_id: int, topics: Mapping[int, Route]) -> bytes:
        self._defined_topics.add(topic_id)
        return topic_definition(topics[topic_id], topic_id)

    def written(
        self, first: int, after: int, publishers: Mapping[int, tuple[int, int]], *, source: str
    ) -> None:
        """Records were appended; if they came from the destination, it has them.

        When they are next to be read, they are skipped at once, so that records of a destination
        that has failed since do not wait for its return. Where it may lack removals, they do wait:
        removals have no position, and are found behind what it has acknowledged.

        Args:
            first: Their first position.
            after: The position that follows them.
            publishers: By publisher id, their lowest and highest sequence.
            source: The instance that they came from; empty for clients.
        """
        if not source or source != self.instance:
            return
        if self.is_ready:
            for number, (_, high) in publishers.items():
                self._known[number] = max(high, self._known.get(number, 0))
        if self.position == first < after and not self.may_lack_removals:
            self._skip(after - 1)
            self.position = after

    # --- modes ---------------------------------------------------------------------------------

    def downgrade(self, *, stay: bool) -> bool:
        """Do not let persisted acks wait for it any more.

        Args:
            stay: Until `allow_upgrade`, even when it has caught up.

        Returns:
            Whether they have waited for it so far.
        """
        self._pinned = self._pinned or stay
        did, self.is_sync = self.is_sync, False
        self._catch_up_mark = (math.inf, math.inf)
        return did

    def allow_upgrade(self) -> None:
        """It may be synchronous again once it has caught up."""
        self._pinned = False

    def consider_upgrade(self, *, end: int, now: float) -> bool:
        """Make it synchronous again if it has caught up.

        It has when it acknowledges what was the end of the log a moment ago: under load it never
        acknowledges the current end.

        Args:
            end: The next position of the log.
            now: The time of the shell's clock in seconds.

        Returns:
            Whether it has become synchronous.
        """
        if self.is_sync or self._pinned or self.settings.mode != "sync" or not self.is_ready:
            return False
        mark, since = self._catch_up_mark
        if self.acked < min(mark, end - 1):
            if mark == math.inf:
                self._catch_up_mark = (end - 1, now)
            return False
        self.is_sync = self.acked >= end - 1 or now - since <= CAUGHT_UP_S
        self._catch_up_mark = (end - 1, now)
        return self.is_sync

    def status(self, end: int) -> DestinationStatus:
        """Its state; `end` is the next position of the log."""
        return DestinationStatus(
            self.address,
            self.instance,
            self.settings.mode,
            self.is_sync,
            self.is_ready,
            self.acked,
            end - 1 - self.acked,
            self.links,
            self.missing,
        )
