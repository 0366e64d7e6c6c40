"""Guards against removal, without a broker."""

from __future__ import annotations

import pytest

from haclient_fake_server.engine import guards as guards_module
from haclient_fake_server.engine.acks import Refused
from haclient_fake_server.engine.guards import MAX_NAME_CHARACTERS, Guard, Guards

NOW_US = 1_700_000_000_000_000


def set_guard(
    guards: Guards, name: str, after: int, *, ttl_s: float = 10, now_us: int = NOW_US
) -> None:
    guards.set(name, after, ttl_s=ttl_s, now_us=now_us, first=1, last=100)


def test_the_lowest_position_that_anybody_needs_is_kept() -> None:
    guards = Guards()
    assert guards.oldest_needed(NOW_US) is None
    set_guard(guards, "late", 50)
    set_guard(guards, "early", 20)
    assert guards.oldest_needed(NOW_US) == 21
    assert [guard.name for guard in guards.current(NOW_US)] == ["early", "late"]


def test_setting_it_again_renews_and_moves_it() -> None:
    guards = Guards()
    set_guard(guards, "reader", 20)
    set_guard(guards, "reader", 30, now_us=NOW_US + 1)
    (guard,) = guards.current(NOW_US)
    assert guard == Guard("reader", 30, NOW_US + 1, NOW_US + 10_000_001)


def test_it_may_go_back_to_what_is_still_there() -> None:
    guards = Guards()
    set_guard(guards, "reader", 20)
    set_guard(guards, "reader", 0)
    assert guards.oldest_needed(NOW_US) == 1


def test_it_ends_when_it_is_dropped_or_was_not_renewed_in_time() -> None:
    guards = Guards()
    set_guard(guards, "short", 10, ttl_s=1)
    set_guard(guards, "long", 20, ttl_s=2)
    assert guards.oldest_needed(NOW_US + 999_999) == 11
    assert guards.oldest_needed(NOW_US + 1_000_000) == 21
    guards.drop("long", now_us=NOW_US)
    guards.drop("unknown", now_us=NOW_US)
    assert [guard.name for guard in guards.current(NOW_US)] == ["short"]


@pytest.mark.parametrize(
    ("after", "reason"), [(8, "bookmark not found"), (101, "invalid bookmark")]
)
def test_what_the_log_does_not_have_cannot_be_guarded(after: int, reason: str) -> None:
    guards = Guards()
    with pytest.raises(Refused) as refused:
        guards.set("reader", after, ttl_s=1, now_us=NOW_US, first=10, last=100)
    assert refused.value.reason == reason
    assert guards.current(NOW_US) == ()


@pytest.mark.parametrize("after", [9, 100])
def test_all_of_the_log_and_its_end_can_be_guarded(after: int) -> None:
    guards = Guards()
    guards.set("reader", after, ttl_s=1, now_us=NOW_US, first=10, last=100)
    assert guards.oldest_needed(NOW_US) == after + 1


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARACTERS + 1)])
def test_a_name_has_a_limited_length(name: str) -> None:
    with pytest.raises(Refused, match="1 to 255 characters"):
        set_guard(Guards(), name, 1)


def test_the_number_of_guards_has_a_limit_in_which_ended_ones_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards_module, "MAX_GUARDS", 2)
    guards = Guards([Guard("ended", 1, 0, 1)])
    set_guard(guards, "one", 1)
    set_guard(guards, "two", 1)
    with pytest.raises(Refused, match="too many guards: guard 'three': there are 2 already"):
        set_guard(guards, "three", 1)
    set_guard(guards, "two", 2)
