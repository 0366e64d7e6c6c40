"""The subscriptions to send again after a lost connection.

The manager holds commands as they were first submitted, in the order of entry, and no message data.
The command is sent again as it was, but for two things: a bookmark subscription resumes where its
store says, and `replace` is left out, since there is nothing yet to replace.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

__all__ = ["Entry", "MemorySubscriptionManager", "SubscriptionManager"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One subscription.

    Attributes:
        sub_id: Its id.
        fields: The header of its command by wire name, as it was first sent.
        body: The body of its command.
    """

    sub_id: str
    fields: dict[str, str | int]
    body: bytes = b""


class SubscriptionManager(Protocol):
    """Remembers the subscriptions of a client."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """A subscription was accepted; one of the same id is replaced and keeps its place."""

    @abstractmethod
    def remove(self, sub_id: str) -> None:
        """It was ended on purpose; an unknown id is no error."""

    @abstractmethod
    def clear(self) -> None:
        """All were ended."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """All of them, in the order of entry."""


class MemorySubscriptionManager(SubscriptionManager):
    """Remembers for as long as the process lives."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @override
    def add(self, entry: Entry) -> None:
        self._entries[entry.sub_id] = entry

    @override
    def remove(self, sub_id: str) -> None:
        self._entries.pop(sub_id, None)

    @override
    def clear(self) -> None:
        self._entries.clear()

    @override
    def entries(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))
