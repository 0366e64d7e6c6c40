"""Where a publish store lives: who owns it, what makes it last, how it ends.

The segment log and its `Space` know where frames are. A `Home` knows the rest: the client that the
store belongs to, what has to be done for a loss of power, and what is let go of at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Literal, Protocol

from typing_extensions import override

from haclient_stores.errors import StoreLocked, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from haclient_stores.segment import Segment

__all__ = ["Durability", "Home", "MemoryHome", "check_durability", "check_owner"]

Durability = Literal["process", "group", "fsync"]
_DURABILITIES: Final = ("process", "group", "fsync")


def check_durability(durability: str, group_interval_s: float = 0.01) -> None:
    """Refuse what is no durability.

    Raises:
        UsageError: It is none, or groups are not apart.
    """
    if not group_interval_s > 0:
        raise UsageError(f"group_interval_s is above 0 seconds, not {group_interval_s}")
    if durability not in _DURABILITIES:
        raise UsageError(f"durability is one of {', '.join(_DURABILITIES)}, not {durability!r}")


def check_owner(path: str | Path, owner: str, client_name: str) -> None:
    """Refuse a client of another name (PS12).

    Raises:
        StoreLocked: The store belongs to another client.
    """
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
    """

    client_name: str
    synced_sequence: int

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
    def close(self, segments: list[Segment]) -> None:
        """Let go of everything, the lock too."""
        ...


class MemoryHome(Home):
    """The memory of the process."""

    client_name = ""
    synced_sequence = 0

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
    def close(self, segments: list[Segment]) -> None:
        """Nothing is held but memory."""
