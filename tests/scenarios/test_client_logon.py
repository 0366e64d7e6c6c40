"""Connecting, logging on, names and passwords, and the ends of a connection."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import (
    AuthenticationError,
    ConnectionRefused,
    DisconnectedError,
    HAClientError,
    NameInUse,
    PublishGap,
    TimedOut,
    UsageError,
)
from haclient.protocol.codec import publish_head
from haclient.protocol.options import Options
from haclient.servers.auth import Authenticator
from haclient.session.connection_state import ConnectionState
from haclient.transport.tasks import open_nursery
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictPublishStore
from support.listening import on_losses
from support.peer import Server, answering, together

pytestmark = in_virtual_time


class Challenge(Authenticator):
    """Answers with what it was given, and writes everything down."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    @override
    async def authenticate(self, user: str, password: str) -> str:
        self.calls.append(("authenticate", user, password))
        return "token-1"

    @override
    async def retry(self, user: str, password: str) -> str:
        self.calls.append(("retry", user, password))
        return f"token-{len(self.calls)}"

    @override
    def completed(self, user: str, password: str, reason: str) -> None:
        self.calls.append(("completed", user, password, reason))


@pytest.mark.row("CC2")
async def test_a_command_that_comes_too_early_is_told_which_call_is_missing(server: Server) -> None:
    async with Client("c") as client:
        with pytest.raises(DisconnectedError, match="not connected: call connect and logon first"):
            await client.subscribe("orders", handler=print)
        await server.connect(client)
        with pytest.raises(DisconnectedError, match="not logged on: call logon first"):
            await client.subscribe("orders", handler=print)


@pytest.mark.row("CC1", "CC2", "CC5")
async def test_each_step_by_itself(server: Server) -> None:
    async with Client("pub") as client:
        states = [client.state]
        assert (client.name, client.connection_info["server_version"]) == ("pub", "")
        peer = await server.connect(client)
        states.append(client.state)
        await together(client.logon, peer.log_on)
        states.append(client.state)
        assert client.connection_info["server_version"] == "5.3.5.1"
        await together(client.disconnect, peer.expect_end)
        states.append(client.state)
    assert [*states, client.state] == [
        ConnectionState.DISCONNECTED,
        ConnectionState.CONNECTED,
        ConnectionState.LOGGED_ON,
        ConnectionState.DISCONNECTED,
        ConnectionState.SHUTDOWN,
    ]


async def test_outside_of_trio_it_is_said_what_runs_it() -> None:
    def enter() -> None:
        with pytest.raises(UsageError, match=r"trio.run\(main\)"):
            Client("c").__aenter__().send(None)  # as another event loop would

    await trio.to_thread.run_sync(enter)


@pytest.mark.row("CC4", "AT10")
async def test_a_logon_says_who_we_are(server: Server) -> None:
    options = Options(ack_conflation="100ms")
    async with Client("pub", logon_options=options, logon_correlation_id="abc") as client:
        peer = await server.connect(client)
        await together(client.logon, peer.log_on)
        logon = peer.heard[0]
        assert (logon.client_name, logon.message_type, logon.ack_type) == (
            "pub",
            "json",
            "processed",
        )
        assert (logon.user_id, logon.password) == ("user", "secret")
        assert (logon.options, logon.correlation_id) == ("ack_conflation=100ms", "abc")


@pytest.mark.row("AT9", "CC5")
async def test_a_server_that_asks_again_is_answered_on_the_same_connection(server: Server) -> None:
    authenticator = Challenge()
    async with Client("pub", authenticator=authenticator) as client:
        peer = await server.connect(client)

        async def script() -> None:
            first = await peer.expect("logon", user_id="user", password="token-1")  # noqa: S106  # a test's
            await peer.ack(first, status="retry", user_id="other", pw="challenge")
            second = await peer.expect("logon", user_id="other", password="token-2")  # noqa: S106  # a test's
            await peer.ack(second, s=0, reason="welcome")

        await together(client.logon, script)
    assert authenticator.calls == [
        ("authenticate", "user", "secret"),
        ("retry", "other", "challenge"),
        ("completed", "other", "token-2", "welcome"),
    ]


