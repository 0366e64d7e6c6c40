"""The records of file-backed topics as the database keeps them, and their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.sow.table import SowRecord


class SavedRecords(NamedTuple):
    """The records of topics at one place of the log.

    Attributes:
        end: The place: all that comes before it is in the records.
        next_position: The position of the first message after it.
        definitions: Topics with one of these definitions are in it; others have to be rebuilt.
        records: The records with their message types and topics, in the order of first insertion.
    """

    end: Cursor
    next_position: int
    definitions: frozenset[str]
    records: Sequence[tuple[str, str, SowRecord]]


class SowChanges(NamedTuple):
    """A part of what has changed in one topic since the last time.

    Attributes:
        message_type: Its message type.
        topic: The topic.
        records: By key the present record, or `None` where there is none any more.
    """

    message_type: str
    topic: str
    records: Sequence[tuple[str, SowRecord | None]]
