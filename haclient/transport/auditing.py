"""The hooks of a client that keeps an audit log; one that keeps none has none of this on its way.

The parts below take the place of the plain ones when the client is made, so that the hot paths ask
nothing. `AuditedPublisher` records each publish after it was stored or sent, and each ack before
what waits for it is woken. `Auditor.received` records a chunk of deliveries before a queue gets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Final

from typing_extensions import override

from haclient.protocol.codec import Payload, header_text
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message, MessageOwner
from haclient.session.connection_state import ConnectionStatus
from haclient.session.logon import LoggedOn
from haclient.session.session import Received
from haclient.transport.back_pressure import AckWaits
from haclient.transport.publisher import DEFAULT_MAX_UNPERSISTED_BYTES, Publisher
from haclient.transport.tasks import ClientThread
from haclient_stores.audit_log import AuditLog
from haclient_stores.interfaces import FrameLog, PublishStore

_TOPIC: Final = re.compile(rb'"t":"((?:[^"\\]|\\.)*)"')
_DELETE: Final = b'"c":"sow_delete"'  # within a topic the quotes would be escaped
_CACHED_TOPICS: Final = 4096


class Auditor:
    """The audit log of one client, with the client's clock.

    Args:
        log: The log; the client closes it.
        clock_us: Tells microseconds since 1970.
    """

    def __init__(self, log: AuditLog, clock_us: Callable[[], int]) -> None:
        self.log = log
        self.clock_us = clock_us
        self._topics: dict[bytes, str] = {}

    def open_for(self, client_name: str) -> None:
        """Begin to record; see `AuditLog.open_for`."""
        self.log.open_for(client_name, publisher_id(client_name), self.clock_us())

    def received(self, received: Received) -> None:
        """Record the deliveries of one chunk, before they are delivered."""
        now_us = self.clock_us()
        for subscription, batch in received.deliveries:
            if isinstance(batch, list) and subscription.log is not None:
                # A message without an entry in the bookmark store has no number to be audited by.
                pairs = [(each.bookmark, each.number) for each in batch if each.number > 0]
                self.log.received(subscription.sub_id, pairs, now_us)
        self.log.flush_when_due(now_us)

    def published(self, head: bytes, sequence: int) -> None:
        """Record a publish by the head of its frame, which names the topic."""
        found = _TOPIC.search(head)
        written = b"" if found is None else found[1]
        topic = self._topics.get(written)
        if topic is None:
            topic = header_text(written)
            if len(self._topics) >= _CACHED_TOPICS:
                self._topics.clear()
            self._topics[written] = topic
        self.log.published(sequence, topic, self.clock_us(), is_delete=_DELETE in head)

    def kept(self, store: FrameLog) -> None:
        """Record what the publish store has of earlier runs, once it is open."""
        if store.unpersisted_count:
            self.log.kept(store.lowest_unpersisted, store.last_sequence)


class AuditedOwner:
    """Where `message.discard()` goes: the bookmark store, then the audit log.

    Args:
        owner: The owner of an unaudited message.
        auditor: Records the discard.
        sub_id: The subscription.
    """

    __slots__ = ("_auditor", "_owner", "_sub_id")

    def __init__(self, owner: MessageOwner, auditor: Auditor, sub_id: str) -> None:
        self._owner = owner
        self._auditor = auditor
        self._sub_id = sub_id

    def discard(self, number: int) -> None:
        """Discard, then record it: an error of the store is not a discard."""
        self._owner.discard(number)
        if number < 1:  # of a message that no store tracks
            return
        auditor = self._auditor
        auditor.log.discarded(self._sub_id, number, auditor.clock_us())


class AuditedPublisher(Publisher):
    """A publisher that records what it publishes and what becomes of it.

    Args:
        auditor: Records it.
        store: See `Publisher`, as all others.
    """

    def __init__(
        self,
        auditor: Auditor,
        store: PublishStore | None,
        *,
        max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES,
        waits: AckWaits | None = None,
        status: ConnectionStatus | None = None,
        thread: ClientThread,
    ) -> None:
        super().__init__(
            store,
            max_unpersisted_bytes=max_unpersisted_bytes,
            waits=waits,
            status=status,
            thread=thread,
        )
        self.auditor = auditor

    @override
    def append(self, head: bytes, body: Payload) -> int:
        sequence = super().append(head, body)
        self.auditor.published(head, sequence)
        return sequence

    @override
    def append_many(self, heads: Sequence[bytes], bodies: Sequence[Payload]) -> None:
        before = self.log.last_sequence
        try:
            super().append_many(heads, bodies)
        finally:
            stored = range(before + 1, self.log.last_sequence + 1)
            for head, sequence in zip(cycle(heads), stored, strict=False):
                self.auditor.published(head, sequence)

    @override
    async def publish(self, topic: str, body: Payload) -> int:
        sequence = await super().publish(topic, body)
        # One that `append` has recorded is not recorded again.
        self.auditor.log.published(sequence, topic, self.auditor.clock_us())
        return sequence

    @override
    def reconcile(self, server: LoggedOn, clock_us: int) -> None:
        if server.persisted:
            self.auditor.log.acknowledged(server.persisted, self.auditor.clock_us())
        super().reconcile(server, clock_us)

    @override
    def acknowledged(self, sequence: int) -> None:
        self.auditor.log.acknowledged(sequence, self.auditor.clock_us())
        super().acknowledged(sequence)

    @override
    def refused(self, ack: Message) -> Message | None:
        if ack.sequence is not None:
            self.auditor.log.refused(ack.sequence, self.auditor.clock_us())
        return super().refused(ack)
