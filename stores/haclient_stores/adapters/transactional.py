"""Exactly-once effects: the recovery point in the user's own transaction.

A program that writes its results into a database saves there, in the same transaction, which
message they came from. Either both are there or neither is. So whatever happens between the commit
and `discard()`, the next process knows what has had its effect, and each message has it once::

    connection = sqlite3.connect("results.db")
    store = TransactionalRecoveryPoint(connection)
    async with HAClient("orders-7", servers=[...], bookmark_store=store) as client:
        async with client.bookmark_stream("orders", sub_id="s1", bookmark=MOST_RECENT) as messages:
            async for message in messages:
                with connection:  # one transaction
                    connection.execute("insert into orders values (?)", [message.text])
                    store.save(message)
                message.discard()

It is a memory store whose whole knowledge is in the database as well: the recovery point of each
subscription, where it began and in whose order it stands, and the messages behind the point that
are done. Those are needed because messages may be done in any order. Two tables hold it::

    haclient_recovery_points (client_name, sub_id, bookmark, start, entered_us, server,
                              caught_up_us, generation)
    haclient_done            (client_name, sub_id, publisher, sequence, generation)

Publisher ids and sequences are texts of 20 digits, since 64 bits without a sign are more than a
database has, and so that their order as text is their order as numbers. Rows of `haclient_done`
that the recovery point has passed are deleted now and then, in the user's transaction too.

**Order:** save, commit, then `discard()`. A discard before the commit would let the recovery point
pass a message whose effect may still be rolled back. The connection must not commit by itself.

**An explicit start** (anything but `MOST_RECENT`) forgets what was saved, as with every store: what
is done comes again. The database forgets it in the transaction of the first `save` after that,
where it also learns the start. Until then it says what is true: no message has had its effect since
the new start, and a process that begins with `MOST_RECENT` goes on where the results in the
database end. Where nothing was ever saved that is the start of the log. A discard does not say that
the message was saved: its transaction may have been rolled back, and the program gives it up. So
each `save` tells the database of the new start, until one finds that it knows; that is asked when
all transactions that have told it are over.

**Threads:** everything is called by the client in its own thread. `save` alone may be called in
another one while the client goes on, if the driver allows that; `trim` and `purge` may not.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, positions
from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.subscription import Discard, Journal, Subscription
from haclient_stores.bookmark_stores.tracked_store import point_of, server_order_of
from haclient_stores.checks import check_has, check_text
from haclient_stores.errors import UsageError
from haclient_stores.tracker.tracker import DUPLICATE, SubscriptionTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from haclient_stores.bookmark_stores.watching import UndiscardedWatch

__all__ = ["Connection", "Cursor", "Delivered", "TransactionalRecoveryPoint"]

_TRIM_EVERY: Final = 64  # messages; so many rows more than necessary may stand in the table
_POINTS: Final = "haclient_recovery_points"
_DONE: Final = "haclient_done"
_TABLES: Final = {
    _POINTS: "client_name text not null, sub_id text not null, bookmark text not null, "
    "primary key (client_name, sub_id)",
    _DONE: "client_name text not null, sub_id text not null, "
    "publisher text not null, sequence text not null, "
    "primary key (client_name, sub_id, publisher, sequence)",
}
_FIRST_GENERATION: Final = 1
_TEXT: Final = "text not null default ''"
_NUMBER: Final = "bigint not null default 0"
_GENERATION: Final = f"bigint not null default {_FIRST_GENERATION}"
_COLUMNS: Final = {  # which tables of an earlier shape do not have
    _POINTS: {
        "start": _TEXT,
        "entered_us": _NUMBER,
        "server": _TEXT,
        "caught_up_us": _NUMBER,
        "generation": _GENERATION,
    },
    _DONE: {"generation": _GENERATION},
}
_READ_POINTS: Final = (
    "select sub_id, bookmark, start, entered_us, server, caught_up_us, generation "
    "from haclient_recovery_points where client_name = ?"
)
_READ_DONE: Final = (
    "select sub_id, publisher, sequence, generation from haclient_done where client_name = ?"
)
_READ_GENERATION: Final = (
    "select generation from haclient_recovery_points where client_name = ? and sub_id = ?"
)
_SAVE_DONE: Final = (
    "insert into haclient_done (client_name, sub_id, publisher, sequence, generation) "
    "values (?, ?, ?, ?, ?) on conflict do nothing"
)
_SAVE_POINT: Final = (
    "insert into haclient_recovery_points "
    "(client_name, sub_id, bookmark, start, entered_us, server, caught_up_us, generation) "
    "values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (client_name, sub_id) do update set "
    "bookmark = excluded.bookmark, start = excluded.start, entered_us = excluded.entered_us, "
    "server = excluded.server, caught_up_us = excluded.caught_up_us, "
    "generation = excluded.generation"
)
_TRIM: Final = (
    "delete from haclient_done "
    "where client_name = ? and sub_id = ? and publisher = ? and sequence <= ?"
)
_FORGET_EARLIER: Final = (
    "delete from haclient_done where client_name = ? and sub_id = ? and generation <> ?"
)
_FORGET: Final = (
    "delete from haclient_done where client_name = ? and sub_id = ?",
    "delete from haclient_recovery_points where client_name = ? and sub_id = ?",
)


class Cursor(Protocol):
    """What is asked of a DB-API cursor (PEP 249)."""

    @property
    def description(self) -> Any: ...  # noqa: ANN401, D102  # each driver types it in its own way

    def execute(self, operation: str, parameters: Any = ..., /) -> object: ...  # noqa: ANN401, D102  # likewise

    def fetchall(self) -> Any: ...  # noqa: ANN401, D102  # likewise

    def close(self) -> object: ...  # noqa: D102  # PEP 249


class Connection(Protocol):
    """What is asked of a DB-API connection (PEP 249)."""

    def cursor(self) -> Cursor: ...  # noqa: D102  # PEP 249

    def commit(self) -> object: ...  # noqa: D102  # PEP 249

    def rollback(self) -> object: ...  # noqa: D102  # PEP 249


class Delivered(Protocol):
    """What is asked of a message."""

    @property
    def bookmark(self) -> str: ...  # noqa: D102  # see `haclient.Message`

    @property
    def sub_id(self) -> str: ...  # noqa: D102  # see `haclient.Message`


class _Journal(Journal):
    """Looks after each discard what the next `save` has to know."""

    look: Callable[[], None]

    @override
    def discard_function(self) -> Discard:
        discard_only, look = super().discard_function(), self.look

        def discard(number: int) -> None:
            discard_only(number)
            look()

        return discard


class _Handle(Subscription):
    """A subscription that knows of messages that are done already and have not come yet.

    Attributes:
        done: Publisher index and sequence of each.
        confirmed: The generation that the database surely knows; rows of others do not count.
        telling: The highest sequence by publisher id of what was saved while that was another one,
            so that its transaction tells the database.
        told: The same at a discard behind which all of it lies, so that those are over.
        rows: In `haclient_done`, about.
        wanted: Whether a recovery point is wanted to be saved.
        latest: That point, as it was after a discard.
        trimmed: The one that was saved last.
    """

    __slots__ = (
        "_sub_id",
        "confirmed",
        "done",
        "latest",
        "rows",
        "telling",
        "told",
        "trimmed",
        "wanted",
    )

    def __init__(self, journal: _Journal, sub_id: str) -> None:
        journal.look = self._look
        super().__init__(journal)
        self._sub_id = sub_id
        self.done: set[tuple[int, int]] = set()
        self.confirmed = _FIRST_GENERATION
        self.telling: dict[int, int] = {}
        self.told: dict[int, int] = {}
        self.rows = 0
        self.wanted = False
        self.latest: RecoveryPoint | None = None
        self.trimmed = RecoveryPoint(sub_id, "")

    @override
    def begin(
        self, *, acked: bool, start: str | None, conflated: bool = False, entered_us: int = 0
    ) -> None:
        super().begin(acked=acked, start=start, conflated=conflated, entered_us=entered_us)
        if start is not None:
            self._forget_done()

    @override
    def forget(self) -> None:
        super().forget()
        self._forget_done()
        self.confirmed = _FIRST_GENERATION  # which is what a row that is missing stands for

    def _forget_done(self) -> None:
        self.done.clear()
        self.latest = None
        self.telling, self.told = {}, {}
        self.rows, self.trimmed = 0, RecoveryPoint(self._sub_id, "")

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
                self.discard(found[index])  # it stands in the order of arrival, as any other
                found[index] = DUPLICATE
        return found

    def _look(self) -> None:
        """What `save` has to know, found out in the client's thread: nothing moves meanwhile."""
        if not self.wanted and not self.telling:
            return
        if self.wanted:
            self.wanted = False
            self.latest = point_of(self._sub_id, self.tracker)
        telling, applied = dict(self.telling), self.tracker.applied()
        publishers = self.tracker.publishers
        places = ((publishers.index(each), telling[each]) for each in telling)
        if all(applied.get(publisher, 0) >= sequence for publisher, sequence in places):
            self.told = telling

    @override
    def is_discarded(self, bookmark: str) -> bool:
        return self.tracker.position(bookmark) in self.done or super().is_discarded(bookmark)

    @property
    def start_text(self) -> str:
        """Where it began, in wire form; empty for the start of the log."""
        start = self.tracker.start
        return ",".join(map(str, start.items)) if start.range is None else str(start.range)


