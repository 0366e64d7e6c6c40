"""The fields of a message that a subscriber wants: the option `select`.

A directive is `+` or `-` and a path: `+/px` includes a field with all below it, `-/px` leaves it
out; `+/` and `-/` are the whole message. The most specific directive decides, of two for one path
the first, and what none covers is included. So `-/,+/id,+/px` sends two fields, and `-/secret` all
but one. A field that the message does not have is not made up: an object of which nothing is
wanted is left out with its name, unless it is included itself.

Arrays have no level of their own, as in filters: `/legs/px` is the field `px` of each element.
Elements that are left out leave no hole.

What is sent is cut from the published text, so numbers and strings are exactly what the publisher
wrote. A body that is neither a JSON object nor an array has no fields and is sent as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from haclient.errors import HAClientError
from haclient_fake_server.engine.filters.parser import FilterError, parse_path

MAX_DIRECTIVES: Final = 1000
"""Directives of one list."""

_SPACE: Final = re.compile(r"[ \t\n\r]*")


class SelectError(HAClientError):
    """A select list cannot be read."""


@dataclass(slots=True)
class _Level:
    """What is known of one path: its own directive, if it has one, and those below it."""

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
        if message_type != "json":
            return body
        text = body.decode("utf-8", "surrogateescape")
        start = _skip(text, 0)
        try:
            if text[start : start + 1] not in {"{", "["}:
                return body
            _, end = _SCANNER.raw_decode(text, start)
            if _skip(text, end) != len(text):
                return body
            included = self._root.included is not False
            kept = _cut(text, start, end, self._root, included=included)
        except (ValueError, RecursionError):  # no JSON, or deeper than this process can follow
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


def _cut(text: str, start: int, end: int, level: _Level, *, included: bool) -> str | None:
    """The wanted part of a value in a valid text, `None` for nothing."""
    opening = text[start]
    if not level.below or opening not in "{[":
        return text[start:end] if included else None
    if opening == "[":
        elements = [
            _cut(text, at, after, level, included=included)
            for _, _, at, after in _members(text, start)
        ]
        kept = [element for element in elements if element is not None]
        return f"[{','.join(kept)}]" if kept or included else None
    # A name that is given twice counts once, with its last value, as in filters.
    fields = {member.name: member for member in _members(text, start)}
    parts: list[str] = []
    for name, key, at, after in fields.values():
        below = level.below.get(name, _NOTHING_SAID)
        wanted = included if below.included is None else below.included
        value = _cut(text, at, after, below, included=wanted)
        if value is not None:
            parts.append(f"{key}:{value}")
    return f"{{{','.join(parts)}}}" if parts or included else None


class _Member(NamedTuple):
    """A member of an object, or an element of an array, which has no name.

    Attributes:
        name: Its name.
        key: The name as written, with its quotes.
        start: Where its value begins in the text.
        end: Where its value ends.
    """

    name: str
    key: str
    start: int
    end: int


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object or array that begins at `start` of a valid text."""
    is_object = text[start] == "{"
    at = _skip(text, start + 1)
    while text[at] not in "}]":
        name = key = ""
        if is_object:
            name, end = _SCANNER.raw_decode(text, at)
            key = text[at:end]
            at = _skip(text, _skip(text, end) + 1)  # past the colon
        _, end = _SCANNER.raw_decode(text, at)
        yield _Member(name, key, at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
