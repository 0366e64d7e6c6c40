"""One run of `haclient publish`: the ledger it keeps, the plan, and the publishing loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import trio

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.lines import FileScan, open_lines, parse_delimiter, scan_file
from haclient.cli.options import (
    POSITIVE_NUMBER,
    Count,
    FilePath,
    client_name_option,
    json_option,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)
from haclient.cli.output import check_open, print_report, progress_bar
from haclient.cli.publish_ledger import NOTE, PublishLedger, PublishPlan, Source
from haclient.cli.termination import (
    ExitCode,
    hidden_warnings,
    note_new_directories,
    print_error,
    run_until_signal,
)
from haclient.client import BaseClient, HAClient
from haclient.errors import (
    DisconnectedError,
    PublishFailed,
    ReconnectGaveUp,
    StoreError,
    TimedOut,
    UsageError,
)
from haclient.protocol.messages import Message
from haclient.stores import FilePublishStore, MemoryPublishStore

_FLUSH_TIMEOUT_S: Final = 30.0
"""How long the server may take to persist the rest, when the command line does not say."""

_NAMED_FAILURES: Final = 5
"""How many refused lines are named; a wrong topic or key mostly has all of them refused."""

_UPDATE_EVERY: Final = 256
"""Lines between two updates of the progress; with a rate, which is slow, each line is one."""

_EMPTY_SCAN: Final = FileScan(size=0, digest="", lines=0, prefix_digest="", prefix_is_open=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """The options of the command."""

    servers: tuple[str, ...]
    client_name: str | None
    topic: str
    file: str
    delimiter: str
    store: Path | None
    from_start: bool
    rate: float | None
    timeout: float | None
    as_json: bool
    messages: tuple[str, ...] = ()
    delta: bool = False
    key: str = ""
    expiration: int | None = None

    @property
    def path(self) -> Path | None:
        """The file, or `None` for stdin."""
        return None if self.file == "-" else Path(self.file)

    @property
    def is_stdin(self) -> bool:
        """Whether the messages come from the standard input."""
        return self.path is None and not self.messages

    @property
    def is_regular_file(self) -> bool:
        """Whether the input can be read again: a named pipe and a file of /proc are not."""
        if self.path is None or not self.path.is_file():
            return False
        with self.path.open("rb") as file:  # those of /proc have contents, and the size 0
            is_empty = not file.read(1)
        return is_empty or self.path.stat().st_size > 0


class PublishSummary(msgspec.Struct, kw_only=True):
    """What a run did: the result of `--json`."""

    topic: str
    published: int = 0
    skipped: int = 0
    resent: int = 0
    failed: int = 0
    unpersisted: int = 0
    seconds: float = 0.0

    def as_text(self) -> str:
        """The summary as a sentence."""
        messages = "1 message" if self.published == 1 else f"{self.published} messages"
        told = f"published {messages} to {self.topic} in {self.seconds:.2f} s"
        extras = (
            (self.skipped, "already published"),
            (self.resent, "sent again from the store"),
            (self.failed, "refused by the server"),
        )
        return "".join((told, *(f", {count} {what}" for count, what in extras if count)))


@dataclass(slots=True, kw_only=True)
class PublishRun:
    """One run of the command: its request, its store and its results so far."""

    request: PublishRequest
    store: FilePublishStore | MemoryPublishStore
    delimiter: bytes
    summary: PublishSummary
    scan: FileScan = _EMPTY_SCAN
    ledger: PublishLedger = field(default_factory=PublishLedger)
    was_connected: bool = False
    base: int = 0
    failures: list[str] = field(default_factory=list[str])

    @property
    def source(self) -> Source | None:
        """The key of the input in the ledger; `None` when nothing can be resumed."""
        path, is_kept = self.request.path, isinstance(self.store, FilePublishStore)
        if path is None or not is_kept or not self.request.is_regular_file:
            return None
        return Source(str(path.resolve()), self.request.topic, self.delimiter)

    def failed_write(self, message: Message, reason: str) -> None:
        """Count a message that the server refused, and note which line it was."""
        self.summary.failed += 1
        line = (message.sequence or 0) - self.base
        if line > 0:  # line k has the sequence base + k; what is below was stored by an earlier run
            self.summary.published -= 1
        if len(self.failures) < _NAMED_FAILURES:
            where = f"line {line}" if line > 0 else "a message of an earlier run"
            why = f"{reason}: {message.detail}" if message.detail else reason
            self.failures.append(f"{where}: {why or 'no reason given'}")

    def refusal(self) -> PublishFailed:
        """The error that names the refused lines."""
        failed, what = self.summary.failed, "; ".join(self.failures)
        more = f"; and {failed - _NAMED_FAILURES} more" if failed > _NAMED_FAILURES else ""
        count = "1 message" if failed == 1 else f"{failed} messages"
        return PublishFailed(f"the server refused {count}: {what}{more}")

    def note(self, ledger: PublishLedger) -> None:
        """Store the ledger; it is on disk before anything relies on it."""
        self.ledger = ledger
        if isinstance(self.store, FilePublishStore):
            self.store.sync()  # a loss of power must not take lines that the ledger counts
            self.store.set_note(NOTE, ledger.note())


def read_ledger(run: PublishRun) -> None:
    """Read the store's ledger and scan the file, without changing anything."""
    if isinstance(run.store, FilePublishStore):
        run.ledger = PublishLedger.parse(run.store.notes.get(NOTE, ""))
    source, path = run.source, run.request.path
    if source is not None and run.request.from_start:
        run.ledger = run.ledger.forget(source)
    if path is not None and run.request.is_regular_file:
        prefix = run.ledger.noted_size(source) if source is not None else 0
        run.scan = scan_file(path, run.delimiter, prefix=prefix)


