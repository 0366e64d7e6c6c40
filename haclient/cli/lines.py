"""Input for `haclient publish`: bytes cut into messages at a delimiter.

`LineSplitter` is the pure part. The last message needs no delimiter after it. Two delimiters in a
row make an empty message. Only the delimiter itself is stripped.

A file is read up to the size that it had when it was scanned. So one run publishes exactly what
the ledger in the store describes, even while another process appends to the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from haclient.errors import UsageError

MAX_LINE_BYTES: Final = 200 * 2**20
"""The largest message that a server accepts; a longer line means a wrong delimiter."""

_READ_BYTES: Final = 2**20
_PIPE_READ_BYTES: Final = 2**16


def parse_delimiter(text: str) -> bytes:
    r"""The bytes that a `--delimiter` stands for; `\n`, `\t`, `\0` and `\x01` mean what they say.

    Raises:
        UsageError: It is empty, holds an unknown escape, or is not UTF-8.
    """
    try:
        delimiter = text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise UsageError(f"delimiter {text!r}: {error.reason}") from error
    if not delimiter:
        raise UsageError("the delimiter is empty; leave it out for one message per line")
    try:
        return delimiter.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, or an argument that is not UTF-8
        raise UsageError(f"delimiter {text!r}: {error.reason}") from error


class LineSplitter:
    """Cuts chunks of bytes at a delimiter, wherever the chunks end."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The messages that are complete now.

        Raises:
            UsageError: A message is larger than any server takes.
        """
        if self._rest and len(self._delimiter) > 1:  # it may lie across the seam
            chunk = self._take_end(len(self._delimiter) - 1) + chunk
        pieces = chunk.split(self._delimiter)
        if len(pieces) > 1:
            pieces[0] = b"".join((*self._rest, pieces[0]))
            self._rest.clear()
        self._keep(pieces.pop())
        return pieces

    def _take_end(self, count: int) -> bytes:
        """Take the last bytes of the rest, and no more: a long message comes in many chunks."""
        end = b""
        while self._rest and len(end) < count:
            end = self._rest.pop() + end
        if len(end) > count:
            self._rest.append(end[:-count])
        self._rest_bytes -= min(len(end), count)
        return end[-count:]

    def _keep(self, rest: bytes) -> None:
        if not self._rest:
            self._rest_bytes = 0
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
        if self._rest_bytes > MAX_LINE_BYTES:
            raise UsageError(
                f"a message is longer than {MAX_LINE_BYTES} bytes: does {self._delimiter!r} end it?"
            )

    @property
    def is_open(self) -> bool:
        """Whether there is an unfinished message."""
        return bool(self._rest)

    def finish(self) -> list[bytes]:
        """The rest after the last delimiter: one message, or none."""
        rest = b"".join(self._rest)
        self._rest.clear()
        return [rest] if rest else []


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScan:
    """The contents of a file now, and whether its beginning is unchanged.

    Attributes:
        size: Its length in bytes.
        digest: The digest of the whole content.
        lines: How many messages it holds.
        prefix_digest: The digest of the requested prefix; empty when the file is shorter.
        prefix_is_open: The prefix ends within a line that has grown since.
    """

    size: int
    digest: str
    lines: int
    prefix_digest: str
    prefix_is_open: bool


def _chunks(path: Path, limits: list[int]) -> Iterator[bytes]:
    """The file in pieces that end at each of the limits (ascending), the last of them included."""
    with path.open("rb") as file:
        done = 0
        for limit in limits:
            while done < limit:
                chunk = file.read(min(_READ_BYTES, limit - done))
                if not chunk:
                    return
                done += len(chunk)
                yield chunk


def scan_file(path: Path, delimiter: bytes, *, prefix: int = 0) -> FileScan:
    """Read a file once: its size, digest and messages, and the digest of its first bytes."""
    size = path.stat().st_size
    digest, splitter = hashlib.blake2b(digest_size=20), LineSplitter(delimiter)
    lines, done, prefix_digest, prefix_is_open = 0, 0, "", False
    for chunk in _chunks(path, [prefix, size] if prefix < size else [size]):
        if done == prefix and splitter.is_open:
            prefix_is_open = not chunk.startswith(delimiter)
        digest.update(chunk)
        lines += len(splitter.feed(chunk))
        done += len(chunk)
        if done == prefix:
            prefix_digest = digest.hexdigest()
    return FileScan(
        size=done,
        digest=digest.hexdigest(),
        lines=lines + len(splitter.finish()),
        prefix_digest=prefix_digest,
        prefix_is_open=prefix_is_open,
    )


class LineReader:
    """The messages of a file or of stdin, in batches as they arrive."""

    def __init__(self, fd: int, delimiter: bytes, *, limit: int | None) -> None:
        self._fd = fd
        self._splitter = LineSplitter(delimiter)
        self._left = limit

    async def batch(self) -> list[bytes] | None:
        """The next messages (possibly none yet), or `None` after the last.

        Raises:
            UsageError: A message is larger than any server takes.
            OSError: The input cannot be read.
        """
        if self._fd < 0:
            return None
        chunk = await self._read()
        if chunk:
            return self._splitter.feed(chunk)
        self._fd = -1
        return self._splitter.finish()

    async def _read(self) -> bytes:
        while self._left is None:  # a pipe or terminal may block: only a thread may wait for it
            try:
                return await trio.to_thread.run_sync(
                    os.read, self._fd, _PIPE_READ_BYTES, abandon_on_cancel=True
                )
            except BlockingIOError:  # another process that has it too made it non-blocking
                await trio.lowlevel.wait_readable(self._fd)
        await trio.lowlevel.checkpoint()
        chunk = os.read(self._fd, min(_READ_BYTES, self._left))
        self._left -= len(chunk)
        return chunk


@asynccontextmanager
async def open_lines(
    path: Path | None, delimiter: bytes, *, size: int | None
) -> AsyncGenerator[LineReader]:
    """The messages of the first `size` bytes of a file; of a stream (no size), of all that comes.

    Args:
        path: The file, or `None` for stdin.
        delimiter: What ends a message.
        size: Where to stop in a regular file, in bytes.
    """
    if path is None:
        yield LineReader(0, delimiter, limit=None)
        return
    open_file = partial(path.open, "rb", buffering=0)
    # A named pipe opens once somebody writes to it: only a thread may wait for that.
    with await trio.to_thread.run_sync(open_file, abandon_on_cancel=size is None) as file:
        yield LineReader(file.fileno(), delimiter, limit=size)
