"""Cutting input into messages."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from haclient.cli import lines as lines_module
from haclient.cli.lines import LineReader, LineSplitter, open_lines, parse_delimiter, scan_file
from haclient.errors import UsageError

DELIMITERS = st.sampled_from([b"\n", b"\r\n", b"\x00", b"aab"])


def split(chunks: list[bytes], delimiter: bytes) -> list[bytes]:
    splitter = LineSplitter(delimiter)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()


def model(data: bytes, delimiter: bytes) -> list[bytes]:
    *whole, rest = data.split(delimiter)
    return [*whole, rest] if rest else whole


@given(st.lists(st.binary(max_size=6)), DELIMITERS)
def test_messages_do_not_depend_on_where_the_chunks_end(
    chunks: list[bytes], delimiter: bytes
) -> None:
    assert split(chunks, delimiter) == model(b"".join(chunks), delimiter)


@given(st.text("ab\r\n\0", max_size=40), DELIMITERS, st.integers(1, 5))
def test_text_with_many_delimiters_is_cut_at_each(text: str, delimiter: bytes, step: int) -> None:
    data = text.encode()
    chunks = [data[start : start + step] for start in range(0, len(data), step)]
    assert split(chunks, delimiter) == model(data, delimiter)


def test_the_last_message_needs_no_delimiter_and_empty_ones_count() -> None:
    assert split([b"a\n\nb"], b"\n") == [b"a", b"", b"b"]
    assert split([b"a\n"], b"\n") == [b"a"]
    assert split([], b"\n") == []


def test_a_message_without_an_end_is_refused_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    splitter = LineSplitter(b"\n")
    assert splitter.feed(b"123456") == []
    with pytest.raises(UsageError, match="longer than 10 bytes"):
        splitter.feed(b"789012")


def test_a_long_message_with_a_delimiter_of_several_bytes_is_not_copied_with_each_chunk() -> None:
    splitter, chunk, count = LineSplitter(b"\r\n"), bytes(64 * 1024), 256
    start = time.process_time()
    for _ in range(count):
        assert splitter.feed(chunk) == []
    (found,) = splitter.feed(b"\r\n")
    assert time.process_time() - start < 1.0  # 5 s where each chunk copies what came before
    assert len(found) == count * len(chunk)


def test_many_short_rests_do_not_add_up_to_a_long_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 10)
    splitter = LineSplitter(b"\n")
    for _ in range(5):
        splitter.feed(b"1234567\n12")


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        (r"\n", b"\n"),
        (r"\r\n", b"\r\n"),
        (r"\0", b"\x00"),
        (r"\x01", b"\x01"),
        ("||", b"||"),
        ("ß", "ß".encode()),
    ],
)
def test_delimiters_are_written_with_escapes(text: str, delimiter: bytes) -> None:
    assert parse_delimiter(text) == delimiter


@pytest.mark.parametrize("text", ["", "\\x0", "\\ud800", "\udcff"])
def test_a_delimiter_that_cuts_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="delimiter"):
        parse_delimiter(text)


@given(st.text("ab\n", max_size=30), st.text("ab\n", max_size=30))
def test_a_scan_knows_the_prefix_and_whether_its_last_line_grew(
    tmp_path_factory: pytest.TempPathFactory, before: str, added: str
) -> None:
    path = tmp_path_factory.mktemp("scan") / "file"
    path.write_text(before, newline="")
    first = scan_file(path, b"\n")
    path.write_text(before + added, newline="")
    second = scan_file(path, b"\n", prefix=first.size)
    assert first.lines == len(model(before.encode(), b"\n"))
    assert second.lines == len(model((before + added).encode(), b"\n"))
    assert not before or second.prefix_digest == first.digest
    grew = bool(before) and before[-1] != "\n" and bool(added) and added[0] != "\n"
    assert second.prefix_is_open == grew


def test_a_shrunk_file_has_no_such_prefix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"short\n")
    assert scan_file(path, b"\n", prefix=100).prefix_digest == ""


async def test_a_file_is_read_to_its_scanned_size_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1\n2\n3\n")
    found: list[bytes] = []
    async with open_lines(path, b"\n", size=3) as reader:
        while (batch := await reader.batch()) is not None:
            found += batch
    assert found == [b"1", b"2"]


async def test_a_stream_is_read_to_its_end() -> None:
    reader_fd, writer_fd = os.pipe()
    os.write(writer_fd, b"one\ntwo")
    os.close(writer_fd)
    found: list[bytes] = []
    async with open_lines(Path(f"/dev/fd/{reader_fd}"), b"\n", size=None) as reader:
        while (batch := await reader.batch()) is not None:
            found += batch
        assert await reader.batch() is None
    os.close(reader_fd)
    assert found == [b"one", b"two"]


async def test_a_stream_that_another_process_has_made_non_blocking_is_waited_for() -> None:
    reader_fd, writer_fd = os.pipe()
    os.set_blocking(reader_fd, False)
    reader, found = LineReader(reader_fd, b"\n", limit=None), list[bytes]()

    async def read() -> None:
        while (batch := await reader.batch()) is not None:
            found.extend(batch)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked(0.01)  # the first read finds nothing
        os.write(writer_fd, b"one\ntwo")
        os.close(writer_fd)
    os.close(reader_fd)
    assert found == [b"one", b"two"]


async def test_a_named_pipe_that_nobody_writes_holds_nothing_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def read() -> None:
        async with open_lines(pipe, b"\n", size=None) as reader:
            await reader.batch()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_stdin_is_the_input_when_no_file_is_named() -> None:
    async with open_lines(None, b"\n", size=None) as reader:
        assert isinstance(reader, LineReader)
