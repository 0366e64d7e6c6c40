from __future__ import annotations

import logging
from pathlib import Path

import pytest

from haclient_stores.disk.checksummed_log import (
    BrokenBlock,
    LogHistory,
    block_checksum,
    clear_tail,
    is_same_boot,
    read_blocks,
)
from haclient_stores.errors import StoreCorrupt, StoreError
from support.recording import Event, RecordingDisk, Synced, Write, failing_sync

PATH = Path("/stores/log")
SAME_BOOT = LogHistory(same_boot=True, synced_end=0)
BLOCK = 10


class Blocks:
    """A log of blocks of ten bytes, each of which repeats its number; zeros were never written."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.taken: list[int] = []

    def read(self, offset: int) -> int | None:
        block = self.data[offset : offset + BLOCK]
        if not any(block):
            return None
        if block != bytes([1 + offset // BLOCK]) * BLOCK:
            raise BrokenBlock(offset, "not the block that belongs here")
        self.taken.append(offset // BLOCK)
        return offset + BLOCK


def block(number: int) -> bytes:
    return bytes([1 + number]) * BLOCK


def test_a_checksum_covers_the_bytes_and_their_place() -> None:
    data = b"some bytes"
    assert block_checksum(data, position=4096) == block_checksum(memoryview(data), position=4096)
    assert block_checksum(data, position=4096) != block_checksum(data, position=8192)
    assert block_checksum(data, position=4096) != block_checksum(b"same bytes", position=4096)
    assert block_checksum(b"", position=2**64 - 1) != block_checksum(b"", position=0)


def test_blocks_are_read_up_to_where_none_was_written() -> None:
    blocks = Blocks(block(0) + block(1) + bytes(BLOCK) + block(3))
    assert read_blocks(PATH, 0, SAME_BOOT, blocks.read) == 2 * BLOCK
    assert blocks.taken == [0, 1]


@pytest.mark.parametrize("broken", [b"\x02" * 9 + b"\0", b"\0" + b"\x02" * 9, block(3)])
def test_a_block_that_is_not_whole_or_not_in_its_place_ends_the_log_after_a_start_of_the_machine(
    broken: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = Blocks(block(0) + broken + block(2))
    restarted = LogHistory(same_boot=False, synced_end=BLOCK)
    with caplog.at_level(logging.WARNING):
        assert read_blocks(PATH, 0, restarted, blocks.read) == BLOCK
    assert blocks.taken == [0]
    said = "/stores/log: byte 10: not the block that belongs here: it was not on disk when the"
    assert said in caplog.text


@pytest.mark.parametrize("history", [SAME_BOOT, LogHistory(same_boot=False, synced_end=BLOCK + 1)])
def test_a_broken_block_that_cannot_be_a_torn_tail_is_corruption(history: LogHistory) -> None:
    blocks = Blocks(block(0) + block(7))
    with pytest.raises(StoreCorrupt, match="not the block that belongs here") as caught:
        read_blocks(PATH, 0, history, blocks.read)
    assert (caught.value.path, caught.value.offset) == (PATH, BLOCK)


def test_a_log_that_ends_before_what_was_synced_is_corrupt() -> None:
    blocks = Blocks(block(0) + bytes(BLOCK))
    with pytest.raises(StoreCorrupt, match="synced up to byte 20, and ends here") as caught:
        read_blocks(PATH, 0, LogHistory(same_boot=False, synced_end=2 * BLOCK), blocks.read)
    assert caught.value.offset == BLOCK


def test_what_is_behind_the_end_is_cleared_and_that_is_synced() -> None:
    events: list[Event] = []
    data = block(0) + bytes(BLOCK) + block(2)
    file = RecordingDisk(events, image={PATH: data}).open(PATH)
    assert clear_tail(file, BLOCK, len(data))
    assert file.pread(100, 0) == block(0) + bytes(2 * BLOCK)
    assert [type(event) for event in events] == [Write, Synced]


def test_zeros_are_synced_too_since_a_killed_process_may_have_written_them() -> None:
    events: list[Event] = []
    file = RecordingDisk(events, image={PATH: block(0) + bytes(BLOCK)}).open(PATH)
    assert not clear_tail(file, BLOCK, 2 * BLOCK)
    assert [type(event) for event in events] == [Synced]


def test_a_tail_that_could_not_be_cleared_on_the_disk_is_there_for_the_next_process() -> None:
    data = block(0) + bytes(BLOCK) + block(2)
    disk = RecordingDisk([], image={PATH: data})
    file = disk.open(PATH)
    with failing_sync(disk):
        clear_tail(file, BLOCK, len(data))
    assert file.pread(100, 0) == data


def test_an_error_while_clearing_is_reported_as_it_is() -> None:
    disk = RecordingDisk([], image={PATH: block(0) + block(1)})
    file = disk.open(PATH)

    def fail(_: Event) -> None:
        raise StoreError("the disk has failed")

    disk.before = fail
    with pytest.raises(StoreError, match="the disk has failed"):
        clear_tail(file, 0, 2 * BLOCK)


@pytest.mark.parametrize(
    ("found", "now", "same"),
    [
        (b"1" * 16, b"1" * 16, True),
        (b"1" * 16, b"2" * 16, False),
        (bytes(16), b"2" * 16, False),
        (bytes(16), bytes(16), False),
    ],
)
def test_an_unknown_boot_is_not_the_same(found: bytes, now: bytes, *, same: bool) -> None:
    assert is_same_boot(found, now) == same
