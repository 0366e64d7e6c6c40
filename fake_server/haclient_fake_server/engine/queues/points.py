"""The recovery points of queues: from where on a queue has to read the log when a broker starts.

Everything before its point has left the queue, so a restart reads the log from there on, and what
follows must not be removed. For a queue that begins at its creation the point also says where that
was; for one that begins with the log it is only a hint, and a restart without it reads more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class QueuePoint(NamedTuple):
    """The recovery point of one queue.

    Attributes:
        name: The queue.
        message_type: Its message type.
        topics: Its underlying topics, as configured: with others, the point is not valid.
        recovery_point: The configured beginning of the queue: `epoch`, `now`, a bookmark or a time.
        position: The first position of the log that the queue still needs.
    """

    name: str
    message_type: str
    topics: tuple[str, ...]
    recovery_point: str
    position: int


def oldest_needed(points: Iterable[QueuePoint]) -> int | None:
    """The lowest position that any queue needs; `None` without queues."""
    return min((point.position for point in points), default=None)
