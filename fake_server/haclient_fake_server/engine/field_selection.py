"""The fields of a message that a subscriber wants: the option `select`.

A directive is `+` or `-` and a path: `+/px` includes a field with all below it, `-/px` leaves it
out; `+/` and `-/` are the whole message. The most specific directive decides; of two for one path,
the first. Fields that no directive covers are included. So `-/,+/id,+/px` sends two fields, and
`-/secret` all but one. No empty objects are made up: an object without any wanted field is left out
with its name, unless it is included itself.

Arrays have no level of their own, as in filters: `/legs/px` is the field `px` of each element.
Removed elements leave no gap.

What is sent is cut from the published text, so numbers and strings are exactly what the publisher
wrote. A body that is neither a JSON object nor an array, or has more than `MAX_DEPTH` levels, has
no fields and is sent unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sized
from dataclasses import dataclass, field
from typing import Final

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters.bodies import is_too_large
from haclient_fake_server.engine.filters.parser import FilterError, parse_path

MAX_DIRECTIVES: Final = 1000
"""Directives of one list."""

MAX_DEPTH: Final = 10_000
"""Levels of a body: a message of brackets alone would take seconds to read."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")


class SelectError(HAClientError):
    """A select list cannot be read."""


@dataclass(slots=True)
class _Level:
    """The directive of one path, if it has one, and those of the paths below it."""

    included: bool | None = None
    below: dict[str, _Level] = field(default_factory=dict["str", "_Level"])


_NOTHING_SAID: Final = _Level()


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """A parsed select list. Two of the same directives are equal, so that they share frames.

    Args:
        directives: Such as `("-/", "+/id")`.

    Raises:
        SelectError: One is malformed, or there are too many.
    """

    directives: tuple[str, ...]
    _root: _Level = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.directives) > MAX_DIRECTIVES:
            raise SelectError(
                f"select: {len(self.directives)} directives, wanted at most {MAX_DIRECTIVES}"
            )
        root = _Level()
        for directive in self.directives:
            level = root
            for name in _names(directive):
                level = level.below.setdefault(name, _Level())
            if level.included is None:  # the first of two for one path counts
                level.included = directive.startswith("+")
        object.__setattr__(self, "_root", root)

    def apply(self, body: bytes, message_type: str) -> bytes:
        """The wanted part of a body; the whole body if it has no fields."""
        if message_type != "json" or is_too_large(body, message_type):
            return body
        text = body.decode("utf-8", "surrogateescape")
        start = _skip(text, 0)
        try:
            if text[start : start + 1] not in {"{", "["}:
                return body
            included = self._root.included is not False
            kept, end = _cut(text, start, self._root, included=included)
            if _skip(text, end) != len(text):
                return body
        except ValueError:  # not JSON, so it has no fields
            return body
        if kept is None:  # an empty message rather than none at all
            kept = "{}" if text[start] == "{" else "[]"
        return kept.encode("utf-8", "surrogateescape")


def _names(directive: str) -> list[str]:
    path = directive[1:]
    if directive[:1] not in {"+", "-"} or not path.startswith("/"):
        raise SelectError(f"select: wanted +/path or -/path, found {directive[:80]!r}")
    if path == "/":
        return []
    try:
        steps = parse_path(path).steps
    except FilterError as error:
        raise SelectError(f"select: wanted +/path or -/path, found {directive[:80]!r}") from error
    if any(step.subscript is not None for step in steps):
        raise SelectError(f"select: a path has no subscripts here, found {directive[:80]!r}")
    return [step.name for step in steps]


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# Numbers stay text: one of any length is passed on, and none is rounded.
_SCANNER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


