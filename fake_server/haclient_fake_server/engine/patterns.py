r"""Regular expressions of topics and filters: RE2 over bytes, unanchored, with limits.

A client chooses the patterns, and they are tried against each message on the broker's only thread.
RE2 takes time linear in the text, where a backtracking engine can be stopped for good by `(a+)+$`.
The price is that back-references and look-around do not exist; fake_server/README.md lists the
differences to PCRE.

Patterns see bytes, not characters: `.` is one byte of a UTF-8 sequence. RE2 is told that both sides
are Latin-1, in which each byte is a character. Text becomes bytes with `to_bytes`, everywhere
alike, so that pattern and subject always agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import re2

__all__ = ["MAX_PATTERN_BYTES", "PatternError", "Search", "compile_search", "to_bytes"]

MAX_PATTERN_BYTES: Final = 4096
"""Longer patterns are a mistake or an attack."""

MAX_MEMORY_BYTES: Final = 8 * 2**20
"""What one compiled pattern may use, its cache of states included."""

Search: TypeAlias = Callable[[str], bool]

_SPECIAL: Final = frozenset(b".*+?[](){}^$|\\")
_NOT_IN_RE2: Final = ("(?=", "(?!", "(?<", "(?P", *(rf"\{digit}" for digit in range(1, 10)))


class PatternError(ValueError):
    """The text is no regular expression; translated by the filter and topic modules."""


def to_bytes(text: str) -> bytes:
    """The bytes of `text`: undecodable bytes come back as they were on the wire."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that was written as a JSON escape
        return text.encode("utf-8", "surrogatepass")


def compile_search(pattern: str) -> Search:
    """A function that tells whether `pattern` is found anywhere in a text.

    Raises:
        PatternError: The pattern is too long, malformed, or asks for what RE2 cannot do.
    """
    raw = to_bytes(pattern)
    if len(raw) > MAX_PATTERN_BYTES:
        raise PatternError(f"{len(raw)} bytes are more than the {MAX_PATTERN_BYTES} allowed")
    if _SPECIAL.isdisjoint(raw):
        # The commonest pattern by far; a call into RE2 takes several times as long.
        return lambda text: raw in to_bytes(text)
    search = _compile(raw).search
    return lambda text: search(to_bytes(text)) is not None


def _compile(raw: bytes) -> re2.Regexp:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False  # else it writes to the process's standard error
    options.never_capture = True
    options.max_mem = MAX_MEMORY_BYTES
    try:
        return re2.compile(raw, options)
    except re2.error as error:
        (found,) = error.args
        problem = found.decode("latin-1")
        if any(each in problem for each in _NOT_IN_RE2):
            problem += " (back-references and look-around are not supported)"
        raise PatternError(problem) from error
