"""Where a publish store lives: who owns it, what makes it last, how it ends.

The segment log and its `Space` know where frames are. A `Home` knows the rest: the client that the
store belongs to, what has to be done for a loss of power, and what is let go of at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, TypeVar

from typing_extensions import override

from haclient_stores.checks import check_text
from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.errors import StoreLocked
from haclient_stores.publish_stores.window import PublishWindow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from haclient_stores.publish_stores.segment import Segment

__all__ = ["Home", "MemoryHome", "check_owner"]

_T = TypeVar("_T")


def check_owner(path: str | Path, owner: str, client_name: str) -> None:
    """Refuse a client of another name (PS12).

    Raises:
        StoreLocked: The store belongs to another client.
        UsageError: It is no name.
    """
    check_text("client_name", client_name)
    if owner not in {"", client_name}:
        raise StoreLocked(
            path,
            owner,
            f"belongs to the client {owner!r}, not to {client_name!r}: sequence numbers are "
            "counted for each client name, so use a store of its own for each",
        )


class Home(Protocol):
    """What surrounds the log of a publish store.

    Attributes:
        client_name: Who owns the store; empty while nobody does.
        synced_sequence: Everything up to here survives a loss of power (PS20).
        durability_options: How messages are kept.
        segments: What an earlier process has left, ascending.
        window: The numbering of that process.
    """

    client_name: str
    synced_sequence: int
    durability_options: DurabilityOptions
    segments: list[Segment]
    window: PublishWindow

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """The store's directory; None in memory."""
        ...

    @abstractmethod
    def open_for(self, client_name: str) -> None:
        """Bind the store to a client (PS12).

        Raises:
            StoreLocked: It belongs to another one.
        """
        ...

    @abstractmethod
    def sync(self, checkpoint: Callable[[], int]) -> None:
        """Write everything through; `checkpoint` seals it first and says what the last of it is."""
        ...

    @abstractmethod
    def give_back(self, segments: list[Segment]) -> None:
        """Nothing waits for an ack and all is synced: return the space of these and all others."""
        ...

    @abstractmethod
    def close(self, segments: list[Segment]) -> None:
        """Let go of everything, the lock too."""
        ...

    @abstractmethod
    def on_fork(self, owner: _T, told: Callable[[_T], None]) -> None:
        """Call `told(owner)` in every forked child that could write into the same files."""
        ...


class MemoryHome(Home):
    """The memory of the process."""

    client_name = ""
    synced_sequence = 0
    durability_options = DurabilityOptions()

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.window = PublishWindow()

    @property
    @override
    def path(self) -> None:
        return None

    @override
    def open_for(self, client_name: str) -> None:
        check_owner("memory", self.client_name, client_name)
        self.client_name = client_name

    @override
    def sync(self, checkpoint: Callable[[], int]) -> None:
        """Memory does not survive the process, so there is nothing to wait for."""

    @override
    def give_back(self, segments: list[Segment]) -> None:
        """Memory goes with its last user."""

    @override
    def close(self, segments: list[Segment]) -> None:
        """Nothing is held but memory."""

    @override
    def on_fork(self, owner: _T, told: Callable[[_T], None]) -> None:
        """A child has a memory of its own."""
