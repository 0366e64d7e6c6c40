"""The file of the queues' recovery points, `queues.ack`, next to the journal: JSON, replaced whole.

A broker that starts reads the log from the oldest of these points on, and not from its beginning.
The file is synced when the broker starts, so that a queue that begins "now" keeps its beginning;
after that about once a second while messages leave queues, and when the broker is closed. So it is
usually a little behind the log, and then a start reads more than it has to.

The points are positions, and positions belong to a log. So the file names the log's youngest start
of the time at which it was written. A start that the log does not have belongs to another log,
whose points mean nothing. A later start below a point shows that a loss of power has taken the end
of the log: all that the log still had there had left the queue, and what has those positions now
has not. So the point is moved back to that start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from haclient_fake_server.engine.queues.points import QueuePoint
from haclient_fake_server.journal.format import LogStart
from haclient_fake_server.journal.json_file import read_json_file, write_json_file
from haclient_stores.disk.files import Disk

QUEUE_POINTS_NAME: Final = "queues.ack"
FORMAT_VERSION: Final = 1

MAX_POSITION: Final = 2**64 - 1

_log = logging.getLogger(__name__)


class QueuePointFile:
    """The file, whose content is read once and written now and then.

    Args:
        directory: The journal's directory, whose lock also protects this file.
        disk: The file system.
        log_starts: The starts of the opened journal, the youngest last, which is that of this
            broker.

    Attributes:
        points: What it holds, as far as it is true of this log.

    Raises:
        StoreCorrupt: The file is damaged.
        StoreError: A newer version has written it, or it cannot be read.
    """

    def __init__(self, directory: Path, disk: Disk, *, log_starts: Sequence[LogStart]) -> None:
        self._path = directory / QUEUE_POINTS_NAME
        self._disk = disk
        self._start_id = log_starts[-1].id
        self.points: tuple[QueuePoint, ...] = ()
        if disk.exists(self._path):
            start_id, points = self._read()
            self.points = self._valid(points, start_id, log_starts)

    def write(self, points: Sequence[QueuePoint]) -> None:
        """Replace the content, and sync it; may run in a thread, one call at a time.

        Args:
            points: What the file holds from now on. All that they say was written to the journal
                before.

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

    def _valid(
        self, points: Sequence[QueuePoint], start_id: int, log_starts: Sequence[LogStart]
    ) -> tuple[QueuePoint, ...]:
        """The points that are true of the log, moved back where its end was lost."""
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
        lowest = min((start.first_position for start in later), default=MAX_POSITION)
        return tuple(each._replace(position=min(each.position, lowest)) for each in points)

    def _read(self) -> tuple[int, tuple[QueuePoint, ...]]:
        """The start of the log that the points belong to, and the points."""
        return read_json_file(
            self._disk,
            self._path,
            FORMAT_VERSION,
            _parse,
            "not the recovery points of queues ({error}): remove it to begin each queue at its "
            "configured recovery point",
        )


def _parse(content: dict[str, Any]) -> tuple[int, tuple[QueuePoint, ...]]:
    points = tuple(_point(**fields) for fields in content["queues"])
    return int(content["log_start"], 16), points


def _point(
    *, name: str, message_type: str, topics: list[str], recovery_point: str, position: int
) -> QueuePoint:
    """Take a point from JSON.

    Raises:
        TypeError: A field is missing, unknown or of another type.
        ValueError: A number is out of range.
    """
    texts = (name, message_type, recovery_point, *topics)
    if type(topics) is not list or any(type(each) is not str for each in texts):
        raise TypeError(f"wanted texts and a list of topics, found {texts!r:.200}")
    if type(position) is not int:
        raise TypeError(f"wanted a whole number as the position, found {position!r:.50}")
    if not 1 <= position <= MAX_POSITION:
        raise ValueError(f"{position} is no position")
    return QueuePoint(name, message_type, tuple(topics), recovery_point, position)
