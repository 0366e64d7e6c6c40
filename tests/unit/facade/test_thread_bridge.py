"""Calls from threads that block into a client's thread, and callbacks in worker threads."""

from __future__ import annotations

import _thread
import asyncio  # noqa: TID251  # a thread that runs it is refused
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from time import monotonic  # noqa: TID251  # no clock of trio runs in the main thread
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest
import trio

from haclient.errors import DisconnectedError, UsageError
from haclient.facade import thread_bridge
from haclient.facade.thread import Bridge
from haclient.facade.thread_bridge import BlockingThread, LockWaiter, refuse_event_loop
from haclient.transport.message_queue import ShuttingDown
from haclient.transport.tasks import NeverCalled

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0
Callback = Callable[..., Awaitable[object]]


@asynccontextmanager
async def nothing() -> AsyncGenerator[None]:
    yield


@pytest.fixture
def thread() -> Generator[BlockingThread]:
    made, entered = BlockingThread("a"), threading.Event()
    made.start(nothing(), entered.set)
    assert entered.wait(LIMIT_S)
    yield made
    made.stop()
    made.join()


async def name_of_thread() -> str:
    await trio.lowlevel.checkpoint()
    return threading.current_thread().name


async def fail() -> None:
    await trio.lowlevel.checkpoint()
    raise DisconnectedError("no")


def callback(function: object, thread: BlockingThread) -> Callback:
    return cast("Callback", thread.wrap(function))


