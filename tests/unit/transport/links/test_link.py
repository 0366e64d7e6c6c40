from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.protocol.codec import encode_frame
from haclient.transport.links.link import Link, TcpLink, WireLog, log_state
from haclient.transport.links.memory_network import link_pair

Pair = tuple[Link, Link]


def tcp_pair() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return TcpLink(near), TcpLink(far)


def unix_pair() -> Pair:
    near, far = socket.socketpair()
    return TcpLink(near), TcpLink(far)


@pytest.fixture(params=[tcp_pair, unix_pair, link_pair], ids=["tcp", "unix", "memory"])
def make(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    found: Callable[[], Pair] = request.param
    return found


@pytest.fixture
async def pair(make: Callable[[], Pair]) -> AsyncIterator[Pair]:
    links = make()
    yield links
    for link in links:
        link.close()


async def receive(link: Link, count: int) -> bytes:
    buffer, found = memoryview(bytearray(65_536)), b""
    while len(found) < count:
        got = link.recv_into(buffer[: count - len(found)])
        if got is None:
            await link.wait_readable()
        else:
            assert got
            found += buffer[:got]
    return found


async def test_bytes_arrive_in_order(pair: Pair) -> None:
    near, far = pair
    assert near.try_send(b"abc") == 3
    assert near.try_send(memoryview(b"defg")) == 4
    assert await receive(far, 7) == b"abcdefg"
    assert far.recv_into(memoryview(bytearray(8))) is None


async def test_a_full_link_would_block_and_has_room_again_when_the_other_end_reads(
    make: Callable[[], Pair],
) -> None:
    near, far = make()
    if hasattr(near, "sending"):
        near.sending.capacity_bytes = 1000
    sent = 0
    while (count := near.try_send(bytes(100_000))) is not None:
        sent += count
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        await receive(far, sent)
    near.close()
    far.close()


async def test_the_end_is_zero_bytes(pair: Pair) -> None:
    near, far = pair
    near.try_send(b"last")
    near.close()
    assert await receive(far, 4) == b"last"
    await far.wait_readable()
    assert far.recv_into(memoryview(bytearray(8))) == 0


async def test_closing_ends_the_waits_of_other_tasks_and_later_ones(pair: Pair) -> None:
    near, _ = pair

    async def wait() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await near.wait_readable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        near.close()
        near.close()
    for wait_again in (near.wait_readable, near.wait_writable):
        with pytest.raises(trio.ClosedResourceError):
            await wait_again()
    with pytest.raises(OSError, match=r".+"):
        near.try_send(b"x")


async def test_a_broken_link_is_an_os_error(pair: Pair) -> None:
    near, far = pair
    far.close()
    with pytest.raises(OSError, match=r".+"):  # noqa: PT012  # see below
        for _ in range(100):  # the first may still be taken
            near.try_send(b"x")
            await trio.lowlevel.checkpoint()


async def test_addresses_are_for_people_to_read() -> None:
    near, far = tcp_pair()
    assert near.peer.startswith("127.0.0.1:")
    assert near.peer != far.peer
    for link in (near, far):
        link.close()
    near, far = unix_pair()
    assert near.peer == ""
    for link in (near, far):
        link.close()


async def test_an_ipv6_address_is_in_brackets() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("not applicable: this machine has no IPv6")
    with listener:
        link = TcpLink(socket.create_connection(listener.getsockname()[:2]))
    assert link.peer.startswith("[::1]:")
    link.close()


async def test_a_peer_that_has_already_gone_has_no_address() -> None:
    lone = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    link = TcpLink(lone)
    assert link.peer == ""
    link.close()


# -- the log of frames and states ----------------------------------------------------------------


LOGON = {"c": "logon", "user_id": "me", "pw": 'se"cr\\et'}


@pytest.mark.row("AT12")
def test_headers_are_logged_in_both_directions_without_bodies_and_passwords(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "haclient.wire")
    wire = WireLog.if_enabled("a:1")
    assert wire is not None
    wire.received([b'{"c":"ack","password" : "secret"}', b'{"c":"ack","pw":"secret}'])
    frames = encode_frame(LOGON) + encode_frame({"c": "p", "t": "orders"}, b"payload")
    for position in range(len(frames)):
        wire.sent(frames[position : position + 1])
    log_state("orders-7", "connected")
    assert caplog.messages == [
        '< a:1 {"c":"ack","password" : "***"}',
        '< a:1 {"c":"ack","pw":"***',
        '> a:1 {"c":"logon","user_id":"me","pw":"***"}',
        '> a:1 {"c":"p","t":"orders"}',
        "= orders-7 connected",
    ]


def test_nothing_is_looked_for_while_the_level_is_above_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "haclient.wire")
    assert WireLog.if_enabled("a:1") is None
