"""Calls in a forked process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from haclient.errors import UsageError
from support.process import LIMIT_S


def refusals(*calls: Callable[[], object]) -> int:
    """How many calls are refused in a process that is forked here; a call that hangs ends it."""
    child = os.fork()
    if child == 0:  # only `os._exit` from here: the test's fixtures belong to the other process
        signal.alarm(int(LIMIT_S))
        refused = 0
        try:
            for call in calls:
                with suppress(UsageError):
                    call()
                    continue
                refused += 1
        finally:
            os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
