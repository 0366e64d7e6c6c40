from __future__ import annotations

import pytest

from haclient_stores.bookmark import Bookmark, BookmarkList, Timestamp
from haclient_stores.errors import UsageError
from haclient_stores.tracker.start import Start


def started(wire: str, *, entered_us: int = 0) -> Start:
    start = Start()
    start.set(wire)
    start.entered_us = entered_us
    return start


@pytest.mark.parametrize("wire", ["1|2|", "1|2|,3|4|", "20240131T120000Z", "0|1|"])
def test_a_start_is_what_it_resumes_from_while_nothing_came(wire: str) -> None:
    start = started(wire)
    assert start.known
    assert str(BookmarkList(start.resume_items(nothing_came=True))) == wire


def test_the_start_of_the_log_is_nothing_to_know() -> None:
    assert not started("0").known
    assert started("0").resume(BookmarkList()) == "0"


def test_a_range_keeps_its_end_and_begins_behind_the_recovery_point() -> None:
    start = started("[1|2|:20240131T120000Z]")
    assert start.known
    assert start.resume(BookmarkList()) == "[1|2|:20240131T120000Z]"
    assert start.resume(BookmarkList((Bookmark(1, 5),))) == "(1|5|:20240131T120000Z]"


def test_a_start_at_now_becomes_the_moment_of_entry_where_that_is_known() -> None:
    start = started("0|1|", entered_us=1_000_000)
    assert start.is_now
    assert start.resume_items(nothing_came=True) == (Timestamp(1_000_000),)
    assert started("0|1|").resume_items(nothing_came=False) == ()


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
    point = BookmarkList(start.resume_items(nothing_came=True))
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
