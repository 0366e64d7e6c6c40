"""Errors become one line and one exit code."""

from __future__ import annotations

import click
import pytest

from haclient.cli.exits import ExitCode, Interrupted, complain, exit_code_of, one_line
from haclient.errors import (
    AuthenticationError,
    BadFilter,
    ConnectionRefused,
    HAClientError,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    TimedOut,
    UsageError,
)

CODES: list[tuple[BaseException, int]] = [
    (UsageError("no"), 2),
    (click.BadParameter("no"), 2),
    (click.FileError("file"), 1),
    (click.Abort(), 130),
    (KeyboardInterrupt(), 130),
    (Interrupted("stopped"), 130),
    (StoreLocked("file", "owner", "in use"), 75),
    (StoreCorrupt("file", 0, "zeros"), 1),
    (StoreFull("full"), 1),
    (TimedOut("late"), 3),
    (ConnectionRefused("nobody"), 1),
    (AuthenticationError("who"), 1),
    (BadFilter("what"), 1),
    (OSError(2, "No such file", "x"), 1),
]


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(("error", "code"), CODES, ids=[repr(error) for error, _ in CODES])
def test_each_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_of(error) == (code, error)


def test_a_defect_of_ours_is_not_hidden() -> None:
    assert exit_code_of(AttributeError("oops")) is None
    assert exit_code_of(ExceptionGroup("", [UsageError("x"), KeyError("y")])) is None


def test_of_several_errors_the_one_that_stands_first_in_the_table_speaks() -> None:
    locked, refused = StoreLocked("file", "", "in use"), ConnectionRefused("nobody")
    group = ExceptionGroup("", [refused, ExceptionGroup("", [locked])])
    assert exit_code_of(group) == (ExitCode.STORE_IN_USE, locked)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError("two\n  lines"), "two lines"),
        (OSError(2, "No such file", "x"), "x: No such file"),
        (OSError("odd"), "odd"),
        (KeyboardInterrupt(), "interrupted"),
        (HAClientError(), "HAClientError"),
        (click.UsageError("bad\nusage"), "bad usage"),
    ],
    ids=["ours", "file", "odd", "interrupt", "empty", "click"],
)
def test_an_error_is_told_in_one_line(error: BaseException, line: str) -> None:
    assert one_line(error) == line


def test_complaints_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    complain("it is late", kind="note")
    assert capsys.readouterr() == ("", "haclient: note: it is late\n")


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    complain("nobody listens")
