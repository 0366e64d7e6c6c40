from __future__ import annotations

import contextlib

import pytest
import trio
import trio.testing

from haclient.errors import UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import dial
from haclient.transport.links.link import Link
from haclient_fake_server.listener import TcpListener, check_reachable, listen

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
