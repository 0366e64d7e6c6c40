"""Publisher ids and server versions.

Publisher ids are the same on every instance and in every run.

A publisher id is a CRC-64 of the client name: the reflected Jones polynomial, initial value all
ones, no final inversion. It is not secret. Uniqueness is guaranteed by the names, not by the ids.

A message published without a sequence gets its identity from the instance that accepted it. That id
is computed from the client name, a byte 1 and the instance name, so that it never collides with
numbers that a client assigns itself.

A version is dotted text whose first four parts are major, minor, maintenance and hotfix; the rest
names a build. Each part counts as 99 at most, so that `5.3.4.99` becomes 5030499.
"""

from __future__ import annotations

import re
from typing import Final

_POLYNOMIAL: Final = 0x95AC9329AC4BC9B5
_ALL_ONES: Final = 2**64 - 1
_BITS_OF_A_BYTE: Final = 8


def _table_entry(value: int) -> int:
    for _ in range(_BITS_OF_A_BYTE):
        value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE: Final = tuple(map(_table_entry, range(256)))


def crc64(data: bytes) -> int:
    """The CRC-64 of `data`, as the protocol uses it."""
    table = _TABLE
    crc = _ALL_ONES
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc


def publisher_id(client_name: str | bytes) -> int:
    """The publisher id of a client."""
    return crc64(_raw(client_name))


def instance_publisher_id(client_name: str | bytes, instance_name: str | bytes) -> int:
    """The publisher id of messages that a client publishes without a sequence, at one instance."""
    return crc64(_raw(client_name) + b"\x01" + _raw(instance_name))


def _raw(name: str | bytes) -> bytes:
    return name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name


_PARTS: Final = 4
_LARGEST_PART: Final = 99
_LEADING_DIGITS: Final = re.compile(r"[0-9]*")
_DIGITS_OF_A_PART: Final = 3  # more digits are more than 99 anyway


def version_number(version: str) -> int:
    """The number of a version; parsing stops at the first part that is not a number."""
    number = 0
    parts = version.split(".")[:_PARTS]
    weight = 100**_PARTS
    for part in parts:
        digits = _LEADING_DIGITS.match(part)
        weight //= 100
        if digits is None or not digits[0]:
            break
        number += weight * min(int(digits[0].lstrip("0")[:_DIGITS_OF_A_PART] or "0"), _LARGEST_PART)
        if digits[0] != part:
            break
    return number
