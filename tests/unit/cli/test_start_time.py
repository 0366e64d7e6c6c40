"""Starts of a replay as people write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from haclient.cli.start_time import parse_start_time
from haclient.errors import UsageError

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wire"),
    [
        ("30s", "20261120T115930Z"),
        ("1.5h", "20261120T103000Z"),
        ("30m", "20261120T113000Z"),
        ("2d", "20261118T120000Z"),
        ("1w", "20261113T120000Z"),
        ("0s", "20261120T120000Z"),
        ("2026-11-20", "20261120T000000Z"),
        ("2026-11-20T09:30", "20261120T093000Z"),
        ("2026-11-20 09:30:01.5", "20261120T093001.500000Z"),
        ("2026-11-20T09:30:00Z", "20261120T093000Z"),
        ("2026-11-20T09:30:00+02:00", "20261120T073000Z"),
        ("2026-11-20T09:30:00-0530", "20261120T150000Z"),
        ("20261120T093000", "20261120T093000Z"),
    ],
)
def test_a_start_becomes_the_form_of_the_wire_in_utc(text: str, wire: str) -> None:
    assert str(parse_start_time(text, NOW)) == wire


def test_a_time_without_a_zone_is_utc_wherever_the_command_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert str(parse_start_time("2026-11-20T09:30:00", NOW)) == "20261120T093000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["1x", "2026-13-01", "2026-02-30", "-1h", "h", "", "1 h", "20261120", "2026-11-20T25:00",
     "999999999w", "1969-01-01", "2026-11-20T09:30:00+99:00", "٣h"],
)  # fmt: skip
def test_what_is_no_time_names_what_is_wanted(text: str) -> None:
    with pytest.raises(UsageError, match="wanted a time such as 2026-11-20T09:30:00Z"):
        parse_start_time(text, NOW)
