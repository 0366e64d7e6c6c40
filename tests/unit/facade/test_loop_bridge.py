"""Calls from an event loop of asyncio into a client's thread, and callbacks the other way."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.facade.loop_bridge import Bridge, LoopThread, Wakeup, in_loop

LIMIT_S = 300.0
Callback = Callable[..., Awaitable[object]]


def run(main: Callable[[LoopThread], Awaitable[None]]) -> None:
    """Run a test in a loop with a thread that runs trio; one that hangs fails."""

    async def limited() -> None:
        home = LoopThread("a")
        home.loop = loop = asyncio.get_running_loop()
        entered = Wakeup(loop)
        home.thread.start(nothing(), entered.notify)
        await entered.wait()
        try:
            async with asyncio.timeout(LIMIT_S):
                await main(home)
        finally:
            home.thread.stop()
            ended = Wakeup(loop)
            home.thread.notify_ended(ended.notify)
            await ended.wait_uncancelled()
            home.thread.join()

    asyncio.run(limited())


@asynccontextmanager
async def nothing() -> AsyncGenerator[None]:
    yield


async def name_of_thread() -> str:
    await trio.lowlevel.checkpoint()
    return threading.current_thread().name


def callback(function: object, home: LoopThread) -> Callback:
    return cast("Callback", in_loop(function, home))


def test_a_property_is_read_although_the_client_ends_by_an_error_at_that_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main(home: LoopThread) -> None:
        await asyncio.sleep(0)
        bridge = Bridge("inner", home)
        ended = DisconnectedError("gave up")

        def ends(*_: object) -> None:
            raise ended

        with monkeypatch.context() as patched:
            patched.setattr(home.thread, "submit_now", ends)
            with pytest.raises(DisconnectedError):
                bridge.read(len, "length")  # not by the client's end
            patched.setattr(home.thread, "error", ended)
            assert bridge.read(len, "length") == 5

    run(main)


def test_a_call_runs_in_the_clients_thread() -> None:
    async def main(home: LoopThread) -> None:
        bridge = Bridge("inner", home)
        assert await bridge.wait(name_of_thread, "looking") == "haclient a"
        assert bridge.now(lambda: threading.current_thread().name, "looking") == "haclient a"
        assert bridge.read(lambda inner: inner.upper(), "upper") == "INNER"

    run(main)


def test_a_plain_call_from_the_clients_thread_runs_at_once() -> None:
    async def main(home: LoopThread) -> None:
        bridge = Bridge(None, home)

        async def call() -> int:
            return bridge.now(lambda: 7, "looking")

        assert await bridge.wait(call, "looking") == 7

    run(main)


def test_what_a_call_raises_reaches_its_task() -> None:
    async def main(home: LoopThread) -> None:
        async def fail() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Bridge(None, home).wait(fail, "failing")
        with pytest.raises(ZeroDivisionError):
            Bridge(None, home).now(lambda: 1 // 0, "failing")

    run(main)


def test_a_cancelled_call_is_waited_for_however_often_it_is_cancelled() -> None:
    async def main(home: LoopThread) -> None:
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
        task = asyncio.ensure_future(Bridge(None, home).wait(careful, "work", undo=undo))
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

    run(main)


def test_a_call_that_was_complete_when_it_was_cancelled_is_undone() -> None:
    async def main(home: LoopThread) -> None:
        returned = threading.Event()
        undone: list[int] = []

        async def call() -> int:
            home.thread._token.run_sync_soon(returned.set)  # type: ignore[union-attr]  # it runs
            return 7

        async def undo(result: int) -> None:
            undone.append(result)

        task = asyncio.ensure_future(Bridge(None, home).wait(call, "work", undo=undo))
        await asyncio.sleep(0)
        assert returned.wait(LIMIT_S)  # the loop stands still meanwhile
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone == [7]

    run(main)


def test_a_coroutine_that_is_closed_cancels_its_call() -> None:
    async def main(home: LoopThread) -> None:
        ended = threading.Event()

        async def forever() -> None:
            try:
                await trio.sleep_forever()
            finally:
                ended.set()

        call = Bridge(None, home).wait(forever, "work")
        call.send(None)  # it waits
        call.close()
        assert await asyncio.to_thread(ended.wait, LIMIT_S)

    run(main)


def test_a_wakeup_of_a_loop_that_was_closed_is_nothing() -> None:
    loop = asyncio.new_event_loop()
    wakeup = Wakeup(loop)
    loop.close()
    wakeup.notify()


def test_a_notification_may_come_before_the_wait() -> None:
    async def main() -> None:
        wakeup = Wakeup(asyncio.get_running_loop())
        wakeup.notify()
        await asyncio.sleep(0)
        await wakeup.wait()

    asyncio.run(main())


@pytest.mark.parametrize("plain", [True, False])
def test_a_callback_runs_in_the_loop_with_the_context_in_which_it_was_given(*, plain: bool) -> None:
    word: ContextVar[str] = ContextVar("word", default="none")

    async def main(home: LoopThread) -> None:
        word.set("given")

        def answer(number: int) -> tuple[int, str, int]:
            found = word.get()
            word.set("changed by a call")
            return number, found, threading.get_ident()

        async def answer_later(number: int) -> tuple[int, str, int]:
            await asyncio.sleep(0)
            return answer(number)

        call = callback(answer if plain else answer_later, home)
        word.set("other")
        for number in (1, 2):
            found = await Bridge(None, home).wait(lambda number=number: call(number), "calling")  # type: ignore[misc]  # a lambda's default
            assert found == (number, "given", threading.get_ident())
        assert home.callback_tasks == {}

    run(main)


def test_two_callbacks_of_one_function_are_equal_and_others_are_not() -> None:
    home = LoopThread("a")
    assert in_loop(print, home) == in_loop(print, home)
    assert in_loop(print, home) != in_loop(repr, home)
    assert in_loop("discard", home) == "discard"


@pytest.mark.parametrize("plain", [True, False])
def test_what_a_callback_raises_reaches_the_client(*, plain: bool) -> None:
    async def main(home: LoopThread) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        async def fail_later() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await Bridge(None, home).wait(callback(fail if plain else fail_later, home), "calling")

    run(main)


@pytest.mark.parametrize("plain", [True, False])
def test_an_exit_in_a_callback_ends_the_loop_and_reaches_the_client(*, plain: bool) -> None:
    reached: list[BaseException] = []

    async def main(home: LoopThread) -> None:
        def leave() -> None:
            raise SystemExit(3)

        async def leave_later() -> None:
            raise SystemExit(3)

        async def call() -> None:
            try:
                await callback(leave if plain else leave_later, home)()
            except BaseException as error:
                reached.append(error)
                raise

        await Bridge(None, home).wait(call, "calling")

    with pytest.raises(SystemExit):
        run(main)
    assert isinstance(reached[0], SystemExit)


def test_a_callback_whose_caller_is_cancelled_is_cancelled_and_waited_for() -> None:
    async def main(home: LoopThread) -> None:
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

        task = asyncio.ensure_future(Bridge(None, home).wait(callback(work, home), "calling"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["begins", "ends"]

    run(main)


def test_what_a_cancelled_callback_raises_instead_is_not_lost() -> None:
    async def main(home: LoopThread) -> None:
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
                await callback(work, home)()
            except ValueError as error:
                caught.append(error)

        task = asyncio.ensure_future(Bridge(None, home).wait(call, "calling"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [str(error) for error in caught] == ["cannot end"]

    run(main)


def test_what_a_plain_callback_raises_while_its_caller_is_cancelled_is_not_lost() -> None:
    async def main(home: LoopThread) -> None:
        scope = trio.CancelScope()

        def fail() -> None:  # blocks the loop until the cancellation is on its way there
            token = home.thread.token
            trio.from_thread.run_sync(scope.cancel, trio_token=token)
            trio.from_thread.run(wait_all_tasks_blocked, trio_token=token)
            raise ValueError("of the callback")

        async def call() -> None:
            with scope:
                await callback(fail, home)()

        with pytest.raises(ValueError, match="of the callback"):
            await Bridge(None, home).wait(call, "call")

    run(main)


def test_a_callback_that_the_application_cancels_has_failed() -> None:
    async def main(home: LoopThread) -> None:
        async def work() -> None:
            raise asyncio.CancelledError

        with pytest.raises(
            DisconnectedError, match=r"the task of the callback .*work.* was cancel"
        ):
            await Bridge(None, home).wait(callback(work, home), "calling")

    run(main)


def test_a_callback_for_a_loop_that_was_closed_fails() -> None:
    async def main(home: LoopThread) -> None:
        home.loop = asyncio.new_event_loop()
        home.loop.close()
        call = callback(print, home)
        home_of_test = LoopThread("test")
        home_of_test.thread = home.thread
        with pytest.raises(UsageError, match="the event loop of the client 'a' was closed"):
            await Bridge(None, home_of_test).wait(call, "calling")

    run(main)


def test_a_callback_in_a_loop_that_has_stopped_is_not_waited_for_when_it_is_cancelled() -> None:
    async def main(home: LoopThread) -> None:
        home.loop = stopped = asyncio.new_event_loop()
        home_of_test = LoopThread("test")
        home_of_test.thread = home.thread
        called: list[int] = []
        call = callback(lambda: called.append(1), home)
        task = asyncio.ensure_future(Bridge(None, home_of_test).wait(call, "calling"))
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # When the loop runs again, the callback that was cancelled is not begun.
        await asyncio.to_thread(stopped.run_until_complete, asyncio.sleep(0))
        stopped.close()
        assert called == []

    run(main)
