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
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    RECORD_LENGTH,
    Record,
    read_records,
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
        self._window = Cursor(0, 0)
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

    def take_places(self) -> Iterator[tuple[int, Cursor]]:
        """The places of the messages of the last batch, which is written now, by position."""
        live = self._journal.live
        start = live.end - self._block_bytes  # nothing was appended after that block
        offsets, self._offsets = self._offsets, []
        self.fresh.clear()
        for position, offset in offsets:
            yield position, Cursor(live.number, start + offset)

    def read(self, place: Cursor) -> Record | None:
        """The record at a place, `None` if its segment was removed."""
        segment = self._journal.segments.get(place.segment)
        if segment is None:
            return None
        at = place.offset - self._window.offset
        if self._window.segment != place.segment or not self._holds(at):
            wanted = min(READ_AHEAD_BYTES, segment.end - place.offset)
            self._data = self._journal.read_bytes(place.segment, wanted, place.offset)
            (length,) = RECORD_LENGTH.unpack_from(self._data)
            if length > len(self._data):
                self._data = self._journal.read_bytes(place.segment, length, place.offset)
            self._window, at = place, 0
        (length,) = RECORD_LENGTH.unpack_from(self._data, at)
        return next(read_records(self._data, at, at + length))

    def _holds(self, at: int) -> bool:
        """Whether the whole record that begins there was read."""
        size = len(self._data)
        if not 0 <= at <= size - RECORD_HEADER_BYTES:
            return False
        (length,) = RECORD_LENGTH.unpack_from(self._data, at)
        return bool(at + length <= size)
