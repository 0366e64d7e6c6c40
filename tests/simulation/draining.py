"""The end of a run for its queues: all is processed, and nothing comes back.

What is left is processed, one message after the other within a bound; then some more messages are
published, which nothing disturbs any more; then the broker starts once more, and its queues have to
be as empty as before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from haclient.errors import HAClientError
from simulation.history import Calmed, Drained
from simulation.inspection import depths_of

if TYPE_CHECKING:
    from simulation.simulator import Run

__all__ = ["drained"]

_LOOK_S: Final = 0.5
_LIVENESS_S: Final = 300.0
"""Virtual seconds within which the queues have a message less. One that nobody can process is held
for 30 after each failure, until the broker has counted six; its consumer may have no room for
another meanwhile."""

_CALM_AFTER_S: Final = 8.0  # a link that is half open misses its heartbeats
_TAIL: Final = 10
_SETTLED_FOR_S: Final = 2.0


async def drained(run: Run) -> bool:
    """Whether all queues of a run become empty and stay it; the run's failures tell of the rest."""
    if not run.plan.queues:
        return True
    if not await _empty(run):
        return False
    await trio.sleep(_CALM_AFTER_S)
    run.history.add(Calmed(trio.current_time()))
    for publisher in run.publishers.values():
        publisher.publish(_TAIL)
    if not await _empty(run):
        return False
    await _handled(run)
    run.history.add(Drained(trio.current_time()))
    await _restarted(run)
    return True


async def _empty(run: Run) -> bool:
    """Wait until everything is published and processed."""
    depths: dict[str, int] = {}
    lowest = math.inf
    with trio.move_on_after(_LIVENESS_S) as scope:
        while True:
            await trio.sleep(_LOOK_S)
            if all(each.done for each in run.publishers.values()):
                depths = await _depths(run)
                left = sum(depths.values())
                if depths and not left:
                    return True
                if depths and left < lowest:
                    lowest = left
                    scope.deadline = trio.current_time() + _LIVENESS_S
    for name, depth in depths.items():
        if depth:
            complaint = f"liveness: {depth} messages stay in {name} for {_LIVENESS_S:g} s"
            run.outcome.failures.append(complaint)
    if not any(depths.values()):
        run.outcome.failures.append("liveness: nobody says whether the queues are empty")
    return False


async def _handled(run: Run) -> None:
    """Wait until consumers have nothing left: what is delivered at most once is in no queue."""
    seen = -1
    with trio.move_on_after(_LIVENESS_S):
        while seen != len(run.history.facts):
            seen = len(run.history.facts)
            await trio.sleep(_SETTLED_FOR_S)


async def _depths(run: Run) -> dict[str, int]:
    try:
        return await depths_of(run.plan.brokers[0])
    except HAClientError:  # it is just being restarted
        return {}


async def _restarted(run: Run) -> None:
    """Restart the broker: its queues are still empty, and nobody gets anything from them."""
    node = run.nodes[run.plan.brokers[0]]
    node.crash(power=False, down_s=0.1)
    await trio.sleep(_LOOK_S)
    depths: dict[str, int] = {}
    with trio.move_on_after(_LIVENESS_S):
        while not depths:
            await trio.sleep(_LOOK_S)
            depths = await _depths(run)
    await trio.sleep(_SETTLED_FOR_S)
    if not depths or any(depths.values()):
        run.outcome.failures.append(f"ended: after a restart the queues hold {depths}")
