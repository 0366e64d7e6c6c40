from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.errors import UsageError
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
        events.tell("later", 1)
        events.tell("now", 2)
        events.tell("absent", 3)
        await wait_all_tasks_blocked()
        events.tell("now", 4)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert told == [("later", 1), ("now", 2), ("now", 4)]
    assert "now" in events
    assert "absent" not in events


async def test_an_error_of_a_callback_is_the_clients() -> None:
    def fail() -> None:
        raise UsageError("mine")

    events = Events(fail=fail)
    events.tell("fail")
    with pytest.raises(UsageError, match="mine"):
        await events.run()


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
            events.tell("slow", number)
        assert events.full
        drained = trio.Event()

        async def wait() -> None:
            await events.drained()
            drained.set()

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        go_on.release()
        await wait_all_tasks_blocked()
        assert not events.full
        assert not drained.is_set()
        go_on.release()
        go_on.release()
        await drained.wait()
        assert len(told) == 3
        assert events.consumer is not None
        nursery.cancel_scope.cancel()