class TransactionalRecoveryPoint(MemoryBookmarkStore):
    """A bookmark store whose memory is in the user's own database.

    Args:
        connection: A DB-API connection; the one that writes the results, or another one to the
            same database. It must not commit by itself, or only outside of transactions.
        placeholder: How the driver marks a parameter: `?` (sqlite3) or `%s` (psycopg).
        create_tables: Create the two tables where they are missing, give those of an earlier shape
            their columns, and commit.
        watch: Warns of messages that stay undiscarded.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        placeholder: str = "?",
        create_tables: bool = True,
        watch: UndiscardedWatch | None = None,
    ) -> None:
        check_has("connection", connection, "a DB-API connection", "cursor", "commit", "rollback")
        check_text("placeholder", placeholder)
        super().__init__(None, watch)
        self._connection = connection
        self._placeholder = placeholder
        if create_tables:
            with self._transaction():
                for table in _TABLES:
                    self._create(table)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """One of our own; a failed one would refuse everything after it, with some drivers."""
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    def _create(self, table: str) -> None:
        self._execute(self._connection, f"create table if not exists {table} ({_TABLES[table]})")
        cursor = self._connection.cursor()
        cursor.execute(f"select * from {table} where 1 = 0")  # noqa: S608  # a name of ours
        known = {column[0] for column in cursor.description}
        cursor.close()
        for column, kind in _COLUMNS[table].items():
            if column not in known:
                self._execute(self._connection, f"alter table {table} add column {column} {kind}")

    def _execute(self, connection: Connection, statement: str, *values: str | int) -> None:
        cursor = connection.cursor()
        cursor.execute(statement.replace("?", self._placeholder), values)
        cursor.close()

    def _read(self, connection: Connection, statement: str, *values: str) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.execute(statement.replace("?", self._placeholder), values)
        rows: list[tuple[Any, ...] | dict[str, Any]] = cursor.fetchall()  # as the user wants rows
        cursor.close()
        return [tuple(row.values() if isinstance(row, dict) else row) for row in rows]

    @override
    def open_for(self, client_name: str) -> None:
        known = self._client_name
        super().open_for(client_name)
        if known:
            return
        with self._transaction():  # a read begins one with some drivers
            points, done = (
                self._read(self._connection, statement, client_name)
                for statement in (_READ_POINTS, _READ_DONE)
            )
        for sub_id, bookmark, start, entered_us, server, caught_up_us, generation in points:
            handle = self._handle(sub_id)
            if bookmark:
                point = RecoveryPoint(sub_id, bookmark, server, caught_up_us)
                handle.seed(self._positions(point), server_order_of(point), generation)
            if start:
                handle.tracker.start.set(start)
            handle.tracker.start.entered_us = entered_us
            handle.tracker.generation = handle.confirmed = generation
        for sub_id, publisher, sequence, generation in done:
            handle = self._handle(sub_id)
            place = self._publishers.index(int(publisher)), int(sequence)
            if generation == handle.tracker.generation and place[1] > handle.tracker.seen.get(
                place[0], 0
            ):
                handle.done.add(place)
                handle.rows += 1

    @override
    def _new_subscription(self, sub_id: str) -> Subscription:
        journal = _Journal(SubscriptionTracker(self._publishers), self._thread)
        found = self._subscriptions[sub_id] = _Handle(journal, sub_id)
        return found

    def _handle(self, sub_id: str) -> _Handle:
        # `save` may be called in another thread, for a subscription that is known then.
        found = self._subscriptions.get(sub_id)
        return cast("_Handle", found or self.subscription(sub_id))

    def save(self, message: Delivered, connection: Connection | None = None) -> None:
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
        connection = connection or self._connection
        handle = self._handle(message.sub_id)
        key = self._client_name, message.sub_id
        if not self._knows(connection, handle, key):
            sequence = max(place.sequence, handle.telling.get(place.publisher_id, 0))
            handle.telling[place.publisher_id] = sequence
            self._save_point(connection, handle, handle.trimmed)
        self._execute(
            connection,
            _SAVE_DONE,
            *key,
            _digits(place.publisher_id),
            _digits(place.sequence),
            handle.tracker.generation,
        )
        handle.rows += 1
        point, handle.latest = handle.latest, None
        if point is not None:
            self._trim(connection, handle, point)
        handle.wanted = handle.rows >= _TRIM_EVERY

    def _knows(self, connection: Connection, handle: _Handle, key: tuple[str, str]) -> bool:
        """Whether the database knows of the last explicit start, whatever is rolled back."""
        if (
            handle.confirmed != handle.tracker.generation
            and handle.telling
            and handle.told == handle.telling
        ):
            rows = self._read(connection, _READ_GENERATION, *key)
            handle.confirmed = rows[0][0] if rows else _FIRST_GENERATION
            handle.telling = {}
        return handle.confirmed == handle.tracker.generation

    def trim(self, sub_id: str, connection: Connection | None = None) -> None:
        """Save the recovery point in the running transaction, and forget what it has passed."""
        handle = self._handle(sub_id)
        handle.latest = None  # which is older
        handle.told = {}  # this transaction may tell the database, too, and is not over
        self._trim(connection or self._connection, handle, point_of(sub_id, handle.tracker))

    def _trim(self, connection: Connection, handle: _Handle, point: RecoveryPoint) -> None:
        if not point.bookmark or point.bookmark == handle.trimmed.bookmark:
            return
        handle.rows, handle.trimmed = 0, point
        self._save_point(connection, handle, point)
        for publisher, sequence in positions(BookmarkList.parse(point.bookmark)).items():
            key = self._client_name, point.sub_id, _digits(publisher)
            self._execute(connection, _TRIM, *key, _digits(sequence))

    def _save_point(self, connection: Connection, handle: _Handle, point: RecoveryPoint) -> None:
        if (
            handle.confirmed != handle.tracker.generation
        ):  # no row of them may stand in the way of another
            key = self._client_name, point.sub_id, handle.tracker.generation
            self._execute(connection, _FORGET_EARLIER, *key)
        self._execute(
            connection,
            _SAVE_POINT,
            self._client_name,
            point.sub_id,
            point.bookmark,
            handle.start_text,
            handle.tracker.start.entered_us,
            point.server,
            point.caught_up_us,
            handle.tracker.generation,
        )

    @override
    def purge(self, sub_id: str | None = None) -> None:
        """Forget, also in the database, and commit."""
        with self._transaction():
            for name in list(self._subscriptions) if sub_id is None else [sub_id]:
                handle = self._handle(name)
                handle.forget()
                for statement in _FORGET:
                    self._execute(self._connection, statement, self._client_name, name)


def _place(bookmark: str) -> Bookmark | None:
    """What a bookmark names, without a look at anything that the client's thread may change."""
    try:
        found = Bookmark.parse(bookmark)
    except UsageError:
        return None
    return found if found.publisher_id and found.sequence else None


def _digits(number: int) -> str:
    return f"{number:020d}"
