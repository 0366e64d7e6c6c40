"""Milliseconds."""

from __future__ import annotations

import math

import pytest

from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import UsageError

pytestmark = pytest.mark.row("B18")


@pytest.mark.parametrize(("given", "seconds"), [(0, math.inf), (1500, 1.5), (0.5, 0.0005)])
def test_a_timeout_is_in_milliseconds_and_zero_is_no_limit(given: float, seconds: float) -> None:
    assert seconds_of(given) == seconds
    assert milliseconds_of(seconds) == round(given)


@pytest.mark.parametrize("given", [-1, math.nan, "10", None, True])
def test_what_is_no_time_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="delay is in milliseconds"):
        seconds_of(given, "delay")
