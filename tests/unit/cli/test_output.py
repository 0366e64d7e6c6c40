"""Output goes to the kernel whole, and nobody waits in a blocking write."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import tty
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.cli.output import (
    OutputClosed,
    OutputWriter,
    as_json_line,
    as_line,
    print_result,
    progress_bar,
)
from haclient.protocol.messages import Message


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for fd in (reader, writer):
            with contextlib.suppress(OSError):  # some tests close one end
                os.close(fd)


def drain(fd: int) -> bytes:
    return os.read(fd, 1 << 20)


async def test_a_record_is_written_at_once_when_there_is_room(pipe: tuple[int, int]) -> None:
    output = OutputWriter(pipe[1])
    await output.write(b"one\n")
    await output.write(b"two\n")
    assert drain(pipe[0]) == b"one\ntwo\n"


async def test_a_full_pipe_is_waited_for_and_the_record_comes_whole(pipe: tuple[int, int]) -> None:
    output, record, found = OutputWriter(pipe[1]), b"x" * 300_000, b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.write, record)
        while len(found) < len(record):
            await wait_all_tasks_blocked()
            found += drain(pipe[0])
    assert found == record


async def test_a_terminal_that_was_made_non_blocking_gets_the_record_whole() -> None:
    screen, terminal = pty.openpty()
    tty.setraw(terminal)
    os.set_blocking(terminal, False)
    output, record, found = OutputWriter(terminal), b"x" * 30_000, b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.write, record)
        while len(found) < len(record):
            await trio.lowlevel.wait_readable(screen)
            found += drain(screen)
    os.close(terminal)
    os.close(screen)
    assert found == record


async def test_a_record_that_was_begun_is_finished_before_a_cancel(pipe: tuple[int, int]) -> None:
    output, record = OutputWriter(pipe[1]), b"x" * 300_000
    found = b""
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def write() -> None:
            with scope:
                await output.write(record)

        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        scope.cancel()
        while len(found) < len(record):
            await wait_all_tasks_blocked()
            found += drain(pipe[0])
    assert found == record
    assert not scope.cancelled_caught


async def test_a_record_that_was_not_begun_is_not_written_after_a_cancel(
    pipe: tuple[int, int],
) -> None:
    output = OutputWriter(pipe[1])
    os.set_blocking(pipe[1], False)
    with contextlib.suppress(BlockingIOError):  # it is full
        while True:
            os.write(pipe[1], b"x" * 4096)
    with trio.CancelScope() as scope:
        scope.cancel()
        await output.write(b"never")
    assert scope.cancelled_caught
    assert b"never" not in drain(pipe[0])


async def test_a_reader_that_has_gone_is_told(pipe: tuple[int, int]) -> None:
    output = OutputWriter(pipe[1])
    os.close(pipe[0])
    with pytest.raises(OutputClosed):
        await output.write(b"x")


async def test_a_file_takes_records_of_any_size(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        await OutputWriter(file.fileno()).write(b"y" * 100_000)
    assert (tmp_path / "out").read_bytes() == b"y" * 100_000


async def test_an_output_that_refuses_says_why() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left"):
            await OutputWriter(full).write(b"x" * 10_000)
    finally:
        os.close(full)


def test_a_message_as_a_line_is_its_data() -> None:
    assert as_line(Message(kind="p", data=b"\xff")) == b"\xff\n"


def test_a_message_as_json_has_what_is_known_of_it() -> None:
    message = Message(kind="p", topic="t", bookmark="1|2|", sow_key="5", data="ü".encode())
    message.timestamp, message.correlation_id = "20240101T000000Z", "x1"
    assert msgspec.json.decode(as_json_line(message)) == {
        "topic": "t",
        "bookmark": "1|2|",
        "sow_key": "5",
        "timestamp": "20240101T000000Z",
        "correlation_id": "x1",
        "data": "ü",
    }


def test_data_that_is_no_text_goes_as_base64() -> None:
    line = as_json_line(Message(kind="p", topic="t", data=b"\xff\x00"))
    assert msgspec.json.decode(line) == {"topic": "t", "data_base64": "/wA="}


def test_a_header_that_is_no_text_on_the_wire_is_printed_as_json_too() -> None:
    message = Message(kind="p", topic="t\udcff", sow_key="\udcffk", data=b"x")
    assert msgspec.json.decode(as_json_line(message)) == {
        "topic": "t\ufffd",
        "sow_key": "\ufffdk",
        "data": "x",
    }


def test_a_result_for_nobody_is_dropped(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_text: str) -> None:
        raise BrokenPipeError

    print_result("heard")
    assert capfd.readouterr().out == "heard\n"
    with monkeypatch.context() as patched:
        patched.setattr("click.echo", gone)
        print_result("unheard")
    os.write(1, b"nowhere\n")
    assert capfd.readouterr().out == ""


class Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


def test_a_pipe_sees_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("work", 10) as progress:
        progress.update(5)
        progress.report("half of it")
    assert capsys.readouterr() == ("", "")


def test_a_terminal_sees_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("publish rows", 10) as progress:
        progress.report("it begins")
        progress.update(10)
    assert "publish rows" in terminal.getvalue()
    assert "it begins" in terminal.getvalue()


async def test_a_pipe_that_its_reader_closes_is_noticed_without_a_write(
    pipe: tuple[int, int],
) -> None:
    output, ended = OutputWriter(pipe[1]), trio.Event()

    async def watch() -> None:
        await output.wait_closed()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await output.write(b"unread")
        await wait_all_tasks_blocked()
        assert not ended.is_set()
        os.close(pipe[0])
        with trio.fail_after(60):
            await ended.wait()


async def test_a_file_is_never_closed_by_a_reader(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, trio.move_on_after(0) as waiting:
        await OutputWriter(file.fileno()).wait_closed()
    assert waiting.cancelled_caught
