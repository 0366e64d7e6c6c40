"""The rows of a split, for batches and streams: from Parquet files or from the journal itself.

A piece of a sealed segment is read from its Parquet file, of which only the wanted columns are
decoded. It is read from the journal as long as there is no such file, if the file is damaged, or if
so few rows are wanted that decoding a whole row group costs more. Whatever the source, rows are
those of the piece's positions, so each is there once, also when the file or the segment comes or
goes between planning and reading, or damage is found halfway.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from haclient.errors import StoreCorrupt, StoreError
from haclient.pyspark.journal.log import read_pieces
from haclient.pyspark.journal.pieces import Piece
from haclient.pyspark.journal.records import RowRange, Topics, record_offsets, rows_of
from haclient.pyspark.journal.sealed import Extent, SealedFile, sealed_file, warn
from haclient.pyspark.rows import DataLoss, arrow_schema

MIN_SEALED_ROWS: Final = 25_000
"""Fewer rows are read from the journal: a row group has 100 000."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split(InputPartition):
    """What one task reads.

    Attributes:
        pieces: Whole blocks of segments.
        wanted: Positions and times of the rows.
        topics: By topic id, the topics that are wanted.
        has_all_topics: No record has another topic.
        extents: By segment, what tells its Parquet file from one of another journal; `None` where
            it was not sealed when the query was planned: a file is of before a restore, perhaps.
    """

    pieces: Sequence[Piece]
    wanted: RowRange
    topics: Mapping[int, str]
    has_all_topics: bool
    extents: Mapping[int, Extent | None]


@dataclass(frozen=True, slots=True)
class SplitReader:
    """Reads splits of one journal.

    Args:
        directory: Where the journal is.
        columns: Names of the columns, in order.
        fail_on_data_loss: Whether rows that were removed since the query was planned are an error.
        on_damage: Called when a Parquet file is damaged and the journal is read instead.
    """

    directory: Path
    columns: Sequence[str]
    fail_on_data_loss: bool = True
    on_damage: Callable[[StoreCorrupt], None] = warn

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows of a split, in batches of any size.

        Args:
            split: What to read.

        Raises:
            DataLoss: A segment was removed since the query was planned, and has no Parquet file.
            StoreCorrupt: What there is of a segment is damaged.
            StoreError: A file cannot be read.
        """
        topics = Topics(split.topics, is_all=split.has_all_topics)
        for piece in split.pieces:
            try:
                yield from self._read_piece(piece, split, topics)
            except DataLoss as error:
                if self.fail_on_data_loss:
                    raise
                _log.warning("%s", error)

    def _read_piece(self, piece: Piece, split: Split, topics: Topics) -> Iterator[pa.RecordBatch]:
        wanted = split.wanted.intersection(RowRange(piece.first_position, piece.next_position))
        extent = split.extents[piece.segment]
        file = None if extent is None else self._worthy_file(piece.segment, extent, wanted)
        damage: StoreError | None = None
        if file is not None:
            try:
                for next_position, batches in self._read_sealed(file, wanted, topics):
                    yield from batches
                    wanted = wanted._replace(first_position=next_position)
            except StoreCorrupt as error:
                damage = error
                self.on_damage(error)
            except StoreError as error:
                damage = error
                warn(error)
            else:
                return
        try:
            yield from self._read_journal(piece, wanted, topics)
        except DataLoss as error:
            if damage is not None:
                raise damage from error
            # It was removed, which a broker that seals does only when the file is there.
            file = sealed_file(self.directory, piece.segment, extent)
            if file is None:
                raise
            for _, batches in self._read_sealed(file, wanted, topics):
                yield from batches

    def _worthy_file(self, number: int, extent: Extent, wanted: RowRange) -> SealedFile | None:
        file = sealed_file(self.directory, number, extent, on_damage=self.on_damage)
        few = min(MIN_SEALED_ROWS, extent.next_position - extent.first_position)
        return file if wanted.end_position - wanted.first_position >= few else None

    def _read_journal(
        self, piece: Piece, wanted: RowRange, topics: Topics
    ) -> Iterator[pa.RecordBatch]:
        for data, base, blocks in read_pieces(self.directory, [piece]):
            offsets = record_offsets(data, blocks, base=base)
            yield rows_of(data, offsets, self.columns, wanted=wanted, topics=topics)

    def _read_sealed(
        self, file: SealedFile, wanted: RowRange, topics: Topics
    ) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
        """The wanted rows of each row group of a Parquet file, and the position after the group."""
        names = [*self.columns]
        if wanted.has_times:
            names.append("timestamp")
        if not topics.is_all:
            names.append("topic_id")
        read = file.read([*dict.fromkeys(names)], wanted.first_position, wanted.end_position)
        schema = arrow_schema(self.columns)
        for next_position, table in read:
            mask = np.ones(table.num_rows, np.bool_)
            if not topics.is_all:
                mask &= topics.indexes(table["topic_id"].to_numpy().view(np.uint32)) >= 0
            if wanted.has_times:
                times = table["timestamp"].cast(pa.int64()).to_numpy()
                mask &= (times >= wanted.from_us) & (times < wanted.until_us)
            found = table if mask.all() else table.filter(pa.array(mask))
            batches = found.select([*self.columns]).to_batches()
            yield (
                next_position,
                [pa.RecordBatch.from_arrays(each.columns, schema=schema) for each in batches],
            )
