"""Choosers, delay strategies and authenticators with the official names."""

from __future__ import annotations

from functools import partial
from threading import Event, Semaphore
from typing import ClassVar

import pytest
import trio
from typing_extensions import override

from haclient import compat
from haclient.compat.policies import authenticator_of, chooser_of, strategy_of
from haclient.errors import TimedOut, UsageError
from haclient.servers.auth import TokenAuthenticator
from haclient.servers.delay import FixedDelayStrategy
from support.broker_thread import BrokerThread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")
FIRST, SECOND = "tcp://127.0.0.1:1/amps/json", "tcp://127.0.0.1:2/amps/json"


def test_a_chooser_has_both_sets_of_names() -> None:
    servers = chooser(FIRST, SECOND)
    assert servers.get_current_uri() == servers.current_uri() == FIRST
    servers.next()
    assert servers.get_current_uri() == SECOND
    servers.report_failure(ValueError("refused"), {})
    assert servers.get_error() == "refused"
    servers.remove(FIRST)
    servers.add(FIRST, compat.DefaultAuthenticator())
    servers.next()
    assert servers.get_current_authenticator() is servers.current_authenticator()
    with pytest.raises(UsageError, match="authenticate and retry"):
        servers.add(FIRST, "secret")


class Official:
    """A chooser of an application, which knows the official names only."""

    def __init__(self, *uris: str) -> None:
        self.uris = list(uris)
        self.reports: list[str] = []

    def get_current_uri(self) -> str | None:
        return self.uris[0] if self.uris else None

    def get_current_authenticator(self) -> object:
        return None

    def report_success(self, info: dict[str, str]) -> None:
        self.reports.append(f"success {info['client_name']}")

    def report_failure(self, error: Exception, info: dict[str, str]) -> None:
        self.reports.append(f"failure of {info['client_name']}: {type(error).__name__}")
        self.uris.append(self.uris.pop(0))

    def get_error(self) -> str:
        return "there are no servers"


def test_a_chooser_and_a_strategy_of_the_application_are_asked(broker: BrokerThread) -> None:
    class Strategy:
        asked: ClassVar[list[str]] = []

        def get_connect_wait_duration(self, uri: str) -> int:
            self.asked.append(uri)
            return 1

        def reset(self) -> None:
            self.asked.clear()

    servers = Official(FIRST, broker.uri)
    with compat.HAClient("desk-1") as client:
        client.set_server_chooser(servers)
        client.set_reconnect_delay_strategy(Strategy())
        client.connect_and_logon()
        wait_until(lambda: servers.reports[1:] == ["success desk-1"])
        assert servers.reports[0] == "failure of desk-1: ConnectionRefused"
        assert Strategy.asked == [FIRST, broker.uri]
        assert client.get_server_chooser() is servers


@pytest.mark.row("HA15")
def test_a_fixed_wait_can_be_set_while_the_client_is_connected(broker: BrokerThread) -> None:
    with compat.HAClient("desk-1") as client:
        client.set_server_chooser(Official(broker.uri))
        client.connect_and_logon()
        client.set_reconnect_delay(7000)
        given = client._all_options()["delay_strategy"]
        assert given is not None
        assert [given.delay_for(broker.uri, 0.0) for _ in range(3)] == [0.0, 7.0, 7.0]


def test_a_chooser_without_servers_ends_the_connecting() -> None:
    with compat.HAClient("desk-2") as client:
        client.set_server_chooser(Official())
        with pytest.raises(compat.ConnectionException, match="there are no servers"):
            client.connect_and_logon()


def test_a_chooser_that_gives_no_uri_is_told() -> None:
    servers = Official()
    servers.get_current_uri = lambda: 3  # type: ignore[method-assign, assignment, return-value] # pyright: ignore[reportAttributeAccessIssue]  # on purpose
    with compat.HAClient("desk-3") as client:
        client.set_server_chooser(servers)
        with pytest.raises(compat.AMPSException, match="get_current_uri of Official"):
            client.connect_and_logon()


