"""Persisted acks: collected for an interval, sent once everything they cover is persisted.

A publisher gets one ack for everything that it published on its connection, up to its highest
sequence. A bookmark subscription that requested acks gets one for the last position that is safe
everywhere and that it has passed. Both are collected for the interval that the logon requested.

When the log advances, an ack is due to every live subscription. The subscriptions are not visited
then: those with the same interval form a group, which records that the log has advanced and visits
its members when its interval is over. That costs nothing per batch, however many subscriptions
there are. The members are visited in several turns, so that a hundred thousand acks do not block
the broker. A larger group has a longer interval: acks to idle subscriptions would take time of the
broker and its clients that messages need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from haclient.protocol.codec import encode_string
from haclient.protocol.framing import LENGTH
from haclient.protocol.messages import Message
from haclient_fake_server.engine.acks import ack, requested
from haclient_fake_server.engine.connections import BookmarkSubscription, Connection
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.replication.durability import MAX_HELD, Durability
from haclient_fake_server.engine.timers import Clock

MAX_ACKS_PER_TURN: Final = 1000
"""Subscriptions looked at before others get their turn: about a millisecond."""

REST_S: Final = 0.25
"""What a turn adds to the interval of a large group: 4000 acks a second are 3 % of a client's time,
and less of the broker's."""

_HEAD: Final = b'{"c":"ack",'


class _Group:
    """Subscriptions whose connections collect acks for the same time.

    Attributes:
        members: All of them, by number.
        moved: Those that have passed a record since the last turn.
        all_moved: The log has advanced since the last turn.
        turn: Those that this turn has yet to visit.
    """

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.members: dict[int, BookmarkSubscription] = {}
        self.moved: dict[int, BookmarkSubscription] = {}
        self.all_moved = False
        self.is_scheduled = False
        self.turn: deque[BookmarkSubscription] = deque()


class _Endings(dict[str, bytes]):
    """By bookmark, what the acks of a turn end with: most subscriptions have passed the same."""

    def __init__(self, reached: Mapping[str, str | int]) -> None:
        super().__init__()
        self._reached = reached

    def __missing__(self, bookmark: str) -> bytes:
        frame = ack("persisted", more={"bm": bookmark, **self._reached})
        self[bookmark] = ending = frame[LENGTH.size + len(_HEAD) :]
        return ending


