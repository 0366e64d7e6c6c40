"""What a client was made with."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from inspect import cleandoc
from typing import get_type_hints

import pytest

from haclient.errors import UsageError
from haclient.options import (
    ClientOptions,
    HAOptions,
    HASettings,
    Settings,
    seconds,
    wall_clock,
)


def test_everything_but_the_name_has_a_default() -> None:
    settings = Settings(name="orders-7")
    assert (settings.publish_store, settings.bookmark_store, settings.heartbeat) == (None,) * 3


@pytest.mark.row("HA11", "HA12")
@pytest.mark.parametrize(
    ("options", "values"), [(ClientOptions, Settings), (HAOptions, HASettings)]
)
def test_each_keyword_argument_has_a_default_of_its_type_and_is_documented(
    options: type, values: type
) -> None:
    hints = get_type_hints(options)
    assert not options.__required_keys__  # type: ignore[attr-defined]  # of a TypedDict
    own = {"name", "publish_store", "bookmark_store", "authenticator", "clock_us"}
    assert hints == {name: hint for name, hint in get_type_hints(values).items() if name not in own}
    documented = "".join(cleandoc(each.__doc__ or "") for each in (Settings, HASettings))
    for name in hints:
        assert f"\n    {name}: " in documented
    assert all(each.default is not MISSING for each in fields(values) if each.name != "name")


@pytest.mark.row("HA25")
@pytest.mark.parametrize("exit_timeout", [-1, -0.1, math.nan])
def test_an_exit_timeout_is_a_time_or_none(exit_timeout: float) -> None:
    with pytest.raises(UsageError, match="exit_timeout is a number of seconds"):
        Settings(name="c", exit_timeout=exit_timeout)
    for fine in (None, 0, 2.5, math.inf):
        assert Settings(name="c", exit_timeout=fine).exit_timeout == fine


@pytest.mark.row("SM9")
@pytest.mark.parametrize("limit_s", [0, -1, math.nan])
def test_the_limits_of_an_attempt_are_above_0(limit_s: float) -> None:
    servers = ["tcp://a:1/amps/json"]
    with pytest.raises(UsageError, match="connect_timeout is a number of seconds, above 0"):
        HASettings(name="c", servers=servers, connect_timeout=limit_s)


@pytest.mark.parametrize(
    ("name", "wrong", "fine"),
    [
        ("max_queued_bytes", [-1], [0, 1]),
        ("max_unpersisted_bytes", [0, -5], [1]),
        ("failover_overlap", [-3600.0, math.nan, math.inf], [0.0, 5.0]),
        ("heartbeat", [0.0, 1e-9, -1.0, math.nan, math.inf], [0.001, 10.0, None]),
    ],
)
def test_a_value_that_would_hang_or_lose_messages_is_refused(
    name: str, wrong: list[float], fine: list[float | None]
) -> None:
    for value in wrong:
        with pytest.raises(UsageError, match=f"{name.split('_', maxsplit=1)[0]}.* not {value!r}"):
            HASettings(name="c", servers=["tcp://a:1/amps"], **{name: value})  # type: ignore[arg-type]  # wrong on purpose
    for works in fine:
        settings = HASettings(name="c", servers=["tcp://a:1/amps"], **{name: works})  # type: ignore[arg-type]  # by name
        assert getattr(settings, name) == works


@pytest.mark.parametrize("timeout", [-1, -0.1, math.nan])
def test_a_timeout_is_a_time_or_none(timeout: float) -> None:
    with pytest.raises(
        UsageError, match="timeout is a number of seconds, zero or above or None, not"
    ):
        seconds(timeout)
    assert (seconds(None), seconds(0), seconds(2.5)) == (math.inf, 0, 2.5)


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
