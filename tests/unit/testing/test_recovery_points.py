from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient.testing import check_recovery_point_adapter
from haclient_stores.adapters.conflating import ConflatingRecoveryPointAdapter
from haclient_stores.adapters.recovery_point import (
    RecoveryPoint,
    RecoveryPointAdapter,
    TimedAdapter,
)
from support.points import BareAdapter

pytestmark = pytest.mark.row("RP1")


Kept = dict[tuple[str, str], RecoveryPoint]


class DictAdapter(BareAdapter):
    """The simplest adapter that a user could write."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept
        self.name = ""

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        self.name = client_name
        return [point for (name, _), point in self.kept.items() if name == client_name]

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.kept[self.name, point.sub_id] = point

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name, kept in list(self.kept):
            if name == self.name and sub_id in {None, kept}:
                del self.kept[name, kept]


async def test_a_simple_adapter_passes_also_behind_a_conflating_one() -> None:
    kept: Kept = {}
    await check_recovery_point_adapter(lambda: DictAdapter(kept))
    await check_recovery_point_adapter(lambda: ConflatingRecoveryPointAdapter(DictAdapter(kept)))
    assert kept == {}


@pytest.mark.row("RP9")
async def test_our_sqlite_adapter_passes(tmp_path: Path) -> None:
    await check_recovery_point_adapter(lambda: SqliteRecoveryPointAdapter(tmp_path / "p.db"))


class KeepsTheFirst(DictAdapter):
    """Does not overwrite."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.kept.setdefault((self.name, point.sub_id), point)


class KeepsTheHighest(DictAdapter):
    """Thinks that a lower sequence is an old one."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        old = self.kept.get((self.name, point.sub_id), point)
        if len(old.bookmark) <= len(point.bookmark):
            super().update(point)


class ForgetsTheServer(DictAdapter):
    """Keeps the list alone."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        super().update(RecoveryPoint(point.sub_id, point.bookmark, caught_up_us=point.caught_up_us))


class ForgetsTheTime(DictAdapter):
    """Keeps the list and the server."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        super().update(replace(point, caught_up_us=0))


class WantsANewBookmark(DictAdapter):
    """Skips what it takes for unchanged."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        old = self.kept.get((self.name, point.sub_id))
        if old is None or old.bookmark != point.bookmark:
            super().update(point)


class KeepsTheServer(DictAdapter):
    """Leaves a column as it was where there is nothing new for it."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        old = self.kept.get((self.name, point.sub_id), point)
        super().update(replace(point, server=point.server or old.server))


class KeepsAllUnderOneName(DictAdapter):
    """Does not tell upper from lower case."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        for name, kept in list(self.kept):
            if name == self.name and kept.lower() == point.sub_id.lower():
                del self.kept[name, kept]
        super().update(point)


class CutsOff(DictAdapter):
    """Has a column that is too narrow."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        super().update(replace(point, bookmark=point.bookmark[:255]))


class PurgesEverybody(DictAdapter):
    """Forgets other clients, too."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        if sub_id is None:
            self.kept.clear()
        super().purge(sub_id)


class PurgesOneOfEverybody(DictAdapter):
    """Does not look at the client."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        super().purge(sub_id)
        for name, kept in list(self.kept):
            if kept == sub_id:
                del self.kept[name, kept]


class PurgesNothing(DictAdapter):
    """Keeps one that is purged."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        if sub_id is None:
            super().purge()


class PurgesLate(DictAdapter):
    """Purges at the end, whatever came since."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.purged: list[str | None] = []

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.purged.append(sub_id)

    @override
    async def close(self) -> None:
        while self.purged:
            super().purge(self.purged.pop())


class PurgesAllForUnknown(DictAdapter):
    """Takes a name that it does not know for none."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        super().purge(sub_id if (self.name, sub_id) in self.kept else None)


class PrunesTooMuch(DictAdapter):
    """Forgets what is live."""

    @override
    async def prune(self) -> None:
        self.kept.clear()


class PrunesForGood(DictAdapter):
    """Takes nothing any more after a prune."""

    @override
    async def prune(self) -> None:
        self.kept = dict(self.kept)


class GivesAll(DictAdapter):
    """Gives the points of all clients."""

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        self.name = client_name
        return list(self.kept.values())


class GivesTwice(DictAdapter):
    """Gives each point and an old one."""

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        points = list(await super().recover(client_name))
        return [*points, *points[:1]]


class LosesTheLast(DictAdapter):
    """Holds the newest back and does not write it at the end."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.newest: RecoveryPoint | None = None

    @override
    def update(self, point: RecoveryPoint) -> None:
        if self.newest is not None:
            super().update(self.newest)
        self.newest = point


class PollsAway(LosesTheLast, TimedAdapter):
    """Forgets at a poll what it holds back."""

    @override
    def poll(self, now: float) -> None:
        self.newest = None

    @override
    async def close(self) -> None:
        if self.newest is not None:
            DictAdapter.update(self, self.newest)


class ClosesOnce(DictAdapter):
    """Undoes something when it is closed a second time."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(kept)
        self.closed = False

    @override
    async def close(self) -> None:
        if self.closed:
            self.purge()
        self.closed = True


class Waits(DictAdapter):
    """Has an update that wants to be awaited."""

    @override
    def update(self, point: RecoveryPoint) -> object:  # type: ignore[override]  # which is its defect
        super().update(point)
        return self


WRONG: list[tuple[Callable[[Kept], RecoveryPointAdapter], str]] = [
    (KeepsTheFirst, "recover after updates and close"),
    (KeepsTheHighest, "an update with a lower sequence"),
    (ForgetsTheServer, "a point with a server and a time"),
    (ForgetsTheTime, "a point with a server and a time"),
    (WantsANewBookmark, "an update of the time alone"),
    (KeepsTheServer, "an update that knows no server"),
    (KeepsAllUnderOneName, "unusual names"),
    (CutsOff, "unusual names"),
    (PurgesEverybody, "another client has purged everything"),
    (PurgesOneOfEverybody, "a purge of another client"),
    (PurgesNothing, "purged and begun anew|purge of one subscription"),
    (PurgesLate, "updates and purges of one process"),
    (PurgesAllForUnknown, "purge of an unknown one"),
    (PrunesTooMuch, "recover after prune"),
    (PrunesForGood, "recover after prune"),
    (GivesAll, "recover of another client"),
    (GivesTwice, "recover after updates and close"),
    (LosesTheLast, "recover after updates and close"),
    (PollsAway, "recover after updates and close"),
    (ClosesOnce, "recover after updates and close"),
    (Waits, "which never waits"),
]


@pytest.mark.parametrize(("wrong", "clause"), WRONG)
async def test_an_adapter_with_a_defect_fails(
    wrong: Callable[[Kept], RecoveryPointAdapter], clause: str
) -> None:
    kept: Kept = {}
    with pytest.raises(AssertionError, match=rf"({clause}).*: wanted"):
        await check_recovery_point_adapter(lambda: wrong(kept))
