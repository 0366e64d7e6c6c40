"""Callbacks of the application are called in order, off the reading task, and cannot end it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import wait_all_tasks_blocked

from haclient.errors import DisconnectedError, UsageError
from haclient.events import (
    ConnectionMade,
    DuplicatesDropped,
    Event,
    ExceptionRaised,
    MessagesReceived,
    PublishesPersisted,
    StateChanged,
)
from haclient.protocol.messages import Message
from haclient.transport import reporter as reporter_module
from haclient.transport.reporter import Reporter


def reporter_of(listener: object = None) -> Reporter:
    reporter = Reporter("c", lambda: 0)
    if callable(listener):
        reporter.add(listener, (PublishesPersisted, DuplicatesDropped))
    return reporter


def emit(reporter: Reporter, *sequences: int) -> None:
    for sequence in sequences:
        reporter.emit(PublishesPersisted, sequence=sequence)


def number(event: Event) -> int:
    assert isinstance(event, PublishesPersisted)
    return event.sequence


@asynccontextmanager
async def running(reporter: Reporter, *, limit_s: float = 0.0) -> AsyncGenerator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run)
        yield nursery
        reporter.closing(limit_s)
        nursery.cancel_scope.cancel()


async def test_listeners_are_called_in_order_whether_plain_or_async() -> None:
    told: list[tuple[str, int]] = []

    async def later(event: Event) -> None:
        await trio.lowlevel.checkpoint()
        told.append(("later", number(event)))

    reporter = reporter_of(later)
    reporter.add(lambda event: told.append(("now", number(event))), (PublishesPersisted,))
    async with running(reporter):
        emit(reporter, 1, 2)
        reporter.emit(ConnectionMade)  # for which nobody listens
        await wait_all_tasks_blocked()
        emit(reporter, 3)
        await wait_all_tasks_blocked()
    assert told == [(who, sequence) for sequence in (1, 2, 3) for who in ("later", "now")]


@pytest.mark.row("OB7")
async def test_an_error_of_a_listener_is_logged_and_reported_and_the_next_call_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[object] = []

    def fail(event: Event) -> None:
        told.append(number(event))
        raise UsageError(f"mine {number(event)}")

    def fail_too(event: Event) -> None:
        assert isinstance(event, ExceptionRaised)
        told.append(str(event.error))
        raise ZeroDivisionError

    reporter = reporter_of(fail)
    reporter.add(fail_too, (ExceptionRaised,))
    emit(reporter, 1, 2)
    async with running(reporter):
        await wait_all_tasks_blocked()
    assert told == [1, 2, "mine 1", "mine 2"]
    assert "a listener of PublishesPersisted raised" in caplog.text
    assert "Traceback" in caplog.text
    assert caplog.text.count("a listener of ExceptionRaised raised") == 2, "not told of its own"


@pytest.mark.row("MS5")
async def test_when_listeners_are_behind_the_queue_is_full_and_the_reader_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter_module, "_CAP_BYTES", 4 * 256)
    go_on = trio.Semaphore(0)

    async def slow(_: Event) -> None:
        await go_on.acquire()

    reporter = reporter_of(slow)
    async with running(reporter) as nursery:
        emit(reporter, 1, 2, 3, 4, 5, 6)
        await wait_all_tasks_blocked()  # the first one is called
        assert reporter.calls.full
        reader = reporter.calls.reader = trio.lowlevel.ParkingLot()
        nursery.start_soon(reader.park)
        await wait_all_tasks_blocked()
        assert len(reader) == 1
        go_on.release()
        await wait_all_tasks_blocked()
        assert not reporter.calls.full
        assert (len(reader), reporter.calls.backlog) == (0, 4)


@pytest.mark.row("MS5")
async def test_the_bodies_that_wait_for_a_slow_listener_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporter_module, "_CAP_BYTES", 1000 + 2 * 256)
    go_on = trio.Semaphore(0)

    async def slow(_: Event) -> None:
        await go_on.acquire()

    reporter = reporter_of(slow)

    def drop(*sizes: int) -> None:
        messages = tuple(Message(data=bytes(size)) for size in sizes)
        reporter.emit(DuplicatesDropped, messages=messages)

    async with running(reporter):
        drop(900)
        await wait_all_tasks_blocked()  # it is called, and waits for nothing
        drop(400, 100)
        drop(500)
        assert not reporter.calls.full
        drop(1)
        assert reporter.calls.full
        go_on.release()
        await wait_all_tasks_blocked()
        assert not reporter.calls.full


@pytest.mark.row("HA20")
async def test_listeners_are_told_what_happens_while_they_are_known() -> None:
    told: list[tuple[str, int]] = []

    def first(event: Event) -> None:
        told.append(("first", number(event)))

    def second(event: Event) -> None:
        told.append(("second", number(event)))

    reporter = reporter_of()
    emit(reporter, 0)
    reporter.add(first, ())
    emit(reporter, 1)
    reporter.add(second, ())
    emit(reporter, 2, 3)
    reporter.remove(first)
    await reporter.finish()
    assert told == [("second", 2), ("second", 3)]
    with pytest.raises(UsageError, match="no such event listener"):
        reporter.remove(first)
    with pytest.raises(UsageError, match="added already"):
        reporter.add(second, (StateChanged,))
    reporter.remove(second)
    assert not reporter.wants(PublishesPersisted)


def test_messages_that_arrive_have_to_be_asked_for() -> None:
    reporter = reporter_of()
    reporter.add(print, ())
    assert reporter.wants(StateChanged)
    assert not reporter.wants(MessagesReceived)
    reporter.add(repr, (StateChanged, MessagesReceived))
    assert reporter.wants(MessagesReceived)


async def test_calls_that_were_taken_are_made_although_the_client_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[int] = []

    async def listen(event: Event) -> None:
        await trio.sleep(1)
        told.append(number(event))

    reporter = reporter_of(listen)
    emit(reporter, 1, 2)
    async with running(reporter, limit_s=5):
        await wait_all_tasks_blocked()
    assert told == [1, 2]
    assert autojump_clock.current_time() == 2


async def test_what_is_left_is_told_at_the_end_also_when_a_listener_fails() -> None:
    told: list[int] = []

    async def pick(event: Event) -> None:
        await trio.lowlevel.checkpoint()
        told.append(number(event))
        if told == [1, 2]:
            raise ZeroDivisionError

    reporter = reporter_of(pick)
    emit(reporter, 1, 2, 3)
    await reporter.finish()
    assert told == [1, 2, 3]


async def test_at_the_end_a_listener_that_misses_its_client_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def use(_: Event) -> None:
        raise DisconnectedError("the client was left")

    reporter = reporter_of(use)
    emit(reporter, 1, 2)
    await reporter.finish()
    assert caplog.text.count("used its client when that was left") == 2
