"""The report: one page that needs nothing else, tables, and a verdict for machines."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from haclient.pyspark.jobs.report_words import figure_meaning, kind_meaning
from haclient.pyspark.jobs.reports import (
    MAX_TABLE_ROWS,
    histogram,
    plot,
    render,
    write_report,
)
from haclient.pyspark.jobs.verdict import Audit, FindingKind, Violation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
Rows = list[dict[str, Any]]
EVIL = "<script>alert('x')</script>&\"<svg onload=1>"


class Page(HTMLParser):
    """The tags of a page, which must all be closed, and what they refer to."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [f"{name}={value}" for name, value in attrs if name in {"src", "href"}]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


def bad(detail: str = "logged before at position 3", count: int = 1) -> Audit:
    violation = Violation(
        kind=FindingKind.DUPLICATE,
        bookmark="7|31|",
        topic=EVIL,
        position=121,
        timestamp=START,
        client="desk",
        sub_id="s1",
        detail=detail,
    )
    counts = {FindingKind.DUPLICATE: count, FindingKind.LOST: 0}
    return Audit(counts=counts, violations=[violation] * count, facts={"messages": 1_234_567})


def test_a_good_page_says_what_was_looked_for() -> None:
    result = Audit(counts={FindingKind.DUPLICATE: 0, FindingKind.LOST: 0}, facts={"messages": 5})
    page = Page(render(result, {}, title="Nightly"))
    assert "Good." in page.text
    assert "Looked for: duplicate, lost." in page.text
    assert "table" in page.tags


def test_a_bad_page_names_every_violation_with_its_message() -> None:
    page = Page(render(bad(), {}, title="Nightly"))
    assert "Bad. 1 violation: 1 duplicate." in page.text
    assert "7|31|" in page.text
    assert "logged before at position 3" in page.text
    assert "1,234,567" in page.text


def test_a_page_names_what_could_not_be_compared() -> None:
    reasons = ["no delivery to 's1'", EVIL]
    for result, verdict in ((Audit(), "Not verified. No violation was found"), (bad(), "Bad. 1")):
        result.not_verified = reasons
        page = Page(render(result, {}, title="Nightly"))
        assert verdict in page.text
        assert "Good." not in page.text
        assert all(reason in page.text for reason in reasons)


