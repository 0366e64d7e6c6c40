"""The logon of a connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from haclient.errors import (
    AuthenticationError,
    NameInUse,
    TimedOut,
)
from haclient.protocol.uri import Uri
from haclient.servers.auth import DefaultAuthenticator
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.session import Session
from haclient.transport.commands import Commands, log_on
from haclient.transport.links.memory_network import link_pair
from support.clock import in_virtual_time
from support.peer import Peer, together
from support.reporting import unheard_connection

pytestmark = in_virtual_time


class Bench:
    """A connection in memory on which nobody has logged on."""

    def __init__(self) -> None:
        near, far = link_pair()
        session = Session()
        self.peer = Peer(far)
        self.commands = Commands(session, ConnectionStatus())
        self.connection = self.commands.connection = unheard_connection(near, session)

    async def log_on(self, uri: str = "tcp://me:pw@h:1/amps/json", options: str = "") -> LoggedOn:
        return await log_on(
            self.connection,
            self.commands,
            client_name="pub",
            uri=Uri.parse(uri),
            authenticator=DefaultAuthenticator(),
            options=options,
            correlation_id="",
            timeout=3,
        )


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncGenerator[Bench]:
    found = Bench()
    nursery.start_soon(found.connection.run)
    yield found
    found.connection.close()


@pytest.mark.row("CC4", "CC5", "AT10")
async def test_an_accepted_logon_tells_what_the_server_knows(bench: Bench) -> None:
    server, logon = await together(bench.log_on, lambda: bench.peer.log_on(seen=9, persisted=7))
    assert (server.seen, server.persisted, server.server_version) == (9, 7, "5.3.5.1")
    assert (logon.user_id, logon.password, logon.message_type) == ("me", "pw", "json")


@pytest.mark.row("CC4")
async def test_an_option_of_the_address_joins_those_of_the_client(bench: Bench) -> None:
    _, logon = await together(
        lambda: bench.log_on("tcp://h:1/amps?pretty=true", "ack_conflation=1s"), bench.peer.log_on
    )
    assert logon.options == "ack_conflation=1s,pretty"


@pytest.mark.row("AT9")
async def test_credentials_that_come_with_a_retry_are_used(bench: Bench) -> None:
    async def script() -> None:
        first = await bench.peer.expect("logon")
        await bench.peer.ack(first, status="retry", pw="next")
        second = await bench.peer.expect("logon", user_id="me", password="next")  # noqa: S106  # a test's
        assert second.command_id != first.command_id
        await bench.peer.ack(second, s=1)

    server, _ = await together(bench.log_on, script)
    assert server.seen == 1


@pytest.mark.row("CC37")
async def test_a_refusal_is_an_error_by_its_reason(bench: Bench) -> None:
    async def refuse(reason: str) -> None:
        await bench.peer.refuse(await bench.peer.expect("logon"), reason)

    with pytest.raises(AuthenticationError):
        await together(bench.log_on, lambda: refuse("auth failure"))
    with pytest.raises(NameInUse):
        await together(bench.log_on, lambda: refuse("name in use"))


@pytest.mark.row("CC4")
async def test_silence_is_a_timeout(bench: Bench) -> None:
    with pytest.raises(TimedOut, match="logon"):
        await bench.log_on()
