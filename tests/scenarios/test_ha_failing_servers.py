"""HAClient and servers that do not do their part: who is tried when, and what is said of it."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ReconnectGaveUp,
    TimedOut,
)
from haclient.servers.chooser import DefaultServerChooser, FailureCountServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.servers.health import HealthAwareServerChooser
from haclient.session.recovery import STABLE_AFTER_S
from haclient.transport.links.link import TcpLink
from haclient.transport.links.memory_network import MemoryLink, network
from haclient.transport.tasks import open_nursery
from support.clock import in_virtual_time
from support.listening import on_losses
from support.peer import Peer, Server, answering
from support.recovery import Recorder, drop, entered, live, lose, until_stable

pytestmark = in_virtual_time

LOGGER = "haclient.client"


async def close_soon(peer: Peer) -> None:
    await trio.sleep(0.08)
    peer.link.close()


async def send_garbage(peer: Peer) -> None:
    await peer.send(b"\xff" * 64)
    await peer.hear_or_end()


@pytest.mark.row("DS8", "HA7")
@pytest.mark.parametrize("fail", [close_soon, send_garbage])
async def test_a_server_that_fails_right_after_the_logon_is_left_for_the_next_one(
    server: Server, other: Server, fail: object
) -> None:
    assert callable(fail)
    seen: list[str] = []
    client = HAClient(
        "ha", server_chooser=Recorder({"A": server.uri, "B": other.uri}, seen), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, peer)
            good = await live(other)
        await wait_all_tasks_blocked()
        assert client.state.is_logged_on
        told = [each.split(":")[0] for each in seen if each[0] in "sf"]
        assert told == ["success A", "failure A", "success B"]
        await until_stable(good)
        seen.clear()
        await drop(good)  # which had lasted: it is tried again first
        await live(other)
        await wait_all_tasks_blocked()
        assert seen[0] == "uri B"
        await client.disconnect()


@pytest.mark.row("DS8")
async def test_a_lone_server_that_fails_right_after_the_logon_is_tried_after_growing_waits(
    server: Server,
) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)

    async def serve() -> Peer:
        peer = await live(server)
        await close_soon(peer)
        return peer

    async with entered(client, serve):
        started, times = trio.current_time(), list[float]()
        with trio.move_on_after(30.0):
            while True:
                peer = await live(server)
                times.append(trio.current_time() - started)
                await close_soon(peer)
        waits = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) < 10
        assert max(waits) > 4.0
        await client.disconnect()


@pytest.mark.row("DS1", "DS8")
async def test_the_delay_strategy_is_reset_once_the_connection_was_live_for_long_enough(
    server: Server,
) -> None:
    resets: list[float] = []

    class Recorded(FixedDelayStrategy):
        @override
        def reset(self) -> None:
            resets.append(trio.current_time())
            super().reset()

    client = HAClient(
        "ha", servers=[server.uri], delay_strategy=Recorded(0.5), heartbeat=None, exit_timeout=0
    )
    async with entered(client, partial(live, server)) as peer:
        began = trio.current_time()
        await trio.sleep(STABLE_AFTER_S - 0.01)
        await drop(peer)
        await live(server)
        began = trio.current_time()
        await trio.sleep(60)
    assert resets == [pytest.approx(began + STABLE_AFTER_S)]


# -- a displaced connection ------------------------------------------------------------------------


async def displace(peer: Peer) -> None:
    await peer.ack(None, status="failure", reason="name in use")
    await drop(peer)


async def give_up(peer: Peer) -> None:
    """The client waits for an answer to its logon for too long."""
    await peer.expect("logon")
    await peer.expect_end()


async def reset(peer: Peer) -> None:
    """The connection is reset while the logon is on its way."""
    link = peer.link
    assert isinstance(link, TcpLink)
    await link.wait_readable()
    link._socket.close()  # with something unread, the other end meets ECONNRESET


@pytest.mark.row("HA27")
@pytest.mark.parametrize("lose_logon", [give_up, reset])
@pytest.mark.parametrize("abandoned", [1, 3])
async def test_a_client_that_its_own_late_logon_has_displaced_connects_again_once(
    server: Server, abandoned: int, lose_logon: Callable[[Peer], Awaitable[None]]
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        delay_strategy=FixedDelayStrategy(0.5),
        heartbeat=None,
        connect_timeout=2.0,
    )

    async def serve() -> Peer:
        for _ in range(abandoned):
            slow = await server.accept()
            await lose_logon(slow)  # the server has yet to read it
        return await live(server)

    connected_again = False
    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, serve) as peer:
            await displace(peer)
            again = await live(server)
            await wait_all_tasks_blocked()
            connected_again = client.state.is_logged_on
            await displace(again)  # nothing of its own can be the cause any more
            await trio.sleep_forever()
    assert connected_again


async def assert_displaced(client: HAClient, serve: Callable[[], Awaitable[Peer]]) -> None:
    """The client ends by the displacement that comes when it has recovered."""
    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, serve) as peer:
            await displace(peer)
            await trio.sleep_forever()


@pytest.mark.row("HA27")
async def test_a_logon_that_was_given_up_elsewhere_excuses_no_displacement(
    server: Server, other: Server
) -> None:
    client = HAClient("ha", servers=[server.uri, other.uri], heartbeat=None, connect_timeout=2.0)

    async def serve() -> Peer:
        slow = await server.accept()
        await slow.expect("logon")
        return await live(other)

    await assert_displaced(client, serve)


@pytest.mark.row("HA27")
async def test_a_logon_that_was_answered_excuses_no_displacement(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None, connect_timeout=2.0)

    async def serve() -> Peer:
        peer = await server.accept()
        await peer.refuse(await peer.expect("logon"), "too many connections")
        await peer.expect_end()
        return await live(server)

    await assert_displaced(client, serve)


@pytest.mark.row("HA27")
async def test_a_logon_that_the_server_has_ended_excuses_no_displacement(server: Server) -> None:
    client = HAClient(
        "ha", servers=[server.uri], delay_strategy=FixedDelayStrategy(0.1), heartbeat=None
    )

    async def serve() -> Peer:
        for _ in range(5):
            restarting = await server.accept()
            await restarting.expect("logon")
            restarting.link.close()
        return await live(server)

    await assert_displaced(client, serve)


@pytest.mark.row("HA27")
async def test_a_displacement_during_the_recovery_ends_the_client_too(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            async with answering(peer):
                await client.subscribe("orders", handler=lambda _: None)
            await lose(peer)
            again = await live(server)
            await again.expect("subscribe")
            await displace(again)
            await trio.sleep_forever()


@pytest.mark.row("ID7", "HA27")
async def test_a_displaced_client_and_a_refused_newcomer_log_that_the_name_is_in_use(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse() -> None:
        peer = await server.accept()
        await peer.refuse(await peer.expect("logon"), "name in use")
        await peer.expect_end()

    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(
            HAClient("old", servers=[server.uri], heartbeat=None), partial(live, server)
        ) as peer:
            await displace(peer)
            await trio.sleep_forever()
    with pytest.raises(NameInUse):  # noqa: PT012  # with its server
        async with open_nursery() as nursery:
            nursery.start_soon(refuse)
            async with HAClient("newcomer", servers=[server.uri]):
                pytest.fail("never entered")
    displaced, refused = (
        each.message for each in caplog.records if each.levelno == logging.WARNING
    )
    assert displaced.startswith("client old lost its connection to unix://")
    assert "name in use" in displaced
    assert refused.startswith("client newcomer: attempt 1 at unix://")
    assert "name in use" in refused


# -- credentials -----------------------------------------------------------------------------------


async def refuse_logon(server: Server) -> None:
    peer = await server.accept()
    await peer.refuse(await peer.expect("logon"), "auth failure")
    await peer.expect_end()


@pytest.mark.row("CC37", "HA5")
async def test_credentials_that_every_server_refuses_end_a_client_that_was_never_logged_on(
    server: Server, other: Server
) -> None:
    client = HAClient("ha", servers=[server.uri, other.uri], heartbeat=None)
    started = trio.current_time()
    with pytest.raises(AuthenticationError, match=r"refused by every server.*auth failure"):  # noqa: PT012  # with its servers
        async with open_nursery() as nursery:
            nursery.start_soon(refuse_logon, server)
            nursery.start_soon(refuse_logon, other)
            async with client:
                pytest.fail("never entered")
    assert trio.current_time() == started


@pytest.mark.row("HA5")
async def test_credentials_are_tried_on_while_a_server_of_the_sweep_may_take_them(
    server: Server,
) -> None:
    dead = "unix://localhost:0/amps/json?path=/nonexistent/amps"
    client = HAClient("ha", servers=[server.uri, dead], heartbeat=None)

    async def serve() -> Peer:
        for _ in range(3):
            await refuse_logon(server)
        return await live(server)

    async with entered(client, serve) as peer:
        await lose(peer)
        await refuse_logon(server)  # they were right once: they may be again
        await refuse_logon(server)
        await live(server)
        await wait_all_tasks_blocked()
        assert client.state.is_logged_on
        await client.disconnect()


@pytest.mark.row("SC7")
async def test_a_client_whose_servers_have_all_failed_too_often_goes_on_trying_them_in_order(
    server: Server,
) -> None:
    dead = "unix://localhost:0/amps/json?path=/nonexistent/amps"
    chooser = FailureCountServerChooser([dead, server.uri], limit=1)
    client = HAClient(
        "ha", server_chooser=chooser, delay_strategy=FixedDelayStrategy(1.0), heartbeat=None
    )

    async def serve() -> Peer:
        for _ in range(5):
            peer = await server.accept()
            await peer.refuse(await peer.expect("logon"), "not today")
        return await live(server)

    async with entered(client, serve):
        assert client.state.is_logged_on


@pytest.mark.row("SC3", "SC4")
async def test_the_client_ends_with_what_the_chooser_says_when_it_has_no_server(
    server: Server,
) -> None:
    class Once(FailureCountServerChooser):
        @override
        def current_uri(self) -> str:
            return "" if self._failures[server.uri] else super().current_uri()

    async def serve() -> None:
        peer = await server.accept()
        await peer.refuse(await peer.expect("logon"), "not today")

    client = HAClient("ha", server_chooser=Once([server.uri]), heartbeat=None)
    with pytest.raises(ReconnectGaveUp, match=r"gave up after 1 attempts.*not today"):  # noqa: PT012  # with its server
        async with open_nursery() as nursery:
            nursery.start_soon(serve)
            async with client:
                pytest.fail("never entered")


@pytest.mark.row("SC3", "DS5")
@pytest.mark.parametrize("where", ["current_uri", "current_authenticator", "delay_for"])
async def test_an_error_of_a_chooser_or_delay_strategy_ends_the_client(where: str) -> None:
    """To ask again at once would never end, and no other task would run."""
    asked = 0

    def fail(*_: object) -> str:
        nonlocal asked
        asked += 1
        assert asked == 1
        raise DisconnectedError("no route to the name service")

    chooser = DefaultServerChooser(["tcp://localhost:1/amps/json"])
    strategy = FixedDelayStrategy(1.0)
    setattr(strategy if where == "delay_for" else chooser, where, fail)
    client = HAClient("ha", server_chooser=chooser, delay_strategy=strategy)
    with pytest.raises(ReconnectGaveUp, match="no route to the name service"):
        async with client:
            pytest.fail("never entered")


@pytest.mark.row("DS5")
async def test_clients_that_share_a_delay_strategy_give_up_each_by_itself() -> None:
    dead = "unix://localhost:0/amps/json?path=/nonexistent/amps"
    strategy = FixedDelayStrategy(1.0, give_up_after=5.0)
    tried_s: list[float] = []

    async def give_up(name: str) -> None:
        began = trio.current_time()
        with pytest.raises(ReconnectGaveUp):
            async with HAClient(name, servers=[dead], delay_strategy=strategy):
                pytest.fail("never entered")
        tried_s.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(give_up, "first")
        await trio.sleep(3.0)
        nursery.start_soon(give_up, "second")
    assert tried_s == pytest.approx([5.0, 5.0])


# -- what is said ----------------------------------------------------------------------------------


@pytest.mark.row("HA26")
async def test_the_first_failed_attempt_is_a_warning_and_others_at_growing_intervals(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    dead = "unix://user:secret@localhost:0/amps/json?path=/nonexistent/amps"
    strategy = FixedDelayStrategy(1.0, give_up_after=60.0)
    with pytest.raises(ReconnectGaveUp):
        async with HAClient("ha", servers=[dead], delay_strategy=strategy):
            pytest.fail("never entered")
    failed = [each for each in caplog.records if "failed" in each.message]
    warnings = [number for number, each in enumerate(failed) if each.levelno == logging.WARNING]
    assert warnings == [0, 10, 30]
    assert "client ha: attempt 1 at unix://" in failed[0].message
    assert "cannot connect to" in failed[0].message
    assert "secret" not in caplog.text
    assert len(failed) > 50


@pytest.mark.row("HA26")
async def test_each_lost_connection_is_a_warning_with_server_and_reason(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    reasons: list[HAClientError] = []
    client = HAClient(
        "ha",
        servers=[server.uri],
        heartbeat=None,
        exit_timeout=0,
        on_event=on_losses(reasons.append),
    )
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        await drop(await live(server))
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 2, warnings
    for warning, reason in zip(warnings, reasons, strict=False):
        assert warning.startswith("client ha lost its connection to unix://")
        assert f": {reason}; next attempt: unix://" in warning
        assert "secret" not in warning


OUTAGE_S = 3000.0


@pytest.mark.row("HA26")
async def test_a_new_cause_of_an_outage_is_a_warning_at_once_and_the_reason_of_the_health(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings() -> list[str]:
        return [each.message for each in caplog.records if each.levelno == logging.WARNING]

    east, west = "mem://east:1/amps/json", "mem://west:1/amps/json"
    delays = FixedDelayStrategy(1.0)
    network()  # the client's task inherits it
    client = HAClient.memory_backed("ha", servers=[east, west], delay_strategy=delays)
    async with open_nursery() as nursery:
        nursery.start_soon(enter_and_wait, client)
        await trio.sleep(2.5)
        first, second = warnings()
        assert f"attempt 1 at {east} failed" in first
        assert f"next attempt: {west} at once" in first
        assert f"attempt 2 at {west} failed" in second
        await trio.sleep(OUTAGE_S)
        caplog.clear()
        assert "no listener there" in client.health().reasons[0]
        network().listen("east:1", answer_in_http)
        await trio.sleep(2.5)
        assert any("HTTP instead of AMPS" in each for each in warnings())
        await trio.sleep(OUTAGE_S)
        assert len(warnings()) < 20
        reasons = client.health().reasons
        assert "HTTP instead of AMPS" in reasons[0] or "no listener" in reasons[0]
        with pytest.raises(TimedOut, match=r"^flush.*; there is no connection: .*") as late:
            await client.flush(timeout=0.1)
        assert isinstance(late.value.__cause__, HAClientError)
        nursery.cancel_scope.cancel()


def answer_in_http(link: MemoryLink) -> None:
    link.try_send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def enter_and_wait(client: HAClient) -> None:
    async with client:
        await trio.sleep_forever()


class Raising(logging.Handler):
    """A handler of the application that raises instead of handling its own errors."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        raise ZeroDivisionError(record.getMessage())


