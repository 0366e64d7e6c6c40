"""What a client costs that only stays connected, and how long it takes to enter many subscriptions.

An idle client has a heartbeat of one second and some subscriptions; the figure is the share of a
core that its process takes. For the other row a client with a thousand subscriptions moves from one
broker to another: the figure is the time from the new connection until the last subscription is
accepted there.
"""

from __future__ import annotations

import time

import trio

from benchmarks.brokers import broker_process
from benchmarks.scenario import Scenario, Setting
from haclient import EPOCH, ConnectionState, Event, EventListener, HAClient, Message
from haclient.events import StateChanged
from haclient.stores import MemoryBookmarkStore, MemoryPublishStore

__all__ = ["SCENARIOS"]

_IDLE_S = 20.0
_HEARTBEAT_S = 1.0
_QUIET_SUBSCRIPTIONS = 10
_SUBSCRIPTIONS = 1000
_LIMIT_S = 120.0


def _client(uri: str, on_event: EventListener | None = None) -> HAClient:
    return HAClient(
        "bench",
        servers=[uri],
        publish_store=MemoryPublishStore(),
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=_HEARTBEAT_S,
        on_event=on_event,
    )


def _ignore(message: Message) -> None:
    message.discard()


async def _subscribe(client: HAClient, count: int) -> None:
    for number in range(count):
        await client.bookmark_subscribe(
            f"topic-{number}", sub_id=str(number), bookmark=EPOCH, handler=_ignore
        )


async def _idle(uri: str, seconds: float) -> float:
    async with _client(uri) as client:
        await _subscribe(client, _QUIET_SUBSCRIPTIONS)
        await trio.sleep(_HEARTBEAT_S)  # what was begun is done
        began, processor = time.perf_counter(), time.process_time()
        await trio.sleep(seconds)
        return (time.process_time() - processor) / (time.perf_counter() - began)


async def _enter_again(first: str, second: str, count: int) -> tuple[float, float]:
    times: dict[ConnectionState, float] = {}
    entered = trio.Event()

    def note(event: Event) -> None:
        if isinstance(event, StateChanged):
            times[event.state] = time.perf_counter()
            if event.state is ConnectionState.RESUBSCRIBED:
                entered.set()

    async with _client(first, note) as client:
        await entered.wait()
        await _subscribe(client, count)
        entered = trio.Event()
        processor = time.process_time()
        await client.move_to(second, timeout=_LIMIT_S)
        await entered.wait()  # listeners are called beside the connection
        seconds = times[ConnectionState.RESUBSCRIBED] - times[ConnectionState.CONNECTED]
        return seconds, time.process_time() - processor


def _idle_row(setting: Setting) -> dict[str, float]:
    with broker_process(setting) as uri:
        share = trio.run(_idle, uri, max(_HEARTBEAT_S, _IDLE_S * setting.scale))
    return {"idle client, % of a core": 100 * share}


def _entered_rows(setting: Setting) -> dict[str, float]:
    count = max(10, int(_SUBSCRIPTIONS * setting.scale))
    with broker_process(setting) as first, broker_process(setting) as second:
        seconds, processor = trio.run(_enter_again, first, second, count)
    each = _SUBSCRIPTIONS / count
    return {
        "1 000 subscriptions entered again": seconds * each,
        "of which the client's processor time": processor * each,
    }


SCENARIOS = [
    Scenario("idle", "%", _idle_row),
    Scenario("resubscribe", "s", _entered_rows),
]
