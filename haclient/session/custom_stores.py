"""Stores that the user has written, behind the two fast interfaces.

A custom `PublishStore` keeps messages but does not send them: `SendingStore` acts as the send
queue, and asks the store to `replay` what it has to send again, piece by piece. A custom
`BookmarkStore` works message by message: `StoreSubscription` is its view of one subscription.
Neither is as fast as the stores of this project, but both give the same guarantees.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final

from typing_extensions import override

from haclient_stores.bookmark import BookmarkList
from haclient_stores.errors import PublishGap, StoreError, UsageError
from haclient_stores.interfaces import BookmarkStore, FrameLog, PublishStore, SubscriptionLog
from haclient_stores.publish_stores.segment_log import check_frame
from haclient_stores.tracker.resumption import Resumption, sequences

_LENGTH_BYTES: Final = 4
_PIECE_BYTES: Final = 2**20  # how much of a store is read at once


class SendingStore(FrameLog):
    """A `PublishStore` with a send queue in front of it.

    The queue holds a piece of what is to be sent; the rest stays in the store until its turn comes.
    Of each unpersisted message the sequence and the size are kept, 12 bytes: the writer has to know
    how much there is. An earlier process may have left more than can be measured at once: call
    `measure` until it is true before the log is sent.
    """

    def __init__(self, store: PublishStore) -> None:
        self._store = store
        self._sequences, self._sizes = array("Q"), array("I")  # of the unpersisted messages
        self._first = 0  # index of the first that is not persisted
        self._next = 0  # index of the first that is not in the queue
        self._is_measured = False  # whether the two name all that is in the store
        self._counted_from = 0  # the first that counts as unsent and is not measured; 0 for none
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._offset = 0  # bytes of the first frame that have left
        self.unsent_bytes = 0

    def measure(self) -> bool:
        """Measure a piece of what is in the store; return whether it was the last one."""
        size = 0
        if not self._is_measured:
            for sequence, frame in self._store.replay(self._sequences[-1] if self._sizes else 0):
                self._note(sequence, len(frame))
                if 0 < self._counted_from <= sequence:  # counted when it was appended
                    self.unsent_bytes -= len(frame)
                size += len(frame)
                if size >= _PIECE_BYTES:
                    return False
            self._is_measured = True
        return True

    def _note(self, sequence: int, size: int) -> None:
        self._sequences.append(sequence)
        self._sizes.append(size)
        self.unsent_bytes += size

    @override
    def append(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        check_frame(len(head) + len(tail) + memoryview(body).nbytes)
        self._is_measured = self._is_measured or not self._store.unpersisted_count
        sequence = self._store.store(head, tail, body)
        rest = b"%b%d%b%b" % (head, sequence, tail, body)  # type: ignore[str-format]  # any buffer
        if not self._is_measured:
            self.unsent_bytes += len(rest) + _LENGTH_BYTES
            self._counted_from = self._counted_from or sequence
            return sequence
        self._note(sequence, len(rest) + _LENGTH_BYTES)
        if self._next == len(self._sizes) - 1 and self._queued_bytes < _PIECE_BYTES:
            self._push(len(rest).to_bytes(_LENGTH_BYTES, "big") + rest)
        return sequence

    @override
    def store(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        return self.append(head, tail, body)

    def _push(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        self._next += 1

    @override
    def rewind(self, after: int) -> None:
        self._frames.clear()
        self._queued_bytes = self._offset = self.unsent_bytes = 0
        if self._is_measured:
            self._next = max(self._first, bisect_right(self._sequences, after))
            self.unsent_bytes = sum(self._sizes[self._next :])
        else:
            del self._sequences[:], self._sizes[:]
            self._first = self._next = self._counted_from = 0

    def _load(self) -> None:
        """Take the next piece from the store."""
        while not self.measure():
            pass  # nobody has done it
        if self._next == len(self._sizes):
            return
        for sequence, frame in self._store.replay(self._sequences[self._next] - 1):
            wanted = self._sequences[self._next]
            if sequence != wanted:
                raise StoreError(
                    f"the publish store replays message {sequence} where {wanted} has to follow: "
                    "it may forget none that is not discarded"
                )
            self._push(frame)
            if self._queued_bytes >= _PIECE_BYTES or self._next == len(self._sizes):
                break

    @override
    def peek(self) -> memoryview:
        if not self._frames:
            self._load()
        if not self._frames:
            return memoryview(b"")
        return memoryview(self._frames[0])[self._offset :]

    @override
    def advance(self, count: int) -> None:
        self._offset += count
        self.unsent_bytes -= count
        if self._offset == len(self._frames[0]):
            self._queued_bytes -= len(self._frames.popleft())
            self._offset = 0

    @override
    def frame_remainder(self) -> int:
        return len(self._frames[0]) - self._offset if self._offset else 0

    @override
    def discard_up_to(self, sequence: int) -> None:
        self._store.discard_up_to(sequence)
        self._forget(sequence)

    def _forget(self, sequence: int) -> None:
        """Forget the sizes of what is persisted; what is in the queue is sent all the same."""
        self._first = max(self._first, bisect_right(self._sequences, sequence))
        if self._next < self._first:
            self.unsent_bytes -= sum(self._sizes[self._next : self._first])
            self._next = self._first
        if 2 * self._first > len(self._sizes):
            del self._sequences[: self._first], self._sizes[: self._first]
            self._next -= self._first
            self._first = 0

    @override
    def replay(self, after: int = 0) -> Iterator[tuple[int, bytes]]:
        return self._store.replay(after)

    @override
    def replay_single(self, sequence: int) -> bytes | None:
        return self._store.replay_single(sequence)

    @override
    def number_above(self, sequence: int) -> None:
        self._store.number_above(sequence)

    @override
    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        self._store.reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
        self._forget(self._store.last_persisted)

    @property
    @override
    def unpersisted_count(self) -> int:
        return self._store.unpersisted_count

    @property
    @override
    def unpersisted_bytes(self) -> int:
        return self._store.unpersisted_bytes

    @property
    @override
    def lowest_unpersisted(self) -> int:
        return self._store.lowest_unpersisted

    @property
    @override
    def last_persisted(self) -> int:
        return self._store.last_persisted

    @property
    @override
    def last_sequence(self) -> int:
        return self._store.last_sequence

    @property
    @override
    def client_name(self) -> str:
        return self._store.client_name

    @property
    @override
    def gap(self) -> PublishGap | None:
        return self._store.gap

    @override
    def open_for(self, client_name: str) -> None:
        self._store.open_for(client_name)

    @override
    def sync(self) -> None:
        self._store.sync()

    @override
    def close(self) -> None:
        self._store.close()


class StoreSubscription(Resumption, SubscriptionLog):
    """One subscription of a `BookmarkStore` that handles messages one by one.

    The store takes whatever it has logged for a duplicate, until its next process. What nobody has
    been given, or will finish, is remembered here: it is delivered when it comes again, under the
    number that it has in the store.
    """

    def __init__(self, store: BookmarkStore, sub_id: str) -> None:
        self._store = store
        self._sub_id = sub_id
        self._undiscarded: dict[int, str] = {}  # bookmarks by number, of what was logged here
        self._awaited: dict[str, int] = {}  # numbers by bookmark, of those that have to come again
        super().__init__()  # for as long as this object lives; the store knows only messages
        self._nothing_came = True
        self._seen: dict[int, int] = {}
        self._following = 1  # higher than the number of each message
        self._conflated = False
        self.paused = False

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        self._conflated = conflated
        if start is not None:
            self._store.purge(self._sub_id)
            self.reset()
            self.start.set(start)
            self.start.entered_us = entered_us
            self._nothing_came = True
            self._seen.clear()
            self._undiscarded.clear()
            self._awaited.clear()

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int]:
        return [self.log(bookmark) for bookmark in bookmarks]

    @override
    def log(self, bookmark: str) -> int:
        if not bookmark:
            return -1
        if number := self._awaited.pop(bookmark, 0):
            return number
        if self._store.is_discarded(self._sub_id, bookmark):
            return 0
        self._nothing_came = False
        seen = self._seen
        with suppress(UsageError):  # the store knows better what it can read
            found = sequences(BookmarkList.parse(bookmark))
            seen.update({each: at for each, at in found.items() if at > seen.get(each, 0)})
        number = self._store.log(self._sub_id, bookmark)
        self._following = max(self._following, number + 1)
        if number > 0:
            self._undiscarded[number] = bookmark
        return number

    @override
    def caught_up(self, until_us: int) -> None:
        super().caught_up(until_us)
        self.server_order.update_discarded_until(self.oldest_undiscarded, self._following)
        self._forget_discarded()

    @override
    def discard(self, number: int) -> None:
        self._store.discard(self._sub_id, number)
        self._awaited.pop(self._undiscarded.pop(number, ""), None)

    def _forget_discarded(self) -> None:
        """Forget what the application has discarded by the store's own `discard_up_to`."""
        oldest = self.oldest_undiscarded or self._following
        if next(iter(self._undiscarded), oldest) < oldest:
            for number in [each for each in self._undiscarded if each < oldest]:
                self._awaited.pop(self._undiscarded.pop(number), None)

    @override
    def persisted(self, bookmark: str) -> None:
        # The store would take it for a recovery point, although messages are held back.
        if not self.paused and not self._conflated:
            self._store.persisted(self._sub_id, bookmark)

    @override
    def completed(self, bookmark: str) -> None:
        if self._nothing_came and self.start.is_now and bookmark:
            self.start.set(bookmark)

    @override
    def dropped(self, numbers: Collection[int]) -> None:
        self._forget_discarded()
        for number in numbers:
            if number in self._undiscarded:
                self._awaited[self._undiscarded[number]] = number

    @override
    def link_lost(self, first_queued: int) -> None:
        self.dropped([number for number in self._undiscarded if number >= first_queued])

    @override
    def ended(self) -> None:
        self.link_lost(0)

    @override
    def ended_except(self, numbers: Collection[int]) -> None:
        self.dropped(self._undiscarded.keys() - numbers)

    @override
    def discard_up_to(self, number: int) -> None:
        self._store.discard_up_to(self._sub_id, number)
        self._forget_discarded()

    @override
    def is_discarded(self, bookmark: str) -> bool:
        return bookmark not in self._awaited and self._store.is_discarded(self._sub_id, bookmark)

    @property
    @override
    def oldest_undiscarded(self) -> int:
        return self._store.oldest_undiscarded(self._sub_id)

    @property
    @override
    def undiscarded_count(self) -> int:
        return int(self.oldest_undiscarded != 0)  # a custom store says no more than that

    @override
    def finished_point(self) -> BookmarkList:
        return self._store.most_recent(self._sub_id)

    @property
    @override
    def nothing_arrived(self) -> bool:
        return self._nothing_came

    @override
    def arrived(self) -> dict[int, int]:
        return {**sequences(self.finished_point()), **self._seen}

    @override
    def awaiting_redelivery(self) -> Iterable[int]:
        publishers = {bookmark.partition("|")[0] for bookmark in self._awaited}
        return [int(each) for each in publishers if each.isdecimal()]  # the store may read others
