"""Fewer updates for an adapter that is slow or expensive."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from typing_extensions import override

from haclient_stores.adapters.recovery_point import (
    RecoveryPoint,
    RecoveryPointAdapter,
    TimedAdapter,
)
from haclient_stores.checks import check_count, check_seconds

__all__ = ["ConflatingRecoveryPointAdapter"]


class ConflatingRecoveryPointAdapter(TimedAdapter):
    """Forwards the newest point of each subscription after a number of updates or seconds.

    Args:
        inner: The adapter that keeps the points.
        max_updates: Forward the collected points after this many updates.
        max_age_s: Also forward them when the oldest one is this many seconds old.

    Raises:
        UsageError: The adapter is not one, or a limit is below one update or not above zero
            seconds.
    """

    def __init__(
        self, inner: RecoveryPointAdapter, *, max_updates: int = 100, max_age_s: float = 2.0
    ) -> None:
        check_count("max_updates", max_updates, 1)
        check_seconds("max_age_s", max_age_s)
        self._inner = inner
        self._max_updates = max_updates
        self._max_age_s = max_age_s
        # A plain dict visits all entries deleted from its front to find the first one left.
        self._pending = OrderedDict[str, RecoveryPoint]()
        self._updates = 0
        self._since: float | None = None

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        return await self._inner.recover(client_name)

    @override
    def update(self, point: RecoveryPoint) -> None:
        self._pending[point.sub_id] = point
        self._updates += 1
        if self._updates >= self._max_updates:
            self._pass_on()

    @override
    def poll(self, now: float) -> None:
        if not self._pending:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._max_age_s:
            self._pass_on()
        if isinstance(self._inner, TimedAdapter):
            self._inner.poll(now)

    def _pass_on(self) -> None:
        self._updates = 0
        self._since = None
        while self._pending:  # one that the inner adapter refuses stays
            sub_id, point = next(iter(self._pending.items()))
            self._inner.update(point)
            del self._pending[sub_id]

    @override
    def purge(self, sub_id: str | None = None) -> None:
        if sub_id is None:
            self._pending.clear()
        else:
            self._pending.pop(sub_id, None)
        self._inner.purge(sub_id)

    @override
    async def prune(self) -> None:
        await self._inner.prune()

    @override
    async def close(self) -> None:
        try:
            self._pass_on()
        finally:
            await self._inner.close()
