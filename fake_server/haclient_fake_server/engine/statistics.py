"""The state of the broker as tables, for people and programs that watch it.

Each table is a function that returns rows: flat mappings of one set of fields, in a fixed order.
The admin interface writes them as JSON, XML and CSV and as metrics; `/HACLIENT/clients` and
`/HACLIENT/subscriptions` answer queries with them. Clients and subscriptions may be many, so these
tables come in parts of at most `MAX_ROWS`, in the order of their numbers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    QueueSubscription,
    Subscription,
)
from haclient_fake_server.engine.journal import JournalReader
from haclient_fake_server.engine.log_writer import LogWriter
from haclient_fake_server.engine.outbox import Outbox
from haclient_fake_server.engine.replication.destination import Destination
from haclient_fake_server.engine.replication.durability import Durability
from haclient_fake_server.engine.routes import Routes
from haclient_fake_server.engine.settings import EngineSettings
from haclient_fake_server.engine.sow.page import PageSubscription
from haclient_fake_server.engine.timers import Clock, timestamp_text
from haclient_fake_server.journal.format import headers

MAX_ROWS: Final = 1000
"""Rows of one answer; ask again for those after the last one."""

_CHUNK_BYTES: Final = 64 * 1024

Row: TypeAlias = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Statistics:
    """The tables.

    Attributes:
        settings: Who this instance is.
        connections: By number.
        log: The transaction log.
        routes: The topics.
        clock: The time.
        outbox: Counts ends of connections and faults.
        durability: What is confirmed.
        destinations: Where the log is replicated to.
    """

    settings: EngineSettings
    connections: Mapping[int, Connection]
    log: LogWriter
    routes: Routes
    clock: Clock
    outbox: Outbox
    durability: Durability
    destinations: Sequence[Destination]

    @property
    def tables(self) -> Mapping[str, Callable[[int], list[Row]]]:
        """By name, what returns rows after the first ones, or those above a number."""
        return {
            "clients": self.clients,
            "subscriptions": self.subscriptions,
            "transaction_log": self.transaction_log,
            "sow": self.sow,
            "replication": self.replication,
        }

    def clients(self, after: int = 0, *, name: str = "") -> list[Row]:
        """The connections: clients and other instances.

        Args:
            after: Only those with a higher number.
            name: Only those of this name; empty for all.
        """
        found = (
            each
            for each in self.connections.values()  # in the order of their numbers
            if each.id > after and (not name or each.name == name)
        )
        return [self._client(each) for each in islice(found, MAX_ROWS)]

    def _client(self, connection: Connection) -> Row:
        kind = "client" if connection.logged_on else "not logged on"
        return {
            "id": connection.id,
            "client_name": connection.name,
            "kind": kind if connection.commands is None else "replication",
            "user": connection.user,
            "address": connection.peer,
            "message_type": connection.message_type,
            "subscriptions": len(connection.subscriptions),
            "last_sequence": connection.publisher.seen if connection.logged_on else 0,
            "idle_s": round(self.clock.now - connection.last_received, 3),
            "held_acks": connection.held,
            "queries": len(connection.queries),
            "times_behind": connection.high_waters,
        }

    def subscriptions(self, after: int = 0, *, name: str = "") -> list[Row]:
        """The subscriptions, with the place in the log that each has reached.

        Args:
            after: Only those with a higher number.
            name: Only those of the client of this name; empty for all.
        """
        found = (
            item
            for connection in self.connections.values()
            if not name or connection.name == name
            for item in connection.subscriptions.values()
            if item.number > after
        )
        first = heapq.nsmallest(MAX_ROWS, found, key=lambda item: item.number)
        return [self._subscription(item) for item in first]

    def _subscription(self, item: Subscription) -> Row:
        end = self.log.position
        position, bookmark, lag, kind, leased, backlog = 0, "", 0, "live", 0, 0
        match item:
            case BookmarkSubscription():
                kind = "paused" if item.paused else item.phase.name.lower()
                reached = (end, self.log.last_bookmark) if item.is_live else item.reached
                position, bookmark = reached[0] - 1, reached[1]
                lag = 0 if item.is_over else max(end - reached[0], 0)
            case QueueSubscription():
                kind, leased, backlog = "queue", item.leased, item.backlog
            case PageSubscription():
                kind = "page"
            case _:
                pass
        return {
            "number": item.number,
            "sub_id": item.id,
            "client_id": item.connection.id,
            "client_name": item.connection.name,
            "topic": item.matcher.text,
            "message_type": item.connection.message_type,
            "kind": kind,
            "has_filter": item.filter is not None,
            "position": position,
            "bookmark": bookmark,
            "lag": lag,
            "held": 0 if item.conflator is None else len(item.conflator),
            "leased": leased,
            "max_backlog": backlog,
        }

    def transaction_log(self, after: int = 0) -> list[Row]:
        """The segments of the log."""
        live = self.log.journal.live.number
        found = [
            each for number, each in sorted(self.log.journal.segments.items()) if number > after
        ]
        return [
            {
                "number": each.number,
                "first_position": each.manifest.first_position,
                "last_position": each.manifest.next_position - 1,
                "bytes": each.end,
                "first_time": timestamp_text(each.manifest.first_us).decode("ascii"),
                "last_time": timestamp_text(each.manifest.last_us).decode("ascii"),
                "is_live": each.number == live,
            }
            for each in islice(found, MAX_ROWS)
        ]

    def sow(self, after: int = 0) -> list[Row]:
        """The topics with a state of the world."""
        return [
            {
                "topic": topic.name,
                "message_type": topic.message_type,
                "keys": ",".join(topic.key_paths),
                "records": len(topic),
            }
            for topic in islice(self.routes.sow, after, after + MAX_ROWS)
        ]

    def replication(self, after: int = 0) -> list[Row]:
        """The destinations of replication."""
        end = self.log.position
        return [
            self._destination(each, end)
            for each in islice(self.destinations, after, after + MAX_ROWS)
        ]

    def _destination(self, destination: Destination, end: int) -> Row:
        status = destination.status(end)
        written_us = _time_of(self.log.journal, status.acknowledged + 1) if status.behind else None
        behind_s = 0.0 if written_us is None else max((self.clock.wall_us - written_us) / 1e6, 0.0)
        return {
            "name": status.instance,
            "address": status.address,
            "configured_type": status.mode,
            "replication_type": "sync" if status.is_sync else "async",
            "is_connected": status.is_connected,
            "messages_behind": status.behind,
            "seconds_behind": round(behind_s, 3),
            "messages_missing": status.missing,
            "acknowledged_position": status.acknowledged,
            "connects": status.links,
        }

    def instance(self) -> Row:
        """The instance as a whole."""
        journal, now = self.log.journal, self.clock.now
        oldest = self.durability.oldest if self.durability.waits else None
        return {
            "name": self.settings.name,
            "version": self.settings.version,
            "connections": len(self.connections),
            "ended_connections": sum(self.outbox.ends.values()),
            "faults": self.outbox.faults,
            "publishers": sum(1 for each in self.log.publishers if each.seen),
            "topics": len(self.routes.by_id),
            "oldest_position": journal.first_position,
            "last_position": self.log.position - 1,
            "confirmed_position": self.durability.end_of_durable(self.log.position) - 1,
            "durable_position": journal.durable_position,
            "oldest_unconfirmed_s": 0.0 if oldest is None else round(now - oldest.since, 3),
        }


def _time_of(journal: JournalReader, position: int) -> int | None:
    """When the record at a position was written, in microseconds since 1970."""
    for chunk in _chunks_from(journal, position):
        for _, fields in headers(chunk):
            if fields[4] >= position:
                return fields[7]
    return None


def _chunks_from(journal: JournalReader, position: int) -> Iterator[bytes]:
    chunk, cursor = journal.read(journal.seek(position), _CHUNK_BYTES)
    while chunk:
        yield chunk
        chunk, cursor = journal.read(cursor, _CHUNK_BYTES)
