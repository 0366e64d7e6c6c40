"""`haclient subscribe`: print messages as they come, resumable with a store.

A subscription with a bookmark continues after a reconnect, on whichever server; without `--store`
its position is kept in memory. A subscription without a bookmark ends with its connection, because
it is unknown which messages it missed.

With `--store` each message is written to standard output, and only then discarded, with no await in
between. So SIGTERM never finds a message that is printed but not discarded, and SIGKILL finds at
most one.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import trio

from haclient.cli.connection import GIVE_UP_AFTER_S, Connection, open_client
from haclient.cli.options import (
    client_name_option,
    filter_option,
    json_option,
    not_empty,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter, as_json_line, as_line
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.errors import DisconnectedError, ReconnectGaveUp, TimedOut, UsageError
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState
from haclient.stores import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from haclient.streams import MessageStream
from haclient.transport.nursery import open_nursery
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, StartPoint, parse_bookmark

_CHECKPOINT_EVERY: Final = 64
"""Messages between two checkpoints for signals, while the output takes all at once."""

_REPLAY_LIMIT_S: Final = 60.0
"""How long a replay may stand still before the command gives up."""

_WORDS: Final[dict[str, StartPoint]] = {"epoch": EPOCH, "now": NOW, "recent": MOST_RECENT}

_FORMS: Final = (
    "epoch, now, recent, a bookmark such as 7|42|, a time such as 20261120T093000Z, "
    "or a range such as [20261120T093000Z:20261120T100000Z)"
)


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
            UsageError: The bookmark is malformed, or it is "recent" without a store.
        """
        if self.bookmark is None:
            return MOST_RECENT if self.store is not None else None
        start = _WORDS.get(self.bookmark.lower())
        if start is None:
            try:
                start = parse_bookmark(self.bookmark)
            except UsageError as error:
                raise UsageError(f"--bookmark {self.bookmark}: wanted {_FORMS}") from error
        if start is MOST_RECENT and self.store is None:
            raise UsageError("--bookmark recent needs --store: it goes on where that store stopped")
        return start

    @property
    def stable_sub_id(self) -> str:
        """The subscription id; by default the topic, so that the next run finds its position."""
        return self.sub_id or quote(self.topic, safe="/._-")


@dataclass(slots=True)
class SubscribeRun:
    """One run of the command, and how many messages it has printed."""

    request: SubscribeRequest
    start: StartPoint | None
    store: LoggedBookmarkStore | None
    printed: int = 0
    was_connected: bool = False
    connected_at: float | None = None
    caught_up_at: float | None = None
    last_message_at: float = 0.0
    resubscribed: trio.Event = field(default_factory=trio.Event)

    @property
    def is_complete(self) -> bool:
        """The requested number of messages has been printed."""
        return self.request.count is not None and self.printed >= self.request.count

    def idle_since(self, messages: MessageStream) -> float | None:
        """The time since which no live message has arrived; `None` while none can arrive.

        No message can arrive without a connection or during a replay. If the connection cannot be
        restored, the client itself gives up.
        """
        if self.connected_at is None or self.caught_up_at is None or self._is_behind(messages):
            return None
        return max(self.connected_at, self.caught_up_at, self.last_message_at)

    def _is_behind(self, messages: MessageStream) -> bool:
        """Whether a replay is under way; a plain subscription has none."""
        return self.start is not None and not messages.caught_up

    def on_state(self, state: ConnectionState) -> None:
        """Record when a connection was established on which messages can arrive."""
        if state is ConnectionState.RESUBSCRIBED:
            self.connected_at = trio.current_time()
            self.resubscribed.set()
        elif state is ConnectionState.DISCONNECTED:
            self.connected_at = None

    async def note_caught_up(self, messages: MessageStream) -> None:
        """Record when each replay is complete: the first one, and one per later connection."""
        while True:
            if self.start is not None:
                await messages.wait_caught_up()
            self.caught_up_at = trio.current_time()
            while not self._is_behind(messages):
                await self.resubscribed.wait()
                self.resubscribed = trio.Event()


def _bookmark_store(run: SubscribeRun) -> BookmarkStore | None:
    """The store that keeps the resume position; one in memory still survives a reconnect."""
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


