"""How long a failed message is held."""

from __future__ import annotations

import pytest

from haclient.session.cancel_delay import FIRST_DELAY_S, LONGEST_DELAY_S, MAX_COUNTED, CancelDelay


@pytest.mark.row("QC11")
def test_the_delay_doubles_with_each_failure_up_to_a_limit() -> None:
    delays = [CancelDelay.delay_s(count) for count in range(1, 12)]
    assert delays[:4] == [FIRST_DELAY_S * factor for factor in (1, 2, 4, 8)]
    assert delays == sorted(delays)
    assert delays[-1] == CancelDelay.delay_s(10**9) == LONGEST_DELAY_S


@pytest.mark.row("QC11")
def test_each_message_is_counted_by_itself() -> None:
    delay = CancelDelay()
    assert [delay.failed("a", "1|1|") for _ in range(3)] == [1, 2, 3]
    assert delay.failed("a", "1|2|") == 1
    assert delay.failed("b", "1|1|") == 1, "another queue over the same topic"
    delay.forget("a", "1|1|")
    delay.forget("a", "7|7|")
    assert delay.failed("a", "1|1|") == 1


@pytest.mark.row("QC11")
def test_the_count_of_messages_is_limited() -> None:
    delay = CancelDelay()
    for number in range(MAX_COUNTED):
        delay.failed("a", f"1|{number}|")
    delay.failed("a", "1|0|")  # the youngest now
    delay.failed("a", "1|new|")
    assert len(delay.counts) == MAX_COUNTED
    assert delay.failed("a", "1|0|") == 3
    assert delay.failed("a", "1|1|") == 1, "forgotten first"