def test_a_call_runs_in_the_thread_of_the_client_and_returns_or_raises(
    thread: BlockingThread,
) -> None:
    assert thread.wait(name_of_thread, "name") == "haclient a"
    assert thread.now(lambda: threading.current_thread().name, "name") == "haclient a"
    with pytest.raises(DisconnectedError, match="no"):
        thread.wait(fail, "failing")
    with pytest.raises(ZeroDivisionError):
        thread.now(lambda: 1 // 0, "failing")


def test_a_signal_that_does_not_interrupt_a_wait_is_noticed_soon(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes in the moment before the wait does not; neither does `interrupt_main`."""
    monkeypatch.setattr(thread_bridge, "_SIGNAL_CHECK_S", 0.05)
    ended = threading.Event()

    async def wait() -> None:
        try:
            threading.Timer(0.02, _thread.interrupt_main).start()
            await trio.sleep(LIMIT_S)
        finally:
            ended.set()

    began = monotonic()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.wait(wait, "waiting")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set(), "the call was cancelled"
    assert monotonic() - began < LIMIT_S / 2


class InterruptedToken:
    """A token of trio in whose first call an interrupt comes."""

    def __init__(self, token: trio.lowlevel.TrioToken, *, after: bool) -> None:
        self._token = token
        self._after = after
        self._is_interrupted = False

    def run_sync_soon(self, function: Callable[..., object], *arguments: object) -> None:
        if self._is_interrupted:
            self._token.run_sync_soon(function, *arguments)
            return
        self._is_interrupted = True
        if self._after:
            self._token.run_sync_soon(function, *arguments)
        raise KeyboardInterrupt


@pytest.mark.parametrize("is_submitted", [True, False])
def test_a_call_that_is_interrupted_while_it_is_submitted_has_ended(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch, *, is_submitted: bool
) -> None:
    busy, begun, ended = threading.Event(), list[bool](), list[bool]()

    async def work() -> None:
        begun.append(True)
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    token = thread._token
    assert token is not None
    token.run_sync_soon(busy.wait, LIMIT_S)  # so the call cannot have ended by chance
    threading.Timer(0.05, busy.set).start()
    monkeypatch.setattr(thread, "_token", InterruptedToken(token, after=is_submitted))
    with pytest.raises(KeyboardInterrupt):
        thread.wait(work, "work")
    monkeypatch.undo()
    assert busy.is_set() or not is_submitted
    assert begun == ended


def test_a_thread_is_notified_or_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_bridge, "_SIGNAL_CHECK_S", 0.02)
    waiter = LockWaiter()

    async def wait() -> list[bool]:
        waits = [await waiter.wait(limit_s) for limit_s in (0, 0.05)]
        waiter.notify()
        return [*waits, await waiter.wait(0), await waiter.wait()]

    assert trio.run(wait) == [False, False, True, True]


def test_a_property_is_read_although_the_client_ends_by_an_error_at_that_moment(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge, ended = Bridge(7, thread), DisconnectedError("gave up")

    def ends(*_: object) -> None:
        raise ended

    with monkeypatch.context() as patched:
        patched.setattr(thread, "now", ends)
        with pytest.raises(DisconnectedError):
            bridge.read(lambda: bridge.inner + 1, "number")  # not by the client's end
        patched.setattr(thread, "error", ended)
        assert bridge.read(lambda: bridge.inner + 1, "number") == 8
    assert Bridge(7, BlockingThread("b")).read(lambda: 8, "number") == 8


def test_an_interrupt_just_after_the_end_of_a_call_undoes_it_and_waits_for_nothing_else(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[str] = []
    wait = LockWaiter.wait

    async def undo(name: str) -> None:
        undone.append(name)

    async def interrupted(waiter: LockWaiter) -> bool:
        assert await wait(waiter)
        monkeypatch.undo()  # the call that undoes the other is not interrupted
        raise KeyboardInterrupt

    monkeypatch.setattr(LockWaiter, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.wait(name_of_thread, "name", undo=undo)
    assert undone == ["haclient a"]
    assert thread.wait(name_of_thread, "name") == "haclient a"


def test_a_thread_that_runs_an_event_loop_is_refused(thread: BlockingThread) -> None:
    async def in_loop() -> None:
        thread.wait(name_of_thread, "flush")

    with pytest.raises(UsageError, match=r"^flush of haclient.blocking .* trio: use haclient.HA"):
        trio.run(in_loop)
    with pytest.raises(UsageError, match=r"^flush of .* asyncio: use haclient.aio.HAClient"):
        asyncio.run(in_loop())
    with pytest.raises(UsageError, match="callback that runs in the client's own thread"):
        thread.now(lambda: refuse_event_loop("flush", thread), "test")
    assert thread.now(lambda: thread.now(lambda: 7, "inner"), "outer") == 7


def test_a_cell_of_a_notebook_may_block_its_loop(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", SimpleNamespace, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    async def cell() -> str:
        return thread.wait(name_of_thread, "name")

    assert asyncio.run(cell()) == "haclient a"


def test_a_callback_runs_in_a_worker_thread_which_is_known_meanwhile(
    thread: BlockingThread,
) -> None:
    known: list[object] = []

    def work(number: int) -> int:
        known.append(thread.callbacks[threading.current_thread()])
        return number + 1

    async def call() -> tuple[object, trio.lowlevel.Task]:
        return await callback(work, thread)(7), trio.lowlevel.current_task()

    returned, task = thread.wait(call, "call")
    assert (returned, known) == (8, [task])
    assert thread.callbacks == {}
    assert callback(work, thread) == callback(work, thread)
    assert thread.wrap("raise") == "raise"


def test_a_cancelled_callback_ends_the_call_that_it_makes(thread: BlockingThread) -> None:
    waits, ended = threading.Event(), list[str]()

    async def wait_for_ever() -> None:
        waits.set()
        await trio.sleep_forever()

    def work() -> None:
        with pytest.raises(DisconnectedError, match="waiting was cancelled"):
            thread.wait(wait_for_ever, "waiting")
        ended.append(thread.now(lambda: "a call that does not wait", "now"))

    async def call_and_cancel() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(callback(work, thread))
            await trio.to_thread.run_sync(waits.wait, LIMIT_S)
            nursery.cancel_scope.cancel()

    thread.wait(call_and_cancel, "call")
    assert ended == ["a call that does not wait"]


@pytest.mark.parametrize("ends", [False, True])
def test_a_callback_for_which_no_thread_can_be_started_has_not_failed(
    thread: BlockingThread, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """At the end of the program, when Python starts none, the client closes in order."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def call() -> object:
        with monkeypatch.context() as patched:
            patched.setattr("trio._threads.start_thread_soon", refuse)
            patched.setattr(threading.main_thread(), "is_alive", lambda: not ends)
            return await callback(print, thread)()

    with pytest.raises(ShuttingDown if ends else NeverCalled, match="can't start new thread"):
        thread.wait(call, "call")


def test_a_callback_is_a_plain_function(thread: BlockingThread) -> None:
    async def later() -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"is a plain function, and .*later.* is a coroutine"):
        thread.wrap(later)
    disguised = callback(lambda: later(), thread)  # noqa: PLW0108  # a plain one
    with pytest.raises(UsageError, match="is a plain function"):
        thread.wait(disguised, "call")
