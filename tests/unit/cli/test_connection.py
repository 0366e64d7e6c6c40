"""Servers are tried in order, once; a connection that was lost is looked for, not for ever."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from haclient.cli.app import run
from haclient.cli.connection import ConnectionRequest, open_client
from haclient.errors import (
    AuthenticationError,
    ConnectionRefused,
    NameInUse,
    ReconnectGaveUp,
    TimedOut,
)
from haclient.protocol.codec import MessageDecoder, encode_frame
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.stores import MemoryPublishStore
from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import LIMIT_S, running_broker

CLOSED = ("tcp://127.0.0.1:1/amps/json", "tcp://me:secret@127.0.0.1:2/amps/json")


async def connect(*servers: str, timeout_s: float = 10.0) -> None:
    async with open_client(ConnectionRequest(servers=servers, name="me", timeout_s=timeout_s)):
        raise AssertionError("there is no server")


async def test_the_only_server_fails_with_its_own_error() -> None:
    with pytest.raises(ConnectionRefused):
        await connect(CLOSED[0])


async def test_when_all_fail_each_is_named_and_no_password() -> None:
    with pytest.raises(ReconnectGaveUp, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2") as gave_up:
        await connect(*CLOSED)
    assert "secret" not in str(gave_up.value)
    assert str(gave_up.value).count("tcp://") == len(CLOSED), "each once"


async def test_a_silent_server_passes_the_turn_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"tcp://127.0.0.1:{silent.getsockname()[1]}/amps/json"
        with pytest.raises(TimedOut):
            await connect(uri, timeout_s=0.05)
        with pytest.raises(ReconnectGaveUp, match=r"127\.0\.0\.1:1"):
            await connect(uri, CLOSED[0], timeout_s=0.05)


async def test_the_second_server_is_taken_when_the_first_is_dead(broker: BrokerProcess) -> None:
    async with open_client(ConnectionRequest(servers=(CLOSED[0], broker.uri), name="me")) as client:
        assert client.state.is_logged_on


async def test_each_attempt_is_named_on_request_and_none_twice(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "haclient.client")
    async with open_client(ConnectionRequest(servers=(CLOSED[0], broker.uri), name="me")):
        pass
    attempts = [each.getMessage() for each in caplog.records if "attempt" in each.getMessage()]
    assert [text.partition(" at ")[0] for text in attempts] == [
        "client me: attempt 1",
        "client me: attempt 2",
    ]
    assert capsys.readouterr().err.endswith(f"; trying {broker.uri} now\n")


async def test_the_default_name_is_of_this_process(broker: BrokerProcess) -> None:
    async with open_client(ConnectionRequest(servers=(broker.uri,), name=None)) as client:
        assert str(os.getpid()) in client.name


async def test_a_server_that_refuses_the_password_passes_the_turn_on(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text("alice:secret\n")
    with running_broker(tmp_path / "log", "--user-file", str(users)) as strict:
        wrong = strict.uri.replace("tcp://", "tcp://alice:wrong@")
        async with open_client(ConnectionRequest(servers=(wrong, broker.uri), name="me")) as client:
            assert client.state.is_logged_on
        with pytest.raises(AuthenticationError):
            await connect(wrong)


async def test_who_loses_the_name_does_not_fight_for_it(broker: BrokerProcess) -> None:
    connection = ConnectionRequest(servers=(broker.uri,), name="one name")
    with pytest.raises(NameInUse):
        async with open_client(connection), open_client(connection):
            await trio.sleep_forever()


async def test_a_lost_connection_is_looked_for_until_the_limit(tmp_path: Path) -> None:
    async def lose(broker: BrokerProcess) -> None:
        connection = ConnectionRequest(
            servers=(broker.uri, CLOSED[0]), name="me", give_up_after_s=0.3
        )
        async with open_client(connection):
            broker.kill()
            await trio.sleep_forever()

    with (
        running_broker(tmp_path / "log") as broker,
        pytest.raises(ReconnectGaveUp, match=r"the limit is 0\.3 s"),
    ):
        await lose(broker)


async def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    with running_broker(tmp_path / "log") as broker:
        connection = ConnectionRequest(
            servers=(broker.uri,), name="me", publish_store=MemoryPublishStore()
        )
        async with open_client(connection) as client:
            broker.kill()
            await client.publish("t", b"1")
            await trio.to_thread.run_sync(broker.start)
            await client.publish_flush(timeout=30)
            assert client.unpersisted_count == 0


@pytest.mark.row("CLI1")
@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ((), '"opts":"ack_conflation=100ms"'),
        (("--logon-options", "ack_conflation=7ms"), '"opts":"ack_conflation=7ms"'),
        (("--logon-options", ""), ""),
    ],
)
def test_the_logon_has_the_options_that_the_command_is_given(
    haclient: CommandLine, given: tuple[str, ...], sent: str
) -> None:
    for command in (("ping",), ("sow", "people")):
        code, _, err = haclient(*command, "-vv", *given)
        assert code == 0
        (logon,) = (line for line in err.splitlines() if '"c":"logon"' in line)
        assert sent in logon
        assert ('"opts"' in logon) is bool(sent)


def logon_of(words: tuple[str, ...]) -> Message:
    """The logon of a command, as a plain socket sees it, which refuses it."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:

        def serve() -> Message:
            with server.accept()[0] as connection:
                (logon,) = MessageDecoder().decode(*FrameReader().feed(connection.recv(65536)))
                refusal = {"c": "ack", "a": "processed", "cid": logon.command_id}
                failure = {"status": "failure", "reason": "auth failure"}
                connection.sendall(encode_frame(refusal | failure, b""))
                return logon

        serving = threads.submit(serve)
        uri = f"tcp://127.0.0.1:{server.getsockname()[1]}/amps/json"
        assert run([*words, "--server", uri]) != 0
        return serving.result(LIMIT_S)


@pytest.mark.row("CLI1")
@pytest.mark.parametrize(
    "words",
    [
        ("ping",),
        ("publish", "orders", "-m", "1"),
        ("subscribe", "orders"),
        ("sow", "orders"),
        ("sow-and-subscribe", "orders"),
        ("sow-delete", "orders", "--filter", "/id = 1"),
        ("queue", "depth"),
        ("queue", "browse", "jobs"),
        ("queue", "consume", "jobs"),
        ("queue", "move", "jobs", "done"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_each_command_that_connects_can_leave_the_options_of_its_logon_out(
    words: tuple[str, ...],
) -> None:
    assert logon_of(words).options == "ack_conflation=100ms"
    assert not logon_of((*words, "--logon-options", "")).options


@pytest.mark.row("CLI1")
def test_options_of_the_logon_that_are_no_text_are_refused(haclient: CommandLine) -> None:
    code, _, err = haclient("ping", "--logon-options", "\udcff")
    assert code == 2
    assert err.startswith("haclient: error: Invalid value for '--logon-options': character 1 is ")
    assert err.count("\n") == 1
