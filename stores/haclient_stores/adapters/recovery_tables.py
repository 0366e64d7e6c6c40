"""The tables of `TransactionalRecoveryPoint` in the user's database, and every statement on them.

    haclient_recovery_points (client_name, sub_id, bookmark, start, entered_us, server,
                              caught_up_us, generation)
    haclient_done            (client_name, sub_id, publisher, sequence, generation)

Publisher ids and sequences are stored as texts of 20 digits: databases have no unsigned 64-bit
integers, and texts of equal length sort like numbers. stores/README.md describes the columns.

Reads and writes run in the caller's transaction; only `transaction` commits.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from haclient_stores.adapters.recovery_point import RecoveryPoint, positions
from haclient_stores.bookmark import BookmarkList

_POINTS: Final = "haclient_recovery_points"
_DONE: Final = "haclient_done"
_TABLES: Final = {
    _POINTS: "client_name text not null, sub_id text not null, bookmark text not null, "
    "primary key (client_name, sub_id)",
    _DONE: "client_name text not null, sub_id text not null, "
    "publisher text not null, sequence text not null, "
    "primary key (client_name, sub_id, publisher, sequence)",
}
FIRST_GENERATION: Final = 1
_TEXT: Final = "text not null default ''"
_NUMBER: Final = "bigint not null default 0"
_GENERATION: Final = f"bigint not null default {FIRST_GENERATION}"
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
    """The required methods of a DB-API cursor (PEP 249)."""

    @property
    def description(self) -> Any: ...  # noqa: ANN401, D102  # each driver types it in its own way

    @property
    def rowcount(self) -> int: ...  # noqa: D102  # PEP 249

    def execute(self, operation: str, parameters: Any = ..., /) -> object: ...  # noqa: ANN401, D102  # likewise

    def fetchall(self) -> Any: ...  # noqa: ANN401, D102  # likewise

    def close(self) -> object: ...  # noqa: D102  # PEP 249


class DatabaseConnection(Protocol):
    """The required methods of a DB-API connection (PEP 249)."""

    def cursor(self) -> Cursor: ...  # noqa: D102  # PEP 249

    def commit(self) -> object: ...  # noqa: D102  # PEP 249

    def rollback(self) -> object: ...  # noqa: D102  # PEP 249


class Database:
    """A DB-API connection: the one that statements use unless another one is passed.

    Args:
        connection: The connection.
        placeholder: How the driver marks a parameter: `?` or `%s`.
    """

    def __init__(self, connection: DatabaseConnection, placeholder: str) -> None:
        self._connection = connection
        self._placeholder = placeholder

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Commit what the block does; roll back if it raises."""
        try:
            yield
        except BaseException:  # some drivers refuse everything after a failed transaction
            self._connection.rollback()
            raise
        self._connection.commit()

    def execute(
        self, connection: DatabaseConnection | None, statement: str, *values: str | int
    ) -> int:
        """Execute a statement with `?` for each value; how many rows it has changed."""
        cursor = (connection or self._connection).cursor()
        cursor.execute(statement.replace("?", self._placeholder), values)
        count = cursor.rowcount
        cursor.close()
        return count

    def read(
        self, connection: DatabaseConnection | None, statement: str, *values: str
    ) -> list[tuple[Any, ...]]:
        """The rows that a statement finds."""
        cursor = (connection or self._connection).cursor()
        cursor.execute(statement.replace("?", self._placeholder), values)
        rows: list[tuple[Any, ...] | dict[str, Any]] = cursor.fetchall()  # as the user wants rows
        cursor.close()
        return [tuple(row.values() if isinstance(row, dict) else row) for row in rows]


class RecoveryTables(Database):
    """The tables of recovery points.

    Attributes:
        client_name: The client whose rows are read and written; set before the first use.
    """

    client_name = ""

    def create(self) -> None:
        """Create missing tables, add missing columns to those of an earlier shape, and commit."""
        with self.transaction():
            for table in _TABLES:
                self._create(table)

    def _create(self, table: str) -> None:
        self.execute(None, f"create table if not exists {table} ({_TABLES[table]})")
        cursor = self._connection.cursor()
        cursor.execute(f"select * from {table} where 1 = 0")  # noqa: S608  # a name of ours
        known = {column[0] for column in cursor.description}
        cursor.close()
        for column, kind in _COLUMNS[table].items():
            if column not in known:
                self.execute(None, f"alter table {table} add column {column} {kind}")

    def read_points(self) -> list[tuple[RecoveryPoint, str, int]]:
        """The saved recovery points.

        Returns:
            For each subscription the point, its start in wire form, and the time of its entry at
            NOW in microseconds since 1970, or 0.
        """
        return [
            (RecoveryPoint(sub_id, bookmark, server, caught_up_us, generation), start, entered_us)
            for sub_id, bookmark, start, entered_us, server, caught_up_us, generation in self.read(
                None, _READ_POINTS, self.client_name
            )
        ]

    def read_done(self) -> list[tuple[str, int, int, int]]:
        """Subscription, publisher id, sequence and generation of each saved message."""
        return [
            (sub_id, int(publisher), int(sequence), generation)
            for sub_id, publisher, sequence, generation in self.read(
                None, _READ_DONE, self.client_name
            )
        ]

    def read_generation(self, sub_id: str, connection: DatabaseConnection | None = None) -> int:
        """The saved generation of a subscription; the first one when no row says another."""
        rows = self.read(connection, _READ_GENERATION, self.client_name, sub_id)
        return rows[0][0] if rows else FIRST_GENERATION

    def save_done(
        self,
        sub_id: str,
        publisher_id: int,
        sequence: int,
        generation: int,
        *,
        connection: DatabaseConnection | None,
    ) -> None:
        """Note one message as done; one that is noted already stays.

        Args:
            sub_id: The subscription.
            publisher_id: The publisher id of the message's bookmark.
            sequence: Its sequence.
            generation: The generation of the subscription.
            connection: The connection whose transaction it is; None for the tables' own.
        """
        number = _digits(publisher_id), _digits(sequence), generation
        self.execute(connection, _SAVE_DONE, self.client_name, sub_id, *number)

    def save_point(
        self,
        point: RecoveryPoint,
        *,
        start: str,
        entered_us: int,
        connection: DatabaseConnection | None,
    ) -> None:
        """Save a recovery point over the earlier one.

        Args:
            point: The point.
            start: Where the subscription began, in wire form.
            entered_us: When it was entered at NOW, in microseconds since 1970, or 0.
            connection: The connection whose transaction it is; None for the tables' own.
        """
        values = start, entered_us, point.server, point.caught_up_us, point.generation
        key = self.client_name, point.sub_id
        self.execute(connection, _SAVE_POINT, *key, point.bookmark, *values)

    def trim_done(self, point: RecoveryPoint, connection: DatabaseConnection | None) -> None:
        """Delete the messages that a recovery point has passed."""
        for publisher, sequence in positions(BookmarkList.parse(point.bookmark)).items():
            key = self.client_name, point.sub_id, _digits(publisher)
            self.execute(connection, _TRIM, *key, _digits(sequence))

    def forget_earlier(
        self, sub_id: str, generation: int, connection: DatabaseConnection | None
    ) -> None:
        """Delete the messages of other generations than this one."""
        self.execute(connection, _FORGET_EARLIER, self.client_name, sub_id, generation)

    def forget(self, sub_id: str) -> None:
        """Delete everything of a subscription."""
        for statement in _FORGET:
            self.execute(None, statement, self.client_name, sub_id)


def _digits(number: int) -> str:
    return f"{number:020d}"
