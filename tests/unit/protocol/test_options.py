from __future__ import annotations

from typing import Any

import pytest

from haclient.errors import UsageError
from haclient.protocol.options import (
    MAX_OPTIONS_LENGTH,
    Options,
    Rate,
    RateUnit,
    format_interval,
    parse_interval,
    parse_size,
)

PAIRS: list[tuple[Options, str]] = [
    (Options(), ""),
    (Options(bookmark=True), "bookmark"),
    (Options(bookmark_not_found="epoch"), "bookmark_not_found=epoch"),
    (Options(conflation="100ms"), "conflation=100ms"),
    (Options(conflation="auto"), "conflation=auto"),
    (
        Options(conflation="1s", conflation_key=("/a", "/b")),
        "conflation=1s,conflation_key=[/a,/b]",
    ),
    (Options(fully_durable=True), "fully_durable"),
    (Options(live=True), "live"),
    (Options(max_backlog=10), "max_backlog=10"),
    (Options(no_empties=True, send_keys=True), "no_empties,send_keys"),
    (Options(no_sowkey=True), "no_sowkey"),
    (Options(non_regex_topic=True), "non_regex_topic"),
    (Options(oof=True), "oof"),
    (Options(pause=True), "pause"),
    (Options(rate="64KB"), "rate=64KB"),
    (Options(rate=".5X", rate_max_gap="2s"), "rate=.5X,rate_max_gap=2s"),
    (Options(replace=True), "replace"),
    (Options(resume=True), "resume"),
    (Options(select=("-/", "+/id")), "select=[-/,+/id]"),
    (Options(timestamp=True), "timestamp"),
    (Options(top_n=5, skip_n=0), "top_n=5,skip_n=0"),
    (
        Options(projection=("SUM(/a,/b) AS /c", "'x,]' AS /d"), grouping=("/k[0]",)),
        "projection=[SUM(/a,/b) AS /c,'x,]' AS /d],grouping=[/k[0]]",
    ),
    (Options(ack_conflation="100ms", pretty=True), "ack_conflation=100ms,pretty"),
    (Options(cancel=True), "cancel"),
    (Options(expire=True), "expire"),
    (Options(lease_extension="60s"), "lease_extension=60s"),
    (Options(send_empties=True), "send_empties"),
]


@pytest.mark.row("CC20")
@pytest.mark.parametrize(("options", "wire"), PAIRS)
def test_options_are_written_and_read_back(options: Options, wire: str) -> None:
    assert str(options) == wire
    assert Options.parse(wire) == options
    assert bool(options) == bool(wire)


@pytest.mark.row("CC20")
def test_an_empty_list_is_no_option_like_an_empty_tuple() -> None:
    assert str(Options(select=[], projection=())) == ""  # type: ignore[arg-type]  # a list also works


def test_several_options_are_written_in_one_order() -> None:
    options = Options(top_n=3, oof=True, conflation=0.25, no_sowkey=True)
    assert str(options) == "conflation=250ms,no_sowkey,oof,top_n=3"
    assert repr(options) == "Options(conflation=0.25, no_sowkey=True, oof=True, top_n=3)"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("live,", Options(live=True)),
        (",, oof ,none, replace,", Options(oof=True, replace=True)),
        ("none", Options()),
        ("top_n=1,top_n=2", Options(top_n=2)),
        ("select = [ -/ , +/id ,]", Options(select=("-/", "+/id"))),
        ("conflation=1s,conflation_key=/id", Options(conflation="1s", conflation_key=("/id",))),
        ("rate=1000", Options(rate="1000")),
    ],
)
def test_option_strings_are_read_with_patience(text: str, options: Options) -> None:
    assert Options.parse(text) == options


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("oof,speed=3", "'speed'"),
        ("LIVE", "'LIVE'"),
        ("live=yes", "live takes no value"),
        ("top_n", "top_n needs a value"),
        ("rate=", "rate needs a value"),
        ("=3", "''"),
        ("top_n=x", "top_n is a whole number"),
        ("top_n=-1", "top_n is a whole number"),
        ("top_n=" + "9" * 30, "top_n is a whole number"),
        ("max_backlog=0", "max_backlog is a whole number of at least 1"),
        ("select=[-/,+/id", "brackets or quotes"),
        ("select=-/]", "brackets or quotes"),
        ("grouping=['/a]", "brackets or quotes"),
        ("select=[id]", "directive"),
        ("bookmark_not_found=later", "'later'"),
        ("conflation=soon", "'soon'"),
        ("rate=fast", "'fast'"),
        ("rate_max_gap=1s", "needs rate"),
        ("lease_extension=x", "'x'"),
        ("ack_conflation=auto", "'auto'"),
        ("__init__", "there is no option"),
        ("conflation_s=1", "there is no option"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Options.parse(text)


@pytest.mark.row("CC21")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"live": True, "rate": "10"}, "live and rate exclude"),
        ({"live": True, "pause": True}, "live and pause exclude"),
        ({"live": True, "resume": True}, "live and resume exclude"),
        ({"pause": True, "resume": True}, "pause and resume exclude"),
        ({"projection": ("/a",), "select": ("-/",)}, "projection and select exclude"),
        ({"cancel": True, "expire": True}, "cancel and expire exclude"),
        ({"cancel": True, "lease_extension": 1}, "cancel and lease_extension exclude"),
        ({"expire": True, "lease_extension": 1}, "expire and lease_extension exclude"),
        ({"rate_max_gap": 1}, "rate_max_gap needs rate"),
        ({"conflation_key": ("/a",)}, "conflation_key needs conflation"),
        ({"skip_n": 1}, "skip_n needs top_n"),
        ({"grouping": ("/a",)}, "grouping needs projection"),
        ({"rate": "2Y"}, "'2Y'"),
        ({"rate": 0}, "more than 0"),
        ({"rate": -1.0}, "more than 0"),
        ({"conflation": -1}, "zero or above"),
        ({"top_n": -1}, "top_n is a whole number of at least 0"),
        ({"select": "-/"}, "tuple"),
        ({"grouping": (" ",), "projection": ("/a",)}, "grouping is a tuple"),
        ({"projection": ("x" * 65537,)}, "65536"),
    ],
)
def test_nonsense_is_refused_when_the_value_is_made(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**given)


