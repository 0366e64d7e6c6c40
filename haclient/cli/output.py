"""What the commands print: messages, results, and a progress bar on a terminal.

A message may be discarded only after it has left this process, so messages are written to the
descriptor itself, without a buffer. A consumer that stops reading must not stop our heartbeats: a
pipe is written only while it has room, in pieces no larger than a ready pipe accepts, and the task
waits in between.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import io
import os
import select
import stat
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TextIO, cast

import click
import msgspec
import trio
from typing_extensions import override

from haclient.protocol.messages import Message

STDOUT: Final = 1
"""The descriptor of the standard output."""

_READY_PIPE_BYTES: Final = select.PIPE_BUF
"""What a pipe that polls writable takes without blocking."""


class OutputClosed(Exception):
    """The consumer has closed our output."""


class OutputWriter:
    """Writes whole records to a file descriptor without blocking the event loop."""

    def __init__(self, fd: int) -> None:
        """Take a descriptor to write to.

        Raises:
            OSError: It is closed.
        """
        check_open(fd, "standard output")
        self._fd = fd
        kind = os.fstat(fd).st_mode
        self._waits = not stat.S_ISREG(kind)
        self._is_pipe = stat.S_ISFIFO(kind)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    async def write(self, record: bytes) -> None:
        """Write one whole record.

        A cancellation is only seen before its first byte: a record that was begun is finished, so
        that the reader never sees half of one followed by the whole.

        Raises:
            OutputClosed: The reader of the pipe has closed it.
            OSError: The output cannot be written, for example because the disk is full.
        """
        if not (self._is_ready() and (len(record) <= _READY_PIPE_BYTES or not self._waits)):
            await self._wait()
        rest = self._write_some(memoryview(record))
        while rest:
            with trio.CancelScope(shield=True):
                await self._wait()
            rest = self._write_some(rest)

    async def wait_closed(self) -> None:
        """Wait until the reader of a pipe has closed it; for ever if the output is not a pipe."""
        while self._is_pipe:
            if any(events & select.POLLERR for _, events in self._poll.poll(0)):
                return
            # A pipe for writing is never readable: this returns only for the error.
            await trio.lowlevel.wait_readable(self._fd)
        await trio.sleep_forever()

    def _is_ready(self) -> bool:
        return not self._waits or bool(self._poll.poll(0))

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._is_ready():
            try:
                await trio.lowlevel.wait_writable(self._fd)
            except PermissionError:  # epoll refuses such a descriptor (a device): it never blocks
                return

    def _write_some(self, data: memoryview) -> memoryview:
        """Write what a ready output takes; return the rest."""
        try:
            return data[os.write(self._fd, data[:_READY_PIPE_BYTES] if self._waits else data) :]
        except BlockingIOError:  # another process that has it too made it non-blocking
            return data
        except OSError as error:
            if error.errno in {errno.EPIPE, errno.ECONNRESET}:
                raise OutputClosed from error
            raise OSError(error.errno, error.strerror, "standard output") from error


def check_open(fd: int, name: str) -> None:
    """Check that a standard stream is open: `entry` opens a missing one in the wrong direction.

    Raises:
        OSError: The process was started without it (`<&-`, `>&-`).
    """
    wrong_way = os.O_WRONLY if fd == 0 else os.O_RDONLY
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == wrong_way:
        raise OSError(errno.EBADF, "it is closed", name)


def print_result(text: str | bytes, *, aside: bool = False) -> None:
    """Print a complete result; a closed pipe is not an error.

    Args:
        text: The result; bytes are printed as they are.
        aside: The result is not the purpose of the command: without a standard output (`>&-`) it is
            left out.

    Raises:
        OSError: There is no standard output, and the result is what the command is for; or it
            cannot be written.
    """
    if sys.stdout is None and not aside:  # pyright: ignore[reportUnnecessaryComparison]  # see entry
        raise OSError(errno.EBADF, "it is closed", "standard output")
    try:
        click.echo(text)
    except BrokenPipeError:
        with Path(os.devnull).open("wb") as nowhere:  # where the interpreter's last flush may go
            os.dup2(nowhere.fileno(), STDOUT)
    except OSError as error:  # such as a full disk
        raise OSError(error.errno, error.strerror, "standard output") from error


def print_report(value: object, text: str, *, as_json: bool, aside: bool = False) -> None:
    """Print `value` as one JSON object, or `text`, which describes it; see `print_result`."""
    print_result(msgspec.json.encode(value).decode() if as_json else text, aside=aside)


def payload_field(data: bytes) -> dict[str, str]:
    """The JSON field of a payload: `data`, or `data_base64` when it is not UTF-8."""
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"data_base64": base64.b64encode(data).decode()}


def as_line(message: Message) -> bytes:
    """A message for people and for pipes: its data and a line end."""
    return message.data + b"\n"


def as_json_line(message: Message) -> bytes:
    """A message as one JSON object and a line end; see `payload_field`."""
    fields: dict[str, str | int] = {"topic": message.topic}
    for name in ("bookmark", "sow_key", "timestamp", "correlation_id"):
        if value := getattr(message, name):
            fields[name] = value
    for name, value in fields.items():
        if isinstance(value, str):  # what is not UTF-8 on the wire cannot be in JSON
            fields[name] = value.encode(errors="surrogateescape").decode(errors="replace")
    return msgspec.json.encode(fields | payload_field(message.data)) + b"\n"


def _ignore(_: object) -> None:
    """Discard a report."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks with which a task reports its progress.

    Attributes:
        update: Called with the amount done so far.
        report: Called with a line about what has just happened.
    """

    update: Callable[[int], None] = _ignore
    report: Callable[[str], None] = _ignore


def both_on_terminal() -> bool:
    """Whether stdout and stderr are terminals, usually the same one."""
    return sys.stdout is not None and sys.stdout.isatty() and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]  # see entry


def coloured(text: str, *, is_good: bool) -> str:
    """A verdict: green or red on a terminal, unless `NO_COLOR` is set."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):  # pyright: ignore[reportUnnecessaryComparison]  # see entry
        return text
    return click.style(text, fg="green" if is_good else "red")


