from __future__ import annotations

import pytest
import trio
import trio.testing

from haclient.client import HAClient
from haclient.errors import ConnectionRefused, HAClientError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import dial
from haclient.transport.links.memory_network import (
    MemoryConnection,
    MemoryLink,
    link_pair,
    network,
    origin,
)
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.server import BrokerServer
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time

pytestmark = in_virtual_time


async def receive(link: MemoryLink, count: int = 100) -> bytes:
    buffer = bytearray(count)
    while (got := link.recv_into(memoryview(buffer))) is None:
        await link.wait_readable()
    return bytes(buffer[:got])


async def test_what_is_sent_arrives_at_once_and_in_order() -> None:
    client, server = link_pair()
    assert client.try_send(b"one ") == 4
    assert client.try_send(b"two") == 3
    assert await receive(server) == b"one two"
    assert server.recv_into(memoryview(bytearray(1))) is None
    client.close()
    assert await receive(server) == b""


async def test_a_slow_pipe_delivers_later_and_keeps_the_order() -> None:
    client, server = link_pair()
    started = trio.current_time()
    client.sending.latency_s = 2.0
    client.try_send(b"slow")
    client.sending.latency_s = 0.5
    client.try_send(b"quick")
    client.close()
    assert server.recv_into(memoryview(bytearray(1))) is None
    assert await receive(server, 4) == b"slow"
    assert trio.current_time() - started == pytest.approx(2.0)
    assert [await receive(server), await receive(server)] == [b"quick", b""]


async def test_a_full_pipe_takes_no_more_until_something_is_read() -> None:
    client, server = link_pair()
    client.sending.capacity_bytes = 4
    assert client.try_send(b"abcdef") == 4
    assert client.try_send(b"ef") is None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        assert await receive(server, 3) == b"abc"
    assert client.try_send(b"ef") == 2
    assert await receive(server) == b"def"


async def test_a_sender_waits_in_peace_while_what_has_arrived_is_not_read() -> None:
    client, server = link_pair(capacity_bytes=4)
    client.sending.latency_s = 0.5
    assert client.try_send(b"abcd") == 4
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.wait_writable)
        with trio.fail_after(10):  # of virtual time, which stands still while a task spins
            await trio.sleep(2)
        assert await receive(server) == b"abcd"


async def test_held_bytes_arrive_when_they_are_let_go() -> None:
    client, server = link_pair()
    client.sending.held = True
    client.try_send(b"late")
    client.close()
    assert not client.sending.readable()
    with trio.move_on_after(5) as waiting:
        await server.wait_readable()
    assert waiting.cancelled_caught
    client.sending.held = False
    client.sending.changed()
    assert [await receive(server), await receive(server)] == [b"late", b""]


async def test_nobody_hears_of_the_end_of_a_silent_connection() -> None:
    client, server = link_pair()
    client.sending.silent = server.sending.silent = True
    client.close()
    assert not server.receiving.readable()
    assert server.try_send(b"into the void") == 13


@pytest.mark.parametrize("count", range(1, 6))
async def test_a_connection_is_lost_at_a_chosen_byte(count: int) -> None:
    client, server = link_pair()
    client.sending.fail_after(count, client.reset)
    assert client.try_send(b"abcdef") == count
    with pytest.raises(ConnectionResetError):
        client.try_send(b"abcdef"[count:])
    assert await receive(server) == b"abcdef"[:count]
    with pytest.raises(ConnectionResetError):
        server.recv_into(memoryview(bytearray(1)))


@pytest.mark.parametrize("attribute", ["held", "silent"])
async def test_a_close_is_not_heard_of_by_a_peer_that_is_cut_off(attribute: str) -> None:
    client, server = link_pair()
    setattr(client.sending, attribute, True)
    client.close()
    assert server.recv_into(memoryview(bytearray(1))) is None
    assert server.try_send(b"are you there?") == 14


async def test_a_tap_decides_what_travels_and_what_happens_then() -> None:
    client, server = link_pair()
    client.sending.tap = lambda data: (data[:2], client.reset if b"c" in data else None)
    assert client.try_send(b"ab") == 2
    assert client.try_send(b"123") == 3
    assert client.try_send(b"cd") == 2
    assert await receive(server) == b"ab12cd"
    with pytest.raises(ConnectionResetError):
        server.recv_into(memoryview(bytearray(1)))


async def test_nobody_listens() -> None:
    with pytest.raises(ConnectionRefused, match="mem://nowhere:1/amps: no listener there"):
        await dial(Uri.parse("mem://nowhere:1/amps"), timeout=1)


async def test_an_address_has_one_listener() -> None:
    stop = network().listen("a:1", lambda _: None)
    with pytest.raises(OSError, match="already"):
        network().listen("a:1", lambda _: None)
    stop()
    stop()
    network().listen("a:1", lambda _: None)


async def test_the_network_knows_who_is_connected_and_may_refuse() -> None:
    found: list[MemoryConnection] = []
    hub = network()
    hub.connected = found.append
    hub.listen("a:1", lambda _: None)
    token = origin.set("me")
    link = await dial(Uri.parse("mem://a:1/amps"), timeout=1)
    origin.reset(token)
    assert hub.connections == found
    assert (found[0].source, found[0].target) == ("me", "a:1")
    link.close()
    found[0].server.close()
    assert hub.connections == []

    lost = trio.Event()
    hub.admit = lambda _source, _target: None if lost.is_set() else lost
    with pytest.raises(HAClientError, match="did not accept a connection within 3 s"):
        await dial(Uri.parse("mem://a:1/amps"), timeout=3)
    lost.set()
    assert (await dial(Uri.parse("mem://a:1/amps"), timeout=3)).peer == "a:1"


@pytest.mark.row("FI7")
async def test_a_client_and_a_broker_without_sockets_and_without_time() -> None:
    config = BrokerConfig(listen=("mem://broker:1",))
    async with BrokerServer(config) as broker:
        assert broker.uris == ["mem://broker:1"]
        async with HAClient(
            "ha", servers=["mem://broker:1/amps/json"], publish_store=MemoryPublishStore()
        ) as client:
            await client.publish("orders", b"{}")
            network().connections[0].reset()
            await client.publish("orders", b"{}")
            await client.publish_flush(timeout=20)
    assert network().connections == []
