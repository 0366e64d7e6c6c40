from __future__ import annotations

import pytest

from haclient_stores import framing
from haclient_stores.errors import StoreCorrupt, UsageError

MAGIC = b"HATESTED"


def page() -> bytearray:
    found = bytearray(4096)
    framing.write_identity(
        memoryview(found), framing.Identity(MAGIC, 4096, 65536, 17), bytes(range(16))
    )
    return found


def read(data: bytes | bytearray) -> framing.Identity | None:
    return framing.read_identity(bytes(data), magic=MAGIC, path="file")


@pytest.mark.row("PS21")
def test_a_header_reads_back_and_blank_pages_are_not_in_use() -> None:
    assert read(page()) == framing.Identity(MAGIC, 4096, 65536, 17)
    assert page()[framing.BOOT_ID_OFFSET :][:16] == bytes(range(16))
    assert read(bytes(4096)) is None
    assert read(b"") is None


@pytest.mark.row("PS21")
def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    for offset in range(framing.IDENTITY_BYTES):
        damaged = page()
        damaged[offset] ^= 1
        with pytest.raises(StoreCorrupt):
            read(damaged)


def test_another_format_and_another_version_are_refused() -> None:
    with pytest.raises(StoreCorrupt, match="not a HATESTED file"):
        read(b"PK\x03\x04".ljust(4096, b"x"))
    newer = bytearray(4096)
    framing.write_identity(memoryview(newer), framing.Identity(MAGIC, 4096, version=2), bytes(16))
    with pytest.raises(StoreCorrupt, match="version 2"):
        read(newer)


def test_a_checked_word_is_zero_unless_it_was_written_wholly() -> None:
    data = page()
    assert framing.read_word(bytes(data), framing.FIRST_WORD) == 0
    framing.write_word(memoryview(data), framing.FIRST_WORD, 2**64 - 1)
    assert framing.read_word(bytes(data), framing.FIRST_WORD) == 2**64 - 1
    data[framing.FIRST_WORD + 3] ^= 1
    assert framing.read_word(bytes(data), framing.FIRST_WORD) == 0


def test_the_owner_is_a_name_of_any_letters() -> None:
    data = page()
    assert framing.read_owner(bytes(data), path="file") == ""
    for name in ("me", "\udcff", "x" * framing.MAX_NAME_BYTES, "Zürich-7"):
        framing.write_owner(memoryview(data), name)
        assert framing.read_owner(bytes(data), path="file") == name
    data[framing.OWNER_OFFSET + 9] ^= 1
    with pytest.raises(StoreCorrupt, match="owner"):
        framing.read_owner(bytes(data), path="file")


@pytest.mark.parametrize("name", ["", "x" * (framing.MAX_NAME_BYTES + 1)])
def test_a_name_that_is_empty_or_too_long_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="1 to 1024 bytes"):
        framing.write_owner(memoryview(page()), name)


def seals_of(table: bytes | bytearray) -> list[framing.Seal]:
    return framing.read_seals(bytes(table), begin=100, first=5, path="file", at=256)


def test_seals_read_back_in_order_up_to_the_first_that_was_not_finished() -> None:
    table = bytearray(16 * 4)
    written = [framing.Seal(200, 1, 7), framing.Seal(300, 2**32 - 1, 2**63)]
    for index, seal in enumerate(written):
        framing.write_seal(memoryview(table), index, seal)
    table[40:48] = b"\1" * 8  # the next one, without the word that makes it valid
    assert seals_of(table) == written
    assert seals_of(b"") == []


@pytest.mark.parametrize("seal", [framing.Seal(100, 1, 7), framing.Seal(101, 1, 5)])
def test_a_table_that_goes_backwards_is_corrupt(seal: framing.Seal) -> None:
    with pytest.raises(StoreCorrupt) as caught:
        seals_of(framing.pack_seal(seal))
    assert caught.value.offset == 256
