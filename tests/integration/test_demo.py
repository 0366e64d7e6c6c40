"""`haclient demo` from outside: its contract, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.documents import blocks
from support.process import LIMIT_S, haclient, start_haclient

README = Path(__file__).parents[2] / "README.md"
KEYS = [
    "published",
    "delivered",
    "lost",
    "duplicated",
    "redelivered_undiscarded",
    "out_of_order",
    "failovers",
    "restarts",
    "failover_ms_p50",
    "seconds",
]
QUEUE_KEYS = [
    "published",
    "done",
    "lost",
    "left",
    "duplicated",
    "redelivered",
    "repeated",
    "worker_kills",
    "broker_kills",
    "outage_ms_p50",
    "seconds",
]


@pytest.mark.row("CLI9", "RE8")
def test_everything_is_killed_and_nothing_lost_or_doubled(tmp_path: Path) -> None:
    result = haclient(
        *("demo", "--messages", "5000", "--json"), environment={"TMPDIR": str(tmp_path)}
    )
    assert result.code == 0, result.err
    assert result.err == ""
    [line] = result.lines
    verdict = json.loads(line)
    assert list(verdict) == KEYS
    assert verdict["published"] == verdict["delivered"] == 5000
    assert (verdict["lost"], verdict["duplicated"], verdict["out_of_order"]) == (0, 0, 0)
    assert verdict["failovers"] >= 2
    assert verdict["restarts"] >= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("CLI9")
def test_of_a_queue_no_job_is_lost_left_or_done_twice() -> None:
    result = haclient("demo", "--queue", "--messages", "1000", "--json")
    assert result.code == 0, result.err
    assert result.err == ""
    [line] = result.lines
    verdict = json.loads(line)
    assert list(verdict) == QUEUE_KEYS
    assert (verdict["lost"], verdict["left"], verdict["duplicated"]) == (0, 0, 0)


def shape(text: str) -> list[str]:
    """The lines without their numbers."""
    return [re.sub(r"\d+(\.\d+)?", "N", line) for line in text.splitlines()]


@pytest.mark.row("CLI9")
def test_a_pipe_gets_the_lines_of_the_readme() -> None:
    result = haclient("demo", "--messages", "1000")
    assert result.code == 0, result.err
    assert result.err == ""
    shown = next(b.text for b in blocks(README.read_text()) if b.language == "text")
    assert shape(result.out) == shape(shown)


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that other processes do."""
    deadline = time.perf_counter() + LIMIT_S
    while not condition():
        assert time.perf_counter() < deadline, f"it did not come true: {what}"
        select.select([], [], [], 0.02)


def workers_of(directory: Path) -> set[int]:
    """The processes whose command line names a file in this directory; the dead have none."""
    found: set[int] = set()
    for process in Path("/proc").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if process.name.isdigit() and str(directory).encode() in (
                (process / "cmdline").read_bytes()
            ):
                found.add(int(process.name))
    return found


def has_delivered(directory: Path) -> bool:
    return any(any(trace.read_bytes()[:4]) for trace in directory.glob("*/trace.*"))


STAGES: dict[str, Callable[[Path], bool]] = {
    "starting": lambda directory: bool(workers_of(directory)),
    "mid-stream": has_delivered,
}


def take_hangups() -> None:
    """A test run under nohup hands down that SIGHUP is ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=["int", "term", "hup"]
)
@pytest.mark.parametrize("stage", STAGES)
def test_a_signal_leaves_no_process_and_no_file(tmp_path: Path, number: int, stage: str) -> None:
    with start_haclient(
        "demo", environment={"TMPDIR": str(tmp_path)}, before_exec=take_hangups
    ) as demo:
        eventually(lambda: STAGES[stage](tmp_path), stage)
        assert demo.stop(number) == 130
        assert demo.err == "haclient: error: interrupted: there is no verdict\n"
        assert demo.rest() == []
    assert workers_of(tmp_path) == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.row("CLI9")
def test_even_a_killed_demo_leaves_no_process(tmp_path: Path) -> None:
    with start_haclient("demo", environment={"TMPDIR": str(tmp_path)}) as demo:
        eventually(lambda: has_delivered(tmp_path), "messages arrive")
        assert len(workers_of(tmp_path)) >= 3  # one that was killed may not be back yet
        demo.kill()
    eventually(lambda: not workers_of(tmp_path), "every worker has ended")
