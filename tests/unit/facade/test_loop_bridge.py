"""Calls from an event loop of asyncio into a client's thread, and callbacks the other way."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import Signature, signature
from typing import Concatenate, ParamSpec, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.facade.loop_bridge import LoopThread, LoopWaiter
from haclient.facade.thread import Bridge

LIMIT_S = 300.0
P = ParamSpec("P")
Callback = Callable[..., Awaitable[object]]


def with_thread(
    test: Callable[Concatenate[LoopThread, P], Awaitable[None]],
) -> Callable[P, None]:
    """Run a test in a loop, with a thread that runs trio."""

    async def run(*arguments: P.args, **options: P.kwargs) -> None:
        thread = LoopThread("a")
        thread.loop = loop = asyncio.get_running_loop()
        entered = LoopWaiter()
        thread.start(nothing(), entered.notify)
        await entered.wait()
        try:
            await test(thread, *arguments, **options)
        finally:
            thread.loop = loop
            await thread.leave(drains=True)

    @wraps(test)
    def run_in_loop(*arguments: P.args, **options: P.kwargs) -> None:
        asyncio.run(run(*arguments, **options))

    _, *others = signature(test).parameters.values()
    run_in_loop.__signature__ = Signature(others)  # type: ignore[attr-defined]  # for pytest
    return run_in_loop


@asynccontextmanager
async def nothing() -> AsyncGenerator[None]:
    yield


async def name_of_thread() -> str:
    await trio.lowlevel.checkpoint()
    return threading.current_thread().name


def callback(function: object, thread: LoopThread) -> Callback:
    return cast("Callback", thread.wrap(function))


@with_thread
async def test_a_call_runs_in_the_clients_thread(thread: LoopThread) -> None:
    bridge = Bridge("inner", thread)
    assert await thread.wait(name_of_thread, "looking") == "haclient a"
    assert thread.now(lambda: threading.current_thread().name, "looking") == "haclient a"
    assert bridge.read(bridge.inner.upper, "upper") == "INNER"


@with_thread
async def test_what_a_call_raises_reaches_its_task(thread: LoopThread) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await thread.wait(fail, "failing")
    with pytest.raises(ZeroDivisionError):
        thread.now(lambda: 1 // 0, "failing")


@with_thread
async def test_a_cancelled_call_is_waited_for_however_often_it_is_cancelled(
    thread: LoopThread,
) -> None:
    begun, ended = threading.Event(), threading.Event()
    undone: list[int] = []

    async def careful() -> int:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(go_on.wait, LIMIT_S)
            ended.set()
        return 1

    async def undo(result: int) -> None:
        undone.append(result)

    go_on = threading.Event()
    task = asyncio.ensure_future(thread.wait(careful, "work", undo=undo))
    await asyncio.to_thread(begun.wait, LIMIT_S)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.001)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    assert undone == []  # it has not returned


@with_thread
async def test_a_call_that_was_complete_when_it_was_cancelled_is_undone(thread: LoopThread) -> None:
    returned = threading.Event()
    undone: list[int] = []

    async def call() -> int:
        thread._token.run_sync_soon(returned.set)  # type: ignore[union-attr]  # it runs
        return 7

    async def undo(result: int) -> None:
        undone.append(result)

    task = asyncio.ensure_future(thread.wait(call, "work", undo=undo))
    await asyncio.sleep(0)
    assert returned.wait(LIMIT_S)  # the loop stands still meanwhile
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == [7]


@with_thread
async def test_a_coroutine_that_is_closed_cancels_its_call(thread: LoopThread) -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    call = thread.wait(forever, "work")
    call.send(None)  # it waits
    call.close()
    assert await asyncio.to_thread(ended.wait, LIMIT_S)


def test_a_notification_may_come_before_the_wait_and_after_the_end_of_the_loop() -> None:
    async def main() -> LoopWaiter:
        waiter = LoopWaiter()
        waiter.notify()
        await asyncio.sleep(0)
        assert await waiter.wait()
        return waiter

    asyncio.run(main()).notify()


@pytest.mark.parametrize("plain", [True, False])
def test_a_callback_runs_in_the_loop_with_the_context_in_which_it_was_given(*, plain: bool) -> None:
    word: ContextVar[str] = ContextVar("word", default="none")

    async def main(thread: LoopThread) -> None:
        word.set("given")

        def answer(number: int) -> tuple[int, str, int]:
            found = word.get()
            word.set("changed by a call")
            return number, found, threading.get_ident()

        async def answer_later(number: int) -> tuple[int, str, int]:
            await asyncio.sleep(0)
            return answer(number)

        call = callback(answer if plain else answer_later, thread)
        word.set("other")
        for number in (1, 2):
            found = await thread.wait(lambda number=number: call(number), "calling")  # type: ignore[misc]  # a lambda's default
            assert found == (number, "given", threading.get_ident())
        assert thread.callbacks == {}

    with_thread(main)()


def test_two_callbacks_of_one_function_are_equal_and_others_are_not() -> None:
    thread = LoopThread("a")
    assert thread.wrap(print) == thread.wrap(print)
    assert thread.wrap(print) != thread.wrap(repr)
    assert thread.wrap("discard") == "discard"


@pytest.mark.parametrize("plain", [True, False])
@with_thread
async def test_what_a_callback_raises_reaches_the_client(
    thread: LoopThread, *, plain: bool
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    async def fail_later() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await thread.wait(callback(fail if plain else fail_later, thread), "calling")


@pytest.mark.parametrize("plain", [True, False])
def test_an_exit_in_a_callback_ends_the_loop_and_reaches_the_client(*, plain: bool) -> None:
    reached: list[BaseException] = []

    async def main(thread: LoopThread) -> None:
        def leave() -> None:
            raise SystemExit(3)

        async def leave_later() -> None:
            raise SystemExit(3)

        async def call() -> None:
            try:
                await callback(leave if plain else leave_later, thread)()
            except BaseException as error:
                reached.append(error)
                raise

        await thread.wait(call, "calling")

    with pytest.raises(SystemExit):
        with_thread(main)()
    assert isinstance(reached[0], SystemExit)


@with_thread
async def test_a_callback_whose_caller_is_cancelled_is_cancelled_and_waited_for(
    thread: LoopThread,
) -> None:
    steps: list[str] = []
    begun = asyncio.Event()

    async def work() -> None:
        steps.append("begins")
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            steps.append("ends")
            raise

    task = asyncio.ensure_future(thread.wait(callback(work, thread), "calling"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begins", "ends"]


@with_thread
async def test_what_a_cancelled_callback_raises_instead_is_not_lost(thread: LoopThread) -> None:
    begun = asyncio.Event()
    caught: list[Exception] = []

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cannot end")

    async def call() -> None:
        try:
            await callback(work, thread)()
        except ValueError as error:
            caught.append(error)

    task = asyncio.ensure_future(thread.wait(call, "calling"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [str(error) for error in caught] == ["cannot end"]


@with_thread
async def test_what_a_plain_callback_raises_while_its_caller_is_cancelled_is_not_lost(
    thread: LoopThread,
) -> None:
    scope = trio.CancelScope()

    def fail() -> None:  # blocks the loop until the cancellation is on its way there
        token = thread.token
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        trio.from_thread.run(wait_all_tasks_blocked, trio_token=token)
        raise ValueError("of the callback")

    async def call() -> None:
        with scope:
            await callback(fail, thread)()

    with pytest.raises(ValueError, match="of the callback"):
        await thread.wait(call, "call")


@with_thread
async def test_a_callback_that_returns_while_its_caller_is_cancelled_has_returned(
    thread: LoopThread,
) -> None:
    scope, returned = trio.CancelScope(), list[object]()

    def work() -> str:  # blocks the loop until the cancellation is on its way there
        token = thread.token
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        trio.from_thread.run(wait_all_tasks_blocked, trio_token=token)
        return "done"

    async def call() -> None:
        with scope:
            returned.append(await callback(work, thread)())
            returned.append(await callback(work, thread)())

    await thread.wait(call, "call")
    assert returned == ["done"]


@with_thread
async def test_a_callback_that_the_application_cancels_has_failed(thread: LoopThread) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(DisconnectedError, match=r"the task of the callback .*work.* was cancel"):
        await thread.wait(callback(work, thread), "calling")


@with_thread
async def test_a_callback_for_a_loop_that_was_closed_fails(thread: LoopThread) -> None:
    async def call() -> object:
        thread.loop = asyncio.new_event_loop()
        thread.loop.close()
        return await callback(print, thread)()

    with pytest.raises(UsageError, match="the event loop of the client 'a' was closed"):
        await thread.wait(call, "calling")


@with_thread
async def test_a_callback_in_a_loop_that_has_stopped_is_not_waited_for_when_it_is_cancelled(
    thread: LoopThread,
) -> None:
    stopped = asyncio.new_event_loop()
    called: list[int] = []

    async def call() -> object:
        thread.loop = stopped
        return await callback(lambda: called.append(1), thread)()

    task = asyncio.ensure_future(thread.wait(call, "calling"))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # When the loop runs again, the callback that was cancelled is not begun.
    await asyncio.to_thread(stopped.run_until_complete, asyncio.sleep(0))
    stopped.close()
    assert called == []
