from __future__ import annotations

import pytest

from haclient_stores.bookmark import BookmarkList
from haclient_stores.tracker.resumption import sequences
from haclient_stores.tracker.tracker import SubscriptionTracker

pytestmark = pytest.mark.row("BS9")


def tracker(*finished: str, start: str = "0", entered_us: int = 0) -> SubscriptionTracker:
    log = SubscriptionTracker()
    log.begin(acked=False, start=start, entered_us=entered_us)
    for bookmark in finished:
        log.discard(log.log(bookmark))
    return log


def test_a_bookmark_that_is_known_to_be_before_goes_along() -> None:
    log = tracker("1|5|", "2|7|")
    assert log.resume_elsewhere(0, "3|4|") == ("1|5|,2|7|,3|4|",)
    assert log.resume_elsewhere(0, "1|3|") == ("1|3|,2|7|",)
    assert log.resume_elsewhere(0, "1|6|") == ("1|5|,2|7|",)
    assert log.resume_elsewhere(0, "") == ("1|5|,2|7|",)


def test_nothing_goes_along_with_the_start() -> None:
    assert tracker().resume_elsewhere(0, "3|4|") == ("0",)


@pytest.mark.parametrize(
    ("start", "entered_us", "expected"),
    [
        ("0", 0, "0"),
        ("3|7|", 0, "3|7|"),
        ("0|1|", 5_000_000, "19700101T000005Z"),
        ("0|1|", 0, "0"),
        ("[3|7|:3|9|]", 0, "[3|7|:3|9|]"),
    ],
)
def test_the_start_again(start: str, entered_us: int, expected: str) -> None:
    log = tracker(start=start, entered_us=entered_us)
    assert log.resume_from_start() == expected
    log.discard(log.log("3|8|"))
    assert log.resume_from_start() == expected


def test_where_a_log_ended_at_an_entry_at_now_is_no_start_elsewhere() -> None:
    log = tracker(start="0|1|", entered_us=5_000_000)
    log.completed("9|3|")
    assert log.resume() == "9|3|"
    assert log.resume_from_start() == "19700101T000005Z"


def test_an_ack_that_is_not_taken_yet_belongs_to_the_server_that_sent_it() -> None:
    """Taken later, it is no sign that the next server's order is known."""
    log = SubscriptionTracker()
    log.begin(acked=True, start="0")
    log.entered("a")
    log.completed("")
    number = log.log("1|1|")
    log.persisted("2|9|")
    log.begin(acked=True, start=None)
    log.entered("b")
    log.discard(number)
    assert "2|9|" in log.resume()
    assert not log.in_order


def test_sequences_of_a_list() -> None:
    assert sequences(BookmarkList.parse("1|5|,2|7|,20240131T120000Z")) == {1: 5, 2: 7}
