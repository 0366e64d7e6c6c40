"""Recovery points in a SQLite database.

SQLite syncs the disk in each transaction, which takes milliseconds, and another program may have
the database locked for seconds. So all database work runs in threads. Points that arrive while the
adapter's thread writes are combined into one transaction, which holds only the newest point of each
subscription.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, RecoveryPointAdapter
from haclient_stores.checks import check_text
from haclient_stores.disk.files import RealDisk
from haclient_stores.disk.ownership import check_path
from haclient_stores.errors import StoreError, UsageError
from haclient_stores.logs import logger_of

if TYPE_CHECKING:
    import sqlite3

__all__ = ["SqliteRecoveryPointAdapter"]

_logger = logger_of(__name__)
_RETRY_S: Final = 1.0
_LOCKED_S: Final = 4.0  # how long another program may keep the database locked
_CLOSE_S: Final = 9.0  # a write that waits, one more, and some time; the client gives it ten
_CREATE: Final = (
    "create table if not exists {table} (client_name text not null, sub_id text not null, "
    "bookmark text not null, server text not null default '', "
    "caught_up_us integer not null default 0, generation integer not null default 0, "
    "primary key (client_name, sub_id))"
)
_EXPECTED: Final = {"client_name": True, "sub_id": True, "bookmark": False}  # which is in the key
_NUMBER: Final = "integer not null default 0"
_ADDED: Final = {
    "server": "text not null default ''",
    "caught_up_us": _NUMBER,
    "generation": _NUMBER,
}
_READ: Final = (
    "select sub_id, bookmark, server, caught_up_us, generation from {table} where client_name = ?"
)
_SAVE: Final = (
    "insert into {table} (client_name, sub_id, bookmark, server, caught_up_us, generation) "
    "values (?, ?, ?, ?, ?, ?) on conflict (client_name, sub_id) do update set "
    "bookmark = excluded.bookmark, server = excluded.server, "
    "caught_up_us = excluded.caught_up_us, generation = excluded.generation"
)
_FORGET: Final = "delete from {table} where client_name = ? and sub_id = ?"
_FORGET_ALL: Final = "delete from {table} where client_name = ?"
_HINTS: Final = {  # by SQLite's primary result codes
    5: f"another program has it locked for over {_LOCKED_S:g} s: end that, or use another file",
    8: "let this user write to the file and to its directory",
    13: "make room on the disk",
    14: "give the path of a file, in a directory that is there and that this user may write to",
    26: "this file is something else: give another path",
}
_BUSY: Final = 5


class SqliteRecoveryPointAdapter(RecoveryPointAdapter):
    """Keeps recovery points in a table, one row for each client and subscription.

    Args:
        path: The database; created when it is missing. Several clients may share it.
        table: The table; created when it is missing. A table of an earlier version gets the new
            columns.
        on_error: Called in the adapter's thread with each write error; the write is retried a
            second later. Without it the next `update` or `close` raises the error, which leaves the
            client's block.

    Raises:
        StoreError: The database cannot be opened.
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        table: str = "recovery_points",
        on_error: Callable[[StoreError], object] | None = None,
    ) -> None:
        check_text("table", table)
        # The file is opened again for each piece of work, in whatever directory that happens.
        self._path = RealDisk().resolve(check_path(path, "the file of the database"))
        self._table = '"' + table.replace('"', '""') + '"'
        self._on_error = on_error
        self._client_name = ""
        self._pending: dict[str, RecoveryPoint | None] = {}  # None: forget it
        self._forget_all = False
        self._closing = False
        self._errors = deque[StoreError](maxlen=1)  # the thread appends, the client takes
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._within(_check_is_database)

    def _within(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Open the database, do some work, and close it; whatever was begun is rolled back."""
        import sqlite3  # noqa: PLC0415  # which only its users pay for

        try:
            connection = sqlite3.connect(self._path, timeout=_LOCKED_S, isolation_level=None)
            try:
                work(connection)
            finally:
                connection.close()
        except (sqlite3.Error, ValueError, OverflowError) as error:
            code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
            hint = f"; {_HINTS[code]}" if code in _HINTS else ""
            raise StoreError(f"{self._path}: recovery points: {error}{hint}") from error

    def _transact(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do some work on the table in one transaction."""

        def transact(connection: sqlite3.Connection) -> None:
            # Lock for writing at the start: a transaction that reads first and then writes fails
            # without waiting if another client has written in between.
            connection.execute("begin immediate")
            self._prepare(connection)
            work(connection)
            connection.execute("commit")

        self._within(transact)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute(_CREATE.format(table=self._table))
        rows = connection.execute(f"pragma table_info({self._table})").fetchall()
        in_key = {str(row[1]): bool(row[5]) for row in rows}
        if not _EXPECTED.items() <= in_key.items():
            raise StoreError(
                f"{self._path}: the table {self._table} is something else, with the columns "
                f"{', '.join(in_key)} and not client_name and sub_id as its key: "
                "give another one with table="
            )
        for column, kind in _ADDED.items():
            if column not in in_key:
                connection.execute(f"alter table {self._table} add column {column} {kind}")

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        if self._client_name not in {"", client_name}:
            raise UsageError(
                f"this adapter serves the client {self._client_name!r}; make another one for "
                f"{client_name!r}, on the same file if you like"
            )
        self._client_name = client_name
        points: list[RecoveryPoint] = []

        def read(connection: sqlite3.Connection) -> None:
            rows = connection.execute(_READ.format(table=self._table), (client_name,))
            points.extend(_point(*row) for row in rows)

        await trio.to_thread.run_sync(partial(self._transact, read), abandon_on_cancel=True)
        return points

    @override
    def update(self, point: RecoveryPoint) -> None:
        self._enqueue({point.sub_id: point})

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self._enqueue({} if sub_id is None else {sub_id: None}, forget_all=sub_id is None)

    def _enqueue(
        self, points: dict[str, RecoveryPoint | None], *, forget_all: bool = False
    ) -> None:
        if self._closing or not self._client_name:
            raise UsageError(f"{self._path}: updates come after `recover` and before `close`")
        self._raise_error()
        with self._changed:
            if forget_all:
                self._pending.clear()
                self._forget_all = True
            self._pending.update(points)
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_all, name=f"{self._path}: recovery points", daemon=True
            )
            self._thread.start()

    def _raise_error(self) -> None:
        try:
            error = self._errors.pop()
        except IndexError:
            return
        raise error

    def _write_all(self) -> None:
        """The thread: write whatever has gathered, until the adapter is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._forget_all or self._closing)
                points, self._pending = self._pending, {}
                forget_all, self._forget_all = self._forget_all, False
                closing = self._closing
            done = not (points or forget_all) or self._write(points, forget_all=forget_all)
            if closing:
                return
            if not done:  # retry after a while, unless a close is waiting
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S)

    def _write(self, points: dict[str, RecoveryPoint | None], *, forget_all: bool) -> bool:
        """One transaction; False, and the points enqueued again, when it failed."""
        name = self._client_name

        def write(connection: sqlite3.Connection) -> None:
            if forget_all:
                connection.execute(_FORGET_ALL.format(table=self._table), (name,))
            for sub_id, point in points.items():
                if point is None:
                    connection.execute(_FORGET.format(table=self._table), (name, sub_id))
                else:
                    row = (
                        name,
                        sub_id,
                        point.bookmark,
                        point.server,
                        point.caught_up_us,
                        point.generation,
                    )
                    connection.execute(_SAVE.format(table=self._table), row)

        try:
            self._transact(write)
        except StoreError as error:
            with self._changed:
                if not self._forget_all:  # else the pending points are discarded already
                    self._pending = points | self._pending
                    self._forget_all = forget_all
            self._report(error)
            return False
        return True

    def _report(self, error: StoreError) -> None:
        if self._on_error is None:
            self._errors.append(error)
            return
        try:
            self._on_error(error)
        except Exception:  # it must not end the thread
            self._errors.append(error)
            _logger.exception("%s: on_error has raised", self._path)

    @override
    async def prune(self) -> None:
        """Give the space of forgotten rows back to the disk."""
        vacuum = partial(self._within, lambda connection: connection.execute("vacuum"))
        await trio.to_thread.run_sync(vacuum, abandon_on_cancel=True)

    @override
    async def close(self) -> None:
        """Write what is still enqueued, and release the database.

        Raises:
            StoreError: It could not be written, or not in time.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        thread = self._thread
        if thread is not None:
            await trio.to_thread.run_sync(thread.join, _CLOSE_S, abandon_on_cancel=True)
            if thread.is_alive():
                raise StoreError(
                    f"{self._path}: recovery points: the last ones were not written in "
                    f"{_CLOSE_S:g} s; {_HINTS[_BUSY]}"
                )
        self._raise_error()


def _point(
    sub_id: object, bookmark: object, server: object, caught_up_us: object, generation: object
) -> RecoveryPoint:
    """A row; SQLite has values of any type in any column."""
    known_us = caught_up_us if isinstance(caught_up_us, int) else 0
    known = generation if isinstance(generation, int) else 0
    return RecoveryPoint(str(sub_id), str(bookmark), str(server or ""), known_us, known)


def _check_is_database(connection: sqlite3.Connection) -> None:
    """Check that the file is a database, without waiting for those who have it locked."""
    import sqlite3  # noqa: PLC0415  # see `_within`

    connection.execute("pragma busy_timeout = 0")
    try:
        connection.execute("select count(*) from sqlite_master")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != _BUSY:
            raise
