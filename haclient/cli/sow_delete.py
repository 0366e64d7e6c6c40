"""`haclient sow-delete`: delete records of the state of the world."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click

from haclient.cli.connection import ConnectionRequest, open_client
from haclient.cli.options import (
    client_name_option,
    json_option,
    server_option,
    timeout_option,
    topic_option,
    with_request,
)
from haclient.cli.output import print_report
from haclient.cli.termination import ExitCode, run_until_signal
from haclient.errors import UsageError

_TIMEOUT_S = 30.0
"""How long the server may take to answer, when the command line does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SowDeleteRequest:
    servers: tuple[str, ...]
    client_name: str | None
    topic: str
    filter: str
    keys: tuple[str, ...]
    message: str | None
    timeout: float | None
    as_json: bool


async def _delete(request: _SowDeleteRequest) -> int:
    connection = ConnectionRequest(
        servers=request.servers, name=request.client_name, timeout_s=request.timeout
    )
    async with open_client(connection) as client:
        stats = await client.sow_delete(
            request.topic,
            filter=request.filter,
            keys=request.keys,
            data=request.message or "",
            timeout=request.timeout or _TIMEOUT_S,
        )
    deleted = stats.records_deleted or 0
    count = "1 record" if deleted == 1 else f"{deleted} records"
    report = {"topic": request.topic, "deleted": deleted}
    print_report(report, f"deleted {count} of {request.topic}", as_json=request.as_json, aside=True)
    return ExitCode.OK


@click.command("sow-delete")
@server_option
@topic_option
@click.option(
    "-f", "--filter", default="", help="Delete the records that match, such as '/px > 10'."
)
@click.option(
    "--key", "keys", multiple=True, help="Delete the record with this SOW key; repeatable."
)
@click.option(
    "-m",
    "--message",
    help="Delete the record that this message would update, such as '{\"id\": 1}'.",
)
@client_name_option
@timeout_option(help="How long the server may take to answer. Default: 30.")
@json_option
@with_request(_SowDeleteRequest)
def sow_delete(request: _SowDeleteRequest) -> int:
    """Delete records of a SOW topic.

    Example: haclient sow-delete --topic prices --filter '/px > 10'
    """
    given = sum(map(bool, (request.filter, request.keys, request.message)))
    if given != 1 or not all(request.keys):
        raise UsageError(
            "which records? give one of --filter, --key and --message; --filter '1=1' deletes all"
        )
    return run_until_signal(
        partial(_delete, request), lambda: "interrupted: the records may have been deleted"
    )
