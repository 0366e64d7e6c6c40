"""Servers are tried in order."""

from __future__ import annotations

import socket

import pytest

from haclient.cli.connecting import Connection, open_client
from haclient.errors import ConnectionRefused, ReconnectGaveUp, TimedOut, UsageError

CLOSED = ("tcp://127.0.0.1:1/amps/json", "tcp://me:secret@127.0.0.1:2/amps/json")


async def connect(*servers: str, timeout_s: float = 10.0) -> None:
    async with open_client(Connection(servers=servers, name="me", timeout_s=timeout_s)):
        raise AssertionError("there is no server")


async def test_the_only_server_fails_with_its_own_error() -> None:
    with pytest.raises(ConnectionRefused):
        await connect(CLOSED[0])


async def test_when_all_fail_each_is_named_and_no_password() -> None:
    with pytest.raises(ReconnectGaveUp, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2") as gave_up:
        await connect(*CLOSED)
    assert "secret" not in str(gave_up.value)


async def test_a_silent_server_passes_the_turn_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}/amps/json"
        with pytest.raises(TimedOut):
            await connect(uri, timeout_s=0.05)
        with pytest.raises(ReconnectGaveUp, match=r"127\.0\.0\.1:1"):
            await connect(uri, CLOSED[0], timeout_s=0.05)


async def test_no_server_at_all_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="AMPS_URI"):
        await connect()