@pytest.mark.row("AT9")
async def test_a_retry_that_brings_no_password_keeps_the_one_of_the_uri(server: Server) -> None:
    async with Client("pub") as client:
        peer = await server.connect(client)

        async def script() -> None:
            await peer.ack(await peer.expect("logon"), status="retry", user_id="other")
            again = await peer.expect("logon", user_id="other", password="secret")  # noqa: S106  # a test's
            await peer.ack(again, s=0)

        await together(client.logon, script)


@pytest.mark.row("AT9")
async def test_a_server_that_never_stops_asking_is_given_up(server: Server) -> None:
    async with Client("pub") as client:
        peer = await server.connect(client)

        async def script() -> None:
            for _ in range(4):
                await peer.ack(await peer.expect("logon"), status="retry")
            await peer.expect_end()

        with pytest.raises(AuthenticationError, match="4 times"):
            await together(client.logon, script)


@pytest.mark.row("CC37", "AT9")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("auth failure", AuthenticationError),
        ("not entitled", AuthenticationError),
        ("name in use", NameInUse),
        ("invalid options", DisconnectedError),
    ],
)
async def test_a_refused_logon_is_an_error_and_another_server_may_be_tried_at_once(
    server: Server, reason: str, kind: type[HAClientError]
) -> None:
    async with Client("pub") as client:
        peer = await server.connect(client)

        async def script() -> None:
            await peer.refuse(await peer.expect("logon"), reason)

        with pytest.raises(kind) as caught:
            await together(client.logon, script)
        assert type(caught.value) is kind
        await peer.expect_end()
        await server.log_on(client)
        assert client.state is ConnectionState.LOGGED_ON


async def test_an_authenticator_that_fails_ends_the_connection(server: Server) -> None:
    class Broken(Challenge):
        @override
        async def authenticate(self, user: str, password: str) -> str:
            raise LookupError("no token")

    async with Client("pub", authenticator=Broken()) as client:
        peer = await server.connect(client)
        with pytest.raises(LookupError, match="no token"):
            await client.logon()
        await peer.expect_end()
        assert client.state is ConnectionState.DISCONNECTED


@pytest.mark.row("CC2", "CC4")
async def test_a_server_that_says_nothing_is_given_up_in_time(server: Server) -> None:
    async with Client("pub") as client:
        peer = await server.connect(client)
        start = trio.current_time()
        # Such as an HTTP server that waits for a line.
        why = r"did not answer within 2\.5 s; the server has sent nothing at all: are the"
        with pytest.raises(TimedOut, match=why):
            await client.logon(timeout=2.5)
        assert trio.current_time() - start == pytest.approx(2.5)
        await peer.expect("logon")
        await peer.expect_end()


