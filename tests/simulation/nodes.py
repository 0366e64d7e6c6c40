"""Nodes: machines with a disk and a clock, and the processes that run on them one after the other.

A crash is exact. At its instant the process is declared dead and its machine gets a new disk: the
image of the old one as a kill or a loss of power leaves it. The connections end. Only then are the
tasks cancelled; whatever they still do until they notice is done to a disk that nobody reads, over
connections that are gone, and is not written into the history.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

import trio

from haclient.options import wall_clock
from haclient.transport.links.memory_network import origin
from haclient.transport.tasks import unwrapped
from simulation.disk import SimulatedDisk
from simulation.wires import Wires

__all__ = ["EPOCH_US", "Life", "Node", "Program"]

EPOCH_US: Final = 1_700_000_000_000_000
"""The wall clock when a simulation begins."""

_SKEW_LIMIT_US: Final = 1_500_000
# A machine boots for longer than what it has sent travels: else a late logon of the dead process
# takes the name of the client from the next one.
_BOOT_S: Final = 0.5
_ENDING_LIMIT_S: Final = 30.0  # virtual; leaving a client takes at most a drain and a timeout


class Life:
    """One process of a node.

    Attributes:
        number: The how manieth process of its node it is, from 1.
        began_at: When it began, in virtual seconds.
        alive: Whether it has not crashed yet.
        disk: The disk as this process sees it.
    """

    def __init__(self, number: int, disk: SimulatedDisk) -> None:
        self.number = number
        self.began_at = trio.current_time()
        self.alive = True
        self.disk = disk
        self.scope = trio.CancelScope()
        self.over = trio.Event()

    async def stop_if_dead(self) -> None:
        """Tasks of a crashed process do nothing more: here they wait for their cancellation."""
        if not self.alive:
            await trio.sleep_forever()


class Program(Protocol):
    """What a node runs.

    Attributes:
        numbers_from_clock: Whether a clock that is set back between two of its processes would
            make it use numbers twice.
    """

    numbers_from_clock: bool = False

    async def run(self, life: Life) -> None:
        """Run until cancelled."""

    def crashed(self, *, power: bool) -> None:
        """The process has crashed at this instant; called before anything is torn down."""


class Node:
    """One machine.

    Attributes:
        skew_us: By how much its clock is wrong, always.
        stepped_us: By how much more it is wrong for now.
        crashes: How many of its processes have crashed.
        complaints: Processes that ended by themselves without a fault to blame, or did not end.
        backup: An older image of its disk; empty if none was taken.
    """

    def __init__(
        self,
        name: str,
        program: Program,
        *,
        wires: Wires,
        chance: Random,
        trace: Callable[[str], None],
    ) -> None:
        self.name = name
        self.program = program
        self.disk = SimulatedDisk()
        self.backup = SimulatedDisk()
        self.skew_us = self.stepped_us = 0
        self.crashes = 0
        self.complaints: list[str] = []
        self.life: Life | None = None
        self._lives = 0
        self._wires = wires
        self._chance = chance
        self._trace = trace
        self._down_until = self._booted_at = 0.0
        self._back = trio.Event()

    def clock_us(self) -> int:
        """This machine's wall clock."""
        return EPOCH_US + int(trio.current_time() * 1_000_000) + self.skew_us + self.stepped_us

    def set_clock(self, by_s: float) -> None:
        """Its clock jumps by seconds, within what the overlap allows for.

        Those who number from the clock are not set back: their next process would be, too.
        """
        by_us = int(by_s * 1_000_000)
        if by_us > 0 or not self.program.numbers_from_clock:
            self.skew_us = max(-_SKEW_LIMIT_US, min(_SKEW_LIMIT_US, self.skew_us + by_us))

    def _set_clock_right(self) -> None:
        """A process may begin with a clock that is far behind, if it takes no numbers from it."""
        self.stepped_us = 0 if self.program.numbers_from_clock else min(0, self.stepped_us)

    @property
    def up(self) -> bool:
        """Whether a process runs."""
        return self.life is not None and self.life.alive

    # -- faults -------------------------------------------------------------

    def crash(self, *, power: bool, down_s: float) -> None:
        """The process is killed, or the machine loses its power, now."""
        self._down_until = max(self._down_until, trio.current_time() + down_s)
        life = self.life
        if life is None or not life.alive:
            return
        self._trace(f"{self.name} {'loses power' if power else 'is killed'}")
        life.alive = False
        self.crashes += 1
        self.program.crashed(power=power)
        disk = life.disk
        self.disk = disk.after_power_loss(self._chance) if power else disk.after_kill()
        if power:
            self._booted_at = trio.current_time() + _BOOT_S
            self._wires.go_dark(self.name)
        else:
            self._wires.reset(self.name)
        life.over.set()
        life.scope.cancel()

    def take_backup(self) -> None:
        """Copy the disk as it is now, as a snapshot of the file system does."""
        disk = self.disk if self.life is None or not self.life.alive else self.life.disk
        self.backup = disk.after_kill()

    def restore(self, *, down_s: float) -> None:
        """Lose the disk; the next process finds the last backup, or an empty disk without one."""
        self.crash(power=False, down_s=down_s)
        self.disk = self.backup.after_kill()

    def come_back(self) -> None:
        """Start now, or once the machine has booted, however long it was to be down."""
        self._down_until = min(self._down_until, self._booted_at)
        self._back.set()

    # -- life ---------------------------------------------------------------

    async def supervise(self) -> None:
        """Run one process after the other; never returns."""
        origin.set(self.name)
        wall_clock.set(self.clock_us)
        while True:
            while trio.current_time() < self._down_until:
                self._back = trio.Event()
                with trio.move_on_at(self._down_until):
                    await self._back.wait()
            self._wires.light_up(self.name)
            self._set_clock_right()
            self._lives += 1
            self.life = Life(self._lives, self.disk)
            self._trace(f"{self.name} starts as process {self._lives}")
            await self._run(self.life)

    async def _run(self, life: Life) -> None:
        watch = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, life, watch)
            error = await _error_of(self.program.run, life)
            watch.cancel()
        if not life.alive:
            return
        met = sum(life.disk.failures.values())
        self._trace(f"{self.name} ends: {type(error).__name__}: {error}")
        if not met:
            self.complaints.append(f"crash: {self.name} ended by itself: {error!r}")
        life.alive = False  # a process that ends by a failed disk is killed by it
        self.crashes += 1
        self.program.crashed(power=False)
        self.disk = life.disk.after_kill()
        self._down_until = max(self._down_until, trio.current_time() + 0.5)

    async def _watch(self, life: Life, scope: trio.CancelScope) -> None:
        """A dead process has to be gone soon."""
        with scope:
            await life.over.wait()
            await trio.sleep(_ENDING_LIMIT_S)
            self.complaints.append(f"task left: {self.name} does not end after its crash")


async def _error_of(run: Callable[[Life], Awaitable[None]], life: Life) -> BaseException | None:
    """Run a process to its end; what ended it, if that was an error."""
    try:
        with life.scope:
            await run(life)
    except Exception as error:
        if isinstance(error, BaseExceptionGroup):
            return unwrapped(error)
        return error
    return None
