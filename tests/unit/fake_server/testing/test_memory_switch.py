"""Faults between two ends in memory, on a mock clock."""

from __future__ import annotations

import pytest
import trio

from haclient.transport.memory_network import MemoryLink, MemoryNetwork, origin
from haclient_fake_server.testing.faults import BOTH, Cut, Direction, How, Refuse, Slow
from haclient_fake_server.testing.memory_switch import MemorySwitch
from haclient_fake_server.testing.proxy import Wire
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class Ends:
    """A network with one listener, and the wire of clients to it."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.accepted: list[MemoryLink] = []
        self.network.listen("a:1", self.accepted.append)
        self.switch = MemorySwitch(self.network)
        self.wire: Wire = self.switch.wire("client", "a:1")

    async def connect(self) -> tuple[MemoryLink, MemoryLink]:
        return await self.network.connect("a:1"), self.accepted[-1]


def take(link: MemoryLink) -> bytes | None:
    buffer = bytearray(100)
    count = link.recv_into(memoryview(buffer))
    return None if count is None else bytes(buffer[:count])


@pytest.mark.row("FI1", "FI7")
@pytest.mark.parametrize("how", ["reset", "end", "silence"])
@pytest.mark.parametrize("direction", BOTH)
async def test_a_cut_after_some_bytes(direction: Direction, how: How) -> None:
    ends = Ends()
    ends.wire.apply(Cut(how=how, direction=direction, at_byte=5))
    client, server = await ends.connect()
    source, sink = (client, server) if direction == "up" else (server, client)
    assert source.try_send(b"abcdefgh") == 8
    assert take(sink) == b"abcde"
    match how:
        case "reset":
            for link in (source, sink):
                with pytest.raises(ConnectionResetError):
                    take(link)
        case "end":
            assert [take(source), take(sink)] == [b"", b""]
        case "silence":
            sink.try_send(b"lost")
            source.close()
            assert take(sink) is None
            assert sink.try_send(b"lost") == 4  # it does not know that nobody is there
            ends.wire.heal()
            with pytest.raises(ConnectionResetError):
                take(sink)
    source.close()
    sink.close()
    assert ends.wire.connections == 0


@pytest.mark.row("FI4", "FI7")
async def test_what_is_held_arrives_when_it_is_let_go() -> None:
    ends = Ends()
    client, server = await ends.connect()
    ends.wire.block("up")
    client.try_send(b"late")
    server.try_send(b"the other way")
    assert [take(server), take(client)] == [None, b"the other way"]
    ends.wire.heal()
    assert take(server) == b"late"


@pytest.mark.row("FI4", "FI7")
async def test_what_is_dropped_is_lost_and_so_is_the_connection() -> None:
    ends = Ends()
    client, server = await ends.connect()
    other, other_server = await ends.connect()
    ends.wire.block("up", dropped=True)
    client.try_send(b"lost")
    assert take(server) is None
    ends.wire.heal()
    with pytest.raises(ConnectionResetError):
        take(server)
    other.try_send(b"lost nothing")
    assert take(other_server) == b"lost nothing"


async def test_an_end_that_closes_while_it_is_cut_off_is_told_of_afterwards() -> None:
    ends = Ends()
    client, server = await ends.connect()
    ends.wire.block("up")
    client.close()
    assert take(server) is None
    assert server.try_send(b"into the void") == 13
    ends.wire.heal()
    with pytest.raises(ConnectionResetError):
        take(server)


async def test_a_slow_line_is_late_and_in_pieces() -> None:
    ends = Ends()
    ends.wire.apply(Slow(latency_s=2.0, piece_bytes=3))
    client, server = await ends.connect()
    started = trio.current_time()
    client.try_send(b"abcdef")
    await server.wait_readable()
    assert trio.current_time() - started == pytest.approx(2.0)
    assert [take(server), take(server)] == [b"abc", b"def"]


async def test_new_connections_wait_or_are_refused() -> None:
    ends = Ends()
    ends.wire.block("down")
    with trio.move_on_after(5) as waiting:
        await ends.connect()
    assert waiting.cancelled_caught
    ends.wire.heal()
    ends.wire.apply(Refuse())
    with pytest.raises(ConnectionRefusedError):
        await ends.connect()


async def test_each_dialler_has_its_own_wire_and_others_that_of_clients() -> None:
    ends = Ends()
    wire = ends.switch.wire("east", "a:1")
    token = origin.set("east")
    await ends.connect()
    origin.set("somebody")
    await ends.connect()
    origin.reset(token)
    assert (wire.connections, ends.wire.connections) == (1, 1)


async def test_two_switches_share_a_network() -> None:
    ends = Ends()
    ends.network.listen("b:1", ends.accepted.append)
    second = MemorySwitch(ends.network).wire("client", "b:1")
    await ends.connect()
    await ends.network.connect("b:1")
    assert (ends.wire.connections, second.connections) == (1, 1)
    ends.wire.apply(Refuse())
    with pytest.raises(ConnectionRefusedError):
        await ends.connect()
    await ends.network.connect("b:1")
    ends.network.listen("c:1", ends.accepted.append)
    await ends.network.connect("c:1")
