from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest
from typing_extensions import override

from haclient import (
    AsyncServerChooser,
    Authenticator,
    ConnectionInfo,
    DefaultAuthenticator,
    DefaultServerChooser,
    FailureCountServerChooser,
    PriorityServerChooser,
    RandomServerChooser,
)
from haclient.testing import check_server_chooser

SERVERS = ["tcp://me:secret@a:9007/amps/json", "tcp://me:secret@b:9007/amps/json"]


@pytest.mark.parametrize(
    "make",
    [
        DefaultServerChooser,
        FailureCountServerChooser,
        partial(FailureCountServerChooser, limit=1, ends=True),
        PriorityServerChooser,
        RandomServerChooser,
    ],
)
async def test_our_choosers_pass(make: Callable[[list[str]], DefaultServerChooser]) -> None:
    await check_server_chooser(lambda: make(SERVERS))
    await check_server_chooser(lambda: make(SERVERS[:1]))


class SlowChooser(AsyncServerChooser):
    """One that has to wait for its answers."""

    @override
    async def current_uri(self) -> str:
        return SERVERS[0]

    @override
    async def current_authenticator(self) -> Authenticator:
        return DefaultAuthenticator()

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        pass

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        pass

    @override
    def error(self) -> str:
        return ""


async def test_a_chooser_that_waits_passes() -> None:
    await check_server_chooser(SlowChooser)


class Restless(DefaultServerChooser):
    """It draws a server for each question, so its authenticator may be that of another one."""

    @override
    def current_uri(self) -> str:
        return random.choice([f"tcp://a:{port}/amps/json" for port in range(9000, 9999)])


class Silent(DefaultServerChooser):
    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self.remove(self.current_uri())

    @override
    def error(self) -> str:
        return ""


class Indiscreet(DefaultServerChooser):
    @override
    def error(self) -> str:
        return f"no logon at {self.current_uri()}"


class Talkative(DefaultServerChooser):
    @override
    def error(self) -> str:
        return "one\ntwo"


class WithoutCredentials(DefaultServerChooser):
    @override
    def current_authenticator(self) -> Authenticator:
        return None  # type: ignore[return-value] # pyright: ignore[reportReturnType]  # the defect


class Misspelt(DefaultServerChooser):
    @override
    def current_uri(self) -> str:
        return "tcp:/a:9007"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Restless, "wanted the same server"),
        (Silent, "error\\(\\) without a server: wanted a reason"),
        (Indiscreet, "has a password: wanted False"),
        (Talkative, "is one line: wanted True"),
        (WithoutCredentials, "lacks: wanted \\[\\], found \\['authenticate'"),
        (Misspelt, "wanted a connection string"),
    ],
)
async def test_each_broken_promise_is_found(
    kind: Callable[[list[str]], DefaultServerChooser], why: str
) -> None:
    with pytest.raises(AssertionError, match=why) as found:
        await check_server_chooser(lambda: kind(SERVERS))
    assert "secret" not in str(found.value)


async def test_a_chooser_without_a_server_is_not_checked() -> None:
    with pytest.raises(AssertionError, match="wanted a server, found none"):
        await check_server_chooser(DefaultServerChooser)