def test_a_page_needs_nothing_but_itself_and_escapes_every_text() -> None:
    times = [START, START + timedelta(seconds=5)]
    rows: Rows = [
        {"stage": EVIL, "start": at, "p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0} for at in times
    ]
    bars: Rows = [{"stage": EVIL, "bucket": 3, "messages": 9}]
    lag: Rows = [
        {"client": EVIL, "sub_id": EVIL, "start": at, "backlog": 3, "seconds_behind": None}
        for at in times
    ]
    publishers: Rows = [
        {
            "publisher_id": -7,
            "rows": 3,
            "first_sequence": 1,
            "last_sequence": 3,
            "first_position": 1,
            "last_position": 3,
        }
    ]
    tables = {
        "latency": rows,
        "latency_histogram": bars,
        "lag": lag,
        "publishers": publishers,
    }
    page = Page(render(bad(EVIL), tables, title=EVIL))
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert page.references == []
    assert page.text.count(EVIL) >= 5
    assert f"{2**64 - 7}|3|" in page.text


def test_a_page_shows_the_first_violations_of_many() -> None:
    text = render(bad(count=MAX_TABLE_ROWS + 50), {}, title="Nightly")
    assert text.count("7|31|") == MAX_TABLE_ROWS
    assert f"{MAX_TABLE_ROWS + 50} duplicate" in text
    assert f"The first {MAX_TABLE_ROWS} are shown." in text


def test_each_kind_of_violation_and_each_figure_is_explained() -> None:
    assert all(kind_meaning(kind).endswith(".") for kind in FindingKind)
    facts = {"is_whole": True, "seconds_per_point": 5, "left_suspect_runs": 0, "my figure": 1}
    page = Page(render(Audit(facts=facts), {}, title="Nightly"))
    for sentence in (
        "Whether the journal still has its beginning",
        "How many seconds each point",
        "had to be read again, row by row",
    ):
        assert sentence in page.text
    assert figure_meaning("right_not_compared").startswith("What may have been removed")


def test_what_was_measured_at_one_moment_is_no_plot_over_time() -> None:
    row = {"stage": "publish to ack", "start": START, "p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4}
    bars = [{"stage": "publish to ack", "bucket": 1, "messages": 7}]
    lag = {"client": "desk", "sub_id": "s1", "start": START, "backlog": 3, "seconds_behind": 1.0}
    tables: dict[str, Rows] = {"latency": [row], "latency_histogram": bars, "lag": [lag]}
    page = render(Audit(), tables, title="Nightly")
    assert (page.count("<svg"), page.count("<rect"), page.count("<polyline")) == (1, 1, 0)
    assert "Lag" not in page
    page = render(Audit(), {"latency": [row, row | {"start": START.replace(hour=10)}]}, title="")
    assert page.count("<polyline") == 4


def test_a_plot_draws_each_line_within_its_frame() -> None:
    points = [(1000.0 + n, float(n % 7)) for n in range(50)]
    svg = plot({"p50": points, "p99": [(1010.0, 3.0)], "no": []}, str)
    (line,) = re.findall(r'points="([^"]*)"', svg)
    pairs = [tuple(map(float, pair.split(","))) for pair in line.split()]
    assert len(pairs) == 50
    assert all(0 <= x <= 860 and 0 <= y <= 230 for x, y in pairs)
    assert pairs[0][0] < pairs[-1][0]
    assert pairs[6][1] < pairs[0][1]  # a greater value is higher up
    assert {"p99", "no"}.isdisjoint(re.sub(r"<[^>]*>", " ", svg).split())


def test_values_of_different_sizes_are_drawn_on_a_logarithmic_scale() -> None:
    points = [(1000.0 + n, 10.0**n) for n in range(4)]
    (line,) = re.findall(r'points="([^"]*)"', plot({"max": points}, str))
    heights = [float(pair.split(",")[1]) for pair in line.split()]
    steps = [before - after for before, after in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)


def test_the_longest_bar_is_the_most_frequent_time() -> None:
    rows: Rows = [{"bucket": n, "messages": m} for n, m in ((None, 2), (-11, 5), (-10, 50), (3, 1))]
    svg = histogram(rows)
    heights = [float(each) for each in re.findall(r'" height="([\d.]+)"', svg)]
    assert (len(heights), heights.index(max(heights))) == (3, 1)
    assert "<title>6.31 ms to 10 ms: 50</title>" in svg
    assert "2 took no time or less" in svg
    assert "<svg" not in histogram(rows[:1])


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_a_plot_of_one_value_is_drawn(value: float) -> None:
    assert "<polyline" in plot({"p50": [(1000.0, value), (1001.0, value)]}, str)


def test_a_plot_without_values_says_so() -> None:
    assert "Too little was measured" in plot({"p50": [(1.0, None)]}, str)


def test_the_largest_backlogs_are_found_among_all_subscriptions(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = Audit()
    result.tables["lag"] = spark.range(12 * 220).selectExpr(
        "format_string('desk %02d', id div 220) AS client",
        "'s1' AS sub_id",
        "timestamp_seconds(1769851800 + id % 220) AS start",
        "IF(id div 220 = 11, 1000000, id % 7) AS backlog",  # the last client is far behind
        "CAST(NULL AS DOUBLE) AS seconds_behind",
    )
    write_report(result, tmp_path)
    text = Page((tmp_path / "report.html").read_text()).text
    assert "The 8 subscriptions with the largest backlog of 12." in text
    assert "desk 11 s1" in text


@pytest.mark.row("AU8")
def test_a_report_is_a_page_tables_and_a_verdict_that_names_the_page(
    spark: SparkSession, tmp_path: Path
) -> None:
    result = bad()
    ddl = (
        "publisher_id BIGINT, rows BIGINT, first_sequence BIGINT, last_sequence BIGINT, "
        "first_position BIGINT, last_position BIGINT, suspect_runs BIGINT, overlaps BOOLEAN"
    )
    publishers = [(n, n, 1, n, 1, n, 0, False) for n in range(1, 400)]
    result.tables["publishers"] = spark.createDataFrame(publishers, ddl)
    result.facts["until"] = START + timedelta(hours=1)
    folder = tmp_path / "new" / "my report 100%25"
    returned = write_report(result, folder, title="Nightly")
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict == returned
    assert (verdict["verdict"], verdict["violations"]) == ("bad", {"duplicate": 1, "lost": 0})
    assert verdict["facts"]["until"] == "2026-01-31T10:30:00+00:00"
    page = (folder / "report.html").read_bytes()
    assert verdict["report_sha256"] == hashlib.sha256(page).hexdigest()
    assert "399|1|" in page.decode()  # the busiest publisher
    assert spark.read.parquet(f"{folder}/tables/publishers").count() == 399
    (row,) = spark.read.parquet(f"{folder}/tables/violations").collect()
    assert (row.kind, row.bookmark, row.position) == ("duplicate", "7|31|", 121)