def test_what_lacks_methods_is_refused_with_their_names() -> None:
    with pytest.raises(UsageError, match="lacks get_current_uri, get_current_authenticator"):
        chooser_of(object())
    with pytest.raises(UsageError, match="get_connect_wait_duration"):
        strategy_of(object())
    with pytest.raises(UsageError, match="authenticate"):
        authenticator_of(object())


def test_those_of_haclient_are_taken_as_they_are() -> None:
    servers, strategy = chooser(), FixedDelayStrategy()
    tokens = TokenAuthenticator(lambda: "t")
    assert chooser_of(servers) is servers
    assert strategy_of(strategy) is strategy
    assert authenticator_of(tokens) is tokens


def test_strategies_take_and_give_milliseconds() -> None:
    fixed = compat.FixedDelayStrategy(150)
    assert [fixed.get_connect_wait_duration(FIRST) for _ in range(3)] == [0, 150, 150]
    fixed.reset()
    assert fixed.get_connect_wait_duration(FIRST) == 0
    growing = compat.ExponentialDelayStrategy(200, 5000, 1.5, 60_000, 0)
    waits = [growing.get_connect_wait_duration(FIRST) for _ in range(12)]
    assert waits[:4] == [0, 200, 300, 450]
    assert waits[-1] == 5000
    assert compat.FixedDelayStrategy(0).get_connect_wait_duration(FIRST) == 0
    for make in (compat.FixedDelayStrategy, compat.ExponentialDelayStrategy):
        with pytest.raises(UsageError, match="milliseconds"):
            make(-1)
    limited = compat.FixedDelayStrategy(1, 0.000_001)
    limited.get_connect_wait_duration(FIRST)
    with pytest.raises(TimedOut):
        limited.get_connect_wait_duration(FIRST)


def test_an_authenticator_may_lack_completed(broker: BrokerThread) -> None:
    class Bare:
        def authenticate(self, username: str, password: str) -> str:
            return f"token of {username}{password}"

        def retry(self, username: str, password: str) -> str:
            return f"other of {username}{password}"

    with compat.Client("desk-4") as client:
        client.connect(broker.uri)
        client.logon(5000, Bare())


def test_methods_that_hang_are_abandoned_at_the_limit_of_their_step() -> None:
    hangs = Event()

    class Hanging(Official):
        @override
        def get_current_uri(self) -> str | None:
            return str(hangs.wait(60))

        @override
        def get_current_authenticator(self) -> object:
            return hangs.wait(60)

        def authenticate(self, username: str, password: str) -> str:
            return f"{username}{password}{hangs.wait(60)}"

        retry = authenticate

    async def is_limited() -> list[bool]:
        chooser, tokens = chooser_of(Hanging()), authenticator_of(Hanging())
        credentials = partial(tokens.authenticate, "", ""), partial(tokens.retry, "", "")
        found: list[bool] = []
        for call in (chooser.current_uri, chooser.current_authenticator, *credentials):
            with trio.move_on_after(0.05) as limit:
                await call()  # type: ignore[misc]  # each can be awaited
            found.append(limit.cancelled_caught)
        return found

    try:
        assert trio.run(is_limited) == [True] * 4
    finally:
        hangs.set()


def test_calls_that_hang_leave_room_for_those_that_follow() -> None:
    hangs, begun = Event(), Semaphore(0)

    class Hanging:
        def authenticate(self, username: str, password: str) -> str:
            begun.release()
            return password or f"{username}{hangs.wait(60)}"

        retry = authenticate

    async def last() -> str:
        tokens = authenticator_of(Hanging())
        for _ in range(40):  # as many threads as trio has
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tokens.authenticate, "", "")
                await trio.to_thread.run_sync(begun.acquire)
                nursery.cancel_scope.cancel()
        with trio.fail_after(60):
            return await tokens.authenticate("", "secret")

    try:
        assert trio.run(last) == "secret"
    finally:
        hangs.set()
