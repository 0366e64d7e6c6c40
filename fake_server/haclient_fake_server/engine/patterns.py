"""Regular expressions as the server understands them: bytes, unanchored, with a length limit.

The server's patterns are PCRE over bytes; Python's `re` over bytes is the same language for all
that filters and topics use. What differs is refused and never silently read in another way: POSIX
classes such as `[[:alpha:]]` are an error here, and so is each escape that `re` does not know.

Text becomes bytes with `to_bytes`, everywhere alike, so that pattern and subject always agree.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Final, TypeAlias

__all__ = ["MAX_PATTERN_BYTES", "PatternError", "Search", "compile_search", "to_bytes"]

MAX_PATTERN_BYTES: Final = 4096
"""Longer patterns are a mistake or an attack; compiling is more than linear in the length."""

Search: TypeAlias = Callable[[str], bool]

_POSIX_CLASS: Final = re.compile(r"\[:\^?[a-z]+:\]")


class PatternError(ValueError):
    """The text is no regular expression; translated by the filter and topic modules."""


def to_bytes(text: str) -> bytes:
    """The bytes of `text`: undecodable bytes come back as they were on the wire."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that was written as a JSON escape
        return text.encode("utf-8", "surrogatepass")


def compile_search(pattern: str) -> Search:
    """A function that tells whether `pattern` is found anywhere in a text (protocol 12.3).

    Raises:
        PatternError: The pattern is too long or malformed.
    """
    compiled = _compile(pattern)

    def search(text: str) -> bool:
        return compiled.search(to_bytes(text)) is not None

    return search


def _compile(pattern: str) -> re.Pattern[bytes]:
    raw = to_bytes(pattern)
    if len(raw) > MAX_PATTERN_BYTES:
        raise PatternError(f"{len(raw)} bytes are more than the {MAX_PATTERN_BYTES} allowed")
    if _POSIX_CLASS.search(pattern):
        raise PatternError("POSIX classes are not supported: write a range such as [a-zA-Z]")
    with warnings.catch_warnings():
        # `[[` is an ordinary bracket in PCRE; Python only announces that it might change its mind.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            return re.compile(raw)
        except (re.error, OverflowError, RecursionError) as error:
            raise PatternError(str(error) or "nested too deeply") from error
