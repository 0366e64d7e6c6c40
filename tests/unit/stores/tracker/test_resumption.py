from __future__ import annotations

import pytest

from haclient_stores.bookmark import Bookmark, BookmarkList, Timestamp
from haclient_stores.errors import UsageError
from haclient_stores.tracker.resumption import Start, sequences
from support.tracked_log import TrackedLog

pytestmark = pytest.mark.row("BS9")


def tracker(*finished: str, start: str = "0", entered_us: int = 0) -> TrackedLog:
    log = TrackedLog()
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
    log = TrackedLog()
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


def started(wire: str, *, entered_us: int = 0) -> Start:
    start = Start()
    start.set(wire)
    start.entered_us = entered_us
    return start


@pytest.mark.parametrize("wire", ["1|2|", "1|2|,3|4|", "20240131T120000Z", "0|1|"])
def test_a_start_is_what_it_resumes_from_while_nothing_came(wire: str) -> None:
    start = started(wire)
    assert start.known
    assert str(BookmarkList(start.resume_items(nothing_arrived=True))) == wire


def test_the_start_of_the_log_is_nothing_to_know() -> None:
    assert not started("0").known
    assert started("0").resume(BookmarkList()) == "0"


def test_a_range_keeps_its_end_and_begins_behind_the_recovery_point() -> None:
    start = started("[1|2|:20240131T120000Z]")
    assert start.known
    assert start.resume(BookmarkList()) == "[1|2|:20240131T120000Z]"
    assert start.resume(BookmarkList((Bookmark(1, 5),))) == "(1|5|:20240131T120000Z]"
    time = Timestamp(1_000_000)
    both = BookmarkList((Bookmark(1, 5), time))
    assert start.resume(both) == "(1|5|,19700101T000001Z:20240131T120000Z]"
    assert start.resume(BookmarkList((time,))) == "[19700101T000001Z:20240131T120000Z]"


def test_a_start_at_now_becomes_the_moment_of_entry_where_that_is_known() -> None:
    start = started("0|1|", entered_us=1_000_000)
    assert start.is_now
    assert start.resume_items(nothing_arrived=True) == (Timestamp(1_000_000),)
    assert started("0|1|").resume_items(nothing_arrived=False) == ()


def test_what_is_no_bookmark_is_refused() -> None:
    with pytest.raises(UsageError):
        started("yesterday")


SINCE_US = 5_000_000
SINCE = "19700101T000005Z"
POINT = BookmarkList((Bookmark(1, 5), Bookmark(3, 9)))


@pytest.mark.row("BS9")
@pytest.mark.parametrize(
    ("wire", "forms"),
    [
        ("0", ("1|5|,3|9|," + SINCE, "1|5|,3|9|")),
        ("1|2|", ("1|5|,3|9|," + SINCE, "1|5|,3|9|")),
        ("[1|2|:20240131T120000Z]", ("(1|5|,3|9|:20240131T120000Z]",)),
    ],
)
def test_elsewhere_a_list_also_carries_a_time(wire: str, forms: tuple[str, ...]) -> None:
    assert started(wire).resume_elsewhere(POINT, SINCE_US, finished=True) == forms


@pytest.mark.row("BS9")
@pytest.mark.parametrize("wire", ["0", "0|1|", "20240131T120000Z"])
def test_elsewhere_what_names_no_message_stays_as_it_is(wire: str) -> None:
    start = started(wire)
    point = BookmarkList(start.resume_items(nothing_arrived=True))
    assert start.resume_elsewhere(point, SINCE_US, finished=False) == (wire,)


@pytest.mark.row("BS9")
def test_elsewhere_an_entry_at_now_is_the_oldest_moment_that_is_asked_for() -> None:
    start = started("1|5|", entered_us=SINCE_US + 1_000_000)
    later = "19700101T000006Z"
    assert start.resume_elsewhere(POINT, SINCE_US, finished=True)[0] == f"1|5|,3|9|,{later}"
    point = BookmarkList(start.items)
    assert start.resume_elsewhere(point, SINCE_US, finished=False) == (f"1|5|,{later}", later)
    much_later = SINCE_US + 9_000_000
    assert start.resume_elsewhere(point, much_later, finished=False)[1] == later
    assert start.resume_elsewhere(POINT, much_later, finished=True)[0].endswith("T000014Z")