async def print_messages(run: SubscribeRun, messages: MessageStream, output: OutputWriter) -> None:
    """Print and discard messages, up to the requested number or until none came for too long.

    Raises:
        TimedOut: The replay is incomplete and makes no progress.
        HAClientError: The subscription ended with an error.
    """
    run.connected_at = run.last_message_at = trio.current_time()
    async with open_nursery() as nursery:
        nursery.start_soon(run.note_caught_up, messages)
        await _print_until_idle(run, messages, output)
        nursery.cancel_scope.cancel()
    if messages.end_reason is not None:
        raise messages.end_reason


async def _print_until_idle(
    run: SubscribeRun, messages: MessageStream, output: OutputWriter
) -> None:
    limit_s = run.request.timeout or float("inf")
    batches = messages.batches()
    deadline = trio.current_time() + limit_s
    while True:
        with trio.move_on_at(deadline) as idle:
            async for batch in batches:
                idle.deadline = float("inf")  # a full pipe delays us: the stream is not idle
                await _print_batch(run, output, batch)
                if run.is_complete:
                    return
                run.last_message_at = trio.current_time()
                idle.deadline = run.last_message_at + limit_s
            return
        now, idle_since = trio.current_time(), run.idle_since(messages)
        if idle_since is None:
            _check_replay(run, now)
            deadline = now + limit_s
        elif now < idle_since + limit_s:  # the clock started only after the last message
            deadline = idle_since + limit_s
        else:
            return


def _check_replay(run: SubscribeRun, now: float) -> None:
    """Raise `TimedOut` when a connected server sends nothing of the replay for too long."""
    if run.connected_at is None:
        return
    quiet_s = now - max(run.connected_at, run.last_message_at)
    if quiet_s >= _REPLAY_LIMIT_S:
        raise TimedOut(
            f"the replay is not complete, and the server has sent nothing of it for {quiet_s:.0f} s"
        )


async def _print_batch(run: SubscribeRun, output: OutputWriter, batch: list[Message]) -> None:
    form = as_json_line if run.request.as_json else as_line
    for message in batch:
        await output.write(form(message))
        message.discard()  # no await in between: a signal finds it both printed and discarded
        run.printed += 1
        if run.is_complete:
            return
        if not run.printed % _CHECKPOINT_EVERY:
            await trio.lowlevel.checkpoint()


async def _work(run: SubscribeRun, output: OutputWriter) -> int:
    request = run.request
    owner = "" if run.store is None else run.store.client_name
    connection = Connection(
        servers=request.servers,
        name=request.client_name or owner,
        timeout_s=request.timeout,
        give_up_after_s=request.timeout,
        bookmark_store=_bookmark_store(run),
    )
    try:
        async with open_client(connection) as client, _messages(client, run) as messages:
            run.was_connected = True
            client.add_state_listener(run.on_state)
            await print_messages(run, messages, output)
    except OutputClosed:  # the pipe was closed (`| head`); what was not printed is not discarded
        return ExitCode.OK
    except ReconnectGaveUp as error:
        if not run.was_connected:
            raise
        raise DisconnectedError(
            f"the connection was lost after {run.printed} messages and not found again within "
            f"{request.timeout or GIVE_UP_AFTER_S:g} s"
        ) from error
    if request.count is None or run.is_complete:
        return ExitCode.OK
    raise TimedOut(
        f"{run.printed} of {request.count} messages came, then none for {request.timeout:g} s"
    )


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
@click.option(
    "--sub-id", callback=not_empty, help="The subscription id. Default: made of the topic."
)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Remember in this bookmark store what was printed, and go on there next time.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after so many messages.")
@client_name_option
@timeout_option(
    help="End when no message came for so long (default: never); also the limit for "
    "connecting to a server (default: 10) and for finding one again (default: 30)."
)
@json_option
@with_request(SubscribeRequest)
def subscribe(request: SubscribeRequest) -> int:
    """Print messages as they come, one per line."""
    start, output = request.start, OutputWriter(STDOUT)  # mistakes come before any file is made
    store = None if request.store is None else LoggedBookmarkStore(request.store)
    with closing(store) if store is not None else nullcontext():
        run = SubscribeRun(request, start, store)
        return run_until_signal(
            partial(_work, run, output),
            lambda: f"interrupted after {run.printed} messages",
            # Only promised work that was not done is a failure.
            is_service=request.count is None,
        )
