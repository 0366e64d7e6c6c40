"""The files of traces: machine words in a file that is mapped into memory.

A store of one aligned word into the page cache outlives the process, and is whole or not there at
all. So a SIGKILL takes no word that was written. A word is never 0, which shows where a trace ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal, TypeAlias

WordFormat: TypeAlias = Literal["I", "Q"]
"""Words of 4 or of 8 bytes."""

WORD_BYTES: Final[dict[WordFormat, int]] = {"I": 4, "Q": 8}
_CHUNK_BYTES: Final = 64 * 1024  # what is read at once of a file that is mostly still zero


@contextmanager
def mapped_words(path: Path, count: int, form: WordFormat) -> Generator[memoryview[int]]:
    """Create a file of words.

    Args:
        path: A file that does not exist yet.
        count: How many words. The space is allocated now, so that a full disk is an error here and
            not a signal later.
        form: How long a word is.

    Returns:
        The words, all of them 0.

    Raises:
        OSError: The file exists, or there is no room for it.
    """
    size_bytes = count * WORD_BYTES[form]
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
        file = mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)
    # Assigning to an item of this view copies one aligned word: no reader sees half of it.
    with file, memoryview(file) as content, content.cast(form) as words:
        yield words


def read_words(path: Path, offset_bytes: int, form: WordFormat) -> Iterator[memoryview[int]]:
    """Read words while they are being written, or after their writer was killed.

    Args:
        path: The file; a missing one counts as empty.
        offset_bytes: Where to begin.
        form: How long a word is.

    Returns:
        Chunks of words, up to the end of the file; leave out those from the first 0 on.
    """
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:  # the process was killed before it wrote anything
        return
    with file:
        file.seek(offset_bytes)
        while data := file.read(_CHUNK_BYTES):
            yield memoryview(data).cast(form)
