"""A warning for messages that stay undiscarded.

A message that is never discarded holds the recovery point: everything after it stays in the store
and is replayed at each restart. The usual reason is a path through a handler that forgets
`discard()`. Pure: the client passes the time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from haclient_stores.checks import check_callable, check_seconds

__all__ = ["OldUndiscarded", "UndiscardedWatch"]

_log = logging.getLogger(__name__)


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
        on_old: Called with each warning; a line in the log by default.

    Raises:
        UsageError: The limit is not above zero.
    """

    def __init__(
        self, after_s: float = 300.0, on_old: Callable[[OldUndiscarded], object] | None = None
    ) -> None:
        check_seconds("after_s", after_s)
        check_callable("on_old", on_old)
        self.after_s = after_s
        self._on_old = on_old or _warn
        self._oldest: dict[str, tuple[int, float, float]] = {}  # number, since when, warned at

    def look(self, sub_id: str, *, oldest: int, undiscarded: int, now: float) -> None:
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
            self._on_old(OldUndiscarded(sub_id, number, age, undiscarded))


def _warn(old: OldUndiscarded) -> None:
    _log.warning("%s", old)
