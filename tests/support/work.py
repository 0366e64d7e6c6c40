"""How much work code does, counted by the interpreter: the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import TraceFunction

__all__ = ["Work", "counted_calls", "counted_steps"]


class Work:
    """What a block has done so far."""

    def __init__(self) -> None:
        self.count = 0

    def note_call(self, _frame: object, event: str, _argument: object) -> None:
        """A profile function: count calls of Python's and C's functions."""
        self.count += event in {"call", "c_call"}

    def note_step(self, frame: FrameType, event: str, _argument: object) -> TraceFunction:
        """A trace function: count the instructions of each frame."""
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self.count += event == "opcode"
        return self.note_step


@contextmanager
def counted_calls() -> Generator[Work]:
    """Count the calls of this thread, whichever task makes them."""
    work, before = Work(), sys.getprofile()
    gc.disable()  # callbacks of a collection would be counted
    sys.setprofile(work.note_call)
    try:
        yield work
    finally:
        sys.setprofile(before)
        gc.enable()


@contextmanager
def counted_steps() -> Generator[Work]:
    """Count the instructions of this thread, so that loops without a call are seen, too.

    What runs at the moment is counted from its next call, or its next wait, on.
    """
    work, before = Work(), sys.gettrace()
    gc.disable()
    sys.settrace(work.note_step)
    try:
        yield work
    finally:
        sys.settrace(before)
        gc.enable()
