"""Errors become one line and one exit code."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
import trio
import trio.lowlevel
import trio.testing

from haclient.cli.output import OutputWriter
from haclient.cli.termination import (
    ExitCode,
    Interrupted,
    exit_code_of,
    hidden_warnings,
    note_new_directories,
    one_line,
    print_error,
    print_failure,
    run_before_end,
    run_until_signal,
)
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
    print_error("it is late", kind="note")
    assert capsys.readouterr() == ("", "haclient: note: it is late\n")


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Closed())
    print_error("nobody listens")


def test_the_failure_of_one_part_is_printed_and_has_the_code_of_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert print_failure(ValueError("odd")) == ExitCode.FAILURE
    assert print_failure(BadFilter("/a >")) == ExitCode.FAILURE
    assert print_failure(StoreLocked("store", "other", "in use")) == ExitCode.STORE_IN_USE
    assert capsys.readouterr().err.count("haclient: error: ") == 3


def unreachable() -> str:
    raise AssertionError("nothing was stopped")


def test_work_that_ends_gives_its_own_code() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert run_until_signal(work, unreachable) == 7


@pytest.fixture
def hangup() -> Iterator[Callable[[signal.Handlers], object]]:
    """Sets what SIGHUP does in this process; a test run under nohup has it ignored."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_that_nohup_ignores_ends_nothing(
    hangup: Callable[[signal.Handlers], object],
) -> None:
    async def work() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await trio.lowlevel.checkpoint()
        return 0

    hangup(signal.SIG_IGN)
    assert run_until_signal(work, unreachable) == 0
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_a_hangup_cancels_the_work(hangup: Callable[[signal.Handlers], object]) -> None:
    async def work() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await trio.sleep_forever()
        return 0

    hangup(signal.SIG_DFL)
    with pytest.raises(Interrupted, match="after 3 messages"):
        run_until_signal(work, lambda: "after 3 messages", is_service=True)


def test_the_line_of_an_error_has_its_notes_and_no_number_of_an_errno() -> None:
    error = OSError(28, "No space left on device")
    assert one_line(error) == "No space left on device"
    error.add_note("server tcp://a:1/amps")
    assert one_line(error) == "No space left on device (server tcp://a:1/amps)"


def test_warnings_that_a_command_words_itself_are_hidden_while_it_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = logging.getLogger("haclient.some")
    with hidden_warnings("haclient.some", r"attempt \d+"):
        source.warning("attempt %d", 1)
        source.warning("%s; more", "attempt 1")  # put together elsewhere
        source.warning("another")
    source.warning("attempt %d", 2)
    assert [record.getMessage() for record in caplog.records] == ["another", "attempt 2"]


@pytest.mark.parametrize("is_service", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_the_work_and_sigterm_is_in_order_for_a_service(
    number: int, *, is_service: bool
) -> None:
    ended: list[str] = []

    async def work() -> int:
        os.kill(os.getpid(), number)
        try:
            await trio.sleep_forever()
        finally:
            ended.append("in order")

    if is_service and number == signal.SIGTERM:
        assert run_until_signal(work, unreachable, is_service=True) == ExitCode.OK
    else:
        with pytest.raises(Interrupted, match="interrupted"):
            run_until_signal(work, is_service=is_service)
    assert ended == ["in order"]


def test_work_that_finishes_in_spite_of_a_signal_is_done() -> None:
    async def work() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        with trio.CancelScope(shield=True):
            for _ in range(10):
                await trio.lowlevel.checkpoint()
        return 0

    assert run_until_signal(work, unreachable) == 0


def test_an_error_of_the_work_leaves_it() -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_until_signal(work, unreachable)


def test_work_whose_output_nobody_reads_any_more_is_done() -> None:
    reader, writer = os.pipe()

    async def work() -> int:
        os.close(reader)
        await trio.sleep_forever()

    try:
        assert run_until_signal(work, unreachable, output=OutputWriter(writer)) == ExitCode.OK
    finally:
        os.close(writer)


@pytest.mark.parametrize(("is_service", "kind"), [(True, "note"), (False, "error")])
def test_who_interrupts_work_without_an_end_has_made_no_mistake(
    capsys: pytest.CaptureFixture[str], *, is_service: bool, kind: str
) -> None:
    async def work() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()
        return 0

    with pytest.raises(Interrupted) as caught:
        run_until_signal(work, lambda: "after 3 messages", is_service=is_service)
    assert print_failure(caught.value) == 130
    assert capsys.readouterr().err == f"haclient: {kind}: after 3 messages\n"


def test_directories_that_come_with_a_store_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_new_directories(tmp_path / "store")
    assert capsys.readouterr().err == ""
    path = tmp_path / "no" / "such" / "store"
    note_new_directories(path)
    assert capsys.readouterr().err == (
        f"haclient: note: --store {path}: creates the directory {path.parent}\n"
    )


def test_work_with_an_output_has_its_own_end() -> None:
    reader, writer = os.pipe()

    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 3

    async def fail() -> int:
        await trio.lowlevel.checkpoint()
        raise TimedOut("late")

    try:
        assert run_until_signal(work, unreachable, output=OutputWriter(writer)) == 3
        with pytest.raises(TimedOut, match="late"):
            run_until_signal(fail, unreachable, output=OutputWriter(writer))
    finally:
        os.close(reader)
        os.close(writer)


def test_work_that_ends_first_and_has_failed_is_not_waited_for_by_a_signal() -> None:
    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise TimedOut("late")

    async def work() -> int:
        with pytest.raises(TimedOut):
            await run_before_end(fail)
        os.kill(os.getpid(), signal.SIGINT)
        with trio.move_on_after(10):
            await trio.sleep_forever()
        return 0

    with pytest.raises(Interrupted):
        run_until_signal(work)


def test_a_signal_counts_although_the_reader_leaves_while_work_ends() -> None:
    reader, writer = os.pipe()
    output = OutputWriter(writer)

    async def until_both() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                os.close(reader)
                await output.wait_closed()
                await trio.testing.wait_all_tasks_blocked()

    async def work() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await run_before_end(until_both)
        return 0

    try:
        with pytest.raises(Interrupted):
            run_until_signal(work, output=output)
    finally:
        os.close(writer)
