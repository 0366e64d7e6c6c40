"""Where a publish store lives: who owns it, what makes it last, how it ends.

The segment log and its `Space` know where frames are. A `Home` knows the rest: the client that the
store belongs to, what has to be done for a loss of power, and what is let go of at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from typing_extensions import override

from haclient_stores.checks import check_seconds, check_text, check_word
from haclient_stores.errors import StoreLocked
from haclient_stores.publish_stores.window import PublishWindow

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from haclient_stores.publish_stores.segment import Segment

__all__ = ["Durability", "Home", "Keeping", "MemoryHome", "check_durability", "check_owner"]

Durability = Literal["process", "group", "fsync"]
_DURABILITIES: Final = ("process", "group", "fsync")
_T = TypeVar("_T")


def check_durability(durability: str, group_interval_s: object = 0.01) -> None:
    """Refuse what is no durability.

    Raises:
        UsageError: It is none, or groups are not apart.
    """
    check_seconds("group_interval_s", group_interval_s, endless=False)
    check_word("durability", durability, _DURABILITIES)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How messages are kept.

    Attributes:
        durability: What the client waits for; see `publish_log`.
        group_interval_s: How often the client syncs at durability `group`, in seconds.
        truncate_on_close: `close` gives all space back when nothing waits for an ack (PS24).

    Raises:
        UsageError: The durability is none, or groups are not apart.
    """

    durability: Durability = "process"
    group_interval_s: float = 0.01
    truncate_on_close: bool = False

    def __post_init__(self) -> None:
        check_durability(self.durability, self.group_interval_s)


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
        keeping: How messages are kept.
        segments: What an earlier process has left, ascending.
        window: The numbering of that process.
    """

    client_name: str
    synced_sequence: int
    keeping: Keeping
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
    keeping = Keeping()

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
