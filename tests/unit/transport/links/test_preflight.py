"""The HTTP upgrade before a stream: what is asked, what is granted, and everything else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from haclient.errors import ConnectionRefused, ProtocolError
from haclient.protocol.http_upgrade import HTTP_FIRST_BYTE, MAX_HEAD_BYTES
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import answer_upgrade, request_upgrade
from haclient.transport.links.memory_network import MemoryLink, link_pair
from haclient.transport.tasks import open_nursery
from support.lengths import length
from support.links import Pieces, receive, send

pytestmark = pytest.mark.row("AT8")

URI = Uri.parse("tcp://user:secret@host:9007/amps/json?http_preflight=true")
HEADERS = {"X-Desk": "rates", "Authorization": "Bearer hidden"}
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: amps\r\n\r\n"


async def asked(
    answer: bytes, *, ends: bool = False, headers: Mapping[str, str] = HEADERS, uri: Uri = URI
) -> tuple[bytes, MemoryLink]:
    """What a client sends to a server that answers so, and the client's link."""
    near, far = link_pair()
    request = bytearray(4096)
    count = 0

    async def serve() -> None:
        nonlocal count
        await far.wait_readable()
        count = far.recv_into(memoryview(request)) or 0
        await send(far, answer)
        if ends:
            far.close()

    with trio.fail_after(60):
        async with open_nursery() as nursery:
            nursery.start_soon(serve)
            await request_upgrade(near, uri, headers)
    return bytes(request[:count]), near


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("unix://localhost:0/amps?path=/run/\u4f8b.sock", b"localhost"),
        ("tcp://\u4f8b.example:9007/amps", b"xn--fsq.example:9007"),
        ("tcp://[::1]:9007/amps", b"[::1]:9007"),
    ],
)
async def test_any_host_and_socket_has_a_name_that_a_request_can_have(
    uri: str, host: bytes
) -> None:
    request, _ = await asked(SWITCHED, uri=Uri.parse(uri))
    assert b"\r\nHost: %b\r\n" % host in request


async def test_the_request_names_path_host_and_headers_and_no_password() -> None:
    request, _ = await asked(SWITCHED)
    assert request[0] == HTTP_FIRST_BYTE
    lines = request.decode().split("\r\n")
    assert lines[0] == "GET /amps/json HTTP/1.1"
    assert set(lines[1:-2]) == {
        "Host: host:9007",
        "X-Desk: rates",
        "Authorization: Bearer hidden",
        "Connection: Upgrade",
        "Upgrade: amps",
    }
    assert lines[-2:] == ["", ""]
    assert b"secret" not in request


async def test_a_host_of_ones_own_replaces_ours() -> None:
    request, _ = await asked(SWITCHED, headers={"host": "amps.internal"})
    assert b"host: amps.internal\r\n" in request
    assert b"Host:" not in request


@pytest.mark.parametrize("answer", [SWITCHED, b"HTTP/1.0 200 Connection established\r\n\r\n"])
async def test_what_follows_the_answer_is_left_in_the_stream(answer: bytes) -> None:
    _, link = await asked(answer + b"\x00\x00\x00\x05{...}")
    assert await receive(link, 9, 100) == b"\x00\x00\x00\x05{...}"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
            "407 Proxy Authentication Required",
        ),
        (b"HTTP/1.1 502 Bad\x1b[2J Gateway\r\n\r\n", r"found '502 Bad\\x1b"),
        (b"HTTP/1.1 503 " + b"x" * 9000 + b"\r\n\r\n", "found '503 x{76}'$"),
        (b"HTTP/1.1\r\n\r\n", "wanted 101"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", "found a page"),
        (b"HTTP/1.1 101 Switching\r\n", "closed before"),
        (b"", "closed before"),
        (b"\x00\x00\x00\x30{}", r"wanted the head of an HTTP upgrade, found '\\x00'"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "found 'S'"),
        (b"HTTP/1.1 101 x\r\n" + b"a: b\r\n" * 4000, f"exceeds {MAX_HEAD_BYTES} bytes"),
    ],
)
async def test_other_answers_refuse_the_connection_in_one_short_line(
    answer: bytes, why: str
) -> None:
    with pytest.raises(ConnectionRefused, match=why) as caught:
        await asked(answer, ends=True)
    text = str(caught.value)
    assert text.startswith("tcp://user@host:9007/amps/json?http_preflight=true: ")
    assert len(text) < 250
    assert text.isprintable()
    assert "hidden" not in text


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any))
@settings(max_examples=length(30))
def test_client_and_server_agree_whatever_the_pieces(sizes: list[int]) -> None:
    async def run() -> None:
        near, far = (Pieces(end, sizes) for end in link_pair(capacity_bytes=64))
        byte = memoryview(bytearray(1))

        async def serve() -> None:
            while far.recv_into(byte) is None:
                await far.wait_readable()
            await answer_upgrade(far, bytes(byte))
            assert await receive(far, 5, 100) == b"after"
            await send(far, b"word")

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(serve)
                await request_upgrade(near, URI, {})
                await send(near, b"after")
                assert await receive(near, 4, 100) == b"word"

    trio.run(run)


@pytest.mark.parametrize(
    ("line", "protocol"),
    [
        (b"", b"amps"),
        (b"not a header\r\n", b"amps"),
        (b"Upgrade: \r\n", b"amps"),
        (b"upgrade: AMPS/5.3\r\n", b"AMPS/5.3"),
        (b"Upgrade: amps, websocket\r\n", b"amps"),
    ],
)
async def test_a_server_grants_the_first_protocol_that_is_asked_for(
    line: bytes, protocol: bytes
) -> None:
    near, far = link_pair()
    far.try_send(b"GET /amps HTTP/1.1\r\n" + line + b"\r\n")
    await answer_upgrade(near, b"")
    answer = bytearray(4096)
    count = far.recv_into(memoryview(answer))
    assert bytes(answer[:count]).split(b"\r\n") == [
        b"HTTP/1.1 101 Switching Protocols",
        b"Connection: Upgrade",
        b"Upgrade: " + protocol,
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    ("request_bytes", "why"),
    [
        (b"GOT / HTTP/1.1\r\n\r\n", "found 'GO'"),
        (b"GET / HTTP/1.1\r\n", "closed before"),
        (b"GET /" + b"a" * MAX_HEAD_BYTES, "exceeds"),
    ],
)
async def test_a_server_refuses_what_is_no_request(request_bytes: bytes, why: str) -> None:
    near, far = link_pair()
    far.try_send(request_bytes)
    far.close()
    with pytest.raises(ProtocolError, match=why):
        await answer_upgrade(near, b"")