def test_intervals_and_rates_can_be_had_as_numbers() -> None:
    options = Options.parse("conflation=100ms,rate=2X,rate_max_gap=1m")
    assert (options.conflation_s, options.rate_max_gap_s) == (0.1, 60)
    assert options.rate_limit == Rate(2, RateUnit.SPEED)
    assert Options(rate=100).rate_limit == Rate(100, RateUnit.MESSAGES)
    assert Options(ack_conflation=0.5, lease_extension="1s").ack_conflation_s == 0.5
    assert Options(lease_extension="1s").lease_extension_s == 1
    empty = Options(conflation="none")
    assert (empty.conflation_s, empty.rate_limit, empty.rate_max_gap_s) == (None, None, None)


def test_an_endless_option_string_is_refused_before_it_is_read() -> None:
    with pytest.raises(UsageError, match=str(MAX_OPTIONS_LENGTH)):
        Options.parse("," * (MAX_OPTIONS_LENGTH + 1))


def test_options_are_values() -> None:
    assert Options(oof=True) == Options.parse("oof")
    assert len({Options(oof=True), Options.parse("oof")}) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("100ms", 0.1),
        ("250us", 0.00025),
        ("5ns", 5e-9),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("1w", 604800.0),
        ("0.5s", 0.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("100 MS", 0.1),
        ("3", 3.0),
        (" 3s ", 3.0),
        ("0s", 0.0),
    ],
)
def test_intervals_are_read_in_every_unit(text: str, seconds: float) -> None:
    assert parse_interval(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 year", "1kb", "1s2", "1_0s", "inf", "nan", "1e3s", "9" * 30]
)
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="interval like 100ms"):
        parse_interval(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (1, "1s"), (90, "90s"), (0.1, "100ms"), (1.5, "1500ms")),
        *((0.00025, "250us"), (5e-9, "5ns")),
    ],
)
def test_intervals_are_written_short_and_exact(seconds: float, text: str) -> None:
    assert format_interval(seconds) == text
    assert parse_interval(text) == seconds


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan")])
def test_what_is_no_duration_cannot_be_written(seconds: float) -> None:
    with pytest.raises(UsageError, match="zero or above"):
        format_interval(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("7", 7), ("1kb", 1024), ("64KB", 65536), ("1.5mb", 1572864), ("1gb", 2**30)),
        *(("1tb", 2**40), ("2k", 2000), ("3M", 3 * 10**6)),
    ],
)
def test_sizes_are_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "kb", "1x", "1s", "-1kb"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="size like 64KB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", Rate(1000, RateUnit.MESSAGES)),
        ("2k", Rate(2000, RateUnit.MESSAGES)),
        ("64KB", Rate(65536, RateUnit.BYTES)),
        (".5X", Rate(0.5, RateUnit.SPEED)),
        ("2x", Rate(2, RateUnit.SPEED)),
    ],
)
def test_rates_count_messages_bytes_or_speed(text: str, rate: Rate) -> None:
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "X", "fast", "1s", "-1", "1bb"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="rate like 1000, 64KB or 2X"):
        Rate.parse(text)


@pytest.mark.parametrize("text", ["0", "0X", "0.0KB"])
def test_a_rate_of_nothing_is_a_pause(text: str) -> None:
    with pytest.raises(UsageError, match="pause"):
        Rate.parse(text)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(1e-7, "rate=0.0000001"), (0.5, "rate=0.5"), (1000.0, "rate=1000.0")],
)
def test_a_rate_is_written_without_an_exponent(rate: float, text: str) -> None:
    assert str(Options(rate=rate)) == text
    assert Options.parse(text).rate_limit == Options(rate=rate).rate_limit


def test_an_unknown_option_is_answered_with_one_like_it() -> None:
    with pytest.raises(UsageError, match="no option 'conflaton': did you mean 'conflation'"):
        Options.parse("conflaton=1s")
