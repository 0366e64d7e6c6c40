"""`haclient subscribe`: print messages as they come, resumable with a store.

A subscription with a bookmark goes on when the connection is lost and found again, on whichever
server; without `--store` its place is kept in memory. One without a bookmark ends with its
connection, since nobody could say what it missed.

With `--store` each message is printed, given to the kernel, and only then discarded, with no await
between the last two: a SIGTERM never finds a message printed but not discarded, and a SIGKILL
finds at most one.
"""

from __future__ import annotations

import signal
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import trio

from haclient.cli.connection import CONNECT_TIMEOUT_S, GIVE_UP_AFTER_S, Connection, open_client
from haclient.cli.options import (
    client_name_option,
    default_client_name,
    filter_option,
    json_option,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter, as_json_line, as_line
from haclient.cli.termination import ExitCode, Interrupted, run_until_signal
from haclient.errors import DisconnectedError, TimedOut, UsageError
from haclient.ha import HAClient
from haclient.stores import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from haclient.streams import MessageStream
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, StartPoint, parse_bookmark

__all__ = ["SubscribeRequest", "SubscribeRun", "stopped", "subscribe"]

_LOOK_EVERY: Final = 64
"""Messages between two looks at signals, while the output takes all at once."""

_WORDS: Final[dict[str, StartPoint]] = {"epoch": EPOCH, "now": NOW, "recent": MOST_RECENT}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequest:
    """The options of the command."""

    servers: tuple[str, ...]
    client_name: str | None
    topic: str
    filter: str
    bookmark: str | None
    sub_id: str | None
    store: Path | None
    count: int | None
    timeout: float | None
    as_json: bool

    @property
    def start(self) -> StartPoint | None:
        """Where to begin; `None` for a plain subscription without replay.

        Raises:
            UsageError: The bookmark is malformed, or "recent" has no store to ask.
        """
        if self.bookmark is None:
            return MOST_RECENT if self.store is not None else None
        start = _WORDS.get(self.bookmark.lower()) or parse_bookmark(self.bookmark)
        if start is MOST_RECENT and self.store is None:
            raise UsageError("--bookmark recent needs --store: it goes on where that store stopped")
        return start

    @property
    def stable_sub_id(self) -> str:
        """The subscription id; by default the topic, so that a store finds its place again."""
        return self.sub_id or quote(self.topic, safe="/._-")


@dataclass(slots=True)
class SubscribeRun:
    """One run of the command, and how many messages it has printed."""

    request: SubscribeRequest
    start: StartPoint | None
    store: LoggedBookmarkStore | None
    printed: int = 0

    @property
    def is_complete(self) -> bool:
        """As many messages came as were asked for."""
        return self.request.count is not None and self.printed >= self.request.count


def _bookmark_store(run: SubscribeRun) -> BookmarkStore | None:
    """What knows the place of this subscription; in memory, it outlives a connection at least."""
    if run.store is None and run.start is not None:
        return MemoryBookmarkStore()
    return run.store


def _messages(client: HAClient, run: SubscribeRun) -> MessageStream:
    request = run.request
    if run.start is None:
        return client.stream(request.topic, filter=request.filter, sub_id=request.stable_sub_id)
    return client.bookmark_stream(
        request.topic, sub_id=request.stable_sub_id, bookmark=run.start, filter=request.filter
    )


async def _print_messages(run: SubscribeRun, client: HAClient, messages: MessageStream) -> None:
    """Print, then discard, until there are enough or nothing came for the idle limit."""
    request = run.request
    output = OutputWriter(STDOUT)
    form = as_json_line if request.as_json else as_line
    idle_limit_s = request.timeout or float("inf")
    with trio.move_on_after(idle_limit_s) as idle:
        async for message in messages:
            await output.write(form(message))
            message.discard()
            run.printed += 1
            if run.is_complete:
                return
            if not run.printed % _LOOK_EVERY:
                await trio.lowlevel.checkpoint()
            idle.deadline = trio.current_time() + idle_limit_s
    if messages.end_reason is not None:
        raise messages.end_reason
    if client.disconnected:  # nothing came, but nobody could have said anything
        raise DisconnectedError(
            f"the connection was lost after {run.printed} messages and not found again within "
            f"{idle_limit_s:g} s"
        )


async def _work(run: SubscribeRun) -> int:
    request = run.request
    owner = "" if run.store is None else run.store.client_name
    connection = Connection(
        servers=request.servers,
        name=request.client_name or owner or default_client_name(),
        timeout_s=request.timeout or CONNECT_TIMEOUT_S,
        give_up_after_s=request.timeout or GIVE_UP_AFTER_S,
        bookmark_store=_bookmark_store(run),
    )
    try:
        async with open_client(connection) as client, _messages(client, run) as messages:
            await _print_messages(run, client, messages)
    except OutputClosed:  # nobody reads any more (`| head`): what was not printed is not discarded
        return ExitCode.OK
    if request.count is None or run.is_complete:
        return ExitCode.OK
    raise TimedOut(
        f"{run.printed} of {request.count} messages came, then none for {request.timeout:g} s"
    )


def stopped(run: SubscribeRun, number: int) -> int:
    """SIGTERM stops a service in order; only promised work that was not done is a failure."""
    if number == signal.SIGTERM and run.request.count is None:
        return ExitCode.OK
    raise Interrupted(f"interrupted after {run.printed} messages")


@click.command()
@server_option
@topic_option
@filter_option
@click.option(
    "--bookmark",
    metavar="WHERE",
    help="Replay from: epoch, now, recent, a bookmark, a timestamp or a range. "
    "Default: recent with --store, else no replay.",
)
@click.option("--sub-id", help="The subscription id. Default: made of the topic.")
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Remember in this bookmark store what was printed, and go on there next time.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@client_name_option
@timeout_option(help_text="End when no message came for so long. Default: never.")
@json_option
@with_request(SubscribeRequest)
def subscribe(request: SubscribeRequest) -> int:
    """Print messages as they come, one per line."""
    start = request.start
    store = None if request.store is None else LoggedBookmarkStore(request.store)
    with closing(store) if store is not None else nullcontext():
        run = SubscribeRun(request, start, store)
        return run_until_signal(partial(_work, run), partial(stopped, run))
