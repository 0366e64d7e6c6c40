from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import trio

from haclient.cli.demo.processes import reserved_ports
from haclient.client import Client
from haclient.errors import DisconnectedError, UsageError
from haclient.protocol.messages import Message
from haclient_fake_server.admin import (
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    REQUEST_LIMIT_S,
    AdminServer,
    ConflictError,
    answer,
    parse_admin,
)
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import QueueTopic, ReplicateTo, SowTopic
from haclient_fake_server.engine.statistics import Row
from haclient_fake_server.listener import RESERVED_DESCRIPTORS, has_room
from haclient_fake_server.server import BrokerServer
from support.broker import RawClient
from support.process import LIMIT_S

NAME = 'a "b" <c>,\ufffe\n'


def _parse_xml(data: bytes) -> ET.Element:
    return ET.fromstring(data)  # noqa: S314  # our own


class Broker:
    """What the interface asks, without a broker."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def rows(self, table: str, *, after: int = 0) -> list[Row]:
        if table == "sow":
            raise ArithmeticError("a fault")
        if table == "instance":
            return [{"name": "east", "version": "5.3", "faults": 2}]
        if table == "replication":
            return [{"name": "west", "is_connected": True, "messages_behind": 3}]
        return [{"id": number, "client_name": NAME} for number in range(after + 1, 3)]

    def disconnect(self, client: str) -> None:
        self.done.append(("disconnect", client))

    def downgrade(self, address: str) -> None:
        raise UsageError(f"{address}: there is none")

    def upgrade(self, address: str) -> None:
        self.done.append(("upgrade", address))

    def set_transport(self, uri: str, *, enabled: bool) -> None:
        self.done.append((str(enabled), uri))

    def begin_journal_action(self, action: str, segment: str) -> None:
        if action == "remove":
            raise ConflictError("remove 1: a guard needs it")
        self.done.append((action, segment))


respond = partial(answer, broker=Broker())


def get(path: str, *, method: str = "GET", more: str = "", broker: Broker | None = None) -> bytes:
    """The answer to a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x{more}".encode()
    return answer(head, broker=broker or Broker())


def body_of(response: bytes) -> bytes:
    head, _, body = response.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    return body


INSTANCE = {"name": "east", "version": "5.3", "faults": 2}


@pytest.mark.row("AD1")
def test_a_table_in_three_forms() -> None:
    response = get("/amps/instance/replication.json?x=1")
    assert response.startswith(b"HTTP/1.1 200 OK\r\n")
    destination = {"name": "west", "is_connected": True, "messages_behind": 3}
    wanted = {"amps": {"instance": {**INSTANCE, "replication": [destination]}}}
    assert json.loads(body_of(response)) == wanted
    root = _parse_xml(body_of(get("/amps/instance/replication.xml")))
    assert root.findtext("instance/version") == "5.3"
    fields = root.findall("instance/replication/destination/*")
    assert [(each.tag, each.text) for each in fields] == [
        ("name", "west"),
        ("is_connected", "true"),
        ("messages_behind", "3"),
    ]
    found = body_of(get("/amps/instance/replication.csv"))
    assert found == b"name,is_connected,messages_behind\r\nwest,true,3\r\n"


def test_the_instance_alone_and_a_head_without_a_body() -> None:
    assert json.loads(body_of(get("/amps/instance.json"))) == {"amps": {"instance": INSTANCE}}
    assert body_of(get("/amps/instance.csv")) == b"name,version,faults\r\neast,5.3,2\r\n"
    assert get("/amps/instance.json", method="HEAD").endswith(b"\r\n\r\n")


def test_names_with_any_characters_are_written_as_each_form_wants_it() -> None:
    path = "/amps/instance/clients"
    (row,) = json.loads(body_of(get(f"{path}.json?after=1")))["amps"]["instance"]["clients"]
    assert row == {"id": 2, "client_name": NAME}
    root = _parse_xml(body_of(get(f"{path}.xml?after=1")))
    assert root.findtext("instance/clients/client/client_name") == NAME.replace("\ufffe", "\ufffd")
    found = list(csv.reader(io.StringIO(body_of(get(f"{path}.csv?after=1")).decode(), newline="")))
    assert found == [["id", "client_name"], ["2", NAME]]
    assert get(f"{path}.json?after=x").split(b" ")[1] == b"400"
    assert get(f"{path}.json?after=" + "9" * 30).split(b" ")[1] == b"400"


def test_a_fault_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    response = get("/amps/instance/sow.json")
    assert response.split(b" ")[1] == b"500"
    assert json.loads(body_of(response)) == {"error": "internal error: ArithmeticError"}
    assert "Traceback" in caplog.text


