"""Delay strategies: how long to wait before the next connection attempt.

A strategy is asked before each attempt, with the URI and the current time; it never sleeps and
reads no clock. The first attempt at a server is not delayed. Raising an error ends the
reconnecting, which is how a time limit is enforced.

The waits are computed by tenacity, used as pure functions. Its own time limit reads the wall clock,
so the limit is checked here instead, against the times that are passed in.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from haclient.errors import TimedOut, UsageError

__all__ = ["DelayStrategy", "ExponentialDelayStrategy", "FixedDelayStrategy"]


class DelayStrategy(Protocol):
    """Decides the wait before an attempt."""

    @abstractmethod
    def delay_for(self, uri: str, now: float) -> float:
        """Seconds to wait before the next attempt at `uri`.

        Args:
            uri: The server that is about to be tried.
            now: Seconds on a clock that only rises.

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
    count: dict[str, int] = field(default_factory=dict[str, int])

    def next(self, uri: str, now: float) -> int:
        """The number of attempts at this server before the coming one."""
        began_at = self.began_at = now if self.began_at is None else self.began_at
        if self.give_up_after_s is not None and now - began_at >= self.give_up_after_s:
            raise TimedOut(
                f"no server could be reached for {now - began_at:g} s, "
                f"the limit is {self.give_up_after_s:g} s"
            )
        before = self.count.get(uri, 0)
        self.count[uri] = before + 1
        return before

    def reset(self) -> None:
        """Forget all attempts."""
        self.began_at = None
        self.count.clear()


class FixedDelayStrategy(DelayStrategy):
    """The same wait before each further attempt at a server.

    Args:
        delay: Seconds between attempts.
        give_up_after: Seconds after the first attempt at which no further attempt is made; `None`
            never gives up.

    Raises:
        UsageError: A time is negative.
    """

    def __init__(self, delay: float = 0.2, *, give_up_after: float | None = None) -> None:
        _check(delay=delay, give_up_after=give_up_after)
        self._delay_s = delay
        self._attempts = _Attempts(give_up_after)

    @override
    def delay_for(self, uri: str, now: float) -> float:
        return self._delay_s if self._attempts.next(uri, now) else 0.0

    @override
    def reset(self) -> None:
        self._attempts.reset()


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
        give_up_after: Seconds after the first attempt at which no further attempt is made; `None`
            never gives up.
        source: The random number generator; pass a seeded one for repeatable runs.

    Raises:
        UsageError: A time is negative, or the waits would shrink.
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
        _check(initial=initial, maximum=maximum, jitter=jitter, give_up_after=give_up_after)
        if factor < 1:
            raise UsageError(f"a factor of {factor:g} would make the waits shrink: at least 1")
        from tenacity import wait_exponential  # noqa: PLC0415  # 40 ms to import

        self._wait = wait_exponential(multiplier=initial, exp_base=factor, max=maximum)
        self._spread_s = jitter * initial
        self._random = source or random.Random()  # noqa: S311  # spreads load, keeps no secret
        self._attempts = _Attempts(give_up_after)

    @override
    def delay_for(self, uri: str, now: float) -> float:
        before = self._attempts.next(uri, now)
        if not before:
            return 0.0
        return self._exact(before) + self._random.uniform(0.0, self._spread_s)

    def _exact(self, attempt: int) -> float:
        from tenacity import RetryCallState, Retrying  # noqa: PLC0415  # 40 ms to import

        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        return float(self._wait(state))

    @override
    def reset(self) -> None:
        self._attempts.reset()


def _check(**times: float | None) -> None:
    for name, value in times.items():
        if value is not None and value < 0:
            raise UsageError(f"{name} is a time in seconds and cannot be {value:g}")
