"""Server choosers, delay strategies and authenticators, with the official names.

The classes here have both sets of names. `chooser_of`, `strategy_of` and `authenticator_of` adapt
application classes that have the official names only. Their methods may block; where the client
waits for an answer, they run in a worker thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from inspect import iscoroutinefunction
from typing import Final, TypeVar, cast

import trio
from typing_extensions import override

import haclient.servers.auth
import haclient.servers.chooser
import haclient.servers.delay
from haclient.compat.units import seconds_of
from haclient.errors import UsageError
from haclient.servers.chooser import AsyncServerChooser, ConnectionInfo, ServerChooser
from haclient.servers.delay import DelayStrategy
from haclient.session.connection_state import ConnectionState

_T = TypeVar("_T")


class ConnectionStateListener:
    """The states that a connection state listener gets, as numbers."""

    Disconnected: Final = 0
    Shutdown: Final = 1
    Connected: Final = 2
    LoggedOn: Final = 4
    PublishReplayed: Final = 8
    HeartbeatInitiated: Final = 16
    Resubscribed: Final = 32
    UNKNOWN: Final = 16384


STATE_NUMBERS: Final = {
    ConnectionState.DISCONNECTED: ConnectionStateListener.Disconnected,
    ConnectionState.SHUTDOWN: ConnectionStateListener.Shutdown,
    ConnectionState.CONNECTED: ConnectionStateListener.Connected,
    ConnectionState.LOGGED_ON: ConnectionStateListener.LoggedOn,
    ConnectionState.PUBLISH_REPLAYED: ConnectionStateListener.PublishReplayed,
    ConnectionState.HEARTBEAT_INITIATED: ConnectionStateListener.HeartbeatInitiated,
    ConnectionState.RESUBSCRIBED: ConnectionStateListener.Resubscribed,
}
"""The official number of each state; `RECONNECTING` has none and is not reported."""


# Not trio's limiter of 40: a call that hangs keeps its place, maybe for ever.
_THREADS: Final = trio.CapacityLimiter(1000)


async def _in_thread(function: Callable[..., _T], *arguments: object) -> _T:
    """Call a method of the application, which may block.

    The call is abandoned when a limit is over or the client is closed: a service that hangs must
    hold up neither the fail-over nor the end.
    """
    call = partial(function, *arguments)
    return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=_THREADS)


# -- authenticators ------------------------------------------------------------------------


class DefaultAuthenticator:
    """Sends the password of the URI unchanged; the base of authenticators of your own."""

    def authenticate(self, username: str, password: str) -> str:  # noqa: ARG002  # for subclasses
        """Choose the password or token of a logon.

        Args:
            username: The user of the URI.
            password: The password of the URI.

        Returns:
            The password to send; the method may block.
        """
        return password

    def retry(self, username: str, password: str) -> str:  # noqa: ARG002  # for subclasses
        """Choose other credentials after the server has asked for them.

        Args:
            username: The user.
            password: The password or challenge that the server has sent.

        Returns:
            The password to send.
        """
        return password

    def completed(self, username: str, password: str, reason: str) -> None:
        """Note that the server has accepted the logon.

        Args:
            username: The user.
            password: The password that was sent.
            reason: The server's text.
        """


class _BlockingAuthenticator(haclient.servers.auth.Authenticator):
    """An authenticator whose methods are plain functions, which may block."""

    def __init__(self, inner: DefaultAuthenticator) -> None:
        self._inner = inner

    @override
    async def authenticate(self, user: str, password: str) -> str:
        return await _in_thread(self._inner.authenticate, user, password)

    @override
    async def retry(self, user: str, password: str) -> str:
        return await _in_thread(self._inner.retry, user, password)

    @override
    def completed(self, user: str, password: str, reason: str) -> None:
        completed: Callable[[str, str, str], object] | None
        completed = getattr(self._inner, "completed", None)
        if completed is not None:
            completed(user, password, reason)


def authenticator_of(given: object) -> haclient.servers.auth.Authenticator:
    """An authenticator with the official methods, or one of `haclient`, for the trio client.

    Raises:
        UsageError: It is none.
    """
    if iscoroutinefunction(getattr(given, "authenticate", None)):
        return cast("haclient.servers.auth.Authenticator", given)
    if not all(callable(getattr(given, name, None)) for name in ("authenticate", "retry")):
        raise UsageError(f"an authenticator has the methods authenticate and retry, not {given!r}")
    return _BlockingAuthenticator(cast("DefaultAuthenticator", given))


# -- choosers ------------------------------------------------------------------------------


class DefaultServerChooser(haclient.servers.chooser.DefaultServerChooser):
    """Servers in order: stay after a success, move on after a failure.

    Args:
        uris: The servers, best first.

    Raises:
        UsageError: A URI is wrong.
    """

    @override
    def add(self, uri: str, authenticator: object = None) -> None:
        """Append a server.

        Args:
            uri: Its connection string.
            authenticator: Its own authenticator; by default the URI's password is sent.

        Raises:
            UsageError: The URI is wrong, or the authenticator is none.
        """
        super().add(uri, None if authenticator is None else authenticator_of(authenticator))

    def add_all(self, uris: Iterable[str]) -> None:
        """Append servers.

        Args:
            uris: Their connection strings.

        Raises:
            UsageError: A URI is wrong.
        """
        for uri in uris:
            self.add(uri)

    def next(self) -> None:
        """Try the next server from now on, as after a failure of the current one."""
        self.report_failure(UsageError(self.get_error()), {})

    def get_current_uri(self) -> str:
        """The server to try now; empty when there is none."""
        return self.current_uri()

    def get_current_authenticator(self) -> haclient.servers.auth.Authenticator:
        """The authenticator for that server."""
        return self.current_authenticator()

    def get_error(self) -> str:
        """Why there is no server to try."""
        return self.error()


class _OfficialChooser(AsyncServerChooser):
    """Adapts a chooser of the application that has the official names; it may block."""

    def __init__(self, inner: object) -> None:
        self._inner = inner

    def _call(self, name: str) -> Callable[..., object]:
        call: Callable[..., object] = getattr(self._inner, name)
        return call

    @override
    async def current_uri(self) -> str:
        uri = await _in_thread(self._call("get_current_uri"))
        if uri is not None and not isinstance(uri, str):
            raise UsageError(
                f"get_current_uri of {type(self._inner).__name__} gives a URI or None, not {uri!r}"
            )
        return uri or ""

    @override
    async def current_authenticator(self) -> haclient.servers.auth.Authenticator:
        found = await _in_thread(self._call("get_current_authenticator"))
        return (
            haclient.servers.auth.DefaultAuthenticator()
            if found is None
            else authenticator_of(found)
        )

    @override
    def report_success(self, info: ConnectionInfo) -> None:
        self._call("report_success")(dict(info))

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self._call("report_failure")(error, dict(info))

    @override
    def error(self) -> str:
        return str(self._call("get_error")())


_OFFICIAL: Final = (
    *("get_current_uri", "get_current_authenticator", "report_success", "report_failure"),
    "get_error",
)


def chooser_of(given: object) -> ServerChooser | AsyncServerChooser:
    """A chooser with the official methods, or one of `haclient`, for the trio client.

    Raises:
        UsageError: Methods are missing; the message names them.
    """
    if callable(getattr(given, "current_uri", None)):
        return cast("ServerChooser", given)
    missing = [name for name in _OFFICIAL if not callable(getattr(given, name, None))]
    if missing:
        raise UsageError(
            f"{type(given).__name__} is no server chooser: it lacks {', '.join(missing)}"
        )
    return _OfficialChooser(given)


# -- delay strategies ----------------------------------------------------------------------


def _wait(strategy: DelayStrategy, uri: str) -> int:
    now = time.monotonic()  # noqa: TID251  # the application asks, outside of any client
    return round(strategy.delay_for(uri, now) * 1000)


def _limit(milliseconds: float, what: str) -> float | None:
    seconds = seconds_of(milliseconds, what)
    return None if math.isinf(seconds) else seconds


class FixedDelayStrategy(haclient.servers.delay.FixedDelayStrategy):
    """The same wait before each further attempt at a server.

    Args:
        delay: Milliseconds between attempts.
        maximum_retry_time: Milliseconds after which the last attempt is made; 0 never gives up.

    Raises:
        UsageError: A time is negative or no number.
    """

    def __init__(self, delay: float = 200, maximum_retry_time: float = 0) -> None:
        seconds_of(delay, "delay")
        super().__init__(
            delay / 1000, give_up_after=_limit(maximum_retry_time, "maximum_retry_time")
        )

    def get_connect_wait_duration(self, uri: str) -> int:
        """Milliseconds to wait before the next attempt at `uri`."""
        return _wait(self, uri)


class ReplaceableDelayStrategy(DelayStrategy):
    """Another strategy, which may be replaced while the client is connected.

    Attributes:
        inner: The strategy.
    """

    def __init__(self) -> None:
        self.inner: DelayStrategy = haclient.servers.delay.ExponentialDelayStrategy()

    @override
    def delay_for(self, uri: str, now: float) -> float:
        return self.inner.delay_for(uri, now)

    @override
    def reset(self) -> None:
        self.inner.reset()


class ExponentialDelayStrategy(haclient.servers.delay.ExponentialDelayStrategy):
    """Exponentially growing waits for each server, with random jitter.

    Args:
        initial_delay: Milliseconds before the second attempt at a server.
        maximum_delay: Longest wait in milliseconds, without the random part.
        backoff_exponent: How much longer each further wait is.
        maximum_retry_time: Milliseconds after which the last attempt is made; 0 never gives up.
        jitter: The random part, in multiples of `initial_delay`.

    Raises:
        UsageError: A time is negative or no number, or the waits would shrink.
    """

    def __init__(
        self,
        initial_delay: float = 200,
        maximum_delay: float = 20_000,
        backoff_exponent: float = 2.0,
        maximum_retry_time: float = 0,
        jitter: float = 1.0,
    ) -> None:
        seconds_of(initial_delay, "initial_delay")
        seconds_of(maximum_delay, "maximum_delay")
        super().__init__(
            initial=initial_delay / 1000,
            maximum=maximum_delay / 1000,
            factor=backoff_exponent,
            jitter=jitter,
            give_up_after=_limit(maximum_retry_time, "maximum_retry_time"),
        )

    def get_connect_wait_duration(self, uri: str) -> int:
        """Milliseconds to wait before the next attempt at `uri`."""
        return _wait(self, uri)


class _OfficialStrategy(DelayStrategy):
    """Adapts a delay strategy of the application that has the official names."""

    def __init__(self, wait: Callable[[str], float], reset: Callable[[], object]) -> None:
        self._wait_for = wait
        self._reset = reset

    @override
    def delay_for(self, uri: str, now: float) -> float:
        wait_ms = self._wait_for(uri)
        return 0.0 if not wait_ms else seconds_of(wait_ms, "get_connect_wait_duration")

    @override
    def reset(self) -> None:
        self._reset()


def strategy_of(given: object) -> DelayStrategy:
    """A delay strategy with the official methods, or one of `haclient`, for the trio client.

    Raises:
        UsageError: It is none.
    """
    if callable(getattr(given, "delay_for", None)):
        return cast("DelayStrategy", given)
    wait, reset = (getattr(given, name, None) for name in ("get_connect_wait_duration", "reset"))
    if not (callable(wait) and callable(reset)):
        raise UsageError(
            f"{type(given).__name__} is no delay strategy: it has to have "
            "get_connect_wait_duration and reset"
        )
    return _OfficialStrategy(cast("Callable[[str], float]", wait), partial(reset))