def make_plan(run: PublishRun) -> PublishPlan:
    """Close the open file and open this one: after the logon, before the first message."""
    store = run.store
    last = store.last_sequence
    missing = store.missing_after(run.ledger.counted_to)
    closed = run.ledger.close_open_file(store.last_used_sequence, missing)
    if run.source is None:
        if closed != run.ledger:
            run.note(closed)
        return PublishPlan(skip=0, base=last)
    ledger, plan = closed.begin(run.source, run.scan, last)
    run.note(ledger)
    return plan


class PublishPace:
    """Spreads messages evenly over time; without a rate it never waits."""

    def __init__(self, rate: float | None) -> None:
        self._interval_s = 0.0 if rate is None else 1.0 / rate
        self._due = trio.current_time()

    async def wait(self) -> None:
        """Wait until the next message is due; the first one is due at once."""
        if self._interval_s:
            await trio.sleep_until(self._due)
            self._due += self._interval_s


async def publish_lines(
    run: PublishRun, client: BaseClient, plan: PublishPlan, update: Callable[[int], None]
) -> None:
    """Publish the lines that the plan does not skip; works without a connection, too.

    Raises:
        StoreError: Something else publishes with this store.
        StoreFull: The store is full; stored messages stay stored.
    """
    request, pace, number = run.request, PublishPace(run.request.rate), 0
    if request.messages:
        for number, message in enumerate(request.messages, 1):
            await pace.wait()
            await _publish_line(run, client, os.fsencode(message), plan.base + number)
        return
    size = run.scan.size if request.is_regular_file else None
    async with open_lines(request.path, run.delimiter, size=size) as reader:
        while (lines := await reader.batch()) is not None:
            for line in lines:
                number += 1
                if number > plan.skip:
                    await pace.wait()
                    await _publish_line(run, client, line, plan.base + number)
                if request.rate is not None or not number % _UPDATE_EVERY:
                    update(number)
            update(number)


async def _publish_line(run: PublishRun, client: BaseClient, line: bytes, expected: int) -> None:
    """Publish one line, and check that it gets the sequence that the ledger expects."""
    request = run.request
    send = partial(client.publish, delta=request.delta)
    sequence = await send(request.topic, line, expiration=request.expiration, sow_key=request.key)
    run.summary.published += 1
    if sequence != expected:
        raise StoreError(
            f"a message got sequence {sequence} instead of {expected}: "
            "something else publishes with this store"
        )


def lost_connection(run: PublishRun) -> DisconnectedError:
    """The error of a run whose connection was lost and not found again."""
    what = f"the connection was lost after {run.summary.published} messages and not found again; "
    left = run.store.unpersisted_count
    if isinstance(run.store, FilePublishStore):
        return DisconnectedError(f"{what}{left} of them wait in the store for the next run")
    return DisconnectedError(f"{what}{left} of them are not known to be persisted")


