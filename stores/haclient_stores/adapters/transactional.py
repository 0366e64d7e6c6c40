"""Exactly-once effects: the recovery point in the user's own transaction.

A program that writes its results into a database saves there, in the same transaction, which
message they came from. Either both are there or neither is. So whatever happens between the commit
and `discard()`, the next process knows which messages have taken effect, and each message takes
effect once::

    connection = sqlite3.connect("results.db")
    store = TransactionalRecoveryPoint(connection)
    async with HAClient("orders-7", servers=[...], bookmark_store=store) as client:
        async with client.bookmark_stream("orders", sub_id="s1", bookmark=MOST_RECENT) as messages:
            async for message in messages:
                with connection:  # one transaction
                    connection.execute("insert into orders values (?)", [message.text])
                    store.save(message)
                message.discard()

It is a memory store whose state is also in the database: the recovery point of each subscription,
its start and the server order in which it is valid, and the processed messages after the point.
Those are needed because messages may be processed in any order. `recovery_tables` stores them. Rows
of messages that the recovery point has passed are deleted from time to time, also in the user's
transaction.

**Order:** save, commit, then `discard()`. A discard before the commit would let the recovery point
pass a message whose effect may still be rolled back. The connection must not commit by itself.
A message that was committed and not discarded has its effect again if the same process subscribes
its id again: the database is read once, since what it holds later may still be rolled back.

**An explicit start** (anything but `MOST_RECENT`) forgets the saved state, as in every store:
processed messages are redelivered. The database forgets it in the transaction of the first `save`
after that, which also writes the new start. Until then the database is still correct: no message
has taken effect since the new start, and a process that begins with `MOST_RECENT` continues where
the results in the database end. If nothing was ever saved, that is the start of the log. A discard
does not prove that the message was saved: its transaction may have been rolled back, and the
program gives up the message. So each `save` writes the new start until a later one finds it in the
database. It checks once all transactions that have written it are over.

**Threads:** the client calls everything in its own thread. Only `save` may be called in another
thread while the client runs, if the driver allows that; `trim` and `purge` may not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from typing import Final, Protocol, cast

from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.adapters.recovery_tables import (
    FIRST_GENERATION,
    DatabaseConnection,
    RecoveryTables,
)
from haclient_stores.bookmark import Bookmark
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.subscription import StoreNotes, SubscriptionHandle
from haclient_stores.bookmark_stores.tracked_store import point_of, server_order_of
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.errors import UsageError
from haclient_stores.interfaces import Discard
from haclient_stores.tracker.tracker import DUPLICATE, SubscriptionTracker

__all__ = ["DatabaseConnection", "Delivered", "TransactionalRecoveryPoint"]

_TRIM_EVERY: Final = 64  # messages; so many rows more than necessary may stand in the table


class Delivered(Protocol):
    """The attributes of a message that `save` reads."""

    @property
    def bookmark(self) -> str: ...  # noqa: D102  # see `haclient.Message`

    @property
    def sub_id(self) -> str: ...  # noqa: D102  # see `haclient.Message`


class _Notes(StoreNotes):
    """Prepares after each discard what the next `save` needs.

    Attributes:
        after_discard: Called after each discard, in the client's thread.
    """

    after_discard: Callable[[], None]

    @override
    def discard_function(self, elsewhere: Discard) -> Discard:
        thread, after_discard = self.thread, self.after_discard
        discard_only = super().discard_function(elsewhere)

        def discard(number: int) -> None:
            if get_ident() != thread.ident:
                elsewhere(number)
                return
            discard_only(number)
            after_discard()

        return discard


class _Handle(SubscriptionHandle):
    """A subscription that knows messages which are processed already and were not received yet.

    `save` may run in another thread. It reads only what `_after_discard` has prepared in the
    client's thread and does not change meanwhile.

    Attributes:
        done: Publisher index and sequence of each message that is done.
        confirmed: The generation that is known to be in the database; rows of others do not count.
        announced: The highest sequence by publisher id of what was saved while `confirmed` was
            another generation: the transactions of those saves write the new one.
        announced_over: `announced` as it was when all of it was discarded, so that those
            transactions are over.
        rows: The approximate number of rows of the subscription in `haclient_done`.
        wants_point: Whether the next discard prepares a recovery point.
        next_point: The point that the next `save` writes; None when there is none.
        saved_point: The point that was saved last.
    """

    __slots__ = (
        "_sub_id",
        "announced",
        "announced_over",
        "confirmed",
        "done",
        "next_point",
        "rows",
        "saved_point",
        "wants_point",
    )

    def __init__(self, notes: _Notes, sub_id: str) -> None:
        notes.after_discard = self._after_discard
        super().__init__(notes)
        self._sub_id = sub_id
        self.done: set[tuple[int, int]] = set()
        self.confirmed = FIRST_GENERATION
        self.announced: dict[int, int] = {}
        self.announced_over: dict[int, int] = {}
        self.rows = 0
        self.wants_point = False
        self.next_point: RecoveryPoint | None = None
        self.saved_point = RecoveryPoint(sub_id, "")

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        super().begin(acked=acked, start=start, conflated=conflated, entered_us=entered_us)
        if start is not None:
            self._forget_done()

    @override
    def forget(self, *, has_copies: bool = True) -> None:
        super().forget(has_copies=has_copies)
        self._forget_done()
        self.confirmed = FIRST_GENERATION  # which is what a missing row stands for

    def _forget_done(self) -> None:
        self.done.clear()
        self.next_point = None
        self.announced, self.announced_over = {}, {}
        self.rows, self.saved_point = 0, RecoveryPoint(self._sub_id, "")

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        numbers = super().log_batch(bookmarks)
        if not self.done:
            return numbers
        found = list(numbers)
        for index, bookmark in enumerate(bookmarks):
            place = self.tracker.position(bookmark)
            if place in self.done and found[index] > 0:
                self.done.discard(place)
                self.discard(found[index])  # it takes its place in the arrival order as any other
                found[index] = DUPLICATE
        return found

    def _after_discard(self) -> None:
        if not self.wants_point and not self.announced:
            return
        if self.wants_point:
            self.wants_point = False
            self.next_point = point_of(self._sub_id, self.tracker)
        announced, applied = dict(self.announced), self.tracker.applied()
        publishers = self.tracker.publishers
        places = ((publishers.index(each), announced[each]) for each in announced)
        if all(applied.get(publisher, 0) >= sequence for publisher, sequence in places):
            self.announced_over = announced

    @override
    def is_discarded(self, bookmark: str) -> bool:
        return self.tracker.position(bookmark) in self.done or super().is_discarded(bookmark)

    @property
    def start_text(self) -> str:
        """Where it began, in wire form; empty for the start of the log."""
        start = self.tracker.start
        return ",".join(map(str, start.items)) if start.range is None else str(start.range)

    @property
    def is_confirmed(self) -> bool:
        """Whether the last explicit start is known to be in the database."""
        return self.confirmed == self.tracker.generation


class TransactionalRecoveryPoint(MemoryBookmarkStore):
    """A bookmark store that keeps its state in the user's own database.

    Args:
        connection: A DB-API connection; the one that writes the results, or another one to the
            same database. It must not commit by itself, or only outside of transactions.
        placeholder: How the driver marks a parameter: `?` (sqlite3) or `%s` (psycopg).
        create_tables: Create the two tables if they are missing, add the columns that tables of an
            earlier version lack, and commit.
        watch: Warns of messages that stay undiscarded.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        connection: DatabaseConnection,
        *,
        placeholder: str = "?",
        create_tables: bool = True,
        watch: UndiscardedWatch | None = None,
    ) -> None:
        self._tables = RecoveryTables(connection, placeholder)
        super().__init__(None, watch)
        if create_tables:
            self._tables.create()

    @override
    def open_for(self, client_name: str) -> None:
        known = self._client_name
        super().open_for(client_name)
        if known:
            return
        tables = self._tables
        tables.client_name = client_name
        with tables.transaction():  # a read begins one with some drivers
            points, done = tables.read_points(), tables.read_done()
        for point, start, entered_us in points:
            handle = self._handle(point.sub_id)
            if point.bookmark:
                handle.seed(self._positions(point), server_order_of(point), point.generation)
            if start:
                handle.tracker.start.set(start)
            handle.tracker.start.entered_us = entered_us
            handle.tracker.generation = handle.confirmed = point.generation
        for sub_id, publisher_id, sequence, generation in done:
            handle = self._handle(sub_id)
            publisher = self._publishers.index(publisher_id)
            is_new = sequence > handle.tracker.seen.get(publisher, 0)
            if generation == handle.tracker.generation and is_new:
                handle.done.add((publisher, sequence))
                handle.rows += 1

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        notes = _Notes(SubscriptionTracker(self._publishers), self._thread)
        found = self._subscriptions[sub_id] = _Handle(notes, sub_id)
        return found

    def _handle(self, sub_id: str) -> _Handle:
        # `save` may run in another thread, for a subscription that is known then.
        found = self._subscriptions.get(sub_id)
        return cast("_Handle", found or self.subscription(sub_id))

    def save(self, message: Delivered, connection: DatabaseConnection | None = None) -> None:
        """Note in the running transaction that a message has had its effect; commit is the user's.

        Args:
            message: The message, before its `discard()`.
            connection: The one whose transaction it is, if it is not the store's.

        Raises:
            UsageError: The message has no bookmark, or the store has no client yet.
        """
        place = _place(message.bookmark)
        if place is None or not self._client_name:
            raise UsageError(
                f"cannot save {message.bookmark!r}: it is a message of a bookmark subscription, of "
                "a client that has this store, that can be saved"
            )
        handle = self._handle(message.sub_id)
        self._confirm(handle, message.sub_id, connection)
        if not handle.is_confirmed:
            sequence = max(place.sequence, handle.announced.get(place.publisher_id, 0))
            handle.announced[place.publisher_id] = sequence
            self._save_point(connection, handle, handle.saved_point)
        self._tables.save_done(
            message.sub_id,
            place.publisher_id,
            place.sequence,
            handle.tracker.generation,
            connection=connection,
        )
        handle.rows += 1
        point, handle.next_point = handle.next_point, None
        if point is not None:
            self._trim(connection, handle, point)
        handle.wants_point = handle.rows >= _TRIM_EVERY

    def _confirm(self, handle: _Handle, sub_id: str, connection: DatabaseConnection | None) -> None:
        """Ask the database for its generation, once every transaction that writes it is over.

        Any of them may have been rolled back.
        """
        is_over = handle.announced and handle.announced_over == handle.announced
        if is_over and not handle.is_confirmed:
            handle.confirmed = self._tables.read_generation(sub_id, connection)
            handle.announced = {}

    def trim(self, sub_id: str, connection: DatabaseConnection | None = None) -> None:
        """Save the recovery point in the running transaction, and delete what it has passed.

        Args:
            sub_id: The subscription.
            connection: The one whose transaction it is, if it is not the store's.

        Raises:
            UsageError: Another thread uses the store.
        """
        handle = self._handle(sub_id)
        handle.next_point = None  # which is older
        handle.announced_over = {}  # this transaction may write the generation, and is not over
        self._trim(connection, handle, point_of(sub_id, handle.tracker))

    def _trim(
        self, connection: DatabaseConnection | None, handle: _Handle, point: RecoveryPoint
    ) -> None:
        if not point.bookmark or point.bookmark == handle.saved_point.bookmark:
            return
        handle.rows, handle.saved_point = 0, point
        self._save_point(connection, handle, point)
        self._tables.trim_done(point, connection)

    def _save_point(
        self, connection: DatabaseConnection | None, handle: _Handle, point: RecoveryPoint
    ) -> None:
        generation = handle.tracker.generation
        if not handle.is_confirmed:  # a row of an earlier generation may have the key of a new one
            self._tables.forget_earlier(point.sub_id, generation, connection)
        self._tables.save_point(
            replace(point, generation=generation),
            start=handle.start_text,
            entered_us=handle.tracker.start.entered_us,
            connection=connection,
        )

    @override
    def purge(self, sub_id: str | None = None) -> None:
        """Forget subscriptions, also in the database, and commit.

        Args:
            sub_id: The subscription; None for all of them.

        Raises:
            UsageError: Another thread uses the store.
        """
        with self._tables.transaction():
            for name in list(self._subscriptions) if sub_id is None else [sub_id]:
                self._handle(name).forget()
                self._tables.forget(name)


def _place(bookmark: str) -> Bookmark | None:
    """Resolve a bookmark without reading anything that the client's thread may change."""
    try:
        found = Bookmark.parse(bookmark)
    except UsageError:
        return None
    return found if found.publisher_id and found.sequence else None
