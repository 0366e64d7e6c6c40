"""When the client prunes a bookmark log automatically.

A policy holds the user's settings; the schedule tracks what was written since the last prune. The
client asks it about once a second and prunes in a thread. A prune must free space: above the size
limit, the log must also have doubled since the last prune, so that many open entries do not cause
endless prunes. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from haclient_stores.checks import check_count, check_seconds

__all__ = ["DEFAULT_PRUNE_POLICY", "LogUsage", "PrunePolicy", "PruneSchedule"]

_WORTH_BYTES: Final = 4096  # less is not worth a new file
_OPEN_BYTES: Final = 64  # at least what one undiscarded message takes, so that no prune is useless


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePolicy:
    """The conditions for a prune: any one is enough; by default none is set.

    Attributes:
        on_exit: When the store is closed.
        every_messages: Each time this many messages have been logged.
        over_bytes: When the log is larger than this.
        growths: When the file has grown this many times, by 1 MiB each.
        idle_s: When nothing was logged or discarded for this many seconds.
        dead_bytes: When this many bytes are about messages that are finished, and those are more
            than half of the log.

    Raises:
        UsageError: A limit is below zero, or no number.
    """

    on_exit: bool = False
    every_messages: int = 0
    over_bytes: int = 0
    growths: int = 0
    idle_s: float = 0.0
    dead_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("every_messages", "over_bytes", "growths", "dead_bytes"):
            check_count(name, getattr(self, name))
        check_seconds("idle_s", self.idle_s, zero=True)


DEFAULT_PRUNE_POLICY: Final = PrunePolicy(dead_bytes=8 * 1024 * 1024)
"""Keeps a log below twice what is needed plus 16 MiB; a prune then takes milliseconds."""


@dataclass(frozen=True, slots=True)
class LogUsage:
    """The size of a log.

    Attributes:
        end_bytes: The offset of the next record.
        file_bytes: The size of the file.
        messages: The total number of messages logged so far.
        undiscarded: How many of them are not discarded.
    """

    end_bytes: int
    file_bytes: int
    messages: int
    undiscarded: int = 0

    @property
    def dead_bytes(self) -> int:
        """How much a prune gives back, or more."""
        return self.end_bytes - _OPEN_BYTES * self.undiscarded


class PruneSchedule:
    """Decides when one log is pruned.

    Args:
        policy: The user's settings.
        growth_bytes: By how much the file grows at a time.
        usage: The size of the log when it is opened; it may contain much to prune.
    """

    def __init__(self, policy: PrunePolicy, growth_bytes: int, usage: LogUsage) -> None:
        self._policy = policy
        self._growth_bytes = growth_bytes
        self._base = LogUsage(0, usage.file_bytes, usage.messages)
        self._last_end = usage.end_bytes
        self._changed_at: float | None = None

    def pruned(self, usage: LogUsage) -> None:
        """Note that the log was pruned.

        Args:
            usage: What is left.
        """
        self._base = usage
        self._last_end = usage.end_bytes

    def worth(self, usage: LogUsage) -> bool:
        """Whether enough was written since the last prune for another one to give space back.

        Args:
            usage: How far the log has got.
        """
        return usage.end_bytes >= self._base.end_bytes + _WORTH_BYTES

    def on_exit(self, usage: LogUsage) -> bool:
        """Whether to prune before closing.

        Args:
            usage: How far the log has got.
        """
        return self._policy.on_exit and self.worth(usage)

    def due(self, usage: LogUsage, now: float) -> bool:
        """Whether to prune now.

        Args:
            usage: How far the log has got.
            now: The time in seconds, on a clock that never steps.
        """
        policy, base = self._policy, self._base
        idle_s = self._idle_s(usage.end_bytes, now)
        if not self.worth(usage):
            return False
        grown = usage.file_bytes - base.file_bytes
        return (
            0 < policy.every_messages <= usage.messages - base.messages
            or 0 < policy.over_bytes <= usage.end_bytes >= 2 * base.end_bytes
            or 0 < policy.growths * self._growth_bytes <= grown
            or 0 < policy.idle_s <= idle_s
            or self._is_mostly_dead(usage)
        )

    def _is_mostly_dead(self, usage: LogUsage) -> bool:
        """What a prune has left was needed then: only what came since can be dead."""
        dead_bytes = usage.dead_bytes
        return (
            0 < self._policy.dead_bytes <= dead_bytes
            and 2 * dead_bytes > usage.end_bytes >= 2 * self._base.end_bytes
        )

    def _idle_s(self, end_bytes: int, now: float) -> float:
        if end_bytes != self._last_end or self._changed_at is None:
            self._last_end = end_bytes
            self._changed_at = now
        return now - self._changed_at
