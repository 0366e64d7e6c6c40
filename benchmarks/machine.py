"""Where a process runs: pinned to one core, so that client and server do not share one."""

from __future__ import annotations

import os
import platform
import sys

__all__ = ["CLIENT_CORE", "SERVER_CORE", "describe", "pin"]

CLIENT_CORE = 0
SERVER_CORE = 1


def pin(core: int) -> bool:
    """Keep this process on one core; `False` where the system cannot or has too few."""
    if not hasattr(os, "sched_setaffinity") or core not in os.sched_getaffinity(0):
        return False
    os.sched_setaffinity(0, {core})
    return True


def describe() -> dict[str, str | int | float]:
    """The machine of a run, to be kept with its figures."""
    return {
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count() or 0,
        "load_at_start": round(os.getloadavg()[0], 2),
    }
