"""Progress is for terminals."""

from __future__ import annotations

import io

import pytest
from typing_extensions import override

from haclient.cli.progress import progress_bar


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


def test_a_pipe_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work", 10) as progress:
        progress.tell(5)
        progress.say("half of it")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("publish rows", 10) as progress:
        progress.say("it begins")
        progress.tell(10)
    assert "publish rows" in terminal.getvalue()
    assert "it begins" in terminal.getvalue()
