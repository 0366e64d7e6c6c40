"""Whether the log holds a message that somebody sends again.

A message whose sequence is at or below the highest of its publisher is a duplicate, and usually in
the log. It is not when its publisher died, lost its store and went on elsewhere: then two logs hold
different messages of one publisher for good, and somebody has to be told.

Recent messages are looked up in the runs of consecutive sequences that each publisher keeps in
memory. Older ones are looked up in the journal; the part of it that a look-up has read is kept,
since duplicates come in the order of the log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from haclient_fake_server.engine.journal import records_of

if TYPE_CHECKING:
    from haclient_fake_server.engine.batch import BatchBuilder
    from haclient_fake_server.engine.identity import Publisher
    from haclient_fake_server.engine.journal import JournalReader

__all__ = ["Holdings"]

CHUNK_BYTES: Final = 256 * 1024
MAX_CHUNKS: Final = 4
"""Parts of the log that are kept: one for each of some publishers that are caught up on at once."""


class Holdings:
    """What the log holds."""

    def __init__(self, journal: JournalReader, batch: BatchBuilder) -> None:
        self._journal = journal
        self._batch = batch
        self._chunks: deque[dict[int, dict[int, None]]] = deque(maxlen=MAX_CHUNKS)

    def lacks(self, publisher: Publisher, sequence: int) -> bool:
        """Whether a message is surely not in the log, though a later one of its publisher is.

        Not so for what may have been removed with the oldest segments.
        """
        held = publisher.holds(sequence)
        if held is None:
            held = self._holds(publisher.id, sequence)
        return not held

    def _holds(self, publisher_id: int, sequence: int) -> bool:
        for chunk in self._chunks:
            known = chunk.get(publisher_id)
            if known is None:
                continue
            first, last = next(iter(known)), next(reversed(known))
            if first <= sequence <= last:  # the sequences of a publisher never fall in a log
                return sequence in known
        position = self._journal.find(publisher_id, sequence)
        if position is None:
            return self._journal.first_position > 1 or (
                self._batch.find(publisher_id, sequence) is not None
            )
        self._keep(position)
        return True

    def _keep(self, position: int) -> None:
        journal = self._journal
        data, _ = journal.read(journal.seek(position), 2 * CHUNK_BYTES)
        chunk: dict[int, dict[int, None]] = {}
        for record in records_of(data):
            if record.position:
                chunk.setdefault(record.publisher_id, {})[record.sequence] = None
        self._chunks.appendleft(chunk)
