from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
import trio
import trio.abc
import trio.lowlevel
import trio.testing
from typing_extensions import override

from haclient import HAClient
from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import dial
from haclient.transport.links.link import Link
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.listener import ACCEPTS_PER_ROUND, TcpListener, check_reachable, listen
from support.broker import port_of, running_broker

LIMIT_S = 60.0  # of a test that hangs


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("udp://127.0.0.1:1", "wanted tcp://HOST:PORT"),
        ("127.0.0.1:1", "wanted tcp://HOST:PORT"),
        ("tcp://127.0.0.1", "wanted tcp://HOST:PORT"),
        (":80x", "wanted tcp://HOST:PORT"),
        ("tcp://127.0.0.1:65536", "a port from 0 to 65535"),
        ("mem://:1", "wanted tcp://HOST:PORT"),
        ("tcp://[::1", "wanted tcp://HOST:PORT"),
        ("unix://run/broker.sock", "or unix:///PATH"),
        ("unix:///", "or unix:///PATH"),
    ],
)
async def test_a_malformed_address(uri: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        listen(uri, lambda _: None)


def test_no_other_process_reaches_an_address_in_memory() -> None:
    check_reachable(["tcp://127.0.0.1:0"])
    with pytest.raises(UsageError, match="no other process reaches it; wanted tcp://HOST:PORT"):
        check_reachable(["tcp://127.0.0.1:0", "mem://broker:1"])


async def test_connections_leave_some_descriptors_to_the_journal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    accepted: list[Link] = []
    limit = 0.0
    listener = TcpListener("127.0.0.1", 0, accepted.append, limit=lambda: limit)
    target = Uri.parse(f"{listener.uri}/amps")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        for _ in range(3):
            link = await dial(target, timeout=LIMIT_S)
            with trio.fail_after(LIMIT_S):
                await link.wait_readable()
                with contextlib.suppress(OSError):  # a reset, or an end
                    assert link.recv_into(memoryview(bytearray(1))) == 0
            link.close()
        assert not accepted
        limit = 4096.0
        link = await dial(target, timeout=LIMIT_S)
        with trio.fail_after(LIMIT_S):
            while not accepted:
                await trio.testing.wait_all_tasks_blocked()
        for each in (link, *accepted):
            each.close()
        nursery.cancel_scope.cancel()
    listener.close()
    (told,) = caplog.messages
    assert "connections are refused" in told
    assert "ulimit -n" in told


class _AcceptsOfRounds(trio.abc.Instrument):
    """How many connections are accepted in each round of the event loop that accepts any."""

    def __init__(self, accepted: list[Link]) -> None:
        self._accepted = accepted
        self._before = 0
        self.counts: list[int] = []

    @override
    def before_io_wait(self, timeout: float) -> None:
        if count := len(self._accepted) - self._before:
            self.counts.append(count)
            self._before += count


async def test_of_many_connections_that_wait_some_are_accepted_in_a_round() -> None:
    accepted: list[Link] = []
    listener = TcpListener("127.0.0.1", 0, accepted.append)
    count, address = 2 * ACCEPTS_PER_ROUND + 1, ("127.0.0.1", port_of(listener.uri))
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            opened.enter_context(socket.create_connection(address, LIMIT_S))
        async with trio.open_nursery() as nursery:
            rounds = _AcceptsOfRounds(accepted)
            trio.lowlevel.add_instrument(rounds)
            nursery.start_soon(listener.run)
            with trio.fail_after(LIMIT_S):
                while len(accepted) < count:
                    await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.remove_instrument(rounds)
            nursery.cancel_scope.cancel()
        for each in accepted:
            each.close()
    listener.close()
    assert rounds.counts == [ACCEPTS_PER_ROUND, ACCEPTS_PER_ROUND, 1]


@pytest.mark.row("AD7")
async def test_a_unix_socket_is_there_while_it_listens(tmp_path: Path) -> None:
    path = tmp_path / "a b.sock"
    accepted: list[Link] = []
    first = listen(f"unix://{path}", accepted.append)
    with pytest.raises(OSError, match="cannot listen: Address already in use"):
        listen(f"unix://{path}", accepted.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        link = await dial(Uri.parse(f"unix://localhost:0/amps?path={path}"), timeout=LIMIT_S)
        with trio.fail_after(LIMIT_S):
            while not accepted:
                await trio.testing.wait_all_tasks_blocked()
        assert link.peer == accepted[0].peer == str(path)
        for each in (link, *accepted):
            each.close()
        nursery.cancel_scope.cancel()
    first.close()
    assert not path.exists()


@pytest.mark.row("AD7")
def test_the_socket_of_a_killed_broker_is_replaced_and_other_files_are_not(tmp_path: Path) -> None:
    left, other = tmp_path / "left.sock", tmp_path / "file"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(left))
    second = listen(f"unix://{left}", lambda _: None)
    left.unlink()
    third = listen(f"unix://{left}", lambda _: None)
    second.close()
    assert left.exists()  # it is the third's
    third.close()
    other.write_bytes(b"content")
    with pytest.raises(OSError, match="cannot listen: Address already in use"):
        listen(f"unix://{other}", lambda _: None)
    assert other.read_bytes() == b"content"
    with pytest.raises(OSError, match="cannot listen: AF_UNIX path too long"):
        listen(f"unix://{tmp_path}/{'x' * 200}", lambda _: None)


@pytest.mark.row("AD7")
async def test_a_client_publishes_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    async with running_broker(BrokerConfig(listen=(f"unix://{path}",))) as running:
        assert running.uris == [f"unix://{path}"]
        server = f"unix://localhost:0/amps/json?path={path}"
        async with HAClient("one", servers=[server]) as client, client.stream("orders") as orders:
            assert await client.publish_persisted("orders", b"1")
            with trio.fail_after(LIMIT_S):
                message = await anext(orders)
    assert message.data == b"1"


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:0", "tcp://[::1]:0", "mem://broker:1"])
async def test_connections_come_until_it_is_closed(uri: str) -> None:
    send, receive = trio.open_memory_channel[Link](1)
    listener = listen(uri, send.send_nowait)
    assert listener.uri.startswith(uri.removesuffix(":0"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        with trio.fail_after(LIMIT_S):
            link = await dial(Uri.parse(f"{listener.uri}/amps"), timeout=LIMIT_S)
            accepted = await receive.receive()
        nursery.cancel_scope.cancel()
    listener.close()
    for each in (link, accepted):
        each.close()
    listen(listener.uri, send.send_nowait).close()  # the address is free again