class _Open:
    """An object or array that is being read, and the wanted parts of it.

    Args:
        opening: Its opening bracket.
        level: The directives of its path and of the paths below.
        included: Whether members without a directive of their own are wanted.
    """

    __slots__ = ("_key", "_level", "_name", "_parts", "closing", "included")

    def __init__(self, opening: str, level: _Level, *, included: bool) -> None:
        self.closing = "}" if opening == "{" else "]"
        self.included = included
        self._level = level
        # Of a repeated name the last value counts, as in filters.
        self._parts: dict[str | int, str | None] = {}
        self._name: str | int = 0
        self._key = ""

    def enter(self, text: str, at: int) -> tuple[int, _Level, bool]:
        """Enter a member.

        Args:
            text: The whole text.
            at: Where the member begins.

        Returns:
            Where its value begins, its level, and whether it is wanted.

        Raises:
            ValueError: A member of an object has no name.
        """
        if self.closing == "]":
            self._name = len(self._parts)
            return at, self._level, self.included
        name, self._key, at = _name_at(text, at)
        self._name = name
        below = self._level.below.get(name, _NOTHING_SAID)
        return at, below, self.included if below.included is None else below.included

    def add(self, value: str | None) -> None:
        """Add the wanted part of the member that was entered last; `None` if nothing is wanted."""
        if value is not None and self._key:
            value = f"{self._key}:{value}"
        self._parts[self._name] = value

    @property
    def wanted(self) -> str | None:
        """The text of its wanted part; `None` if nothing is wanted."""
        kept = [part for part in self._parts.values() if part is not None]
        if not kept and not self.included:
            return None
        opening = "{" if self.closing == "}" else "["
        return f"{opening}{','.join(kept)}{self.closing}"


def _cut(text: str, at: int, level: _Level, *, included: bool) -> tuple[str | None, int]:
    """Cut the wanted part out of the value at `at`.

    It reads the text once, without recursion: arrays can be nested as deeply as the text is long.

    Returns:
        The wanted part, `None` if nothing is wanted; and where the value ends.

    Raises:
        ValueError: The value is not JSON.
    """
    opened: list[_Open] = []
    while True:
        if level.below and text[at : at + 1] in {"{", "["}:
            opened.append(_Open(text[at], level, included=included))
            _check_depth(opened)
            at = _skip(text, at + 1)
            if text[at : at + 1] != opened[-1].closing:
                at, level, included = opened[-1].enter(text, at)
                continue
        else:
            end = _end_of(text, at)
            value = text[at:end] if included else None
            if not opened:
                return value, end
            opened[-1].add(value)
            at = _skip(text, end)
        while text[at : at + 1] == opened[-1].closing:
            value = opened.pop().wanted
            if not opened:
                return value, at + 1
            opened[-1].add(value)
            at = _skip(text, at + 1)
        at = _after(",", text, at)
        at, level, included = opened[-1].enter(text, at)


def _check_depth(opened: Sized) -> None:
    """Check how many objects and arrays are open.

    Raises:
        ValueError: There are too many.
    """
    if len(opened) > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels")


def _name_at(text: str, at: int) -> tuple[str, str, int]:
    """The name at `at`, the same name as it is written, and where its value begins.

    Raises:
        ValueError: There is no name.
    """
    if text[at : at + 1] != '"':
        raise ValueError("a member of an object has no name")
    name, end = _SCANNER.raw_decode(text, at)
    return name, text[at:end], _after(":", text, _skip(text, end))


def _after(mark: str, text: str, at: int) -> int:
    """Where the text continues after a required mark.

    Raises:
        ValueError: The mark is missing.
    """
    if text[at : at + 1] != mark:
        raise ValueError(f"{mark} is missing")
    return _skip(text, at + 1)


def _end_of(text: str, at: int) -> int:
    """Where the value at `at` ends.

    Raises:
        ValueError: There is no value.
    """
    try:
        _, end = _SCANNER.raw_decode(text, at)
    except RecursionError:
        return _end_of_deep(text, at)
    return end


def _end_of_deep(text: str, at: int) -> int:
    """As `_end_of`, for values that are nested more deeply than the parser can follow."""
    closings: list[str] = []
    while True:
        opening = text[at : at + 1]
        if opening in {"{", "["}:
            closings.append("}" if opening == "{" else "]")
            _check_depth(closings)
            at = _skip(text, at + 1)
            if text[at : at + 1] != closings[-1]:
                if opening == "{":
                    _, _, at = _name_at(text, at)
                continue
        else:  # a string, a number or a word
            _, at = _SCANNER.raw_decode(text, at)
            at = _skip(text, at)
        while text[at : at + 1] == closings[-1]:
            closings.pop()
            if not closings:
                return at + 1
            at = _skip(text, at + 1)
        at = _after(",", text, at)
        if closings[-1] == "}":
            _, _, at = _name_at(text, at)
