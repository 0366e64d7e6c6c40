"""What goes wrong between one dialler and one listener, whatever carries their bytes.

A `Wire` knows its open connections and what each of them, and each to come, has to suffer. Those
who carry the bytes, a TCP proxy or an in-memory network, ask it and tell it:

* `refusing` and `barrier` before a connection is made; then `join`;
* `feed` with everything that is sent: what of it arrives, and how the connection is lost then;
* `blocked` and `slow` whenever something is to arrive; `changed` tells a connection to look again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from haclient_fake_server.testing.cutting import Lane
from haclient_fake_server.testing.faults import (
    BOTH,
    LINK_FAULTS,
    Cut,
    Direction,
    How,
    LinkFault,
    Refuse,
    Slow,
    check_fault,
)

__all__ = ["Carried", "Wire"]


class Carried(Protocol):
    """One connection, as its wire sees it."""

    @property
    def open(self) -> bool:
        """Whether anybody has an end of it."""
        ...

    @property
    def lossy(self) -> bool:
        """Whether bytes of it have disappeared, so that it cannot go on after `Heal`."""
        ...

    def lose(self, how: How) -> None:
        """Lose it now."""

    def changed(self) -> None:
        """What is blocked or slow has changed."""


class Wire:
    """The connections from one dialler, or all clients, to one listener.

    Attributes:
        blocked: Directions in which nothing arrives, and whether it is dropped rather than held.
        slow: How slow connections are.
        refusing: Whether new connections are refused.
        barrier: While anything is blocked, an event that is set when new connections may be made.
        on_cut: Called with each cut that a connection has reached.
    """

    def __init__(self) -> None:
        self.blocked: dict[Direction, bool] = {}
        self.slow = Slow()
        self.refusing = False
        self.barrier: trio.Event | None = None
        self.on_cut: Callable[[Cut], object] = self.disarm
        self._cuts: list[Cut] = []
        self._lanes: dict[Carried, dict[Direction, Lane]] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open())

    @property
    def waiting(self) -> tuple[Cut, ...]:
        """The cuts whose place no connection has reached yet."""
        return tuple(self._cuts)

    # -- for tests ------------------------------------------------------------

    def apply(self, fault: LinkFault) -> None:
        """Let it go wrong; whose connections they are is not looked at here.

        Raises:
            UsageError: It is nothing that a wire can suffer.
        """
        check_fault(fault, LINK_FAULTS)
        match fault:
            case Cut(is_now=True):
                for connection in self._open():
                    connection.lose(fault.how)
            case Cut():
                self._cuts.append(fault)
                for lanes in self._lanes.values():
                    lanes[fault.direction].arm(fault)
            case Slow():
                self.slow = fault
                self._tell()
            case Refuse():
                self.refusing = True

    def block(self, direction: Direction, *, dropped: bool = False) -> None:
        """Let nothing arrive in this direction, and no new connection be made."""
        self.blocked[direction] = dropped
        if self.barrier is None:
            self.barrier = trio.Event()
        self._tell()

    def heal(self) -> None:
        """Undo everything; connections that lost bytes are reset."""
        self.blocked.clear()
        self.slow = Slow()
        self.refusing = False
        for cut in self.waiting:
            self.disarm(cut)
        for connection in self._open():
            if connection.lossy:
                connection.lose("reset")
        self._tell()
        if self.barrier is not None:
            self.barrier.set()
            self.barrier = None

    def disarm(self, cut: Cut) -> None:
        """Wait for the place of a cut no more."""
        self._cuts = [each for each in self._cuts if each is not cut]
        for lanes in self._lanes.values():
            lanes[cut.direction].disarm(cut)

    # -- for those who carry the bytes ------------------------------------------

    def join(self, connection: Carried) -> None:
        """A connection was made."""
        self._open()
        lanes = self._lanes[connection] = {direction: Lane() for direction in BOTH}
        for cut in self._cuts:
            lanes[cut.direction].arm(cut)
        connection.changed()

    def feed(
        self, connection: Carried, direction: Direction, data: bytes
    ) -> tuple[bytes, How | None]:
        """What of these bytes arrives, and how the connection is lost after them, if it is."""
        passed, cut = self._lanes[connection][direction].feed(data)
        if cut is None:
            return passed, None
        self.on_cut(cut)
        return passed, cut.how

    def _open(self) -> list[Carried]:
        """The connections; those that nobody has any more are forgotten."""
        for connection in [each for each in self._lanes if not each.open]:
            del self._lanes[connection]
        return list(self._lanes)

    def _tell(self) -> None:
        for connection in self._open():
            connection.changed()
