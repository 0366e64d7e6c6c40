from __future__ import annotations

import base64
import contextlib
import json
from functools import partial

import pytest
import trio

from haclient.client import Client
from haclient.errors import DisconnectedError, UsageError
from haclient_fake_server.admin import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    REQUEST_LIMIT_S,
    AdminServer,
    answer,
    parse_admin,
)
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.replication.destination import DestinationStatus
from haclient_fake_server.listener import RESERVED_DESCRIPTORS, has_room
from haclient_fake_server.server import BrokerServer

WEST = DestinationStatus("tcp://west:9007", "west", "sync", False, True, 7, 3, 1, 2)
respond = partial(answer, name="east", version="5.3", destinations=(WEST,))


def body_of(response: bytes) -> object:
    head, _, body = response.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return json.loads(body)


def test_the_state_of_each_destination() -> None:
    response = respond(b"GET /amps/instance/replication.json?x=1 HTTP/1.1\r\nHost: east")
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    destination = {
        "name": "west",
        "address": "tcp://west:9007",
        "configured_type": "sync",
        "replication_type": "async",
        "is_connected": True,
        "messages_behind": 3,
        "messages_missing": 2,
    }
    instance = {"name": "east", "version": "5.3", "replication": [destination]}
    assert body_of(response) == {"amps": {"instance": instance}}


def test_the_instance_alone_and_a_head_without_a_body() -> None:
    instance = {"amps": {"instance": {"name": "east", "version": "5.3"}}}
    assert body_of(respond(b"GET /amps/instance.json HTTP/1.0")) == instance
    assert respond(b"HEAD /amps/instance.json HTTP/1.1").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /amps/instance.json HTTP/1.1", b"405"),
        (b"GET /amps/instance HTTP/1.1", b"404"),
        (b"GET /amps/instance.json", b"400"),
        (b"\xff\x00", b"400"),
    ],
)
def test_other_requests_are_refused(request_line: bytes, status: bytes) -> None:
    assert respond(request_line).split(b" ")[1] == status


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1", "a:b", "a:99999", "a:1/x", "u@a:1", "a..b:1", "[::1:1"]
)
def test_an_address_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="wanted HOST:PORT, such as"):
        parse_admin(text)
    if text:
        with pytest.raises(UsageError, match="wanted HOST:PORT, such as"):
            BrokerConfig(admin=text)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "10.0.0.1:1", "broker:1"])
def test_an_address_that_others_reach_needs_users(address: str) -> None:
    with pytest.raises(UsageError, match="others reach it: wanted an address of this machine"):
        BrokerConfig(admin=address)
    BrokerConfig(admin=address, users={"ann": "1"})
    for local in ("127.0.0.1:0", "[::1]:0", "localhost:0", "127.9.9.9:0"):
        BrokerConfig(admin=local)


async def test_where_others_reach_it_the_password_of_a_user_is_asked_for() -> None:
    async with BrokerServer(BrokerConfig(admin="0.0.0.0:0", users={"ann": "1:\u00e9"})) as server:
        _, port = parse_admin(server.admin_uri.removeprefix("http://"))
        answers: list[bytes] = []
        for text in ("", "ann:1:\u00e9", "ann:1", "eve:1", "!"):
            encoded = base64.b64encode(text.encode()) if text != "!" else b"!"
            asked = b"GET /amps/instance.json HTTP/1.1\r\nAuthorization: Basic " + encoded
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all((asked if text else asked[:32]) + b"\r\n\r\n")
                answers.append(b"".join([chunk async for chunk in stream]))
    assert [each[9:12] for each in answers] == [b"401", b"200", b"401", b"401", b"401"]
    assert b"\r\nWWW-Authenticate: Basic\r\n" in answers[0]


async def test_its_connections_leave_some_descriptors_to_the_journal() -> None:
    room: list[int] = []
    admin = AdminServer(respond, has_room=lambda descriptor: descriptor in room)
    await admin.listen("127.0.0.1", 0)
    host, port = parse_admin(admin.uri.removeprefix("http://"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admin.run)
        async with await trio.open_tcp_stream(host, port) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                assert await stream.receive_some() == b""
        nursery.cancel_scope.cancel()
    admin.close()
    assert has_room(0, RESERVED_DESCRIPTORS + 1)
    assert not has_room(1, RESERVED_DESCRIPTORS + 1)


async def test_a_broker_serves_it() -> None:
    async with BrokerServer(BrokerConfig(name="east", admin="127.0.0.1:0")) as server:
        host, port = parse_admin(server.admin_uri.removeprefix("http://"))
        received = b""
        for _ in range(3):
            async with await trio.open_tcp_stream(host, port) as stream:
                await stream.send_all(b"GET /amps/instance/replication.json HTTP/1.1\r\n")
                await stream.send_all(b"Host: x\r\n\r\n")
                received = b"".join([chunk async for chunk in stream])
        assert b'"replication": []' in received


@pytest.mark.usefixtures("autojump_clock")
async def test_a_client_that_sends_too_much_or_nothing_is_cut() -> None:
    admin = AdminServer(respond)
    await admin.listen("127.0.0.1", 0)
    host, port = parse_admin(admin.uri.removeprefix("http://"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admin.run)
        async with await trio.open_tcp_stream(host, port) as stream:
            await stream.send_all(b"x" * (MAX_REQUEST_BYTES + 1))
            with trio.move_on_after(REQUEST_LIMIT_S):
                with contextlib.suppress(trio.BrokenResourceError):  # it had not read all of it
                    assert await stream.receive_some() == b""
        began = trio.current_time()
        async with await trio.open_tcp_stream(host, port) as stream:
            assert await stream.receive_some() == b""
        assert trio.current_time() >= began + REQUEST_LIMIT_S
        nursery.cancel_scope.cancel()
    admin.close()


async def test_a_client_of_amps_is_answered_at_once_and_says_that_the_port_speaks_http() -> None:
    admin = AdminServer(respond)
    await admin.listen("127.0.0.1", 0)
    address = admin.uri.removeprefix("http://")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(admin.run)
        async with Client("c") as client:
            await client.connect(f"tcp://{address}/amps/json")
            with pytest.raises(DisconnectedError, match="HTTP instead of AMPS: is the port right"):
                await client.logon()
        nursery.cancel_scope.cancel()
    admin.close()


@pytest.mark.usefixtures("autojump_clock")
async def test_idle_connections_keep_nobody_from_an_answer() -> None:
    admin = AdminServer(respond)
    await admin.listen("127.0.0.1", 0)
    host, port = parse_admin(admin.uri.removeprefix("http://"))
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as opened:
        nursery.start_soon(admin.run)
        began = trio.current_time()
        idle = [
            await opened.enter_async_context(await trio.open_tcp_stream(host, port))
            for _ in range(2 * MAX_CONNECTIONS)
        ]
        async with await trio.open_tcp_stream(host, port) as stream:
            await stream.send_all(b"GET /amps/instance.json HTTP/1.1\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 OK")
        for each in idle[:MAX_CONNECTIONS]:
            assert await each.receive_some() == b""  # closed, since newer ones came
        assert trio.current_time() == began
        nursery.cancel_scope.cancel()
    admin.close()
