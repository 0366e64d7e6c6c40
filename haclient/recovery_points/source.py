"""How far a source was published: for a publisher that goes on after a kill.

A publisher reads a source (a file, a table, another queue) and publishes each of its records. After
a kill it has to know which record comes next. Writing the position down after each publish would
cost a sync each, and a kill between the two would lose or double one. A publish store makes it
simpler: it numbers its messages without gaps, and what `publish` has returned for is in it. So the
position is written down now and then, together with the sequence number at that moment; the number
of records since is the difference to the last sequence number that a message has.

At the first logon after the machine was started (or the store was moved to another one) numbers are
skipped: the next one is above the clock. So `resume` counts up to the highest number of a message
that the store has or the server knows, and writes the count down with the number that comes next.

That only counts records as long as the store publishes nothing else, and one message for each
record. The source has to give the same records again from a position on, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, cast

import msgspec

from haclient.client import BaseClient
from haclient.errors import StoreError, UsageError
from haclient.facade.methods import FacadeClient
from haclient.facade.thread import Bridge, TrioThread
from haclient_stores.publish_stores.file import FilePublishStore

__all__ = ["ResumePoint", "SourcePosition"]

_T = TypeVar("_T")

NOTE: Final = "haclient-source-position"
"""The key of the position in the notes of the store."""


class _Noted(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    position: str
    sequence: int
    skip: int = 0  # so many records after the position were published with numbers up to this one


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
        store: The store; nothing else may publish with it. A store belongs to the thread of its
            client: with `haclient.blocking` and `haclient.aio` give the client, whose store is
            then used in its thread.
        source: The name of the source, which is checked after a restart.

    Raises:
        UsageError: The store keeps no notes, or the name is empty.
    """

    def __init__(self, store: FilePublishStore | FacadeClient[TrioThread], source: str) -> None:
        bridge = cast("Bridge[BaseClient, TrioThread] | None", getattr(store, "__bridge__", None))
        self._thread = None if bridge is None else bridge.thread
        if bridge is not None:
            store = cast("FilePublishStore", bridge.inner.publish_store)
        if not isinstance(store, FilePublishStore):
            raise UsageError(
                f"store is a FilePublishStore, which keeps notes, not {type(store).__name__}"
            )
        if not source:
            raise UsageError("source is the name of what is published, and must not be empty")
        self._store = store
        self._source = source

    def resume(self) -> ResumePoint:
        """Where to go on; to be called after the logon, before the first publish.

        The logon comes first since the server may know more of this publisher than the store.

        Raises:
            StoreError: The note cannot be read, or is about another source; or records before the
                last one that was published are lost, so that no one position is right.
            UsageError: This thread is not the store's.
        """
        return self._in_thread(self._resume, "resume")

    def _in_thread(self, function: Callable[[], _T], what: str) -> _T:
        return function() if self._thread is None else self._thread.now(function, what)

    def _resume(self) -> ResumePoint:
        text = self._store.notes.get(NOTE, "")
        if not text:
            self._write("", 0)
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
        if self._store.last_sequence < noted.sequence:
            raise StoreError(
                f"the store's last sequence {self._store.last_sequence} is below the noted "
                f"{noted.sequence}: it is older than its note"
            )
        self._check_missing(noted)
        skip = noted.skip + max(0, self._store.last_used_sequence - noted.sequence)
        if noted.sequence != self._store.last_sequence:
            # The numbering may have jumped at this logon. From here on there is no jump to count.
            self._write(noted.position, skip)
        return ResumePoint(noted.position, skip)

    def _check_missing(self, noted: _Noted) -> None:
        missing = self._store.missing_after(noted.sequence)
        if missing is None:
            return
        first, last, total = (
            noted.skip + sequence - noted.sequence
            for sequence in (*missing, self._store.last_used_sequence)
        )
        where = f"after the position {noted.position!r}" if noted.position else "of the source"
        raise StoreError(
            f"records {first} to {last} {where} are missing: neither the store nor the server has "
            f"them, but the store has later ones, up to record {total}. Either a loss of power "
            "took them, or this server is behind another one that has them: then connect to that "
            "one. Otherwise publish these records, and then call note() with the position after "
            f"record {total}"
        )

    def note(self, position: str) -> None:
        """Write down that every record up to a position was published, and none after it.

        It is on disk when this returns, and so are these records. Each call costs a sync: one for
        some thousand records is plenty, since the rest is counted.

        Args:
            position: Where the source goes on: an offset, a key, a time.

        Raises:
            StoreError: The disk is full, or fails.
            UsageError: This thread is not the store's.
        """
        self._in_thread(partial(self._write, position, 0), "note")

    def _write(self, position: str, skip: int) -> None:
        # The note must not survive a loss of power that takes the records it counts.
        self._store.sync()
        sequence = self._store.last_sequence
        noted = _Noted(source=self._source, position=position, sequence=sequence, skip=skip)
        self._store.set_note(NOTE, msgspec.json.encode(noted).decode())
