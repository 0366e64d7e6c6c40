"""A journal on disk, as a reader sees it: its segments, and which bytes of them hold some rows.

A broker may append to the journal, begin segments and remove the oldest ones while it is read. So a
reader first fixes an end: the end of the last whole block of the last segment. Blocks never change
and positions rise by one, so the same range always has the same rows.

The manifest of a sealed segment says what is in it. The others, usually the last one alone, have
none that is up to date: `JournalLog` walks their block headers and builds one, and goes on where it
has stopped when it is asked again. It looks into blocks with records of their own only (topics,
starts): they have more records than positions.

**The end of the last segment** is where no whole block follows. There, a block may be half written
at this moment, or a killed broker may have left one. If a whole block does follow, a block in
between was damaged, or a loss of power has taken it: that is an error. A broker that starts on the
journal tells the two apart, since it knows what its machine has synced; a reader may be elsewhere.

**The identity of a log** is the list of its starts: each time that a broker opens a log for
appending, it adds a random number and the position from which on it writes. A place is a position
and the last start before it. It belongs to a log that has this start, and in which no later start
began at an earlier position, which happens when the end of a log was lost with power.
"""

from __future__ import annotations

import gzip
import logging
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from haclient.errors import StoreCorrupt, StoreError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.journal.pieces import Piece, TopicTest, may_hold, strides, wanted_pieces
from haclient.pyspark.journal.records import HEADER, RowRange, headers_at, record_offsets
from haclient.pyspark.journal.sealed import SealedFile, sealed_file
from haclient.pyspark.rows import DataLoss, printable
from haclient_fake_server.journal.format import (
    BLOCK_HEADER_BYTES,
    COMPRESSED_SUFFIX,
    INDEX_STRIDE_BYTES,
    SEGMENT_HEADER_BYTES,
    TIMESTAMP,
    TIMESTAMP_AT,
    BlockHeader,
    DurablePlace,
    JournalFormatError,
    LogStart,
    Manifest,
    NewerVersionError,
    RecordCommand,
    SegmentHeader,
    Stride,
    manifest_name,
    read_blocks,
    read_records,
    read_start,
    segment_name,
    segment_number,
    whole_blocks_after,
)

CHUNK_BYTES: Final = 4 * 2**20
"""So much of a segment is read at once, and fits into a cache; a longer block is read whole."""

_NAMES: Final = ("utf-8", "surrogateescape")
"""How manifests keep names that are not UTF-8."""

_ATTEMPTS: Final = 5
"""So often segments may be removed while they are listed."""

_log = logging.getLogger(__name__)


class JournalChunk(NamedTuple):
    """Some bytes of a segment.

    Attributes:
        data: The bytes.
        base: Where they begin in the segment.
        blocks: The blocks that are whole in them, in order, checked by both checksums.
    """

    data: bytes
    base: int
    blocks: list[BlockHeader]


class JournalPlace(NamedTuple):
    """A place in a log: everything before `position` has been read.

    Attributes:
        position: The first position that was not read.
        start_id: The last start of the log that began at or before it; 0 when none is known.
    """

    position: int
    start_id: int


def open_segment(path: Path) -> BinaryIO:
    """Open a segment for reading, which a broker may have compressed.

    Raises:
        OSError: It is not there, or cannot be read.
    """
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        compressed = path.with_name(path.name + COMPRESSED_SUFFIX)
        if not compressed.exists():
            raise
        return cast("BinaryIO", gzip.open(compressed))


