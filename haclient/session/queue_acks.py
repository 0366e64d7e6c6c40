"""Acknowledgements of queue messages: which of them are sent together, and when. Pure.

A queue message is acknowledged by a `sow_delete` that names its bookmark. One command takes many
bookmarks of one queue, joined by commas. `AckBatch` collects the plain acknowledgements of one
subscription until they are as many as `limit`, or until the oldest has waited for `timeout_s`.

**The limit** is never above the backlog that the server has granted. The server sends nothing while
as many messages as the backlog are unacknowledged, so a larger batch would never fill up: each
batch would wait for its timeout. The count is over all queues of the subscription, since the
backlog is.

**Cancel, expire and lease extensions** are never collected: they are sent at once, after the plain
acknowledgements of that queue that were collected before, so that the server sees them in the order
in which the application gave them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from haclient.errors import UsageError
from haclient.protocol.options import format_interval

MAX_EXTENSION_S: Final = 10 * 365 * 86_400
"""Seconds: longer than any lease, and what the reference broker takes."""

MAX_BOOKMARKS: Final = 1000
"""Bookmarks in one command: some 40 KiB of header."""

_SHARE: Final = 3  # of the backlog; two thirds are worked on while a batch is on its way


class AckOption(enum.StrEnum):
    """What an acknowledgement does, as the option on the wire."""

    PLAIN = ""  # processed: the message leaves the queue
    CANCEL = "cancel"  # given back
    EXPIRE = "expire"  # removed as expired


class AckCommand(NamedTuple):
    """One `sow_delete`.

    Attributes:
        topic: The queue.
        bookmarks: The messages.
        options: Its options; empty for a plain acknowledgement.
    """

    topic: str
    bookmarks: tuple[str, ...]
    options: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether it says that messages were processed."""
        return not self.options

    def names(self) -> list[tuple[str, str]]:
        """The queue and the bookmark of each message."""
        return [(self.topic, bookmark) for bookmark in self.bookmarks]

    def fields(self, command_id: str, acks: str) -> dict[str, str | int]:
        """The header.

        Args:
            command_id: The id in its acks.
            acks: The acks to request, as a comma list.
        """
        header = {"c": "sow_delete", "cid": command_id, "t": self.topic}
        header |= {"bm": ",".join(self.bookmarks), "opts": self.options, "a": acks}
        return {name: value for name, value in header.items() if value}


def ack_commands(topic: str, bookmarks: Iterable[str], options: str = "") -> list[AckCommand]:
    """The commands for these messages of one queue, each of at most `MAX_BOOKMARKS`."""
    found = tuple(bookmarks)
    return [
        AckCommand(topic, found[first : first + MAX_BOOKMARKS], options)
        for first in range(0, len(found), MAX_BOOKMARKS)
    ]


def lease_extension(seconds: float) -> str:
    """The option that extends a lease.

    Raises:
        UsageError: It is not a number of seconds above 0, or longer than any lease.
    """
    if not 0 < seconds <= MAX_EXTENSION_S:
        raise UsageError(
            "the extension of a lease is a number of seconds, above 0 and at most "
            f"{MAX_EXTENSION_S}, not {seconds!r}"
        )
    return f"lease_extension={format_interval(seconds)}"


def batch_limit(wanted: int | None, backlog: int | None, timeout_s: float) -> int:
    """How many acknowledgements one batch collects.

    Args:
        wanted: What the application asked for; `None` for a third of the backlog.
        backlog: What the server has granted; `None` if it does not say. Then it may be 1, and
            nothing is collected.
        timeout_s: How long an acknowledgement may wait for others.

    Returns:
        At least 1, at most the backlog.
    """
    if backlog is None or timeout_s == 0:
        return 1
    return max(1, min(wanted or backlog // _SHARE, backlog))


class AckBatch:
    """The plain acknowledgements of one subscription that are not sent yet.

    Times are seconds on the caller's clock.

    Args:
        timeout_s: How long the oldest may wait.

    Attributes:
        limit: How many are collected; see `batch_limit`.
        count: How many are there.
    """

    __slots__ = ("_by_topic", "_oldest_at", "count", "limit", "timeout_s")

    def __init__(self, *, timeout_s: float) -> None:
        self.limit = 1
        self.timeout_s = timeout_s
        self.count = 0
        self._by_topic: dict[str, list[str]] = {}
        self._oldest_at = 0.0

    @property
    def due_at(self) -> float | None:
        """When it is sent although it is not full; `None` while it is empty."""
        return self._oldest_at + self.timeout_s if self.count else None

    def begin(self, now: float) -> float:
        """Note the time before the first one is added; return when it is due."""
        self._oldest_at = now
        return now + self.timeout_s

    def add(self, topic: str, bookmark: str) -> bool:
        """Collect one.

        Args:
            topic: The queue.
            bookmark: The message.

        Returns:
            Whether the batch is full: then it has to be sent now.
        """
        bookmarks = self._by_topic.get(topic)
        if bookmarks is None:
            bookmarks = self._by_topic[topic] = []
        bookmarks.append(bookmark)
        self.count = count = self.count + 1
        return count >= self.limit

    def take(self) -> list[AckCommand]:
        """The commands for everything that was collected, which is empty then."""
        by_topic, self._by_topic, self.count = self._by_topic, {}, 0
        return [
            command
            for topic, bookmarks in by_topic.items()
            for command in ack_commands(topic, bookmarks)
        ]

    def take_topic(self, topic: str) -> list[AckCommand]:
        """The commands for what was collected of one queue."""
        bookmarks = self._by_topic.pop(topic, [])
        self.count -= len(bookmarks)
        return ack_commands(topic, bookmarks)
