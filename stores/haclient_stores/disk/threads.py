"""The one thread that uses a store, and the threads that may sync or prune it concurrently.

A store has no lock around each append and each discard: a lock would cost as much as the operation
itself. Instead one thread owns the store (`ThreadBinding`). A thread that syncs or prunes blocks
the owner for short moments (`Gate`), or locks the few slow points that both use.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from threading import get_ident
from typing import Final

from haclient_stores.errors import UsageError

_LOOK_AGAIN_S: Final = 0.0001  # an operation takes microseconds


class ThreadBinding:
    """Binds a store to the thread that first uses it, which need not be the one that made it.

    Every call but `sync`, `prune`, `close` and the properties begins with `check`. A hot method
    writes out the comparison, which costs some 30 ns::

        if get_ident() != self._thread.ident:
            self._thread.check()

    Args:
        store: The store, for the error: its path or what it is.

    Attributes:
        ident: `threading.get_ident()` of the thread; 0 before the first use of the store.
    """

    __slots__ = ("_bound", "_store", "ident")

    def __init__(self, store: object) -> None:
        self._store = store
        self._bound: dict[str, threading.Thread] = {}
        self.ident = 0

    def check(self) -> None:
        """Bind the store to the calling thread, or refuse the call.

        Raises:
            UsageError: Another thread has used the store before. Nothing has changed.
        """
        if self.ident == get_ident():
            return
        caller = threading.current_thread()
        # Two threads may call for the first time at once: `setdefault` lets one of them win.
        bound = self._bound.setdefault("thread", caller)
        if bound is not caller:
            raise UsageError(
                f"{self._store}: used by the thread {bound.name!r}, and called by {caller.name!r}: "
                "a store belongs to the thread that first uses it, and others may only sync, prune "
                "and close it; call trio.from_thread.run_sync, or give each thread a store"
            )
        self.ident = get_ident()

    def check_opening(self) -> None:
        """Check like `check`, without binding: who makes a client need not be who runs it.

        Raises:
            UsageError: Another thread has used the store before.
        """
        if self._bound:
            self.check()

    def release(self) -> None:
        """Let the next thread that uses the store have it: the store was closed."""
        self._bound.clear()
        self.ident = 0


class Gate:
    """A lock whose holder waits for a worker that takes no lock.

    The worker sets `busy` and then reads `closed`; the other thread sets `closed` and then waits
    until `busy` is false. Threads see each other's assignments in order, so at least one of the two
    notices the other.

    The worker's side is written out where it is used::

        gate.busy = True
        if gate.closed:
            gate.wait()
        try:
            ...
        finally:
            gate.busy = False

    Attributes:
        busy: The worker is inside an operation.
        closed: The worker has to wait.
    """

    __slots__ = ("_lock", "_never", "busy", "closed")

    def __init__(self) -> None:
        self.busy = False
        self.closed = False
        self._lock = threading.Lock()
        self._never = threading.Event()

    def wait(self) -> None:
        """Called by the worker that found the gate closed; returns, busy again, when it is open."""
        while self.closed:
            self.busy = False
            with self._lock:  # held by the other thread until it opens the gate
                pass
            self.busy = True

    @contextlib.contextmanager
    def standstill(self) -> Generator[None]:
        """Inside this block the worker is inside no operation, and begins none."""
        with self._lock:
            self.closed = True
            try:
                while self.busy:
                    self._never.wait(_LOOK_AGAIN_S)
                yield
            finally:
                self.closed = False
