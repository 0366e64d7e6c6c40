from __future__ import annotations

import pytest

from haclient_stores import header_page
from haclient_stores.errors import StoreCorrupt, StoreError, UsageError
from haclient_stores.header_page import Identity

MAGIC = b"HATESTED"
BOOT = bytes(range(16))
PATH = "some.file"
IDENTITY = Identity(MAGIC, 4096, 1 << 20, 77)


def new_page() -> bytearray:
    page = bytearray(4096)
    header_page.write_identity(memoryview(page), IDENTITY, BOOT)
    return page


def read(page: bytes | bytearray) -> Identity | None:
    return header_page.read_identity(bytes(page), magic=MAGIC, path=PATH)


def test_a_header_is_read_as_it_was_written() -> None:
    page = new_page()
    assert read(page) == IDENTITY
    assert page[header_page.BOOT_ID_OFFSET : header_page.BOOT_ID_OFFSET + 16] == BOOT
    assert read(page[: header_page.IDENTITY_BYTES]) == IDENTITY


@pytest.mark.parametrize("page", [b"", bytes(8), bytes(4096), bytes(8) + b"rest of an old header"])
def test_a_page_without_magic_is_not_in_use(page: bytes) -> None:
    assert read(page) is None


@pytest.mark.row("PS21")
@pytest.mark.parametrize("offset", range(header_page.IDENTITY_BYTES))
def test_a_damaged_header_is_never_believed(offset: int) -> None:
    page = new_page()
    page[offset] ^= 0x20
    with pytest.raises(StoreCorrupt) as caught:
        read(page)
    assert caught.value.offset == 0


@pytest.mark.row("PS21")
@pytest.mark.parametrize("size", range(1, header_page.IDENTITY_BYTES))
def test_a_header_that_ends_early_is_never_believed(size: int) -> None:
    with pytest.raises(StoreCorrupt):
        read(new_page()[:size])


def test_the_file_of_another_format_is_named() -> None:
    with pytest.raises(StoreCorrupt, match=r"some\.file.*not a HAOTHERS file.*HATESTED"):
        header_page.read_identity(bytes(new_page()), magic=b"HAOTHERS", path=PATH)


def test_a_newer_format_says_both_versions() -> None:
    page = bytearray(4096)
    header_page.write_identity(memoryview(page), Identity(MAGIC, 4096, version=2), BOOT)
    what = "format version 2, newer than version 1 that this version of haclient reads: use a newer"
    with pytest.raises(StoreError, match=what) as caught:
        read(page)
    assert not isinstance(caught.value, StoreCorrupt)  # nothing is wrong with the file


def test_an_older_format_says_so_and_each_format_counts_its_own_versions() -> None:
    page = bytearray(4096)
    identity = Identity(MAGIC, 4096, version=2)
    header_page.write_identity(memoryview(page), identity, BOOT)
    assert header_page.read_identity(page, magic=MAGIC, path=PATH, version=2) == identity
    with pytest.raises(StoreError, match="format version 2, older than version 3"):
        header_page.read_identity(page, magic=MAGIC, path=PATH, version=3)


@pytest.mark.parametrize("value", [0, 1, 2**32, 2**63, 2**64 - 1])
def test_a_word_is_read_as_it_was_written(value: int) -> None:
    page = bytearray(4096)
    header_page.write_word(memoryview(page), header_page.SECOND_WORD, value)
    assert header_page.read_word(bytes(page), header_page.SECOND_WORD) == value


@pytest.mark.row("PS21")
@pytest.mark.parametrize("bit", range(128))
def test_a_damaged_word_is_as_good_as_none(bit: int) -> None:
    page = bytearray(16)
    header_page.write_word(memoryview(page), 0, 123_456_789)
    page[bit // 8] ^= 1 << bit % 8
    assert header_page.read_word(bytes(page), 0) == 0
    assert header_page.read_word(bytes(16), 0) == 0


@pytest.mark.parametrize("name", ["a", "orders", "größe", "odd \udcff byte", "x" * 1024])
def test_an_owner_is_read_as_it_was_written(name: str) -> None:
    page = bytearray(4096)
    assert header_page.read_owner(bytes(page), path=PATH) == ""
    header_page.write_owner(memoryview(page), name)
    assert header_page.read_owner(bytes(page), path=PATH) == name


@pytest.mark.parametrize("name", ["", "x" * 1025, "é" * 513])
def test_an_owner_has_a_name_that_fits(name: str) -> None:
    page = bytearray(4096)
    with pytest.raises(UsageError, match="1 to 1024 bytes"):
        header_page.write_owner(memoryview(page), name)
    assert page == bytes(4096)


@pytest.mark.row("PS21")
@pytest.mark.parametrize("offset", range(header_page.OWNER_OFFSET, header_page.OWNER_OFFSET + 14))
def test_a_damaged_owner_is_never_believed(offset: int) -> None:
    page = bytearray(4096)
    header_page.write_owner(memoryview(page), "orders")
    page[offset] ^= 0x41
    with pytest.raises(StoreCorrupt) as caught:
        header_page.read_owner(bytes(page), path=PATH)
    assert caught.value.offset == header_page.OWNER_OFFSET
