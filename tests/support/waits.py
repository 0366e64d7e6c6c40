"""The table of the longest waits that tests have measured and do not judge."""

from __future__ import annotations

from typing import Final

import pytest

LONGEST_WAIT: Final = "longest wait of another client, ms"
"""The property that such a test records."""

_ROWS: Final = 10


def write_longest_waits(reporter: pytest.TerminalReporter) -> None:
    """Print the tests with the longest ones, if any were measured."""
    found = [
        (value, report.nodeid)
        for reports in reporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, value in report.user_properties
        if name == LONGEST_WAIT and report.when == "teardown"
    ]
    if found:
        reporter.section(LONGEST_WAIT)
    for value, nodeid in sorted(found, reverse=True)[:_ROWS]:
        reporter.write_line(f"{value:8.1f}  {nodeid}")
