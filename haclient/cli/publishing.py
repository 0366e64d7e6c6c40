"""One run of `haclient publish`: what it remembers, what it has to do, and the loop itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio

from haclient.cli.linebook import NOTE, LineBook, Plan, Source
from haclient.cli.lines import Scan, open_lines, scan_file
from haclient.client import Client
from haclient.errors import DisconnectedError, StoreError
from haclient.protocol.messages import Message
from haclient.stores import FilePublishStore, MemoryPublishStore

__all__ = [
    "Pace",
    "PublishRequest",
    "PublishRun",
    "Summary",
    "lost_connection",
    "make_plan",
    "publish_lines",
    "read_book",
]

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

    @property
    def is_regular_file(self) -> bool:
        """Whether the input can be read again: a pipe with a name is read like stdin."""
        return self.path is not None and self.path.is_file()


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
    was_connected: bool = False
    first_failure: str = ""

    @property
    def source(self) -> Source | None:
        """What the book knows the input by; `None` when nothing can be resumed."""
        path = self.request.path
        if path is None or not path.is_file() or not isinstance(self.store, FilePublishStore):
            return None
        return Source(str(path.resolve()), self.request.topic, self.delimiter)

    def failed_write(self, _message: Message, reason: str) -> None:
        """The server refused one message (PS6)."""
        self.summary.failed += 1
        self.first_failure = self.first_failure or reason

    def note(self, book: LineBook) -> None:
        """Remember the book; it is on disk before anything relies on it."""
        self.book = book
        if isinstance(self.store, FilePublishStore):
            self.store.set_note(NOTE, book.note())


def read_book(run: PublishRun) -> None:
    """Read the store's book and scan the file; nothing is changed yet."""
    if isinstance(run.store, FilePublishStore):
        run.book = LineBook.parse(run.store.notes.get(NOTE, ""))
    source, path = run.source, run.request.path
    if source is not None and run.request.from_start:
        run.book = run.book.forget(source)
    if path is not None and run.request.is_regular_file:
        prefix = run.book.noted_size(source) if source is not None else 0
        run.scan = scan_file(path, run.delimiter, prefix=prefix)


def make_plan(run: PublishRun) -> Plan:
    """Settle what was open and begin this input: after the logon, before the first message."""
    last = run.store.last_sequence
    settled = run.book.settle(last)
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


async def publish_lines(
    run: PublishRun, client: Client, plan: Plan, tell: Callable[[int], None]
) -> None:
    """Publish what the plan does not skip, whether there is a connection at the moment or not.

    Raises:
        StoreError: Something else takes numbers of this store.
        StoreFull: There is no room for one more; what was stored stays stored.
    """
    request, pace, number = run.request, Pace(run.request.rate), 0
    size = run.scan.size if request.is_regular_file else None
    async with open_lines(request.path, run.delimiter, size=size) as reader:
        while (lines := await reader.batch()) is not None:
            for line in lines:
                number += 1
                if number > plan.skip:
                    await pace.wait()
                    await _publish_line(run, client, line, plan.base + number)
            tell(number)


async def _publish_line(run: PublishRun, client: Client, line: bytes, expected: int) -> None:
    """Publish one line as the sequence that the book promises for it."""
    sequence = await client.publish(run.request.topic, line)
    run.summary.published += 1
    if sequence != expected:
        raise StoreError(
            f"a message got sequence {sequence} instead of {expected}: "
            "something else publishes with this store"
        )


def lost_connection(run: PublishRun) -> DisconnectedError:
    """The error of a run whose connection has gone for good."""
    what = f"the connection was lost after {run.summary.published} messages and not found again; "
    left = run.store.unpersisted_count
    if isinstance(run.store, FilePublishStore):
        return DisconnectedError(f"{what}{left} of them wait in the store for the next run")
    return DisconnectedError(f"{what}{left} of them are not known to be persisted")
