"""Whether a `RecoveryPointAdapter` keeps what the client relies on (RP1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from haclient.testing.expecting import expect
from haclient_stores.adapters import RecoveryPoint, RecoveryPointAdapter, TimedAdapter

__all__ = ["check_recovery_point_adapter"]

_UPDATES: Final = 1000
_NAMES: Final = ("conformance 1", "conformance 2")


async def check_recovery_point_adapter(make: Callable[[], RecoveryPointAdapter]) -> None:
    """Run the whole suite.

    Args:
        make: Makes an adapter, each time on the same storage, as the next process would. What the
            storage has of the clients "conformance 1" and "conformance 2" is purged.

    Raises:
        AssertionError: A check has failed; its text says what was wanted and what was found.
    """
    one, two = _NAMES
    for name in _NAMES:
        await _do(make, name, lambda adapter: adapter.purge())
    expect(await _kept(make, one), {}, "recover of a client that nothing is kept for")

    def update_often(adapter: RecoveryPointAdapter) -> None:
        for sequence in range(1, _UPDATES + 1):
            adapter.update(RecoveryPoint("a", f"1|{sequence}|,2|7|"))
        adapter.update(RecoveryPoint("b c", "18446744073709551615|1|"))
        if isinstance(adapter, TimedAdapter):
            adapter.poll(0.0)

    await _do(make, one, update_often)
    newest = {"a": f"1|{_UPDATES}|,2|7|", "b c": "18446744073709551615|1|"}
    expect(await _kept(make, one), newest, "recover after updates and close")
    expect(await _kept(make, two), {}, "recover of another client")

    await _do(make, two, lambda adapter: adapter.update(RecoveryPoint("a", "3|3|")))
    await _do(make, one, lambda adapter: adapter.purge("a"))
    del newest["a"]
    expect(await _kept(make, one), newest, "recover after purge of one subscription")
    expect(await _kept(make, two), {"a": "3|3|"}, "recover of another client after that")

    adapter = make()
    await adapter.recover(one)
    adapter.update(RecoveryPoint("b c", "1|2|"))
    await adapter.prune()
    await adapter.close()
    expect(await _kept(make, one), {"b c": "1|2|"}, "recover after prune")
    await _do(make, one, lambda adapter: adapter.purge())
    expect(await _kept(make, one), {}, "recover after purge of all")
    expect(await _kept(make, two), {"a": "3|3|"}, "recover of another client after that")


async def _do(
    make: Callable[[], RecoveryPointAdapter],
    name: str,
    work: Callable[[RecoveryPointAdapter], None],
) -> None:
    adapter = make()
    await adapter.recover(name)
    work(adapter)
    await adapter.close()
    await adapter.close()


async def _kept(make: Callable[[], RecoveryPointAdapter], name: str) -> dict[str, str]:
    adapter = make()
    points = list(await adapter.recover(name))
    await adapter.close()
    found = {point.sub_id: point.bookmark for point in points}
    expect(len(found), len(points), "subscriptions of the points that recover gives")
    return found
