"""Reading headers that are not quite JSON (protocol 2.3).

This is the slow path: `haclient.protocol.codec` comes here only with a header that the typed
decoder has refused. What it accepts beyond JSON:

* long and short field names; unknown fields are skipped, of duplicates the last wins;
* strings with raw control characters, unknown escapes (the character itself is kept), bytes that
  are not UTF-8 (kept as surrogate escapes) and half surrogate pairs (U+FFFD);
* names and strings without quotes, numbers with them; what is no unsigned 64-bit number is absent;
* space anywhere between tokens, empty fields (`,,`), a missing `{`.

Whatever the typed decoder accepts gives the same result here; a property test holds the two
together. Headers never nest, so an object or a list as a value is malformed. Every pattern is
possessive: time is linear in the length of the input, however hostile it is. Errors tell where,
never what: a malformed header may hold a password.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from haclient.errors import ProtocolError
from haclient.protocol.headers import BY_SPELLING
from haclient.protocol.messages import Unsigned

__all__ = ["Fields", "parse_header"]

Fields = dict[str, "str | int | None"]
"""Values by attribute of `Message`; `None` where a number could not be read."""

_QUOTED: Final = rb'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_START: Final = re.compile(rb"[ \t\r\n]*+\{?")
_NAME: Final = re.compile(
    rb"[ \t\r\n,]*+(?:" + _QUOTED + rb"|([^ \t\r\n\"{}\[\]:,]++))[ \t\r\n]*+:[ \t\r\n]*+", re.DOTALL
)
_VALUE: Final = re.compile(
    rb"(?:" + _QUOTED + rb"|((?:[^\"{}\[,][^,}]*+)?+))[ \t\r\n]*+(?=[,}])", re.DOTALL
)
_END: Final = re.compile(rb"[ \t\r\n,]*+\}")
_ESCAPE: Final = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LARGEST: Final = 2**64 - 1
_MOST_DIGITS: Final = 20


def parse_header(data: bytes, start: int = 0) -> tuple[Fields, int]:
    """Read the header that begins at `start`: its fields, and where it ends.

    Raises:
        ProtocolError: There is no header there.
    """
    fields: Fields = {}
    position = _match(_START, data, start).end()
    while (end := _END.match(data, position)) is None:
        name = _match(_NAME, data, position)
        value = _match(_VALUE, data, name.end())
        position = value.end()
        header = BY_SPELLING.get(_text(name[1] if name[2] is None else name[2]))
        if header is not None:
            fields[header.attribute] = _value(value, number=header.kind is int)
    return fields, end.end()


def _match(pattern: re.Pattern[bytes], data: bytes, position: int) -> re.Match[bytes]:
    found = pattern.match(data, position)
    if found is None:
        raise ProtocolError(
            f"a header is malformed at its byte {position}: "
            "wanted a name and a value, or the closing brace"
        )
    return found


def _value(found: re.Match[bytes], *, number: bool) -> str | int | None:
    bare: bytes | None = found[2]
    text = _text(found[1]) if bare is None else _text(bare.rstrip())
    if number:
        return _number(text)
    return "" if bare is not None and text == "null" else text


def _number(text: str) -> int | None:
    digits = text.lstrip("0") or text[:1]
    if digits.isascii() and digits.isdigit():
        number = int(digits) if len(digits) <= _MOST_DIGITS else _LARGEST + 1
        return number if number <= _LARGEST else None
    try:  # 12.0 and 1e3 are what the typed decoder takes for 12 and 1000
        return msgspec.convert(text, Unsigned | None, strict=False)
    except (msgspec.MsgspecError, ValueError):
        return None


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(found: re.Match[str]) -> str:
    high, low, code, other = found.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    if high is not None:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    character = chr(int(code, 16))
    return "\ufffd" if "\ud800" <= character <= "\udfff" else character
