"""`haclient publish`: one message per line, through a publish store, until all are persisted.

With `--store` and `--file` the command can be killed at any moment and run again: see
`haclient.cli.linebook` for how it knows which lines are missing. The order matters: log on (the
store learns what the server has), settle the book, note the new base, only then publish.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec
import trio

from haclient.cli.connecting import CONNECT_TIMEOUT_S, Connection, open_client
from haclient.cli.exits import ExitCode, Interrupted, complain
from haclient.cli.linebook import NOTE, LineBook, Plan, Source
from haclient.cli.lines import Scan, open_lines, parse_delimiter, scan_file
from haclient.cli.options import (
    client_name_option,
    default_client_name,
    json_option,
    server_option,
    taking,
    timeout_option,
    topic_option,
)
from haclient.cli.progress import progress_bar
from haclient.cli.stopping import run_stoppable
from haclient.client import Client
from haclient.errors import DisconnectedError, PublishFailed, StoreError, UsageError
from haclient.protocol.messages import Message
from haclient.session.states import ConnectionState
from haclient.stores import FilePublishStore, MemoryPublishStore

__all__ = ["Pace", "PublishRequest", "Summary", "publish"]

_FLUSH_TIMEOUT_S: Final = 30.0
"""How long the server may take to persist the rest, when the command line does not say."""

_EMPTY_SCAN: Final = Scan(size=0, digest="", lines=0, prefix_digest="", prefix_is_open=False)


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

    @property
    def path(self) -> Path | None:
        """The file, or `None` for stdin."""
        return None if self.file == "-" else Path(self.file)


class Summary(msgspec.Struct, kw_only=True):
    """What a run did: the result of `--json`."""

    topic: str
    published: int = 0
    skipped: int = 0
    resent: int = 0
    failed: int = 0
    unpersisted: int = 0
    seconds: float = 0.0

    def told(self) -> str:
        """The same for people."""
        told = f"published {self.published} messages to {self.topic} in {self.seconds:.2f} s"
        extras = (
            (self.skipped, "already published"),
            (self.resent, "sent again from the store"),
            (self.failed, "refused by the server"),
        )
        return "".join((told, *(f", {count} {what}" for count, what in extras if count)))


@dataclass(slots=True, kw_only=True)
class PublishRun:
    """One run of the command: what it was asked, where it publishes to, what it has done."""

    request: PublishRequest
    store: FilePublishStore | MemoryPublishStore
    delimiter: bytes
    summary: Summary
    scan: Scan = _EMPTY_SCAN
    book: LineBook = field(default_factory=LineBook)
    first_failure: str = ""
    had_history: bool = False

    @property
    def source(self) -> Source | None:
        """What the book knows the input by; `None` when nothing can be resumed."""
        if self.request.path is None or not isinstance(self.store, FilePublishStore):
            return None
        return Source(str(self.request.path.resolve()), self.request.topic, self.delimiter)

    def failed_write(self, _message: Message, reason: str) -> None:
        """The server refused one message (PS6)."""
        self.summary.failed += 1
        self.first_failure = self.first_failure or reason

    def note(self, book: LineBook) -> None:
        """Remember the book; it is on disk before anything relies on it."""
        self.book = book
        if isinstance(self.store, FilePublishStore):
            self.store.set_note(NOTE, book.note())


def _open_store(request: PublishRequest) -> FilePublishStore | MemoryPublishStore:
    return MemoryPublishStore() if request.store is None else FilePublishStore(request.store)


def _read_book(run: PublishRun) -> None:
    """Read the store's book and scan the file; nothing is changed yet."""
    if isinstance(run.store, FilePublishStore):
        run.book = LineBook.parse(run.store.notes.get(NOTE, ""))
    source, path = run.source, run.request.path
    if source is not None and run.request.from_start:
        run.book = run.book.forget(source)
    if path is not None:
        prefix = run.book.noted_size(source) if source is not None else 0
        run.scan = scan_file(path, run.delimiter, prefix=prefix)


def _taken_so_far(run: PublishRun) -> int:
    """The highest sequence that lines can have taken.

    A store that never took a message starts from the clock at each logon. If a run was killed
    between its note and its first line, what the server has persisted tells the truth, not that
    new start.
    """
    return run.store.last_sequence if run.had_history else run.store.last_persisted


def _make_plan(run: PublishRun) -> Plan:
    """Settle what was open and begin this input: after the logon, before the first message."""
    last = run.store.last_sequence
    settled = run.book.settle(_taken_so_far(run))
    if run.source is None:
        if settled != run.book:
            run.note(settled)
        return Plan(skip=0, base=last)
    book, plan = settled.begin(run.source, run.scan, last)
    run.note(book)
    return plan


