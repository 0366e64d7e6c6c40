"""A place of a log for a file next to it, which says what there was before that place.

The file is true of the log only if the log still has the place: its youngest start then, and the
header of the last block before the place with the checksums in it. A log that lost its end and was
then continued has another block there.
"""

from __future__ import annotations

from typing import NamedTuple

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    JournalFormatError,
    headers,
    read_block_header,
)


class LogPlace(NamedTuple):
    """A place of a log, at the end of a block.

    Attributes:
        start_id: The youngest start of the log.
        end: The place.
        block: The offset of the last block before it.
        header: The header of that block.
        next_position: The position of the first message after it.
    """

    start_id: int
    end: Cursor
    block: int
    header: bytes
    next_position: int


def end_of(journal: JournalFiles) -> LogPlace:
    """The end of a log, while nothing is appended."""
    live, block = journal.live, journal.last_block
    header = journal.read_bytes(block.segment, BLOCK_HEADER_BYTES, block.offset)
    start_id = journal.log_starts[-1].id
    end = Cursor(live.number, live.end)
    return LogPlace(start_id, end, block.offset, header, journal.next_position)


def place_problem(journal: JournalFiles, place: LogPlace) -> str:
    """Why a log does not have a place; empty if it has."""
    starts = journal.log_starts
    known = [start.id for start in starts]
    if place.start_id not in known:
        return f"it is of another log (no start {place.start_id:016x})"
    later = starts[known.index(place.start_id) + 1 :]
    if any(start.first_position < place.next_position for start in later):
        return "the log has lost its end since"
    number, offset = place.end
    segment = journal.segments.get(number)
    if segment is None or not 0 < place.block < offset <= segment.end:
        return "the log has lost its end since"
    header = journal.read_bytes(number, BLOCK_HEADER_BYTES, place.block)
    if header != place.header:
        return "the log has another block there"
    return "" if _is_end(journal, place) else "it names another end of the block that is there"


def _is_end(journal: JournalFiles, place: LogPlace) -> bool:
    """Whether the block before a place ends there: not every file has a checksum of its place."""
    number, offset = place.end
    block = journal.read_bytes(number, offset - place.block, place.block)
    try:
        header = read_block_header(block, place.block, segment=number, base=place.block)
        if header is None or BLOCK_HEADER_BYTES + header.length != len(block):
            return False
        highest = max((fields[4] for _, fields in headers(block)), default=0)
    except JournalFormatError:
        return False
    return place.next_position == (highest + 1 if highest else header.first_position)
