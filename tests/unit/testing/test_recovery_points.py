from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.testing import check_recovery_point_adapter
from haclient_stores.adapters import RecoveryPoint, RecoveryPointAdapter
from haclient_stores.conflating import ConflatingRecoveryPointAdapter
from haclient.sqlite_adapter import SqliteRecoveryPointAdapter

pytestmark = pytest.mark.row("RP1")


class DictAdapter(RecoveryPointAdapter):
    """The simplest adapter that a user could write."""

    def __init__(self, kept: dict[tuple[str, str], str]) -> None:
        self.kept = kept
        self.name = ""

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        self.name = client_name
        return [RecoveryPoint(s, b) for (n, s), b in self.kept.items() if n == client_name]

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.kept[self.name, point.sub_id] = point.bookmark

    @override
    def purge(self, sub_id: str | None = None) -> None:
        for name, kept in list(self.kept):
            if name == self.name and sub_id in {None, kept}:
                del self.kept[name, kept]

    @override
    async def prune(self) -> None:
        return

    @override
    async def close(self) -> None:
        return


async def test_a_simple_adapter_passes_also_behind_a_conflating_one() -> None:
    kept: dict[tuple[str, str], str] = {}
    await check_recovery_point_adapter(lambda: DictAdapter(kept))
    await check_recovery_point_adapter(lambda: ConflatingRecoveryPointAdapter(DictAdapter(kept)))


async def test_our_sqlite_adapter_passes(tmp_path: Path) -> None:
    await check_recovery_point_adapter(lambda: SqliteRecoveryPointAdapter(tmp_path / "p.db"))


class KeepsTheFirst(DictAdapter):
    """Does not overwrite."""

    @override
    def update(self, point: RecoveryPoint) -> None:
        self.kept.setdefault((self.name, point.sub_id), point.bookmark)


class PurgesEverybody(DictAdapter):
    """Forgets other clients, too."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self.kept.clear()


class PrunesTooMuch(DictAdapter):
    """Forgets what is live."""

    @override
    async def prune(self) -> None:
        self.kept.clear()


class GivesAll(DictAdapter):
    """Gives the points of all clients."""

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        self.name = client_name
        return [RecoveryPoint(s, b) for (_, s), b in self.kept.items()]


@pytest.mark.parametrize("wrong", [KeepsTheFirst, PurgesEverybody, PrunesTooMuch, GivesAll])
async def test_an_adapter_with_a_defect_fails(
    wrong: Callable[[dict[tuple[str, str], str]], RecoveryPointAdapter],
) -> None:
    kept: dict[tuple[str, str], str] = {}
    with pytest.raises(AssertionError, match="wanted"):
        await check_recovery_point_adapter(lambda: wrong(kept))
