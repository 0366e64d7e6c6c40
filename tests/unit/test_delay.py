"""How long to wait before the next attempt."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.delay import ExponentialDelayStrategy, FixedDelayStrategy
from haclient.errors import TimedOut, UsageError

A, B = "tcp://a:9007/amps", "tcp://b:9007/amps"


@pytest.mark.row("DS1", "DS2", "DS4")
def test_a_fixed_delay_begins_with_the_second_attempt_at_each_server() -> None:
    strategy = FixedDelayStrategy(0.5)
    assert [strategy.delay_for(uri, 0.0) for uri in (A, B, A, B, A)] == [0.0, 0.0, 0.5, 0.5, 0.5]
    strategy.reset()
    assert strategy.delay_for(A, 9.0) == 0.0


@pytest.mark.row("DS3", "DS4", "HA14")
def test_the_example_of_200_ms_by_1_5_up_to_5_s_for_60_s() -> None:
    strategy = ExponentialDelayStrategy(
        initial=0.2, factor=1.5, maximum=5.0, give_up_after=60.0, jitter=0.0
    )
    now, delays = 100.0, list[float]()

    def try_for_ever() -> None:
        nonlocal now
        while True:
            delays.append(round(strategy.delay_for(A, now), 4))
            now += delays[-1]

    with pytest.raises(TimedOut, match="the limit is 60 s"):
        try_for_ever()
    assert delays[:10] == [0.0, 0.2, 0.3, 0.45, 0.675, 1.0125, 1.5188, 2.2781, 3.4172, 5.0]
    assert set(delays[10:]) == {5.0}
    assert 60 <= now - 100.0 <= 65


@pytest.mark.row("DS5")
@pytest.mark.parametrize("kind", [FixedDelayStrategy, ExponentialDelayStrategy])
def test_giving_up_counts_from_the_first_attempt_since_the_last_success(
    kind: type[FixedDelayStrategy | ExponentialDelayStrategy],
) -> None:
    strategy = kind(give_up_after=10.0)
    strategy.delay_for(A, 1000.0)
    strategy.delay_for(B, 1009.9)
    with pytest.raises(TimedOut):
        strategy.delay_for(A, 1010.0)
    strategy.reset()
    assert strategy.delay_for(A, 5000.0) == 0.0


@pytest.mark.row("DS6")
@given(st.integers(), st.floats(0, 3), st.integers(1, 12))
def test_the_random_part_is_bounded_and_a_seed_repeats_it(
    seed: int, jitter: float, attempts: int
) -> None:
    def delays() -> list[float]:
        strategy = ExponentialDelayStrategy(
            initial=0.2, maximum=2.0, jitter=jitter, source=random.Random(seed)
        )
        return [strategy.delay_for(A, 0.0) for _ in range(attempts)]

    first = delays()
    assert first == delays()
    assert first[0] == 0.0
    exact = [min(0.2 * 2.0**n, 2.0) for n in range(attempts - 1)]
    for delay, floor in zip(first[1:], exact, strict=True):
        assert floor <= delay <= floor + 0.2 * jitter + 1e-9


@pytest.mark.parametrize(("initial", "factor", "maximum"), [(-1, 2, 5), (1, 0.5, 5), (1, 2, -5)])
def test_times_that_cannot_be_are_refused(initial: float, factor: float, maximum: float) -> None:
    with pytest.raises(UsageError):
        ExponentialDelayStrategy(initial=initial, factor=factor, maximum=maximum)
    with pytest.raises(UsageError, match="delay is a time in seconds and cannot be -1"):
        FixedDelayStrategy(-1)
