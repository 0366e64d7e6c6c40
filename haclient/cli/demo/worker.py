"""The worker processes of `haclient demo`: `python -m haclient.cli.demo.worker ROLE ARGUMENTS`.

Each role is written like an application. In addition it reports to the main process on its standard
output, and ends when its standard input ends, so that no process outlives the demo.

* ``broker``: `haclient broker run`.
* ``publisher``: publishes up to a limit, which it reads from its standard input. It answers each
  line with the number of messages published and the number persisted.
* ``subscriber``: a resumable stream; it traces each message (`haclient.cli.demo.trace`).
  It holds several messages at a time and discards them in an order other than that of arrival.
* ``queue-worker``: takes jobs from a queue, does them and acknowledges them; it traces each job
  (`haclient.cli.demo.jobs`).

SIGTERM stops each of them cleanly.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import msgspec
import trio

from haclient.cli.app import run
from haclient.cli.demo.jobs import JobMark, JobTraceWriter
from haclient.cli.demo.processes import QUEUE, TOPIC, WORKER_BACKLOG, Assignment, Report
from haclient.cli.demo.trace import TraceWriter
from haclient.client import HAClient
from haclient.events import ConnectionLost, Event
from haclient.protocol.messages import Message
from haclient.servers.delay import ExponentialDelayStrategy
from haclient.stores import FilePublishStore, LoggedBookmarkStore
from haclient.streams import MessageStream
from haclient_stores.bookmark import MOST_RECENT

_WORK_S: Final = 0.001
"""How long the work of a job takes; most kills come in it."""

HELD: Final = 8
"""How many messages the subscriber has in its hands before it discards them."""

# Brokers and clients share one clock here, so only replication lag has to be covered.
_OVERLAP_S: Final = 1.0


def body_of(number: int) -> bytes:
    """The message of this number."""
    return (
        b'{"n":%d,"side":"buy","symbol":"DEMO","quantity":100,"price":101.25,"desk":"A7"}' % number
    )


def number_of(body: bytes) -> int:
    """The number of a message."""
    return int(body[5 : body.index(b",")])


def _report(report: Report) -> None:
    os.write(1, msgspec.json.encode(report) + b"\n")


def _delay() -> ExponentialDelayStrategy:
    return ExponentialDelayStrategy(initial=0.02, maximum=0.5)


async def _limits() -> AsyncGenerator[int]:
    """The limits that the main process sends, until it closes the stream."""
    rest = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for chunk in stdin:
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield int(lines[-1])


async def publisher(task: Assignment) -> None:
    """Publish up to the current limit, with or without a connection."""
    published = 0
    async with HAClient(
        "demo-publisher",
        servers=task.servers,
        publish_store=FilePublishStore(task.store),
        delay_strategy=_delay(),
    ) as client:
        _report(Report(ready=True))
        async with trio.open_nursery() as nursery, aclosing(_limits()) as limits:
            nursery.start_soon(_cancel_on_sigterm, nursery.cancel_scope)
            async for limit in limits:
                for number in range(published, limit):
                    await client.publish(TOPIC, body_of(number))
                published = max(published, limit)
                persisted = published - client.unpersisted_count
                _report(Report(published=published, persisted=persisted))
            nursery.cancel_scope.cancel()


class HeldMessages:
    """The messages that one run of the subscriber holds undiscarded."""

    def __init__(self, trace: TraceWriter) -> None:
        self._trace = trace
        self._held: list[tuple[int, Message]] = []
        self.is_resuming = False

    def on_event(self, event: Event) -> None:
        """When the connection was lost, the next message comes over another one."""
        self.is_resuming = self.is_resuming or isinstance(event, ConnectionLost)

    def take(self, batch: list[Message]) -> None:
        """Hold each message; discard all when there are `HELD` of them."""
        if self.is_resuming:
            self.is_resuming = False
            _report(Report(resumed_ns=time.monotonic_ns()))
        delivered, held = self._trace.delivered, self._held
        for message in batch:
            number = number_of(message.data)
            delivered(number)
            held.append((number, message))
            if len(held) == HELD:
                self.discard()

    def discard(self) -> None:
        """Discard the messages held, every second one first: any order is allowed."""
        trace, held = self._trace, self._held
        for number, message in (*held[1::2], *held[::2]):
            trace.discarding(number)
            message.discard()
            trace.discarded(number)
        held.clear()


async def subscriber(task: Assignment) -> None:
    """Receive messages until SIGTERM, then discard the messages held."""
    with TraceWriter.create(Path(task.trace), task.marks) as trace:
        hands = HeldMessages(trace)
        async with (
            HAClient(
                "demo-subscriber",
                servers=task.servers,
                bookmark_store=LoggedBookmarkStore(task.store),
                delay_strategy=_delay(),
                failover_overlap=_OVERLAP_S,
                on_event=hands.on_event,
            ) as client,
            client.bookmark_stream(TOPIC, sub_id="demo", bookmark=MOST_RECENT) as messages,
        ):
            _report(Report(ready=True))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_sigterm, nursery.cancel_scope)
                nursery.start_soon(_report_caught_up, messages)
                async for batch in messages.batches():
                    hands.take(batch)
            hands.discard()


async def queue_worker(task: Assignment) -> None:
    """Do jobs until SIGTERM."""
    with JobTraceWriter.create(Path(task.trace), task.marks) as trace:
        async with (
            HAClient(
                f"demo-worker-{os.getpid()}", servers=task.servers, delay_strategy=_delay()
            ) as client,
            client.queue_stream(QUEUE, max_backlog=WORKER_BACKLOG) as messages,
        ):
            _report(Report(ready=True))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on_sigterm, nursery.cancel_scope)
                async for batch in messages.batches():
                    await _do_jobs(client, trace, batch)


async def _do_jobs(client: HAClient, trace: JobTraceWriter, batch: list[Message]) -> None:
    jobs = [(number_of(message.data), message) for message in batch]
    for number, _ in jobs:
        trace.add(JobMark.TAKEN, number, time.monotonic_ns())
    for number, message in jobs:
        await trio.sleep(_WORK_S)
        trace.add(JobMark.DONE, number, time.monotonic_ns())
        message.ack()
    await client.flush_acks(timeout=None)
    for number, _ in jobs:
        trace.add(JobMark.CONFIRMED, number, time.monotonic_ns())


async def _cancel_on_sigterm(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


async def _report_caught_up(messages: MessageStream) -> None:
    await messages.wait_caught_up()
    _report(Report(caught_up=True))


def _end_with_stdin() -> None:
    """Exit when standard input ends, since the main process has ended then."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Run one role and return the exit code."""
    role, *rest = arguments
    if role == "publisher":
        trio.run(publisher, msgspec.json.decode(rest[0], type=Assignment))
        return 0
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    if role == "broker":
        return run(["broker", "run", *rest])
    worker = queue_worker if role == "queue-worker" else subscriber
    trio.run(worker, msgspec.json.decode(rest[0], type=Assignment))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
