"""Deltas: the message that one makes of a record, and the one that an update was.

A **delta publish** is merged into the record path by path; arrays and everything else are replaced
whole; NULL leaves the old value, so no field can be removed. Values keep the bytes that were
published.

A **delta subscription** gets the fields that an update has changed, with the key fields. Values are
compared as they are parsed, `1` and `1.0` are one number, and what is sent are the bytes that were
published. NULL and a field that is missing are the same here as in filters: a field that an update
has left out is sent as NULL.

FIX and NVFIX have no levels. All fields of one name are one value, and so are the field with the
length of a data field and the data field behind it. A field without a text is NULL.

In a **composite message** of the local kind, an empty part is one that does not change. The others
are deltas of their own type, or whole where that type has none. Types without fields and the global
kind of composite messages have no deltas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from haclient.codecs import FIX_DATA_FIELDS
from haclient_fake_server.engine.connections import Style
from haclient_fake_server.engine.filters.bodies import (
    COMPOSITE_PREFIX,
    Json,
    is_global,
    is_too_large,
    pairs_of,
    parts_of,
    type_of_part,
)
from haclient_fake_server.engine.filters.document import Path

MAX_READ_BYTES: Final = 64 * 2**20
"""What is read of two bodies for a delta: each level is read again and costs up to their size."""

Fields: TypeAlias = dict[str, msgspec.Raw]
Changed: TypeAlias = "dict[str, msgspec.Raw | Changed]"


class _Format(NamedTuple):
    """How bodies of a message type are taken apart and put together.

    Attributes:
        read: The fields of a body as they are written; raises `ValueError` if it has none.
        write: The inverse.
        null: How a field of some name is written that has no value.
        value: What is written, parsed; raises `ValueError` where only its bytes can be compared.
        has_levels: Whether the value of a field may have fields.
        is_json: Whether bodies are JSON, which may have to be masked before it can be read.
    """

    read: Callable[[bytes | msgspec.Raw], Fields]
    write: Callable[[Changed], bytes]
    null: Callable[[str], msgspec.Raw]
    value: Callable[[msgspec.Raw], Json]
    has_levels: bool = True
    is_json: bool = False

    def pair(
        self, one: bytes, other: bytes
    ) -> tuple[Fields, Fields, Callable[[bytes], bytes]] | None:
        """Read two bodies.

        Returns:
            The fields of both, and a function that restores what was masked in a body that is
            written of them; `None` if one of the bodies has no fields.
        """
        first, second = self.fields(one), self.fields(other)
        complete: Callable[[bytes], bytes] = bytes
        # What is not UTF-8 within an inner object is found only when that is read.
        is_read = first is not None and second is not None and _is_utf8(one) and _is_utf8(other)
        if self.is_json and not is_read:
            texts = [each.decode("utf-8", "surrogateescape") for each in (one, other)]
            if not any(_MARK in text for text in texts):
                first, second = (self.fields(_masked(text)) for text in texts)
                complete = _unmasked
        return None if first is None or second is None else (first, second, complete)

    def fields(self, body: bytes | msgspec.Raw) -> Fields | None:
        """The fields of a body; `None` if it is no object, or damaged."""
        try:
            return self.read(body)
        except (ValueError, RecursionError):
            return None

    def inner(self, value: msgspec.Raw) -> Fields | None:
        """The fields within a value, if it has any."""
        return self.fields(value) if self.has_levels else None

    def is_null(self, name: str, value: msgspec.Raw) -> bool:
        """Whether a field has no value."""
        return bytes(value) == bytes(self.null(name))


def _pairs_format(message_type: str) -> _Format:
    lengths = {str(of): str(data) for of, data in FIX_DATA_FIELDS.items()}

    def read(body: bytes | msgspec.Raw) -> Fields:
        pairs = pairs_of(bytes(body), message_type)
        if pairs is None:
            raise ValueError("damaged")
        chunks: dict[str, list[bytes]] = {}
        last = ""
        for name, value in pairs:
            owner = last if message_type == "fix" and lengths.get(last) == name else name
            text = value if isinstance(value, bytes) else value.encode()
            chunks.setdefault(owner, []).append(b"%b=%b\x01" % (name.encode(), text))
            last = name
        return {name: msgspec.Raw(b"".join(each)) for name, each in chunks.items()}

    def write(fields: Changed) -> bytes:
        return b"".join(map(bytes, cast("Fields", fields).values()))

    def value(written: msgspec.Raw) -> Json:
        del written
        raise ValueError("a text")

    def null(name: str) -> msgspec.Raw:
        return msgspec.Raw(f"{name}=\x01".encode())

    return _Format(read, write, null, value, has_levels=False)


_MARK: Final = "\U0010ffff"
"""No character: it begins a mask. A text that contains it is not masked."""

_HALF_CHARS: Final = 6
_ESCAPE: Final = re.compile(  # a set comes first, so that all else is passed fast
    r"[\\\udc80-\udcff](?:(?<=\\)"
    r"(?:u[dD][89abAB]H\\u[dD][c-fC-F]H|u[dD][89a-fA-F]H|[^\udc80-\udcff]))?".replace(
        "H", "[0-9a-fA-F]{2}"
    )
)
"""An escape, which may be a surrogate pair or a lone surrogate; or a byte that is not UTF-8."""
_MASKED: Final = re.compile(f"{_MARK}(?:(u....)|x(..))")


def _masked(text: str) -> bytes:
    """Mask what filters can read, and msgspec cannot.

    That is a lone surrogate, as in a text that was cut within a pair, or a byte that is not UTF-8.
    """

    def mark(found: re.Match[str]) -> str:
        escape = found[0]
        if len(escape) == _HALF_CHARS:
            return _MARK + escape[1:]
        return escape if escape[0] == "\\" else f"{_MARK}x{ord(escape) - 0xDC00:02x}"

    return _ESCAPE.sub(mark, text).encode()


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unmasked(body: bytes) -> bytes:
    def unmark(found: re.Match[str]) -> str:
        return f"\\{found[1]}" if found[1] else chr(0xDC00 + int(found[2], 16))

    return _MASKED.sub(unmark, body.decode()).encode("utf-8", "surrogateescape")


def _always(null: bytes) -> Callable[[str], msgspec.Raw]:
    def written(name: str) -> msgspec.Raw:
        del name
        return msgspec.Raw(null)

    return written


_FORMATS: Final = {
    "json": _Format(
        msgspec.json.Decoder(Fields).decode,
        msgspec.json.encode,
        _always(b"null"),
        msgspec.json.decode,
        is_json=True,
    ),
    "msgpack": _Format(
        msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode,  # a name may be a number
        msgspec.msgpack.encode,
        _always(b"\xc0"),
        msgspec.msgpack.decode,
    ),
    "fix": _pairs_format("fix"),
    "nvfix": _pairs_format("nvfix"),
}


def has_deltas(message_type: str) -> bool:
    """Whether messages of a type can be merged; else a delta is the whole message."""
    if message_type.startswith(COMPOSITE_PREFIX):
        return not is_global(message_type)
    return message_type in _FORMATS


def merge_delta(stored: bytes, delta: bytes, message_type: str = "json") -> bytes:
    """The message that a delta publish makes of a stored one.

    A body without fields, a damaged one or one that is too large is the whole message.

    Raises:
        RecursionError: The two have more levels than are followed.
    """
    if is_too_large(stored, message_type) or is_too_large(delta, message_type):
        return delta
    if message_type.startswith(COMPOSITE_PREFIX):
        return _merge_parts(stored, delta, message_type)
    form = _FORMATS.get(message_type)
    if form is None:
        return delta
    pair = form.pair(stored, delta)
    if pair is None:  # nothing to merge, and nothing refused
        return delta
    before, change, complete = pair
    return complete(form.write(_merged(form, before, change, _levels(stored, delta))))


def _levels(one: bytes, other: bytes) -> int:
    """How many levels of two bodies are followed."""
    return MAX_READ_BYTES // max(1, len(one) + len(other))


def _merge_parts(stored: bytes, delta: bytes, message_type: str) -> bytes:
    before, change = parts_of(stored), parts_of(delta)
    if before is None or change is None or is_global(message_type):
        return delta
    parts = zip_longest(before, change, fillvalue=b"")
    return _composite(
        merge_delta(old, new, type_of_part(message_type, number)) if new else old
        for number, (old, new) in enumerate(parts)
    )


def _composite(parts: Iterable[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def _merged(form: _Format, before: Fields, change: Fields, levels: int) -> Changed:
    if not levels:
        raise RecursionError("too many levels for a delta")
    result: Changed = dict(before)
    for name, value in change.items():
        old = before.get(name)
        inner_before = None if old is None else form.inner(old)
        inner_change = None if inner_before is None else form.inner(value)
        if inner_before is not None and inner_change is not None:
            result[name] = _merged(form, inner_before, inner_change, levels - 1)
        elif old is None or not form.is_null(name, value):
            result[name] = value
    return result


class Delta:
    """What one update has changed in a record; computed once, when the first subscriber needs it.

    Args:
        before: The record.
        after: The message that replaces it.
        keys: The key fields of the topic.
        message_type: That of the topic.
    """

    __slots__ = ("_after", "_before", "_bodies", "_is_too_large", "_keys", "_message_type")

    def __init__(
        self, before: bytes, after: bytes, keys: Sequence[Path], message_type: str = "json"
    ) -> None:
        self._before = before
        self._after = after
        self._keys = keys
        self._message_type = message_type
        self._bodies: dict[int, bytes | None] = {}
        self._is_too_large = any(is_too_large(each, message_type) for each in (before, after))

    def body(self, style: int) -> bytes | None:
        """What a subscription of this style receives; `None` for nothing.

        It is the whole message for others than delta subscriptions, and where one of the two
        messages has no fields.
        """
        style &= Style.DELTA | Style.NO_EMPTIES | Style.SEND_KEYS
        if not style & Style.DELTA or self._is_too_large:
            return self._after
        if style not in self._bodies:
            composite = self._message_type.startswith(COMPOSITE_PREFIX)
            self._bodies[style] = self._make_parts(style) if composite else self._make(style)
        return self._bodies[style]

    def _make(self, style: int) -> bytes | None:
        form = _FORMATS.get(self._message_type)
        if form is None:
            return self._after
        pair = form.pair(self._before, self._after)
        if pair is None:
            return self._after
        before, after, complete = pair
        try:
            changes = _changes(form, before, after, _levels(self._before, self._after))
            if not changes and style & Style.NO_EMPTIES:
                return None
            if style & Style.SEND_KEYS or not style & Style.NO_EMPTIES:
                for path in self._keys:
                    _add(form, changes, after, path)
            return complete(form.write(changes))
        except RecursionError:  # more levels than are followed
            return self._after

    def _make_parts(self, style: int) -> bytes | None:
        """The delta of a composite message: a part is empty if nothing of it is sent."""
        before, after = parts_of(self._before), parts_of(self._after)
        if before is None or after is None or is_global(self._message_type):
            return self._after
        if before == after and style & Style.NO_EMPTIES:
            return None
        parts: list[bytes] = []
        for number, (old, new) in enumerate(zip_longest(before, after, fillvalue=b"")):
            keys = [
                Path(path.text, path.steps[1:])
                for path in self._keys
                if path.steps[0].name == str(number)
            ]
            if old == new and not keys:
                parts.append(b"")
            else:
                kind = type_of_part(self._message_type, number)
                parts.append(Delta(old, new, keys, kind).body(style) or b"")
        return _composite(parts)


def _changes(form: _Format, before: Fields, after: Fields, levels: int) -> Changed:
    """The fields of `after` that are not as they were, and NULL for each that is gone."""
    if not levels:
        raise RecursionError("too many levels for a delta")
    changes: Changed = {}
    for name, value in after.items():
        old = before.get(name, form.null(name))
        if bytes(old) == bytes(value):
            continue
        inner_before, inner_after = form.inner(old), form.inner(value)
        if inner_before is not None and inner_after is not None:
            if inner := _changes(form, inner_before, inner_after, levels - 1):
                changes[name] = inner
        elif not _are_equal(form, old, value):
            changes[name] = value
    for name, old in before.items():
        if name not in after and not form.is_null(name, old):
            changes[name] = form.null(name)
    return changes


def _are_equal(form: _Format, one: msgspec.Raw, other: msgspec.Raw) -> bool:
    try:
        return _equal(form.value(one), form.value(other))
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


def _add(form: _Format, changes: Changed, fields: Fields, path: Path) -> None:
    """Add the value at a path, or what holds it where that is not an object."""
    for number, step in enumerate(path.steps, 1):
        value = fields.get(step.name)
        present = changes.get(step.name)
        if value is None or isinstance(present, msgspec.Raw):  # the latter holds the value
            return
        inner = form.inner(value)
        if number == len(path.steps) or step.subscript is not None or inner is None:
            changes.setdefault(step.name, value)
            return
        if present is None:
            present = changes[step.name] = {}
        changes, fields = present, inner
