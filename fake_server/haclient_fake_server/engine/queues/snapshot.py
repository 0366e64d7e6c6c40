"""What a queue holds at one place of the log, as columns of numbers.

A broker that starts with a snapshot of a queue reads the log from that place on, instead of from
the oldest message that the queue holds. Leases are not in it: after a restart all is available.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.queues.message_table import ChunkColumns
from haclient_fake_server.engine.settings import QueueTopic


class QueueColumns(NamedTuple):
    """What a queue holds.

    Attributes:
        messages: Its messages, in runs.
        due_us: When some of them expire, in microseconds since 1970.
        due_positions: The positions of those.
        barriers: The positions of barrier messages.
    """

    messages: Sequence[ChunkColumns]
    due_us: array[int]
    due_positions: array[int]
    barriers: array[int]


class QueueSnapshot(NamedTuple):
    """A queue at one place of the log.

    Attributes:
        name: The queue.
        message_type: Its message type.
        definition: See `definition_of`.
        end: The place: all records before it are in the snapshot, none from it on.
        next_position: The position of the first message after it.
        columns: What the queue holds.
    """

    name: str
    message_type: str
    definition: str
    end: Cursor
    next_position: int
    columns: QueueColumns


def definition_of(settings: QueueTopic) -> str:
    """The part of a queue's configuration on which its columns depend, as text.

    A snapshot that was made with another definition does not say what the queue holds.
    """
    fields = {
        "topics": settings.underlying,
        "recovery_point": settings.recovery_point,
        "expiration_s": settings.expiration_s,
        "expiration_model": settings.expiration_model,
        "priority": settings.priority,
        "barrier": settings.barrier,
    }
    return json.dumps(fields)
