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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import trio

from haclient.cli.demo.jobs import JobVerdict
from haclient.cli.demo.pace import MIN_MESSAGES, DemoPace, due_at
from haclient.cli.demo.processes import (
    PATIENCE_S,
    Assignment,
    DemoFailed,
    DemoProcess,
    ProcessGroup,
    Report,
    Stuck,
    first_failure,
    keep_pace,
    open_process_group,
    reserved_ports,
    wait_until,
)
from haclient.cli.demo.queue_run import DEFAULT_JOBS, run_queue_demo
from haclient.cli.demo.trace import MAX_NUMBER, Mark, Measures, Step, TraceReader, Verdict, judge
from haclient.cli.options import Count, json_option, with_request
from haclient.cli.output import (
    Progress,
    both_on_terminal,
    coloured,
    print_report,
    print_result,
    progress_bar,
)
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.transport.tasks import open_nursery


class KillTarget(enum.Enum):
    """Which process to kill."""

    PRIMARY = "primary"
    """The broker that the clients are connected to."""
    SUBSCRIBER = "subscriber"


KILLS: Final = (KillTarget.PRIMARY, KillTarget.SUBSCRIBER, KillTarget.PRIMARY, KillTarget.PRIMARY)
"""What happens, in this order: three fail-overs and one restart of the subscriber."""


_MARKS_PER_MESSAGE: Final = 4  # one more than are due, so that repetitions find room


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

    def _read_trace(self) -> tuple[int, int, int]:
        """Read the new marks of the subscriber's trace; return what changes with progress."""
        if self._readers:
            steps = self._readers[-1].read_new()
            self.lives[-1] += steps
            self._arrived.update(number for mark, number in steps if mark is Mark.DELIVERED)
            self._progress.update(len(self._arrived))
        return sum(map(len, self.lives)), self.published, self.persisted

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raise `Stuck` if nothing changes for too long."""
        await wait_until(condition, self._read_trace, patience_s=self._patience_s)

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
        pace = DemoPace(self._messages, trio.current_time(), kills=len(KILLS))
        self._nursery.start_soon(keep_pace, publisher, pace)
        for index, kill in enumerate(KILLS):
            await self._until_arrived(due_at(index, self._messages, kills=len(KILLS)))
            pace.killed()
            match kill:
                case KillTarget.PRIMARY:
                    await self._fail_over()
                case KillTarget.SUBSCRIBER:
                    subscriber = await self._restart(subscriber)
        await self._until(lambda: self.persisted == self._messages)
        await self._until_arrived(self._messages)
        await publisher.stop()
        await subscriber.stop()
        self._read_trace()
        await self._check_nothing_is_left()

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


async def run_demo(messages: int, progress: Progress, *, patience_s: float = PATIENCE_S) -> Verdict:
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
    with reserved_ports(2) as ports, first_failure():
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
            except Stuck:  # a step took too long: judge what has arrived
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


_DEFAULT_MESSAGES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _DemoRequest:
    messages: int | None
    is_queue: bool
    as_json: bool


async def _run(request: _DemoRequest, progress: Progress, messages: int) -> Verdict | JobVerdict:
    if request.is_queue:
        return await run_queue_demo(messages, progress)
    return await run_demo(messages, progress)


async def _work(request: _DemoRequest) -> int:
    what, default = "messages arrived", _DEFAULT_MESSAGES
    if request.is_queue:
        what, default = "jobs done", DEFAULT_JOBS
    messages = request.messages or default
    with progress_bar(what, messages) as bar:
        # The events are part of the result, in a file or pipe too. On a terminal with a bar, only
        # the bar itself can print above it.
        in_bar = request.as_json or both_on_terminal()
        report = bar.report if in_bar else partial(print_result, aside=True)
        verdict = await _run(request, Progress(bar.update, report), messages)
    *events, conclusion = verdict.as_text().splitlines()
    text = "\n".join([*events, coloured(conclusion, is_good=verdict.is_good)])
    print_report(verdict, text, as_json=request.as_json, aside=True)
    return ExitCode.OK if verdict.is_good else ExitCode.FAILURE


@click.command()
@click.option(
    "--messages",
    type=Count(MIN_MESSAGES, MAX_NUMBER),
    metavar="N",
    help=f"How many messages to send. Default: {_DEFAULT_MESSAGES}, with --queue {DEFAULT_JOBS}.",
)
@click.option(
    "--queue",
    "is_queue",
    is_flag=True,
    help="Kill the workers of a message queue and its broker instead: every job is done.",
)
@json_option
@with_request(_DemoRequest)
def demo(request: _DemoRequest) -> int:
    """Kill brokers and clients, and account for each message.

    Two replicating brokers, a publisher and a subscriber run as processes of this machine. Exit
    code 0 only if nothing was lost, duplicated or out of order; with --queue, if every job was done
    and none came again without a reason.
    """
    return run_until_signal(partial(_work, request), lambda: "interrupted: there is no verdict")
