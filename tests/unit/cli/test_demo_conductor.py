"""A whole demo, small; and what is said when there can be none."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from haclient.cli.demo_conductor import conduct
from haclient.cli.demo_plan import KILLS, MIN_MESSAGES
from haclient.cli.demo_processes import DemoFailed
from haclient.cli.progress import Progress

FAIL_OVER = ["killed broker", "delivers", "is back and has caught up"]
RESTART = ["killed the subscriber", "goes on where its store says"]


async def test_a_small_demo_runs_its_course() -> None:
    done: list[int] = []
    said: list[str] = []
    progress = Progress(tell=done.append, say=said.append)
    verdict = await conduct(MIN_MESSAGES, progress)
    assert verdict.good, verdict.told()
    assert verdict.published == verdict.delivered == MIN_MESSAGES
    assert (verdict.failovers, verdict.restarts) == (3, 1)
    assert verdict.failover_ms_p50 > 0
    assert done[-1] == MIN_MESSAGES
    assert len(KILLS) == 4
    for line, words in zip(said, [*FAIL_OVER, *RESTART, *FAIL_OVER, *FAIL_OVER], strict=True):
        assert words in line


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
        return not list(self.files.iterdir())


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage(tmp_path)
    monkeypatch.setattr(sys, "executable", str(stage.script))
    monkeypatch.setattr(tempfile, "tempdir", str(stage.files))
    return stage


async def test_a_process_that_fails_ends_the_demo_with_its_words(stage: Stage) -> None:
    stage.plays("echo no such thing >&2; exit 3")
    with pytest.raises(DemoFailed, match=r"the broker (east|west) ended with 3: no such thing"):
        await conduct(MIN_MESSAGES, Progress())
    assert stage.is_empty


async def test_a_demo_in_which_nothing_moves_ends(stage: Stage) -> None:
    stage.plays("exec sleep 1000")
    with pytest.raises(DemoFailed, match=r"nothing has moved for 0\.1 s"):
        await conduct(MIN_MESSAGES, Progress(), patience_s=0.1)
    assert stage.is_empty
