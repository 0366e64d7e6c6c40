"""What is not told is not sent, and what is sent is understood."""

from __future__ import annotations

import msgspec

from haclient.cli.demo_reports import Assignment, Report


def test_a_report_tells_only_what_it_has_to_say() -> None:
    assert msgspec.json.encode(Report(ready=True)) == b'{"ready":true}'
    assert msgspec.json.encode(Report(published=0, persisted=0)) == b'{"published":0,"persisted":0}'


def test_both_sides_understand_each_other() -> None:
    for said in (
        Report(resumed_ns=17),
        Report(caught_up=True),
        Assignment(servers=("a", "b"), store="s", trace="t", marks=4),
    ):
        assert msgspec.json.decode(msgspec.json.encode(said), type=type(said)) == said
