"""How far a source was published: for a publisher that goes on after a kill.

A publisher reads a source (a file, a table, another queue) and publishes each of its records. After
a kill it has to know which record comes next. Writing the position down after each publish would
cost a sync each, and a kill between the two would lose or double one. A publish store makes it
simpler: it numbers its messages without gaps, and what `publish` has returned for is in it. So the
position is written down now and then, together with the sequence number at that moment; the number
of records since is the difference to the last sequence number that the store knows.

That only counts records as long as the store publishes nothing else, and one message for each
record. The source has to give the same records again from a position on, in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from haclient.errors import StoreError, UsageError
from haclient_stores.publish_stores.file import FilePublishStore

__all__ = ["ResumePoint", "SourcePosition"]

NOTE: Final = "haclient-source-position"
"""The key of the position in the notes of the store."""


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    position: str
    sequence: int


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a publisher goes on.

    Attributes:
        position: The position that was noted last; empty when none was, for the beginning.
        skip: How many records after it were published already.
    """

    position: str
    skip: int


class SourcePosition:
    """The position of one source, kept in the notes of its publish store.

    Args:
        store: The store; nothing else may publish with it.
        source: The name of the source, which is checked after a restart.

    Raises:
        UsageError: The store keeps no notes, or the name is empty.
    """

    def __init__(self, store: FilePublishStore, source: str) -> None:
        if not isinstance(store, FilePublishStore):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers without types
            raise UsageError(
                f"store is a FilePublishStore, which keeps notes, not a {type(store).__name__}"
            )
        if not source:
            raise UsageError("source is the name of what is published, and must not be empty")
        self._store = store
        self._source = source

    def resume(self) -> ResumePoint:
        """Where to go on; to be called after the logon, before the first publish.

        The logon comes first since the server may know more of this publisher than the store.

        Raises:
            StoreError: The note cannot be read, or is about another source.
        """
        text = self._store.notes.get(NOTE, "")
        if not text:
            self.note("")
            return ResumePoint("", 0)
        try:
            noted = msgspec.json.decode(text, type=_Noted)
        except msgspec.MsgspecError as error:
            raise StoreError(f"the store's note {NOTE} cannot be read: {error}") from error
        if noted.source != self._source:
            raise StoreError(
                f"the store publishes the source {noted.source!r}, not {self._source!r}: give each "
                "source a store and a client name of its own"
            )
        skip = self._store.last_sequence - noted.sequence
        if skip < 0:
            raise StoreError(
                f"the store's last sequence {self._store.last_sequence} is below the noted "
                f"{noted.sequence}: it is older than its note"
            )
        return ResumePoint(noted.position, skip)

    def note(self, position: str) -> None:
        """Write down that every record up to a position was published, and none after it.

        It is on disk when this returns. Each call costs a sync: one for some thousand records is
        plenty, since the rest is counted.

        Args:
            position: Where the source goes on: an offset, a key, a time.

        Raises:
            StoreError: The disk is full, or fails.
        """
        sequence = self._store.last_sequence
        noted = _Noted(source=self._source, position=position, sequence=sequence)
        self._store.set_note(NOTE, msgspec.json.encode(noted).decode())
