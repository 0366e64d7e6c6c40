from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import trio

from haclient.errors import UsageError, WorkerError
from haclient.protocol.messages import Message
from haclient.workers.process import WorkerProcess, check_picklable

pytestmark = pytest.mark.usefixtures("freed_semaphores")

LIMIT_S = 300.0  # of a test that hangs


def describe(message: Message) -> tuple[int, str, bool, str | None]:
    """What the process sees: itself, the body, whether it belongs to a client, how it started."""
    owned = message.owner is not None or message.lease is not None
    return os.getpid(), message.text, owned, multiprocessing.get_start_method(allow_none=True)


class Owner:
    def discard(self, number: int, /) -> None:
        raise AssertionError(f"nobody discards {number}")


@pytest.mark.row("MS10")
async def test_a_spawned_process_gets_a_copy_that_belongs_to_no_client() -> None:
    owner = Owner()
    message = Message(data=b"body", number=1, owner=owner)
    worker = WorkerProcess(describe)
    with trio.fail_after(LIMIT_S):
        try:
            pid, text, owned, method = await worker.call(message)
        finally:
            await worker.close(LIMIT_S)
    assert pid != os.getpid()
    assert (text, owned, method) == ("body", False, "spawn")
    assert message.owner is owner


@pytest.mark.row("MS10")
async def test_a_process_that_was_killed_while_idle_is_replaced() -> None:
    worker = WorkerProcess(describe)
    with trio.fail_after(LIMIT_S):
        try:
            await worker.start()
            killed = worker.pid
            os.kill(killed, signal.SIGKILL)
            pid, *_ = await worker.call(Message(data=b"1"))
        finally:
            await worker.close(LIMIT_S)
    assert pid != killed
    assert worker.pid == 0


@pytest.mark.row("MS10")
async def test_a_process_that_is_killed_while_it_replaces_another_one_is_replaced_too() -> None:
    worker = WorkerProcess(describe)

    async def kill_next(before: int) -> None:
        while worker.pid in {0, before}:
            await trio.lowlevel.checkpoint()
        os.kill(worker.pid, signal.SIGKILL)  # it is still importing modules

    with trio.fail_after(LIMIT_S):
        try:
            await worker.start()
            os.kill(worker.pid, signal.SIGKILL)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill_next, worker.pid)
                _, text, *_ = await worker.call(Message(data=b"1"))
        finally:
            await worker.close(LIMIT_S)
    assert text == "1"


@pytest.mark.row("MS10")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_of_the_terminal_or_a_supervisor_does_not_end_a_process(number: int) -> None:
    worker = WorkerProcess(describe)
    with trio.fail_after(LIMIT_S):
        try:
            await worker.start()
            signalled = worker.pid
            os.kill(signalled, number)
            pid, *_ = await worker.call(Message(data=b"1"))
            assert pid == signalled
        finally:
            await worker.close(LIMIT_S)


def terminate_a_program(_message: Message) -> int:
    command = [sys.executable, "-c", "input()"]  # it does not end by itself
    with subprocess.Popen(command, stdin=subprocess.PIPE) as program:
        program.terminate()
        return program.wait(LIMIT_S)


async def test_a_function_can_terminate_a_program_that_it_has_started() -> None:
    worker = WorkerProcess(terminate_a_program)
    with trio.fail_after(2 * LIMIT_S):
        try:
            assert await worker.call(Message(data=b"1")) == -signal.SIGTERM
        finally:
            await worker.close(LIMIT_S)


def terminate_a_fork(_message: Message) -> int | None:
    forked = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    forked.start()
    forked.terminate()
    forked.join(LIMIT_S)
    return forked.exitcode


async def test_a_function_can_terminate_a_process_that_it_has_forked() -> None:
    worker = WorkerProcess(terminate_a_fork)
    with trio.fail_after(2 * LIMIT_S):
        try:
            assert await worker.call(Message(data=b"1")) == -signal.SIGTERM
        finally:
            await worker.close(LIMIT_S)


def leave(message: Message) -> None:
    sys.exit(message.text)


@pytest.mark.row("MS10")
async def test_an_exit_in_a_process_is_an_error_of_the_function() -> None:
    worker = WorkerProcess(leave)
    with trio.fail_after(LIMIT_S):
        try:
            with pytest.raises(WorkerError, match=r"leave raised SystemExit\('bye'\)"):
                await worker.call(Message(data=b"bye"))
            pid = worker.pid
            with pytest.raises(WorkerError):
                await worker.call(Message(data=b"bye"))
            assert worker.pid == pid, "the process goes on"
        finally:
            await worker.close(LIMIT_S)


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    def inner(message: Message) -> None: ...

    with pytest.raises(UsageError, match=r"inner cannot be pickled"):
        check_picklable(inner)


async def test_a_process_whose_start_is_cancelled_is_killed() -> None:
    worker = WorkerProcess(str)
    with trio.move_on_after(0):
        await worker.start()
    assert worker.pid  # it still imports modules, and may never get through
    await worker.close(0)
    assert worker.pid == 0
