"""Delay strategies: how long to wait before the next connection attempt.

A strategy is asked before each attempt, with the URI and the current time; it never sleeps and
reads no clock. The first attempt at a server is not delayed. Raising an error ends the
reconnecting, which is how a time limit is enforced.

Several clients may share one strategy: it counts the attempts of each client separately, and never
compares the times of two clients, whose clocks may differ. `delay_for`, which applications may
define, has no argument for the client, so `asked_by` sets it in a context variable.

The waits are computed by tenacity, used as a pure function. Its own time limit reads the wall
clock, so the limit is checked here instead, against the times that are passed in.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from typing_extensions import override

from haclient.errors import TimedOut, UsageError
from haclient_stores.checks import check_seconds, is_number

__all__ = [
    "DelayStrategy",
    "ExponentialDelayStrategy",
    "FixedDelayStrategy",
    "SpreadDelayStrategy",
]


class _Nobody:
    """The key for calls that no client makes: those of a test, or of the application itself."""


_NOBODY: Final = _Nobody()
_asker: Final[ContextVar[object]] = ContextVar("haclient_delay_asker", default=_NOBODY)


@contextmanager
def asked_by(client: object) -> Generator[None]:
    """Set the client for which strategies are asked in this block.

    Args:
        client: Any object that identifies the client; weakly referenced.
    """
    token = _asker.set(client)
    try:
        yield
    finally:
        _asker.reset(token)


class DelayStrategy(Protocol):
    """Decides the wait before an attempt."""

    @abstractmethod
    def delay_for(self, uri: str, now: float) -> float:
        """Seconds to wait before the next attempt at `uri`.

        Args:
            uri: The server that is about to be tried.
            now: Seconds on a clock that only rises; that of another client may differ.

        Returns:
            Seconds from 0 on.

        Raises:
            TimedOut: It was tried for long enough.
        """

    @abstractmethod
    def reset(self) -> None:
        """Start over: a connection has been live for long enough."""


@dataclass(slots=True)
class _Attempts:
    """What one client has tried since its last success."""

    began_at: float
    count: Counter[str] = field(default_factory=Counter[str])


class ExponentialDelayStrategy(DelayStrategy):
    """Exponentially growing waits for each server, with random jitter.

    The waits for one server are 0, `initial`, `initial * factor`, `initial * factor ** 2` and so on
    up to `maximum`. To each except the first, a random part of at most `jitter` times `initial` is
    added.

    Args:
        initial: Seconds before the second attempt at a server.
        factor: How much longer each further wait is.
        maximum: Longest wait in seconds, without the random part.
        jitter: The random part, in multiples of `initial`; 0 for exact waits.
        give_up_after: Seconds after the first attempt at which the last one is made; `None` never
            gives up.
        source: The random number generator; pass a seeded one for repeatable runs.

    Raises:
        UsageError: A time is negative or without an end, or the waits would shrink.
    """

    def __init__(  # all by keyword
        self,
        *,
        initial: float = 0.2,
        factor: float = 2.0,
        maximum: float = 20.0,
        jitter: float = 1.0,
        give_up_after: float | None = None,
        source: random.Random | None = None,
    ) -> None:
        _check(initial=initial, maximum=maximum, jitter=jitter)
        check_seconds("give_up_after", give_up_after, zero=True, optional=True)
        if not is_number(factor) or not 1 <= factor < math.inf:
            raise UsageError(f"factor is a finite number, 1 or above, not {factor!r}")
        from tenacity import (  # noqa: PLC0415  # 40 ms to import
            RetryCallState,
            Retrying,
            wait_exponential,
        )

        # With 0, tenacity returns `max` once the power overflows.
        longest = maximum if initial else 0.0
        self._wait = wait_exponential(multiplier=initial, exp_base=factor, max=longest)
        self._call = RetryCallState(Retrying(), None, (), {})  # for its attempt number
        self._spread_s = jitter * initial
        self._limit_s = math.inf if give_up_after is None else give_up_after
        self._random = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._attempts = WeakKeyDictionary[object, _Attempts]()

    @override
    def delay_for(self, uri: str, now: float) -> float:
        attempts = self._attempts.get(_asker.get())
        if attempts is None:  # the first one is made, whatever the limit is
            attempts = self._attempts[_asker.get()] = _Attempts(now)
        elif (tried_s := now - attempts.began_at) >= self._limit_s:
            raise TimedOut(
                f"no server could be reached for {tried_s:g} s, the limit is {self._limit_s:g} s"
            )
        before = attempts.count[uri]
        attempts.count[uri] += 1
        if not before:
            return 0.0
        self._call.attempt_number = before
        delay_s = self._wait(self._call) + self._random.uniform(0.0, self._spread_s)
        return min(delay_s, attempts.began_at + self._limit_s - now)  # the last one is made then

    @override
    def reset(self) -> None:
        self._attempts.pop(_asker.get(), None)


class FixedDelayStrategy(ExponentialDelayStrategy):
    """The same wait before each further attempt at a server.

    Args:
        delay: Seconds between attempts.
        give_up_after: Seconds after the first attempt at which the last one is made; `None` never
            gives up.

    Raises:
        UsageError: A time is negative or without an end.
    """

    def __init__(self, delay: float = 0.2, *, give_up_after: float | None = None) -> None:
        _check(delay=delay)
        super().__init__(
            initial=delay, factor=1.0, maximum=delay, jitter=0.0, give_up_after=give_up_after
        )


class SpreadDelayStrategy(DelayStrategy):
    """Another strategy, after a random pause whenever a lasting connection was lost.

    When a server fails, all its clients lose it in the same moment and would all log on to the next
    one at once, with their backlogs and subscriptions. With this strategy their first attempts are
    spread evenly over `spread` seconds. The very first connection of a client does not wait, nor do
    later attempts, beyond what the inner strategy says.

    Args:
        inner: Decides the other waits, and when to give up; exponential by default.
        spread: The longest pause in seconds. With 2 000 clients and a server that takes 400 logons
            a second, 5.
        source: The random number generator; pass a seeded one for repeatable runs.

    Raises:
        UsageError: The time is negative or without an end.
    """

    def __init__(
        self,
        inner: DelayStrategy | None = None,
        *,
        spread: float = 5.0,
        source: random.Random | None = None,
    ) -> None:
        _check(spread=spread)
        self._inner = inner or ExponentialDelayStrategy(source=source)
        self._spread_s = spread
        self._random = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._connected = WeakSet[object]()  # clients that were connected before

    @override
    def delay_for(self, uri: str, now: float) -> float:
        delay_s = self._inner.delay_for(uri, now)
        if _asker.get() not in self._connected:
            return delay_s
        self._connected.remove(_asker.get())
        return delay_s + self._random.uniform(0.0, self._spread_s)

    @override
    def reset(self) -> None:
        self._inner.reset()
        self._connected.add(_asker.get())


def _check(**times: float) -> None:
    for name, value in times.items():
        check_seconds(name, value, zero=True, endless=False)
