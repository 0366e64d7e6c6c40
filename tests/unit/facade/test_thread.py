"""One thread that runs trio: its life, its calls, and what ends them."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from haclient.errors import DisconnectedError, UsageError
from haclient.facade.thread import Call
from haclient.facade.thread_bridge import BlockingThread

LIMIT_S = 300.0


class Block:
    """A client's block that records how it was left."""

    def __init__(self, enters: Callable[[], Awaitable[object]] | None = None) -> None:
        self.left_by: list[str] = []
        self.scope = trio.CancelScope()
        self.error: Exception | None = None
        self._enters = enters

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None]:
        if self._enters is not None:
            await self._enters()
        try:
            with self.scope:
                yield
            self.check()
        except BaseException as error:
            self.left_by.append(type(error).__name__)
            raise
        else:
            self.left_by.append("")


def opened(block: AbstractAsyncContextManager[object]) -> BlockingThread:
    entered = threading.Event()
    thread = BlockingThread("a")
    thread.start(block, entered.set)
    assert entered.wait(LIMIT_S)
    return thread


def submit(
    thread: BlockingThread, function: Callable[[], Awaitable[int]]
) -> tuple[Call[int], threading.Event]:
    done = threading.Event()
    call: Call[int] = Call(done.set, "work")
    thread.submit(call, function)
    return call, done


async def forever() -> int:
    await trio.sleep_forever()
    return 0


async def seven() -> int:
    return 7


def test_a_call_returns_what_its_function_does_in_the_other_thread() -> None:
    block = Block()
    thread = opened(block())
    call, done = submit(thread, seven)
    assert done.wait(LIMIT_S)
    assert call.outcome() == 7
    assert thread.now(lambda: threading.current_thread().name, "work") == "haclient a"
    thread.stop()
    thread.join()
    assert block.left_by == [""]
    assert thread.has_ended
    assert not thread.is_running


def test_what_a_call_raises_ends_no_other_call() -> None:
    async def bad() -> int:
        raise ZeroDivisionError

    thread = opened(Block()())
    call, done = submit(thread, bad)
    assert done.wait(LIMIT_S)
    with pytest.raises(ZeroDivisionError):
        call.outcome()
    good, done = submit(thread, seven)
    assert done.wait(LIMIT_S)
    assert good.outcome() == 7
    thread.stop()
    thread.join()


def test_a_cancelled_call_is_waited_for() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def careful() -> int:
        begun.set()
        try:
            return await forever()
        finally:
            ended.set()

    thread = opened(Block()())
    call, done = submit(thread, careful)
    assert begun.wait(LIMIT_S)
    call.cancel()
    assert done.wait(LIMIT_S)
    assert ended.is_set()
    with pytest.raises(DisconnectedError, match="work was cancelled"):
        call.outcome()
    thread.stop()
    thread.join()


def test_the_end_of_the_client_ends_every_call() -> None:
    thread = opened(Block()())
    call, done = submit(thread, forever)
    thread.stop()
    assert done.wait(LIMIT_S)
    with pytest.raises(DisconnectedError, match="work: the client 'a' was closed while it waited"):
        call.outcome()
    thread.join()
    with pytest.raises(UsageError, match="work of a client that was closed"):
        submit(thread, seven)


def test_an_error_of_the_client_reaches_every_caller(caplog: pytest.LogCaptureFixture) -> None:
    block = Block()
    thread = opened(block())
    call, done = submit(thread, forever)
    block.error = error = ValueError("a handler raised")

    async def end() -> int:
        block.scope.cancel()
        return 1

    with caplog.at_level(logging.ERROR):
        submit(thread, end)
        assert done.wait(LIMIT_S)
        thread.join()
    with pytest.raises(ValueError, match="a handler raised") as raised:
        call.outcome()
    assert raised.value is error
    with pytest.raises(ValueError, match="a handler raised"):
        submit(thread, seven)
    assert "client a has ended by an error" in caplog.text


