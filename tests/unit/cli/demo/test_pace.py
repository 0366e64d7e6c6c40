"""Every kill strikes in mid-stream."""

from __future__ import annotations

import pytest

from haclient.cli.demo.pace import MIN_MESSAGES, DemoPace, due_at

TICK_S = 0.02
KILLS = 4


@pytest.mark.parametrize("messages", [MIN_MESSAGES, 1001, 5000, 100_000, 10_000_000])
def test_kills_are_due_between_the_first_message_and_the_last(messages: int) -> None:
    due = [due_at(kill, messages, kills=KILLS) for kill in range(KILLS)]
    assert due == sorted(set(due))
    assert due[0] > 0
    assert due[-1] < messages - messages // 4


@pytest.mark.parametrize("messages", [MIN_MESSAGES, 5000, 100_000])
def test_a_kill_that_waits_forever_still_strikes_in_mid_stream(messages: int) -> None:
    pace, now, allowed = DemoPace(messages, 0.0, kills=KILLS), 0.0, 0
    for kill in range(KILLS):
        for _ in range(5000):
            now += TICK_S
            allowed = pace.allowed(now)
        assert (
            due_at(kill, messages, kills=KILLS) <= allowed < due_at(kill + 1, messages, kills=KILLS)
        )
        pace.killed()
        assert pace.allowed(now + TICK_S) >= allowed
    for _ in range(5000):
        now += TICK_S
        allowed = pace.allowed(now)
    assert allowed == messages


def test_the_stream_runs_at_full_pace_when_kills_come_in_time() -> None:
    messages, now, allowed = 100_000, 7.0, 0
    pace = DemoPace(messages, now, kills=KILLS)
    for kill in range(KILLS):
        while allowed < due_at(kill, messages, kills=KILLS):
            now += TICK_S
            allowed = pace.allowed(now)
        pace.killed()
    while allowed < messages:
        now += TICK_S
        allowed = pace.allowed(now)
    assert 9.0 < now - 7.0 < 11.0


def test_what_is_allowed_never_falls_and_never_jumps() -> None:
    pace = DemoPace(100_000, 0.0, kills=KILLS)
    assert pace.allowed(0.0) == 0
    before = pace.allowed(0.1)
    assert pace.allowed(0.1) == before
    assert pace.allowed(60.0) < due_at(1, 100_000, kills=KILLS)
