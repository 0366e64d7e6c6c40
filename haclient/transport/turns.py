"""The turn of a task that calls application code in a loop.

Tasks share one thread. A loop that calls plain functions without suspending holds up heartbeats,
acks and all other subscriptions, so it lets others run after a few milliseconds::

    turn = Turn()
    for message in messages:
        handle(message)
        if turn.now() >= turn.ends_at:
            await turn.end()
"""

from __future__ import annotations

from typing import Final

import trio

TURN_S: Final = 0.005
"""How many seconds a task may call application code before others run."""


class Turn:
    """The current turn of one task; begins when it is made.

    Attributes:
        now: The clock of the trio run; a function, so that a loop can read it fast.
        ends_at: When others have to run.
    """

    __slots__ = ("ends_at", "now")

    def __init__(self) -> None:
        self.now = trio.lowlevel.current_clock().current_time
        self.begin()

    def begin(self) -> None:
        """Begin the next turn: others have just run."""
        self.ends_at = self.now() + TURN_S

    async def end(self) -> None:
        """Let others run, and begin the next turn."""
        try:
            await trio.lowlevel.checkpoint()
        finally:  # others have run, also if this task is cancelled, which may ask once more
            self.begin()
