"""Figures of a run: medians, ratios and verdicts."""

from __future__ import annotations

import pytest

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")

from benchmarks.report import Report
from benchmarks.targets import TARGETS, compare


def test_a_ratio_is_the_quotient_of_medians_with_its_target_beside() -> None:
    report = Report({"python": "3"})
    for rate in (90.0, 100.0, 500.0):
        report.add({"publish file 100 B": rate}, "messages/s")
        report.add({"publish memory 100 B": 200.0}, "messages/s")
    [verdict] = compare(report.figures)
    assert (verdict.value, verdict.bound, verdict.met) == (0.5, 0.8, False)
    assert report.as_json()["rows"] == {
        "publish file 100 B": {
            "unit": "messages/s",
            "median": 100.0,
            "samples": [90.0, 100.0, 500.0],
        },
        "publish memory 100 B": {"unit": "messages/s", "median": 200.0, "samples": [200.0] * 3},
    }
    assert any(line.startswith("MISS publish file") for line in report.lines())


def test_upper_bounds_are_met_from_below() -> None:
    assert [verdict.met for verdict in compare({"bytes per bookmark record": 24.0})] == [True]
    assert [verdict.met for verdict in compare({"bytes per bookmark record": 24.1})] == [False]


def test_percentiles_are_in_microseconds_and_what_was_skipped_is_said() -> None:
    report = Report({})
    report.add({"ack p50": 1.0}, "messages/s")
    report.skipped["nats"] = "nats-py is not installed"
    assert report.units["ack p50"] == "us"
    assert list(report.lines())[-1] == "skipped nats: nats-py is not installed"


def test_each_target_is_named_once() -> None:
    names = [target.name for target in TARGETS]
    assert len(names) == len(set(names))


def test_samples_are_pooled_over_the_rounds_and_have_a_p99() -> None:
    report = Report({})
    for first in (1, 101):
        report.add(
            {"fail-over, first message": [float(n) for n in range(first, first + 100)]}, "ms"
        )
    assert report.figures["fail-over, first message"] == 100.5
    assert report.figures["fail-over, first message p99"] == 199
    verdicts = {verdict.name: verdict.met for verdict in compare(report.figures)}
    assert verdicts == {"fail-over, first message": False, "fail-over, first message p99": True}
    assert any("p99" in line and "200 samples" in line for line in report.lines())
