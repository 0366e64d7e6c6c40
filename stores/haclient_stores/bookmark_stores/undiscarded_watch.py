"""A warning for messages that stay undiscarded.

A message that is never discarded holds the recovery point: everything after it stays in the store
and is replayed at each restart. The usual reason is a path through a handler that forgets
`discard()`. Pure: the client passes the time.

An `UndiscardedWatch` is for those who give one to their store. The client of every store counts
besides (`UndiscardedCount`), since an application that never discards at all grows without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from haclient_stores.checks import check_count, check_seconds
from haclient_stores.logs import logger_of

__all__ = ["OldUndiscarded", "UndiscardedCount", "UndiscardedWatch"]

UNDISCARDED_LIMIT: Final = 100_000
"""Undiscarded messages of one subscription that are worth a warning if none is discarded."""

_log = logger_of("haclient.bookmark_store")


@dataclass(frozen=True, slots=True)
class OldUndiscarded:
    """A message that holds its subscription's recovery point.

    Attributes:
        sub_id: The subscription.
        number: The message's number in the store.
        age_s: The minimum number of seconds for which it has been the oldest one.
        undiscarded: How many messages of the subscription are not discarded.
    """

    sub_id: str
    number: int
    age_s: float
    undiscarded: int

    @override
    def __str__(self) -> str:
        return (
            f"subscription {self.sub_id!r}: message {self.number} has not been discarded for "
            f"{self.age_s:.0f} s and holds the recovery point; {self.undiscarded} are undiscarded"
        )


class UndiscardedWatch:
    """Detects a subscription whose oldest undiscarded message does not change.

    It warns when the message is `after_s` seconds old, and again whenever that has doubled.

    Args:
        after_s: Seconds after which a message counts as forgotten.
        on_old: Called with each warning, in the client's thread: it must be quick. What it raises
            is logged. A line in the log by default.

    Raises:
        UsageError: The limit is not above zero.
    """

    def __init__(
        self, after_s: float = 300.0, on_old: Callable[[OldUndiscarded], object] | None = None
    ) -> None:
        check_seconds("after_s", after_s)
        self.after_s = after_s
        self._on_old = on_old or _warn
        self._oldest: dict[str, tuple[int, float, float]] = {}  # number, since when, warned at

    def note(self, sub_id: str, *, oldest: int, undiscarded: int, now: float) -> None:
        """Check the oldest undiscarded message of a subscription, and warn when it is due.

        Args:
            sub_id: The id of the subscription.
            oldest: The number of that message; 0 when there is none.
            undiscarded: How many messages of the subscription are not discarded.
            now: The time in seconds, on a clock that never steps.
        """
        number, since, warn_at = self._oldest.get(sub_id, (0, now, now))
        if not oldest:
            self._oldest.pop(sub_id, None)
        elif oldest != number:
            self._oldest[sub_id] = (oldest, now, now + self.after_s)
        elif now >= warn_at:
            age = now - since
            self._oldest[sub_id] = (number, since, since + 2 * max(age, self.after_s))
            try:
                self._on_old(OldUndiscarded(sub_id, number, age, undiscarded))
            except Exception:  # of the application: a warning ends no client
                _log.exception("on_old of the UndiscardedWatch has raised")

    def forget_all_but(self, sub_ids: AbstractSet[str]) -> None:
        """Forget the subscriptions that the store does not have any more.

        Args:
            sub_ids: The ids that the store has.
        """
        for sub_id in self._oldest.keys() - sub_ids:
            del self._oldest[sub_id]


class UndiscardedCount:
    """Detects subscriptions with many undiscarded messages of which nobody discards one.

    Args:
        limit: So many are many; 0 for never.

    Raises:
        UsageError: The limit is below zero.
    """

    def __init__(self, limit: int = UNDISCARDED_LIMIT) -> None:
        check_count("limit", limit)
        self._limit = limit
        self._oldest: dict[str, int] = {}
        self._warned: set[str] = set()

    def note(self, sub_id: str, *, oldest: int, undiscarded: int) -> None:
        """Compare a subscription with the last look, and warn once.

        Args:
            sub_id: The id of the subscription.
            oldest: The number of its oldest undiscarded message; 0 when there is none.
            undiscarded: How many of its messages are not discarded.
        """
        was, self._oldest[sub_id] = self._oldest.get(sub_id, 0), oldest
        if not 0 < self._limit <= undiscarded or was != oldest or sub_id in self._warned:
            return
        self._warned.add(sub_id)
        _log.warning(
            "subscription %r: %d messages are undiscarded and the oldest stays so; each of them "
            "takes memory and comes again after a restart: call message.discard() when one is "
            "finished, or subscribe with auto_discard=True",
            sub_id,
            undiscarded,
        )

    def forget_all_but(self, sub_ids: AbstractSet[str]) -> None:
        """Forget the subscriptions that the store does not have any more.

        Args:
            sub_ids: The ids that the store has.
        """
        for sub_id in self._oldest.keys() - sub_ids:
            del self._oldest[sub_id]
            self._warned.discard(sub_id)


def _warn(old: OldUndiscarded) -> None:
    _log.warning("%s", old)
