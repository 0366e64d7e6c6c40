"""Closed segments of a journal as Parquet files, for analytics that read columns.

A sealed segment never changes. `export_segments` writes each of them to a file of its own,
`parquet/journal.00000001.parquet` in the journal's directory, with a row for each message and
delete in the order of positions. The columns are those of the sources of `haclient.pyspark`. The
segment stays: the Parquet file is a copy, and the broker reads the journal alone.

A Parquet file gets its name when it is whole and synced, so a kill at any moment leaves all of it
or nothing; what a killed export has left begins with a dot, and is overwritten. Each file says from
which segment it is. One of another journal, as after the journal was replaced and its exports were
not, is written again.

A broker with `parquet=True` runs this module as a process of its own at low priority: an export
takes a processor for seconds, which would hold up the event loop even from a thread. It can be run
by hand beside a broker, or without one::

    python -m haclient_fake_server.journal.parquet DIRECTORY [ARCHIVE]

pyarrow is needed only here, and imported only when there is something to export.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TypeAlias

from haclient.errors import HAClientError, UsageError
from haclient_fake_server.journal.format import (
    SEGMENT_HEADER_BYTES,
    JournalFormatError,
    Manifest,
    NewerVersionError,
    Record,
    RecordCommand,
    SegmentHeader,
    manifest_name,
    read_blocks,
    read_records,
    segment_name,
)
from haclient_fake_server.journal.places import SegmentPlaces
from haclient_stores.disk.files import RealDisk, open_new
from haclient_stores.errors import StoreCorrupt, StoreError, StoreLocked

FOLDER: Final = "parquet"
ROWS_PER_GROUP: Final = 100_000
COMPRESSION: Final = "zstd"
METADATA: Final = b"haclient.segment"
"""The key of the file's metadata that says from which segment it is."""

_LOCK_NAME: Final = ".lock"
_LOW_PRIORITY: Final = 10
_SIGN_BIT: Final = 1 << 63
_WRAP: Final = 1 << 64
_COMMANDS: Final = {RecordCommand.PUBLISH: "publish", RecordCommand.SOW_DELETE: "sow_delete"}

_log = logging.getLogger(__name__)

_Row: TypeAlias = tuple[
    str, str, int, int, int, int, str, str | None, str | None, bytes
]  # as in `_write`


def parquet_name(number: int) -> str:
    """The file name of a segment's export: `journal.00000001.parquet`."""
    return f"{segment_name(number)}.parquet"


def check_pyarrow() -> None:
    """Check that pyarrow is installed, without importing it.

    Raises:
        UsageError: It is not.
    """
    if find_spec("pyarrow") is None:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed: pip install 'haclient[pyspark]'"
        )


def sealed_segments(directory: Path, places: SegmentPlaces | None = None) -> list[int]:
    """The numbers of the sealed segments of a journal, the oldest first."""
    found = (places or SegmentPlaces(directory, RealDisk())).find()
    return [number for number in found if (directory / manifest_name(number)).exists()]


def export_segments(directory: Path, archive: Path | None = None) -> list[Path]:
    """Write each sealed segment that has no Parquet file yet.

    Args:
        directory: The journal's directory; a broker may be using it.
        archive: Where it has its archived segments.

    Returns:
        The files that were written.

    Raises:
        UsageError: pyarrow is not installed, or the directory does not exist.
        StoreLocked: Another process exports the same journal.
        StoreCorrupt: A sealed segment is damaged; the others were exported.
        StoreError: A newer version has sealed a segment; the others were exported.
    """
    check_pyarrow()
    if not directory.is_dir():
        raise UsageError(f"{directory}: wanted the directory of a journal, found none")
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    written: list[Path] = []
    failed: StoreError | None = None
    places = SegmentPlaces(directory, RealDisk(), archive)
    locks = RealDisk().lock_directory(folder, _LOCK_NAME)
    try:
        for number in sealed_segments(directory, places):
            try:
                path = _export(directory, places, number)
            except FileNotFoundError:  # its manifest was removed meanwhile
                continue
            except StoreError as error:
                if places.exists(number):  # else it was removed or moved: the next export finds it
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


