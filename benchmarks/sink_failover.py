"""Fail-over of a publisher between two sinks that keep nothing: what the client's side costs.

Each sink is a process; the one in use gets SIGKILL. "Logged on" and "first ack" are measured with
one publish each millisecond, waiting for its persisted ack. For the backlog the first sink is mute:
it takes a million messages and acknowledges none, so that the second gets all of them.

The sinks know nothing of each other, so the second one always lacks what the first acknowledged;
`on_publish_gap="continue"` says that this is meant.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import trio

from benchmarks.blast import TOPIC, payload
from benchmarks.ledger import Timeline
from benchmarks.pairs import Pair, free_ports
from benchmarks.scenario import Scenario, Setting
from haclient import Event, HAClient
from haclient.events import ConnectionLost, StateChanged
from haclient.stores import FilePublishStore, MemoryPublishStore

__all__ = ["SCENARIOS"]

_Store: TypeAlias = FilePublishStore | MemoryPublishStore

_KILLS = 10
_BACKLOG = 1_000_000
_PACE_S = 0.001
_BETWEEN_S = 0.1
_LIMIT_S = 60.0
_STEPS = {"logged_on": "logged on", "first message": "first ack"}


class _Watch:
    """A client's states as steps of the present fail-over."""

    def __init__(self) -> None:
        self.timeline = Timeline(0.0)
        self.first = trio.Event()

    def killed(self) -> None:
        """A server is killed with the next statement."""
        self.first = trio.Event()
        self.timeline = Timeline(time.perf_counter())

    def on_event(self, event: Event) -> None:
        """A client has reached a state, or lost its connection."""
        match event:
            case StateChanged(state=state):
                self.timeline.reached(state, time.perf_counter())
            case ConnectionLost():
                self.timeline.reached("disconnected", time.perf_counter())
            case _:
                pass

    def acknowledged(self) -> None:
        """A publish is persisted."""
        if self.timeline.message(time.perf_counter()):
            self.first.set()


def _sinks(*, mute_first: bool) -> Pair:
    ports = free_ports(2)

    def command(index: int) -> list[str]:
        mute = ["mute"] if mute_first and not index else []
        return ["benchmarks.far_end", str(ports[index]), *mute]

    return Pair(command, ports)


def _client(pair: Pair, store: _Store, watch: _Watch) -> HAClient:
    return HAClient(
        "bench",
        servers=pair.uris,
        publish_store=store,
        on_publish_gap="continue",
        on_event=watch.on_event,
    )


async def _publish_slowly(client: HAClient, watch: _Watch) -> None:
    body = payload(100)
    while True:
        sequence = await client.publish(TOPIC, body)
        assert sequence is not None
        await client.wait_persisted(sequence, timeout=_LIMIT_S)
        watch.acknowledged()
        await trio.sleep(_PACE_S)


async def _steps(pair: Pair, kills: int) -> dict[str, list[float]]:
    watch, rows = _Watch(), dict[str, list[float]]()
    client = _client(pair, MemoryPublishStore(), watch)
    async with client, trio.open_nursery() as nursery:
        nursery.start_soon(_publish_slowly, client, watch)
        for number in range(kills):
            await trio.sleep(_BETWEEN_S)
            watch.killed()
            pair.kill(number % 2)
            with trio.fail_after(_LIMIT_S):
                await watch.first.wait()
            for name, value in watch.timeline.rows("fail-over", _STEPS).items():
                rows.setdefault(name, []).append(value)
            await trio.to_thread.run_sync(pair.wait_killed, number % 2)
            await trio.to_thread.run_sync(pair.start, number % 2)
        nursery.cancel_scope.cancel()
    return rows


def _step_rows(setting: Setting) -> dict[str, list[float]]:
    with _sinks(mute_first=False) as pair:
        return trio.run(_steps, pair, max(2, int(_KILLS * setting.scale)))


async def _replayed(pair: Pair, store: _Store, count: int) -> float:
    body, watch = payload(100), _Watch()
    async with _client(pair, store, watch) as client:
        for _ in range(count):
            await client.publish(TOPIC, body)
        with trio.fail_after(_LIMIT_S):
            while store.unsent_bytes:  # noqa: ASYNC110  # nobody is told when all is sent
                await trio.sleep(_PACE_S)
        if store.unpersisted_count != count:
            raise AssertionError(
                f"{store.unpersisted_count} of {count} are unacknowledged, not all"
            )
        watch.killed()
        pair.kill(0)
        await client.publish_flush(timeout=_LIMIT_S)
        return time.perf_counter() - watch.timeline.killed_at


def _replay_row(
    name: str, store_of: Callable[[Setting], _Store], setting: Setting
) -> dict[str, float]:
    store = store_of(setting)
    try:
        with _sinks(mute_first=True) as pair:
            took = trio.run(_replayed, pair, store, max(1000, int(_BACKLOG * setting.scale)))
    finally:
        store.close()
    return {f"fail-over, backlog acked, {name}": took * 1e3}


SCENARIOS = [
    Scenario("failover", "ms", _step_rows),
    Scenario("failover", "ms", partial(_replay_row, "memory", lambda _: MemoryPublishStore())),
    Scenario(
        "failover",
        "ms",
        partial(_replay_row, "file", lambda setting: FilePublishStore(setting.fresh_path())),
    ),
]
