"""Traces outlive their writer, and a reader follows them while they grow."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from haclient.cli.demo.trace import MAX_NUMBER, Mark, Step, TraceReader, TraceWriter
from support.process import Child

WRITE_AND_DIE = """
import os, signal, sys
from pathlib import Path
from haclient.cli.demo.trace import TraceWriter
trace = TraceWriter(Path(sys.argv[1]), 100_000)
for number in range(30_000):
    trace.delivered(number)
    trace.discarding(number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_reader_sees_each_mark_once_and_in_order(tmp_path: Path) -> None:
    reader = TraceReader(tmp_path / "trace")
    assert reader.read_new() == []
    with TraceWriter(tmp_path / "trace", 10) as trace:
        assert reader.read_new() == []
        trace.delivered(0)
        trace.delivered(MAX_NUMBER)
        assert reader.read_new() == [(Mark.DELIVERED, 0), (Mark.DELIVERED, MAX_NUMBER)]
        trace.discarding(MAX_NUMBER)
        trace.discarded(MAX_NUMBER)
    marks = [(Mark.DISCARDING, MAX_NUMBER), (Mark.DISCARDED, MAX_NUMBER)]
    assert reader.read_new() == marks
    assert reader.read_new() == []


def test_every_mark_survives_a_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    with Child([sys.executable, "-c", WRITE_AND_DIE, str(path)]) as child:
        assert child.wait() == -signal.SIGKILL
    expected: list[Step] = []
    for number in range(30_000):
        expected += [(Mark.DELIVERED, number), (Mark.DISCARDING, number)]
    assert TraceReader(path).read_new() == expected


def test_a_full_trace_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace", 1) as trace:
        trace.delivered(1)
        with pytest.raises(IndexError):
            trace.delivered(2)


def test_a_trace_is_never_continued(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace", 1):
        pass
    with pytest.raises(FileExistsError):
        TraceWriter(tmp_path / "trace", 1)
    assert [each.name for each in tmp_path.iterdir()] == ["trace"]