def test_the_error_of_a_client_keeps_nothing_of_the_calls_that_raise_it() -> None:
    block = Block()
    thread = opened(block())
    block.error = error = ValueError("a handler raised")
    thread.stop()
    thread.join()
    lengths: list[int] = []
    for _ in range(10):
        with pytest.raises(ValueError, match="a handler raised"):
            submit(thread, seven)
        lengths.append(len(list(traceback.walk_tb(error.__traceback__))))
    assert len(set(lengths)) == 1
    assert "check" in {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}


def test_a_call_that_would_begin_when_the_client_has_ended_is_told_why() -> None:
    for _ in range(20):  # trio runs the tasks of one step in any order
        closed: list[bool] = []
        calls: list[tuple[Call[int], threading.Event]] = []
        thread = BlockingThread("a")

        async def work(closed: list[bool] = closed) -> int:
            return len(closed)

        @asynccontextmanager
        async def block(
            closed: list[bool] = closed,
            calls: list[tuple[Call[int], threading.Event]] = calls,
            thread: BlockingThread = thread,
        ) -> AsyncGenerator[None]:
            yield
            calls.append(submit(thread, work))
            await trio.lowlevel.checkpoint()
            closed.append(True)
            raise OSError("gave up")

        entered = threading.Event()
        thread.start(block(), entered.set)
        assert entered.wait(LIMIT_S)
        thread.stop()
        thread.join()
        for call, done in calls:
            assert done.wait(LIMIT_S)
            try:
                assert call.outcome() == 0
            except OSError as error:
                assert str(error) == "gave up"  # or it returns


def test_a_block_that_cannot_be_entered_notifies_its_opener() -> None:
    async def refuse() -> None:
        raise ConnectionError("nobody there")

    thread = opened(Block(refuse)())
    thread.join()
    assert isinstance(thread.error, ConnectionError)


@pytest.mark.parametrize("end", [BlockingThread.cancel, BlockingThread.stop])
def test_an_entering_that_has_no_end_is_ended(end: Callable[[BlockingThread], object]) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        await trio.sleep_forever()

    thread = BlockingThread("a")
    thread.start(Block(wait)(), ended.set)
    assert begun.wait(LIMIT_S)
    end(thread)
    is_ended = ended.wait(LIMIT_S)
    thread.cancel()
    assert is_ended
    thread.join()
    assert thread.error is None


def test_leaving_by_an_error_does_not_drain() -> None:
    block = Block()
    thread = opened(block())
    thread.cancel()
    thread.join()
    assert block.left_by == ["Cancelled"]
    assert thread.error is None


def test_who_waits_for_the_end_is_notified_before_and_after_it() -> None:
    thread = opened(Block()())
    first, second = threading.Event(), threading.Event()
    thread.notify_ended(first.set)
    thread.stop()
    assert first.wait(LIMIT_S)
    thread.notify_ended(second.set)
    assert second.is_set()
    thread.join()


def test_a_thread_runs_once_and_only_while_it_is_open() -> None:
    thread = BlockingThread("a")
    with pytest.raises(UsageError, match="is not open"):
        submit(thread, seven)
    thread.stop()
    thread.join()  # neither does anything yet
    entered = threading.Event()
    thread.start(Block()(), entered.set)
    with pytest.raises(UsageError, match="a client runs once"):
        thread.start(Block()(), entered.set)
    assert entered.wait(LIMIT_S)
    thread.stop()
    thread.join()


@pytest.mark.parametrize("replaced", ["threading", "select", ""])
def test_a_process_whose_threads_gevent_has_replaced_is_refused(
    replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gevent = SimpleNamespace(is_module_patched=lambda name: name == replaced)
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)
    if replaced:
        with pytest.raises(
            UsageError, match=f"gevent has replaced the modules {replaced}, .*gthread"
        ):
            BlockingThread("a").start(Block()(), lambda: None)
    else:
        thread = opened(Block()())
        thread.stop()
        thread.join()
