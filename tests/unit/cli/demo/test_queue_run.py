"""A whole demo of a queue, small; and what is said when there can be none."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec
import pytest

from haclient.cli.demo.pace import MIN_MESSAGES
from haclient.cli.demo.processes import DemoFailed
from haclient.cli.demo.queue_run import BROKER_KILLS, KILLS, WORKER_KILLS, run_queue_demo
from haclient.cli.output import Progress

KEYS = [
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


@pytest.mark.row("CLI9")
async def test_a_small_demo_runs_its_course() -> None:
    done: list[int] = []
    said: list[str] = []
    verdict = await run_queue_demo(
        MIN_MESSAGES, Progress(update=done.append, report=said.append), patience_s=60.0
    )
    assert verdict.is_good, verdict.as_text()
    assert verdict.published == verdict.done == done[-1] == MIN_MESSAGES
    assert (verdict.worker_kills, verdict.broker_kills) == (WORKER_KILLS, BROKER_KILLS)
    assert verdict.outage_ms_p50 > 0
    assert sum(line.startswith("killed ") for line in said) == KILLS
    assert sum(line.startswith("the broker is back") for line in said) == BROKER_KILLS
    assert list(msgspec.to_builtins(verdict)) == KEYS


async def test_a_process_that_fails_ends_the_demo_with_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, files = tmp_path / "python", tmp_path / "files"
    files.mkdir()
    script.write_text("#!/bin/sh\necho no such thing >&2; exit 3\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(tempfile, "tempdir", str(files))
    with pytest.raises(DemoFailed, match="the broker ended with 3: no such thing"):
        await run_queue_demo(MIN_MESSAGES, Progress())
    assert list(files.iterdir()) == []
