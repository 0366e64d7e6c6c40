"""`haclient ping`: whether each server is reachable and accepts a logon, and how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import click
import trio

from haclient.cli.connection import CONNECT_TIMEOUT_S, ConnectionRequest, open_client
from haclient.cli.options import (
    POSITIVE_NUMBER,
    client_name_option,
    json_option,
    server_option,
    timeout_option,
    with_request,
)
from haclient.cli.output import coloured, print_report
from haclient.cli.termination import ExitCode, one_line, print_failure, run_until_signal
from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    TimedOut,
)
from haclient.protocol.uri import Uri

_RETRY_S: Final = 0.1
"""Seconds between two attempts, with `--wait`."""

_REFUSALS: Final = (AuthenticationError, NameInUse)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PingRequest:
    servers: tuple[str, ...]
    client_name: str | None
    timeout: float | None
    wait: float | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _PingResult:
    server: str
    version: str
    logon_ms: float
    round_trip_ms: float

    @property
    def as_text(self) -> str:
        verdict = coloured("ok", is_good=True)
        return (
            f"{self.server} version {self.version or 'unknown'}: {verdict}, "
            f"logon {self.logon_ms:.1f} ms, round trip {self.round_trip_ms:.1f} ms"
        )


def _milliseconds_since(start: float) -> float:
    return round((trio.current_time() - start) * 1000.0, 3)


async def _ping_one(request: _PingRequest, server: str, limit_s: float) -> _PingResult:
    connection = ConnectionRequest(servers=(server,), name=request.client_name, timeout_s=limit_s)
    start = trio.current_time()
    async with open_client(connection) as client:
        logon_ms = _milliseconds_since(start)
        start = trio.current_time()
        await client.flush(timeout=limit_s)
        return _PingResult(
            server=Uri.parse(server).safe,
            version=client.connection_info["server_version"],
            logon_ms=logon_ms,
            round_trip_ms=_milliseconds_since(start),
        )


async def _ping_until(request: _PingRequest, server: str, deadline: float) -> _PingResult:
    """Ping a server until it answers.

    Raises:
        DisconnectedError: It has answered and refused the logon; this is not tried again.
        TimedOut: It has not answered before the deadline.
        HAClientError: It has not answered, and `--wait` was not given.
    """
    while True:
        limit_s = request.timeout or CONNECT_TIMEOUT_S
        if request.wait is not None:
            limit_s = min(limit_s, max(_RETRY_S, deadline - trio.current_time()))
        try:
            return await _ping_one(request, server, limit_s)
        except (DisconnectedError, TimedOut) as error:
            is_refused = isinstance(error.__cause__, CommandError)
            if request.wait is None or is_refused or isinstance(error, _REFUSALS):
                raise
            if trio.current_time() + _RETRY_S > deadline:
                raise TimedOut(
                    f"{Uri.parse(server).safe} has not answered within {request.wait:g} s: "
                    f"{one_line(error)}"
                ) from error
        await trio.sleep(_RETRY_S)


async def _ping_all(request: _PingRequest) -> int:
    worst, deadline = ExitCode.OK, trio.current_time() + (request.wait or 0.0)
    for server in request.servers:
        try:
            answer = await _ping_until(request, server, deadline)
        except HAClientError as error:  # the others are still asked
            worst = max(worst, print_failure(error))
        else:
            print_report(answer, answer.as_text, as_json=request.as_json)
    return worst


@click.command()
@server_option
@client_name_option
@timeout_option(help="How long each server may take. Default: 10.")
@click.option(
    "--wait",
    type=POSITIVE_NUMBER,
    metavar="SECONDS",
    help="Try again until each server answers, for so long: for scripts that start one.",
)
@json_option
@with_request(_PingRequest)
def ping(request: _PingRequest) -> int:
    """Log on to each server and measure a round trip.

    Fails if one of them does. Example: haclient ping --wait 10
    """
    return run_until_signal(partial(_ping_all, request))
