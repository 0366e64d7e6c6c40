"""`haclient ping`: whether each server is reachable and accepts a logon, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click
import trio

from haclient.cli.connection import CONNECT_TIMEOUT_S, Connection, open_client
from haclient.cli.options import (
    client_name_option,
    json_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import print_report
from haclient.cli.termination import ExitCode, print_failure, run_until_signal
from haclient.errors import HAClientError
from haclient.protocol.uri import Uri


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    servers: tuple[str, ...]
    client_name: str | None
    timeout: float | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    server: str
    version: str
    logon_ms: float
    round_trip_ms: float

    @property
    def as_text(self) -> str:
        return (
            f"{self.server} version {self.version or 'unknown'}: "
            f"logon {self.logon_ms:.1f} ms, round trip {self.round_trip_ms:.1f} ms"
        )


def _milliseconds_since(start: float) -> float:
    return round((trio.current_time() - start) * 1000.0, 3)


async def _ping_one(request: _Request, server: str) -> _Answer:
    connection = Connection(servers=(server,), name=request.client_name, timeout_s=request.timeout)
    start = trio.current_time()
    async with open_client(connection) as client:
        logon_ms = _milliseconds_since(start)
        start = trio.current_time()
        await client.flush(timeout=request.timeout or CONNECT_TIMEOUT_S)
        return _Answer(
            server=Uri.parse(server).safe,
            version=str(client.server_version),
            logon_ms=logon_ms,
            round_trip_ms=_milliseconds_since(start),
        )


async def _ping_all(request: _Request) -> int:
    worst = ExitCode.OK
    for server in request.servers:
        try:
            answer = await _ping_one(request, server)
        except HAClientError as error:  # the others are still asked
            worst = max(worst, print_failure(error))
        else:
            print_report(answer, answer.as_text, as_json=request.as_json)
    return worst


@click.command()
@server_option
@client_name_option
@timeout_option(help="How long each server may take. Default: 10.")
@json_option
@with_request(_Request)
def ping(request: _Request) -> int:
    """Log on to each of the servers and measure a round trip; fails if one of them does."""
    return run_until_signal(partial(_ping_all, request))
