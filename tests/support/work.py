"""How much work code does, counted by the interpreter: the same on every machine.

Only `counted_steps` sees a loop that makes no call; none sees what C does in one call.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import TraceFunction

__all__ = ["Way", "Work", "counted_calls", "counted_steps", "way_to"]


class Work:
    """What a block has done so far."""

    def __init__(self) -> None:
        self.count = 0

    def note_call(self, _frame: object, event: str, _argument: object) -> None:
        """A profile function: count calls of Python's and C's functions."""
        self.count += event in {"call", "c_call"}

    def note_step(self, _frame: object, event: str, _argument: object) -> TraceFunction:
        """A trace function: count the lines, again with each round of a loop in one line."""
        self.count += event == "line"
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
    """Count the lines that this thread runs, so that loops without a call are seen, too.

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


class Way:
    """The calls of our own functions until a certain one is called.

    Attributes:
        count: How many there were, that one included.
        depth: How many of them had not returned then, that one included.
    """

    def __init__(self, end: Callable[..., Any]) -> None:
        self.count = self.depth = 0
        self._end = end.__code__

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """A profile function."""
        if self.depth or event != "call" or not _is_ours(frame):
            return
        self.count += 1
        at: FrameType | None = frame if frame.f_code is self._end else None
        while at is not None:
            self.depth += _is_ours(at)
            at = at.f_back


def _is_ours(frame: FrameType) -> bool:
    is_written = not frame.f_code.co_filename.startswith("<")  # else a dataclass has made it
    return is_written and str(frame.f_globals.get("__name__")).startswith("haclient")


@contextmanager
def way_to(end: Callable[..., Any]) -> Generator[Way]:
    """Follow this thread to the first call of a function."""
    way, before = Way(end), sys.getprofile()
    sys.setprofile(way.note)
    try:
        yield way
    finally:
        sys.setprofile(before)
