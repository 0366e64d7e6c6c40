from __future__ import annotations

import pytest

from haclient_stores.bookmarks import Bookmark, BookmarkList, Timestamp
from haclient_stores.errors import UsageError
from haclient_stores.start import Start


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
