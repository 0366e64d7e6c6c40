"""What a client was made with."""

from __future__ import annotations

import math

import pytest

from haclient.auth import DefaultAuthenticator
from haclient.errors import UsageError
from haclient.transport.settings import Settings, wall_clock


def test_everything_but_the_name_has_a_default() -> None:
    settings = Settings(name="orders-7")
    assert isinstance(settings.authenticator, DefaultAuthenticator)
    assert (settings.publish_store, settings.bookmark_store, settings.heartbeat) == (None,) * 3


@pytest.mark.row("HA25")
@pytest.mark.parametrize("exit_timeout_s", [-1, -0.1, math.nan])
def test_an_exit_timeout_is_a_time_or_none(exit_timeout_s: float) -> None:
    with pytest.raises(UsageError, match="exit_timeout is in seconds"):
        Settings(name="c", exit_timeout_s=exit_timeout_s)
    for fine in (None, 0, 2.5, math.inf):
        assert Settings(name="c", exit_timeout_s=fine).exit_timeout_s == fine


@pytest.mark.row("PS8")
def test_the_clock_gives_microseconds_since_1970() -> None:
    first, second = [Settings(name="c").clock_us() for _ in range(2)]
    assert 1_700_000_000_000_000 < first <= second


@pytest.mark.row("FI8")
def test_a_context_may_have_a_clock_of_its_own() -> None:
    settings = Settings(name="c")
    token = wall_clock.set(lambda: 42)
    assert settings.clock_us() == 42
    wall_clock.reset(token)
    assert settings.clock_us() > 42
