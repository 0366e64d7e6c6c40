"""The delivery trace of the `haclient demo` subscriber; no delivery is lost from it by a SIGKILL.

A trace is a file of machine words, mapped into memory: a mark is one aligned store into the page
cache, which outlives the process and is whole or not there at all. Each message gets three marks,
in this order, with nothing else between a mark and its event::

    DELIVERED n       the message is in the application's hands; its discard() was not called yet
    DISCARDING n      the next thing that happens is its discard()
    DISCARDED n       discard() has returned: the first thing that its caller did afterwards

So whenever the process is killed, each message is in one of four states. No mark: it was never
delivered to the application. DELIVERED only: it was certainly not discarded, and must be
redelivered. DISCARDED: it must never be redelivered. DISCARDING without DISCARDED (at most one
message for each kill): the call had not returned, so both outcomes are correct.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

_WORD_BYTES: Final = 4
_CHUNK_BYTES: Final = 64 * 1024  # what is read at once of a file that is mostly still zero
_NUMBER_BITS: Final = 30
MAX_NUMBER: Final = (1 << _NUMBER_BITS) - 1
"""The largest number of a message; the two bits above it say which mark it is."""


class Mark(enum.IntEnum):
    """What happened to a message; none of them is 0, which means that nothing was written."""

    DELIVERED = 1
    DISCARDING = 2
    DISCARDED = 3


Step: TypeAlias = tuple[Mark, int]
"""One mark and the number of its message."""

_MARKS: Final = (None, Mark.DELIVERED, Mark.DISCARDING, Mark.DISCARDED)
_DISCARDING: Final = Mark.DISCARDING << _NUMBER_BITS
_DISCARDED: Final = Mark.DISCARDED << _NUMBER_BITS
_DELIVERED: Final = Mark.DELIVERED << _NUMBER_BITS


class TraceWriter:
    """Writes the trace of one process.

    Args:
        path: A file that does not exist yet.
        capacity: How many marks it can take; its room is reserved, so that a full disk is an error
            here and not a signal later.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(fd, 0, capacity * _WORD_BYTES)
            self._map = mmap.mmap(fd, capacity * _WORD_BYTES)
        finally:
            os.close(fd)
        # Assigning to an item of this view copies one aligned word: no reader sees half of it.
        self._words = memoryview(self._map).cast("I")
        self._next = 0

    def delivered(self, number: int) -> None:
        """The message was handed to the application."""
        self._words[self._next] = _DELIVERED | number
        self._next += 1

    def discarding(self, number: int) -> None:
        """Its `discard()` is called next."""
        self._words[self._next] = _DISCARDING | number
        self._next += 1

    def discarded(self, number: int) -> None:
        """Its `discard()` has returned."""
        self._words[self._next] = _DISCARDED | number
        self._next += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._words.release()
        self._map.close()


class TraceReader:
    """Reads a trace while it is being written, or after its writer was killed.

    Args:
        path: The trace; as long as it does not exist, nothing was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[Step]:
        """The marks that were written since the last call."""
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(self._offset)
                return list(self._steps(file))
        except FileNotFoundError:  # the process was killed before it wrote anything
            return []

    def _steps(self, file: RawIOBase) -> Iterator[Step]:
        while data := file.read(_CHUNK_BYTES):
            for word in memoryview(data).cast("I"):
                mark = _MARKS[word >> _NUMBER_BITS]
                if mark is None:
                    return
                self._offset += _WORD_BYTES
                yield mark, word & MAX_NUMBER
