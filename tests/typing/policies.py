"""Types of the policies of an `HAClient`: those of the package, and an application's own.

Nothing in here is ever run. A change that makes a user's correct program fail its type check fails
here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import assert_type

from haclient import (
    AsyncServerChooser,
    Authenticator,
    DefaultAuthenticator,
    DefaultServerChooser,
    DelayStrategy,
    ExponentialDelayStrategy,
    FailureCountServerChooser,
    FixedDelayStrategy,
    HAClient,
    HealthAwareServerChooser,
    MemorySubscriptionManager,
    Message,
    MovingServerChooser,
    PriorityServerChooser,
    RandomServerChooser,
    ServerChooser,
    SpreadDelayStrategy,
    SubscriptionManager,
    TokenAuthenticator,
)
from haclient.errors import HAClientError
from haclient.servers.chooser import ConnectionInfo
from haclient.session.connection_state import Heartbeat
from haclient.subscription_manager import Entry

SERVERS = ["tcp://127.0.0.1:9007/amps/json", "tcp://127.0.0.1:9008/amps/json"]


def each_chooser_is_taken() -> None:
    choosers: list[ServerChooser] = [
        DefaultServerChooser(SERVERS),
        FailureCountServerChooser(SERVERS, limit=3, ends=True),
        RandomServerChooser(SERVERS, source=Random(7)),
        RandomServerChooser({SERVERS[0]: 2.0, SERVERS[1]: 1.0}),
        PriorityServerChooser(SERVERS, healthy_for=60, spread=5),
    ]
    for chooser in choosers:
        HAClient("orders-7", server_chooser=chooser)
        assert_type(chooser.current_uri(), str)
    moving: MovingServerChooser = PriorityServerChooser(SERVERS)
    assert_type(moving.to_check(), list[tuple[str, Authenticator]])
    healthy = HealthAwareServerChooser({SERVERS[0]: "http://127.0.0.1:8085"}, max_behind=100)
    asynchronous: AsyncServerChooser = healthy
    HAClient("orders-7", server_chooser=asynchronous)
    HAClient("orders-7", server_chooser=SERVERS)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # they are `servers`


def each_strategy_is_taken() -> None:
    strategies: list[DelayStrategy] = [
        FixedDelayStrategy(0.5, give_up_after=60),
        ExponentialDelayStrategy(initial=0.1, maximum=5, jitter=0),
        SpreadDelayStrategy(FixedDelayStrategy(), spread=10),
    ]
    for strategy in strategies:
        HAClient("orders-7", servers=SERVERS, delay_strategy=strategy)
        assert_type(strategy.delay_for(SERVERS[0], 0.0), float)
    HAClient("orders-7", servers=SERVERS, delay_strategy=0.5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # a number is none


class OneServer:
    """A chooser without a base class."""

    def current_uri(self) -> str:
        return SERVERS[0]

    def current_authenticator(self) -> Authenticator:
        return DefaultAuthenticator()

    def report_success(self, info: ConnectionInfo) -> None:
        assert_type(info["uri"], str)

    def report_failure(self, error: Exception, info: ConnectionInfo) -> None: ...

    def error(self) -> str:
        return ""


class AskingServer:
    """A chooser that has to wait, and moves; without a base class, too."""

    check_every = 5.0

    async def current_uri(self) -> str:
        return SERVERS[0]

    async def current_authenticator(self) -> Authenticator:
        return DefaultAuthenticator()

    def report_success(self, info: ConnectionInfo) -> None: ...

    def report_failure(self, error: Exception, info: ConnectionInfo) -> None: ...

    def error(self) -> str:
        return ""

    def to_check(self) -> list[tuple[str, Authenticator]]:
        return [(SERVERS[1], DefaultAuthenticator())]

    def report_check(self, uri: str, error: Exception | None, now: float) -> None: ...

    def is_move_due(self, now: float) -> bool:
        return now > 0

    def report_move(self) -> None: ...


class NoError:
    """A chooser that lacks `error`."""

    def current_uri(self) -> str:
        return SERVERS[0]


class Waits:
    """A delay strategy without a base class."""

    def delay_for(self, uri: str, now: float) -> float:
        return 0.5 if uri else now

    def reset(self) -> None: ...


class Vault:
    """An authenticator without a base class."""

    async def authenticate(self, user: str, password: str) -> str:
        return user + password

    async def retry(self, user: str, password: str) -> str:
        return user + password

    def completed(self, user: str, password: str, reason: str) -> None: ...


class Table:
    """A subscription manager without a base class."""

    def add(self, entry: Entry) -> None:
        assert_type(entry.fields, dict[str, str | int])

    def remove(self, sub_id: str) -> None: ...

    def clear(self) -> None: ...

    def entries(self) -> Iterator[Entry]:
        return iter([])


def those_of_the_application_are_taken() -> None:
    chooser: ServerChooser = OneServer()
    asking: AsyncServerChooser = AskingServer()
    moving: MovingServerChooser = AskingServer()
    assert_type(moving.report_move(), None)
    HAClient("orders-7", server_chooser=chooser, delay_strategy=Waits())
    HAClient("orders-7", server_chooser=asking, subscription_manager=Table())
    HAClient("orders-7", server_chooser=NoError())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # it lacks methods
    managers: list[SubscriptionManager] = [Table(), MemorySubscriptionManager()]
    HAClient("orders-7", servers=SERVERS, subscription_manager=managers[0])
    tokens: list[Authenticator] = [
        Vault(),
        DefaultAuthenticator(),
        TokenAuthenticator(lambda: "token"),
        TokenAuthenticator(later, refresh=lambda: "token"),
    ]
    servers = DefaultServerChooser()
    for authenticator in tokens:
        servers.add(SERVERS[0], authenticator)
    servers.add(SERVERS[0], "secret")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # a password is in the URI


async def later() -> str:
    return "token"


def errors_are_decided() -> None:
    def on_message_error(message: Message, error: Exception) -> None:
        message.reason = str(error)

    async def on_message_error_later(message: Message, error: Exception) -> None:
        message.reason = str(error)

    def on_refusal(sub_id: str, error: HAClientError) -> str:
        return "drop" if sub_id else str(error)

    async def on_refusal_later(sub_id: str, error: HAClientError) -> str:
        return "drop" if sub_id else str(error)

    HAClient("orders-7", servers=SERVERS, on_handler_error=on_message_error)
    HAClient("orders-7", servers=SERVERS, on_handler_error=on_message_error_later)
    HAClient("orders-7", servers=SERVERS, on_handler_error="discard")
    HAClient("orders-7", servers=SERVERS, on_handler_error="ignore")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # none of its words
    HAClient("orders-7", servers=SERVERS, on_resubscribe_failure=on_refusal)
    HAClient("orders-7", servers=SERVERS, on_resubscribe_failure="retry")
    HAClient("orders-7", servers=SERVERS, on_resubscribe_failure=on_refusal_later)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # it has to answer at once
    HAClient(
        "orders-7",
        servers=SERVERS,
        connect_timeout=60,
        heartbeat=Heartbeat(5.0, idle_limit=12.5),
        on_publish_gap="raise",
    )
