from __future__ import annotations

import contextlib
import resource
import socket
import sys
import zlib
from math import inf
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.errors import ConnectionRefused, DisconnectedError, TimedOut, UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import Dialler, dial
from haclient.transport.links.link import TcpLink
from support.peer import listening, together
from support.recovery import not_answering


async def listener() -> trio.SocketListener:
    (found,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return found


def port(found: trio.SocketListener) -> int:
    number: int = found.socket.getsockname()[1]
    return number


def option(link: TcpLink, level: int, name: int) -> int:
    return link._socket.getsockopt(level, name)


async def dialled(text: str) -> TcpLink:
    link = await dial(Uri.parse(text), timeout=60)
    assert isinstance(link, TcpLink)
    return link


@pytest.mark.row("AT1", "CC2")
async def test_a_name_and_a_port_become_a_link() -> None:
    async with await listener() as server:
        link = await dialled(f"tcp://localhost:{port(server)}/amps/json")
        assert link.peer == f"127.0.0.1:{port(server)}"
        assert option(link, socket.IPPROTO_TCP, socket.TCP_NODELAY)
        link.close()


@pytest.mark.row("AT1", "AT5")
async def test_the_options_of_the_address_reach_the_socket() -> None:
    async with await listener() as server:
        link = await dialled(
            f"tcp://127.0.0.1:{port(server)}/amps?tcp_nodelay=false&tcp_sndbuf=50000"
            "&tcp_rcvbuf=60000&tcp_linger=0&tcp_keepalive=true&bind=127.0.0.1"
        )
        assert not option(link, socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert option(link, socket.SOL_SOCKET, socket.SO_SNDBUF) >= 50_000
        assert option(link, socket.SOL_SOCKET, socket.SO_RCVBUF) >= 60_000
        assert option(link, socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0] == 1
        link.close()


@pytest.mark.row("AT5")
async def test_no_close_lingers_in_the_event_loop() -> None:
    async with await listener() as server:
        link = await dialled(f"tcp://127.0.0.1:{port(server)}/amps?tcp_linger=3")
        assert link._socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)[0] == 0
        link.close()


@pytest.mark.row("AT7")
async def test_a_uri_with_compression_makes_a_zlib_stream_in_each_direction() -> None:
    frame = b"\0\0\1\0" + b'{"c":"p"}'.ljust(256)
    packer = zlib.compressobj()
    async with await listener() as server:
        uri = Uri.parse(f"tcp://127.0.0.1:{port(server)}/amps?compression=zlib")
        link, stream = await together(lambda: dial(uri, timeout=60), server.accept)
        assert link.try_send(frame) == len(frame)
        with trio.fail_after(60):
            assert zlib.decompressobj().decompress(await stream.receive_some(4096)) == frame
            await stream.send_all(packer.compress(frame) + packer.flush(zlib.Z_SYNC_FLUSH))
            await link.wait_readable()
        buffer = bytearray(4096)
        assert link.recv_into(memoryview(buffer)) == len(frame)
        assert buffer[: len(frame)] == frame
        link.close()
        await stream.aclose()


@pytest.mark.row("AT3")
async def test_a_unix_socket_is_named_by_its_path() -> None:
    async with listening() as server:
        link, peer = await together(lambda: dial(Uri.parse(server.uri), timeout=60), server.accept)
        link.try_send(b"\0\0\0\x02{}")
        await peer.hear()
        link.close()


@pytest.mark.row("CC37", "AT12")
async def test_nobody_there_is_a_refusal_that_names_the_address_and_no_password() -> None:
    server = await listener()
    address = f"127.0.0.1:{port(server)}"
    await server.aclose()
    with pytest.raises(ConnectionRefused) as caught:
        await dialled(f"tcp://me:geheim@{address}/amps/json")
    assert str(caught.value) == (
        f"cannot connect to tcp://me@{address}/amps/json: Connection refused: is a server running "
        "there?"
    )
    assert isinstance(caught.value.__cause__, OSError)


async def test_no_unix_socket_there_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(
        ConnectionRefused, match=r"No such file or directory: is a server running there\?$"
    ):
        await dialled(f"unix://localhost:0/amps?path={tmp_path}/none")


class Resolver(trio.abc.HostnameResolver):
    """Knows one name, by its addresses."""

    def __init__(self, *addresses: str, error: int = socket.EAI_NONAME) -> None:
        self._addresses = addresses
        self._error = error

    @override
    async def getaddrinfo(  # type: ignore[override]  # as loose as its base
        self, host: bytes, port: int, *_: object
    ) -> list[tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int]]]:
        if not self._addresses:
            raise socket.gaierror(self._error, "what the system says")
        families = [socket.AF_INET6 if ":" in each else socket.AF_INET for each in self._addresses]
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, int(port)))
            for family, address in zip(families, self._addresses, strict=True)
        ]

    @override
    async def getnameinfo(self, sockaddr: object, flags: int) -> tuple[str, str]:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("error", "hint"),
    [(socket.EAI_NONAME, ": is the host name right?"), (socket.EAI_AGAIN, "")],
    ids=["unknown", "no answer"],
)
async def test_a_name_without_an_address_is_a_refusal(error: int, hint: str) -> None:
    trio.socket.set_custom_hostname_resolver(Resolver(error=error))
    with pytest.raises(ConnectionRefused) as caught:
        await dialled("tcp://nowhere:9007/amps")
    assert str(caught.value) == (
        f"cannot connect to tcp://nowhere:9007/amps: what the system says{hint}"
    )


