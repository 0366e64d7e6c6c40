"""The units of intervals, sizes and counts in options (docs/broker.md and docs/ha.md)."""

from __future__ import annotations

import time

import pytest

from conformance.wire import Wire

FIFTH_OF_A_SECOND = ("200000000ns", "200000us", "200ms", "200MS", "200000Us")
LONG = ("1m", "1h", "1d", "1w", "1H")


def test_intervals_have_units_from_nanoseconds_to_weeks(wire: Wire, plain: str) -> None:
    """In any case of letters; each subscription holds its messages for its interval."""
    for interval in (*FIFTH_OF_A_SECOND, *LONG):
        wire.subscribe(plain, sub_id=interval, opts=f"conflation={interval},conflation_key=[/id]")
    began = time.perf_counter()
    wire.publish(plain, {"id": 1})
    found: set[str] = set()
    while not found >= set(FIFTH_OF_A_SECOND):
        found |= wire.next_message().sids
    assert time.perf_counter() - began >= 0.19
    wire.subscribe(plain, sub_id="witness")
    wire.publish(plain, {"id": 2})
    while "witness" not in (sids := wire.next_message().sids):
        found |= sids
    assert found == set(FIFTH_OF_A_SECOND)


@pytest.mark.parametrize("interval", ["1y", "1 fortnight", "s", "-1s", "1s2", ""])
def test_what_is_no_interval_is_refused(wire: Wire, plain: str, interval: str) -> None:
    """With the reason of other wrong options."""
    options = f"conflation={interval},conflation_key=[/id]"
    answer = wire.ask("subscribe", t=plain, sub_id="s", opts=options)
    assert (answer["status"], answer["reason"]) == ("failure", "invalid options")


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [
        ("1k", 0.1),
        ("1K", 0.1),
        ("1M", 0.0),
        ("50KB", 0.2),
        ("50kb", 0.2),
        ("1MB", 0.0),
        ("1GB", 0.0),
        ("1TB", 0.0),
    ],
)
def test_rates_have_units_of_counts_and_of_sizes(
    wire: Wire, logged: str, rate: str, seconds: float
) -> None:
    """`k` and `M` are thousands and millions of messages, `KB` to `TB` sizes, a second.

    101 messages of 100 bytes take at least as long as that; a smaller unit would take minutes.
    """
    for number in range(101):
        wire.publish(logged, b"%0100d" % number)
    wire.do("flush", a="processed")
    began = time.perf_counter()
    options = f"rate={rate}"
    wire.send("subscribe", t=logged, bm="0", cid="r", opts=options, a="processed,completed")
    frames = wire.frames_until(lambda each: each.get("a") == "completed")
    assert time.perf_counter() - began >= 0.9 * seconds
    assert [int(each.body) for each in frames if each.kind == "publish"] == list(range(101))
