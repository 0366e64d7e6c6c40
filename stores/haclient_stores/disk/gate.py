"""A door between the one thread that works and another that needs everything to stand still.

A lock around each discard would cost more than the discard. Instead the worker says that it is busy
and then looks whether the gate is closed; whoever closes it does so first and then waits until
nobody is busy. Python threads see each other's assignments in order, so one of the two always
notices the other.

The worker's side is written out where it is used::

    gate.busy = True
    if gate.closed:
        gate.wait()
    try:
        ...
    finally:
        gate.busy = False
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Gate"]

_LOOK_AGAIN_S: Final = 0.0001  # an operation takes microseconds


class Gate:
    """See the module.

    Attributes:
        busy: The worker is in the middle of something.
        closed: The worker has to wait.
    """

    __slots__ = ("_lock", "_never", "busy", "closed")

    def __init__(self) -> None:
        self.busy = False
        self.closed = False
        self._lock = threading.Lock()
        self._never = threading.Event()

    def wait(self) -> None:
        """The worker found the gate closed: return, busy again, when it is open."""
        while self.closed:
            self.busy = False
            with self._lock:
                pass
            self.busy = True

    @contextlib.contextmanager
    def standstill(self) -> Generator[None]:
        """Nothing is in the middle of anything inside this block."""
        with self._lock:
            self.closed = True
            try:
                while self.busy:
                    self._never.wait(_LOOK_AGAIN_S)
                yield
            finally:
                self.closed = False
