"""The subscriptions to send again after a lost connection.

The manager holds commands as they were first submitted, in the order of entry, and no message data.
The command is sent again unchanged, with two exceptions: a bookmark subscription resumes where its
store says, and `replace` is omitted, since there is nothing to replace yet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from typing_extensions import override

__all__ = [
    "Entry",
    "MemorySubscriptionManager",
    "OwnedSubscriptionManager",
    "SubscriptionManager",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """One subscription.

    Attributes:
        sub_id: Its id.
        fields: The header of its command by wire name, in its current form: a subscription that is
            replaced, paused or resumed is added again.
        body: The body of its command.
        acks: The ack types that the application asked for, separated by commas; these acks are
            delivered like messages. `fields` also has those that the client itself asks for.
    """

    sub_id: str
    fields: dict[str, str | int]
    body: bytes = b""
    acks: str = ""


class SubscriptionManager(Protocol):
    """Remembers the subscriptions of a client."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Add a subscription that a server has accepted.

        Args:
            entry: The subscription; it replaces one of the same id and keeps that one's place.
        """

    @abstractmethod
    def remove(self, sub_id: str) -> None:
        """Remove a subscription that was ended on purpose.

        Args:
            sub_id: Its id; an unknown one is no error.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove every subscription."""

    @abstractmethod
    def entries(self) -> Iterator[Entry]:
        """List the subscriptions.

        Returns:
            All of them, in the order in which they were added.
        """


@runtime_checkable
class OwnedSubscriptionManager(SubscriptionManager, Protocol):
    """A subscription manager that belongs to one client, which opens and closes it like a store."""

    @abstractmethod
    def open_for(self, client_name: str) -> None:
        """Bind the manager to a client name, permanently.

        Args:
            client_name: The name of the client.

        Raises:
            StoreLocked: The manager belongs to a client of another name.
            UsageError: `client_name` is not a valid name.
        """

    @abstractmethod
    def close(self) -> None:
        """Release it to other processes; a second call does nothing."""


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
