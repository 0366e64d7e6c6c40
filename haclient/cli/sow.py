"""`haclient sow`: print the state of the world of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click
import trio

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.message_format import Form, format_option, message_form, pretty_option
from haclient.cli.options import (
    batch_size_option,
    client_name_option,
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
from haclient.cli.start_time import parse_moment
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.errors import TimedOut, UsageError
from haclient.protocol.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class _SowRequest:
    servers: tuple[str, ...]
    client_name: str | None
    topic: str
    filter: str
    order_by: str
    top_n: int | None
    at: str | None
    skip_n: int | None
    batch_size: int
    select: tuple[str, ...]
    timeout: float | None
    format: str | None
    as_json: bool
    pretty: bool


async def _print_records(request: _SowRequest, form: Form, output: OutputWriter) -> None:
    connection = ConnectionRequest(
        servers=request.servers,
        name=request.client_name,
        timeout_s=request.timeout,
    )
    async with (
        open_client(connection) as client,
        client.sow(
            request.topic,
            filter=request.filter,
            order_by=request.order_by,
            bookmark=parse_moment(request.at),
            batch_size=request.batch_size,
            options=Options(select=request.select, top_n=request.top_n, skip_n=request.skip_n),
            timeout=request.timeout,
        ) as records,
    ):
        async for record in records:
            await output.write(form(record))


async def _query(request: _SowRequest, form: Form, output: OutputWriter) -> int:
    try:
        with trio.fail_after(request.timeout or float("inf")):
            await _print_records(request, form, output)
    except OutputClosed:  # `| head` has seen enough
        return ExitCode.OK
    except trio.TooSlowError:
        raise TimedOut(
            f"the query on {request.topic} took longer than {request.timeout:g} s"
        ) from None
    return ExitCode.OK


@click.command()
@server_option
@topic_option
@filter_option
@order_by_option
@top_n_option(is_eager=True, help="Print at most so many records.")
@click.option(
    "--at",
    metavar="TIME",
    help="The records as they were at this time, such as 2026-11-20T09:30:00Z, 15m or 1h ago, or "
    "right after the message of a bookmark. For topics that keep their history.",
)
@skip_n_option(help="Leave out so many of the first; needs --top-n and --order-by.")
@select_option
@batch_size_option
@client_name_option
@timeout_option(help="How long the whole query may take. Default: no limit.")
@format_option
@json_option
@pretty_option
@with_request(_SowRequest)
def sow(request: _SowRequest) -> int:
    """Print the records of a SOW topic, one per line.

    Example: haclient sow --topic prices --order-by '/px DESC' --top-n 10
    """
    if request.skip_n is not None and not request.order_by:
        raise UsageError("--skip-n needs --order-by: without an order there are no first records")
    parse_moment(request.at)  # a mistake comes before the connection
    form = message_form(request.format, as_json=request.as_json, pretty=request.pretty)
    output = OutputWriter(STDOUT)
    return run_until_signal(
        partial(_query, request, form, output),
        lambda: "interrupted: the result is incomplete",
        output=output,
    )