def _export(directory: Path, places: SegmentPlaces, number: int) -> Path | None:
    """Export one segment; `None` when it is not sealed or was exported already."""
    manifest = _manifest(directory / manifest_name(number))
    if manifest is None or not manifest.sealed:  # a broker leaves a snapshot of its live segment
        return None
    source, target = places.path(number), directory / FOLDER / parquet_name(number)
    with closing(places.open(number, writable=False)) as file:
        try:
            header = SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
        except NewerVersionError as error:
            raise StoreError(f"{source}: {error.what}") from error
        except JournalFormatError as error:
            raise StoreCorrupt(source, error.offset, error.what) from error
        origin = json.dumps(
            {
                "number": number,
                "first_position": manifest.first_position,
                "next_position": manifest.next_position,
                "created_us": header.created_us,
                "instance_id": str(header.instance_id),
            }
        ).encode("ascii")
        if _origin(target) == origin:
            return None
        data = file.pread(manifest.data_bytes, 0)
    temporary = target.with_name(f".{target.name}.new")
    try:
        _write(temporary, _rows(data, manifest), origin)
    except JournalFormatError as error:  # damage in what was sealed, and so synced
        raise StoreCorrupt(source, error.offset, error.what) from error
    disk = RealDisk()
    disk.rename(temporary, target)
    disk.fsync_dir(target.parent)
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
        _log.warning("%s cannot be read, its segment is not exported: %s", path, error)
        return None


def _origin(path: Path) -> bytes | None:
    """From which segment a Parquet file is; `None` where there is no such file."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        metadata: dict[bytes, bytes] | None = pq.read_schema(path).metadata
    except (OSError, pa.ArrowInvalid):  # none, or one that is not whole
        return None
    return (metadata or {}).get(METADATA)


def _rows(data: bytes, manifest: Manifest) -> Iterator[_Row]:
    """The rows of a segment.

    Raises:
        JournalFormatError: The segment is damaged, or ends earlier than its manifest says.
    """
    topics: dict[int, str] = {}
    end, next_position = SEGMENT_HEADER_BYTES, manifest.first_position
    for block in read_blocks(data, end, segment=manifest.number):
        end = block.end
        for record in read_records(data, block.start, block.end):
            if record.command == RecordCommand.TOPIC:
                topics[record.topic_id] = _text(record.payload)
            elif record.position:
                next_position = record.position + 1
                if record.is_data:
                    yield _row(record, topics[record.topic_id])
    if (end, next_position) != (manifest.data_bytes, manifest.next_position):
        raise JournalFormatError(end, "the segment ends here, and not where its manifest says")


def _row(record: Record, topic: str) -> _Row:
    return (
        topic,
        record.bookmark,
        _signed(record.publisher_id),
        _signed(record.sequence),
        record.position,
        record.timestamp_us,
        _COMMANDS[RecordCommand(record.command)],
        _text(record.key) or None,
        _text(record.correlation_id) or None,
        record.payload,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _signed(number: int) -> int:
    """An unsigned number of 64 bits as the signed one with the same bits."""
    return number - _WRAP if number & _SIGN_BIT else number


def _write(path: Path, rows: Iterator[_Row], origin: bytes) -> None:
    """Write a Parquet file and sync it."""
    pa, pq = import_module("pyarrow"), import_module("pyarrow.parquet")
    columns = {
        "topic": pa.string(),
        "bookmark": pa.string(),
        "publisher_id": pa.int64(),
        "sequence": pa.int64(),
        "position": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "command": pa.string(),
        "sow_key": pa.string(),
        "correlation_id": pa.string(),
        "data": pa.binary(),
    }
    schema = pa.schema(list(columns.items()), metadata={METADATA: origin})
    repeated = ["topic", "publisher_id", "command"]
    path.unlink(missing_ok=True)  # what a killed export has left
    with os.fdopen(open_new(path), "wb") as file:
        with pq.ParquetWriter(
            file, schema, compression=COMPRESSION, use_dictionary=repeated
        ) as writer:
            for group in _groups(rows):
                arrays = [
                    pa.array(values, type=kind)
                    for values, kind in zip(zip(*group, strict=True), columns.values(), strict=True)
                ]
                table = pa.Table.from_arrays(arrays, schema=schema)
                writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        file.flush()
        os.fsync(file.fileno())


def _groups(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    group: list[_Row] = []
    for row in rows:
        group.append(row)
        if len(group) >= ROWS_PER_GROUP:
            yield group
            group = []
    if group:
        yield group


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the journal in the directory that the first argument names; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    if not 1 <= len(given) <= 2:  # noqa: PLR2004  # the second one may be left out
        name = "haclient_fake_server.journal.parquet"
        sys.stderr.write(f"usage: python -m {name} DIRECTORY [ARCHIVE]\n")
        return 2
    try:
        for path in export_segments(*map(Path, given)):
            sys.stdout.write(f"{path}\n")
    except StoreLocked:  # it exports what there is, and is asked again when there is more
        return 0
    except (HAClientError, OSError) as error:
        sys.stderr.write(f"haclient-fake-server: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.nice(_LOW_PRIORITY)  # a broker beside it needs the processor more
    sys.exit(main())