async def _publish_all(run: PublishRun) -> None:
    request = run.request
    connection = ConnectionRequest(
        servers=request.servers,
        name=request.client_name or run.store.client_name,
        timeout_s=request.timeout,
        give_up_after_s=request.timeout,
        publish_store=run.store,
        on_publish_gap="continue" if request.from_start else "refuse",
        on_failed_write=run.failed_write,
    )
    start = trio.current_time()
    # Refused lines are counted, and the first of them are named with their numbers.
    with hidden_warnings("haclient.client", "publish .+? was refused"):
        async with open_client(connection) as client:
            run.was_connected = True
            await _publish_input(run, client)
    run.summary.seconds = round(trio.current_time() - start, 3)


async def _publish_input(run: PublishRun, client: HAClient) -> None:
    plan = make_plan(run)
    run.base = plan.base
    run.summary.skipped = plan.skip
    is_typed = run.request.is_stdin and os.isatty(0)
    if is_typed:
        print_error("one message per line, Ctrl-D ends", kind="note")
    what, total = f"publish {run.request.topic}", run.scan.lines or None
    with progress_bar(what, total, is_shown=not is_typed) as progress:
        await publish_lines(run, client, plan, progress.update)
    await _flush(run, client)
    run.note(run.ledger.close_open_file(run.store.last_used_sequence))
    run.summary.unpersisted = run.store.unpersisted_count


async def _flush(run: PublishRun, client: HAClient) -> None:
    try:
        await client.publish_flush(timeout=run.request.timeout or _FLUSH_TIMEOUT_S)
    except TimedOut as error:  # no server at all, or one that does not persist in time
        if not client.state.is_logged_on:
            raise lost_connection(run) from error
        raise


async def _work(run: PublishRun) -> int:
    try:
        await _publish_all(run)
    except ReconnectGaveUp as error:
        raise (lost_connection(run) if run.was_connected else error) from error
    summary = run.summary
    print_report(summary, summary.as_text(), as_json=run.request.as_json, aside=True)
    if summary.failed:
        raise run.refusal()
    return ExitCode.OK


def interrupted(run: PublishRun) -> str:
    """The error message of a run that a signal ended; the next run publishes what is stored."""
    told = f"interrupted after {run.summary.published} messages"
    if run.source is not None:
        told += "; run it again to publish the rest"
    return told


def _check(request: PublishRequest) -> None:
    path = request.path
    if request.messages:
        if path is not None:
            raise UsageError("--message and --file: give one of them")
    elif path is None:
        check_open(0, "standard input")
    elif not path.exists():
        raise UsageError(f"{path}: there is no such file")
    elif path.is_dir():
        raise UsageError(f"{path}: a directory is not a file")
    if request.from_start and (path is None or request.store is None):
        raise UsageError("--from-start only means something with --file and --store")


@click.command()
@server_option
@topic_option
@click.option(
    "-f", "--file", default="-", show_default="stdin", help="Read messages from this file."
)
@click.option(
    "-m", "--message", "messages", multiple=True, help="Publish this message; repeatable."
)
@click.option("--delta", is_flag=True, help="The messages are changes of SOW records.")
@click.option("--key", default="", help="The SOW key, for topics whose publishers give it.")
@click.option(
    "--expiration",
    type=Count(min=1),
    metavar="SECONDS",
    help="How long the SOW records live. Default: for ever.",
)
@click.option(
    "--delimiter", default="\\n", show_default=True, help=r"What ends a message: \n, \0, \x01 ..."
)
@click.option(
    "--store",
    type=FilePath(path_type=Path),
    help="Keep what is not persisted in this publish store; with --file, resume after a kill.",
)
@click.option("--from-start", is_flag=True, help="Publish every line, also those published before.")
@click.option("--rate", type=POSITIVE_NUMBER, metavar="NUMBER", help="Messages per second.")
@client_name_option
@timeout_option(
    help="How long the server may take to persist the rest, and how long a lost connection is "
    "looked for. Default: 30."
)
@json_option
@with_request(PublishRequest)
def publish(request: PublishRequest) -> int:
    """Publish messages, and wait until they are persisted.

    Example: haclient publish --topic orders -m '{"id": 1}'
    """
    _check(request)
    delimiter = parse_delimiter(request.delimiter)
    if request.store is not None:
        note_new_directories(request.store)
    opened = MemoryPublishStore() if request.store is None else FilePublishStore(request.store)
    with closing(opened) as store:
        summary = PublishSummary(topic=request.topic, resent=store.unpersisted_count)
        run = PublishRun(request=request, store=store, delimiter=delimiter, summary=summary)
        read_ledger(run)
        return run_until_signal(partial(_work, run), partial(interrupted, run))
