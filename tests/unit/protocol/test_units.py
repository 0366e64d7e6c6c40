from __future__ import annotations

import pytest

from haclient.errors import UsageError
from haclient.protocol.units import Rate, RateUnit, format_interval, parse_interval, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("100ms", 0.1),
        ("250us", 0.00025),
        ("5ns", 5e-9),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("0.5s", 0.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("100 MS", 0.1),
        ("3", 3.0),
        (" 3s ", 3.0),
        ("0s", 0.0),
    ],
)
def test_intervals_are_read_in_every_unit(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 year", "1kb", "1s2", "1_0s", "inf", "nan", "1e3s", "9" * 30]
)
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="interval like 100ms"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (1, "1s"), (90, "90s"), (0.1, "100ms"), (1.5, "1500ms")),
        *((0.00025, "250us"), (5e-9, "5ns")),
    ],
)
def test_intervals_are_written_short_and_exact(seconds: float, text: str) -> None:
    assert format_interval(seconds) == text
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_what_is_no_duration_cannot_be_written(seconds: float) -> None:
    with pytest.raises(UsageError, match="from 0 on"):
        format_interval(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("7", 7), ("1kb", 1024), ("64KB", 65536), ("1.5mb", 1572864), ("1gb", 2**30)),
        *(("1tb", 2**40), ("2k", 2000), ("3M", 3 * 10**6)),
    ],
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "kb", "1x", "1s", "-1kb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size like 64KB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", Rate(1000, RateUnit.MESSAGES)),
        ("2k", Rate(2000, RateUnit.MESSAGES)),
        ("64KB", Rate(65536, RateUnit.BYTES)),
        (".5X", Rate(0.5, RateUnit.SPEED)),
        ("2x", Rate(2, RateUnit.SPEED)),
    ],
)
def test_rates_count_messages_bytes_or_speed(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "X", "fast", "1s", "-1", "1bb"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="rate like 1000, 64KB or 2X"):
        Rate.parse(text)


@pytest.mark.parametrize("text", ["0", "0X", "0.0KB"])
def test_a_rate_of_nothing_is_a_pause(text: str) -> None:
    with pytest.raises(UsageError, match="pause"):
        Rate.parse(text)
