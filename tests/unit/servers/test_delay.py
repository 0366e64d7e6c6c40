"""How long to wait before the next attempt."""

from __future__ import annotations

import gc
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import TimedOut, UsageError
from haclient.servers.delay import (
    DelayStrategy,
    ExponentialDelayStrategy,
    FixedDelayStrategy,
    SpreadDelayStrategy,
    asked_by,
)

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
    assert set(delays[10:-1]) == {5.0}
    assert now == 160.0  # the last attempt, and then no more


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


def test_without_an_initial_wait_there_is_none_after_any_number_of_attempts() -> None:
    strategy = ExponentialDelayStrategy(initial=0.0)
    assert {strategy.delay_for(A, 0.0) for _ in range(1_100)} == {0.0}


@pytest.mark.parametrize(("initial", "factor", "maximum"), [(-1, 2, 5), (1, 0.5, 5), (1, 2, -5)])
def test_times_that_cannot_be_are_refused(initial: float, factor: float, maximum: float) -> None:
    with pytest.raises(UsageError):
        ExponentialDelayStrategy(initial=initial, factor=factor, maximum=maximum)
    with pytest.raises(
        UsageError, match="delay is a finite number of seconds, zero or above, not -1"
    ):
        FixedDelayStrategy(-1)


@pytest.mark.row("DS7")
def test_clients_that_lost_the_same_server_come_back_spread_over_the_time() -> None:
    def times() -> list[float]:
        strategies = [
            SpreadDelayStrategy(FixedDelayStrategy(0.5), spread=5.0, source=random.Random(seed))
            for seed in range(1000)
        ]
        for each in strategies:
            assert each.delay_for(A, 0.0) == 0.0  # the first connection does not wait
            each.reset()
        return [each.delay_for(A, 100.0) for each in strategies]

    found = times()
    assert found == times()
    assert all(0 <= each <= 5 for each in found)
    for tenth in range(10):  # of the time: about a tenth of the clients
        assert 60 < sum(tenth <= 2 * each < tenth + 1 for each in found) < 140


@pytest.mark.row("DS7")
def test_only_the_first_attempt_after_a_loss_is_spread() -> None:
    strategy = SpreadDelayStrategy(
        FixedDelayStrategy(0.5, give_up_after=60.0), spread=5.0, source=random.Random(3)
    )
    assert [strategy.delay_for(uri, 0.0) for uri in (A, B, A)] == [0.0, 0.0, 0.5]
    strategy.reset()
    first, *others = (strategy.delay_for(uri, 100.0) for uri in (A, B, A, B))
    assert 0.0 < first < 5.0
    assert others == [0.0, 0.5, 0.5]
    with pytest.raises(TimedOut, match="the limit is 60 s"):
        strategy.delay_for(A, 160.0)
    with pytest.raises(UsageError, match="spread is a finite number of seconds"):
        SpreadDelayStrategy(spread=-1.0)


@pytest.mark.parametrize("time", [-1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(time: float) -> None:
    for make in (
        lambda: SpreadDelayStrategy(FixedDelayStrategy(1), spread=time),
        lambda: FixedDelayStrategy(time),
        lambda: ExponentialDelayStrategy(initial=time),
        lambda: ExponentialDelayStrategy(maximum=time),
        lambda: ExponentialDelayStrategy(jitter=time),
    ):
        with pytest.raises(UsageError, match="is a finite number of seconds"):
            make()
    with pytest.raises(UsageError, match="factor is a finite number, 1 or above"):
        ExponentialDelayStrategy(factor=time)


def test_a_limit_without_an_end_is_none() -> None:
    strategy = FixedDelayStrategy(1.0, give_up_after=math.inf)
    assert [strategy.delay_for(A, now) for now in (0.0, 1e300)] == [0.0, 1.0]


@pytest.mark.row("DS3")
@pytest.mark.parametrize("kind", [FixedDelayStrategy, ExponentialDelayStrategy])
def test_a_limit_of_no_time_allows_one_attempt(
    kind: type[FixedDelayStrategy | ExponentialDelayStrategy],
) -> None:
    strategy = kind(give_up_after=0)
    assert strategy.delay_for("tcp://a:1/amps", 7.0) == 0.0
    with pytest.raises(TimedOut, match="the limit is 0 s"):
        strategy.delay_for("tcp://b:1/amps", 7.0)
    strategy.reset()
    assert strategy.delay_for("tcp://b:1/amps", 8.0) == 0.0


class _Client:
    """Stands for a client."""


@pytest.mark.parametrize(
    "strategy",
    [
        FixedDelayStrategy(1.0, give_up_after=10.0),
        ExponentialDelayStrategy(initial=1.0, jitter=0.0, give_up_after=10.0),
        SpreadDelayStrategy(FixedDelayStrategy(1.0, give_up_after=10.0), spread=0.0),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_clients_with_clocks_of_their_own_may_share_a_strategy(strategy: DelayStrategy) -> None:
    first, second = _Client(), _Client()
    for client, began in ((first, 1000.0), (second, 900_000.0)):
        with asked_by(client):
            assert strategy.delay_for(A, began) == 0.0
            assert strategy.delay_for(A, began + 1.0) == 1.0
    with asked_by(second):
        strategy.reset()
    with asked_by(first), pytest.raises(TimedOut):
        strategy.delay_for(A, 1010.0)
    with asked_by(second):
        assert strategy.delay_for(A, 900_010.0) == 0.0
    assert strategy.delay_for(A, 5.0) == 0.0


def test_each_of_two_clients_is_spread_after_its_own_loss() -> None:
    strategy = SpreadDelayStrategy(FixedDelayStrategy(), source=random.Random(1))
    first, second = _Client(), _Client()
    with asked_by(first):
        strategy.reset()
    with asked_by(second):
        assert strategy.delay_for(A, 0.0) == 0.0
    with asked_by(first):
        assert strategy.delay_for(A, 0.0) > 0.0


def test_what_is_remembered_of_a_client_goes_with_it() -> None:
    strategy, client = FixedDelayStrategy(1.0), _Client()
    with asked_by(client):
        strategy.delay_for(A, 0.0)
    assert len(strategy._attempts) == 1
    del client
    gc.collect()
    assert len(strategy._attempts) == 0
