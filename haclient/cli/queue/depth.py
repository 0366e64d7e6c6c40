"""`haclient queue depth`: the number of messages in queues, and counts of events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click
import trio

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.options import (
    client_name_option,
    json_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import print_result
from haclient.cli.queue.statistics import QueueStatistics, ServerQueues, query_queues
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.errors import HAClientError, TimedOut
from haclient_stores.bookmark import Timestamp

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _DepthRequest:
    servers: tuple[str, ...]
    client_name: str | None
    name: str | None
    timeout: float | None
    as_json: bool


def as_text(queue: QueueStatistics) -> str:
    """The statistics of a queue in two lines."""
    consumers = "1 consumer" if queue.consumers == 1 else f"{queue.consumers} consumers"
    messages = "1 message" if queue.depth == 1 else f"{queue.depth} messages"
    first = f"{queue.name}: {messages}, {queue.available} available, {queue.leased} leased"
    oldest = f", the oldest of {Timestamp(queue.oldest_us)}" if queue.oldest_us else ""
    reasons = ", ".join(f"{count} {reason}" for reason, count in queue.expired.items() if count)
    expired = f"{sum(queue.expired.values())} expired" + (f" ({reasons})" if reasons else "")
    return (
        f"{first}, {consumers}{oldest}\n"
        f"  {queue.delivered} delivered, {queue.redelivered} redelivered, "
        f"{queue.acknowledged} acknowledged, {queue.cancelled} cancelled, {expired}"
    )


async def _query(request: _DepthRequest) -> ServerQueues:
    connection = ConnectionRequest(
        servers=request.servers, name=request.client_name, timeout_s=request.timeout
    )
    limit_s = request.timeout or _TIMEOUT_S
    with trio.move_on_after(limit_s):
        async with open_client(connection) as client:
            found = await query_queues(client)
            if found is None:
                raise HAClientError(
                    "this server has no statistics of its queues, as the reference broker of "
                    "haclient has, or the user may not read /HACLIENT/queues; "
                    "`haclient queue browse` prints the messages of any queue"
                )
            return found if request.name is None else found.select(request.name)
    raise TimedOut(f"the query of the queues took longer than {limit_s:g} s")


async def _work(request: _DepthRequest) -> int:
    for queue, record in (await _query(request)).all:
        print_result(record.decode() if request.as_json else as_text(queue))
    return ExitCode.OK


@click.command()
@click.argument("name", metavar="[QUEUE]", required=False)
@server_option
@client_name_option
@timeout_option(help="How long the query may take. Default: 30.")
@json_option
@with_request(_DepthRequest)
def depth(request: _DepthRequest) -> int:
    """Print how many messages a queue has, or each queue of the server.

    The counts of deliveries, acknowledgements and expirations begin when the broker is started.
    """
    return run_until_signal(partial(_work, request))
