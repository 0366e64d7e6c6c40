"""Damage in the files of a journal: which message it hits, named by its bookmark.

A task that meets damage says so in its summaries, and reads on where it can: so one audit names
what is damaged in all files. Nothing else is judged then, since what cannot be read would seem
lost.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple

import pyarrow as pa

from haclient.errors import StoreCorrupt, StoreError
from haclient.pyspark.journal.log import open_segment
from haclient.pyspark.journal.reading import Split, SplitReader
from haclient.pyspark.rows import unsigned
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    JournalFormatError,
    Record,
    read_record,
)

_READ_BYTES: Final = 2**16
"""So much of a damaged block is looked at for the header of a message."""


class Damage(NamedTuple):
    """Damage in a file.

    Attributes:
        bookmark: The first message that it may have hit; empty if that cannot be told.
        position: Its position, if that is known.
        detail: Which file, where and what.
    """

    bookmark: str
    position: int | None
    detail: str

    @classmethod
    def of(cls, error: StoreCorrupt) -> Damage:
        """Name the message with which the damaged block of a segment begins.

        Its header is read without a checksum: so it may be what is damaged.
        """
        record = _first_record(error)
        if record is None:
            return cls("", None, str(error))
        return cls(f"{record.publisher_id}|{record.sequence}|", record.position, str(error))

    @classmethod
    def before(cls, error: StoreCorrupt, batch: pa.RecordBatch) -> Damage:
        """Name the first of some rows (publisher_id, sequence, position), read from elsewhere."""
        publisher, sequence, position = (column[0].as_py() for column in batch.columns)
        return cls(f"{unsigned(publisher)}|{unsigned(sequence)}|", position, str(error))

    def encode(self) -> str:
        """For the way from a task to the driver."""
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str) -> Damage:
        """What a task has said."""
        return cls(*json.loads(text))


class DamagedJournal(StoreError):
    """Files of a journal are damaged.

    Attributes:
        damages: What and where.
    """

    def __init__(self, damages: Iterable[Damage]) -> None:
        self.damages = sorted(set(damages), key=lambda each: (each.position or 0, each.detail))
        super().__init__("; ".join(each.detail for each in self.damages))


def note_damage(reader: SplitReader, split: Split, found: list[Damage]) -> Iterator[pa.RecordBatch]:
    """The rows of a split (publisher_id, sequence, position); damage is added to `found`."""
    replaced: list[StoreCorrupt] = []
    noting = replace(reader, on_damage=replaced.append)
    for piece in split.pieces:
        try:
            for batch in noting.read(replace(split, pieces=(piece,))):
                if replaced and batch.num_rows:
                    found += [Damage.before(error, batch) for error in replaced]
                    replaced.clear()
                yield batch
        except StoreCorrupt as error:
            found.append(Damage.of(error))
    found += [Damage("", None, str(error)) for error in replaced]


def _first_record(error: StoreCorrupt) -> Record | None:
    """The first message of a damaged block."""
    try:
        with open_segment(error.path) as file:
            file.seek(error.offset)
            data = file.read(_READ_BYTES)
        offset = BLOCK_HEADER_BYTES
        while True:
            record, offset = read_record(data, offset, len(data))
            if record.position:
                return record
    except (OSError, EOFError, JournalFormatError, struct.error, zlib.error, gzip.BadGzipFile):
        return None
