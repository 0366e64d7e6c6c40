"""Fail-over between two reference brokers that replicate synchronously, both ways.

Each broker is a process with its log on disk. A publisher that sends at an even rate and a
subscriber with a bookmark file share this process, so what the publisher does for its own fail-over
is part of the figure. The broker in use gets SIGKILL in mid-stream; the figure is the time until
the subscriber is handed the first message from the other one, behind those of the last seconds
that come again and are filtered. Then the killed one is started again on its port and its data, and
a persisted ack for something that was published after that says that it has caught up: the next
kill may follow.

Every message is numbered. One that is lost, comes twice or out of order ends the run.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from benchmarks.blast import SUB_ID, TOPIC
from benchmarks.ledger import Ledger, Timeline, body_of, number_in
from benchmarks.pairs import Pair, free_ports
from benchmarks.scenario import Scenario, Setting
from haclient import EPOCH, Event, HAClient
from haclient.events import ConnectionLost, StateChanged
from haclient.stores import FilePublishStore, LoggedBookmarkStore

__all__ = ["SCENARIOS"]

_NAMES = ("east", "west")
_BETWEEN_S = 0.2
_WARM_UP_S = 5.0
"""As long as the replay's overlap, so that it has its full length at the first kill as well."""
_LIMIT_S = 60.0
_BACKLOG_S = 10
_STEPS = {"disconnected": "noticed", "logged_on": "subscriber logged on"} | {
    "resubscribed": "subscribed again",
    "first message": "first message",
}


@dataclass(slots=True)
class _Run:
    """One publisher and one subscriber, as they see a row of fail-overs."""

    rate: int
    ledger: Ledger = field(default_factory=Ledger)
    timeline: Timeline = field(default_factory=lambda: Timeline(0.0))
    first: trio.Event = field(default_factory=trio.Event)
    published_one: trio.Event = field(default_factory=trio.Event)
    published: int = 0
    last_sequence: int = 0
    over: bool = False
    last: int = 0

    def killed(self) -> None:
        """A broker is killed with the next statement."""
        self.first = trio.Event()
        self.timeline = Timeline(time.perf_counter())

    def on_event(self, event: Event) -> None:
        """The subscriber has reached a state, or lost its connection."""
        match event:
            case StateChanged(state=state):
                self.timeline.reached(state, time.perf_counter())
            case ConnectionLost():
                self.timeline.reached("disconnected", time.perf_counter())
            case _:
                pass

    async def publish(self, client: HAClient) -> None:
        """Publish at an even rate until it is over; what was missed is made up for.

        A machine that cannot keep the rate publishes less: its backlog would grow without end, and
        nothing that is published could be persisted within the limit.
        """
        began = trio.current_time()
        while not self.over:
            due = int((trio.current_time() - began) * self.rate)
            while self.published < due and client.unpersisted_count < _BACKLOG_S * self.rate:
                await self._publish_one(client)
            await trio.sleep(1 / self.rate)
        self.last = self.published + 1
        await self._publish_one(client)
        await client.publish_flush(timeout=_LIMIT_S)

    async def _publish_one(self, client: HAClient) -> None:
        sequence = await client.publish(TOPIC, body_of(self.published + 1))
        assert sequence is not None
        self.published, self.last_sequence = self.published + 1, sequence
        self.published_one.set()
        self.published_one = trio.Event()

    async def caught_up(self, publisher: HAClient) -> None:
        """Wait until both brokers have what is published next: each holds acks for the other."""
        await self.published_one.wait()
        await publisher.wait_persisted(self.last_sequence, timeout=_LIMIT_S)

    async def subscribe(self, client: HAClient) -> None:
        """Take messages until the last one has come."""
        async with client.bookmark_stream(TOPIC, sub_id=SUB_ID, bookmark=EPOCH) as messages:
            async for message in messages:
                now = time.perf_counter()
                self.ledger.take(number_in(message.data))
                message.discard()
                if self.timeline.message(now):
                    self.first.set()
                if self.ledger.taken == self.last:
                    return


def _brokers(scratch: Path) -> Pair:
    ports = free_ports(2)

    def command(index: int) -> list[str]:
        uri, other = (f"tcp://127.0.0.1:{ports[number]}" for number in (index, 1 - index))
        data = str(scratch / _NAMES[index])
        own = ("--name", _NAMES[index], "--listen", uri, "--data", data)
        return ["haclient", "broker", "run", *own, "--replicate-to", other]

    return Pair(command, ports, log=scratch / "brokers.log")


async def _fail_over(run: _Run, pair: Pair, publisher: HAClient, index: int) -> Timeline:
    with trio.fail_after(_LIMIT_S):
        run.killed()
        pair.kill(index)
        await run.first.wait()
    timeline = run.timeline
    await trio.to_thread.run_sync(pair.wait_killed, index)
    await trio.to_thread.run_sync(pair.start, index)
    await run.caught_up(publisher)
    return timeline


async def _fail_overs(
    pair: Pair, scratch: Path, *, kills: int, rate: int, warm_up_s: float
) -> list[Timeline]:
    run, timelines = _Run(rate), list[Timeline]()
    publisher = HAClient(
        "bench-pub", servers=pair.uris, publish_store=FilePublishStore(scratch / "publishes")
    )
    subscriber = HAClient(
        "bench-sub",
        servers=pair.uris,
        bookmark_store=LoggedBookmarkStore(scratch / "bookmarks"),
        on_event=run.on_event,
    )
    async with publisher, subscriber, trio.open_nursery() as nursery:
        nursery.start_soon(run.publish, publisher)
        nursery.start_soon(run.subscribe, subscriber)
        await run.caught_up(publisher)
        await trio.sleep(warm_up_s)
        for number in range(kills):
            await trio.sleep(_BETWEEN_S)
            timelines.append(await _fail_over(run, pair, publisher, number % 2))
        run.over = True
        nursery.cancel_scope.deadline = trio.current_time() + _LIMIT_S
    if run.ledger.taken != run.published:
        raise AssertionError(f"{run.published} were published, {run.ledger.taken} came")
    return timelines


def _rows(name: str, rate: int, kills: int, setting: Setting) -> dict[str, list[float]]:
    scratch = Path(tempfile.mkdtemp(dir=setting.scratch))
    rows: dict[str, list[float]] = {}
    run = partial(
        _fail_overs,
        kills=max(2, int(kills * setting.scale)),
        rate=rate,
        warm_up_s=_WARM_UP_S * min(1.0, setting.scale),
    )
    with _brokers(scratch) as pair:
        for timeline in trio.run(run, pair, scratch):
            for row, value in timeline.rows(name, _STEPS).items():
                rows.setdefault(row, []).append(value)
    return rows


SCENARIOS = [
    Scenario("failover", "ms", partial(_rows, "fail-over", 1000, 40)),
    Scenario("failover", "ms", partial(_rows, "fail-over at 10 000/s", 10_000, 4)),
]
"""With the usual five rounds 200 fail-overs at the rate of the target, and a few where the replay's
overlap of some seconds is ten times as long."""
