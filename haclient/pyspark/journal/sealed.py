"""Sealed segments as Parquet files: what such a file says of itself, and its rows.

A sealed segment never changes. `haclient.pyspark.journal.sealing` writes it to a file of its own,
`parquet/journal.00000001.parquet` in the journal's directory: the columns of the sources and
`topic_id`, a row for each message and delete, in the order of positions. The metadata of the file
has the manifest of the segment and the starts of the log in it. So the file serves as well when the
segment was removed, and is never taken for one of another journal.

Parquet has checksums of pages, and none of what says where they are and how long. So a list of
checksums of all bytes lies beside the file, in the form of Hadoop's local file system: by it, the
reader of the JVM checks all that it reads, unasked, and so does `SealedFile`.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from haclient.errors import StoreCorrupt, StoreError
from haclient_fake_server.journal.format import (
    PARQUET_FOLDER,
    PARQUET_SUFFIX,
    JournalFormatError,
    LogStart,
    Manifest,
    segment_name,
)

METADATA: Final = b"haclient.segment"
"""The key of the file's metadata."""

ROWS_PER_GROUP: Final = 100_000
BYTES_PER_GROUP: Final = 32 * 2**20
"""A row group ends at either: a task holds one at a time."""

SUM_BYTES: Final = 4096
"""Bytes of the file of which each checksum is."""

_SUMS: Final = struct.Struct(">4sI")
_SUMS_MAGIC: Final = b"crc\0"
_END: Final = struct.Struct("<I4s")
_MAGIC: Final = b"PAR1"

_log = logging.getLogger(__name__)


def sealed_path(directory: Path, number: int) -> Path:
    """The Parquet file of a segment.

    Args:
        directory: Where the journal is.
        number: The segment.
    """
    return directory / PARQUET_FOLDER / (segment_name(number) + PARQUET_SUFFIX)


def sums_path(path: Path) -> Path:
    """The file with the checksums of a Parquet file."""
    return path.with_name(f".{path.name}.crc")


