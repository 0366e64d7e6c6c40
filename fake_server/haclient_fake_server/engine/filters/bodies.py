"""The bodies of each message type, as trees of fields.

`json` and `msgpack` are what they are; of the others:

* `fix` and `nvfix`: an object of texts. A field that is given more than once is an array. A data
  field of FIX is as long as the field before it says.
* `composite-TYPE-TYPE`, `composite-local-TYPE-TYPE`: parts of these types, which are the fields
  `0`, `1` and so on. The last type is that of all further parts; without one, all are JSON.
* `composite-global-TYPE-TYPE`: one object of the fields of all parts; what several of them have is
  an array.

Bodies of other types have no fields, and neither have damaged ones, nor those that are too large to
be parsed in one step.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, TypeAlias

import msgpack
import msgspec

from haclient.codecs import FixCodec, NvfixCodec
from haclient.errors import DecodeError
from haclient_fake_server.engine.filters.values import integer_from

Json: TypeAlias = "bool | int | float | str | bytes | list[Json] | dict[str, Json] | None"
Parser: TypeAlias = Callable[[bytes], Json]
Pairs: TypeAlias = "list[tuple[str, str | bytes]]"

MAX_FIELDS: Final = 50_000
"""Values of a body, or parts of a composite one, which Python takes apart one by one: a body with
more counts as damaged."""

MAX_PARSED_BYTES: Final = 16 * 2**20
"""A longer body counts as damaged, too."""

MAX_MSGPACK_BYTES: Final = 2**19
"""The same for MessagePack, whose values cannot be counted without parsing."""

TOO_LARGE: Final = (
    f"a body with more than {MAX_FIELDS} values or {MAX_PARSED_BYTES} bytes, "
    f"{MAX_MSGPACK_BYTES} of msgpack"
)

_MARKS: Final = (b",", b"[", b"{", b"\x01")
"""What separates values; those within texts count, too."""

COMPOSITE_PREFIX: Final = "composite-"
"""What the names of composite message types begin with."""

_FIX: Final = FixCodec()
_NVFIX: Final = NvfixCodec()


@lru_cache(maxsize=64)  # asked for each message, of the few types that there are
def parser_of(message_type: str) -> Parser:
    """The parser of a message type, which returns `None` for a damaged body."""
    if message_type.startswith(COMPOSITE_PREFIX):
        return partial(_parse_composite, message_type)
    if message_type in {"fix", "nvfix"}:
        return partial(_parse_pairs, message_type)
    parsers: dict[str, Parser] = {"json": parse_json, "msgpack": _parse_msgpack}
    return parsers.get(message_type, _no_fields)


def has_fields(message_type: str) -> bool:
    """Whether bodies of a message type have fields."""
    return parser_of(message_type) is not _no_fields


def _no_fields(body: bytes) -> Json:
    del body
    return None


def is_too_large(body: bytes, message_type: str) -> bool:
    """Whether parsing a body would hold up all clients."""
    if "msgpack" in message_type:
        return len(body) > MAX_MSGPACK_BYTES
    if len(body) <= MAX_FIELDS:
        return False
    return len(body) > MAX_PARSED_BYTES or sum(map(body.count, _MARKS)) > MAX_FIELDS


def parse_json(body: bytes) -> Json:
    """The value of a JSON body; `None` when it is not JSON."""
    if len(body) > MAX_FIELDS and is_too_large(body, "json"):
        return None
    try:
        fast: Json = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # also undecodable text and numbers out of range
        return _parse_leniently(body)
    return fast


def _parse_leniently(body: bytes) -> Json:
    """As `parse_json`, for lone surrogates, foreign bytes and numbers of any size."""
    try:
        slow: Json = json.loads(
            body.decode("utf-8", "surrogateescape"), parse_int=integer_from, parse_constant=_refuse
        )
    except (ValueError, RecursionError):  # not JSON, or deeper than this process can follow
        return None
    return slow


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _parse_msgpack(body: bytes) -> Json:
    if is_too_large(body, "msgpack"):
        return None
    try:
        found: Json = msgpack.unpackb(
            body, strict_map_key=False, unicode_errors="surrogateescape", ext_hook=_no_value
        )
    except (ValueError, TypeError):  # also too deep, or with a list as a key
        return None
    return found


def _no_value(code: int, data: bytes) -> None:
    del code, data


def pairs_of(body: bytes, message_type: str) -> Pairs | None:
    """The fields of a FIX or NVFIX body, in their order; `None` for a damaged one."""
    if is_too_large(body, message_type):
        return None
    try:
        if message_type == "nvfix":
            return _NVFIX.decode(body)
        return [(str(tag), value) for tag, value in _FIX.decode(body)]
    except DecodeError:
        return None


def _parse_pairs(message_type: str, body: bytes) -> Json:
    pairs = pairs_of(body, message_type)
    return None if pairs is None else _gathered(pairs)


def _gathered(pairs: list[tuple[str, Json]] | Pairs) -> dict[str, Json]:
    """An object of names and values; a name that is given more than once has an array."""
    found: dict[str, list[Json]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return {name: each[0] if len(each) == 1 else each for name, each in found.items()}


def parts_of(body: bytes) -> list[bytes] | None:
    """The parts of a composite body; `None` for a damaged one."""
    parts: list[bytes] = []
    at = 0
    while at < len(body):
        begin = at + 4
        at = begin + int.from_bytes(body[at:begin])
        if begin > len(body) or at > len(body) or len(parts) == MAX_FIELDS:
            return None
        parts.append(body[begin:at])
    return parts


def is_global(message_type: str) -> bool:
    """Whether a composite message type has the fields of all parts in one object."""
    return message_type.removeprefix(COMPOSITE_PREFIX).partition("-")[0] == "global"


def type_of_part(message_type: str, number: int) -> str:
    """The message type of a part of a composite body."""
    types = message_type.removeprefix(COMPOSITE_PREFIX).split("-")
    if types[0] in {"local", "global"}:
        del types[0]
    return types[min(number, len(types) - 1)] if types else "json"


def _parse_composite(message_type: str, body: bytes) -> Json:
    parts = None if is_too_large(body, message_type) else parts_of(body)
    if parts is None:
        return None
    trees: list[Json] = []
    for number, part in enumerate(parts):
        kind = type_of_part(message_type, number)
        trees.append(parser_of(kind)(part))
    if not is_global(message_type):
        return {str(number): tree for number, tree in enumerate(trees)}
    return _gathered([pair for tree in trees if isinstance(tree, dict) for pair in tree.items()])