def read_chunks(
    path: Path, segment: int, start: int, end: int, *, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[JournalChunk]:
    """The blocks between two offsets of a segment, chunk by chunk.

    Ends early where zeros begin, and at the end of the file.

    Args:
        path: The segment's file.
        segment: Its number.
        start: Offset of the first block.
        end: Offset after the last one.
        chunk_bytes: How much is read at once.

    Raises:
        JournalFormatError: A block is not whole; all before it were given already.
        OSError: The file cannot be read.
    """
    size = chunk_bytes
    with open_segment(path) as file:
        while start < end:
            try:
                file.seek(start)
                data = file.read(min(size, end - start))
            except (EOFError, zlib.error, gzip.BadGzipFile) as damage:
                raise JournalFormatError(start, f"cannot be decompressed: {damage}") from damage
            blocks, error = _split(data, start, segment)
            if blocks:
                yield JournalChunk(data, start, blocks)
                start, size = blocks[-1].end, chunk_bytes
            elif error is None:
                return
            elif len(data) == size and size < end - start:  # the block may be longer than that
                size *= 2
            else:
                raise error


def _split(
    data: bytes, start: int, segment: int
) -> tuple[list[BlockHeader], JournalFormatError | None]:
    """The whole blocks at the beginning of `data`, and why they end."""
    blocks: list[BlockHeader] = []
    try:
        for block in read_blocks(memoryview(data), start, segment=segment, base=start):
            blocks.append(block)  # noqa: PERF402 - those before an error count
    except JournalFormatError as error:
        return blocks, error
    return blocks, None


def read_pieces(directory: Path, pieces: Iterable[Piece]) -> Iterator[JournalChunk]:
    """The blocks of some pieces.

    Args:
        directory: Where the journal is.
        pieces: Which bytes of it.

    Raises:
        DataLoss: A segment was removed.
        StoreCorrupt: A block is damaged.
        StoreError: The file cannot be read.
    """
    for number, start, end, *_ in pieces:
        path = directory / segment_name(number)
        try:
            for chunk in read_chunks(path, number, start, end):
                yield chunk
                start = chunk.blocks[-1].end  # noqa: PLW2901 - how far it was read
        except FileNotFoundError as error:
            raise DataLoss(
                f"{path} was removed after the query was planned: keep segments for longer, or "
                "read with failOnDataLoss=false"
            ) from error
        except JournalFormatError as error:
            raise StoreCorrupt(path, error.offset, error.what) from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if start < end:
            raise StoreCorrupt(path, start, f"the log ends here, blocks up to {end} were there")


class JournalLog:
    """The segments of a journal, as they were when it was opened, or `refresh` was called last.

    Args:
        directory: Where the journal is.
        instance: Name of the broker that has to have written it; `None` takes any.
        sealed: Segments that were removed count as long as their Parquet files are there.

    Attributes:
        manifests: What the segments hold, in order.
        starts: The most recent starts of the log, the youngest last.
        damage: Of a Parquet file, if the log seems to begin behind it for that.

    Raises:
        UsageError, StoreCorrupt, StoreError: As `refresh`.
    """

    def __init__(
        self, directory: Path, *, instance: str | None = None, sealed: bool = False
    ) -> None:
        self.directory = directory
        self.manifests: list[Manifest] = []
        self.starts: list[LogStart] = []
        self.damage: StoreCorrupt | None = None
        self._instance = instance
        self._takes_removed = sealed
        self._removed: dict[int, SealedFile] = {}
        self._complete: dict[int, Manifest] = {}
        self._scans: dict[int, _Scan] = {}
        self._prologues: dict[int, Sequence[LogStart]] = {}
        self._heads: dict[int, bytes] = {}
        self.refresh()

    @property
    def first_position(self) -> int:
        """The lowest position that is there, or the next one of an empty log."""
        return self.manifests[0].first_position

    @property
    def end_position(self) -> int:
        """The position that the next record will have."""
        return self.manifests[-1].next_position

    def refresh(self) -> None:
        """Look again at what is there.

        Raises:
            UsageError: There is no journal, or it is of another instance.
            StoreCorrupt: A segment is missing or damaged.
            StoreError: A newer version has written the journal, or it cannot be read.
        """
        for attempt in range(1, 1 + _ATTEMPTS):
            try:
                self._refresh(self._numbers())
            except (FileNotFoundError, StoreCorrupt, DataLoss):
                # The broker may remove the oldest segments in the meantime.
                if attempt == _ATTEMPTS:
                    raise
            except NewerVersionError as error:
                raise StoreError(f"{self.directory}: {error.what}") from error
            except OSError as error:
                raise StoreError(f"{self.directory} cannot be read: {error}") from error
            else:
                return

    def topics(self, is_wanted: TopicTest) -> dict[int, str]:
        """By topic id, the topics that are wanted."""
        known: dict[int, tuple[str, str]] = {}
        for manifest in reversed(self.manifests):
            known |= manifest.topics
        return {id_: printable(topic[1]) for id_, topic in known.items() if is_wanted(*topic)}

    def place(self, position: int) -> JournalPlace:
        """A position together with the identity of this log.

        Args:
            position: The first position that was not read.
        """
        starts = self.starts
        if not starts or starts[0].first_position > position:  # an old place
            starts = self._all_starts()
        begun = [start.id for start in starts if start.first_position <= position]
        return JournalPlace(position, begun[-1] if begun else 0)

    def check_place(self, place: JournalPlace, *, fail_on_data_loss: bool) -> int:
        """From which position a reader goes on that has read up to a place.

        Args:
            place: The place.
            fail_on_data_loss: Whether removed positions are an error; otherwise it goes on with the
                oldest that is there, after a warning.

        Raises:
            DataLoss: It is a place of another log, or of a lost end of this one; or positions were
                removed.
        """
        self.check_identity(place)
        if place.position >= self.first_position:
            return place.position
        if fail_on_data_loss:
            raise self.removed(place.position)
        lost = self.directory, place.position, self.first_position - 1
        _log.warning("%s: positions %d to %d were removed before they were read", *lost)
        return self.first_position

    def removed(self, position: int) -> DataLoss:
        """The error for positions that were removed.

        Args:
            position: The first that is wanted.
        """
        return DataLoss(
            f"{self.directory}: position {position} is wanted, the oldest that is left is "
            f"{self.first_position}: keep segments for longer, or read with failOnDataLoss=false"
        )

    def check_identity(self, place: JournalPlace) -> None:
        """Check that a place belongs to this log.

        Args:
            place: The place.

        Raises:
            DataLoss: It is a place of another log, or of a lost end of this one.
        """
        starts = self.starts
        known = [each.id for each in starts]
        if place.start_id not in known:
            starts = self._all_starts()
            known = [each.id for each in starts]
        if place.start_id not in known:  # many later starts are in the same segment
            starts = self._all_starts(walked_at=place.position)
            known = [each.id for each in starts]
        if place.start_id not in known:
            raise DataLoss(
                f"{self.directory} is another log than the one that was read up to position "
                f"{place.position} (no start {place.start_id:016x}): begin with a new checkpoint"
            )
        later = starts[known.index(place.start_id) + 1 :]
        lowest = min((each.first_position for each in later), default=self.end_position)
        if place.position > lowest:
            raise DataLoss(
                f"{self.directory}: position {place.position} was read, but the log was lost from "
                f"position {lowest} on and continued: begin with a new checkpoint"
            )

    def _all_starts(self, *, walked_at: int | None = None) -> list[LogStart]:
        """The starts that the beginnings of all segments repeat.

        A segment repeats the most recent ones only, so others may be known to the segment alone in
        which they are.

        Args:
            walked_at: A position; the segments with the records before and after it are read whole.
        """
        found: dict[LogStart, None] = {}
        for manifest in self.manifests[:-1]:
            found |= dict.fromkeys(self._first_starts(manifest))
            if walked_at is None or manifest.number in self._removed:
                continue
            if manifest.first_position <= walked_at <= manifest.next_position:
                path = self.directory / segment_name(manifest.number)
                scan = _Scan(path, self._header(path, manifest.number))
                scan.extend()
                found |= scan.starts
        return [*(found | dict.fromkeys(self.starts))]

    def _first_starts(self, manifest: Manifest) -> Sequence[LogStart]:
        """The starts that the first block of a segment repeats; of a Parquet file, all of them."""
        if manifest.number in self._removed:
            return self._removed[manifest.number].starts
        known = self._prologues.get(manifest.number)
        if known is None:
            piece = Piece(manifest.number, SEGMENT_HEADER_BYTES, manifest.data_bytes)
            chunk = next(read_pieces(self.directory, [piece]), None)
            known = [] if chunk is None else [*starts_in(chunk, chunk.blocks[:1])]
            self._prologues[manifest.number] = known
        return known

    def position_of_time(self, from_us: int) -> int:
        """The position of the first record at or after a time; that of the next if there is none.

        Args:
            from_us: In microseconds since 1970, UTC.
        """
        pieces = wanted_pieces(self.manifests, RowRange(from_us=from_us), lambda _, __: True)
        found = self._find(pieces, lambda headers: headers["timestamp_us"] >= from_us)
        return found or self.end_position

    def position_of_message(self, publisher: int, sequence: int) -> int | None:
        """The position of a message.

        Args:
            publisher: Id of its publisher.
            sequence: Its sequence number.

        Returns:
            The position, or `None` if the message is not there.
        """
        pieces = (
            piece
            for manifest in self.manifests
            for stride, piece in strides(manifest)
            if may_hold(stride, publisher, sequence)
        )
        return self._find(
            pieces,
            lambda each: (each["sequence"] == sequence) & (each["publisher_id"] == publisher),
        )

    def end_after_bytes(self, position: int, count: int) -> int:
        """The position that a reader reaches with some bytes of the log; at least one stride.

        Args:
            position: Where it begins.
            count: How many bytes.
        """
        left = count
        for manifest in self.manifests:
            for _, piece in strides(manifest):
                if piece.next_position <= position:  # it was read before
                    continue
                left -= piece.end - piece.start
                if left <= 0:
                    return piece.next_position
        return self.end_position

    def _find(
        self,
        pieces: Iterable[Piece],
        is_it: Callable[[npt.NDArray[np.void]], npt.NDArray[np.bool_]],
    ) -> int | None:
        """The position of the first record for which a condition holds."""
        for piece in pieces:
            for headers in self._headers(piece):
                places = np.flatnonzero(is_it(headers) & (headers["position"] > 0))
                if len(places):
                    return int(headers["position"][places[0]])
        return None

    def _headers(self, piece: Piece) -> Iterator[npt.NDArray[np.void]]:
        """What the headers of the records of a piece have to say of messages."""
        file = self._removed.get(piece.segment)
        if file is None:
            for chunk in read_pieces(self.directory, [piece]):
                offsets = record_offsets(chunk.data, chunk.blocks, base=chunk.base)
                yield headers_at(chunk.data, offsets)
            return
        names = ("position", "publisher_id", "sequence", "timestamp")
        for _, table in file.read(names, piece.first_position, piece.next_position):
            headers = np.zeros(table.num_rows, HEADER)
            for name in names[:3]:
                headers[name] = table[name].to_numpy().view(np.uint64)
            headers["timestamp_us"] = table["timestamp"].cast(pa.int64()).to_numpy()
            yield headers

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - names are enough
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UsageError(
                f"the option journalPath names {self.directory}, which is no directory here: it "
                "has to be a broker's --data directory that driver and workers can read"
            ) from error
        numbers = sorted({number for name in names if (number := segment_number(name)) is not None})
        if not numbers:
            raise UsageError(
                f"the option journalPath names {self.directory}, in which there is no journal "
                f"({segment_name(1)} ...): it has to be a broker's --data directory"
            )
        for before, after in pairwise(numbers):
            if after != before + 1:
                what = f"this segment is missing, {segment_name(after)} is there: bring it back"
                raise StoreCorrupt(self.directory / segment_name(before + 1), 0, what)
        return numbers

    def _refresh(self, numbers: list[int]) -> None:
        known = [number for number in numbers if number in self._heads]
        if known and self._head(known[-1]) != self._heads[known[-1]]:  # another log is here now
            self._heads, self._complete, self._scans, self._prologues = {}, {}, {}, {}
        manifests: list[Manifest] = []
        for number in numbers:
            manifest = self._complete.get(number)
            if manifest is None:
                manifest = self._load(number, is_last=number == numbers[-1])
            if manifests:
                self._join(manifests[-1], manifest)
            manifests.append(manifest)
        self._removed = self._find_removed(manifests[0]) if self._takes_removed else {}
        self.manifests = [*(each.manifest for each in self._removed.values()), *manifests]
        last = self._scans[numbers[-1]]
        last.check_end()
        self.starts = [*last.starts]
        # The next time, only the last segment may have more.
        self._complete = {each.number: each for each in manifests[:-1]}
        self._scans = {numbers[-1]: last}
        self._prologues = {n: self._prologues[n] for n in numbers if n in self._prologues}

    def _find_removed(self, following: Manifest) -> dict[int, SealedFile]:
        """The segments before one that are left as Parquet files, in order."""
        found: list[SealedFile] = []
        damages: list[StoreCorrupt] = []
        while (number := following.number - 1) > 0:
            file = self._removed.get(number)
            if file is None or not file.path.exists():
                file = sealed_file(self.directory, number, on_damage=damages.append)
            if file is None or file.manifest.next_position != following.first_position:
                break
            starts = found[0].starts if found else self._first_starts(following)
            if not file.starts or file.starts[-1] not in starts:
                break  # another log was here
            following = file.manifest
            found.insert(0, file)
        self.damage = damages[0] if damages else None
        return {file.manifest.number: file for file in found}

    def _load(self, number: int, *, is_last: bool) -> Manifest:
        path = self.directory / segment_name(number)
        scan = self._scans.get(number)
        if scan is None:
            header = self._header(path, number)
            manifest = None if is_last else self._sealed_manifest(number)
            if manifest is not None:
                return manifest
            scan = self._scans[number] = _Scan(path, header)
        scan.extend()
        return scan.manifest

    def _head(self, number: int) -> bytes:
        """The header of a segment and of its first block, which has the checksum of a start."""
        path = self.directory / segment_name(number)
        try:
            with open_segment(path) as file:
                return file.read(SEGMENT_HEADER_BYTES + BLOCK_HEADER_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise StoreCorrupt(path, 0, f"cannot be decompressed: {error}") from error

    def _header(self, path: Path, number: int) -> SegmentHeader:
        self._heads[number] = data = self._head(number)
        try:
            header = SegmentHeader.decode(data)
        except NewerVersionError:
            raise
        except JournalFormatError as error:
            raise StoreCorrupt(path, error.offset, error.what) from error
        if header.number != number:
            what = f"this is segment {header.number}: name it {segment_name(header.number)}"
            raise StoreCorrupt(path, 0, what)
        if self._instance is not None and header.instance_id != publisher_id(self._instance):
            raise UsageError(
                f"the option instance is {self._instance!r}, but another instance has written "
                f"{path}: leave the option out, or correct journalPath"
            )
        return header

    def _sealed_manifest(self, number: int) -> Manifest | None:
        """The manifest of a sealed segment, if there is one that can be read."""
        path = self.directory / manifest_name(number)
        try:
            manifest = Manifest.from_json(path.read_text(encoding="utf-8"))
        except NewerVersionError:
            raise
        except (FileNotFoundError, JournalFormatError, UnicodeDecodeError):
            return None  # it is only a cache of its segment
        return manifest if manifest.sealed and manifest.number == number else None

    def _join(self, before: Manifest, after: Manifest) -> None:
        if before.next_position == after.first_position:
            return
        what = (
            f"the log ends here before position {before.next_position}, but "
            f"{segment_name(after.number)} begins at {after.first_position}"
        )
        scan = self._scans.get(before.number)
        if scan is not None and scan.error is not None:
            what = f"{scan.error.what}: {what}"
        raise StoreCorrupt(self.directory / segment_name(before.number), before.data_bytes, what)


@dataclass(slots=True)
class _Scan:
    """A segment without a manifest, walked block by block.

    Attributes:
        path: Its file.
        header: Its header.
        manifest: What it holds, as far as it was walked.
        starts: The starts in it.
        error: Why the last walk ended, unless there was nothing more.
    """

    path: Path
    header: SegmentHeader
    manifest: Manifest = field(init=False)
    starts: dict[LogStart, None] = field(default_factory=dict[LogStart, None])
    error: JournalFormatError | None = None
    _is_checked: bool = False

    def __post_init__(self) -> None:
        position = self.header.first_position
        self.manifest = Manifest(self.header.number, position, position)

    def extend(self) -> None:
        """Walk the blocks that were written since."""
        self.error = None
        manifest = self.manifest
        try:
            for chunk in read_chunks(self.path, manifest.number, manifest.data_bytes, sys.maxsize):
                self._take(chunk)
        except JournalFormatError as error:
            self.error = error

    def check_end(self) -> None:
        """Check that no whole block follows where the log seems to end.

        Raises:
            StoreCorrupt: One does.
        """
        if self._is_checked and self.error is None:
            return
        self.extend()  # a broker may have written since
        manifest = self.manifest
        number, end = manifest.number, manifest.data_bytes
        with open_segment(self.path) as file:
            file.seek(end)
            parts = iter(lambda: file.read(CHUNK_BYTES), b"")
            if all(part == bytes(len(part)) for part in parts):
                self._is_checked = True  # to read all those zeros again would find no more
                return
            file.seek(0)
            data = file.read()
        follows, later = end, list[BlockHeader]()
        for block in whole_blocks_after(data, end, segment=number):
            is_next = follows > end or block.first_position == manifest.next_position
            if not later and block.offset == follows and is_next:
                follows = block.end  # the broker has written it since
            else:
                later.append(block)
        if later:
            why = self.error.what if self.error is not None else "there are zeros here"
            what = f"{why}, a whole block follows at {later[0].offset}, "
            if any(block.durable > DurablePlace(number, end) for block in later):
                what += "and this was synced"
            else:
                what += "start the broker on it, which tells damage from a loss of power"
            raise StoreCorrupt(self.path, end, what)
        self._is_checked = True

    def _take(self, chunk: JournalChunk) -> None:
        """Take in the blocks of a chunk."""
        manifest, blocks = self.manifest, chunk.blocks
        for number, block in enumerate(blocks):
            if block.first_position != manifest.next_position:
                position = manifest.next_position
                what = f"a block of position {block.first_position} follows one before {position}"
                raise JournalFormatError(block.offset, what)
            first_us: int = TIMESTAMP.unpack_from(
                chunk.data, block.start - chunk.base + TIMESTAMP_AT
            )[0]
            index = manifest.index
            if not index or block.offset - index[-1].offset >= INDEX_STRIDE_BYTES:
                index.append(Stride(block.first_position, block.offset, first_us))
            manifest.first_us = manifest.first_us or first_us
            after = blocks[number + 1].first_position if number + 1 < len(blocks) else None
            if after is None or after - block.first_position != block.records:
                after = self._read_block(chunk, block)
            manifest.next_position = after
            manifest.data_bytes = block.end

    def _read_block(self, chunk: JournalChunk, block: BlockHeader) -> int:
        """Take in the records without a position, and the last time; the position that follows."""
        offsets = record_offsets(chunk.data, [block], base=chunk.base)
        headers = headers_at(chunk.data, offsets)
        self.manifest.last_us = int(headers["timestamp_us"][-1])
        has_position = headers["position"] > 0
        for offset, header in zip(offsets[~has_position], headers[~has_position], strict=True):
            if header["command"] not in {RecordCommand.TOPIC, RecordCommand.START}:
                continue
            (record,) = read_records(chunk.data, int(offset), int(offset) + int(header["length"]))
            if record.command == RecordCommand.START:
                self.starts[read_start(record)] = None
            else:
                names = (record.key.decode(*_NAMES), record.payload.decode(*_NAMES))
                self.manifest.topics.setdefault(record.topic_id, names)
        return block.first_position + int(np.count_nonzero(has_position))


def starts_in(chunk: JournalChunk, blocks: Sequence[BlockHeader]) -> Iterator[LogStart]:
    """The starts in some blocks of a chunk, in order."""
    for block in blocks:
        for record in read_records(chunk.data, block.start - chunk.base, block.end - chunk.base):
            if record.command == RecordCommand.START:
                yield read_start(record)


def is_broker_directory(path: str | Path) -> bool:
    """Whether a path is the directory of a broker, and not an export or an address.

    Raises:
        UsageError: There is no such directory, or it is neither.
    """
    if "://" in str(path):
        return False
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: there is no such directory")
    names = [each.name for each in folder.iterdir()]
    if any(name.startswith("journal.") for name in names):
        return True
    if any(name.startswith("date=") for name in names):
        return False
    raise UsageError(
        f"{path}: neither the directory of a broker (journal.00000001 ...) nor an export (date=...)"
    )