class Pace:
    """Spreads messages evenly over time; without a rate it never waits."""

    def __init__(self, rate: float | None) -> None:
        self._interval_s = 0.0 if rate is None else 1.0 / rate
        self._due = trio.current_time()

    async def wait(self) -> None:
        """Until the next message is due; the first is at once."""
        if self._interval_s:
            await trio.sleep_until(self._due)
            self._due += self._interval_s


async def _publish_lines(
    run: PublishRun, client: Client, plan: Plan, tell: Callable[[int], None]
) -> None:
    pace, number = Pace(run.request.rate), 0
    async with open_lines(run.request.path, run.delimiter, size=run.scan.size) as reader:
        while (lines := await reader.batch()) is not None:
            for line in lines:
                number += 1
                if number > plan.skip:
                    await pace.wait()
                    await _publish_line(run, client, line, plan.base + number)
            tell(number)


async def _publish_line(run: PublishRun, client: Client, line: bytes, expected: int) -> None:
    """Publish one line as the sequence that the book promises for it."""
    if client.state is not ConnectionState.LOGGED_ON:
        kept = run.store.unpersisted_count if isinstance(run.store, FilePublishStore) else 0
        raise DisconnectedError(
            f"the connection was lost after {run.summary.published} messages; "
            f"{kept} of them are kept in the store until the next run"
        )
    sequence = await client.publish(run.request.topic, line)
    run.summary.published += 1
    if sequence != expected:
        raise StoreError(
            f"a message got sequence {sequence} instead of {expected}: "
            "something else publishes with this store"
        )


async def _publish_all(run: PublishRun) -> None:
    request = run.request
    connection = Connection(
        servers=request.servers,
        name=request.client_name or run.store.client_name or default_client_name(),
        timeout_s=request.timeout or CONNECT_TIMEOUT_S,
        publish_store=run.store,
        on_failed_write=run.failed_write,
    )
    start = trio.current_time()
    async with open_client(connection) as client:
        plan = _make_plan(run)
        run.summary.skipped = plan.skip
        if plan.remark:
            complain(plan.remark, kind="note")
        with progress_bar(f"publish {request.topic}", run.scan.lines or None) as tell:
            await _publish_lines(run, client, plan, tell)
        await client.publish_flush(timeout=request.timeout or _FLUSH_TIMEOUT_S)
        run.note(run.book.settle(run.store.last_sequence))
    run.summary.seconds = round(trio.current_time() - start, 3)


async def _work(run: PublishRun) -> int:
    await _publish_all(run)
    summary, as_json = run.summary, run.request.as_json
    summary.unpersisted = run.store.unpersisted_count
    click.echo(msgspec.json.encode(summary).decode() if as_json else summary.told())
    if summary.failed:
        raise PublishFailed(
            f"the server refused {summary.failed} messages, the first with: {run.first_failure}"
        )
    return ExitCode.OK


def _stopped(run: PublishRun, _number: int) -> int:
    told = f"interrupted after {run.summary.published} messages"
    if run.source is not None:
        told += "; run it again to publish the rest"
    raise Interrupted(told)


def _check(request: PublishRequest) -> None:
    path = request.path
    if path is not None and not path.is_file():
        raise UsageError(
            f"{path}: there is no such file" if not path.exists() else f"{path}: not a file"
        )
    if request.from_start and (path is None or request.store is None):
        raise UsageError("--from-start only means something with --file and --store")


@click.command()
@server_option
@topic_option
@click.option("--file", default="-", show_default="stdin", help="Read messages from this file.")
@click.option(
    "--delimiter", default="\\n", show_default=True, help=r"What ends a message: \n, \0, \x01 ..."
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Keep what is not persisted in this publish store; with --file, resume after a kill.",
)
@click.option("--from-start", is_flag=True, help="Publish every line, also those published before.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages per second.")
@client_name_option
@timeout_option(help_text="How long the server may take to persist the rest. Default: 30.")
@json_option
@taking(PublishRequest)
def publish(request: PublishRequest) -> int:
    """Publish one message per line and wait until all of them are persisted (CLI1)."""
    _check(request)
    delimiter = parse_delimiter(request.delimiter)
    with closing(_open_store(request)) as store:
        run = PublishRun(
            request=request, store=store, delimiter=delimiter, summary=Summary(topic=request.topic)
        )
        run.summary.resent = store.unpersisted_count
        run.had_history = store.last_sequence > 0
        _read_book(run)
        return run_stoppable(partial(_work, run), partial(_stopped, run))
