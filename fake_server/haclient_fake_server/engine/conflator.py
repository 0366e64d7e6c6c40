"""The messages that a conflated subscription holds back: the last one of each key.

The first message of a key begins an interval. A later one replaces it in place, so a subscriber
gets at most one message of each key per interval: the last one. It is delivered when the interval
ends, with the bookmark and the time of the first message. All intervals have the same length, so
messages become due in the order in which their intervals began, which is the order of these
bookmarks.

An out-of-focus message replaces the message of its key, and vice versa. Both keep the record that
the subscriber had when the interval began: a delta contains what has changed since then, and a
record that the subscriber never had does not go out of focus.

A message without a key is held like the others, but is never replaced.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Final

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.filters.document import Path
from haclient_fake_server.engine.timers import NEVER

MAX_HELD_MESSAGES: Final = 100_000
"""Messages that are held for one subscription; beyond it the oldest are due at once."""

MAX_HELD_BYTES: Final = 64 * 2**20
"""Bytes of their bodies; beyond it the oldest are due at once."""

AUTO_INTERVAL_S: Final = 0.1
"""The interval of `auto` for a subscriber that keeps up."""

MAX_AUTO_INTERVAL_S: Final = 10.0
"""The longest interval of `auto`: it doubles while the subscriber does not read fast enough."""


@dataclass(slots=True)
class Update:
    """The content of one message for a subscriber.

    Attributes:
        topic: Its topic, as a JSON string.
        body: The body; for a delete, that of the record.
        key: Its SOW key, as sent; empty if it has none.
        correlation_id: The correlation id of the publish; empty if it has none.
        bookmark: Its bookmark; empty if the topic is not logged.
        timestamp_us: When it was published.
        reason: Why the record went out of focus; empty for a message.
    """

    topic: bytes
    body: bytes
    key: str = ""
    correlation_id: str = ""
    bookmark: bytes = b""
    timestamp_us: int = 0
    reason: str = ""


@dataclass(slots=True)
class Held:
    """The last update of a key.

    Attributes:
        update: The update, with the bookmark and the time of the first one of its interval.
        since: When the interval began.
        before: The body of the record that the subscriber had then; `None` if it had none.
    """

    update: Update
    since: float
    before: bytes | None


class Conflator:
    """The messages that are held back for one subscription.

    Args:
        interval_s: The interval in seconds; `None` for `auto`.
        paths: The fields that form the key; empty for the key of the record.
        follows_messages: Whether an interval of a replay is measured in the time of its messages.
    """

    __slots__ = (
        "_auto",
        "_held",
        "_high_waters",
        "_unkeyed",
        "follows_messages",
        "held_bytes",
        "interval_s",
        "paths",
    )

    def __init__(
        self,
        interval_s: float | None,
        paths: tuple[Path, ...] = (),
        *,
        follows_messages: bool = False,
    ) -> None:
        self.follows_messages = follows_messages
        self._auto = interval_s is None
        # A plain dict would skip all removed entries each time that it looks for the first one.
        self._held: OrderedDict[Hashable, Held] = OrderedDict()
        self._unkeyed = 0
        self._high_waters = 0
        self.interval_s = AUTO_INTERVAL_S if interval_s is None else interval_s
        self.paths = paths
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def due(self) -> float:
        """When the oldest message is due; infinity if none is held."""
        oldest = next(iter(self._held.values()), None)
        if oldest is None:
            return NEVER
        return oldest.since if self._is_over else oldest.since + self.interval_s

    @property
    def _is_over(self) -> bool:
        return len(self._held) > MAX_HELD_MESSAGES or self.held_bytes > MAX_HELD_BYTES

    def key_of(self, topic: bytes, document: Document, sow_key: str) -> Hashable:
        """The conflation key of a message; `None` if it neither replaces nor is replaced.

        Values count by their text, as in the keys of records.
        """
        if not self.paths:
            return (topic, sow_key) if sow_key else None
        if not document.has_fields:
            return None
        return (topic, *(document.key_text(path) for path in self.paths))

    def hold(
        self, key: Hashable, update: Update, *, now: float, before: bytes | None = None
    ) -> None:
        """Hold an update in place of the one of its key.

        Args:
            key: The key from `key_of`; `None` for an update that replaces none.
            update: The update.
            now: The present moment in seconds.
            before: The body of the record that the subscriber has, if no update of the key is held.
        """
        if key is None:
            self._unkeyed += 1
            key = self._unkeyed
        held = self._held.get(key)
        if held is None:
            self._held[key] = Held(update, now, before)
        else:
            self.held_bytes -= len(held.update.body)
            update.bookmark, update.timestamp_us = held.update.bookmark, held.update.timestamp_us
            held.update = update
        self.held_bytes += len(update.body)

    def take_due(self, now: float, *, high_waters: int = 0) -> Iterator[Held]:
        """Remove the messages that are due, in the order in which their intervals began.

        Args:
            now: The present moment in seconds.
            high_waters: How often the connection of the subscriber had too much to send so far.
        """
        while self._held and self.due <= now:
            yield self._take()
        if self._auto:
            if high_waters > self._high_waters:
                self.interval_s = min(self.interval_s * 2, MAX_AUTO_INTERVAL_S)
            else:
                self.interval_s = max(self.interval_s / 2, AUTO_INTERVAL_S)
            self._high_waters = high_waters

    def take_all(self) -> Iterator[Held]:
        """Remove all messages, in the same order."""
        while self._held:
            yield self._take()

    def _take(self) -> Held:
        _, held = self._held.popitem(last=False)
        self.held_bytes -= len(held.update.body)
        return held
