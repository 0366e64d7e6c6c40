from __future__ import annotations

import logging

import pytest

from haclient_stores.bookmark_stores.undiscarded_watch import (
    OldUndiscarded,
    UndiscardedCount,
    UndiscardedWatch,
)
from haclient_stores.errors import UsageError

pytestmark = pytest.mark.row("BS5")


def test_a_message_that_stays_the_oldest_is_told_once_and_again_when_its_age_has_doubled() -> None:
    told: list[OldUndiscarded] = []
    watch = UndiscardedWatch(10.0, told.append)
    for now in range(100):
        watch.note("s", oldest=7, undiscarded=3, now=float(now))
    assert [(old.sub_id, old.number, old.age_s) for old in told] == [
        ("s", 7, 10.0),
        ("s", 7, 20.0),
        ("s", 7, 40.0),
        ("s", 7, 80.0),
    ]


def test_what_the_callback_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(old: OldUndiscarded) -> None:
        raise ConnectionError(f"cannot tell of {old.sub_id}")

    watch = UndiscardedWatch(10.0, refuse)
    for now in range(30):
        watch.note("s", oldest=7, undiscarded=3, now=float(now))
    assert caplog.text.count("ConnectionError: cannot tell of s") == 2


def test_progress_is_no_reason_to_warn() -> None:
    told: list[OldUndiscarded] = []
    watch = UndiscardedWatch(10.0, told.append)
    for now in range(100):
        watch.note("s", oldest=1 + now // 5, undiscarded=9, now=float(now))
        watch.note("idle", oldest=0, undiscarded=0, now=float(now))
    watch.note("s", oldest=0, undiscarded=0, now=200.0)
    watch.note("s", oldest=20, undiscarded=1, now=300.0)
    assert told == []


def test_by_default_the_log_is_told(caplog: pytest.LogCaptureFixture) -> None:
    watch = UndiscardedWatch(60.0)
    for now in (0.0, 61.0):
        watch.note("s1", oldest=7, undiscarded=3, now=now)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "subscription 's1': message 7 has not been discarded for 61 s and holds the recovery "
        "point; 3 are undiscarded"
    )


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_a_limit_that_cannot_be_is_refused(wrong: float) -> None:
    with pytest.raises(UsageError, match="after_s"):
        UndiscardedWatch(wrong)


def test_many_undiscarded_messages_are_told_of_once_if_nobody_discards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = UndiscardedCount(10)
    count.note("s", oldest=1, undiscarded=9)
    count.note("s", oldest=1, undiscarded=9)
    assert not caplog.records
    count.note("s", oldest=1, undiscarded=10)
    count.note("s", oldest=1, undiscarded=99)
    assert len(caplog.records) == 1
    assert "subscription 's': 10 messages are undiscarded" in caplog.text


def test_many_undiscarded_messages_are_in_order_while_somebody_discards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = UndiscardedCount(10)
    for oldest in range(1, 50):
        count.note("s", oldest=oldest, undiscarded=1000)
    assert not caplog.records


def test_what_an_earlier_process_has_left_is_told_of_if_nobody_discards_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = UndiscardedCount(10)  # of a new process
    count.note("s", oldest=1, undiscarded=1000)
    assert not caplog.records  # it has only begun
    count.note("s", oldest=1, undiscarded=1000)
    assert len(caplog.records) == 1


def test_a_count_of_0_is_no_limit_and_less_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    count = UndiscardedCount(0)
    for _ in range(2):
        count.note("s", oldest=1, undiscarded=10**9)
        count.note("none", oldest=0, undiscarded=0)
    assert not caplog.records
    with pytest.raises(UsageError, match="limit"):
        UndiscardedCount(-1)


def test_what_the_store_has_forgotten_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    told: list[OldUndiscarded] = []
    watch, count = UndiscardedWatch(10.0, told.append), UndiscardedCount(10)
    for _ in range(2):
        for now in (0.0, 10.0):
            for sub_id in ("ended", "s"):
                watch.note(sub_id, oldest=1, undiscarded=10, now=now)
                count.note(sub_id, oldest=1, undiscarded=10)
        watch.forget_all_but({"s"})
        count.forget_all_but({"s"})
    # What comes under the same id is another subscription; `s` has not become twice as old.
    assert [each.sub_id for each in told] == ["ended", "s", "ended"]
    assert [each.getMessage().split()[1] for each in caplog.records] == [
        "'ended':",
        "'s':",
        "'ended':",
    ]
