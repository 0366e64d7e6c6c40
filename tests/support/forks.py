"""Calls in a forked process."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress

from haclient.errors import UsageError
from support.process import LIMIT_S

_FAILED = 255  # an exit code that no count reaches


def refusals(*calls: Callable[[], object]) -> int:
    """How many calls are refused in a process that is forked here; a call that hangs ends it."""
    child = os.fork()
    if child == 0:  # only `os._exit` from here: the test's fixtures belong to the other process
        signal.alarm(int(LIMIT_S))
        refused, is_done = 0, False
        try:
            for call in calls:
                with suppress(UsageError):
                    call()
                    continue
                refused += 1
            is_done = True
        except BaseException:  # what a call has raised, such as a failed assertion
            traceback.print_exc()
        finally:
            os._exit(refused if is_done else _FAILED)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != _FAILED, "a call has failed in the forked process: see stderr"
    return code
