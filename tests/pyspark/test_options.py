"""Options of data sources are read with a type, and every error is one line that helps."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.errors import UsageError
from haclient.pyspark.options import MAX_INTEGER, OptionReader, Point, parse_timestamp
from haclient_stores.bookmark import EPOCH, NOW, Bookmark, BookmarkList, Timestamp


def reader(**given: str) -> OptionReader:
    return OptionReader("amps-journal", given)


def test_names_of_options_have_no_case() -> None:
    assert reader(JOURNALPATH="a").required("journalPath") == "a"
    assert reader(journalpath="a").text("journalPath", None) == "a"


def test_an_option_that_was_not_given_has_its_default() -> None:
    read = reader()
    assert read.text("topic", None) is None
    assert read.text("topic", "t") == "t"
    assert read.integer("batchRows", 5) == 5
    assert read.integer("batchRows", None) is None
    assert read.size("maxPartitionBytes", 7) == 7
    assert read.flag("failOnDataLoss", default=True) is True
    assert read.choice("command", ["subscribe", "sow"], "subscribe") == "subscribe"
    assert read.names("columns") == ()
    assert read.pattern("topicPattern") is None
    assert read.time("startingTimestamp") is None


@pytest.mark.parametrize("value", [{}, {"journalPath": ""}])
def test_an_option_that_has_to_be_there_is_asked_for(value: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"journalPath is missing: set it, such as /data/east"):
        reader(**value).required("journalPath", "/data/east")


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("topic", {"topics": "a"}, r"unknown option topics: did you mean topic\?"),
        ("topic", {"assign": "{}"}, r"unknown option assign: did you mean topic\?"),
        ("uri", {"kafka.bootstrap.servers": "h:1"}, r"kafka.bootstrap.servers: did you mean uri\?"),
        ("topic", {"topN": "1", "filter": "/a"}, "set it, such as orders; given are filter, topn$"),
        ("topic", {"topic": ""}, "set it, such as orders$"),
    ],
)
def test_where_an_option_is_missing_those_that_are_there_are_named(
    name: str, given: dict[str, str], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        OptionReader("amps", given).required(name, "orders")


@given(st.integers(1, MAX_INTEGER))
def test_a_whole_number_is_read(number: int) -> None:
    assert reader(batchRows=str(number)).integer("batchRows", None) == number


@pytest.mark.parametrize("value", ["", "x", "1.5", "0", "-1", str(MAX_INTEGER + 1), "1_000", "²"])
def test_anything_else_is_no_whole_number(value: str) -> None:
    with pytest.raises(UsageError, match="batchRows has to be a whole number from 1 on, found"):
        reader(batchRows=value).integer("batchRows", None)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("64k", 65536), ("128m", 128 << 20), ("2G", 2 << 30), ("1MiB", 1 << 20), ("5 b", 5)],
)
def test_a_size_may_have_a_unit(text: str, count: int) -> None:
    assert reader(maxPartitionBytes=text).size("maxPartitionBytes", None) == count


@pytest.mark.parametrize("text", ["", "0", "m", "-1m", "1x", "1.5m", "99999999999999t"])
def test_anything_else_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="maxPartitionBytes has to be a number of bytes"):
        reader(maxPartitionBytes=text).size("maxPartitionBytes", None)


def test_a_flag_is_true_or_false() -> None:
    assert reader(failOnDataLoss="FALSE").flag("failOnDataLoss", default=True) is False
    with pytest.raises(UsageError, match="failOnDataLoss has to be true or false, found 'no'"):
        reader(failOnDataLoss="no").flag("failOnDataLoss", default=True)


def test_a_choice_is_one_of_its_words_in_any_case() -> None:
    assert reader(command="SOW").choice("command", ["subscribe", "sow"], "subscribe") == "sow"
    with pytest.raises(UsageError, match="command has to be one of subscribe, sow, found 'x'"):
        reader(command="x").choice("command", ["subscribe", "sow"], "subscribe")


def test_names_stand_between_commas() -> None:
    assert reader(columns="topic, data").names("columns") == ("topic", "data")
    for value in ("", "a,,b", "a,a"):
        with pytest.raises(UsageError, match="columns has to be different names"):
            reader(columns=value).names("columns")


def test_a_pattern_is_a_regular_expression() -> None:
    pattern = reader(topicPattern="or.*").pattern("topicPattern")
    assert pattern is not None
    assert pattern.fullmatch("orders")
    with pytest.raises(UsageError, match=r"topicPattern has to be a regular expression \(missing"):
        reader(topicPattern="(").pattern("topicPattern")


def test_options_that_exclude_each_other_are_refused() -> None:
    read = reader(topic="a", topicPattern="b")
    assert read.at_most_one("topic", "x") == "topic"
    assert read.at_most_one("x") is None
    with pytest.raises(UsageError, match="topic and topicPattern exclude each other: keep one"):
        read.at_most_one("topic", "topicPattern")


@pytest.mark.parametrize("alias", ["subscribe", "SUBSCRIBE"])
def test_an_alias_is_the_option_that_it_means_and_errors_name_it_as_it_was_typed(
    alias: str,
) -> None:
    read = OptionReader("amps", {alias: "a,,b", "endingOffsets": "?"})
    assert read.text("topic", None) == "a,,b"
    assert read.has("topic")
    with pytest.raises(UsageError, match="the option subscribe has to be different names"):
        read.names("topic")
    with pytest.raises(UsageError, match="unknown option endingOffsets: known are topic"):
        read.check_unknown()
    assert read.point("startingBookmark") is None
    with pytest.raises(UsageError, match="the option endingOffsets has to be earliest, latest,"):
        read.point("endingBookmark")


def test_two_names_of_one_option_exclude_each_other() -> None:
    for options in ({"topic": "a", "subscribe": "b"}, {"subscribe": "b", "topic": "a"}):
        with pytest.raises(UsageError, match=r"(topic and subscribe|subscribe and topic) exclude"):
            OptionReader("amps", options)
    assert OptionReader("amps-journal", {"path": "a"}).required("journalPath") == "a"
    assert not OptionReader("amps", {"path": "a"}).has("journalPath")


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("earliest", EPOCH),
        ("EPOCH", EPOCH),
        ("0", EPOCH),
        (" Latest ", NOW),
        ("now", NOW),
        ("0|1|", NOW),
        ("1|2|", Bookmark(1, 2)),
        ("1|2|,3|4|", BookmarkList((Bookmark(1, 2), Bookmark(3, 4)))),
        ("20260131T093000", Timestamp(1769851800000000)),
        ("2026-01-31T09:30:00Z", Timestamp(1769851800000000)),
        ("1769851800000", Timestamp(1769851800000000)),
    ],
)
def test_a_point_is_a_word_in_any_case_bookmarks_or_a_time(text: str, point: Point) -> None:
    assert reader(startingBookmark=text).point("startingBookmark") == point


@pytest.mark.parametrize("text", ["", "recent", "[0:1|1|]", "1|", "first", '{"orders":{"0":23}}'])
def test_anything_else_is_no_point(text: str) -> None:
    with pytest.raises(UsageError, match="has to be earliest, latest, EPOCH, NOW, bookmarks or a"):
        reader(startingBookmark=text).point("startingBookmark")


def test_an_option_that_is_missing_from_a_table_says_where_options_go() -> None:
    advice = r"PySpark passes the options of the query only, none of CREATE TABLE: FROM name WITH"
    for others in ({}, {"checkpointLocation": "/c"}):  # of `toTable`
        with pytest.raises(UsageError, match=advice):
            reader(**others).required("journalPath", "/data/east")


def test_an_unknown_option_is_refused_with_the_name_that_was_meant() -> None:
    read = reader(journalPth="a", queryName="from PySpark itself")
    read.text("journalPath", None)
    with pytest.raises(UsageError, match=r"unknown option journalpth: did you mean journalPath\?"):
        read.check_unknown()


def test_an_unknown_option_that_resembles_none_is_refused_with_all_names() -> None:
    read = reader(zzz="a")
    read.text("topic", None)
    read.text("journalPath", None)
    with pytest.raises(UsageError, match="unknown option zzz: known are journalPath, topic"):
        read.check_unknown()
    of_kafka = reader(assign="{}")
    of_kafka.text("topic", None)
    with pytest.raises(UsageError, match=r"unknown option assign: did you mean topic\?"):
        of_kafka.check_unknown()


def test_options_that_were_asked_for_are_known() -> None:
    read = reader(topic="a", checkpointLocation="from PySpark itself")
    read.text("topic", None)
    read.check_unknown()


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31T09:30:00.5Z",
        "2026-01-31 09:30:00.500",
        "2026-01-31T10:30:00.5+01:00",
        "20260131T093000.5",
        "20260131T093000.500000Z",
        "1769851800500",
    ],
)
def test_a_time_has_several_forms(text: str) -> None:
    assert reader(startingTimestamp=text).time("startingTimestamp") == Timestamp(1769851800500000)


@pytest.mark.parametrize("text", ["", "yesterday", "20261331T000000", "12"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match="startingTimestamp has to be a time such as"):
        reader(startingTimestamp=text).time("startingTimestamp")


@given(
    st.datetimes(datetime(1902, 1, 1), datetime(2262, 1, 1)),  # noqa: DTZ001 - the zone is drawn
    st.integers(-14 * 60, 14 * 60),
)
def test_a_time_is_read_to_the_microsecond_in_every_zone(moment: datetime, minutes: int) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    assert parse_timestamp(aware.isoformat()) == since // timedelta(microseconds=1)