@pytest.mark.row("AD2")
def test_what_an_operator_does_is_posted() -> None:
    broker = Broker()
    act = partial(get, method="POST", broker=broker)
    assert act("/amps/administrator/clients/a%2Fb/disconnect").split(b" ")[1] == b"200"
    act("/amps/administrator/replication/tcp://west:9007/upgrade")
    act("/amps/administrator/transports/tcp%3A%2F%2Fx:1/disable")
    act("/amps/administrator/transports/tcp://x:1/enable")
    assert broker.done == [
        ("disconnect", "a/b"),
        ("upgrade", "tcp://west:9007"),
        ("False", "tcp://x:1"),
        ("True", "tcp://x:1"),
    ]
    response = act("/amps/administrator/replication/x/downgrade")
    assert (response.split(b" ")[1], b"x: there is none" in response) == (b"404", True)
    for path in ("clients/x/hug", "clients//disconnect", "clients", "nothing/x/disconnect"):
        response = act(f"/amps/administrator/{path}")
        assert (response.split(b" ")[1], b"clients/NAME/disconnect" in response) == (b"404", True)
    response = act("/amps/administrator/transaction_log/1/remove")
    assert response.startswith(b"HTTP/1.1 409 Conflict\r\n")
    assert b"a guard needs it" in response
    assert get("/amps/administrator/clients/x/disconnect").split(b" ")[1] == b"405"
    from_a_page = act("/amps/administrator/clients/x/disconnect", more="\r\nOrigin: http://y")
    assert from_a_page.split(b" ")[1] == b"403"
    assert len(broker.done) == 4


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"POST /amps/instance.json HTTP/1.1", b"405"),
        (b"GET /amps/instance HTTP/1.1", b"404"),
        (b"GET /amps/instance.html HTTP/1.1", b"404"),
        (b"GET /amps/instancesow.json HTTP/1.1", b"404"),
        (b"GET .json HTTP/1.1", b"404"),
        (b"GET sow.json HTTP/1.1", b"404"),
        (b"GET /amps/instance/secrets.json HTTP/1.1", b"404"),
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


def ignore(_: Message) -> None:
    """Do nothing with a message."""


async def ask(server: BrokerServer, path: str, method: str = "GET") -> bytes:
    """What a broker answers."""
    host, port = parse_admin(server.admin_uri.removeprefix("http://"))
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(f"{method} {path} HTTP/1.1\r\n".encode())
        await stream.send_all(b"Host: x\r\n\r\n")
        return body_of(b"".join([chunk async for chunk in stream]))


