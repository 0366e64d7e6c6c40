"""What has left the message queues of a broker, from its journal: one row for each removal.

Removals are records without a position, so `format("amps-journal")` has no rows of them. Here a
removal has the position of the last record before it: the message that it names has this position
or a lower one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from haclient.pyspark.journal.log import JournalChunk, JournalLog, read_pieces
from haclient.pyspark.journal.pieces import Piece, pack
from haclient.pyspark.journal.records import Integers, headers_at, record_offsets
from haclient.pyspark.rows import in_tasks
from haclient_fake_server.journal.format import (
    QUEUE_ENTRY,
    SEGMENT_HEADER_BYTES,
    RecordCommand,
    read_record,
    read_removals,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REMOVALS_DDL: Final = (
    "queue STRING, message_type STRING, publisher_id BIGINT, sequence BIGINT, reason INT, "
    "position BIGINT, timestamp TIMESTAMP"
)

_ENTRY: Final = np.dtype([("publisher_id", "<i8"), ("sequence", "<i8"), ("reason", "u1")])
"""`haclient_fake_server.journal.format.QUEUE_ENTRY` as a structure of numpy, with signed numbers
as rows have them."""

_TIME: Final = pa.timestamp("us", tz="UTC")
_SPLIT_BYTES: Final = 128 * 2**20
"""Bytes of the journal that one task reads, as the journal source has them by default."""


def removals_of(spark: SparkSession, log: JournalLog) -> DataFrame:
    """The removals of a log, up to the end that it had when it was refreshed last.

    Args:
        spark: The session; its workers can read the files.
        log: The log.
    """
    return in_tasks(
        spark, removal_splits(log), partial(read_removal_batches, log.directory), REMOVALS_DDL
    )


def removal_splits(log: JournalLog, split_bytes: int = _SPLIT_BYTES) -> list[list[Piece]]:
    """All blocks of a log, in splits of a limited size; one stride of the index is never cut.

    Args:
        log: The log.
        split_bytes: Size of a split.
    """
    pieces: list[Piece] = []
    for manifest in log.manifests:
        # Not from the first entry of the index on: there may be removals before any message.
        edges = [SEGMENT_HEADER_BYTES, *(each.offset for each in manifest.index[1:])]
        bounds = pairwise([*edges, manifest.data_bytes])
        pieces += [Piece(manifest.number, begin, end) for begin, end in bounds if begin < end]
    return pack(pieces, split_bytes)


def read_removal_batches(directory: Path, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """The removals in some blocks, a record batch for each record of them.

    Args:
        directory: Where the journal is.
        pieces: The blocks.

    Raises:
        DataLoss: A segment was removed.
        StoreCorrupt: A block is damaged.
        StoreError: The file cannot be read.
    """
    for chunk in read_pieces(directory, pieces):
        offsets = record_offsets(chunk.data, chunk.blocks, base=chunk.base)
        headers = headers_at(chunk.data, offsets)
        found = np.flatnonzero(headers["command"] == RecordCommand.QUEUE_REMOVE)
        if len(found):
            before = chunk.blocks[0].first_position - 1
            positions = np.maximum.accumulate(headers["position"].astype(np.int64))
            yield from _batches(chunk, offsets[found], np.maximum(positions[found], before))


def _batches(
    chunk: JournalChunk, offsets: Integers, positions: Integers
) -> Iterator[pa.RecordBatch]:
    for offset, position in zip(offsets.tolist(), positions.tolist(), strict=True):
        record, _ = read_record(chunk.data, offset, len(chunk.data))
        if len(record.payload) % QUEUE_ENTRY.size:
            read_removals(record)  # raises the error that says so
        entries = np.frombuffer(record.payload, _ENTRY)
        count = len(entries)
        columns = {
            "queue": pa.repeat(record.key.decode("utf-8", "replace"), count),
            "message_type": pa.repeat(record.correlation_id.decode("utf-8", "replace"), count),
            "publisher_id": pa.array(np.ascontiguousarray(entries["publisher_id"])),
            "sequence": pa.array(np.ascontiguousarray(entries["sequence"])),
            "reason": pa.array(entries["reason"].astype(np.int32)),
            "position": pa.repeat(position, count),
            "timestamp": pa.repeat(pa.scalar(record.timestamp_us, _TIME), count),
        }
        yield pa.record_batch(columns)
