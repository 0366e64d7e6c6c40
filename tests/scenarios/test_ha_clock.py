"""Steps of the client's own clock: a replay on another server never begins too late (BS9)."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from haclient.client import HAClient
from haclient.options import wall_clock
from haclient.protocol.messages import Message
from haclient.session.resume import OVERLAP_S
from haclient_stores.bookmark import EPOCH, NOW, StartPoint, Timestamp
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering
from support.recovery import drop, entered, live, until_stable

pytestmark = [in_virtual_time, pytest.mark.row("BS9", "HA17")]

START_US = 1_700_000_000_000_000
HOUR_S = 3600.0


class Clock:
    """A machine's clock, and by how much it is wrong."""

    def __init__(self) -> None:
        self.wrong_s = 0.0
        wall_clock.set(lambda: self.right_us() + int(self.wrong_s * 1_000_000))

    def right_us(self) -> int:
        return START_US + int(trio.current_time() * 1_000_000)


def done(message: Message) -> None:
    message.discard()


async def anchor_us(
    server: Server, other: Server, *steps_s: float, bookmark: StartPoint = EPOCH
) -> tuple[int, int]:
    """The time that another server is asked for after steps of the clock, and the right one."""
    clock = Clock()
    client = HAClient(
        "ha",
        servers=[server.uri, other.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
    )
    async with entered(client, partial(live, server)) as peer:
        first, *rest = steps_s
        clock.wrong_s += first  # while it runs, before anything has happened
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", bookmark=bookmark, handler=done)
        entered_us = clock.right_us()
        if bookmark is not NOW:
            await _send(peer)
        for step_s in rest:
            await trio.sleep(30)
            clock.wrong_s += step_s
        await until_stable(peer)
        caught_up_us = clock.right_us()
        await drop(peer)
        await drop(await live(server))
        there = await live(other)
        asked = (await there.answer("subscribe")).bookmark.split(",")[-1]
        await client.disconnect()
    right_us = entered_us if bookmark is NOW else caught_up_us
    return Timestamp.parse(asked).microseconds, right_us - int(OVERLAP_S * 1_000_000)


async def _send(peer: Peer) -> None:
    await peer.publish("s", b"one", bm="7|1|")
    await peer.ack(None, "persisted", sub_id="s", bm="7|1|")
    await peer.ack(None, "completed", sub_id="s")
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("steps_s", [(HOUR_S,), (0.0, HOUR_S), (-HOUR_S, HOUR_S, 9 * HOUR_S)])
@pytest.mark.parametrize("bookmark", [EPOCH, NOW])
async def test_a_clock_that_is_set_forward_leads_to_the_right_time(
    server: Server, other: Server, steps_s: tuple[float, ...], bookmark: StartPoint
) -> None:
    asked_us, right_us = await anchor_us(server, other, *steps_s, bookmark=bookmark)
    assert -HOUR_S * 1_000_000 - 2_000_000 <= asked_us - right_us <= 0


@pytest.mark.parametrize("steps_s", [(-HOUR_S,), (0.0, -HOUR_S), (HOUR_S, -2 * HOUR_S)])
async def test_a_clock_that_is_set_back_leads_to_an_earlier_time(
    server: Server, other: Server, steps_s: tuple[float, ...]
) -> None:
    asked_us, right_us = await anchor_us(server, other, *steps_s)
    assert asked_us - right_us <= -int(HOUR_S * 1_000_000) + 2_000_000