@pytest.mark.parametrize("host", ["a" * 64, "a..b", ".b"])
async def test_what_can_be_no_host_name_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="can be no host name"):
        await dialled(f"tcp://{host}:9007/amps")


@pytest.mark.row("AT5")
async def test_the_preferred_family_is_tried_first_and_ipv4_by_default() -> None:
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        number = ours.getsockname()[1]
        try:
            other = socket.create_server(("::1", number), family=socket.AF_INET6)
        except OSError as error:
            pytest.skip(f"not applicable: no IPv6 here ({error})")
        stack.enter_context(other)
        trio.socket.set_custom_hostname_resolver(Resolver("::1", "127.0.0.1", "::1"))
        for options, peer in (
            ("", "127.0.0.1"),
            ("?ip_protocol_prefer=ipv4", "127.0.0.1"),
            ("?ip_protocol_prefer=ipv6", "[::1]"),
        ):
            link = await dialled(f"tcp://somewhere:{number}/amps{options}")
            assert link.peer == f"{peer}:{number}"
            link.close()


@pytest.mark.row("AT1")
async def test_the_addresses_of_a_name_are_tried_in_order() -> None:
    async with await listener() as server:
        trio.socket.set_custom_hostname_resolver(Resolver("::1", "127.0.0.2", "127.0.0.1"))
        link = await dialled(f"tcp://somewhere:{port(server)}/amps?ip_protocol_prefer=ipv6")
        assert link.peer == f"127.0.0.1:{port(server)}"
        link.close()


@pytest.mark.row("AT1")
async def test_a_first_address_that_does_not_answer_leaves_time_for_the_next() -> None:
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(socket.socket())
        live.bind(("127.0.0.1", 0))
        live.listen(1)
        number = live.getsockname()[1]
        dead = stack.enter_context(socket.socket())
        dead.bind(("127.0.0.2", number))
        dead.listen(0)
        for _ in range(4):  # its queue is full: it never finishes a handshake
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", number))
        trio.socket.set_custom_hostname_resolver(Resolver("127.0.0.2", "127.0.0.1"))
        link = await dial(Uri.parse(f"tcp://somewhere:{number}/amps"), timeout=60)
        assert link.peer == f"127.0.0.1:{number}"
        link.close()


async def test_a_local_address_that_is_not_ours_is_a_refusal() -> None:
    async with await listener() as server:
        with pytest.raises(ConnectionRefused):
            await dialled(f"tcp://127.0.0.1:{port(server)}/amps?bind=192.0.2.1")


@pytest.mark.row("AT1", "AT6")
async def test_a_server_that_does_not_accept_is_given_up_in_time() -> None:
    with pytest.raises(TimedOut, match="within 0 s"):
        await dial(Uri.parse("tcp://127.0.0.1:9/amps"), timeout=0)


async def test_windows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(UsageError, match="not on Windows"):
        await dialled("tcp://h:1/amps")


@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:9/amps", "unix://localhost:1/amps?path=/none"])
async def test_a_cancelled_dial_leaves_no_socket_open(uri: str) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await dial(Uri.parse(uri), timeout=inf)
    assert scope.cancelled_caught


async def test_a_dial_is_stopped_and_can_be_followed_by_another() -> None:
    dialler = Dialler()
    dialler.stop()  # nothing is being dialled
    with not_answering() as mute:

        async def wait() -> None:
            with pytest.raises(DisconnectedError, match="on purpose"):
                await dialler.dial(Uri.parse(mute), timeout=inf)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert dialler.busy
            dialler.stop()
    assert not dialler.busy
    async with listening() as server:
        link, _ = await together(
            lambda: dialler.dial(Uri.parse(server.uri), timeout=60), server.accept
        )
        link.close()


@pytest.mark.row("HA4")
@pytest.mark.parametrize("uri", ["tcp://127.0.0.1:9/amps", "unix://localhost:0/amps?path=/x"])
async def test_no_descriptor_is_a_refusal_like_any_other(uri: str) -> None:
    """Else one moment without descriptors would end a client that stays connected."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(ConnectionRefused, match="Too many open files"):
            await dial(Uri.parse(uri), timeout=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.row("CC2")
async def test_a_name_that_no_thread_can_look_up_is_an_attempt_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run_sync(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    with pytest.raises(ConnectionRefused, match="no thread to look its name up"):
        await dial(Uri.parse("tcp://localhost:1/amps"), timeout=1)
