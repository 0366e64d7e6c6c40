"""Reads queued messages: those of the current batch from memory, all others from the journal.

A queue knows the place of each record in the journal. For a message of the current batch that is
the offset in a block that is not written yet. So the contents of these messages are kept until the
next batch begins; by then the block was written, and the place where it begins is known.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

from haclient_fake_server.engine.journal import Block, Cursor, JournalReader
from haclient_fake_server.engine.queues.message_table import (
    MessageRow,
    Place,
    RowColumns,
    split_place,
    to_place,
)
from haclient_fake_server.journal.format import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    JournalFormatError,
    headers,
)

READ_AHEAD_BYTES: Final = 64 * 1024
"""What one read of the journal takes: the next messages of the queue are often in it."""

REREAD_BYTES: Final = 2**20
"""What one read takes of what a table has paged out."""

_NO_POSITION: Final = 1 << 64


class Content(NamedTuple):
    """What a consumer gets of a record, besides its bookmark.

    Attributes:
        body: The message.
        correlation_id: As bytes of the log; empty for none.
        timestamp_us: When it was received, in microseconds since 1970.
    """

    body: bytes
    correlation_id: bytes
    timestamp_us: int


class MessageReader:
    """Reads the contents of queued messages.

    Attributes:
        fresh_from: The position of the first message of the current batch; above all others when
            there is none.
    """

    def __init__(self, journal: JournalReader) -> None:
        self._journal = journal
        self.fresh_from = _NO_POSITION
        self._fresh: dict[int, Content] = {}  # the messages of the current batch, by position
        self._block_bytes = 0
        self._segment = self._start = 0  # where the bytes are that were read last
        self._data = b""

    def add(self, position: int, content: Content) -> None:
        """Keep a message of the current batch."""
        if not self._fresh:
            self.fresh_from = position
        self._fresh[position] = content

    def close_batch(self, block: Block | None) -> None:
        """The batch ends with this block."""
        self._block_bytes = 0 if block is None else len(block.records)

    def begin_batch(self) -> Place:
        """The last block was written: where its records begin."""
        self.fresh_from = _NO_POSITION
        self._fresh.clear()
        live = self._journal.live
        # Nothing was appended after that block.
        return to_place(Cursor(live.number, live.end - self._block_bytes))

    def content(self, position: int, place: Place) -> Content | None:
        """A message, `None` if its segment was removed.

        Args:
            position: Its position.
            place: Where it is.
        """
        if position >= self.fresh_from:
            return self._fresh.get(position)
        number, offset = split_place(place)
        at = offset - self._start
        if self._segment != number or not 0 <= at < len(self._data):
            if not self._fill(number, offset):
                return None
            at = offset - self._start
        return content_of(self._data, at)

    def contents(self, rows: Sequence[MessageRow], max_bytes: int) -> list[Content]:
        """The first ones of some messages, until they are large enough.

        Args:
            rows: The messages.
            max_bytes: What the bodies may come to before the last one that is returned.

        Returns:
            At least one, unless the segment of the first one was removed.
        """
        found: list[Content] = []
        for position, _, _, place in rows:
            content = self.content(position, place)
            if content is None:
                break
            found.append(content)
            max_bytes -= len(content.body)
            if max_bytes < 0:
                break
        return found

    def reread(self, positions: Sequence[int]) -> RowColumns:
        """What the journal has of some messages; zeros for those that were removed from it.

        Args:
            positions: Their positions, rising.
        """
        places, publishers, sequences = (array("Q", bytes(8 * len(positions))) for _ in range(3))
        rows, last = dict(zip(positions, count(), strict=False)), positions[-1]
        journal = self._journal
        for segment, number in journal.strides_from(positions[0]):
            strides = segment.index.strides
            first, behind = strides[number].position, segment.manifest.next_position
            if number + 1 < len(strides):
                behind = strides[number + 1].position
            if first > last:
                break
            # What has none of them is not read: they may be far apart in the log.
            next_one = positions[bisect_left(positions, first)]
            if next_one >= behind or not journal.has_segment(segment.number):
                continue
            offset, _ = segment.index.span(number, segment.end)
            for chunk in journal.read_stride(segment, number, REREAD_BYTES):
                begin = to_place(Cursor(segment.number, offset))
                offset += len(chunk)
                for at, fields in headers(chunk):
                    row = rows.get(fields[4])
                    if row is not None:
                        places[row], publishers[row] = begin + at, fields[5]
                        sequences[row] = fields[6]
        return places, publishers, sequences

    def _fill(self, number: int, offset: int) -> bool:
        """Read the blocks from that of a record on; whether its segment is still there."""
        journal = self._journal
        if not journal.has_segment(number):
            return False
        cursor = Cursor(self._segment, self._start + len(self._data))
        if cursor.segment != number or not 0 <= offset - cursor.offset < READ_AHEAD_BYTES:
            cursor = journal.block_at(number, offset)
        data = b""
        while cursor.offset <= offset:  # the one that follows what was read last may be before it
            data, cursor = journal.read(cursor, READ_AHEAD_BYTES)
        # Together, and last: a read may fail.
        self._data, self._segment, self._start = data, number, cursor.offset - len(data)
        return True


def content_of(data: bytes, at: int) -> Content:
    """What the record at an offset contains.

    Raises:
        JournalFormatError: A length does not fit, which checksummed blocks never show.
    """
    # Not `read_record`, which takes twice the time, once for each message of a queue.
    fields = RECORD_HEADER.unpack_from(data, at)
    length, _, _, expiration_bytes, _, _, _, timestamp_us, _, key_bytes, correlation_bytes = fields
    correlation_at = at + RECORD_HEADER_BYTES + key_bytes
    expiration_at = correlation_at + correlation_bytes
    body_at, end = expiration_at + expiration_bytes, at + length
    if body_at > end:
        raise JournalFormatError(at, "the lengths in a record header do not add up")
    return Content(data[body_at:end], data[correlation_at:expiration_at], timestamp_us)
