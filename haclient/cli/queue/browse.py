"""`haclient queue browse`: print the available messages of a queue, which stay available."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import click
import trio

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.message_format import Form, format_option, message_form, pretty_option
from haclient.cli.options import (
    Count,
    client_name_option,
    filter_option,
    json_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import STDOUT, OutputClosed, OutputWriter
from haclient.cli.queue.statistics import find_queue
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.errors import TimedOut

_BATCH_SIZE: Final = 100
"""Messages in one frame of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrowseRequest:
    servers: tuple[str, ...]
    client_name: str | None
    name: str
    filter: str
    count: int | None
    timeout: float | None
    format: str | None
    as_json: bool
    pretty: bool


async def _print_messages(request: _BrowseRequest, form: Form, output: OutputWriter) -> None:
    connection = ConnectionRequest(
        servers=request.servers, name=request.client_name, timeout_s=request.timeout
    )
    async with open_client(connection) as client:
        await find_queue(client, request.name)  # else a SOW topic would be taken for a queue
        async with client.sow(
            request.name, filter=request.filter, top_n=request.count, batch_size=_BATCH_SIZE
        ) as messages:
            async for message in messages:
                await output.write(form(message))


async def _work(request: _BrowseRequest, form: Form, output: OutputWriter) -> int:
    try:
        with trio.fail_after(request.timeout or float("inf")):
            await _print_messages(request, form, output)
    except OutputClosed:  # `| head` has seen enough
        return ExitCode.OK
    except trio.TooSlowError:
        raise TimedOut(f"browsing {request.name} took longer than {request.timeout:g} s") from None
    return ExitCode.OK


@click.command()
@click.argument("name", metavar="QUEUE")
@server_option
@filter_option
@click.option(
    "-n", "--count", type=Count(min=1), metavar="N", help="Print at most so many messages."
)
@client_name_option
@timeout_option(help="How long it may take. Default: no limit.")
@format_option
@json_option
@pretty_option
@with_request(_BrowseRequest)
def browse(request: _BrowseRequest) -> int:
    """Print the available messages of a queue, and leave them in it.

    Messages that a consumer has leased are not printed.
    """
    form = message_form(request.format, as_json=request.as_json, pretty=request.pretty)
    output = OutputWriter(STDOUT)
    return run_until_signal(
        partial(_work, request, form, output),
        lambda: "interrupted: the result is incomplete",
        output=output,
    )