@pytest.mark.row("AT12")
async def test_no_error_and_no_log_shows_the_password(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with Client("pub") as client:
            peer = await server.connect(client)

            async def script() -> None:
                await peer.refuse(await peer.expect("logon"), "auth failure")

            with pytest.raises(AuthenticationError) as caught:
                await together(client.logon, script)
    shown = f"{caught.value!r} {caplog.text} {client!r} {client._core.settings!r}"
    assert "secret" not in shown


@pytest.mark.row("PS9")
async def test_a_server_that_lost_what_it_had_acknowledged_is_refused_on_request(
    server: Server,
) -> None:
    store = MemoryPublishStore(error_on_publish_gap=True)
    async with Client("pub", publish_store=store) as client:
        peer = await server.log_on(client, seen=2**60, persisted=2**60)
        peer.link.close()
        await wait_all_tasks_blocked()
        with pytest.raises(PublishGap):
            await server.log_on(client, seen=5)
        assert client.state is ConnectionState.DISCONNECTED


# -- in the wrong order -------------------------------------------------------------------


async def test_what_comes_too_early_or_too_often_is_refused(server: Server) -> None:
    client = Client("pub")
    with pytest.raises(UsageError, match="of a client that was not entered"):
        await client.connect(server.uri)
    async with client:
        with pytest.raises(DisconnectedError, match="call connect first"):
            await client.logon()
        with pytest.raises(DisconnectedError, match="not connected"):
            await client.flush()
        await client.disconnect()
        await server.connect(client)
        with pytest.raises(DisconnectedError, match="not logged on"):
            await client.flush()
        with pytest.raises(UsageError, match="is connected"):
            await client.connect(server.uri)
        await together(client.logon, server.peers[0].log_on)
        with pytest.raises(UsageError, match="logged on already"):
            await client.logon()
    with pytest.raises(UsageError, match="runs once"):
        await client.__aenter__()


@pytest.mark.row("CC2")
async def test_nobody_there_is_an_error_and_the_client_goes_on(server: Server) -> None:
    async with Client("pub") as client:
        with pytest.raises(ConnectionRefused):
            await client.connect(server.uri + ".none")
        with pytest.raises(UsageError, match="connection string"):
            await client.connect("nonsense")
        await server.log_on(client)


@pytest.mark.row("CC1")
@pytest.mark.parametrize("name", ["", "a\nb", "a[1]", "\x7f"])
def test_a_name_that_logs_would_mangle_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        Client(name)


# -- the end ------------------------------------------------------------------------------


@pytest.mark.row("ID5", "CC28")
async def test_the_last_word_of_the_server_says_why(server: Server) -> None:
    told: list[HAClientError] = []
    async with Client("pub", on_event=on_losses(told.append)) as client:
        peer = await server.log_on(client)

        async def script() -> None:
            await peer.expect("flush")
            await peer.ack(None, status="failure", reason="name in use")
            peer.link.close()

        with pytest.raises(DisconnectedError, match="flush: not confirmed") as caught:
            await together(client.flush, script)
        assert isinstance(caught.value.__cause__, NameInUse)
        await wait_all_tasks_blocked()
        assert [type(each) for each in told] == [NameInUse]
        with pytest.raises(NameInUse):
            await client.logon()


@pytest.mark.row("CC2")
async def test_after_a_disconnect_the_same_client_connects_again(server: Server) -> None:
    async with Client("pub") as client:
        for _ in range(3):
            peer = await server.log_on(client)
            async with answering(peer):
                await client.flush()
            await client.disconnect()
            await client.disconnect()
        assert len(server.peers) == 3


@pytest.mark.row("CC3")
async def test_leaving_the_block_leaves_no_task_behind(server: Server) -> None:
    before = count_tasks()
    async with Client("pub", heartbeat=1.0, on_event=print) as client:
        peer = await server.connect(client)
        async with answering(peer):
            await together(client.logon, trio.lowlevel.checkpoint)
            await client.subscribe("orders", handler=print)
            assert count_tasks() > before
    assert count_tasks() == before


def count_tasks() -> int:
    """All tasks of this run, but those of the system."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    todo, count = [root], 0
    while todo:
        task = todo.pop()
        count += 1
        for nursery in task.child_nurseries:
            todo += nursery.child_tasks
    return count


@pytest.mark.row("CC2")
async def test_a_logon_leaves_the_connection_alone_that_another_task_has_made_meanwhile(
    server: Server,
) -> None:
    store = DictPublishStore()
    store.number_above(1)
    for _ in range(20):  # more than is looked at in a few steps
        store.store(publish_head("orders"), b"}", b"x" * 1_000_000)

    async with Client("pub", publish_store=store, exit_timeout=0) as client:

        async def log_on() -> None:
            with pytest.raises(DisconnectedError):
                await client.logon()

        peer = await server.connect(client)
        async with open_nursery() as nursery:
            nursery.start_soon(log_on)
            await peer.log_on()
            while not client._core.status.is_logged_on:
                await trio.lowlevel.checkpoint()
            await client.disconnect()
            again = await server.connect(client)
        assert client.state is ConnectionState.CONNECTED
        await together(client.logon, again.log_on)
        assert [each.command for each in again.heard] == ["logon"]
        assert len(await again.sequences(20)) == 20


@pytest.mark.row("CC3")
async def test_an_error_in_the_block_leaves_as_itself_and_does_not_wait(server: Server) -> None:
    store = MemoryPublishStore()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
        async with Client("pub", publish_store=store) as client:
            await server.log_on(client)
            await client.publish("orders", b"a")
            start = trio.current_time()
            raise ZeroDivisionError
    assert trio.current_time() == start


@pytest.mark.row("CC3")
async def test_a_cancelled_block_ends_at_once(server: Server) -> None:
    with trio.move_on_after(3) as scope:
        async with Client("pub", publish_store=MemoryPublishStore()) as client:
            await server.log_on(client)
            await client.publish("orders", b"a")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(3)
    assert client.state is ConnectionState.SHUTDOWN
