"""The file of the queues' recovery points, `queues.ack`, next to the journal: JSON, replaced whole.

A broker that starts reads the log from the oldest of these points on, not from its beginning. The
file is synced when the broker starts, so that a queue that begins "now" keeps its beginning; after
that about once a second while messages leave queues, and when the broker is closed. So it is
usually a little behind the log, and a start reads somewhat more than necessary.

A position is valid in one log only. So the file names the youngest start of the log when it was
written. If the log does not have that start, the points are of another log and are ignored. A later
start below a point shows that the end of the log was lost, with the power or with a segment: the
messages that had these positions had left the queue, but those that have them now have not. So the
point is moved back to that start, and the start that finds it warns.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.journal.format import LogStart
from haclient_fake_server.journal.json_file import read_json_file, write_json_file
from haclient_stores.disk.files import Disk
from haclient_stores.errors import StoreError

QUEUE_POINTS_NAME: Final = "queues.ack"
FORMAT_VERSION: Final = 1

MAX_POSITION: Final = 2**64 - 1

_log = logging.getLogger(__name__)


class QueuePointFile:
    """The file; it is read once, and rewritten while the broker runs.

    Args:
        directory: The journal's directory, whose lock also protects this file.
        disk: The file system.
        log_starts: The starts of the opened journal, the youngest last, which is that of this
            broker.

    Attributes:
        points: The points in it that are valid for this log.

    Raises:
        StoreError: A newer version has written it, or it cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk, *, log_starts: Sequence[LogStart]) -> None:
        self._path = directory / QUEUE_POINTS_NAME
        self._disk = disk
        self._start_id = log_starts[-1].id
        self.points: tuple[QueuePoint, ...] = ()
        if disk.exists(self._path):
            found = self._read()
            if found is not None:
                self.points = self._valid(found[1], found[0], log_starts)

    def write(self, points: Sequence[QueuePoint]) -> None:
        """Replace the content, and sync it; may run in a thread, one call at a time.

        Args:
            points: The new content. The journal already has the removals that they cover.

        Raises:
            StoreError: The disk failed.
        """
        write_json_file(
            self._disk,
            self._path,
            FORMAT_VERSION,
            log_start=f"{self._start_id:016x}",
            queues=[each._asdict() for each in points],
        )
        self.points = tuple(points)

    def note_start(self) -> None:
        """Name the youngest start, which the log has by now."""
        if not self.points:
            return
        try:
            self.write(self.points)
        except StoreError as error:  # a full disk: the start that is named still serves
            _log.warning("%s: not written, and tried again later: %s", self._path, error)

    def _valid(
        self, points: Sequence[QueuePoint], start_id: int, log_starts: Sequence[LogStart]
    ) -> tuple[QueuePoint, ...]:
        """The points that are valid for the log, moved back where its end was lost."""
        known = [start.id for start in log_starts]
        if start_id not in known:
            _log.warning(
                "%s: these are points of another log (no start %016x): the queues begin at their "
                "configured recovery points",
                self._path,
                start_id,
            )
            return ()
        later = log_starts[known.index(start_id) + 1 :]
        end = log_starts[-1].first_position  # of the log as it was found
        if end < (highest := max((each.position for each in points), default=0)):
            _log.warning(
                "%s: positions %d to %d: lost, and given again to what is published next: messages "
                "with them have left a queue, but no segment has them",
                self._path,
                end,
                highest - 1,
            )
        lowest = min((start.first_position for start in later), default=MAX_POSITION)
        return tuple(each._replace(position=min(each.position, lowest)) for each in points)

    def _read(self) -> tuple[int, tuple[QueuePoint, ...]] | None:
        """The start of the log that the points belong to, and the points; `None` if damaged."""
        return read_json_file(
            self._disk,
            self._path,
            FORMAT_VERSION,
            _parse,
            without="each queue begins at its configured recovery point",
        )


class _Point(msgspec.Struct, forbid_unknown_fields=True):
    """A `QueuePoint` in the file."""

    name: str
    message_type: str
    topics: list[str]
    recovery_point: str
    position: int


def _parse(content: dict[str, Any]) -> tuple[int, tuple[QueuePoint, ...]]:
    """Take the points from JSON.

    Raises:
        ValueError: A field is missing, unknown, of another type or out of range.
    """
    try:
        start_id = int(msgspec.convert(content.get("log_start"), str), 16)
        points = msgspec.convert(content.get("queues"), list[_Point])
    except msgspec.ValidationError as error:
        raise ValueError(f"queues or log_start: {error}") from error
    for each in points:
        if not 1 <= each.position <= MAX_POSITION:
            raise ValueError(f"{each.position} is no position")
    return start_id, tuple(
        QueuePoint(
            each.name, each.message_type, tuple(each.topics), each.recovery_point, each.position
        )
        for each in points
    )
