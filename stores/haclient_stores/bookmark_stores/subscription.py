"""The handle of one subscription, which all our stores share, and its notes.

The handle combines a `SubscriptionTracker`, which decides, with its *notes*, which store the
tracker's state changes: not at all in memory, as records in a log, or as the newest state in a
ring. Each change is first made and then written to the notes, both before the call returns.

A handle is used by one thread (`ThreadBinding`); a prune in another thread makes it wait at the
gate while it copies (`Gate`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from threading import get_ident

from typing_extensions import override

from haclient_stores.bookmark import BookmarkList, BookmarkRange, parse_bookmark
from haclient_stores.bookmark_stores.records import RecordKind, begun_flags
from haclient_stores.disk.threads import Gate, ThreadBinding
from haclient_stores.interfaces import Discard, SubscriptionLog
from haclient_stores.tracker.entries import Alias, Chunk
from haclient_stores.tracker.redelivery import AllBut
from haclient_stores.tracker.server_order import ServerOrder, log_name
from haclient_stores.tracker.tracker import SubscriptionTracker


class StoreNotes:
    """The notes of a store in memory, which writes none. Other stores override its methods.

    Args:
        tracker: The tracker of the subscription.
        thread: The thread that the store belongs to.
        gate: Closed by another thread while nothing may move.
    """

    def __init__(
        self, tracker: SubscriptionTracker, thread: ThreadBinding, gate: Gate | None = None
    ) -> None:
        self.tracker = tracker
        self.thread = thread
        self.gate = gate or Gate()

    def discard_function(self, elsewhere: Discard) -> Discard:
        """The function behind `SubscriptionHandle.discard`: it discards and notes the change.

        Args:
            elsewhere: What to call instead in another thread than the store's.
        """
        tracker, thread = self.tracker, self.thread

        def discard(number: int) -> None:
            if get_ident() != thread.ident:
                elsewhere(number)
            elif (
                number == tracker.low_watermark != tracker.slow_path_at
            ):  # `tracker.discard`, written out
                tracker.low_watermark = number + 1
            else:
                tracker.discard_slowly(number)

        return discard

    def reserve(self, messages: int) -> None:
        """Make room for messages and for their discards, before they are logged.

        Args:
            messages: The number of messages.

        Raises:
            StoreFull: There is none; nothing has changed.
        """

    def note_logged(self, pieces: Sequence[Chunk | Alias | None]) -> None:
        """Note new and redelivered entries.

        Args:
            pieces: What `SubscriptionTracker.log_batch` has added; None where it has condensed.

        Raises:
            StoreError: It cannot be written.
        """

    def moving(self) -> AbstractContextManager[object]:
        """The block in which any other move is made and noted."""
        return contextlib.nullcontext()

    def note(self, kind: RecordKind, value: int = 1, publisher: int = 0) -> None:
        """Note one move.

        Args:
            kind: What has happened; `records.Kind` says what the numbers mean.
            value: The value of the record.
            publisher: The index of the publisher; 0 where the kind names none.

        Raises:
            StoreFull: There is no room, and the next process cannot do without the record.
        """

    def note_start(self) -> None:
        """Note where the tracker began."""

    def note_server(self, server: str, *, is_progress: bool) -> None:
        """Note the server that has accepted the subscription.

        Args:
            server: The name of its log, and how far that has come.
            is_progress: Whether only the latter is new.
        """

    def note_seed(self, newest: dict[int, int]) -> None:
        """Note that another process has finished everything up to some sequences.

        Args:
            newest: The sequences by publisher index; the tracker has their server order already.
        """


class SubscriptionHandle(SubscriptionLog):
    """One subscription of a store: its tracker, and the notes of its state changes.

    Attributes:
        tracker: Decides.
        notes: Store each state change.
        discard: See `SubscriptionLog.discard`. It is made by the notes, since a call from here to
            there would cost as much as the discard itself.
        moves: Counts the calls, other than discards, that may move the recovery point.
    """

    __slots__ = ("_gate", "_noted_us", "_thread", "discard", "moves", "notes", "tracker")

    discard: Discard

    def __init__(self, notes: StoreNotes) -> None:
        self.notes = notes
        self.tracker = notes.tracker
        self._thread = notes.thread
        self._gate = notes.gate
        self._noted_us = notes.tracker.server_order.discarded_until_us
        self.moves = 0
        self.discard = notes.discard_function(self._discard_first)  # pyright: ignore[reportIncompatibleMethodOverride]  # see above

    def _discard_first(self, number: int) -> None:
        """Discard before the store is bound to this thread, or refuse another thread."""
        self._thread.check()
        self.discard(number)

    @override
    def discard_function(self, elsewhere: Discard) -> Discard:
        return self.notes.discard_function(elsewhere)

    @property
    def movement(self) -> tuple[int, int]:
        """A value that changes whenever the recovery point may have moved.

        Of discards only those move it that move the low watermark.
        """
        return self.moves, self.tracker.low_watermark

    def _moving(self) -> AbstractContextManager[object]:
        self._thread.check()
        self.moves += 1
        return self.notes.moving()

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        if get_ident() != self._thread.ident:
            self._thread.check()
        self.moves += 1
        gate = self._gate
        gate.busy = True
        if gate.closed:
            gate.wait()
        try:
            tracker, notes = self.tracker, self.notes
            notes.reserve(len(bookmarks))
            numbers = tracker.log_batch(bookmarks)
            notes.note_logged(tracker.fresh)
        finally:
            gate.busy = False
        return numbers

    @override
    def log(self, bookmark: str) -> int:
        return self.log_batch([bookmark])[0]

    # -- the life of a subscription -------------------------------------------------------------

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        tracker, notes = self.tracker, self.notes
        with self._moving():
            tracker.begin(acked=acked, start=start, conflated=conflated, entered_us=entered_us)
            if start is not None:
                notes.note(RecordKind.PURGED, tracker.generation)
                notes.note_start()
            notes.note(RecordKind.BEGUN, begun_flags(acked=acked, conflated=conflated))

    def keep_range(self, start: str) -> None:
        """Let it end where it was to end at first, which is not kept on the disk.

        Args:
            start: The bookmark at which it began, in wire form; anything but a range is ignored.
        """
        if isinstance(parse_bookmark(start), BookmarkRange):
            with self._moving():
                self.tracker.start.set(start)

    @override
    def link_lost(self, first_queued: int) -> None:
        with self._moving():
            self.tracker.link_lost(first_queued)
            self.notes.note(RecordKind.LOST, max(first_queued, 1))

    @override
    def dropped(self, numbers: Collection[int]) -> None:
        first = min(numbers)
        with self._moving():  # a conflated queue is in no order: its consumer may have later ones
            self.tracker.link_lost(first, exempt=AllBut(frozenset(numbers)))
            self.notes.note(RecordKind.LOST, max(first, 1))  # the reader's process holds none

    @override
    def ended(self) -> None:
        self.link_lost(1)

    @override
    def ended_except(self, numbers: Collection[int]) -> None:
        with self._moving():
            self.tracker.link_lost(0, exempt=numbers)
            self.notes.note(RecordKind.LOST, 1)  # the reader's process holds none of them

    def forget(self, *, has_copies: bool = True) -> None:
        """Know nothing, also where it is kept.

        Args:
            has_copies: An adapter has copies, so the next process has to know of this. Else there
                is nothing to know, and the store may drop the id.
        """
        with self._moving():
            self.tracker.forget()
            if not has_copies:
                self.tracker.generation = 1
            self.notes.note(RecordKind.PURGED, self.tracker.generation)

    def seed(self, newest: dict[int, int], server_order: ServerOrder, generation: int) -> None:
        """Start from the recovery point of another process.

        Args:
            newest: By publisher index, the sequence up to which everything is finished.
            server_order: In which server's order that is.
            generation: How often the subscription was started over, here or elsewhere.
        """
        with self._moving():
            self.tracker.seed(newest, server_order, generation)
            self.notes.note(RecordKind.PURGED, generation)
            self.notes.note_seed(newest)

    # -- discards and acks ------------------------------------------------------------------------

    @override
    def discard_up_to(self, number: int) -> None:
        self._thread.check()
        tracker, notes = self.tracker, self.notes
        if number < tracker.low_watermark:  # a record is only written where it discards something
            return
        with self._moving():
            if not tracker.redelivery:
                if tracker.oldest_undiscarded:
                    tracker.discard_all_up_to(number)
                    notes.note(RecordKind.DISCARDED_UP_TO, number)
                return
            for current in tracker.held_up_to(
                number
            ):  # not one record: in the reader other messages may be held
                if tracker.discard_slowly(current):
                    notes.note(RecordKind.DISCARDED, current)

    @override
    def persisted(self, bookmark: str) -> None:
        tracker, notes = self.tracker, self.notes
        kind = RecordKind.PERSISTED_WHILE_PAUSED if tracker.paused else RecordKind.PERSISTED
        with self._moving():
            for item in bookmark.split(","):
                place = tracker.position(item)
                if place is not None:
                    tracker.persisted_at(*place)
                    notes.note(kind, place[1], place[0])

    @override
    def completed(self, bookmark: str) -> None:
        tracker, notes = self.tracker, self.notes
        with self._moving():
            place = tracker.position(bookmark)
            if place is None:
                tracker.completed()
                notes.note(RecordKind.COMPLETED_SOMEWHERE)
            else:
                tracker.completed(*place)
                notes.note(RecordKind.COMPLETED, place[1], place[0])

    # -- whose order it is --------------------------------------------------------------------

    @override
    def entered(self, server: str) -> None:
        is_progress = log_name(server) == log_name(self.tracker.server_order.server)
        with self._moving():
            self.tracker.entered(server)
            self.notes.note_server(server, is_progress=is_progress)

    @override
    def caught_up(self, until_us: int) -> None:
        tracker, notes = self.tracker, self.notes
        with self._moving():
            tracker.caught_up(until_us)
            notes.note(RecordKind.CAUGHT_UP, until_us)
            if tracker.update_discarded_until() != self._noted_us:
                self._noted_us = tracker.server_order.discarded_until_us
                notes.note(RecordKind.DISCARDED_UNTIL, self._noted_us)

    @property
    @override
    def server_order(self) -> ServerOrder:
        return self.tracker.server_order

    @property
    @override
    def in_order(self) -> bool:
        return self.tracker.in_order

    # -- questions ------------------------------------------------------------------------------

    @property  # type: ignore[explicit-override]  # a property in place of an attribute
    @override
    def paused(self) -> bool:
        """Whether the server holds the subscription: its acks are then no recovery points."""
        return self.tracker.paused

    @paused.setter
    def paused(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]  # checks
        self._thread.check()
        self.tracker.paused = value

    @property
    @override
    def oldest_undiscarded(self) -> int:
        return self.tracker.oldest_undiscarded

    @property
    @override
    def undiscarded_count(self) -> int:
        return self.tracker.undiscarded_count

    @property
    @override
    def redelivered_count(self) -> int:
        return self.tracker.redeliveries

    @override
    def is_discarded(self, bookmark: str) -> bool:
        self._thread.check()
        return self.tracker.is_discarded(bookmark)

    @override
    def recovery_point(self) -> BookmarkList:
        self._thread.check()
        return self.tracker.recovery_point()

    @override
    def resume(self) -> str:
        self._thread.check()
        return self.tracker.resume()

    @override
    def resume_elsewhere(self, since_us: int, after: str = "") -> tuple[str, ...]:
        self._thread.check()
        return self.tracker.resume_elsewhere(since_us, after)

    @override
    def resume_from_start(self) -> str:
        self._thread.check()
        return self.tracker.resume_from_start()
