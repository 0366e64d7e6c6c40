"""Choosers that wait, and choosers that move a client to a better server."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.lowlevel
from trio.testing import wait_all_tasks_blocked
from typing_extensions import Unpack, override

from haclient.client import HAClient
from haclient.errors import DisconnectedError, HAClientError, ReconnectGaveUp, TimedOut
from haclient.options import HAOptions, OnPublishGap
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.servers.chooser import (
    AsyncServerChooser,
    ConnectionInfo,
    DefaultServerChooser,
    MovingServerChooser,
    PriorityServerChooser,
)
from haclient.servers.delay import FixedDelayStrategy, SpreadDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.session.recovery import STABLE_AFTER_S
from haclient.transport.moves import CHOOSING_LIMIT_S
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.listening import both, on_losses, on_states
from support.peer import Peer, Server, answering
from support.recovery import entered, live, lose

pytestmark = in_virtual_time


# -- choosers that wait ----------------------------------------------------------------------------


class NameService(AsyncServerChooser):
    """Resolves the server with `resolve`."""

    def __init__(self, resolve: Callable[[], Awaitable[str]]) -> None:
        self._resolve = resolve
        self.reported: list[str] = []

    @override
    async def current_uri(self) -> str:
        return await self._resolve()

    @override
    async def current_authenticator(self) -> Authenticator:
        await trio.sleep(1.0)
        return DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self.reported.append("success")

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self.reported.append("failure")

    @override
    def error(self) -> str:
        return "the name service knows no server"


@pytest.mark.row("SC13")
async def test_a_chooser_may_wait_for_each_of_its_answers(server: Server, other: Server) -> None:
    answers = [server.uri, "unix://localhost:0/amps/json?path=/nonexistent/amps", other.uri, ""]

    async def resolve() -> str:
        await trio.sleep(10.0)
        return answers.pop(0)

    chooser = NameService(resolve)
    client = HAClient("ha", server_chooser=chooser, heartbeat=None)
    began = trio.current_time()
    with pytest.raises(ReconnectGaveUp, match="knows no server"):  # noqa: PT012  # it leaves the block
        async with entered(client, partial(live, server)) as peer:
            assert trio.current_time() == began + 11.0
            peer.link.close()  # a failure: it was young
            again = await live(other)
            await lose(again)
            await trio.sleep_forever()
    assert chooser.reported == ["success", "failure", "failure", "success"]


@pytest.mark.row("SC13")
async def test_a_chooser_that_never_answers_or_fails_ends_the_client() -> None:
    async def fail() -> str:
        raise DisconnectedError("no route to the name service")

    for resolve, why in (
        (trio.sleep_forever, f"did not answer within {CHOOSING_LIMIT_S:g} s"),
        (fail, "the server chooser failed: no route to the name service"),
    ):
        with pytest.raises(ReconnectGaveUp, match=why):
            async with HAClient("ha", server_chooser=NameService(resolve)):
                pytest.fail("never entered")


@pytest.mark.row("SC13", "HA8")
async def test_disconnect_ends_the_wait_for_a_chooser(server: Server) -> None:
    waits = False

    async def resolve() -> str:
        if waits:
            await trio.sleep_forever()
        return server.uri

    client = HAClient("ha", server_chooser=NameService(resolve), heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        waits = True
        await lose(peer)
        began = trio.current_time()
        await client.disconnect()
        assert trio.current_time() == began


# -- back to the better server ---------------------------------------------------------------------


async def check(server: Server) -> None:
    """Be healthy for one check."""
    peer = await server.accept()
    assert (await peer.log_on()).client_name.startswith("ha-check-")
    await peer.expect_end()


class Pair:
    """A client of two servers that is live with the second, since the first has refused it."""

    def __init__(  # all by keyword
        self,
        first: Server,
        second: Server,
        *,
        store: bool = True,
        times: tuple[float, float] = (20.0, 5.0),  # healthy for so long, checked every
        authenticator: Authenticator | None = None,
        **options: Unpack[HAOptions],
    ) -> None:
        self.first, self.second = first, second
        self.lost: list[HAClientError] = []
        self.states: list[ConnectionState] = []
        self.chooser = PriorityServerChooser(healthy_for=times[0], check_every=times[1])
        self.chooser.add(first.uri, authenticator)
        self.chooser.add(second.uri)
        spread = SpreadDelayStrategy(FixedDelayStrategy(0.5), spread=60.0, source=random.Random(1))
        wanted: HAOptions = {
            "server_chooser": self.chooser,
            "delay_strategy": spread,
            "heartbeat": None,
            "connect_timeout": 3.0,
            "exit_timeout": 0,
            "on_event": both(on_losses(self.lost.append), on_states(self.states.append)),
        }
        wanted.update(options)
        publishes = MemoryPublishStore() if store else None
        self.client = HAClient("ha", publish_store=publishes, **wanted)

    async def serve(self) -> Peer:
        """Let it come to the second server."""
        refusing = await self.first.accept()
        await refusing.refuse(await refusing.expect("logon"), "recovering")
        return await live(self.second)


@pytest.mark.row("SC8")
async def test_the_client_returns_once_each_check_of_so_many_seconds_has_succeeded(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other)
    async with entered(pair.client, pair.serve) as peer:
        began = trio.current_time()
        async with answering(peer):
            await check(server)  # healthy since 5 s
            refusing = await server.accept()  # and no more at 10 s
            await refusing.refuse(await refusing.expect("logon"), "recovering")
            await refusing.expect_end()
            for _ in range(5):  # from 15 s to 35 s
                await check(server)
            back = await server.accept()
        assert (await back.log_on()).client_name == "ha"
        assert trio.current_time() == began + 35.0  # a move waits for no delay
        await wait_all_tasks_blocked()
        assert pair.client.state.is_logged_on
        assert [str(each) for each in pair.lost[1:]] == [
            "the client moves to a server of higher priority"
        ]
        await trio.sleep(100)  # nothing is checked any more
        await pair.client.disconnect()


@pytest.mark.row("SC8")
async def test_a_server_that_accepts_connections_and_no_logon_is_not_healthy(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other)
    async with entered(pair.client, pair.serve) as peer:
        for _ in range(8):
            hanging = await server.accept()
            await hanging.expect("logon")
            await hanging.expect_end()  # after 3 s
        assert pair.client.state.is_logged_on
        assert peer.link is not None
        assert len(pair.lost) == 1
        await pair.client.disconnect()


@pytest.mark.row("SC8", "PS1")
async def test_publishes_and_subscriptions_move_along_without_loss(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other)
    got: list[bytes] = []
    async with entered(pair.client, pair.serve) as peer:
        async with answering(peer):
            await pair.client.subscribe("prices", handler=lambda each: got.append(each.data))
        number = await pair.client.publish("orders", b"1") or 0
        assert (await peer.expect("publish")).sequence == number
        for _ in range(5):
            await check(server)
        await peer.expect("flush")  # the server is asked for what it has persisted
        later = await pair.client.publish("orders", b"2") or 0
        await peer.persisted(number)
        back = await server.accept()
        await back.log_on(seen=number, persisted=number)
        assert (await back.expect("publish")).sequence == later
        await back.answer("subscribe", t="prices")
        await back.publish(pair.client._core.kept.all()[0].sub_id, b"new", topic="prices")
        await wait_all_tasks_blocked()
        assert got == [b"new"]
        await back.persisted(later)
        await pair.client.publish_flush(timeout=1)
        await pair.client.disconnect()


@pytest.mark.row("SC8")
async def test_a_server_that_fails_when_the_client_returns_sends_it_back_at_once(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other)
    async with entered(pair.client, pair.serve) as peer:
        await trio.lowlevel.checkpoint()
        async with answering(peer):
            for _ in range(5):
                await check(server)
            failing = await server.accept()
        await failing.expect("logon")
        failing.link.close()
        again = await live(other)
        began = trio.current_time()
        async with answering(again):
            for _ in range(8):  # 40 s this time
                await check(server)
            assert trio.current_time() == began + 40.0
            await check(server)
            await live(server)
        await trio.sleep(STABLE_AFTER_S + 1)
        await pair.client.disconnect()


@pytest.mark.row("SC8")
async def test_a_connection_that_is_lost_while_it_is_drained_is_a_loss_like_any_other(
    server: Server, other: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pair = Pair(server, other, store=False)
    async with entered(pair.client, pair.serve) as peer:
        await pair.client.publish("orders", b"1")
        await peer.expect("publish")
        for _ in range(5):
            await check(server)
        await peer.expect("flush")
        peer.link.close()
        back = await live(other)  # the client has not moved
        await wait_all_tasks_blocked()
        await pair.client.publish("orders", b"2")
        assert (await back.expect("publish")).data == b"2"
        assert "client ha lost its connection" in caplog.text
        await pair.client.disconnect()


@pytest.mark.row("SC8")
async def test_publishes_that_are_flushed_during_a_move_are_persisted_by_the_server_that_has_them(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other, store=False)
    async with entered(pair.client, pair.serve) as peer, trio.open_nursery() as nursery:
        await pair.client.publish("orders", b"1")
        await peer.expect("publish")
        nursery.start_soon(partial(pair.client.flush, ack="persisted", timeout=300))
        asked = await peer.expect("flush")
        for _ in range(5):
            await check(server)
        last = await peer.expect("flush")
        assert "persisted" in last.ack_type
        await peer.ack(asked, "persisted")
        await peer.ack(last, "persisted")
        await live(server)
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks  # and the other server is not asked
        await pair.client.disconnect()


@pytest.mark.row("SC8", "PS8")
@pytest.mark.parametrize("policy", ["raise", "continue"])
async def test_a_planned_move_to_a_server_that_lacks_messages_goes_back_and_ends_nothing(
    server: Server, other: Server, policy: OnPublishGap
) -> None:
    pair = Pair(server, other, on_publish_gap=policy)
    async with entered(pair.client, pair.serve) as peer:
        number = await pair.client.publish("orders", b"1") or 0
        await peer.expect("publish")
        await peer.persisted(number)
        for _ in range(5):
            await check(server)
        lacking = await server.accept()
        await lacking.log_on()  # it has seen nothing of this client
        await lacking.expect_end()
        back = await other.accept()
        await back.log_on(seen=number, persisted=number)
        await wait_all_tasks_blocked()
        assert pair.client.state.is_logged_on
        await pair.client.disconnect()


@pytest.mark.row("SC8", "DS3")
async def test_the_limit_of_a_delay_strategy_does_not_count_over_a_planned_move(
    server: Server, other: Server
) -> None:
    limited = FixedDelayStrategy(give_up_after=2.0)
    pair = Pair(server, other, times=(1.0, 1.0), delay_strategy=limited)
    async with entered(pair.client, pair.serve) as peer, answering(peer):
        for _ in range(2):
            await check(server)
        await live(server)  # the connection was 2 s old
        await wait_all_tasks_blocked()
        assert pair.client.state.is_logged_on
        await pair.client.disconnect()


class HangingOnce(DefaultAuthenticator):
    """Hangs the second time."""

    calls = 0

    @override
    async def authenticate(self, user: str, password: str) -> str:
        self.calls += 1
        if self.calls == 2:
            await trio.sleep_forever()
        return password


@pytest.mark.row("SC8", "AT11")
async def test_an_authenticator_that_hangs_fails_one_check_and_stops_no_other(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other, authenticator=HangingOnce())
    async with entered(pair.client, pair.serve) as peer, answering(peer):
        began = trio.current_time()
        hanging = await server.accept()
        await hanging.expect_end()
        assert trio.current_time() == began + 5.0 + 3.0
        await check(server)
        await pair.client.disconnect()


class MovesAtOnce(DefaultServerChooser, MovingServerChooser):
    """Answers after some turns of the event loop, and loses the connection first."""

    check_every = 7.0

    def __init__(self, uri: str, turns: int) -> None:
        super().__init__([uri])
        self._turns = turns
        self.lose_link: Callable[[], None] | None = None

    @override
    def to_check(self) -> list[tuple[str, Authenticator]]:
        return []

    @override
    def report_check(self, uri: str, error: Exception | None, now: float) -> None:
        pytest.fail("nothing is checked")

    @override
    async def is_move_due(self, now: float) -> bool:
        if self.lose_link is None:
            return False
        lose_link, self.lose_link = self.lose_link, None
        lose_link()
        for _ in range(self._turns):
            await trio.lowlevel.checkpoint()
        return True

    @override
    def report_move(self) -> None:
        return


@pytest.mark.row("SC8")
@pytest.mark.parametrize("turns", range(12))
async def test_a_connection_that_is_lost_at_the_moment_of_a_move_is_a_loss_like_any_other(
    server: Server, turns: int
) -> None:
    chooser = MovesAtOnce(server.uri, turns)
    client = HAClient(
        "ha", server_chooser=chooser, heartbeat=None, connect_timeout=3.0, exit_timeout=0
    )
    async with entered(client, partial(live, server)) as peer:
        chooser.lose_link = peer.link.close
        again = await live(server)
        await wait_all_tasks_blocked()
        await client.publish("orders", b"1")
        assert (await again.expect("publish")).data == b"1"
        await client.disconnect()


# -- the wait and the options of each logon --------------------------------------------------------


@pytest.mark.row("HA16")
@pytest.mark.parametrize(
    ("options", "expected"),
    [(None, "ack_conflation=100ms"), ("ack_conflation=1ms", "ack_conflation=1ms"), ("", "")],
)
async def test_the_first_and_every_later_logon_have_the_options_of_the_client(
    server: Server, other: Server, options: str | None, expected: str
) -> None:
    found: list[str] = []

    async def serve(at: Server) -> Peer:
        peer = await at.accept()
        found.append((await peer.log_on()).options)
        return peer

    def new_client() -> HAClient:
        uris = [server.uri, other.uri]
        if options is None:
            return HAClient("ha", servers=uris, heartbeat=None, exit_timeout=0)
        return HAClient("ha", servers=uris, heartbeat=None, exit_timeout=0, logon_options=options)

    client = new_client()
    async with entered(client, partial(serve, server)) as peer:
        await lose(peer)
        await serve(server)
        await wait_all_tasks_blocked()
        await client.disconnect()
    client = new_client()
    async with entered(client, partial(serve, server)) as peer:
        peer.link.close()
        await serve(other)
        await client.disconnect()
    assert found == [expected] * 4


@pytest.mark.row("SC8", "HA29")
async def test_after_move_to_the_client_does_not_move_to_the_server_that_it_is_at(
    server: Server, other: Server
) -> None:
    pair = Pair(server, other)
    async with entered(pair.client, pair.serve) as peer, answering(peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.client.move_to, server.uri)
            await check(server)
            await live(server)
        await trio.sleep(100)
        assert pair.client.metrics.connections == 3  # with the one that was refused at first
        await pair.client.disconnect()


class SilentMover(NameService, MovingServerChooser):
    """A chooser that does not answer from some time on."""

    check_every = 5.0
    answers = True

    @override
    async def current_authenticator(self) -> Authenticator:
        if not self.answers:
            await trio.sleep_forever()
        return DefaultAuthenticator()

    @override
    def to_check(self) -> list[tuple[str, Authenticator]]:
        return []

    @override
    def report_check(self, uri: str, error: Exception | None, now: float) -> None:
        raise AssertionError("nothing is checked")

    @override
    async def is_move_due(self, now: float) -> bool:
        await trio.sleep_forever()
        return False

    @override
    def report_move(self) -> None:
        raise AssertionError("no move is due")


@pytest.mark.row("SC13", "HA29")
async def test_a_client_stays_if_its_chooser_does_not_answer_before_a_planned_move(
    server: Server, other: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def resolve() -> str:
        return server.uri

    chooser = SilentMover(resolve)
    client = HAClient("ha", server_chooser=chooser, heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as peer:
        chooser.answers = False
        why = rf"^move_to: the server chooser did not answer within {CHOOSING_LIMIT_S:g} s"
        with pytest.raises(DisconnectedError, match=why) as caught:
            await client.move_to(other.uri)
        assert "the client stays at" in caught.value.__notes__[0]
        await trio.sleep(2 * CHOOSING_LIMIT_S)
        assert caplog.text.count("client ha stays at") >= 2
        async with answering(peer):
            await client.flush(timeout=1)


@pytest.mark.row("SC13", "HA29")
async def test_a_client_stays_if_its_chooser_fails_before_a_planned_move(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingMover(PriorityServerChooser):
        @override
        def is_move_due(self, now: float) -> bool:
            raise TimedOut("no answer of the name service")

    chooser = FailingMover([server.uri], check_every=1.0)
    client = HAClient("ha", server_chooser=chooser, heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)):
        await trio.sleep(2.5)
        assert client.state is ConnectionState.RESUBSCRIBED
        assert caplog.text.count("client ha stays at") == 2
        await client.disconnect()
