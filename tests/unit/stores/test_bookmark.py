from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from haclient_stores.bookmark import (
    EPOCH,
    MOST_RECENT,
    NOW,
    Bookmark,
    BookmarkList,
    BookmarkRange,
    StartPoint,
    Timestamp,
    parse_bookmark,
)
from haclient_stores.errors import UsageError
from support.process import python_environment

ONE = Bookmark(7094790850998930143, 3)
TWO = Bookmark(12290412031115262887, 1484244707000000008)
NOON = Timestamp.parse("20240131T120000Z")

WIRE_FORMS: list[tuple[StartPoint, str]] = [
    (EPOCH, "0"),
    (NOW, "0|1|"),
    (MOST_RECENT, "recent"),
    (ONE, "7094790850998930143|3|"),
    (TWO, "12290412031115262887|1484244707000000008|"),
    (NOON, "20240131T120000Z"),
    (Timestamp(NOON.microseconds + 42), "20240131T120000.000042Z"),
    (BookmarkList((ONE, TWO)), f"{ONE},{TWO}"),
    (BookmarkList((ONE, NOON)), f"{ONE},20240131T120000Z"),
    (BookmarkRange(NOON, NOON), "[20240131T120000Z:20240131T120000Z)"),
    (BookmarkRange(EPOCH, NOW, "(]"), "(0:0|1|]"),
    (BookmarkRange(BookmarkList((ONE, TWO)), ONE, "[]"), f"[{ONE},{TWO}:{ONE}]"),
    (BookmarkRange(ONE, NOON, "()"), f"({ONE}:20240131T120000Z)"),
]


@pytest.mark.row("ID1")
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Kolkata", "UTC"])
def test_timestamps_are_utc_wherever_the_process_runs(zone: str) -> None:
    code = (
        "from datetime import UTC, datetime; "
        "from haclient_stores.bookmark import Bookmark, parse_bookmark; "
        "print(parse_bookmark('20240710T120000Z').microseconds, "
        "parse_bookmark('20240110T120000').datetime.isoformat(), "
        "Bookmark.at(datetime(2024, 7, 10, 12, tzinfo=UTC)))"
    )
    environment = python_environment() | {"TZ": zone}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = "1720612800000000 2024-01-10T12:00:00+00:00 20240710T120000Z"
    assert done.stdout.strip() == expected


@pytest.mark.row("ID1")
@pytest.mark.parametrize(("value", "wire"), WIRE_FORMS)
def test_every_form_is_written_as_on_the_wire_and_read_back(value: StartPoint, wire: str) -> None:
    assert str(value) == wire
    assert parse_bookmark(wire) == value


@pytest.mark.parametrize(("value", "wire"), WIRE_FORMS)
def test_values_survive_pickling_and_copying_and_can_be_keys(value: StartPoint, wire: str) -> None:
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  our own bytes
    assert copy.deepcopy(value) == value
    assert {value: wire}[value] == wire


def test_the_three_words_are_different_values() -> None:
    assert len({EPOCH, NOW, MOST_RECENT}) == 3
    assert [repr(EPOCH), repr(NOW), repr(MOST_RECENT)] == ["EPOCH", "NOW", "MOST_RECENT"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1|2", Bookmark(1, 2)),
        ("1|2|whatever follows", Bookmark(1, 2)),
        ("1|2|3|4|", Bookmark(1, 2)),
        ("  1|2| ", Bookmark(1, 2)),
        ("0|1", NOW),
        ("20240131T120000", NOON),
        ("20240131T120000.000Z", NOON),
        ("20240131T120000.5", Timestamp(NOON.microseconds + 500_000)),
        ("1|2|, 3|4|", BookmarkList((Bookmark(1, 2), Bookmark(3, 4)))),
        ("1|2|,,3|4|,", BookmarkList((Bookmark(1, 2), Bookmark(3, 4)))),
        ("1|2|,", Bookmark(1, 2)),
        (
            "[20200604T000000:20200605T000000)",
            BookmarkRange(Timestamp.parse("20200604T000000"), Timestamp.parse("20200605T000000")),
        ),
    ],
)
def test_reading_is_lenient_where_the_protocol_asks_for_it(text: str, value: StartPoint) -> None:
    assert parse_bookmark(text) == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ",", "1", "epoch", "RECENT", "1|", "|1|", "1|x|", "-1|2|", "1|+2|", "1_0|2|"),
        *("\u0661|2|", "18446744073709551616|1|", "1|18446744073709551616|", "0,1|2|"),
        *("1|2|,recent", "20240131", "20240131T12", "20240131T120000+0100", "20240131T120000z"),
        *("2024-01-31T12:00:00", "20241301T000000", "20240131T250000", "20240131T120000."),
        *("20240131T120000.1234567", "19691231T235959", "[", "[)", "[:)", "[1|2|:)", "[:1|2|)"),
        *("[1|2|)", "[1|2|:3|4|", "1|2|:3|4|", "[1|2|:3|4|:5|6|)", "[recent:0|1|)"),
        *("[[1|2|:3|4|):5|6|)", "[0:x)"),
    ],
)
def test_anything_else_is_refused_by_a_message_that_names_it(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bookmark(text)
    assert "\n" not in str(caught.value)


def test_a_refusal_quotes_the_text() -> None:
    with pytest.raises(UsageError, match="'epoch'"):
        parse_bookmark("epoch")


@pytest.mark.parametrize(("publisher", "sequence"), [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_a_bookmark_is_made_of_unsigned_64_bit_numbers(publisher: int, sequence: int) -> None:
    with pytest.raises(UsageError, match="64-bit"):
        Bookmark(publisher, sequence)


def test_a_bookmark_at_a_datetime_is_that_moment_in_utc() -> None:
    moment = datetime(2024, 1, 31, 13, 0, 0, 7, tzinfo=timezone(timedelta(hours=1)))
    assert str(Bookmark.at(moment)) == "20240131T120000.000007Z"
    assert Bookmark.at(moment).datetime == moment
    assert NOON.datetime == datetime(2024, 1, 31, 12, tzinfo=UTC)


def test_a_datetime_without_a_zone_names_no_moment() -> None:
    with pytest.raises(UsageError, match="time zone"):
        Bookmark.at(datetime(2024, 1, 31))  # noqa: DTZ001  that is what is refused


@pytest.mark.parametrize("microseconds", [-1, 253402300800 * 10**6])
def test_a_timestamp_lies_between_1970_and_9999(microseconds: int) -> None:
    with pytest.raises(UsageError, match="1970"):
        Timestamp(microseconds)


def test_bookmarks_have_no_order() -> None:
    with pytest.raises(TypeError):
        assert Bookmark(1, 1) < Bookmark(1, 2)  # type: ignore[operator]  # it has none


def test_an_empty_list_is_the_start_of_the_log() -> None:
    assert str(BookmarkList()) == "0"
    assert BookmarkList.parse("0") == BookmarkList()
    assert len(BookmarkList()) == 0
    assert list(BookmarkList((ONE, TWO))) == [ONE, TWO]


def test_a_range_needs_known_brackets() -> None:
    with pytest.raises(UsageError, match=r"\[\)"):
        BookmarkRange(EPOCH, NOW, "<>")


def test_the_first_timestamp_of_a_process_imports_nothing() -> None:
    program = (
        "import sys; from haclient_stores.bookmark import Timestamp; before = set(sys.modules); "
        "Timestamp.parse('20240131T120000.5Z'); sys.exit(len(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=python_environment(), timeout=60, check=False
    )
    assert done.returncode == 0
