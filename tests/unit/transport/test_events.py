from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.messages import Message
from haclient.transport import events as events_module
from haclient.transport.events import Events


async def test_callbacks_are_called_in_order_whether_plain_or_async() -> None:
    told: list[tuple[str, int]] = []

    async def later(number: int) -> None:
        await trio.lowlevel.checkpoint()
        told.append(("later", number))

    events = Events(now=lambda number: told.append(("now", number)), later=later, absent=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        events.emit("later", 1)
        events.emit("now", 2)
        events.emit("absent", 3)
        await wait_all_tasks_blocked()
        events.emit("now", 4)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == [("later", 1), ("now", 2), ("now", 4)]
    assert "now" in events
    assert "absent" not in events


@pytest.mark.row("OB7")
async def test_an_error_of_a_callback_is_logged_and_reported_and_the_next_one_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[object] = []

    def fail(number: int) -> None:
        told.append(number)
        raise UsageError(f"mine {number}")

    def fail_too(error: Exception) -> None:
        told.append(str(error))
        raise ZeroDivisionError

    events = Events(fail=fail, exception=fail_too)
    events.emit("fail", 1)
    events.emit("fail", 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == [1, 2, "mine 1", "mine 2"]
    assert "a listener of fail raised" in caplog.text
    assert "Traceback" in caplog.text
    assert caplog.text.count("a listener of exception raised") == 2, "not told of its own error"


def event_of(nursery: trio.Nursery, events: Events) -> trio.Event:
    """An event that is set when the queue has drained."""
    drained = trio.Event()

    async def wait() -> None:
        await events.drained()
        drained.set()

    nursery.start_soon(wait)
    return drained


@pytest.mark.row("MS5")
async def test_when_callbacks_are_behind_the_queue_says_full_until_half_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "_CAP", 4)
    go_on = trio.Semaphore(0)
    told: list[int] = []

    async def slow(number: int) -> None:
        await go_on.acquire()
        told.append(number)

    events = Events(slow=slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        for number in range(5):
            events.emit("slow", number)
        assert events.full
        drained = event_of(nursery, events)
        await wait_all_tasks_blocked()
        go_on.release()
        await wait_all_tasks_blocked()
        assert not events.full
        assert not drained.is_set()
        go_on.release()
        go_on.release()
        await drained.wait()
        assert len(told) == 3
        assert events.consumers.last is not None
        nursery.cancel_scope.cancel()


@pytest.mark.row("HA20")
async def test_listeners_are_told_what_happens_while_they_are_known() -> None:
    told: list[tuple[str, int]] = []

    def first(number: int) -> None:
        told.append(("first", number))

    def second(number: int) -> None:
        told.append(("second", number))

    events = Events()
    events.emit("now", 0)
    events.add("now", first)
    events.emit("now", 1)
    events.add("now", second)
    events.emit("now", 2)
    events.emit("now", 3)
    events.remove("now", first)
    assert "now" in events
    await events.finish()
    assert told == [("second", 2), ("second", 3)]
    with pytest.raises(UsageError, match="no such now listener"):
        events.remove("now", first)
    with pytest.raises(UsageError, match="added already"):
        events.add("now", second)
    events.remove("now", second)
    assert "now" not in events


async def test_what_is_left_is_told_at_the_end_also_when_a_callback_fails() -> None:
    told: list[int] = []

    async def pick(number: int) -> None:
        await trio.lowlevel.checkpoint()
        told.append(number)
        if number == 2:
            raise ZeroDivisionError

    events = Events(pick=pick)
    for number in (1, 2, 3):
        events.emit("pick", number)
    await events.finish()
    assert told == [1, 2, 3]


async def test_at_the_end_a_callback_that_misses_its_client_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[int] = []

    def use(number: int) -> None:
        told.append(number)
        raise DisconnectedError("the client was left")

    events = Events(use=use)
    events.emit("use", 1)
    events.emit("use", 2)
    await events.finish()
    assert told == [1, 2]
    assert caplog.text.count("the client was left") == 2


@pytest.mark.row("MS5")
async def test_the_bodies_that_wait_for_a_slow_callback_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events_module, "_CAP_BYTES", 1000)
    go_on = trio.Semaphore(0)

    async def slow(_: Message, __: str) -> None:
        await go_on.acquire()

    events = Events(slow=slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        events.emit("slow", Message(data=bytes(900)), "first")
        await wait_all_tasks_blocked()  # it is called, and waits for nothing
        for _ in range(10):
            events.emit("slow", Message(data=bytes(100)), "a reason")
        assert not events.full
        events.emit("slow", Message(data=b"x"), "a reason")
        assert events.full
        drained = event_of(nursery, events)
        for _ in range(6):
            go_on.release()
            await wait_all_tasks_blocked()
        assert not drained.is_set()
        go_on.release()
        await wait_all_tasks_blocked()
        assert drained.is_set()
        nursery.cancel_scope.cancel()
