"""An administrator who removes old files of brokers' logs, and what was in them.

Whoever asks for a removed message does not get it any more, so the promise covers a removal only
when all subscribers are done with what it takes, or are reading it: a broker refuses it then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from haclient.errors import UsageError
from haclient_fake_server.engine.journal import records_of
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.server import BrokerServer
from haclient_stores.errors import StoreError
from simulation.actors import message_of
from simulation.checkers import LogRecord, Wants
from simulation.history import JOBS_TOPIC, Delivered, Discarded, Fact, MessageId, Removed
from simulation.jobs import DEAD_TOPIC

if TYPE_CHECKING:
    from simulation.simulator import Run

__all__ = ["Removals", "undone"]

_TOPICS: Final = frozenset({"orders", "state", JOBS_TOPIC, DEAD_TOPIC})
_READ_BYTES: Final = 4096


class Removals:
    """All removals of a run.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._records: dict[str, dict[int, LogRecord]] = defaultdict(dict)  # by position

    def remove_oldest(self, broker: str, wants: Wants, *, beside_readers: bool) -> None:
        """Remove the oldest file of a broker's log, if nobody has a claim on it.

        Args:
            broker: Its name.
            wants: What each subscription is about.
            beside_readers: Whether it is left to the broker who still needs the file: all
                subscribers are connected to it, and stay so.
        """
        server = self._run.brokers[broker].server
        if server is None:
            return
        journal = _journal_of(server)
        segment = next(iter(journal.segments.values()))
        try:
            found = _oldest_records(server, journal)
            messages = {message: topic for _, topic, (_, message) in found}
            if not beside_readers and (
                DEAD_TOPIC in messages.values()  # which is read in the end
                or undone(self._run.history.facts, wants, messages)
            ):
                return
            server.begin_journal_action("remove", str(segment.number))
        except (UsageError, StoreError):  # somebody needs it, it is still written, or the disk
            return
        self._records[broker] |= {position: record for position, _, record in found}
        if not beside_readers:
            self._run.history.add(Removed(broker, frozenset(messages)))

    def removed_from(self, broker: str) -> list[LogRecord]:
        """The messages that its log does not have any more, in their order."""
        server = self._run.brokers[broker].server
        assert server is not None
        first = _journal_of(server).first_position
        records = self._records[broker]
        return [records[position] for position in sorted(records) if position < first]


def _journal_of(server: BrokerServer) -> JournalFiles:
    journal = server._journal
    assert isinstance(journal, JournalFiles)
    return journal


def _oldest_records(
    server: BrokerServer, journal: JournalFiles
) -> list[tuple[int, str, LogRecord]]:
    """Position, topic, and the record, of each message in the oldest file."""
    end = next(iter(journal.segments.values())).manifest.next_position
    topics = server._entered()._engine._routes.by_id
    found: list[tuple[int, str, LogRecord]] = []
    cursor = journal.seek(journal.first_position)
    while True:
        chunk, cursor = journal.read(cursor, _READ_BYTES)
        for record in records_of(chunk):
            if record.position >= end:
                return found
            if record.is_data and (topic := topics[record.topic_id].topic) in _TOPICS:
                message = record.bookmark, message_of(record.payload)
                found.append((record.position, topic, message))
        if not chunk:
            return found


def undone(facts: Sequence[Fact], wants: Wants, topics: dict[MessageId, str]) -> bool:
    """Whether a subscription is not done with some messages.

    Args:
        facts: What has happened.
        wants: What each subscription is about.
        topics: The messages, and the topic of each.
    """
    done: dict[str, set[MessageId]] = defaultdict(set)
    for fact in facts:
        match fact:
            case Discarded():
                done[fact.subscription].add(fact.message)
            case Delivered():  # after a crash it may come again
                done[fact.subscription].discard(fact.message)
            case _:
                pass
    return any(
        wanted(message, topic) and message not in done[subscription]
        for message, topic in topics.items()
        for subscription, wanted in wants.items()
    )