def _is_foreground(terminal: TextIO) -> bool:
    """Whether this process may draw on a terminal: in the background, the shell uses it."""
    try:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # a terminal that is not ours, or no descriptor at all
        return True


class _Foreground(io.TextIOBase):
    """A terminal that gets output only while this process is in the foreground.

    Args:
        terminal: The terminal, or what writes to it.
        otherwise: Gets the output in the background (`&`, `bg`); without it, that is dropped.
    """

    def __init__(self, terminal: TextIO, otherwise: TextIO | None = None) -> None:
        self._terminal = terminal
        self._otherwise = otherwise

    @override
    def write(self, text: str) -> int:
        if _is_foreground(self._terminal):
            return self._terminal.write(text)
        return len(text) if self._otherwise is None else self._otherwise.write(text)

    @override
    def flush(self) -> None:
        self._terminal.flush()

    @override
    def isatty(self) -> bool:
        return True

    @override
    def fileno(self) -> int:  # for the width of the terminal
        return self._terminal.fileno()


@contextmanager
def progress_bar(what: str, total: int | None, *, is_shown: bool = True) -> Generator[Progress]:
    """A bar that is drawn only when stderr is a terminal, and only in the foreground.

    Args:
        what: What is being counted.
        total: How many there will be; `None` if that is unknown.
        is_shown: Whether to draw a bar; false while people type at the terminal.
    """
    if not (is_shown and sys.stderr.isatty()):
        yield Progress()
        return
    # Loaded only here: a pipe needs none of it.
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only a terminal should pay
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above
    from rich.progress import Progress as Bar  # noqa: PLC0415 - as above

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )

    class _CursorConsole(Console):
        """A console that never hides the cursor: a killed process could not show it again."""

        @override
        def show_cursor(self, show: bool = True) -> bool:  # rich's signature
            return False

    terminal = sys.stderr
    console = _CursorConsole(file=cast("IO[str]", _Foreground(terminal)))
    # Standard output is not redirected: rich would print it to the console, which is on stderr.
    # Errors and warnings are: rich prints them above the bar, or there is no bar in the background.
    with (
        Bar(*columns, console=console, transient=True, redirect_stdout=False) as bar,
        redirect_stderr(_Foreground(sys.stderr, terminal)),
    ):
        task = bar.add_task(what, total=total)

        def report(text: str) -> None:
            if _is_foreground(terminal):
                bar.console.print(text, highlight=False)
            else:  # reports are printed also in the background
                terminal.write(f"{text}\n")
                terminal.flush()

        yield Progress(update=lambda done: bar.update(task, completed=done), report=report)
