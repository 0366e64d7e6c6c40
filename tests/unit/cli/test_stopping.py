"""Signals end the work at a safe point, in a process of its own kind of thread: the main one."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from haclient.cli.stopping import run_stoppable


def unreachable(number: int) -> int:
    raise AssertionError(f"nothing was stopped by {number}")


def test_work_that_ends_gives_its_own_code() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert run_stoppable(work, unreachable) == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_work_and_says_which_it_was(number: int) -> None:
    ended: list[str] = []

    async def work() -> int:
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            ended.append("in order")

    assert run_stoppable(work, lambda number: number + 100) == number + 100
    assert ended == ["in order"]


def test_work_that_finishes_in_spite_of_a_signal_is_done() -> None:
    async def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        return 0

    assert run_stoppable(work, unreachable) == 0


def test_an_error_of_the_work_leaves_it() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        raise ValueError("mine")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="mine")):
        run_stoppable(work, unreachable)
