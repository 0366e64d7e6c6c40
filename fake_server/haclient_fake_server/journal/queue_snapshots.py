"""The files of file-backed queues, next to the journal: snapshots of their state.

A file has the state of a queue at one place of the log. A broker that starts reads the log from
there on, which is less than from the oldest message of the queue. A file is written whole, every
minute and when the broker is closed. It is a cache: one that is damaged, of another version, or of
another log is ignored and written again.

A file identifies its log as `log_place` says.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import zlib
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from haclient.protocol.identity import publisher_id
from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.queues.message_table import ChunkColumns
from haclient_fake_server.engine.queues.snapshot import (
    QueueColumns,
    QueueSnapshot,
)
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.log_place import LogPlace, end_of, place_problem
from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreError

FORMAT_VERSION: Final = 2
MAGIC: Final = b"HAQUEUE\n"
MAX_HEADER_BYTES: Final = 2**24
"""A longer first line is not that of a snapshot."""

_CRC_BYTES: Final = 4
_NAME: Final = re.compile(r"queue\.[0-9a-f]{16}\.state")
_log = logging.getLogger(__name__)


def snapshot_name(name: str, message_type: str) -> str:
    """The file name for a queue, whose own name may have any characters."""
    return f"queue.{publisher_id(f'{message_type} {name}'):016x}.state"


class PreparedSnapshots(NamedTuple):
    """Snapshots, and what identifies their log.

    Attributes:
        snapshots: The snapshots, all at the end of the log.
        place: The end of the log.
    """

    snapshots: list[QueueSnapshot]
    place: LogPlace


class QueueSnapshotFiles:
    """The files of the file-backed queues of one broker.

    Args:
        directory: The journal's directory, whose lock also protects these files.
        disk: The file system.
        journal: The journal, as the broker that starts has opened it.
        queues: Name and message type of each file-backed queue; the files of others are removed.

    Attributes:
        snapshots: Those that are valid for the log.

    Raises:
        StoreError: The disk failed.
    """

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        journal: JournalFiles,
        *,
        queues: Iterable[tuple[str, str]],
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._journal = journal
        self._written: Cursor | None = None
        self.snapshots: tuple[QueueSnapshot, ...] = ()
        wanted = {snapshot_name(*queue) for queue in queues}
        for name in disk.listdir(directory):
            if _NAME.fullmatch(name) and name not in wanted:
                disk.remove(directory / name)
        found = [self._load(directory / name) for name in sorted(wanted)]
        self.snapshots = tuple(each for each in found if each is not None)

    @property
    def is_due(self) -> bool:
        """Whether the log has grown since the last call of `write`."""
        live = self._journal.live
        return self._written != Cursor(live.number, live.end)

    def prepare(self, snapshots: Iterable[QueueSnapshot]) -> PreparedSnapshots:
        """Prepare a call of `write`, on the thread of the event loop, while nothing is appended.

        Args:
            snapshots: The state of the queues at the end of the log.
        """
        place = end_of(self._journal)
        self._written = place.end
        return PreparedSnapshots([*snapshots], place)

    def write(self, prepared: PreparedSnapshots) -> None:
        """Replace the files of some queues, and sync them; may run in a thread.

        Args:
            prepared: What `prepare` has returned.

        Raises:
            StoreError: The disk failed.
        """
        for each in prepared.snapshots:
            path = self._directory / snapshot_name(each.name, each.message_type)
            self._disk.replace(path, _encode(each, prepared))

    def _load(self, path: Path) -> QueueSnapshot | None:
        """A snapshot, if there is one that is valid for this log."""
        if not self._disk.exists(path):
            return None
        try:
            data = self._read(path)
        except StoreError as error:
            _log.warning("%s: ignored, since it cannot be read: %s", path, error)
            return None
        try:
            fields, snapshot = _decode(data)
            problem = place_problem(self._journal, _place(fields, snapshot))
        except (
            ValueError,
            KeyError,
            TypeError,
            StopIteration,
            RecursionError,
            zlib.error,
        ) as error:
            # It is not what `_encode` has written.
            _log.warning("%s: ignored, since it is damaged or of another version: %s", path, error)
            return None
        if problem:
            _log.warning("%s: ignored: %s", path, problem)
        return None if problem else snapshot

    def _read(self, path: Path) -> bytes:
        file = self._disk.open(path, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()


def _place(fields: dict[str, Any], snapshot: QueueSnapshot) -> LogPlace:
    """Where the log has to have what a snapshot says of it."""
    return LogPlace(
        int(fields["log_start"], 16),
        snapshot.end,
        int(fields["block"]),
        bytes.fromhex(fields["header"]),
        snapshot.next_position,
    )


def _encode(snapshot: QueueSnapshot, prepared: PreparedSnapshots) -> bytes:
    columns_of_messages, *others = snapshot.columns
    messages = [each.packed() for each in columns_of_messages]
    runs = [len(each.positions) if isinstance(each.positions, range) else 0 for each in messages]
    columns: list[array[int] | array[float]] = [*others]
    for run, (positions, priorities, ranges, _) in zip(runs, messages, strict=True):
        columns += array("Q", positions[:1] if run else positions), priorities, array("Q", ranges)
        columns += (array("Q", each) for each in (zip(*ranges.values(), strict=True)))
    packed = [zlib.compress(column, 1) for column in columns]
    fields = {
        "format": FORMAT_VERSION,
        "byte_order": sys.byteorder,
        "name": snapshot.name,
        "message_type": snapshot.message_type,
        "definition": snapshot.definition,
        "log_start": f"{prepared.place.start_id:016x}",
        "segment": snapshot.end.segment,
        "offset": snapshot.end.offset,
        "block": prepared.place.block,
        "header": prepared.place.header.hex(),
        "next_position": snapshot.next_position,
        "runs": runs,
        "columns": [len(column) for column in packed],
    }
    parts = [MAGIC, json.dumps(fields).encode("ascii"), b"\n", *packed]
    crc = 0
    for part in parts:
        crc = zlib.crc32(part, crc)
    return b"".join((*parts, crc.to_bytes(_CRC_BYTES, "little")))


def _decode(data: bytes) -> tuple[dict[str, Any], QueueSnapshot]:
    """Fields and snapshot of a file.

    Raises:
        ValueError: The file is damaged, or of another version or machine.
        KeyError: A field is missing.
        TypeError: A field is of another type.
    """
    view = memoryview(data)
    body, crc = view[:-_CRC_BYTES], view[-_CRC_BYTES:]
    if not data.startswith(MAGIC) or zlib.crc32(body) != int.from_bytes(crc, "little"):
        raise ValueError("the checksum is wrong")
    start = data.index(b"\n", len(MAGIC), MAX_HEADER_BYTES)
    fields = cast("dict[str, Any]", json.loads(data[len(MAGIC) : start]))
    if (fields["format"], fields["byte_order"]) != (FORMAT_VERSION, sys.byteorder):
        raise ValueError(f"version {fields['format']}, byte order {fields['byte_order']}")
    reader = _ColumnReader(body, start + 1, fields["columns"])
    others = [reader.integers() for _ in range(3)]
    messages = [reader.messages(run) for run in fields["runs"]]
    place = Cursor(fields["segment"], fields["offset"])
    return fields, QueueSnapshot(
        fields["name"],
        fields["message_type"],
        fields["definition"],
        place,
        fields["next_position"],
        QueueColumns(messages, *others),
    )


class _ColumnReader:
    """Reads columns one after the other."""

    def __init__(self, data: memoryview, offset: int, counts: list[int]) -> None:
        self._data = data
        self._offset = offset
        self._counts = iter(counts)

    def messages(self, run: int) -> ChunkColumns:
        """Some messages that follow each other; `run` is their number if their positions do."""
        positions: array[int] | range = self.integers()
        if run:
            positions = range(positions[0], positions[0] + run)
        priorities = array("d", self._next())
        publishers, lows, highs = self.integers(), self.integers(), self.integers()
        return ChunkColumns(
            positions, priorities, dict(zip(publishers, zip(lows, highs, strict=True), strict=True))
        )

    def integers(self) -> array[int]:
        return array("Q", self._next())

    def _next(self) -> bytes:
        start = self._offset
        self._offset += next(self._counts)
        return zlib.decompress(self._data[start : self._offset])