async def table(server: BrokerServer, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(await ask(server, f"/amps/instance/{name}.json"))[
        "amps"
    ]["instance"][name]
    return rows


CONFIG = BrokerConfig(
    name="east",
    admin="127.0.0.1:0",
    sow_topics=(SowTopic("prices", ("/id",)),),
    queues=(QueueTopic(name="jobs", lease_s=60.0),),
    replicate_to=(ReplicateTo("mem://nowhere:1"),),
)


async def test_metrics_have_the_limits_of_a_queue_behind_one_without_any() -> None:
    queues = (QueueTopic(name="free"), QueueTopic(name="jobs", lease_s=60.0))
    async with BrokerServer(BrokerConfig(admin="127.0.0.1:0", queues=queues)) as server:
        metrics = (await ask(server, "/metrics")).decode().splitlines()
    assert 'haclient_broker_queue_lease_s{name="jobs",message_type="json"} 60.0' in metrics


@pytest.mark.row("AD1", "AD3")
async def test_a_broker_serves_all_tables_and_metrics() -> None:
    async with BrokerServer(CONFIG) as server, Client("joe") as client:
        await client.connect(f"{server.uris[0]}/amps/json")
        await client.logon()
        await client.publish("prices", b'{"id": 1}')
        await client.publish("jobs", b"1")
        await client.subscribe("jobs", sub_id="worker", handler=ignore)
        await client.bookmark_subscribe("prices", bookmark="0", sub_id="reader", handler=ignore)
        await client.flush(timeout=10)
        (row,) = await table(server, "clients")
        assert (row["client_name"], row["subscriptions"], row["unsent_bytes"]) == ("joe", 2, 0)
        rows = await table(server, "subscriptions")
        assert [(each["sub_id"], each["kind"]) for each in rows] == [
            ("worker", "queue"),
            ("reader", "live"),
        ]
        assert (rows[0]["leased"], rows[1]["position"], rows[1]["lag"]) == (1, 2, 0)
        (row,) = await table(server, "queues")
        assert (row["depth"], row["leased"], row["expired_leases"]) == (1, 1, 0)
        assert 0 <= row["age_of_oldest_lease"] < 60
        (row,) = await table(server, "sow")
        assert (row["topic"], row["keys"], row["records"]) == ("prices", "/id", 1)
        (row,) = await table(server, "transaction_log")
        assert (row["first_position"], row["last_position"]) == (1, 2)
        (row,) = await table(server, "replication")
        assert (row["address"], row["messages_behind"], row["configured_type"]) == (
            "mem://nowhere:1",
            2,
            "sync",
        )
        assert 0 <= row["seconds_behind"] < 60
        assert await table(server, "transports") == [{"name": server.uris[0], "is_enabled": True}]
        metrics = (await ask(server, "/metrics")).decode().splitlines()
        assert "# TYPE haclient_broker_ended_connections_total counter" in metrics
        assert "haclient_broker_connections 1" in metrics
        assert 'haclient_broker_queue_depth{name="jobs",message_type="json"} 1' in metrics
        assert 'haclient_broker_sow_records{topic="prices",message_type="json"} 1' in metrics


@pytest.mark.row("AD2")
async def test_an_operator_disconnects_a_client_and_closes_a_transport() -> None:
    async with BrokerServer(BrokerConfig(admin="127.0.0.1:0")) as server, Client("joe") as client:
        await client.connect(f"{server.uris[0]}/amps/json")
        await client.logon()
        for unknown in ("eve", "9" * 5000):
            path = f"/amps/administrator/clients/{unknown}/disconnect"
            assert b"no connection has this name" in await ask(server, path, "POST")
        await ask(server, "/amps/administrator/clients/joe/disconnect", "POST")
        with pytest.raises(DisconnectedError, match="disconnected by an operator"):
            await client.flush(timeout=5)
        path = f"/amps/administrator/transports/{server.uris[0]}"
        await ask(server, f"{path}/disable", "POST")
        async with Client("joe") as refused:
            await refused.connect(f"{server.uris[0]}/amps/json")
            with pytest.raises(DisconnectedError):
                await refused.logon()
        await ask(server, f"{path}/enable", "POST")
        async with Client("joe") as again:
            await again.connect(f"{server.uris[0]}/amps/json")
            await again.logon()
        assert server.ended_connections["disconnected by an operator"] == 1


async def replica(server: BrokerServer, kind: str, *, behind: int, connects: int) -> None:
    """Wait until the only destination is like that, in its table and in the metrics."""
    with trio.fail_after(LIMIT_S):
        while True:
            (row,) = await table(server, "replication")
            if (row["replication_type"], row["messages_behind"], row["connects"]) == (
                kind,
                behind,
                connects,
            ):
                break
            await trio.sleep(0.01)
    labels = f'{{name="west",address="{row["address"]}"}}'
    metrics = (await ask(server, "/metrics")).decode().splitlines()
    assert "# TYPE haclient_broker_replication_messages_behind gauge" in metrics
    assert f"haclient_broker_replication_messages_behind{labels} {behind}" in metrics
    assert "# TYPE haclient_broker_replication_connects_total counter" in metrics
    assert f"haclient_broker_replication_connects_total{labels} {connects}" in metrics


@pytest.mark.row("AD2", "AD3", "RE5")
async def test_an_operator_lets_publishers_go_on_without_a_replica_until_it_is_back(
    tmp_path: Path,
) -> None:
    with reserved_ports(1) as [port]:
        address = f"tcp://127.0.0.1:{port}"
        west = BrokerConfig(name="west", listen=(address,), data_dir=tmp_path / "west")
        east = BrokerConfig(
            admin="127.0.0.1:0",
            redial_max_s=0.02,
            redial_s=0.01,
            replicate_to=(ReplicateTo(address),),
        )
        act = f"/amps/administrator/replication/{address}"
        message = {"c": "p", "t": "orders", "cid": "p", "a": "processed,persisted"}
        async with BrokerServer(east) as server, RawClient.connect(server.uris[0]) as client:
            await client.logon("p", opts="ack_conflation=1ms")
            async with BrokerServer(west):
                await client.send(b"1", **message, s=1)
                await client.persisted(1)
            await client.send(b"2", **message, s=2)
            await client.ack("processed")
            await replica(server, "sync", behind=1, connects=1)
            (row,) = await table(server, "clients")
            assert row["held_acks"] == 1
            await ask(server, f"{act}/downgrade", "POST")
            await client.persisted(2)
            await replica(server, "async", behind=1, connects=1)
            await ask(server, f"{act}/upgrade", "POST")
            async with BrokerServer(west) as back, RawClient.connect(back.uris[0]) as reader:
                await replica(server, "sync", behind=0, connects=2)
                await reader.logon("reader")
                await reader.send(c="subscribe", cid="r", t="orders", bm="0")
                assert [each.data for each in await reader.publishes(2)] == [b"1", b"2"]
            await client.send(b"3", **message, s=3)
            await client.ack("processed")
            (row,) = await table(server, "clients")
            assert row["held_acks"] == 1


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
