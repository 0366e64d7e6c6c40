"""Who still needs the oldest part of the log, so that it must not be removed.

These are the guards, the message queues, the subscriptions that read the log, the queries that are
being answered, the destinations of replication that have not acknowledged it, and the records of a
state of the world, which a restart reads from the log. Each is named, so that an operator knows
whom to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from haclient_fake_server.engine.acks import quoted
from haclient_fake_server.engine.connections import BookmarkSubscription, Connection
from haclient_fake_server.engine.guards import Guard
from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.engine.replication.destination import Destination
from haclient_fake_server.engine.sow.table import SowRecord


def log_holder(
    position: int,
    *,
    guards: Iterable[Guard],
    points: Iterable[QueuePoint],
    destinations: Iterable[Destination],
    connections: Iterable[Connection],
) -> str:
    """Who needs what comes before a position, in words; empty for nobody.

    States of the world are left out: see `sow_holder`.

    Args:
        position: The position.
        guards: Those that have not ended.
        points: Where the next start begins to read the log for each queue.
        destinations: Where the log is replicated to.
        connections: Those of clients and of other instances.
    """
    for guard in guards:
        if guard.after + 1 < position:
            return f"guard {quoted(guard.name)} needs position {guard.after + 1}"
    for point in points:
        if point.position < position:
            return f"queue {quoted(point.name)} needs position {point.position}"
    for destination in destinations:
        # Removals from queues have no position: they are sent after the record before them.
        needed = destination.acked + (0 if destination.may_lack_removals else 1)
        if needed < position:
            return f"replication to {destination.address} has not acknowledged position {needed}"
    return next(filter(None, (_reader(each, position) for each in connections)), "")


def _reader(connection: Connection, position: int) -> str:
    """What a connection reads of the log before a position."""
    name = quoted(connection.name)
    if connection.queries:
        return f"a query of client {name} is being answered"
    for item in connection.subscriptions.values():
        if isinstance(item, BookmarkSubscription) and not (item.is_live or item.is_over):
            reached = item.reached[0]
            if reached < position:
                kind = "paused subscription" if item.paused else "replay"
                return f"{kind} {quoted(item.id)} of client {name} needs position {reached}"
    return ""


def sow_holder(
    topics: Iterable[tuple[str, Sequence[SowRecord]]], highest: Mapping[int, int]
) -> str:
    """The record of a state of the world that is in the oldest part of the log, in words.

    It touches no state of the engine, and may run in a thread.

    Args:
        topics: Of each topic its name and its records.
        highest: By publisher id, the highest sequence in that part of the log. Sequences of one
            publisher never fall in the log.
    """
    for topic, records in topics:
        for record in records:
            publisher, _, rest = record.bookmark.partition("|")
            if rest and int(rest.rstrip("|")) <= highest.get(int(publisher), -1):
                return f"record {quoted(record.key)} of topic {quoted(topic)} is in it"
    return ""
