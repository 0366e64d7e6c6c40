"""A whole demo, small; and what is said when there can be none."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from haclient.cli.app import run
from haclient.cli.demo.pace import MIN_MESSAGES
from haclient.cli.demo.processes import DemoFailed
from haclient.cli.demo.run import KILLS, KillTarget, run_demo
from haclient.cli.demo.trace import Mark, Measures, Step, Verdict, judge
from haclient.cli.output import Progress
from support.documents import blocks

ROOT = Path(__file__).parents[4]


def test_there_are_at_least_two_fail_overs_and_a_restart() -> None:
    assert KILLS.count(KillTarget.PRIMARY) >= 2
    assert KILLS.count(KillTarget.SUBSCRIBER) >= 1


FAIL_OVER = ["killed broker", "delivers", "is back and has caught up"]
RESTART = ["killed the subscriber", "resumes where its store ends"]


def shape(lines: list[str]) -> list[str]:
    """The lines without their numbers."""
    return [re.sub(r"\d+(\.\d+)?", "N", line) for line in lines]


@pytest.mark.row("CLI9", "RE8")
async def test_a_small_demo_runs_its_course_as_its_page_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done: list[int] = []
    said: list[str] = []
    progress = Progress(update=done.append, report=said.append)
    verdict = await run_demo(MIN_MESSAGES, progress)
    assert verdict.is_good, verdict.as_text()
    assert verdict.published == verdict.delivered == MIN_MESSAGES
    assert (verdict.failovers, verdict.restarts) == (3, 1)
    assert verdict.failover_ms_p50 > 0
    assert done[-1] == MIN_MESSAGES
    assert len(KILLS) == 4
    for line, words in zip(said, [*FAIL_OVER, *RESTART, *FAIL_OVER, *FAIL_OVER], strict=True):
        assert words in line
    printed = [*said, *verdict.as_text().splitlines()]
    assert shape(printed) == shape(shown_in("docs/demo.md"))
    last = shown_in("README.md")
    assert shape(printed[-len(last) :]) == shape(last)
    assert files_in(tmp_path) == []


def shown_in(page: str) -> list[str]:
    found = blocks((ROOT / page).read_text(encoding="utf-8"))
    return next(each.text for each in found if each.language == "text").splitlines()


def files_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


class Stage:
    """A place for a demo whose workers are a shell script; its temporary files go to `files`."""

    def __init__(self, directory: Path) -> None:
        self.script = directory / "python"
        self.files = directory / "files"
        self.files.mkdir()

    def plays(self, script: str) -> None:
        """Every worker does this."""
        self.script.write_text(f"#!/bin/sh\n{script}\n")
        self.script.chmod(0o700)

    @property
    def is_empty(self) -> bool:
        return not files_in(self.files)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(sys, "executable", str(stage.script))
    monkeypatch.setattr(tempfile, "tempdir", str(stage.files))
    return stage


async def test_a_process_that_fails_ends_the_demo_with_its_words(stage: Stage) -> None:
    stage.plays("echo no such thing >&2; exit 3")
    with pytest.raises(DemoFailed, match=r"the broker (east|west) ended with 3: no such thing"):
        await run_demo(MIN_MESSAGES, Progress())
    assert stage.is_empty


async def test_processes_that_fail_at_the_same_moment_are_one_failure(stage: Stage) -> None:
    started, may_end = stage.script.with_name("started"), stage.script.with_name("may_end")
    started.touch()
    stage.plays(f"""
        echo $$ >> {started}
        while [ ! -e {may_end} ]; do sleep 0.01; done
        echo no such thing >&2; exit 3""")

    async def end_both() -> None:
        while len(started.read_text().split()) < 2:  # noqa: ASYNC110  written by processes
            await trio.sleep(0.01)
        may_end.touch()
        # The event loop is held up until both have ended, and so learns of both at once.
        for pid in started.read_text().split():
            os.waitid(os.P_PID, int(pid), os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222  blocks the loop

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_both)
        with pytest.raises(DemoFailed, match=r"the broker (east|west) ended with 3: no such thing"):
            await run_demo(MIN_MESSAGES, Progress())
    assert stage.is_empty


async def test_a_demo_in_which_nothing_moves_ends(stage: Stage) -> None:
    stage.plays("exec sleep 1000")
    with pytest.raises(DemoFailed, match=r"nothing has moved for 0\.1 s"):
        await run_demo(MIN_MESSAGES, Progress(), patience_s=0.1)
    assert stage.is_empty


GOOD: list[Step] = [(mark, number) for number in range(3) for mark in Mark]


@pytest.fixture(
    params=[
        pytest.param(("good", GOOD, 0), id="good"),
        pytest.param(("lost", GOOD[:-3], 1), id="lost"),
        pytest.param(("duplicated", [*GOOD, GOOD[6]], 1), id="duplicated"),
        pytest.param(("out_of_order", [*GOOD[3:6], *GOOD[:3], *GOOD[6:]], 1), id="disorder"),
    ]
)
def traced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[Step], int]:
    """A trace in the place of a run: what is wrong with it, the trace, and the exit code."""
    name, trace, code = request.param

    async def run_demo(messages: int, progress: Progress) -> Verdict:
        assert messages == 1234
        progress.report("killed broker east")
        return judge(3, [trace], Measures(failover_ms=[4.0, 6.0], restarts=1, seconds=1.0))

    monkeypatch.setattr("haclient.cli.demo.run.run_demo", run_demo)
    return name, trace, code


def test_the_exit_code_is_the_verdict(
    traced: tuple[str, list[Step], int], capfd: pytest.CaptureFixture[str]
) -> None:
    fault, _, code = traced
    assert run(["demo", "--messages", "1234", "--json"]) == code
    out, err = capfd.readouterr()
    [line] = out.splitlines()
    found = json.loads(line)
    wrong = [name for name in ("lost", "duplicated", "out_of_order") if found[name]]
    assert wrong == ([] if fault == "good" else [fault])
    assert (found["failovers"], found["failover_ms_p50"]) == (2, 5.0)
    assert err == ""


def test_the_verdict_is_told_in_words(
    traced: tuple[str, list[Step], int], capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, code = traced
    assert run(["demo", "--messages", "1234"]) == code
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "killed broker east"
    assert out.count("NOT GOOD") == code
    assert err == ""


@pytest.mark.parametrize("messages", ["0", "999", "-1", "many"])
def test_too_few_messages_are_a_mistake(messages: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--messages", messages]) == 2
    assert "--messages" in capfd.readouterr().err
