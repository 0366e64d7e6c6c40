"""What a run of records comes to, without taking each of them apart.

A broker that starts reads a whole segment, hundreds of thousands of records, and wants little of
it: who has published how far, which topics there are, where it ends. This looks at headers only,
several times faster than reading records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from haclient_fake_server.journal.format import (
    RECORD_HEADER,
    Record,
    RecordFlag,
    read_records,
)

__all__ = ["Scan", "scan"]


@dataclass(slots=True)
class Scan:
    """What some records come to.

    Attributes:
        publishers: By publisher id, the lowest and highest sequence of its data records.
        assigned: Those of them whose sequences an instance assigned.
        confirmed: Whether every synchronous destination had the data records before this instance.
        special: The records without a position (definitions, marks, starts), whole.
        last_position: The highest position, 0 when there is none.
        last: Publisher and sequence of the record there.
        first_us: Time of the first record.
        last_us: Time of the last record.
    """

    publishers: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    assigned: set[int] = field(default_factory=set[int])
    confirmed: bool = False
    special: list[Record] = field(default_factory=list[Record])
    last_position: int = 0
    last: tuple[int, int] | None = None
    first_us: int = 0
    last_us: int = 0


def scan(data: bytes, start: int, end: int) -> Scan:
    """Look at the whole records between two offsets, usually those of one block.

    Raises:
        JournalFormatError: A definition or mark is malformed.
    """
    result = Scan()
    unpack, publishers = RECORD_HEADER.unpack_from, result.publishers
    offset = start
    fields: tuple[int, ...] = unpack(data, start)
    result.first_us = fields[7]
    while offset < end:
        fields = unpack(data, offset)
        after = offset + fields[0]
        if not fields[4]:
            result.special += read_records(data, offset, after)
        else:
            publisher, sequence = fields[5], fields[6]
            known = publishers.get(publisher)
            publishers[publisher] = (known[0] if known else sequence, sequence)
            if fields[1] & RecordFlag.ASSIGNED:
                result.assigned.add(publisher)
            result.confirmed = bool(fields[1] & RecordFlag.CONFIRMED)  # one source for each block
            result.last_position = fields[4]
            result.last = (publisher, sequence)
        offset = after
    result.last_us = fields[7]
    return result
