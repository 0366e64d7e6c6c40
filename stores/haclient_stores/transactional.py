"""Exactly-once effects: the recovery point in the user's own transaction (BS24).

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

It is a memory store whose knowledge begins with what the database says: the recovery point of each
subscription, and the messages behind it that are done. Those are needed because messages may be
done in any order. Two tables hold them::

    haclient_recovery_points (client_name, sub_id, bookmark)
    haclient_done            (client_name, sub_id, publisher, sequence)

Publisher ids and sequences are texts of 20 digits, since 64 bits without a sign are more than a
database has, and so that their order as text is their order as numbers. Rows of `haclient_done`
that the recovery point has passed are deleted now and then, in the user's transaction too.

**Order:** save, commit, then `discard()`. A discard before the commit would let the recovery point
pass a message whose effect may still be rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from typing_extensions import override

from haclient_stores.adapters import positions
from haclient_stores.bookmarks import BookmarkList
from haclient_stores.errors import UsageError
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.tracking import DUPLICATE, SubscriptionTracker

if TYPE_CHECKING:
    from haclient_stores.entries import Publishers
    from haclient_stores.watching import UndiscardedWatch

__all__ = ["Connection", "Cursor", "Delivered", "TransactionalRecoveryPoint"]

_TRIM_EVERY: Final = 64  # messages; so many rows more than necessary may stand in the table
_POINTS_TABLE: Final = (
    "create table if not exists haclient_recovery_points (client_name text not null, "
    "sub_id text not null, bookmark text not null, primary key (client_name, sub_id))"
)
_DONE_TABLE: Final = (
    "create table if not exists haclient_done (client_name text not null, sub_id text not null, "
    "publisher text not null, sequence text not null, "
    "primary key (client_name, sub_id, publisher, sequence))"
)
_READ_POINTS: Final = "select sub_id, bookmark from haclient_recovery_points where client_name = ?"
_READ_DONE: Final = "select sub_id, publisher, sequence from haclient_done where client_name = ?"
_SAVE_DONE: Final = (
    "insert into haclient_done (client_name, sub_id, publisher, sequence) "
    "values (?, ?, ?, ?) on conflict do nothing"
)
_SAVE_POINT: Final = (
    "insert into haclient_recovery_points (client_name, sub_id, bookmark) values (?, ?, ?) "
    "on conflict (client_name, sub_id) do update set bookmark = excluded.bookmark"
)
_TRIM: Final = (
    "delete from haclient_done "
    "where client_name = ? and sub_id = ? and publisher = ? and sequence <= ?"
)
_FORGET: Final = (
    "delete from haclient_done where client_name = ? and sub_id = ?",
    "delete from haclient_recovery_points where client_name = ? and sub_id = ?",
)


class Cursor(Protocol):
    """What is asked of a DB-API cursor (PEP 249)."""

    def execute(self, operation: str, parameters: Any = ..., /) -> object: ...  # noqa: ANN401, D102  # each driver types them in its own way

    def fetchall(self) -> Any: ...  # noqa: ANN401, D102  # likewise

    def close(self) -> object: ...  # noqa: D102  # PEP 249


class Connection(Protocol):
    """What is asked of a DB-API connection (PEP 249)."""

    def cursor(self) -> Cursor: ...  # noqa: D102  # PEP 249

    def commit(self) -> object: ...  # noqa: D102  # PEP 249


class Delivered(Protocol):
    """What is asked of a message."""

    @property
    def bookmark(self) -> str: ...  # noqa: D102  # see `haclient.Message`

    @property
    def sub_id(self) -> str: ...  # noqa: D102  # see `haclient.Message`


class _Subscription(SubscriptionTracker):
    """A tracker that knows of messages that are done already and have not come yet.

    Attributes:
        done: Publisher index and sequence of each.
    """

    def __init__(self, publishers: Publishers) -> None:
        super().__init__(publishers)
        self.done: set[tuple[int, int]] = set()

    @override
    def log_batch(self, bookmarks: list[str]) -> list[int] | range:
        numbers = super().log_batch(bookmarks)
        if not self.done:
            return numbers
        found = list(numbers)
        for index, bookmark in enumerate(bookmarks):
            place = self._publishers.position(bookmark)
            if place in self.done and found[index] > 0:
                self.done.discard(place)
                self.discard(found[index])  # it stands in the order of arrival, as any other
                found[index] = DUPLICATE
        return found

    @override
    def is_discarded(self, bookmark: str) -> bool:
        return self._publishers.position(bookmark) in self.done or super().is_discarded(bookmark)


class TransactionalRecoveryPoint(MemoryBookmarkStore):
    """A bookmark store whose memory is in the user's own database (BS24).

    Args:
        connection: A DB-API connection; the one that writes the results, or another one to the
            same database.
        placeholder: How the driver marks a parameter: `?` (sqlite3) or `%s` (psycopg).
        create_tables: Create the two tables where they are missing, and commit.
        watch: Warns of messages that stay undiscarded (BS5).
    """

    def __init__(
        self,
        connection: Connection,
        *,
        placeholder: str = "?",
        create_tables: bool = True,
        watch: UndiscardedWatch | None = None,
    ) -> None:
        super().__init__(None, watch)
        self._connection = connection
        self._placeholder = placeholder
        self._rows: dict[str, int] = {}  # in `haclient_done`, about, by subscription
        self._trimmed: dict[str, str] = {}  # the point that was saved last
        if create_tables:
            for statement in (_POINTS_TABLE, _DONE_TABLE):
                self._execute(connection, statement)
            connection.commit()

    def _execute(self, connection: Connection, statement: str, *values: str) -> None:
        cursor = connection.cursor()
        cursor.execute(statement.replace("?", self._placeholder), values)
        cursor.close()

    def _read(self, statement: str) -> list[tuple[str, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(statement.replace("?", self._placeholder), (self._client_name,))
        rows: list[tuple[str, ...]] = cursor.fetchall()
        cursor.close()
        return rows

    @override
    def open_for(self, client_name: str) -> None:
        known = self._client_name
        super().open_for(client_name)
        if known:
            return
        for sub_id, bookmark in self._read(_READ_POINTS):
            found = positions(BookmarkList.parse(bookmark))
            newest = {self._publishers.index(each): q for each, q in found.items()}
            self.subscription(sub_id).seed(newest)
        for sub_id, publisher, sequence in self._read(_READ_DONE):
            handle = self.subscription(sub_id)
            place = self._publishers.index(int(publisher)), int(sequence)
            if isinstance(handle, _Subscription) and place[1] > handle.seen.get(place[0], 0):
                handle.done.add(place)
                self._rows[sub_id] = len(handle.done)
        self._connection.commit()  # a read begins a transaction with some drivers

    @override
    def _new_subscription(self, sub_id: str) -> SubscriptionTracker:
        found = self._subscriptions[sub_id] = _Subscription(self._publishers)
        return found

    def save(self, message: Delivered, connection: Connection | None = None) -> None:
        """Note in the running transaction that a message has had its effect; commit is the user's.

        Args:
            message: The message, before its `discard()`.
            connection: The one whose transaction it is, if it is not the store's.

        Raises:
            UsageError: The message has no bookmark, or the store has no client yet.
        """
        place = self._publishers.position(message.bookmark)
        if place is None or not self._client_name:
            raise UsageError(
                f"cannot save {message.bookmark!r}: it is a message of a bookmark subscription, of "
                "a client that has this store, that can be saved"
            )
        connection = connection or self._connection
        publisher, sequence = _digits(self._publishers.ids[place[0]]), _digits(place[1])
        self._execute(
            connection, _SAVE_DONE, self._client_name, message.sub_id, publisher, sequence
        )
        sub_id = message.sub_id
        self._rows[sub_id] = rows = self._rows.get(sub_id, 0) + 1
        if rows >= _TRIM_EVERY and str(self.most_recent(sub_id)) != self._trimmed.get(sub_id):
            self.trim(sub_id, connection)

    def trim(self, sub_id: str, connection: Connection | None = None) -> None:
        """Save the recovery point in the running transaction, and forget what it has passed."""
        connection = connection or self._connection
        point = self.most_recent(sub_id)
        found = positions(point)
        if not found:
            return
        self._rows[sub_id] = 0
        self._trimmed[sub_id] = str(point)
        self._execute(connection, _SAVE_POINT, self._client_name, sub_id, str(point))
        for publisher, sequence in found.items():
            key = self._client_name, sub_id, _digits(publisher)
            self._execute(connection, _TRIM, *key, _digits(sequence))

    @override
    def purge(self, sub_id: str | None = None) -> None:
        """Forget, also in the database, and commit."""
        for name in list(self._subscriptions) if sub_id is None else [sub_id]:
            handle = self.subscription(name)
            handle.purge()
            if isinstance(handle, _Subscription):
                handle.done.clear()
            for statement in _FORGET:
                self._execute(self._connection, statement, self._client_name, name)
        self._connection.commit()


def _digits(number: int) -> str:
    return f"{number:020d}"
