"""Whether a `RecoveryPointAdapter` keeps what the client relies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from haclient.testing.comparison import expect
from haclient_stores.adapters.recovery_point import (
    RecoveryPoint,
    RecoveryPointAdapter,
    TimedAdapter,
)

__all__ = ["check_recovery_point_adapter"]

_UPDATES: Final = 1000
_ONE: Final = "conformance 1"
_TWO: Final = "conformance 2"
_LARGEST: Final = 2**64 - 1
_NOW_US: Final = 1_700_000_000_000_000
_PUBLISHERS: Final = 100
_ODD_IDS: Final = ("it's", 'a "b"', "50 %", "naïve", "a,b|c", "?", "A", "a")

_Make = Callable[[], RecoveryPointAdapter]


async def check_recovery_point_adapter(make: Callable[[], RecoveryPointAdapter]) -> None:
    """Run the whole suite.

    Args:
        make: Returns a new adapter for the same storage, as the next process would. The recovery
            points of the clients "conformance 1" and "conformance 2" are purged.

    Raises:
        AssertionError: A check failed; the text has the expected and the actual value.
    """
    for check in (_updates, _whole_points, _clients, _purges, _order_of_moves, _prunes):
        for name in (_ONE, _TWO):
            await _do(make, name, lambda adapter: adapter.purge())
            await _expect(make, name, [], "recover of a client that nothing is kept for")
        await check(make)
    for name in (_ONE, _TWO):
        await _do(make, name, lambda adapter: adapter.purge())


async def _updates(make: _Make) -> None:
    """The adapter keeps the newest point of each of many subscriptions, under any name."""
    points = [RecoveryPoint("a", f"1|{number}|,2|7|") for number in range(1, _UPDATES + 1)]
    points.append(RecoveryPoint("b c", f"{_LARGEST}|{_LARGEST}|"))
    await _update(make, *points)
    await _expect(make, _ONE, points[-2:], "recover after updates and close")
    older = RecoveryPoint("a", "1|3|")
    await _update(make, older)
    wanted = [older, points[-1]]
    await _expect(make, _ONE, wanted, "recover after an update with a lower sequence")
    odd = [RecoveryPoint(sub_id, f"1|{n}|") for n, sub_id in enumerate(_ODD_IDS, 1)]
    many = ",".join(f"{_LARGEST - n}|{n}|" for n in range(_PUBLISHERS))
    odd.append(RecoveryPoint("many", many))
    await _do(make, _ONE, lambda adapter: adapter.purge())
    await _update(make, *odd)
    await _expect(make, _ONE, odd, "recover of subscriptions with unusual names")


async def _whole_points(make: _Make) -> None:
    """A point keeps its server and its time: without them it may skip messages elsewhere."""
    point = RecoveryPoint("a", "1|1|", "east:9007", _NOW_US)
    await _update(make, point)
    await _expect(make, _ONE, [point], "recover of a point with a server and a time")
    later = RecoveryPoint("a", "1|1|", "east:9007", _NOW_US + 1)
    await _update(make, later)
    await _expect(make, _ONE, [later], "recover after an update of the time alone")
    begun_anew = RecoveryPoint("a", "1|1|", "east:9007", _NOW_US + 1, 7)
    await _update(make, begun_anew)
    await _expect(make, _ONE, [begun_anew], "recover of a point of another generation")
    elsewhere = RecoveryPoint("a", "1|2|", "", 5)
    await _update(make, elsewhere)
    await _expect(make, _ONE, [elsewhere], "recover after an update that knows no server")
    await _do(make, _ONE, lambda adapter: adapter.purge("a"))
    anew = RecoveryPoint("a", "1|3|")
    await _update(make, anew)
    await _expect(make, _ONE, [anew], "recover of what was purged and begun anew")


async def _clients(make: _Make) -> None:
    """The points of each client are separate."""
    first, second = RecoveryPoint("a", "1|1|"), RecoveryPoint("a", "3|3|")
    await _update(make, first)
    await _expect(make, _TWO, [], "recover of another client")
    await _do(make, _TWO, lambda adapter: adapter.update(second))
    await _expect(make, _ONE, [first], "recover after an update of another client")
    await _do(make, _TWO, lambda adapter: adapter.purge("a"))
    await _expect(make, _ONE, [first], "recover after a purge of another client")
    await _do(make, _TWO, lambda adapter: adapter.purge())
    await _expect(make, _ONE, [first], "recover after another client has purged everything")


async def _purges(make: _Make) -> None:
    """Purge one subscription, all of them, or an unknown one."""
    points = [RecoveryPoint(sub_id, "1|1|") for sub_id in "abc"]
    await _update(make, *points)
    await _do(make, _ONE, lambda adapter: adapter.purge("a"))
    await _expect(make, _ONE, points[1:], "recover after purge of one subscription")
    await _do(make, _ONE, lambda adapter: adapter.purge("unknown"))
    await _expect(make, _ONE, points[1:], "recover after the purge of an unknown one")
    await _do(make, _ONE, lambda adapter: adapter.purge())
    await _expect(make, _ONE, [], "recover after purge of all")


async def _order_of_moves(make: _Make) -> None:
    """Updates and purges count in the order of their calls."""

    def move(adapter: RecoveryPointAdapter) -> None:
        for sub_id in "abc":
            adapter.update(RecoveryPoint(sub_id, "1|1|", "east:9007", _NOW_US))
        adapter.purge("a")
        adapter.purge("b")
        adapter.update(RecoveryPoint("b", "1|2|"))

    await _do(make, _ONE, move)
    wanted = [RecoveryPoint("b", "1|2|"), RecoveryPoint("c", "1|1|", "east:9007", _NOW_US)]
    await _expect(make, _ONE, wanted, "recover after updates and purges of one process")

    def purge_all(adapter: RecoveryPointAdapter) -> None:
        adapter.update(RecoveryPoint("a", "1|3|"))
        adapter.purge()
        adapter.update(RecoveryPoint("d", "1|4|"))

    await _do(make, _ONE, purge_all)
    wanted = [RecoveryPoint("d", "1|4|")]
    await _expect(make, _ONE, wanted, "recover after purge of all in one process")


async def _prunes(make: _Make) -> None:
    """A prune keeps live subscriptions, and the adapter still works."""
    before, after = RecoveryPoint("a", "1|1|"), RecoveryPoint("c", "1|3|")
    await _update(make, before, RecoveryPoint("b", "1|2|"))
    adapter = make()
    await adapter.recover(_ONE)
    adapter.purge("b")
    await adapter.prune()
    adapter.update(after)
    await adapter.close()
    await _expect(make, _ONE, [before, after], "recover after prune")


async def _update(make: _Make, *points: RecoveryPoint) -> None:
    def update(adapter: RecoveryPointAdapter) -> None:
        for point in points:
            waits: object = adapter.update(point)
            expect(waits, None, "what update returns, which never waits")

    await _do(make, _ONE, update)


async def _do(make: _Make, name: str, work: Callable[[RecoveryPointAdapter], None]) -> None:
    adapter = make()
    await adapter.recover(name)
    work(adapter)
    if isinstance(adapter, TimedAdapter):
        adapter.poll(0.0)
    await adapter.close()
    await adapter.close()


async def _expect(make: _Make, name: str, wanted: list[RecoveryPoint], what: str) -> None:
    adapter = make()
    found = sorted(await adapter.recover(name), key=lambda point: point.sub_id)
    await adapter.close()
    expect(found, sorted(wanted, key=lambda point: point.sub_id), what)
