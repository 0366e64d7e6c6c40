"""The simplest adapter that there can be: recovery points in a dict, which outlives processes."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, RecoveryPointAdapter

__all__ = ["BareAdapter", "KeptPoints"]


class BareAdapter(RecoveryPointAdapter):
    """Has nothing to prune and nothing to close."""

    @override
    async def prune(self) -> None:
        return

    @override
    async def close(self) -> None:
        return


class KeptPoints(BareAdapter):
    """Keeps the points of one client.

    Attributes:
        points: The newest of each subscription.
    """

    def __init__(self) -> None:
        self.points: dict[str, RecoveryPoint] = {}

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        return list(self.points.values())

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.points[point.sub_id] = point

    @override
    def purge(self, sub_id: str | None = None) -> None:
        if sub_id is None:
            self.points.clear()
        else:
            self.points.pop(sub_id, None)
