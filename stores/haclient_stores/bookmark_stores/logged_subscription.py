"""One subscription of a logged bookmark store: its tracker, and every move of it written down."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.bookmark_stores.records import (
    Kind,
    begun_flags,
    heard_record,
    publisher_record,
    server_records,
    standing_records,
    start_records,
    word,
)
from haclient_stores.bookmark_stores.tracked_store import Tracked
from haclient_stores.disk.threads import Gate
from haclient_stores.errors import StoreFull
from haclient_stores.tracker.entries import Alias, Chunk

if TYPE_CHECKING:
    from collections.abc import Callable

    from haclient_stores.bookmark import BookmarkList
    from haclient_stores.bookmark_stores.record_file import RecordFile
    from haclient_stores.tracker.entries import Publishers
    from haclient_stores.tracker.server_order import Standing
    from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["LoggedSubscription", "OpenLog"]

_ROOM: Final = 64  # records kept free for moves that are not counted
_RECORDS_PER_MESSAGE: Final = 3  # its arrival, its discard, and a new publisher


class OpenLog:
    """The open log, shared by all subscriptions of a store; `prune` exchanges what is inside.

    Attributes:
        file: Where records go.
        gate: Closed while they may not.
        publishers: All publishers; `introduced` of them are in the log.
        trackers: All trackers.
        resize: Asked with the new size in bytes before messages make the file larger (BS18).
    """

    __slots__ = ("_promised", "file", "gate", "introduced", "publishers", "resize", "trackers")

    def __init__(
        self,
        file: RecordFile,
        publishers: Publishers,
        resize: Callable[[int], bool] | None = None,
    ) -> None:
        self.file = file
        self.resize = resize
        self.gate = Gate()
        self.publishers = publishers
        self.introduced = len(publishers.ids)
        self.trackers: list[SubscriptionTracker] = []
        self._promised = 0  # at most so many entries are undiscarded

    def reserve(self, messages: int) -> None:
        """Room for so many arrivals, and for the discards of all that is logged.

        Raises:
            StoreFull: There is none; nothing has changed.
        """
        self._promised += messages
        wanted = _RECORDS_PER_MESSAGE * messages + _ROOM
        if not self.file.has_room(wanted + self._promised):
            self._promised = messages + sum(each.undiscarded_count for each in self.trackers)
            self._grow(wanted + self._promised)

    def _grow(self, records: int) -> None:
        """Room for so many records, if whoever is asked before it is taken agrees."""
        size = self.file.size_for(records)
        if self.resize is not None and not self.file.has_room(records) and not self.resize(size):
            raise StoreFull(
                f"the resize handler refused to let the bookmark store grow to {size} bytes: "
                "prune the store, or allow more"
            )
        self.file.reserve(records)

    def reserve_discards(self, file: RecordFile) -> None:
        """Room in another file for the discards of all that is logged.

        Raises:
            StoreFull: There is none; nothing has changed.
        """
        file.reserve(_ROOM + self._promised)

    def introduce(self) -> None:
        """Write down the publishers that are new."""
        ids = self.publishers.ids
        while self.introduced < len(ids):
            self.file.put(*publisher_record(self.introduced, ids[self.introduced]))
            self.introduced += 1


class LoggedSubscription(Tracked):
    """The handle of one subscription: its tracker, and what it does written down."""

    __slots__ = ("_discard_word", "_gate", "_log", "_try_discard", "index", "tracker")

    def __init__(self, log: OpenLog, index: int, tracker: SubscriptionTracker) -> None:
        self._log = log
        self._gate = log.gate
        self.index = index
        self._discard_word = word(Kind.DISCARDED, index)
        self._try_discard = tracker.try_discard
        self.tracker = tracker
        log.trackers.append(tracker)

    # -- hot ----------------------------------------------------------------------------------

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        gate = self._gate
        gate.busy = True
        if gate.closed:
            gate.wait()
        try:
            tracker = self.tracker
            log = self._log
            log.reserve(len(bookmarks))
            numbers = tracker.log_batch(bookmarks)
            if log.introduced != len(log.publishers.ids):
                log.introduce()
            for piece in tracker.fresh:
                self._write(piece)
        finally:
            gate.busy = False
        return numbers

    def _write(self, piece: Chunk | Alias) -> None:
        if isinstance(piece, Alias):
            self._log.file.put(word(Kind.ALIAS, self.index), piece.old)
            return
        base = word(Kind.LOGGED, self.index)
        count = len(piece.sequences)
        words = array("Q", bytes(16 * count))
        if piece.publisher >= 0:
            words[0::2] = array("Q", [base | piece.publisher]) * count
        else:
            words[0::2] = array("Q", [base | publisher for publisher in piece.publishers])
        words[1::2] = array("Q", piece.sequences)
        self._log.file.put_words(words)

    @override
    def discard(self, number: int) -> None:
        gate = self._gate
        gate.busy = True
        if gate.closed:
            gate.wait()
        try:
            if self._try_discard(number):
                file = self._log.file
                index = file.index
                if index >= file.limit:
                    file.turn()
                    index = file.index
                words = file.words
                words[index + 1] = number
                words[index] = self._discard_word
                file.index = index + 2
        finally:
            gate.busy = False

    @override
    def log(self, bookmark: str) -> int:
        return self.log_batch([bookmark])[0]

    # -- not hot ------------------------------------------------------------------------------

    def _move(self, kind: Kind, value: int, publisher: int = 0) -> None:
        self._log.file.put(word(kind, self.index, publisher), value)

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        tracker = self.tracker
        with self._log.gate.standstill():
            forgets = start is not None and tracker.known
            tracker.begin(acked=acked, start=start, conflated=conflated, entered_us=entered_us)
            if forgets:
                self._move(Kind.PURGED, 1)
            if start is not None:
                records = list(start_records(self.index, tracker, self._log.publishers))
                self._log.introduce()
                self._log.file.put_all(records)
            self._move(Kind.BEGUN, begun_flags(acked=acked, conflated=conflated))

    @override
    def link_lost(self, first_queued: int) -> None:
        with self._log.gate.standstill():
            self.tracker.link_lost(first_queued)
            self._move(Kind.LOST, max(first_queued, 1))

    @override
    def ended(self) -> None:
        self.link_lost(1)

    @override
    def discard_up_to(self, number: int) -> None:
        if number < 1:
            return
        tracker = self.tracker
        with self._log.gate.standstill():
            if not tracker.again:
                tracker.discard_all_up_to(number)
                self._move(Kind.DISCARDED_UP_TO, number)
                return
            for current in tracker.held_up_to(number):  # who reads this may expect other entries
                if tracker.discard_slowly(current):
                    self._move(Kind.DISCARDED, current)

    @override
    def persisted(self, bookmark: str) -> None:
        tracker = self.tracker
        paused = tracker.paused
        kind = Kind.PERSISTED_WHILE_PAUSED if paused else Kind.PERSISTED
        with self._log.gate.standstill():
            for item in bookmark.split(","):
                place = self._log.publishers.position(item)
                if place is not None:
                    tracker.persisted_at(*place)
                    self._log.introduce()
                    self._move(kind, place[1], place[0])

    @override
    def completed(self, bookmark: str) -> None:
        tracker = self.tracker
        with self._log.gate.standstill():
            tracker.completed(bookmark)
            place = self._log.publishers.position(bookmark)
            if place is None:
                self._move(Kind.COMPLETED_SOMEWHERE, 1)
            else:
                self._log.introduce()
                self._move(Kind.COMPLETED, place[1], place[0])

    @override
    def forget(self) -> None:
        with self._log.gate.standstill():
            self.tracker.purge()
            self._move(Kind.PURGED, 1)

    @override
    def seed(self, newest: dict[int, int], standing: Standing) -> None:
        with self._log.gate.standstill():
            self.tracker.seed(newest, standing)
            self._log.introduce()
            self._move(Kind.PURGED, 1)
            for publisher, sequence in newest.items():
                self._move(Kind.RECOVERED, sequence, publisher)
                self._move(Kind.SEEN, sequence, publisher)
            records = standing_records(self.index, self.tracker, self._log.publishers)
            self._log.file.put_all(list(records))

    @property  # type: ignore[explicit-override]  # a property in place of an attribute
    @override
    def paused(self) -> bool:
        """Set while the server holds the subscription: its acks are then no recovery points."""
        return self.tracker.paused

    @paused.setter
    def paused(self, value: bool) -> None:
        self.tracker.paused = value

    @property
    @override
    def oldest_undiscarded(self) -> int:
        return self.tracker.oldest_undiscarded

    @property
    @override
    def undiscarded_count(self) -> int:
        return self.tracker.undiscarded_count

    @override
    def is_discarded(self, bookmark: str) -> bool:
        return self.tracker.is_discarded(bookmark)

    @override
    def recovery_point(self) -> BookmarkList:
        return self.tracker.recovery_point()

    @override
    def resume(self) -> str:
        return self.tracker.resume()

    @override
    def resume_elsewhere(self, since_us: int, after: str = "") -> tuple[str, ...]:
        return self.tracker.resume_elsewhere(since_us, after)

    @override
    def resume_from_start(self) -> str:
        return self.tracker.resume_from_start()

    @property
    @override
    def standing(self) -> Standing:
        return self.tracker.standing

    @property
    @override
    def in_order(self) -> bool:
        return self.tracker.in_order

    @override
    def entered(self, server: str) -> None:
        with self._log.gate.standstill():
            self.tracker.entered(server)
            self._log.file.put_all(list(server_records(self.index, server)))

    @override
    def heard(self, until_us: int) -> None:
        with self._log.gate.standstill():
            self.tracker.heard(until_us)
            self._log.file.put(*heard_record(self.index, until_us))
