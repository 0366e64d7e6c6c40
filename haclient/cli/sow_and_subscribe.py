"""`haclient sow-and-subscribe`: the records of a topic, then its messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import click
import trio

from haclient.cli.connection import CONNECT_TIMEOUT_S, ConnectionRequest, open_client
from haclient.cli.message_format import Form, format_option, message_form, pretty_option
from haclient.cli.options import (
    batch_size_option,
    client_name_option,
    count_option,
    delta_option,
    filter_option,
    json_option,
    order_by_option,
    select_option,
    server_option,
    skip_n_option,
    timeout_option,
    top_n_option,
    topic_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter
from haclient.cli.queue.statistics import check_no_lease, check_no_queue
from haclient.cli.start_time import parse_moment
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.client import BaseClient
from haclient.errors import TimedOut, UsageError
from haclient.protocol.options import Options
from haclient.streams import MessageStream


@dataclass(frozen=True, slots=True, kw_only=True)
class _SowAndSubscribeRequest:
    servers: tuple[str, ...]
    client_name: str | None
    topic: str
    filter: str
    order_by: str
    at: str | None
    top_n: int | None
    skip_n: int | None
    batch_size: int
    select: tuple[str, ...]
    count: int | None
    timeout: float | None
    format: str | None
    as_json: bool
    pretty: bool
    delta: bool


@dataclass(slots=True)
class _SubscribeRun:
    request: _SowAndSubscribeRequest
    form: Form
    output: OutputWriter = field(default_factory=lambda: OutputWriter(STDOUT))
    printed: int = 0

    @property
    def is_complete(self) -> bool:
        return self.request.count is not None and self.printed >= self.request.count


async def _print_until_idle(run: _SubscribeRun, messages: MessageStream) -> None:
    limit_s, batches = run.request.timeout or float("inf"), messages.batches()
    while True:
        batch = None
        with trio.move_on_after(limit_s):  # without the writing: a full pipe is not an idle server
            batch = await anext(batches, None)
        if batch is None:
            break
        check_no_lease(batch)
        for message in batch:
            await run.output.write(run.form(message))
            run.printed += 1
            if run.is_complete:
                return
        await trio.lowlevel.checkpoint()
    if messages.end_reason is not None:
        raise messages.end_reason
    if not messages.caught_up:
        raise TimedOut(f"the query on {run.request.topic} is not complete after {limit_s:g} s")


def _stream_of(client: BaseClient, request: _SowAndSubscribeRequest) -> MessageStream:
    page = Options(select=request.select, top_n=request.top_n, skip_n=request.skip_n)
    answer_limit_s = request.timeout or CONNECT_TIMEOUT_S
    return client.sow_and_stream(
        request.topic,
        filter=request.filter,
        order_by=request.order_by,
        bookmark=parse_moment(request.at),
        batch_size=request.batch_size,
        options=page,
        delta=request.delta,
        timeout=answer_limit_s,
    )


async def _work(run: _SubscribeRun) -> int:
    request = run.request
    connection = ConnectionRequest(
        servers=request.servers, name=request.client_name, timeout_s=request.timeout
    )
    try:
        async with open_client(connection) as client:
            if request.at is None:
                await check_no_queue(
                    client, request.topic, limit_s=request.timeout or CONNECT_TIMEOUT_S
                )
            async with _stream_of(client, request) as messages:
                await _print_until_idle(run, messages)
    except OutputClosed:  # `| head` has seen enough
        return ExitCode.OK
    if request.count is None or run.is_complete:
        return ExitCode.OK
    raise TimedOut(
        f"{run.printed} of {request.count} messages came, then none for {request.timeout:g} s"
    )


@click.command("sow-and-subscribe")
@server_option
@topic_option
@filter_option
@order_by_option
@top_n_option(is_eager=True, help="Begin with at most so many records.")
@click.option(
    "--at",
    metavar="TIME",
    help="Begin with the records as they were at this time, such as 2026-11-20T09:30:00Z, 15m or "
    "1h ago, or right after the message of a bookmark, and print each message since. For topics "
    "that keep their history.",
)
@skip_n_option(help="Follow one page of the records: the first --top-n after so many.")
@select_option
@batch_size_option
@count_option
@client_name_option
@timeout_option(
    help="End when no message came for so long (default: never); also the limit for connecting to "
    "a server and for its first answer (default: 10)."
)
@format_option
@json_option
@pretty_option
@delta_option
@with_request(_SowAndSubscribeRequest)
def sow_and_subscribe(request: _SowAndSubscribeRequest) -> int:
    """Print the records of a SOW topic, then its messages.

    Example: haclient sow-and-subscribe --topic prices --filter '/px > 10'
    """
    if request.at is not None and (request.delta or request.skip_n is not None):
        raise UsageError("--at has no deltas and no pages: leave --delta and --skip-n out")
    parse_moment(request.at)  # a mistake comes before the connection
    form = message_form(request.format, as_json=request.as_json, pretty=request.pretty)
    run = _SubscribeRun(request, form)
    return run_until_signal(
        partial(_work, run),
        lambda: f"interrupted after {run.printed} messages",
        output=run.output,
        is_service=request.count is None,
    )
