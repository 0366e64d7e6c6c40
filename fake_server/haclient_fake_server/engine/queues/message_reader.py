"""Reads queued messages: those of the current batch from memory, all others from the journal.

A queue knows the place of each record in the journal. For a message of the current batch there is
none yet, since the block is written after the batch. So the batch's messages are kept until the
next one begins; by then the block was written, and their places are known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from haclient_fake_server.engine.journal import Block, Cursor, JournalReader
from haclient_fake_server.engine.queues.message_table import Place, split_place, to_place
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    RECORD_LENGTH,
    Record,
    read_record,
)

READ_AHEAD_BYTES: Final = 64 * 1024
"""What one read of the journal takes: the next messages of the queue are often in it."""

_LENGTH_AND_POSITION: Final = struct.Struct("<I4xQ")
"""The beginning of a record's header."""


class MessageReader:
    """Reads the records of queued messages.

    Attributes:
        fresh: The messages of the current batch, by position.
    """

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self.fresh: dict[int, Record] = {}
        self._offsets: list[tuple[int, int]] = []  # positions, and offsets in the last block
        self._block_bytes = 0
        self._segment = self._start = 0  # where the bytes are that were read last
        self._data = b""

    def close_batch(self, block: Block | None) -> None:
        """Note where the messages of the batch are in its block."""
        self._offsets = []
        if block is None or not self.fresh:
            return
        self._block_bytes = len(block.records)
        offset = 0
        while offset < self._block_bytes:
            length, position = _LENGTH_AND_POSITION.unpack_from(block.records, offset)
            if position in self.fresh:
                self._offsets.append((position, offset))
            offset += length

    def take_places(self) -> Iterator[tuple[int, Place]]:
        """The places of the messages of the last batch, which is written now, by position."""
        live = self._journal.live
        start = live.end - self._block_bytes  # nothing was appended after that block
        offsets, self._offsets = self._offsets, []
        self.fresh.clear()
        for position, offset in offsets:
            yield position, to_place(Cursor(live.number, start + offset))

    def record(self, position: int, place: Place) -> Record | None:
        """The record of a message, `None` if its segment was removed.

        Args:
            position: Its position.
            place: Where it is; 0 for a message of this batch.
        """
        return self._read(*split_place(place)) if place else self.fresh.get(position)

    def _read(self, number: int, offset: int) -> Record | None:
        at = offset - self._start
        if self._segment != number or not 0 <= at <= len(self._data) - RECORD_HEADER_BYTES:
            if not self._fill(number, offset):
                return None
            at = 0
        (length,) = RECORD_LENGTH.unpack_from(self._data, at)
        if at + length > len(self._data):
            if not self._fill(number, offset, at_least=length):
                return None
            at = 0
        return read_record(self._data, at, at + length)[0]

    def _fill(self, number: int, offset: int, *, at_least: int = 0) -> bool:
        """Read what begins at an offset of a segment; whether it is still there."""
        if not self._journal.has_segment(number):
            return False
        end = self._journal.segments[number].end
        wanted = min(max(READ_AHEAD_BYTES, at_least), end - offset)
        self._data = self._journal.read_bytes(number, wanted, offset)
        self._segment, self._start = number, offset
        return True
