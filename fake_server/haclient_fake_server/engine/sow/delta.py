"""Deltas of JSON messages: the message that one makes of a record, and the one that an update was.

A **delta publish** is merged into the record path by path; arrays and everything else are replaced
whole; `null` leaves the old value, so no field can be removed. Values keep the text that was
published.

A **delta subscription** gets the fields that an update has changed, with the key fields. Values are
compared as they are parsed, `1` and `1.0` are one number, and what is sent is the text that was
published. NULL and a field that is missing are the same here as in filters: a field that an update
has left out is sent as `null`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from haclient_fake_server.engine.connections import Style
from haclient_fake_server.engine.filters.document import Path

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Fields: TypeAlias = dict[str, msgspec.Raw]
Changed: TypeAlias = "dict[str, msgspec.Raw | Changed]"

_NULL: Final = msgspec.Raw(b"null")
_decode_fields = msgspec.json.Decoder(Fields).decode


def merge_delta(stored: bytes, delta: bytes) -> bytes:
    """The message that a delta publish makes of a stored one.

    A body that is no JSON object is the whole message.
    """
    before, change = _fields(stored), _fields(delta)
    if before is None or change is None:  # nothing to merge, and nothing refused
        return delta
    try:
        return msgspec.json.encode(_merged(before, change))
    except RecursionError:  # deeper than this process can follow
        return delta


def _merged(before: Fields, change: Fields) -> Changed:
    result: Changed = dict(before)
    for name, value in change.items():
        inner_before, inner_change = _fields(before.get(name, _NULL)), _fields(value)
        if inner_before is not None and inner_change is not None:
            result[name] = _merged(inner_before, inner_change)
        elif bytes(value) != b"null" or name not in before:
            result[name] = value
    return result


class Delta:
    """What one update has changed in a record; computed once, when the first subscriber needs it.

    Args:
        before: The record.
        after: The message that replaces it.
        keys: The key fields of the topic.
    """

    __slots__ = ("_after", "_before", "_bodies", "_keys")

    def __init__(self, before: bytes, after: bytes, keys: Sequence[Path]) -> None:
        self._before = before
        self._after = after
        self._keys = keys
        self._bodies: dict[Style, bytes | None] = {}

    def body(self, style: Style) -> bytes | None:
        """What a subscription of this style receives; `None` for nothing.

        It is the whole message for others than delta subscriptions, and where one of the two
        messages is no JSON object.
        """
        style &= Style.DELTA | Style.NO_EMPTIES | Style.SEND_KEYS
        if not style & Style.DELTA:
            return self._after
        if style not in self._bodies:
            self._bodies[style] = self._make(style)
        return self._bodies[style]

    def _make(self, style: Style) -> bytes | None:
        before, after = _fields(self._before), _fields(self._after)
        if before is None or after is None:
            return self._after
        try:
            changes = _changes(before, after)
            if not changes and style & Style.NO_EMPTIES:
                return None
            if style & Style.SEND_KEYS or not style & Style.NO_EMPTIES:
                for path in self._keys:
                    _add(changes, after, path)
            return msgspec.json.encode(changes)
        except RecursionError:  # deeper than this process can follow
            return self._after


def _fields(body: bytes | msgspec.Raw) -> Fields | None:
    """The fields of an object as they are written; `None` for any other value."""
    try:
        return _decode_fields(body)
    except (ValueError, RecursionError):  # no object, or no JSON
        return None


def _changes(before: Fields, after: Fields) -> Changed:
    """The fields of `after` that are not as they were, and `null` for each that is gone."""
    changes: Changed = {}
    for name, value in after.items():
        old = before.get(name, _NULL)
        if bytes(old) == bytes(value):
            continue
        inner_before, inner_after = _fields(old), _fields(value)
        if inner_before is not None and inner_after is not None:
            if inner := _changes(inner_before, inner_after):
                changes[name] = inner
        elif not _are_equal(old, value):
            changes[name] = value
    for name, old in before.items():
        if name not in after and bytes(old) != b"null":
            changes[name] = _NULL
    return changes


def _are_equal(one: msgspec.Raw, other: msgspec.Raw) -> bool:
    try:
        return _equal(msgspec.json.decode(one), msgspec.json.decode(other))
    except ValueError:  # a number out of range, or bytes that are not UTF-8: their texts differ
        return False


def _equal(one: Json, other: Json) -> bool:
    """Whether two values are the same; unlike in Python, `true` is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return one == other


def _add(changes: Changed, fields: Fields, path: Path) -> None:
    """Add the value at a path, or what holds it where that is no object."""
    for number, step in enumerate(path.steps, 1):
        value = fields.get(step.name)
        present = changes.get(step.name)
        if value is None or isinstance(present, msgspec.Raw):  # the latter holds the value
            return
        inner = _fields(value)
        if number == len(path.steps) or step.subscript is not None or inner is None:
            changes.setdefault(step.name, value)
            return
        if present is None:
            present = changes[step.name] = {}
        changes, fields = present, inner
