from __future__ import annotations

from typing import Any

import pytest

from haclient.errors import UsageError
from haclient.protocol.options import MAX_OPTIONS_LENGTH, Options, Rate, RateUnit

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
        ("top_n=x", "top_n is a number"),
        ("top_n=-1", "top_n is a number"),
        ("top_n=" + "9" * 30, "top_n is a number"),
        ("max_backlog=0", "max_backlog is too small"),
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
        ({"conflation": -1}, "from 0 on"),
        ({"top_n": -1}, "top_n is too small"),
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
