"""`haclient demo` from outside: its contract, and that it leaves nothing behind."""

from __future__ import annotations

import itertools
import json
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from support.process import LIMIT_S, haclient, start_haclient


@pytest.mark.full
@pytest.mark.row("CLI9", "RE8")
@pytest.mark.parametrize(
    "words", [("--messages", "5000"), ("--queue", "--messages", "1000")], ids=["topic", "queue"]
)
def test_nothing_is_lost_or_doubled_and_one_object_is_printed(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """The small form, in the test's own process, is in tests/unit/cli/demo."""
    result = haclient("demo", *words, "--json", environment={"TMPDIR": str(tmp_path)})
    assert (result.code, result.err) == (0, ""), result.err
    [line] = result.lines
    verdict = json.loads(line)
    assert verdict["published"] == int(words[-1])
    assert (verdict["lost"], verdict["duplicated"]) == (0, 0)
    assert list(tmp_path.iterdir()) == []


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


LONG = [
    pytest.param(stage, number, id=f"{stage}-{number.name}", marks=pytest.mark.full)
    for stage, number in itertools.product(STAGES, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    if (stage, number) not in {("starting", signal.SIGTERM), ("mid-stream", signal.SIGINT)}
]


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("stage", "number"), [("starting", signal.SIGTERM), ("mid-stream", signal.SIGINT), *LONG]
)
def test_a_signal_leaves_no_process_and_no_file(tmp_path: Path, stage: str, number: int) -> None:
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