class PersistedAcks:
    """Sends persisted acks."""

    def __init__(
        self,
        log: LogWriter,
        durability: Durability,
        clock: Clock,
        outbox: Outbox,
    ) -> None:
        self._log = log
        self._durability = durability
        self._clock = clock
        self._outbox = outbox
        self._groups: dict[float, _Group] = {}

    # --- publishers ----------------------------------------------------------------------------

    def schedule(self, connection: Connection) -> None:
        """Send a conflated ack to the publisher of a connection when its interval is over."""
        if not connection.ack_is_scheduled:
            connection.ack_is_scheduled = True
            self._clock.timers.set(
                ("publisher's ack", connection.id),
                self._clock.now + connection.ack_interval_s,
                lambda: self._on_time(connection),
                client=connection.id,
            )

    def flush(self, connection: Connection, *, before: int = 0, always: bool = False) -> None:
        """Send the conflated ack now: all up to `s` is safe or was refused.

        Args:
            connection: The publisher's.
            before: Acknowledge nothing from this sequence on: it was refused, perhaps not for the
                first time, and a success that covers it would make the publisher forget it. 0 for
                everything.
            always: Also while so many acks of the connection wait for destinations that otherwise
                this one would continue collecting: a refusal follows it, and keeps its place.
        """
        if not connection.ack_is_scheduled or (connection.held >= MAX_HELD and not always):
            return
        connection.ack_is_scheduled = False
        self._clock.timers.cancel(("publisher's ack", connection.id))
        publisher = connection.publisher
        up_to = min(publisher.seen, before - 1) if before else publisher.seen
        if not up_to:
            return
        more: dict[str, str | int] = {"s": up_to, "bm": publisher.bookmark(up_to)}
        more |= self._log_reached()
        self._outbox.confirm(connection, ack("persisted", more=more))

    def acknowledge_duplicate(self, connection: Connection, message: Message) -> None:
        """Drop a duplicate, and acknowledge it as a success."""
        wanted = requested(message.ack_type)
        more = {"s": message.sequence or 0}
        for kind in ("received", "processed", "completed"):
            if kind in wanted:
                reason = "duplicate" if kind == "processed" else ""
                frame = ack(kind, message.command_id, reason=reason, more=more)
                self._outbox.send(connection, frame)
        if "persisted" in wanted:
            self.schedule(connection)

    def resume(self, connection: Connection) -> None:
        """A held ack was sent: schedule an ack for the publishes since."""
        if connection.ack_is_scheduled:
            connection.ack_is_scheduled = False
            self.schedule(connection)

    def forget(self, connection: Connection) -> None:
        """A connection has ended: cancel its ack."""
        self._clock.timers.cancel(("publisher's ack", connection.id))

    def _on_time(self, connection: Connection) -> None:
        if not connection.closing:
            self.flush(connection)

    # --- subscriptions -------------------------------------------------------------------------

    def enter(self, item: BookmarkSubscription) -> None:
        """Start sending persisted acks to a subscription."""
        interval_s = item.connection.ack_interval_s
        group = self._groups.setdefault(interval_s, _Group(interval_s))
        group.members[item.number] = item
        self.passed(item)

    def leave(self, item: BookmarkSubscription) -> None:
        """Stop sending acks to a subscription; unknown ones are ignored."""
        group = self._groups.get(item.connection.ack_interval_s)
        if group is None or group.members.pop(item.number, None) is None:
            return
        group.moved.pop(item.number, None)
        if not group.members:
            del self._groups[group.interval_s]
            self._clock.timers.cancel(("acks", group.interval_s))

    def passed(self, item: BookmarkSubscription) -> None:
        """A subscription with persisted acks has passed some of the log."""
        group = self._groups[item.connection.ack_interval_s]
        group.moved[item.number] = item
        self._schedule(group)

    def log_moved(self) -> None:
        """The log has grown, or more of it is confirmed."""
        for group in self._groups.values():
            group.all_moved = True
            if not group.is_scheduled:
                self._schedule(group)

    def _schedule(self, group: _Group) -> None:
        if group.is_scheduled:
            return
        group.is_scheduled = True
        rest_s = len(group.members) // MAX_ACKS_PER_TURN * REST_S
        due = self._clock.now + max(group.interval_s, rest_s)
        self._clock.timers.set(("acks", group.interval_s), due, lambda: self._take_turn(group))

    def _take_turn(self, group: _Group) -> None:
        turn = group.turn
        if not turn:
            turn.extend((group.members if group.all_moved else group.moved).values())
            group.moved.clear()
            group.all_moved = False
        endings = _Endings(self._log_reached())
        for _ in range(min(len(turn), MAX_ACKS_PER_TURN)):
            item = turn.popleft()
            if item.number in group.members:  # else it has ended since the turn began
                self._acknowledge(item, endings)
        group.is_scheduled = False
        if turn:
            group.is_scheduled = True
            self._clock.timers.set(
                ("acks", group.interval_s), self._clock.now, lambda: self._take_turn(group)
            )
        elif group.moved or group.all_moved:
            self._schedule(group)

    def _acknowledge(self, item: BookmarkSubscription, endings: _Endings) -> None:
        position = self._safe_bookmark(item)
        if position not in {"", "0", item.acked}:
            item.acked = position
            head = _HEAD
            if item.cid:
                head += b'"cid":%b,' % encode_string(item.cid)
            head += b'"sub_id":%b,' % encode_string(item.id)
            ending = endings[position]
            frame = b"%b%b%b" % (LENGTH.pack(len(head) + len(ending)), head, ending)
            self._outbox.send(item.connection, frame)

    def _safe_bookmark(self, item: BookmarkSubscription) -> str:
        """The bookmark of the last position that is safe and that a subscription has passed."""
        position, passed = item.reached
        if item.is_live:
            position, passed = self._log.position, self._log.last_bookmark
        limit, durability = self._durability.end_of_durable(self._log.position), self._durability
        if position <= limit:
            return passed
        if item.start > limit or durability.passed is None:
            return ""  # what is safe lies before its start
        publisher_id, sequence = durability.passed
        return f"{publisher_id}|{sequence}|"

    def _log_reached(self) -> dict[str, str | int]:
        """The header of persisted acks that has the position and the identity of the log.

        The position is one that was written before this batch, under the log's youngest start.
        """
        starts = self._log.journal.log_starts
        if not starts:
            return {}
        return {"log_starts": f"{starts[-1].id:016x}@{self._log.first_position - 1}"}
