"""Write sealed segments of a journal as Parquet files: see `haclient.pyspark.journal.sealed`.

The segment stays, and the broker reads it alone. Every block is verified by its checksums on the
way, so a damaged segment gets no file. A file has its name when it and its checksums are whole and
synced: a kill at any moment leaves all of it or nothing, and what a killed run has left begins with
a dot and is overwritten. A file of another journal, as after the journal was replaced, is written
again; so is one that is damaged.

A broker with `parquet=True` runs this module as a process of its own at low priority, since a
thread would hold up its event loop; `haclient pyspark seal` is for people. Both need pyarrow and
numpy, and neither PySpark nor Java.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from haclient.errors import HAClientError, StoreCorrupt, StoreError, StoreLocked, UsageError
from haclient.pyspark.journal.log import open_segment, read_chunks, starts_in
from haclient.pyspark.journal.records import RowRange, Topics, headers_at, record_offsets, rows_of
from haclient.pyspark.journal.sealed import (
    BYTES_PER_GROUP,
    METADATA,
    ROWS_PER_GROUP,
    Extent,
    SealedFile,
    checksums,
    sealed_path,
    sums_path,
)
from haclient.pyspark.rows import SEALED_COLUMNS, arrow_schema, printable
from haclient_fake_server.journal.format import (
    PARQUET_FOLDER,
    SEGMENT_HEADER_BYTES,
    JournalFormatError,
    LogStart,
    Manifest,
    NewerVersionError,
    RecordCommand,
    SegmentHeader,
    manifest_name,
    segment_name,
    segment_number,
)
from haclient_stores.disk.files import RealDisk, open_new

Compression = Literal["zstd", "none"]

_LOCK_NAME: Final = ".lock"
_LOW_PRIORITY: Final = 10
_REPEATED: Final = ("topic", "topic_id", "publisher_id", "command")
"""Columns with few values, which are written as a dictionary."""

_log = logging.getLogger(__name__)


def seal_journal(
    directory: Path,
    archive: Path | None = None,
    *,
    compression: Compression = "zstd",
    verify: bool = False,
) -> list[Path]:
    """Write each sealed segment that has no Parquet file yet.

    Args:
        directory: The journal's directory; a broker may be using it.
        archive: Where it has its archived segments.
        compression: Of the files.
        verify: Also check the files that are there, byte by byte; damaged ones are written again.

    Returns:
        The files that were written.

    Raises:
        UsageError: The directory does not exist.
        StoreLocked: Another process seals the same journal.
        StoreCorrupt: A sealed segment is damaged; the others were written.
        StoreError: A newer version has sealed a segment, or the disk failed; likewise.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory}: wanted the directory of a journal, found none")
    folder = directory / PARQUET_FOLDER
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    failed: StoreError | None = None
    locks = RealDisk().lock_directory(folder, _LOCK_NAME)
    try:
        for number, source in _segments(directory, archive).items():
            try:
                path = _seal(directory, number, source, compression, verify=verify)
            except FileNotFoundError:  # removed or moved meanwhile: the next run finds it
                continue
            except StoreError as error:
                failed = failed or error
                continue
            if path is not None:
                written.append(path)
    finally:
        for lock in locks:
            lock.close()
    if failed is not None:
        raise failed
    return written


def _segments(directory: Path, archive: Path | None) -> dict[int, Path]:
    """By number, the files of the segments that have a manifest, the oldest first."""
    found: dict[int, Path] = {}
    # That of the directory is read where both have one.
    folders = [directory] if archive is None else [archive, directory]
    for folder in folders:
        for path in folder.iterdir():
            if (number := segment_number(path.name)) is not None:
                found[number] = folder / segment_name(number)
    return dict(sorted(found.items()))


def _seal(
    directory: Path, number: int, source: Path, compression: Compression, *, verify: bool
) -> Path | None:
    """Write the file of one segment; `None` when it is not sealed, or has its file."""
    manifest = _manifest(directory / manifest_name(number))
    if manifest is None or not manifest.sealed:  # a broker leaves a snapshot of its live segment
        return None
    with open_segment(source) as file:
        head = file.read(SEGMENT_HEADER_BYTES)
    target = sealed_path(directory, number)
    try:
        SegmentHeader.decode(head)  # refuses a newer version
        if _is_done(target, manifest, verify=verify):
            return None
        _write(target, source, manifest, compression)
    except NewerVersionError as error:
        raise StoreError(f"{source}: {error.what}") from error
    except JournalFormatError as error:  # damage in what was sealed, and so synced
        raise StoreCorrupt(source, error.offset, error.what) from error
    return target


