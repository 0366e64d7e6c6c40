"""When leases are extended while handlers are at work."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from typing_extensions import override

from haclient.protocol.messages import Message, MessageLease
from haclient.transport.tasks import open_nursery
from haclient.workers.message_runner import LeaseWatch
from haclient_stores.logs import logger_of
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class NotedLease(MessageLease):
    """A lease that notes how it is extended."""

    def __init__(self, ends_at: float) -> None:
        self.extended: list[tuple[str, float, float]] = []
        self._ends_at = ends_at

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return True

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        raise AssertionError

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        self.extended.append((message.text, seconds, trio.current_time()))

    @override
    def deadline(self, message: Message, /) -> float | None:
        return self._ends_at


@pytest.mark.row("QC13")
async def test_leases_are_extended_in_the_middle() -> None:
    now = trio.current_time()
    lease = NotedLease(ends_at=now + 10)
    first, second = (
        Message(topic="work", bookmark=f"7|{n}|", data=data, lease=lease, lease_period="10s")
        for n, data in enumerate((b"a", b"b"), 1)
    )
    without_end = Message(topic="work", bookmark="7|9|", lease=lease)

    async def handle(message: Message, *, after_s: float, for_s: float) -> None:
        await trio.sleep(after_s)

        async def work(_: Message) -> None:
            await trio.sleep(for_s)

        await watch.call(work, message)

    async with open_nursery() as nursery:
        watch = LeaseWatch(extend_s=60, cancels=False, log=logger_of(__name__))
        nursery.start_soon(watch.run)
        async with open_nursery() as handling:
            handling.start_soon(partial(handle, first, after_s=4, for_s=4))
            handling.start_soon(partial(handle, second, after_s=5, for_s=33))
            handling.start_soon(partial(handle, without_end, after_s=5, for_s=33))
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert [text for text, _, _ in lease.extended] == ["a", "b", "b"]
    assert [at - now for _, _, at in lease.extended] == pytest.approx([7, 7.5, 37.5])
