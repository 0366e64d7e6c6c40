"""All queues of a broker, and which of them something has happened to in the current batch.

The registry knows which queues a topic feeds, and passes each record on to them. What follows from
that is carried out by `dispatcher.QueueDispatcher`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import Block, Cursor, JournalReader
from haclient_fake_server.engine.patterns import TopicMatcher, to_text
from haclient_fake_server.engine.queues.leases import Expired
from haclient_fake_server.engine.queues.message_reader import Content, MessageReader
from haclient_fake_server.engine.queues.message_table import MessageRow
from haclient_fake_server.engine.queues.queue import Queue
from haclient_fake_server.engine.queues.snapshot import QueueSnapshot, definition_of
from haclient_fake_server.engine.settings import QueueTopic
from haclient_fake_server.journal.format import Removals


class QueueRegistry:
    """The queues of a broker.

    Args:
        settings: Their configurations.
        journal: Where their messages are.

    Attributes:
        reader: Reads their messages.
        dirty: Those that have something to deliver or to record, in the order of marking.
        expiring: Called with each message that is about to expire, if anything is to be done then.
        clock_us: The running wall clock at the beginning of the batch, in microseconds.
    """

    def __init__(self, settings: Iterable[QueueTopic], journal: JournalReader) -> None:
        self.reader = MessageReader(journal)
        self.clock_us = sys.maxsize
        self.dirty: dict[Queue, None] = {}
        self.expiring: Callable[[Queue, Expired], None] | None = None
        self._queues: dict[tuple[str, str], Queue] = {}
        self._matchers: list[tuple[Queue, tuple[TopicMatcher, ...]]] = []
        self._fed: dict[Queue, None] = {}  # those that got messages in this batch
        for each in settings:
            queue = Queue(each, self.reader, dirty=self.dirty, expiring=self._expiring)
            self._queues[each.message_type, each.name] = queue
            self._matchers.append((queue, each.matchers))
        self._paged = [queue for queue in self if queue.settings.file_backed]

    def __iter__(self) -> Iterator[Queue]:
        """All queues, as configured."""
        return iter(self._queues.values())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._queues)

    def get(self, name: str, message_type: str) -> Queue | None:
        """The queue of a name, if there is one."""
        return self._queues.get((message_type, name))

    def matching(self, matcher: TopicMatcher, message_type: str) -> list[Queue]:
        """The queues of a message type whose names match."""
        if not matcher.is_regex:
            queue = self.get(matcher.text, message_type)
            return [] if queue is None else [queue]
        return [
            queue
            for (kind, name), queue in self._queues.items()
            if kind == message_type and matcher.matches(name)
        ]

    def fed_by(self, topic: str, message_type: str) -> tuple[Queue, ...]:
        """The queues that get the messages of a topic."""
        return tuple(
            queue
            for queue, matchers in self._matchers
            if queue.settings.message_type == message_type
            and any(matcher.matches(topic) for matcher in matchers)
        )

    def enter(
        self,
        queues: tuple[Queue, ...],
        row: MessageRow,
        content: Content,
        *,
        expiration_s: int | None = None,
        document: Document | None = None,
        is_replicated: bool = False,
    ) -> None:
        """Add a message of this batch to the queues that its topic feeds.

        Args:
            queues: The queues.
            row: The message; its place is the offset of its record in the block.
            content: What it contains.
            expiration_s: Its own lifetime in seconds, `None` if it has none.
            document: Its body, if it was parsed already.
            is_replicated: Whether another instance has received it from its publisher.
        """
        self.reader.add(row.position, content)
        for queue in queues:
            queue.enter(
                row,
                content,
                expiration_s=expiration_s,
                document=document,
                clock_us=self.clock_us,
                is_replicated=is_replicated,
            )
            self._fed[queue] = None

    def remove_elsewhere(self, removals: Removals) -> None:
        """Remove messages that have left the queue of the same name on another instance."""
        queue = self.get(to_text(removals.queue), to_text(removals.message_type))
        if queue is not None:
            for publisher_id, sequence, reason in removals.entries:
                queue.remove_elsewhere(publisher_id, sequence, reason)

    def expire_replicated(self, *, here: bool) -> None:
        """Whether replicated messages expire here, or on the instances that have received them."""
        for queue in self:
            if queue.expires_replicated != here:
                queue.expires_replicated = here
                queue.touch()  # so that the batch sets its timer

    def expire_own(self, *, here: bool) -> None:
        """Whether the messages that this instance has received from their publishers expire yet."""
        for queue in self:
            if queue.expires_own != here:
                queue.expires_own = here
                queue.touch()

    def snapshots(self, end: Cursor, next_position: int) -> list[QueueSnapshot]:
        """What the file-backed queues hold, at the end of the log.

        Args:
            end: The end of the log.
            next_position: Its next position.
        """
        self.begin_batch()  # the places of the last batch's messages
        return [
            QueueSnapshot(
                queue.settings.name,
                queue.settings.message_type,
                definition_of(queue.settings),
                end,
                next_position,
                queue.columns(),
            )
            for queue in self._paged
        ]

    def begin_batch(self) -> None:
        """The last block was written: note the places of its messages."""
        if self._fed:
            position = self.reader.fresh_from
            start = self.reader.begin_batch()
            for queue in self._fed:
                queue.add_to_places(position, start)
            self._fed.clear()
        self.page_out()

    def page_out(self) -> None:
        """Have file-backed queues drop what the journal has, too. It has all their messages."""
        for queue in self._paged:
            queue.table.page_out()

    def close_batch(self, block: Block | None) -> None:
        """The batch ends with this block."""
        if self._fed:
            self.reader.close_batch(block)

    def _expiring(self, queue: Queue, expired: Expired) -> None:
        if self.expiring is not None:
            self.expiring(queue, expired)
