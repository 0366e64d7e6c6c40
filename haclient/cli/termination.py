"""How a command ends: one table of exit codes, and one line on stderr.

User errors, refusals by the server and network failures print one line ``haclient: error: ...`` and
return a code that a shell script can act on. Only an error that is not in this table (a defect of
ours) keeps its traceback.

=====  ==========================================================================
code   meaning
=====  ==========================================================================
0      done
1      failed: refused by the server, connection lost, store or file unreadable
2      usage: this command line can never work as it was written
3      timed out, or fewer messages than were asked for
4      the verdict is bad: an audit or a comparison has found violations
75     the store is in use by another process or belongs to another client
130    interrupted before the work was done
=====  ==========================================================================

SIGTERM, SIGINT and SIGHUP cancel the work at its next `await`. What a command does between two
awaits (print, flush, discard) is therefore never torn. As in `haclient.run`, the first signal
restores the default handlers, so that a second one ends a process that cannot stop: one whose
standard output nobody reads, for example.
"""

from __future__ import annotations

import enum
import logging
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import cast

import click
import trio

from haclient.cli.output import OutputWriter
from haclient.errors import HAClientError, StoreLocked, TimedOut, UsageError
from haclient.service import first_signal
from haclient.transport.tasks import open_nursery


class ExitCode(enum.IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    TIMED_OUT = 3
    BAD_VERDICT = 4
    STORE_IN_USE = 75
    INTERRUPTED = 130


class Interrupted(HAClientError):
    """A signal ended the work early; the message says what is safely stored.

    Attributes:
        is_service: The work runs until it is stopped, so nothing is missing.
    """

    def __init__(self, text: str, *, is_service: bool = False) -> None:
        super().__init__(text)
        self.is_service = is_service


# Searched from the top, so a class must come before its bases.
_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (click.Abort, ExitCode.INTERRUPTED),
    (click.UsageError, ExitCode.USAGE),
    (click.ClickException, ExitCode.FAILURE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (Interrupted, ExitCode.INTERRUPTED),
    (UsageError, ExitCode.USAGE),
    (StoreLocked, ExitCode.STORE_IN_USE),
    (TimedOut, ExitCode.TIMED_OUT),
    (HAClientError, ExitCode.FAILURE),
    (OSError, ExitCode.FAILURE),
)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _rank(error: BaseException) -> int:
    """The index of the table's row for an error; -1 if there is none."""
    return next((i for i, (kind, _) in enumerate(_CODES) if isinstance(error, kind)), -1)


def exit_code_of(error: BaseException) -> tuple[ExitCode, BaseException] | None:
    """The exit code of an error and the one that decided it; `None` for a defect of ours.

    Of a group of errors, the one whose row is highest in the table counts; one unknown error makes
    the whole group a defect.
    """
    ranked = [(_rank(leaf), leaf) for leaf in _leaves(error)]
    if any(rank < 0 for rank, _ in ranked):
        return None
    rank, leaf = min(ranked, key=lambda pair: pair[0])
    return _CODES[rank][1], leaf


def one_line(error: BaseException) -> str:
    """The message of an error, in one line and never empty."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            text = "interrupted"
        case click.UsageError(ctx=click.Context(command_path=command)):
            text = f"{error.format_message().rstrip('.')}; try '{command} --help'"
        case click.ClickException():
            text = error.format_message()
        case OSError(strerror=str(reason), filename=str(name)):
            text = f"{name}: {reason}"
        case OSError(strerror=str(reason)):
            text = reason
        case _:
            text = str(error)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return " ".join(f"{text or type(error).__name__}{notes}".split())


def print_failure(error: BaseException) -> ExitCode:
    """Print an error of one part of the work and return its exit code."""
    known = exit_code_of(error)
    is_service = isinstance(error, Interrupted) and error.is_service
    print_error(one_line(error), kind="note" if is_service else "error")
    return ExitCode.FAILURE if known is None else known[0]


def note_new_directories(path: Path) -> None:
    """Print the directory that a store at this path creates: it may be a mistake."""
    missing = [each for each in path.absolute().parents if not each.exists()]
    if missing:
        print_error(f"--store {path}: creates the directory {missing[0]}", kind="note")


def print_error(text: str, *, kind: str = "error") -> None:
    """Write one line to stderr; a closed stderr is not an error."""
    try:
        sys.stderr.write(f"haclient: {kind}: {text}\n")
        sys.stderr.flush()
    except OSError:  # stderr is closed
        return


@contextmanager
def hidden_warnings(
    logger: str, pattern: str, *, while_: Callable[[], bool] = lambda: True
) -> Generator[None]:
    """Leave out warnings of the library that the command itself words better.

    Args:
        logger: The logger's name.
        pattern: A regular expression for the beginning of the messages as they are printed: how the
            library puts them together is its own matter.
        while_: Called for each such message; it is shown if this returns false.
    """
    begins = re.compile(pattern)

    def is_shown(record: logging.LogRecord) -> bool:
        return not (begins.match(record.getMessage()) and while_())

    source = logging.getLogger(logger)
    source.addFilter(is_shown)
    try:
        yield
    finally:
        source.removeFilter(is_shown)


def _numbers() -> list[signal.Signals]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
        numbers.append(signal.SIGHUP)
    return numbers


async def _run(
    work: Callable[[], Awaitable[int]],
    interrupted: Callable[[], str],
    output: OutputWriter | None,
    *,
    is_service: bool,
) -> int:
    seen: list[int] = []
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    ending = _Ending()
    _ending.set(ending)

    def cancel(number: int) -> None:
        seen.append(number)
        token.run_sync_soon(ending.cancel, scope)

    with first_signal(_numbers(), cancel), scope:
        return await work() if output is None else await _until_reader_closes(work, output)
    if is_service and seen[0] == signal.SIGTERM:
        return ExitCode.OK
    raise Interrupted(interrupted(), is_service=is_service)


async def _until_reader_closes(work: Callable[[], Awaitable[int]], output: OutputWriter) -> int:
    code: int = ExitCode.OK
    async with open_nursery() as nursery:

        async def end() -> None:
            await output.wait_closed()
            _ending.get().cancel(nursery.cancel_scope)

        nursery.start_soon(end)
        code = await work()
        nursery.cancel_scope.cancel()
    return code


class _Ending:
    """Ends the work of a command after a signal, or when the reader of its output is gone."""

    def __init__(self) -> None:
        self._first: trio.CancelScope | None = None
        self._then: list[trio.CancelScope] = []

    def cancel(self, scope: trio.CancelScope) -> None:
        """Cancel a scope, after the work of `run_first` inside it has ended."""
        if self._first is None:
            scope.cancel()
        else:
            self._then.append(scope)
            self._first.cancel()

    async def run_first(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with trio.CancelScope() as self._first:
                await work()
        finally:
            self._first = None
        for scope in self._then:
            scope.cancel()
        if self._then:
            await trio.lowlevel.checkpoint()


_ending: ContextVar[_Ending] = ContextVar("_ending")


async def run_before_end(work: Callable[[], Awaitable[None]]) -> None:
    """Run work that ends before everything around it when the command is interrupted.

    The client around it runs until the work has ended, so the work can still send to the server.
    """
    ending = _ending.get(None)
    await (work() if ending is None else ending.run_first(work))


def run_until_signal(
    work: Callable[[], Awaitable[int]],
    interrupted: Callable[[], str] = lambda: "interrupted",
    *,
    output: OutputWriter | None = None,
    is_service: bool = False,
) -> int:
    """Run `work` under trio and return its exit code.

    Args:
        work: The command; it returns its exit code.
        interrupted: Called when a signal has ended the work: the message of the error.
        output: The output of the work; when its reader has closed it, the work ends with 0.
        is_service: The work runs until it is stopped: SIGTERM is its normal end, and Ctrl-C is
            reported as a note, not as an error.

    Raises:
        Interrupted: A signal has ended the work.
    """
    return trio.run(partial(_run, work, interrupted, output, is_service=is_service))
