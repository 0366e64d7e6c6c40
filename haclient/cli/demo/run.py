"""The main loop of `haclient demo`: starts the processes, kills them on schedule, collects results.

Two brokers replicate synchronously to each other. A publisher and a subscriber are clients of both
and connected to one of them, the primary. When enough messages have arrived, the primary is killed,
and restarted once the other broker has delivered; the subscriber is killed and restarted at once.
The next kill waits for recovery. After a broker's restart, everything published before it must be
persisted, which with synchronous replication means that both brokers have it. After the
subscriber's restart, it must have received a message.

At the end, when all messages have arrived, the subscriber is stopped cleanly, and a last one with
the same store asks the *other* broker for the rest. It must receive nothing.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import trio

from haclient.cli.demo.processes import (
    Assignment,
    DemoFailed,
    DemoProcess,
    ProcessGroup,
    Report,
    open_process_group,
    reserved_ports,
)
from haclient.cli.demo.trace import MAX_NUMBER, Mark, Measures, Step, TraceReader, Verdict, judge
from haclient.cli.options import json_option, with_request
from haclient.cli.output import Progress, both_on_terminal, print_report, print_result, progress_bar
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.transport.nursery import open_nursery


class Kill(enum.Enum):
    """Which process to kill."""

    PRIMARY = "primary"
    """The broker that the clients are connected to."""
    SUBSCRIBER = "subscriber"


KILLS: Final = (Kill.PRIMARY, Kill.SUBSCRIBER, Kill.PRIMARY, Kill.PRIMARY)
"""What happens, in this order: three fail-overs and one restart of the subscriber."""

MIN_MESSAGES: Final = 1000
"""With fewer there is no stream to kill anybody in the middle of."""

_STREAM_S: Final = 10.0  # how long publishing takes at full pace
_MAX_PER_SECOND: Final = 12_500.0  # what two cores easily handle with five processes
_SLOWDOWN_S: Final = 1.0  # time constant of the approach to the end of a part


def due_at(kill: int, messages: int) -> int:
    """How many messages have arrived when the kill of this index is due."""
    return messages * (kill + 1) // (len(KILLS) + 2)


class Pace:
    """How many messages may have been published by now; pure, with `now` passed in.

    The stream is cut into equal parts, two more than there are kills; the k-th kill is due when k
    parts have arrived. It may have to wait, for example for a broker that has yet to catch up. So
    that it still happens in mid-stream, publishing slows down when a kill is overdue: the number of
    messages published before the kill approaches a limit one part later and never reaches it. After
    the kill, publishing returns to full speed. One part always remains after the last kill.

    Args:
        messages: The number of messages.
        now: When publishing begins, in seconds.
    """

    def __init__(self, messages: int, now: float) -> None:
        self._messages = messages
        self._per_second = min(messages / _STREAM_S, _MAX_PER_SECOND)
        self._kills = 0
        self._now = now
        self._reached = 0.0

    def killed(self) -> None:
        """Record that a kill has happened: publishing may go on up to the next one."""
        self._kills += 1

    def allowed(self, now: float) -> int:
        """The number of messages that may have been published; it never falls."""
        elapsed_s, self._now = now - self._now, now
        if self._kills == len(KILLS):
            self._reached = min(self._reached + self._per_second * elapsed_s, self._messages)
            return int(self._reached)
        end = due_at(self._kills + 1, self._messages)
        share = min(elapsed_s / _SLOWDOWN_S, 1.0)
        step = min(self._per_second * elapsed_s, (end - self._reached) * share)
        self._reached += step
        return min(int(self._reached), end - 1)


_TICK_S: Final = 0.02  # how often the demo checks its processes
_PATIENCE_S: Final = 20.0
_MARKS_PER_MESSAGE: Final = 4  # one more than are due, so that repetitions find room


class _Stuck(Exception):
    """The demo has made no progress for too long."""


@dataclass(slots=True)
class _Broker:
    """One of the two brokers."""

    name: str
    listen: str
    partner: str
    data: Path
    process: DemoProcess | None = None
    is_listening: bool = False

    @property
    def uri(self) -> str:
        return f"{self.listen}/amps/json"

    @property
    def arguments(self) -> list[str]:
        return [
            *("--name", self.name, "--listen", self.listen, "--data", str(self.data)),
            *("--replicate-to", f"{self.partner},sync"),
        ]


class _DemoRun:
    """One run."""

    def __init__(
        self,
        group: ProcessGroup,
        nursery: trio.Nursery,
        *,
        ports: list[int],
        messages: int,
        progress: Progress,
        patience_s: float,
    ) -> None:
        self._patience_s = patience_s
        self._group = group
        self._nursery = nursery
        self._messages = messages
        self._progress = progress
        listen = [f"tcp://127.0.0.1:{port}" for port in ports]
        self._primary, self._secondary = (
            _Broker(name, mine, other, group.directory / name)
            for name, mine, other in (("east", *listen), ("west", *reversed(listen)))
        )
        self._readers: list[TraceReader] = []
        self._arrived: set[int] = set()
        self._ready: dict[DemoProcess, Report] = {}
        self._resumed_ns = 0
        self.lives: list[list[Step]] = []
        self.published = 0
        self.persisted = 0
        self.failover_ms: list[float] = []
        self.restarts = 0

    # -- listening ------------------------------------------------------------

    async def _listen_to_broker(self, broker: _Broker, process: DemoProcess) -> None:
        async for line in process.lines():
            broker.is_listening = broker.is_listening or line.startswith(b"listening ")

    async def _listen_to_worker(self, process: DemoProcess) -> None:
        async for line in process.lines():
            report = msgspec.json.decode(line, type=Report)
            if report.ready or report.caught_up:
                self._ready[process] = report
            if report.published is not None and report.persisted is not None:
                self.published, self.persisted = report.published, report.persisted
            if report.resumed_ns is not None:
                self._resumed_ns = report.resumed_ns

    def _read_trace(self) -> None:
        """Read the new marks of the subscriber's trace."""
        if self._readers:
            steps = self._readers[-1].read_new()
            self.lives[-1] += steps
            self._arrived.update(number for mark, number in steps if mark is Mark.DELIVERED)
            self._progress.update(len(self._arrived))

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raise `_Stuck` if nothing changes for too long."""
        moved, since = (-1, -1, -1), trio.current_time()
        while not condition():
            self._read_trace()
            now = trio.current_time()
            state = (sum(map(len, self.lives)), self.published, self.persisted)
            if state != moved:
                moved, since = state, now
            elif now - since > self._patience_s:
                raise _Stuck
            await trio.sleep(_TICK_S)
        self._read_trace()

    async def _until_arrived(self, count: int) -> None:
        await self._until(lambda: len(self._arrived) >= count)

    # -- starting ---------------------------------------------------------------

    async def _start_broker(self, broker: _Broker) -> None:
        broker.is_listening = False
        broker.process = await self._group.start(
            f"broker {broker.name}", "broker", *broker.arguments
        )
        self._nursery.start_soon(self._listen_to_broker, broker, broker.process)

    async def _start_worker(self, role: str, task: Assignment) -> DemoProcess:
        process = await self._group.start(role, role, msgspec.json.encode(task).decode())
        self._nursery.start_soon(self._listen_to_worker, process)
        await self._until(lambda: process in self._ready)
        return process

    async def _start_publisher(self) -> DemoProcess:
        store = self._group.directory / "publisher"
        servers = (self._primary.uri, self._secondary.uri)
        return await self._start_worker("publisher", Assignment(servers=servers, store=str(store)))

    async def _start_subscriber(self, *brokers: _Broker) -> DemoProcess:
        directory = self._group.directory
        trace = directory / f"trace.{len(self.lives)}"
        self._readers.append(TraceReader(trace))
        self.lives.append([])
        task = Assignment(
            servers=tuple(broker.uri for broker in brokers),
            store=str(directory / "subscriber"),
            trace=str(trace),
            marks=_MARKS_PER_MESSAGE * self._messages,
        )
        return await self._start_worker("subscriber", task)

    # -- the course ---------------------------------------------------------------

    async def play(self) -> None:
        """Run all steps, up to the last subscriber, which must receive nothing."""
        brokers = (self._primary, self._secondary)
        for broker in brokers:
            await self._start_broker(broker)
        await self._until(lambda: all(broker.is_listening for broker in brokers))
        publisher = await self._start_publisher()
        subscriber = await self._start_subscriber(*brokers)
        pace = Pace(self._messages, trio.current_time())
        self._nursery.start_soon(self._keep_pace, publisher, pace)
        for index, kill in enumerate(KILLS):
            await self._until_arrived(due_at(index, self._messages))
            pace.killed()
            match kill:
                case Kill.PRIMARY:
                    await self._fail_over()
                case Kill.SUBSCRIBER:
                    subscriber = await self._restart(subscriber)
        await self._until(lambda: self.persisted == self._messages)
        await self._until_arrived(self._messages)
        await publisher.stop()
        await subscriber.stop()
        self._read_trace()
        await self._check_nothing_is_left()

    async def _keep_pace(self, publisher: DemoProcess, pace: Pace) -> None:
        while True:
            await publisher.send_line(str(pace.allowed(trio.current_time())))
            await trio.sleep(_TICK_S)

    async def _fail_over(self) -> None:
        """Kill the primary, restart it after the other broker has delivered, and wait for it."""
        victim, successor = self._primary, self._secondary
        if victim.process is None:
            raise AssertionError("both brokers are started first")
        arrived, killed_ns = len(self._arrived), time.monotonic_ns()
        await victim.process.kill()
        self._progress.report(
            f"killed broker {victim.name} (process {victim.process.pid}) after {arrived} messages"
        )
        await self._until(lambda: self._resumed_ns > killed_ns)
        self.failover_ms.append((self._resumed_ns - killed_ns) / 1e6)
        self._primary, self._secondary = successor, victim
        self._progress.report(
            f"broker {successor.name} delivers, {self.failover_ms[-1]:.0f} ms later"
        )
        await self._start_broker(victim)
        await self._until(lambda: victim.is_listening)
        published = self.published
        await self._until(lambda: self.persisted >= published)
        self._progress.report(f"broker {victim.name} is back and has caught up")

    async def _restart(self, subscriber: DemoProcess) -> DemoProcess:
        """Kill the subscriber and start another one with its store."""
        arrived = len(self._arrived)
        await subscriber.kill()
        self._read_trace()
        self._progress.report(
            f"killed the subscriber (process {subscriber.pid}) after {arrived} messages"
        )
        successor = await self._start_subscriber(self._primary, self._secondary)
        await self._until(lambda: bool(self.lives[-1]))
        self.restarts += 1
        self._progress.report("the next subscriber resumes where its store ends")
        return successor

    async def _check_nothing_is_left(self) -> None:
        """Subscribe at the other broker with the same store: it must deliver nothing."""
        last = await self._start_subscriber(self._secondary, self._primary)
        await self._until(lambda: self._ready[last].caught_up)
        await last.stop()
        self._read_trace()


@contextmanager
def _first_failure() -> Generator[None]:
    """Raise one `DemoFailed` where several processes failed at the same moment."""
    try:
        yield
    except ExceptionGroup as group:
        failures, others = group.split(DemoFailed)
        if failures is None or others is not None:
            raise
        raise failures.exceptions[0] from None


async def run_demo(
    messages: int, progress: Progress, *, patience_s: float = _PATIENCE_S
) -> Verdict:
    """Run the demo to its verdict.

    Args:
        messages: The number of messages to publish.
        progress: Shows the number of messages received, and each kill.
        patience_s: After this many seconds without progress, the demo ends and is judged.

    Raises:
        DemoFailed: The demo could not be run.
    """
    began = trio.current_time()
    is_stuck = False
    with reserved_ports(2) as ports, _first_failure():
        async with open_process_group() as group, open_nursery() as nursery:
            demo_run = _DemoRun(
                group,
                nursery,
                ports=ports,
                messages=messages,
                progress=progress,
                patience_s=patience_s,
            )
            try:
                await demo_run.play()
            except _Stuck:  # a step took too long: judge what has arrived
                is_stuck = True
            nursery.cancel_scope.cancel()
    measures = Measures(
        failover_ms=demo_run.failover_ms,
        restarts=demo_run.restarts,
        seconds=trio.current_time() - began,
    )
    verdict = judge(demo_run.published, demo_run.lives, measures)
    if is_stuck and verdict.is_good:
        raise DemoFailed(f"nothing has moved for {patience_s:g} s")
    return verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    messages: int
    as_json: bool


async def _work(request: _Request) -> int:
    with progress_bar("messages arrived", request.messages) as bar:
        # The events are part of the result, in a file or pipe too. On a terminal with a bar, only
        # the bar itself can print above it.
        in_bar = request.as_json or both_on_terminal()
        report = bar.report if in_bar else partial(print_result, aside=True)
        verdict = await run_demo(request.messages, Progress(bar.update, report))
    print_report(verdict, verdict.as_text(), as_json=request.as_json, aside=True)
    return ExitCode.OK if verdict.is_good else ExitCode.FAILURE


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(MIN_MESSAGES, MAX_NUMBER),
    default=100_000,
    show_default=True,
    help="How many messages to send.",
)
@json_option
@with_request(_Request)
def demo(request: _Request) -> int:
    """Kill brokers and a subscriber in mid-stream, and account for every message.

    Two replicating brokers, a publisher and a subscriber run as processes of this machine. Exit
    code 0 only if nothing was lost, duplicated or out of order.
    """
    return run_until_signal(partial(_work, request), lambda: "interrupted: there is no verdict")