def checksums(path: Path) -> bytes:
    """The checksums of a file, as its list holds them."""
    with path.open("rb") as file:
        sums = [zlib.crc32(part) for part in iter(lambda: file.read(SUM_BYTES), b"")]
    return _SUMS.pack(_SUMS_MAGIC, SUM_BYTES) + struct.pack(f">{len(sums)}I", *sums)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file whose bytes can be checked.

    Attributes:
        path: The file.
        size: How long it is.
        sums: Its checksums.
    """

    path: Path
    size: int
    sums: tuple[int, ...]

    @classmethod
    def open(cls, path: Path) -> CheckedFile:
        """Find a file and its checksums.

        Raises:
            StoreCorrupt: There are no checksums, or those of another file.
            OSError: It is not there, or cannot be read.
        """
        size = path.stat().st_size
        try:
            sums = sums_path(path).read_bytes()
        except FileNotFoundError:
            raise StoreCorrupt(path, 0, f"its checksums, {sums_path(path)}, are missing") from None
        count = -(-size // SUM_BYTES)
        head = _SUMS.pack(_SUMS_MAGIC, SUM_BYTES)
        if sums[: len(head)] != head or len(sums) != len(head) + 4 * count:
            raise StoreCorrupt(path, 0, f"{sums_path(path)} has other checksums")
        return cls(path, size, struct.unpack_from(f">{count}I", sums, len(head)))

    def check(self, start: int = 0, end: int | None = None) -> None:
        """Check some bytes, and those around them that have the same checksums.

        Args:
            start: The first of them.
            end: The first one that is not wanted; the end of the file by default.

        Raises:
            StoreCorrupt: They are damaged.
            OSError: They cannot be read.
        """
        first, after = start // SUM_BYTES, -(-(self.size if end is None else end) // SUM_BYTES)
        with self.path.open("rb") as file:
            file.seek(first * SUM_BYTES)
            for number in range(first, min(after, len(self.sums))):
                if zlib.crc32(file.read(SUM_BYTES)) != self.sums[number]:
                    raise StoreCorrupt(self.path, number * SUM_BYTES, "a checksum is wrong")

    def check_end(self) -> None:
        """Check the end of a Parquet file, which says where everything is.

        Raises:
            StoreCorrupt: It is damaged.
            OSError: It cannot be read.
        """
        at = max(0, self.size - _END.size)
        self.check(at)
        with self.path.open("rb") as file:
            file.seek(at)
            length, magic = _END.unpack(file.read().rjust(_END.size))
        if magic != _MAGIC or length > at:
            raise StoreCorrupt(self.path, at, "no Parquet file ends here")
        self.check(at - length)


class Extent(NamedTuple):
    """What tells a sealed segment from one of another journal: where and when it begins and ends.

    (Its header does not: the first segment of every log says that it was begun at 0.)
    """

    first_position: int
    next_position: int
    data_bytes: int
    first_us: int
    last_us: int

    @classmethod
    def of(cls, manifest: Manifest) -> Extent | None:
        """That of a segment; `None` while it is not sealed."""
        if not manifest.sealed:
            return None
        first, after = manifest.first_position, manifest.next_position
        return cls(first, after, manifest.data_bytes, manifest.first_us, manifest.last_us)


@dataclass(frozen=True, slots=True)
class SealedFile:
    """The Parquet file of a segment.

    Attributes:
        checked: The file.
        manifest: What the segment holds.
        starts: The starts of the log in it.
    """

    checked: CheckedFile
    manifest: Manifest
    starts: tuple[LogStart, ...]
    _footer: pq.FileMetaData

    @property
    def path(self) -> Path:
        """The file."""
        return self.checked.path

    @staticmethod
    def describe(manifest: Manifest, starts: Sequence[LogStart]) -> bytes:
        """What the metadata of the file of a segment has."""
        values = {
            "manifest": manifest.to_json(),
            "starts": [(each.id, each.first_position, each.boot_id.hex()) for each in starts],
        }
        return json.dumps(values).encode("ascii")

    @classmethod
    def open(cls, path: Path) -> SealedFile:
        """Read the end of a file.

        Args:
            path: The file.

        Raises:
            StoreCorrupt: It is damaged, or of an earlier version.
            OSError: It is not there, or cannot be read.
        """
        checked = CheckedFile.open(path)
        checked.check_end()
        try:
            footer = pq.read_metadata(path)
            texts = cast("dict[bytes, bytes]", footer.metadata or {})
            said = cast("dict[str, Any]", json.loads(texts[METADATA]))
            return cls(
                checked,
                Manifest.from_json(said["manifest"]),
                tuple(LogStart(id_, at, bytes.fromhex(boot)) for id_, at, boot in said["starts"]),
                footer,
            )
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError, JournalFormatError) as error:
            raise StoreCorrupt(path, 0, f"not of a sealed segment: {error!r}") from error

    def read(
        self, columns: Sequence[str], first_position: int, end_position: int
    ) -> Iterator[tuple[int, pa.Table]]:
        """Rows by position, a row group at a time; each comes with the position after the group.

        Args:
            columns: Names of columns.
            first_position: The first position that is wanted.
            end_position: The first one that is not wanted any more.

        Raises:
            StoreCorrupt: Its bytes are damaged; all rows before its group were given already.
            OSError: The file cannot be read.
        """
        place = self._footer.schema.names.index("position")
        try:
            with pq.ParquetFile(self.path, metadata=self._footer) as file:
                for number in range(self._footer.num_row_groups):
                    known = self._footer.row_group(number).column(place).statistics
                    if known.max < first_position or known.min >= end_position:
                        continue
                    is_cut = known.min < first_position or known.max >= end_position
                    names = [*columns]
                    if is_cut and "position" not in names:
                        names.append("position")
                    self._check_group(number, names)
                    table = file.read_row_group(number, names, use_threads=False)
                    if is_cut:
                        positions = table["position"].to_numpy()
                        bounds = [first_position, end_position]
                        start, end = np.searchsorted(positions, bounds).tolist()
                        table = table.slice(start, end - start)
                    yield known.max + 1, table
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from error

    def _check_group(self, number: int, names: Iterable[str]) -> None:
        """Check the bytes of some columns of a row group."""
        group = self._footer.row_group(number)
        for name in names:
            column = group.column(self._footer.schema.names.index(name))
            start = column.data_page_offset
            if column.has_dictionary_page:
                start = min(start, column.dictionary_page_offset)
            self.checked.check(start, start + column.total_compressed_size)


def warn(error: OSError | StoreError) -> None:
    """Name a damaged file in the log of this process."""
    _log.warning("%s: the journal is read instead; seal it again", error)


def sealed_file(
    directory: Path,
    number: int,
    extent: Extent | None = None,
    *,
    on_damage: Callable[[StoreCorrupt], None] = warn,
) -> SealedFile | None:
    """The Parquet file of a segment; `None` if there is none that can be read.

    Args:
        directory: Where the journal is.
        number: The segment.
        extent: Of the segment, where it is known: a file of another journal does not count.
        on_damage: Called when it is damaged: its segment is read instead.
    """
    path = sealed_path(directory, number)
    try:
        found = SealedFile.open(path)
    except FileNotFoundError:
        return None
    except StoreCorrupt as error:
        on_damage(error)
        return None
    except OSError as error:
        warn(error)
        return None
    is_it = found.manifest.number == number and extent in {None, Extent.of(found.manifest)}
    return found if is_it else None