def _manifest(path: Path) -> Manifest | None:
    """The manifest of a segment; `None` if it is torn: a broker writes it again when it starts.

    Raises:
        StoreError: A newer version has written it.
    """
    try:
        return Manifest.from_json(path.read_text("ascii"))
    except NewerVersionError as error:
        raise StoreError(f"{path}: {error.what}") from error
    except (JournalFormatError, UnicodeDecodeError) as error:
        _log.warning("%s cannot be read, its segment is not sealed as Parquet: %s", path, error)
        return None


def _is_done(target: Path, manifest: Manifest, *, verify: bool) -> bool:
    try:
        found = SealedFile.open(target)
        if verify:
            found.checked.check()
    except FileNotFoundError:
        return False
    except (OSError, StoreCorrupt) as error:
        _log.warning("%s: it is written again", error)
        return False
    return Extent.of(found.manifest) == Extent.of(manifest)


def _rows(path: Path, manifest: Manifest, starts: dict[LogStart, None]) -> Iterator[pa.RecordBatch]:
    """All rows of a segment, every block verified; the starts of the log in it go to `starts`.

    Raises:
        JournalFormatError: The segment is damaged, or ends earlier than its manifest says.
        OSError: It cannot be read.
    """
    names = {id_: printable(topic) for id_, (_, topic) in manifest.topics.items()}
    topics = Topics(names, is_all=True)
    end, next_position = SEGMENT_HEADER_BYTES, manifest.first_position
    for chunk in read_chunks(path, manifest.number, end, manifest.data_bytes):
        offsets = record_offsets(chunk.data, chunk.blocks, base=chunk.base)
        headers = headers_at(chunk.data, offsets)
        if np.any(headers["command"] == RecordCommand.START):
            starts |= dict.fromkeys(starts_in(chunk, chunk.blocks))
        yield rows_of(chunk.data, offsets, [*SEALED_COLUMNS], wanted=RowRange(), topics=topics)
        end = chunk.blocks[-1].end
        next_position = max(next_position, int(headers["position"].max(initial=0)) + 1)
    if (end, next_position) != (manifest.data_bytes, manifest.next_position):
        raise JournalFormatError(end, "the segment ends here, and not where its manifest says")


def _write(target: Path, source: Path, manifest: Manifest, compression: Compression) -> None:
    """Write a file and its checksums, and sync them."""
    disk = RealDisk()
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)  # what a killed run has left
    with os.fdopen(open_new(temporary), "wb") as file:
        with pq.ParquetWriter(
            file,
            arrow_schema(SEALED_COLUMNS),
            compression=compression,
            use_dictionary=[*_REPEATED],
        ) as writer:
            starts: dict[LogStart, None] = {}
            for table in _groups(_rows(source, manifest, starts)):
                writer.write_table(table, row_group_size=table.num_rows)
            said = SealedFile.describe(manifest, [*starts])
            writer.add_key_value_metadata({METADATA.decode(): said.decode()})
        file.flush()
        os.fsync(file.fileno())
    # An old file with the new checksums is refused, and the journal read: at no moment is a damaged
    # file taken for a whole one.
    disk.replace(sums_path(target), checksums(temporary))
    disk.rename(temporary, target)
    disk.fsync_dir(target.parent)


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows as row groups; their number of rows decides, or bytes where messages are long."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        at = 0
        each = batch.nbytes / max(1, batch.num_rows)
        while at < batch.num_rows:
            room = min(ROWS_PER_GROUP - rows, int((BYTES_PER_GROUP - size) / max(each, 1)))
            part = batch.slice(at, max(1, room))
            held.append(part)
            at += part.num_rows
            rows, size = rows + part.num_rows, size + int(part.num_rows * each)
            if rows >= ROWS_PER_GROUP or size + each > BYTES_PER_GROUP:
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def main(arguments: Sequence[str] | None = None) -> int:
    """Seal the journal in the directory that the first argument names; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m haclient.pyspark.journal.sealing")
    parser.add_argument("directory", type=Path)
    parser.add_argument("archive", type=Path, nargs="?")
    parser.add_argument("--compression", choices=("zstd", "none"), default="zstd")
    given = parser.parse_args(arguments)
    try:
        seal_journal(given.directory, given.archive, compression=given.compression)
    except StoreLocked:  # it seals what there is, and is asked again when there is more
        return 0
    except (HAClientError, OSError) as error:
        sys.stderr.write(f"haclient-fake-server: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.nice(_LOW_PRIORITY)  # a broker beside it needs the processor more
    sys.exit(main())
