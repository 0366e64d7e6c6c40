"""The header page of our files: what a file is, of which version, and whose.

What follows the header is each format's own: `publish_stores.segment_file`, the bookmark log and
ring. How logs with checksums are read back is in `disk.checksummed_log`.

Header page, little-endian, the same in each of our files:

======  =====  ================================================================
offset  bytes  meaning
======  =====  ================================================================
0       8      magic, which names the format; all zero = nothing in use here; written last
8       4      version of that format
12      4      bytes of header before the first record
16      8      bytes of the whole file when it was made; 0 = it grows
24      8      first sequence (a segment), else 0
32      4      crc32 of the 32 bytes before
48      16     boot id of the machine when it was last written
64      16     a checked word: see each format
80      16     a checked word
96      16     a checked word
112     16     a checked word
128     4      length of the owner's name in bytes; written last, at once with
132     4      crc32 of the name
136     ...    the owner's client name, UTF-8
======  =====  ================================================================

The first 36 bytes have this form in every version of every format, so a file of a newer version can
be distinguished from a damaged one: its checksum matches.

A checked word is an unsigned 64-bit number followed by its complement, so a word that was never
written, half written or damaged is recognized. Pure: bytes in, values out.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from haclient_stores.errors import StoreCorrupt, StoreError, UsageError

IDENTITY_BYTES: Final = 36
BOOT_ID_OFFSET: Final = 48
FIRST_WORD: Final = 64
SECOND_WORD: Final = 80
THIRD_WORD: Final = 96
FOURTH_WORD: Final = 112
OWNER_OFFSET: Final = 128
MAX_NAME_BYTES: Final = 1024

_MASK: Final = 2**64 - 1
_identity = struct.Struct("<8sIIQQ")
_word = struct.Struct("<QQ")
_crc = struct.Struct("<I")
_pair = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a file: its format, version and layout.

    Attributes:
        magic: 8 bytes that name the format.
        header_bytes: Where the first record is.
        file_bytes: Its size when it was made; 0 for a file that grows.
        first: The first sequence of a segment.
        version: The version of that format; each format counts its own.
    """

    magic: bytes
    header_bytes: int
    file_bytes: int = 0
    first: int = 0
    version: int = 1


def write_identity(page: memoryview, identity: Identity, boot_id: bytes) -> None:
    """Make a page the header of a new file; the magic comes last, so it is whole or unused."""
    page[:8] = bytes(8)
    packed = _identity.pack(
        identity.magic, identity.version, identity.header_bytes, identity.file_bytes, identity.first
    )
    page[8:IDENTITY_BYTES] = packed[8:] + _crc.pack(zlib.crc32(packed))
    page[IDENTITY_BYTES:BOOT_ID_OFFSET] = bytes(BOOT_ID_OFFSET - IDENTITY_BYTES)
    page[BOOT_ID_OFFSET : BOOT_ID_OFFSET + 16] = boot_id
    page[:8] = identity.magic


def read_identity(
    page: bytes | bytearray | memoryview, *, magic: bytes, path: str, version: int = 1
) -> Identity | None:
    """Read a header back.

    Args:
        page: The first page of the file, or as much of it as there is.
        magic: The format that it has to be of.
        path: The file, for errors.
        version: The version of the format that the caller reads.

    Returns:
        What the file is; None when it is not in use.

    Raises:
        StoreCorrupt: It is the header of something else, or damaged.
        StoreError: The file is whole, but of another version of the format.
    """
    start = bytes(page[:IDENTITY_BYTES]).ljust(IDENTITY_BYTES, b"\0")
    found, written, header_bytes, file_bytes, first = _identity.unpack_from(start)
    if found == bytes(8):
        return None
    if found != magic:
        raise StoreCorrupt(path, 0, f"not a {magic.decode()} file but one that starts {found!r}")
    if zlib.crc32(start[: _identity.size]) != _crc.unpack_from(start, _identity.size)[0]:
        raise StoreCorrupt(path, 0, "the header does not match its checksum")
    if written != version:
        how, whose = ("newer", "a newer") if written > version else ("older", "the older")
        raise StoreError(
            f"{path}: format version {written}, {how} than version {version} that this version of "
            f"haclient reads: use {whose} version of haclient, which has written it"
        )
    return Identity(found, header_bytes, file_bytes, first, written)


def write_word(page: memoryview, offset: int, value: int) -> None:
    """Write a checked word."""
    page[offset : offset + 16] = _word.pack(value, value ^ _MASK)


def read_word(page: bytes | bytearray | memoryview, offset: int) -> int:
    """Read a checked word; 0 when it was never written, or not wholly."""
    value, complement = _word.unpack_from(page, offset)
    return int(value) if value ^ complement == _MASK else 0


def read_word_pair(page: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    """The two values that a checked word may have, equal unless it is torn or damaged.

    A process that is killed between the two halves of a write leaves the new value and the old
    complement. Which of the two to believe depends on what is worse.

    Returns:
        The value and what its complement says; 0 where none was written.
    """
    value, complement = _word.unpack_from(page, offset)
    return int(value), int(complement) ^ _MASK if complement else 0


def write_owner(page: memoryview, name: str) -> None:
    """Note the client that a file belongs to; length and checksum come last, and at once.

    Raises:
        UsageError: The name is empty or too long.
    """
    data = name.encode("utf-8", "surrogateescape")
    if not 0 < len(data) <= MAX_NAME_BYTES:
        raise UsageError(
            f"a client name takes 1 to {MAX_NAME_BYTES} bytes, {name[:40]!r} takes {len(data)}"
        )
    page[OWNER_OFFSET + 8 : OWNER_OFFSET + 8 + len(data)] = data
    page[OWNER_OFFSET : OWNER_OFFSET + 8] = _pair.pack(len(data), zlib.crc32(data))


def read_owner(page: bytes | bytearray | memoryview, *, path: str) -> str:
    """The client that a file belongs to; empty before the first use.

    Raises:
        StoreCorrupt: The name does not match its checksum.
    """
    length, crc = _pair.unpack_from(page, OWNER_OFFSET)
    data = bytes(page[OWNER_OFFSET + 8 : OWNER_OFFSET + 8 + length])
    if len(data) < length or zlib.crc32(data) != crc:
        raise StoreCorrupt(path, OWNER_OFFSET, "the owner's name does not match its checksum")
    return data.decode("utf-8", "surrogateescape")
