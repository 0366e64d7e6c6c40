"""`haclient subscribe`: print messages as they come, resumable with a store.

A subscription with a bookmark continues after a reconnect, on whichever server; without `--store`
its position is kept in memory. A subscription without a bookmark ends with its connection, because
it is unknown which messages it missed.

With `--store` each message is written to standard output, and only then discarded, with no await in
between. So SIGTERM never finds a message that is printed but not discarded, and SIGKILL finds at
most one.
"""

from __future__ import annotations

from collections import deque
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from math import inf
from pathlib import Path
from typing import Final
from urllib.parse import quote

import click
import trio

from haclient.cli.connection import (
    CONNECT_TIMEOUT_S,
    GIVE_UP_AFTER_S,
    ConnectionRequest,
    open_client,
)
from haclient.cli.message_format import Form, format_option, message_form, pretty_option
from haclient.cli.options import (
    POSITIVE_NUMBER,
    Count,
    FilePath,
    client_name_option,
    count_option,
    delta_option,
    filter_option,
    json_option,
    select_option,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter, as_line
from haclient.cli.queue.statistics import check_no_lease, check_no_queue
from haclient.cli.start_time import FORMS as START_TIMES
from haclient.cli.start_time import parse_start_time
from haclient.cli.termination import ExitCode, note_new_directories, run_until_signal
from haclient.client import HAClient
from haclient.errors import (
    BookmarkNotFound,
    DisconnectedError,
    HAClientError,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.events import Event, StateChanged
from haclient.protocol.identity import version_number
from haclient.protocol.messages import Message
from haclient.protocol.options import Options, Rate
from haclient.session.connection_state import ConnectionState
from haclient.stores import BookmarkStore, LoggedBookmarkStore, MemoryBookmarkStore
from haclient.streams import MessageStream
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark import (
    EPOCH,
    MOST_RECENT,
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    MostRecent,
    Now,
    StartPoint,
    Timestamp,
    parse_bookmark,
)

_CHECKPOINT_EVERY: Final = 64
"""Messages between two checkpoints for signals, while the output takes all at once."""

_MAX_LAST: Final = 100_000
"""The most messages of `--last`: they are kept in memory until the end of the log."""

_REPLAY_LIMIT_S: Final = 60.0
"""How long a replay may stand still before the command gives up."""

_NOT_FOUND_SINCE: Final = 5_030_500
"""The first server version with the option `bookmark_not_found`: 5.3.5."""

_WORDS: Final[dict[str, StartPoint]] = {"epoch": EPOCH, "now": NOW, "recent": MOST_RECENT}

_FORMS: Final = (
    f"epoch, now, recent, a bookmark such as 7|42|, {START_TIMES}, "
    "or a range such as [20261120T093000Z:20261120T100000Z)"
)


def _parse_rate(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            Rate.parse(value)
        except UsageError as error:
            raise click.BadParameter(str(error)) from error
    return value


def _parse_conflation(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> str | None:
    try:
        return value if value is None else str(Options(conflation=value).conflation)
    except UsageError as error:
        raise click.BadParameter(str(error)) from error


def _parse_key(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    paths = tuple(part.strip() for part in (value or "").split(",") if part.strip())
    for path in paths:
        if not path.startswith("/"):
            raise click.BadParameter(f"wanted paths such as /id or /id,/side, found {path!r}")
    if value is not None and not paths:
        raise click.BadParameter("wanted paths such as /id or /id,/side, found none")
    return paths


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeArguments:
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
    since: str | None = None
    last: int | None = None
    exit_at_end: bool = False
    format: str | None = None
    delta: bool = False
    select: tuple[str, ...] = ()
    rate: str | None = None
    conflation: str | None = None
    conflation_key: tuple[str, ...] = ()
    until: str | None = None
    replay_timeout: float | None = None
    pretty: bool = False

    @property
    def start(self) -> StartPoint | None:
        """Where to begin; `None` for a plain subscription without replay.

        Raises:
            UsageError: The bookmark is malformed, or it is "recent" without a store.
        """
        if self.bookmark is not None and self.since is not None:
            raise UsageError("--bookmark and --since both say where to begin: give one of them")
        if self.last is not None and self.store is not None:
            raise UsageError("--last and --store both say where to begin: give one of them")
        if self.conflation_key and self.conflation is None:
            raise UsageError("--conflation-key needs --conflation, the interval")
        start = self._until(self._named_start())
        if self.exit_at_end:
            start = _up_to_end_of_log(start)
        if start is not None and self.delta:
            raise UsageError(
                "--delta has no replay: leave --bookmark, --since, --last and --store out"
            )
        if start is MOST_RECENT and self.store is None:
            raise UsageError("--bookmark recent needs --store: it goes on where that store stopped")
        if start is None and self.rate is not None:
            raise UsageError("--rate needs a replay: give --bookmark, --since, --last or --store")
        if start is None and self.replay_timeout is not None:
            raise UsageError(
                "--replay-timeout needs a replay: give --bookmark, --since, --last or --store"
            )
        if start is None and self.exit_at_end:
            raise UsageError(
                "--exit needs a replay that can end: give --bookmark, --since, --last or --store"
            )
        return start

    def _until(self, start: StartPoint | None) -> StartPoint | None:
        """The replay with its end, if it has one."""
        if self.until is None:
            return start
        if start is None or isinstance(start, MostRecent | BookmarkRange):
            raise UsageError(
                "--until needs a beginning that is no range: --since TIME or --bookmark epoch"
            )
        if self.store is not None:
            raise UsageError(
                "--until and --store: a store goes on where it stopped, without an end"
            )
        now = datetime.now(UTC)  # noqa: TID251  # the command line is the edge
        try:
            end = parse_start_time(self.until, now)
        except UsageError as error:
            raise UsageError(f"--until {error}") from error
        return BookmarkRange(start, end, f"{_opening_of(start)})")

    def _named_start(self) -> StartPoint | None:
        now = datetime.now(UTC)  # noqa: TID251  # the command line is the edge
        if self.since is not None:
            try:
                return parse_start_time(self.since, now)
            except UsageError as error:
                raise UsageError(f"--since {error}") from error
        if self.bookmark is None:
            if self.last is not None:
                return EPOCH
            return MOST_RECENT if self.store is not None else None
        if start := _WORDS.get(self.bookmark.lower()):
            return start
        for parse in (parse_bookmark, partial(parse_start_time, now=now)):
            with suppress(UsageError):
                return parse(self.bookmark)
        raise UsageError(f"--bookmark {self.bookmark}: wanted {_FORMS}")

    @property
    def stops_at_end(self) -> bool:
        """Whether something happens at the end of the replay."""
        return self.exit_at_end or self.last is not None or self.until is not None

    @property
    def ends_at_end(self) -> bool:
        """Whether it ends at the end of the replay."""
        return self.exit_at_end or self.until is not None

    @property
    def replay_limit_s(self) -> float:
        """How long a replay may be without progress before the command gives up, in seconds.

        There is no limit for a replay with a rate or a future end, nor for a command without an
        end: a server sends nothing while it reads messages that do not match.
        """
        if self.replay_timeout is not None:
            return self.replay_timeout
        has_time = self.rate is not None or self.until is not None
        is_followed = not self.stops_at_end and self.timeout is None
        return inf if has_time or is_followed else _REPLAY_LIMIT_S

    @property
    def stable_sub_id(self) -> str:
        """The subscription id; by default the topic, so that the next run finds its position."""
        named = quote(self.topic, safe="/._-")
        return self.sub_id or ("%61ll" if named == "all" else named)  # a word of `unsubscribe`


def _opening_of(start: StartPoint) -> str:
    """The bracket of a range that begins as a replay from this point does.

    A bookmark is that of the last message that was seen; a time is the first that is wanted.
    """
    return "(" if isinstance(start, Bookmark | BookmarkList | Now) else "["


def _up_to_end_of_log(start: StartPoint | None) -> StartPoint | None:
    """The same without an end that is in the future: the replay of such a range ends only then.

    Raises:
        UsageError: It begins as only a range can.
    """
    now = datetime.now(UTC)  # noqa: TID251  # the command line is the edge
    if not isinstance(start, BookmarkRange) or not isinstance(start.end, Timestamp):
        return start
    if start.end.datetime <= now:
        return start
    if start.brackets[0] != _opening_of(start.begin):
        raise UsageError(
            f"--exit and the range {start}, which ends in the future: leave --exit out, or give "
            "a time or a bookmark alone"
        )
    return start.begin


@dataclass(slots=True)
class SubscribeRun:
    """One run of the command, and how many messages it has printed."""

    request: SubscribeArguments
    start: StartPoint | None
    store: LoggedBookmarkStore | None
    printed: int = 0
    was_connected: bool = False
    connected_at: float | None = None
    caught_up_at: float | None = None
    last_message_at: float = 0.0
    resubscribed: trio.Event = field(default_factory=trio.Event)
    form: Form = as_line

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
        return self.start is not None and not _is_over(messages)

    def on_event(self, event: Event) -> None:
        """Record when a connection was established on which messages can arrive."""
        match event:
            case StateChanged(state=ConnectionState.RESUBSCRIBED):
                self.connected_at = trio.current_time()
                self.resubscribed.set()
            case StateChanged(state=ConnectionState.DISCONNECTED):
                self.connected_at = None
            case _:
                pass

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


def _can_fail_if_missing(client: HAClient, start: StartPoint | None) -> bool:
    """Whether the server can fail on a missing bookmark; others would start at the end."""
    is_named = isinstance(start, Bookmark | BookmarkList | BookmarkRange)
    version = version_number(client.connection_info["server_version"])
    return is_named and version >= _NOT_FOUND_SINCE


def _messages(client: HAClient, run: SubscribeRun) -> MessageStream:
    request = run.request
    options = Options(
        select=request.select,
        rate=request.rate,
        conflation=request.conflation,
        conflation_key=request.conflation_key,
        bookmark_not_found="fail" if _can_fail_if_missing(client, run.start) else None,
    )
    answer_limit_s = request.timeout or CONNECT_TIMEOUT_S
    if run.start is None:
        return client.stream(
            request.topic,
            filter=request.filter,
            options=options,
            sub_id=request.stable_sub_id,
            delta=request.delta,
            timeout=answer_limit_s,
        )
    return client.bookmark_stream(
        request.topic,
        sub_id=request.stable_sub_id,
        bookmark=run.start,
        filter=request.filter,
        options=options,
        timeout=answer_limit_s,
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
        if run.request.stops_at_end:
            await _print_from_end(run, messages, output)
        else:
            await _print_until_idle(run, messages, output)
        nursery.cancel_scope.cancel()
    if messages.end_reason is not None:
        raise messages.end_reason


async def _print_from_end(run: SubscribeRun, messages: MessageStream, output: OutputWriter) -> None:
    """Print the replay or its last messages; then end, or print what follows."""
    live = await _read_replay(run, messages, output)
    if run.is_complete or run.request.ends_at_end:
        return
    await _print_batch(run, output, live)
    run.last_message_at = trio.current_time()
    if not run.is_complete:
        await _print_until_idle(run, messages, output)


async def _read_replay(
    run: SubscribeRun, messages: MessageStream, output: OutputWriter
) -> list[Message]:
    """Print the replay up to its end, or with `--last` its last messages.

    Returns:
        The live messages that were taken with the end of the replay. They are not printed.

    Raises:
        TimedOut: The replay makes no progress.
    """
    last: deque[Message] = deque()
    live: list[Message] = []
    with trio.CancelScope() as waiting:
        async with open_nursery() as nursery:
            nursery.start_soon(_watch_replay, run, messages, waiting)
            # `caught_up` is set by taking messages: whenever it is, nothing of the replay is left,
            # so that the cancellation cannot meet a message of the replay that is being printed.
            async for batch in messages.batches():
                if messages.caught_up:
                    live = batch
                    break
                run.last_message_at = float("inf")  # a full pipe is not a server that stands still
                await _take_replayed(run, output, batch, last)
                run.last_message_at = trio.current_time()
                if run.is_complete:
                    break
            nursery.cancel_scope.cancel()
    run.last_message_at = trio.current_time()
    await _print_batch(run, output, list(last))
    return live


async def _take_replayed(
    run: SubscribeRun, output: OutputWriter, batch: list[Message], last: deque[Message]
) -> None:
    check_no_lease(batch)
    if run.request.last is None:
        await _print_batch(run, output, batch)
        return
    for message in batch:
        last.append(message)
        if len(last) > run.request.last:
            last.popleft().discard()  # it need not come again after a lost connection


async def _watch_replay(
    run: SubscribeRun, messages: MessageStream, waiting: trio.CancelScope
) -> None:
    """End the wait for messages at the end of the replay, or with an error when it stands still."""
    while not _is_over(messages):
        with trio.move_on_after(run.request.replay_limit_s):
            await messages.wait_caught_up()
        if not _is_over(messages):
            _check_replay(run, trio.current_time())
    waiting.cancel()


def _is_over(messages: MessageStream) -> bool:
    """Whether nothing more of the replay comes."""
    return messages.caught_up or messages.ended


async def _print_until_idle(
    run: SubscribeRun, messages: MessageStream, output: OutputWriter
) -> None:
    limit_s = run.request.timeout or inf
    check_s = min(
        limit_s, run.request.replay_limit_s
    )  # the replay after a reconnect may stall, too
    batches = messages.batches()
    deadline = trio.current_time() + check_s
    while True:
        batch = None
        with trio.move_on_at(deadline) as waiting:  # without the writing, which would be cut
            batch = await anext(batches, None)
        if batch is not None:
            await _print_batch(run, output, batch)
            if run.is_complete:
                return
            run.last_message_at = trio.current_time()
            deadline = run.last_message_at + check_s
            continue
        if not waiting.cancelled_caught:
            return
        now, idle_since = trio.current_time(), run.idle_since(messages)
        if idle_since is None:
            deadline = _check_replay(run, now)
        elif now < idle_since + limit_s:  # the clock started only after the last message
            deadline = min(idle_since + limit_s, now + check_s)
        else:
            return


def _check_replay(run: SubscribeRun, now: float) -> float:
    """Check that a replay progresses; return when to check again.

    Raises:
        TimedOut: The server has sent nothing of the replay for too long.
    """
    limit_s = run.request.replay_limit_s
    if run.connected_at is None:
        return now + limit_s
    quiet_since = max(run.connected_at, run.last_message_at)
    if now < quiet_since + limit_s:
        return quiet_since + limit_s
    raise TimedOut(
        "the replay is not complete, and the server has sent nothing of it for "
        f"{now - quiet_since:.0f} s"
    )


async def _print_batch(run: SubscribeRun, output: OutputWriter, batch: list[Message]) -> None:
    check_no_lease(batch)
    for message in batch:
        await output.write(run.form(message))
        message.discard()  # no await in between: a signal finds it both printed and discarded
        run.printed += 1
        if run.is_complete:
            return
        if not run.printed % _CHECKPOINT_EVERY:
            await trio.lowlevel.checkpoint()


def _loss(run: SubscribeRun, error: DisconnectedError) -> str:
    """How a lost connection has ended the command; empty where the error itself says it best."""
    lost = f"the connection was lost after {run.printed} messages"
    if run.was_connected and isinstance(error, ReconnectGaveUp):
        return f"{lost} and not found again within {run.request.timeout or GIVE_UP_AFTER_S:g} s"
    if run.was_connected and run.start is None and error.__cause__ is not None:
        # Its own text advises programs, by the names of methods.
        return (
            f"{lost}, and later ones may be missing: {error.__cause__}: --bookmark now would "
            "continue after a lost connection"
        )
    return ""


async def _work(run: SubscribeRun, output: OutputWriter) -> int:
    request = run.request
    owner = "" if run.store is None else run.store.client_name
    connection = ConnectionRequest(
        servers=request.servers,
        name=request.client_name or owner,
        timeout_s=request.timeout,
        give_up_after_s=request.timeout,
        bookmark_store=_bookmark_store(run),
    )
    try:
        async with open_client(connection) as client:
            if run.start is None:
                await check_no_queue(
                    client, request.topic, limit_s=request.timeout or CONNECT_TIMEOUT_S
                )
            async with _messages(client, run) as messages:
                run.was_connected = True
                client.add_event_listener(run.on_event, StateChanged)
                await print_messages(run, messages, output)
    except BookmarkNotFound as error:
        if run.was_connected:
            raise HAClientError(
                f"after {run.printed} messages the connection was lost, and the server that was "
                "found does not have the last of them in its log: is it the same log?"
            ) from error
        raise HAClientError(
            f"--bookmark {request.bookmark} is not in the log of this server: give the bookmark of "
            "a message that it has, a time (--since 1h), or epoch for all that it has"
        ) from error
    except OutputClosed:  # the pipe was closed (`| head`); what was not printed is not discarded
        return ExitCode.OK
    except DisconnectedError as error:
        if text := _loss(run, error):
            raise DisconnectedError(text) from error
        raise
    if request.count is None or run.is_complete:
        return ExitCode.OK
    if request.ends_at_end:
        raise TimedOut(f"{run.printed} of {request.count} messages came before the end of the log")
    raise TimedOut(
        f"{run.printed} of {request.count} messages came, then none for {request.timeout:g} s"
    )


@click.command()
@server_option
@topic_option
@filter_option
@select_option
@click.option(
    "--bookmark",
    metavar="WHERE",
    help="Replay from: epoch, now, recent, a bookmark, a time or a range. "
    "Default: recent with --store, else no replay.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Replay from this time, such as 2026-11-20T09:30:00Z (UTC where it has no zone), or from "
    "so long ago: 30s, 15m, 1h, 2d.",
)
@click.option(
    "--last",
    type=Count(1, _MAX_LAST),
    metavar="N",
    help="Print the last so many messages of the log, then what follows.",
)
@click.option("-e", "--exit", "exit_at_end", is_flag=True, help="End at the end of the log.")
@click.option("--until", metavar="TIME", help="End before this time; as with --since.")
@click.option(
    "--replay-timeout",
    type=POSITIVE_NUMBER,
    metavar="SECONDS",
    help="Give up when the replay makes no progress for so long. Default: 60 with --exit, --last "
    "or --timeout, else no limit.",
)
@click.option(
    "--rate",
    callback=_parse_rate,
    help="How fast to replay: 1000 messages a second, 64KB a second, or 2X as fast as published.",
)
@click.option(
    "--conflation",
    metavar="INTERVAL",
    callback=_parse_conflation,
    help="Print the last message of each key only, once in an interval such as 100ms or 5s.",
)
@click.option(
    "--conflation-key",
    metavar="FIELDS",
    callback=_parse_key,
    help="The fields of the key, such as /id or /id,/side. Default: that of the topic's records.",
)
@click.option("--sub-id", help="The subscription id. Default: made of the topic.")
@click.option(
    "--store",
    type=FilePath(path_type=Path),
    help="Remember in this bookmark store what was printed, and go on there next time.",
)
@count_option
@client_name_option
@timeout_option(
    help="End when no message came for so long (default: never); also the limit for "
    "connecting to a server (default: 10) and for finding one again (default: 30)."
)
@format_option
@json_option
@pretty_option
@delta_option
@with_request(SubscribeArguments)
def subscribe(request: SubscribeArguments) -> int:
    """Print messages as they come, one per line.

    Example: haclient subscribe --topic orders --since 1h --exit
    """
    form = message_form(request.format, as_json=request.as_json, pretty=request.pretty)
    start, output = request.start, OutputWriter(STDOUT)  # mistakes come before any file is made
    if request.store is not None:
        note_new_directories(request.store)
    store = None if request.store is None else LoggedBookmarkStore(request.store)
    with closing(store) if store is not None else nullcontext():
        run = SubscribeRun(request, start, store, form=form)
        return run_until_signal(
            partial(_work, run, output),
            lambda: f"interrupted after {run.printed} messages",
            output=output,
            # Only promised work that was not done is a failure.
            is_service=request.count is None,
        )