@pytest.mark.row("HA26")
async def test_a_logging_handler_that_raises_does_not_end_the_client(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, logger = Raising(), logging.getLogger("haclient")
    logger.addHandler(handler)
    try:
        client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
        async with entered(client, partial(live, server)) as peer:
            await drop(peer)
            again = await live(server)
            async with answering(again):
                await client.flush(timeout=5)
    finally:
        logger.removeHandler(handler)
    assert "ZeroDivisionError: client ha lost its connection" in capsys.readouterr().err


@pytest.mark.row("SC12")
async def test_a_client_whose_checked_servers_are_all_refused_goes_to_one_without_an_admin_address(
    server: Server,
) -> None:
    async def ask(url: str, _: float) -> bytes:
        """Each of two servers has downgraded the other one."""
        name, other = ("a", "b") if "//a" in url else ("b", "a")
        destination = {
            "name": other,
            "address": f"tcp://{other}:9007",
            "configured_type": "sync",
            "replication_type": "async",
            "messages_behind": 5,
        }
        return json.dumps(
            {"amps": {"instance": {"name": name, "replication": [destination]}}}
        ).encode()

    refused = ["tcp://a:9007/amps/json", "tcp://b:9007/amps/json"]
    client = HAClient(
        "ha",
        server_chooser=HealthAwareServerChooser(
            dict(zip(refused, ("http://a:8085", "http://b:8085"), strict=True)),
            inner=DefaultServerChooser([*refused, server.uri]),
            patience=0,
            ask=ask,
        ),
        heartbeat=None,
        exit_timeout=0,
    )
    async with entered(client, partial(live, server)):
        await client.disconnect()
