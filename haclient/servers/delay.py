"""Delay strategies: how long to wait before the next connection attempt.

A strategy is asked before each attempt, with the URI and the current time; it never sleeps and
reads no clock. The first attempt at a server is not delayed. Raising an error ends the
reconnecting, which is how a time limit is enforced.

Several clients may share one strategy: it counts the attempts of each client separately, and never
compares the times of two clients, whose clocks may differ. `delay_for`, which applications may
define, has no argument for the client, so `asked_by` sets it in a context variable.

The waits are computed by tenacity, used as pure functions. Its own time limit reads the wall clock,
so the limit is checked here instead, against the times that are passed in.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from typing_extensions import override

from haclient.errors import TimedOut, UsageError
from haclient_stores.checks import check_seconds, is_number

if TYPE_CHECKING:
    from tenacity import RetryCallState
    from tenacity.stop import StopBaseT
    from tenacity.wait import WaitBaseT

__all__ = [
    "DelayStrategy",
    "ExponentialDelayStrategy",
    "FixedDelayStrategy",
    "SpreadDelayStrategy",
    "TenacityDelayStrategy",
]


_T = TypeVar("_T")


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


class _PerClient(Generic[_T]):
    """What a strategy remembers of each client that asks it.

    Args:
        make: Creates it for a client that has not asked before.
    """

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._of: WeakKeyDictionary[object, _T] = WeakKeyDictionary()

    @property
    def now(self) -> _T:
        """What is remembered of the client that asks now."""
        client = _asker.get()
        found = self._of.get(client)
        if found is None:
            found = self._of[client] = self._make()
        return found


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
    """What has been tried since the last success."""

    give_up_after_s: float | None
    began_at: float | None = None
    total: int = 0
    idle_s: float = 0.0
    count: dict[str, int] = field(default_factory=dict[str, int])

    def next(self, uri: str, now: float) -> int:
        """The number of attempts at this server before the coming one."""
        limit_s = self.give_up_after_s
        if self.began_at is None:  # the first one is made, whatever the limit is
            self.began_at = now
        elif limit_s is not None and now - self.began_at >= limit_s:
            raise TimedOut(
                f"no server could be reached for {now - self.began_at:g} s, "
                f"the limit is {limit_s:g} s"
            )
        before = self.count.get(uri, 0)
        self.count[uri] = before + 1
        return before

    def limited(self, delay_s: float, now: float) -> float:
        """The wait before the attempt, but not beyond the limit: the last one is made then."""
        if self.give_up_after_s is None or self.began_at is None:
            return delay_s
        return min(delay_s, self.began_at + self.give_up_after_s - now)

    def reset(self) -> None:
        """Forget all attempts."""
        self.began_at = None
        self.total = 0
        self.idle_s = 0.0
        self.count.clear()


@dataclass(slots=True)
class _Connected:
    """Whether a lasting connection was there before the coming attempt."""

    was_connected: bool = False


class FixedDelayStrategy(DelayStrategy):
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
        check_seconds("give_up_after", give_up_after, zero=True, optional=True)
        self._delay_s = delay
        self._attempts = _PerClient(lambda: _Attempts(give_up_after))

    @override
    def delay_for(self, uri: str, now: float) -> float:
        attempts = self._attempts.now
        before = attempts.next(uri, now)
        return attempts.limited(self._delay_s, now) if before else 0.0

    @override
    def reset(self) -> None:
        self._attempts.now.reset()


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
        self._of = _PerClient(_Connected)

    @override
    def delay_for(self, uri: str, now: float) -> float:
        delay_s = self._inner.delay_for(uri, now)
        if not self._of.now.was_connected:
            return delay_s
        self._of.now.was_connected = False
        return delay_s + self._random.uniform(0.0, self._spread_s)

    @override
    def reset(self) -> None:
        self._inner.reset()
        self._of.now.was_connected = True


class TenacityDelayStrategy(DelayStrategy):
    """Waits and limits from the `wait_*` and `stop_*` objects of tenacity.

    The first attempt at a server is not delayed; `wait` sees the further attempts at one server as
    1, 2, 3 and so on. `stop` sees all attempts together, and the seconds since the first of them.
    Both see the clock of the client. What depends on the result of a call, such as
    `wait_exception`, cannot be used: a strategy is not told the error.

    Args:
        wait: Such as `wait_random_exponential(max=10) + wait_fixed(0.1)`. Random ones draw from
            Python's global generator: `random.seed` repeats them.
        stop: Such as `stop_after_delay(60) | stop_after_attempt(20)`; by default it never stops.

    Raises:
        UsageError: An argument is not of these kinds.
    """

    def __init__(self, wait: WaitBaseT, stop: StopBaseT | None = None) -> None:
        for name, value in {"wait": wait, "stop": stop}.items():
            if not callable(value) and (name, value) != ("stop", None):
                raise UsageError(
                    f"{name} is one of tenacity's {name}_* objects, such as {name}_"
                    f"{'fixed(1)' if name == 'wait' else 'after_delay(60)'}, not {value!r}"
                )
        self._wait = wait
        self._stop = stop
        self._attempts = _PerClient(lambda: _Attempts(None))

    @override
    def delay_for(self, uri: str, now: float) -> float:
        attempts = self._attempts.now
        before = attempts.next(uri, now)
        began_at = now if attempts.began_at is None else attempts.began_at
        delay_s = 0.0
        if before:
            state = _call_state(before, began_at=began_at, now=now, idle_s=attempts.idle_s)
            delay_s = float(self._wait(state))
        if attempts.total and self._stop is not None:
            state = _call_state(attempts.total, began_at=began_at, now=now, idle_s=attempts.idle_s)
            state.upcoming_sleep = delay_s
            if self._stop(state):
                raise TimedOut(
                    f"no server could be reached in {attempts.total} attempts "
                    f"and {now - began_at:g} s, where {type(self._stop).__name__} stops"
                )
        attempts.total += 1
        attempts.idle_s += delay_s
        return delay_s

    @override
    def reset(self) -> None:
        self._attempts.now.reset()


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
        from tenacity import wait_exponential  # noqa: PLC0415  # 40 ms to import

        # With 0, tenacity returns `max` once the power overflows.
        longest = maximum if initial else 0.0
        self._wait = wait_exponential(multiplier=initial, exp_base=factor, max=longest)
        self._spread_s = jitter * initial
        self._random = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._attempts = _PerClient(lambda: _Attempts(give_up_after))

    @override
    def delay_for(self, uri: str, now: float) -> float:
        attempts = self._attempts.now
        before = attempts.next(uri, now)
        if not before:
            return 0.0
        delay_s = self._exact(before) + self._random.uniform(0.0, self._spread_s)
        return attempts.limited(delay_s, now)

    def _exact(self, attempt: int) -> float:
        return float(self._wait(_call_state(attempt, began_at=0.0, now=0.0)))

    @override
    def reset(self) -> None:
        self._attempts.now.reset()


def _call_state(
    attempt: int, *, began_at: float, now: float, idle_s: float = 0.0
) -> RetryCallState:
    """What tenacity's objects look at, on a clock that is passed in."""
    from tenacity import RetryCallState, Retrying  # noqa: PLC0415  # 40 ms to import

    state = RetryCallState(Retrying(), None, (), {})  # its times are those of the wall clock
    state.start_time = began_at
    state.outcome_timestamp = now
    state.attempt_number = attempt
    state.idle_for = idle_s
    return state


def _check(**times: float) -> None:
    for name, value in times.items():
        check_seconds(name, value, zero=True, endless=False)
