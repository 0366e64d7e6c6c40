"""The main loop of `haclient demo --queue`: workers and the broker are killed, every job is done.

One broker has a queue; a publisher fills it, and workers take jobs from it. When enough jobs are
done, a random worker is killed and another one is started; twice it is the broker.
The next kill waits for recovery. At the end every job must have been done and the queue be empty.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
import trio

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.demo.jobs import (
    JobMark,
    JobMeasures,
    JobStep,
    JobTraceReader,
    JobVerdict,
    Outage,
    WorkerLife,
    judge_jobs,
)
from haclient.cli.demo.pace import DemoPace, due_at
from haclient.cli.demo.processes import (
    PATIENCE_S,
    QUEUE,
    TICK_S,
    TOPIC,
    WORKER_BACKLOG,
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
from haclient.cli.output import Progress
from haclient.cli.queue.statistics import find_queue
from haclient.transport.tasks import open_nursery

WORKERS: Final = 4
WORKER_KILLS: Final = 8
BROKER_KILLS: Final = 2
KILLS: Final = WORKER_KILLS + BROKER_KILLS

DEFAULT_JOBS: Final = 20_000

_LEASE_S: Final = 300.0
"""Longer than a run, so that only kills are reasons for a redelivery."""

_MARKS_PER_JOB: Final = 6
"""Steps that one worker may write for each job of the run: twice three, for repetitions."""


@dataclass(slots=True)
class _DemoWorker:
    """The present process of one worker, and its trace."""

    name: str
    process: DemoProcess
    reader: JobTraceReader
    life: WorkerLife = field(default_factory=lambda: WorkerLife([]))

    @property
    def is_busy(self) -> bool:
        """Whether it had unconfirmed jobs when its trace was read last."""
        return bool(self.life.steps) and self.life.steps[-1].mark is not JobMark.CONFIRMED


class _QueueRun:
    """One run."""

    def __init__(
        self,
        group: ProcessGroup,
        nursery: trio.Nursery,
        *,
        port: int,
        jobs: int,
        progress: Progress,
        patience_s: float,
    ) -> None:
        self._group = group
        self._nursery = nursery
        self._jobs = jobs
        self._progress = progress
        self._patience_s = patience_s
        self._listen = f"tcp://127.0.0.1:{port}"
        self._random = random.Random()  # noqa: S311  # chooses whom to kill, and no secret
        self._workers: list[_DemoWorker] = []
        self._ready: set[DemoProcess] = set()
        self._listening: set[DemoProcess] = set()
        self._done: set[int] = set()
        self._last_taken_ns = 0
        self.lives: list[WorkerLife] = []
        self.outages: list[Outage] = []
        self.outage_ms: list[float] = []
        self.worker_kills = 0
        self.published = 0
        self.persisted = 0
        self.left = 0

    # -- listening ------------------------------------------------------------

    async def _listen_to_broker(self, process: DemoProcess) -> None:
        async for line in process.lines():
            if line.startswith(b"listening "):
                self._listening.add(process)

    async def _listen_to_worker(self, process: DemoProcess) -> None:
        async for line in process.lines():
            report = msgspec.json.decode(line, type=Report)
            if report.ready:
                self._ready.add(process)
            if report.published is not None and report.persisted is not None:
                self.published, self.persisted = report.published, report.persisted

    def _read_traces(self) -> tuple[int, int, int]:
        """Read the new steps of the workers' traces; return what changes with progress."""
        for worker in self._workers:
            self._note(worker, worker.reader.read_new())
        self._progress.update(len(self._done))
        return sum(len(each.steps) for each in self.lives), self.published, self.persisted

    def _note(self, worker: _DemoWorker, steps: list[JobStep]) -> None:
        worker.life.steps += steps
        for mark, number, at_ns in steps:
            if mark is JobMark.DONE:
                self._done.add(number)
            elif mark is JobMark.TAKEN:
                self._last_taken_ns = max(self._last_taken_ns, at_ns)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; raise `Stuck` if nothing changes for too long."""
        await wait_until(condition, self._read_traces, patience_s=self._patience_s)

    async def _until_done(self, count: int) -> None:
        await self._until(lambda: len(self._done) >= count)

    # -- starting ---------------------------------------------------------------

    async def _start_broker(self) -> DemoProcess:
        process = await self._group.start(
            "broker",
            *("broker", "--name", "jobs", "--listen", self._listen),
            *("--data", str(self._group.directory / "broker")),
            *("--queue", f"{QUEUE}:{TOPIC},max_backlog={WORKER_BACKLOG},lease={_LEASE_S:g}"),
        )
        self._nursery.start_soon(self._listen_to_broker, process)
        await self._until(lambda: process in self._listening)
        return process

    async def _start_client(self, name: str, role: str, task: Assignment) -> DemoProcess:
        process = await self._group.start(name, role, msgspec.json.encode(task).decode())
        self._nursery.start_soon(self._listen_to_worker, process)
        return process

    def _task(self, name: str) -> Assignment:
        directory = self._group.directory
        return Assignment(
            servers=(f"{self._listen}/amps/json",),
            store=str(directory / name),
            trace=str(directory / f"trace.{len(self.lives)}"),
            marks=_MARKS_PER_JOB * self._jobs,
        )

    async def _start_worker(self, name: str) -> _DemoWorker:
        task = self._task(name)
        process = await self._start_client(name, "queue-worker", task)
        worker = _DemoWorker(name, process, JobTraceReader(self._group.directory / task.trace))
        self.lives.append(worker.life)
        return worker

    # -- the course ---------------------------------------------------------------

    async def play(self) -> None:
        """Run all steps, until the queue is empty."""
        broker = await self._start_broker()
        publisher = await self._start_client("publisher", "publisher", self._task("publisher"))
        self._workers = [await self._start_worker(f"worker {n}") for n in range(1, WORKERS + 1)]
        await self._until_ready(publisher, *(worker.process for worker in self._workers))
        pace = DemoPace(self._jobs, trio.current_time(), kills=KILLS)
        self._nursery.start_soon(keep_pace, publisher, pace)
        for index in range(KILLS):
            await self._until_done(due_at(index, self._jobs, kills=KILLS))
            pace.killed()
            if (index + 1) % (KILLS // BROKER_KILLS) == 0:
                broker = await self._kill_broker(broker)
            else:
                await self._kill_worker()
        await self._until(lambda: self.persisted == self._jobs)
        await self._until_done(self._jobs)
        await self._until_empty()
        await publisher.stop()
        for worker in self._workers:
            await worker.process.stop()
        self._read_traces()

    async def _until_ready(self, *processes: DemoProcess) -> None:
        await self._until(lambda: self._ready.issuperset(processes))

    async def _kill_worker(self) -> None:
        """Kill a worker at random, of those at work, and start another one in its place."""
        busy = [index for index, each in enumerate(self._workers) if each.is_busy]
        index = self._random.choice(busy or range(len(self._workers)))
        victim = self._workers[index]
        done = len(self._done)
        await victim.process.kill()
        self.worker_kills += 1
        victim.life.was_killed = True
        self._read_traces()
        self._progress.report(
            f"killed {victim.name} (process {victim.process.pid}) after {done} jobs"
        )
        successor = self._workers[index] = await self._start_worker(victim.name)
        await self._until_ready(successor.process)

    async def _kill_broker(self, broker: DemoProcess) -> DemoProcess:
        """Kill the broker, start it again, and wait until a worker has a job."""
        done, began_ns = len(self._done), time.monotonic_ns()
        await broker.kill()
        self._progress.report(f"killed the broker (process {broker.pid}) after {done} jobs")
        successor = await self._start_broker()
        back_ns = time.monotonic_ns()
        self.outages.append(Outage(began_ns, back_ns))
        await self._until(lambda: self._last_taken_ns > back_ns)
        self.outage_ms.append((self._last_taken_ns - began_ns) / 1e6)
        self._progress.report(
            f"the broker is back; a worker has the next job after {self.outage_ms[-1]:.0f} ms"
        )
        return successor

    async def _until_empty(self) -> None:
        """Wait until the last acknowledgements have reached the queue."""
        connection = ConnectionRequest(servers=(f"{self._listen}/amps/json",), name="demo-audit")
        deadline = trio.current_time() + self._patience_s
        async with open_client(connection) as client:
            while True:
                statistics = await find_queue(client, QUEUE)
                self.left = 0 if statistics is None else statistics.depth
                if not self.left:
                    return
                if trio.current_time() > deadline:
                    raise Stuck
                await trio.sleep(TICK_S)


async def run_queue_demo(
    jobs: int, progress: Progress, *, patience_s: float = PATIENCE_S
) -> JobVerdict:
    """Run the demo to its verdict.

    Args:
        jobs: The number of jobs to publish.
        progress: Shows the number of jobs done, and each kill.
        patience_s: After this many seconds without progress, the demo ends and is judged.

    Raises:
        DemoFailed: The demo could not be run.
    """
    began = trio.current_time()
    is_stuck = False
    with reserved_ports(1) as (port,), first_failure():
        async with open_process_group() as group, open_nursery() as nursery:
            demo_run = _QueueRun(
                group, nursery, port=port, jobs=jobs, progress=progress, patience_s=patience_s
            )
            try:
                await demo_run.play()
            except Stuck:  # a step took too long: judge what was done
                is_stuck = True
            nursery.cancel_scope.cancel()
    measures = JobMeasures(
        outage_ms=demo_run.outage_ms,
        worker_kills=demo_run.worker_kills,
        seconds=trio.current_time() - began,
    )
    verdict = judge_jobs(
        demo_run.published, demo_run.lives, demo_run.outages, measures, left=demo_run.left
    )
    if is_stuck and verdict.is_good:
        raise DemoFailed(f"nothing has moved for {patience_s:g} s")
    return verdict
