from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio

from haclient.errors import (
    CommandError,
    DisconnectedError,
    TimedOut,
)
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.session import Session
from haclient.transport.commands import Commands, Fields
from haclient.transport.links.memory_network import link_pair
from support.clock import in_virtual_time
from support.peer import Peer, together
from support.reporting import unheard_connection

pytestmark = in_virtual_time


class Bench:
    """Commands on a connection in memory."""

    def __init__(self) -> None:
        near, far = link_pair()
        self.session = Session()
        self.status = ConnectionStatus()
        self.peer = Peer(far)
        self.commands = Commands(self.session, self.status)
        self.connection = self.commands.connection = unheard_connection(near, self.session)
        self.status.connected("localhost:1")
        server = LoggedOn(seen=None, persisted=None, server_version="", reason="")
        self.status.logged_on(server)


@pytest.fixture
async def bench(nursery: trio.Nursery) -> AsyncGenerator[Bench]:
    found = Bench()
    nursery.start_soon(found.connection.run)
    yield found
    found.connection.close()


@pytest.mark.row("CC10")
async def test_a_command_waits_for_the_ack_that_it_asked_for(bench: Bench) -> None:
    fields: Fields = {"c": "sow_delete", "cid": "x", "a": "processed,stats"}

    async def script() -> None:
        command = await bench.peer.answer("sow_delete")
        await trio.sleep(3)
        await bench.peer.ack(command, "stats", records_deleted=2)

    ack, _ = await together(
        lambda: bench.commands.send(fields, what="delete", awaited="stats", timeout=5), script
    )
    assert (ack.records_deleted, trio.current_time()) == (2, 3)
    assert len(bench.session.pending) == 0


async def test_a_refusal_and_a_silence_leave_nothing(bench: Bench) -> None:
    async def refuse() -> None:
        await bench.peer.refuse(await bench.peer.hear(), "because")

    with pytest.raises(CommandError, match="flush: because"):
        await together(
            lambda: bench.commands.send({"c": "flush", "cid": "1"}, what="flush", timeout=5),
            refuse,
        )
    with pytest.raises(TimedOut, match="flush"):
        await bench.commands.send({"c": "flush", "cid": "2"}, what="flush", timeout=5)
    assert len(bench.session.pending) == 0


async def test_an_urgent_command_leaves_before_the_others(bench: Bench) -> None:
    async def ours() -> None:
        bench.connection.writer.send(b"\0\0\0\x0d" + b'{"c":"flush"}')
        fields: Fields = {"c": "heartbeat", "cid": "1"}
        await bench.commands.send(fields, what="heartbeat", urgent=True, timeout=5)

    async def theirs() -> None:
        await bench.peer.answer("heartbeat")
        await bench.peer.expect("flush")

    await together(ours, theirs)


async def test_commands_need_a_connection_that_has_logged_on(bench: Bench) -> None:
    bench.status.is_logged_on = False
    with pytest.raises(DisconnectedError, match="not logged on"):
        bench.commands.connected()
    bench.commands.connection = None
    bench.status.connection = 0
    with pytest.raises(DisconnectedError, match="not connected"):
        bench.commands.connected()
