"""A pytest plugin: the index of requirement rows, long runs, and no skip that hides a gap in CI.

`--rows` prints which tests show which row and runs none. `--strict-skips`, which is the default
where the environment has CI, makes the run fail when a test was skipped for want of a tool.
`--full` runs everything at its full length: tests that are marked `full`, and the long form of
those that ask `is_full`; without it random tests run a third of their examples and seeds.
`--part N` runs a part of what takes long: N chooses it, which is the hash of a commit in `nox`. It
is one of `PARTS` of the tests that are marked `in_parts`, and one of the shards of PySpark.
"""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.lengths import load_profile
from support.rows import read_rows, row_index
from support.waits import write_longest_waits

__all__ = [
    "full_length",
    "is_full",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
]

PARTS: Final = 3
"""How many parts the tests that are marked `in_parts` have."""

# A skip that begins so is a property of the platform. Every other one hides a missing tool.
ALLOWED_SKIP = "not applicable:"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("haclient")
    group.addoption(
        "--rows", action="store_true", help="print which tests show which row; run none"
    )
    group.addoption(
        "--strict-skips",
        action="store_true",
        default=bool(os.environ.get("CI")),
        help="fail when a test was skipped for want of a tool (default where CI is set)",
    )
    group.addoption(
        "--full", action="store_true", help="run every test, and each at its full length"
    )
    group.addoption(
        "--part",
        type=int,
        help="of what takes long run the part that this number chooses; by default all of it",
    )
    group.addoption(
        "--store-steps",
        type=int,
        default=0,
        help="let the state machines of the stores do at least so many steps",
    )
    group.addoption(
        "--kills", type=int, default=0, help="kill each process of the crash tests so many times"
    )


def is_full(config: pytest.Config) -> bool:
    """Whether a test that has a short form runs at its full length."""
    return bool(config.getoption("--full"))


@pytest.fixture(scope="session")
def full_length(request: pytest.FixtureRequest) -> bool:
    """Whether a test that has a short form runs at its full length."""
    return is_full(request.config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `--full` runs, and other parts; the index of rows has them all."""
    if is_full(config) or config.getoption("--rows"):
        return
    part = config.getoption("--part")
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        is_left_out = item.get_closest_marker("full") or (
            part is not None
            and item.get_closest_marker("in_parts")
            and part_of(item.nodeid) != part % PARTS
        )
        (left_out if is_left_out else kept).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def part_of(nodeid: str) -> int:
    """The part of a test: it depends on its name alone, so that other tests do not move it."""
    return zlib.crc32(nodeid.encode()) % PARTS


def pytest_configure(config: pytest.Config) -> None:
    load_profile(full=is_full(config))
    # The index is printed by one process: workers of pytest-xdist have no terminal.
    if config.getoption("--rows"):
        config.option.dist = "no"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Print the index instead of running the tests."""
    if not session.config.getoption("--rows"):
        gc.collect()
        gc.freeze()  # thousands of tests, which no later collection has to look at
        return
    words = read_rows(Path(__file__).parents[1] / "rows.txt")
    lines: list[str] = []
    for row, nodeids in row_index(session.items).items():
        lines += [
            f"{row}  {words.get(row, '(not listed as done)')}",
            *(f"    {n}" for n in nodeids),
        ]
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    reporter.write_line("\n".join(["", *lines]))
    session.items.clear()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A hidden gap is a failure."""
    if session.config.getoption("--rows"):
        session.exitstatus = pytest.ExitCode.OK
    elif session.exitstatus == pytest.ExitCode.OK and list(hidden_gaps(session.config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    write_longest_waits(terminalreporter)
    for gap in hidden_gaps(config):
        terminalreporter.write_line(f"SKIPPED, which --strict-skips forbids: {gap}", red=True)


def hidden_gaps(config: pytest.Config) -> Iterator[str]:
    """The reasons of all skips that are not a property of the platform."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or not config.getoption("--strict-skips"):
        return
    for report in reporter.stats.get("skipped", ()):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(ALLOWED_SKIP):
            yield f"{report.nodeid}: {reason}"
