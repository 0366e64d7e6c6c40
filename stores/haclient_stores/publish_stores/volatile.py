"""The publish log of a client without a publish store: it keeps nothing past its connection.

It is the segment log over anonymous memory, like the memory store: numbers, acks and the limits of
unpersisted bytes are the same. What differs is the end of a connection. Then the log forgets what
is not persisted, since nobody has promised to send it again, and names what it has forgotten.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from typing_extensions import override

from haclient_stores.publish_stores.memory import (
    DEFAULT_MEMORY_BYTES,
    DEFAULT_MEMORY_SEGMENT_BYTES,
    MemoryStorage,
)
from haclient_stores.publish_stores.publish_log import PublishLog
from haclient_stores.publish_stores.segment import Limits, Segment, walk
from haclient_stores.publish_stores.window import PublishWindow

_LIMITS: Final = Limits(DEFAULT_MEMORY_SEGMENT_BYTES, DEFAULT_MEMORY_BYTES, wait=True)


class VolatilePublishLog(PublishLog):
    """Keeps messages until they are persisted or the connection ends."""

    def __init__(self) -> None:
        super().__init__(
            MemoryStorage(DEFAULT_MEMORY_SEGMENT_BYTES),
            None,
            limits=_LIMITS,
            error_on_publish_gap=False,
        )

    def forget(self) -> None:
        """Forget all messages, because the connection has ended; later numbers are higher."""
        self._thread.check()
        self._begin(self._window.last_sequence, persisted=0)

    def number_from(self, sequence: int) -> None:
        """Give the next message this number, although later numbers may have been skipped to.

        Args:
            sequence: The number. Below the last one it may be only while nothing is stored, and it
                has to be above what is persisted.
        """
        self._thread.check()
        window = self._window
        if sequence <= window.last_sequence and not window.count:
            self._begin(sequence - 1, persisted=min(window.last_persisted, sequence - 1))
        else:
            self.mark_head()
            window.skip_to(sequence - 1)
            active = self._active
            # The numbers of a caller may have a gap before each message: a mark, no new segment.
            if active is not None and active.next_sequence != sequence and not self._jumped:
                active.mark(self._end, sequence)

    @override
    def _frames_of(self, segment: Segment, first: int) -> Iterator[tuple[int, bytes]]:
        offsets, sequences = segment.mark_offsets, segment.mark_sequences
        mark = max(bisect_right(sequences, first) - 1, 0)
        view, offset, sequence = segment.view, offsets[mark], sequences[mark]
        while offset < segment.end:
            while mark < len(offsets) and offsets[mark] <= offset:  # the numbers may jump at a mark
                sequence = sequences[mark]
                mark += 1
            after = walk(view, offset, 1)
            if sequence >= first:
                yield sequence, bytes(view[offset:after])
            offset, sequence = after, sequence + 1

    def _begin(self, last_sequence: int, *, persisted: int) -> None:
        for segment in self.detach():
            segment.released = True
            self._storage.release(segment)
        self._window = window = PublishWindow()
        window.reconciled = True  # nothing is stored before a logon
        window.persist(persisted)
        window.skip_to(last_sequence)
