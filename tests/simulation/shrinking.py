"""From a failing script to a short one: leave out steps for as long as it goes on failing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulation.plans import Plan

__all__ = ["shrink"]

_RUNS: Final = 100
"""The most runs that a shrinking may take: about a minute."""


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, runs: int = _RUNS) -> Plan:
    """A plan with as few steps as possible that still fails.

    Pieces are left out, large ones first, then smaller ones, down to single steps.

    Args:
        plan: It fails.
        fails: Runs a plan; whether it fails in the same way.
        runs: How many may be tried.
    """
    numbers = [step.number for step in plan.script]
    size = max(1, len(numbers) // 2)
    while True:
        at, shorter = 0, False
        while at < len(numbers) and runs:
            rest = numbers[:at] + numbers[at + size :]
            runs -= 1
            if fails(plan.keeping(rest)):
                numbers, shorter = rest, True
            else:
                at += size
        if not runs or (size == 1 and not shorter):
            return plan.keeping(numbers)
        size = max(1, size // 2)
