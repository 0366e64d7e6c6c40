"""What a client with an audit log records. Pure, apart from the log.

A client that keeps none has none of this on its way: the parts that record take the place of the
plain ones when the client is made, so that the hot paths ask nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from haclient.protocol.codec import header_text
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import MessageOwner
from haclient.session.session import Received
from haclient_stores.audit_log import AuditLog
from haclient_stores.interfaces import FrameLog

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
