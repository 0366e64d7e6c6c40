"""Recovery points in a SQLite database (RP9).

SQLite syncs the disk in each transaction, which takes milliseconds, so the adapter has a thread
that writes. What gathers meanwhile goes into one transaction: the newest point of each subscription
only.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from haclient_stores.adapters import RecoveryPoint, RecoveryPointAdapter
from haclient_stores.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlite_utils import Database
    from sqlite_utils.db import Table

__all__ = ["SqliteRecoveryPointAdapter"]

_KEY: Final = ("client_name", "sub_id")
_RETRY_S: Final = 1.0


class SqliteRecoveryPointAdapter(RecoveryPointAdapter):
    """Keeps recovery points in a table, one row for each client and subscription.

    Args:
        path: The database; created when it is missing. Several clients may share it.
        table: The table; created when it is missing.
        on_error: Called, in the adapter's thread, with an error of writing, which is tried again
            a second later (RP8). Without it the error is raised by the next `update` or `close`,
            and so leaves the client.

    Raises:
        StoreError: The database cannot be opened.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        table: str = "recovery_points",
        on_error: Callable[[StoreError], object] | None = None,
    ) -> None:
        self._path = Path(path)
        self._table_name = table
        self._on_error = on_error
        self._client_name = ""
        self._pending: dict[str, str] = {}  # an empty bookmark: forget it
        self._forget_all = False
        self._closing = False
        self._error: StoreError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._within(lambda _: None)

    def _within(self, work: Callable[[Table], None]) -> None:
        """Open the database, do some work in one transaction, and close it."""
        import sqlite3  # noqa: PLC0415  # these two take 130 ms, which only their users pay

        from sqlite_utils import Database  # noqa: PLC0415  # as above

        try:
            connection = sqlite3.connect(self._path)
            try:
                with connection:
                    # At once: who reads first and then writes is refused without a wait when
                    # another client has come in between.
                    connection.execute("begin immediate")
                    work(self._table(Database(connection)))
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: recovery points: {error}") from error

    def _table(self, database: Database) -> Table:
        table = database.table(self._table_name)
        if not table.exists():
            table.create({"client_name": str, "sub_id": str, "bookmark": str}, pk=_KEY)
        return table

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        if self._client_name not in {"", client_name}:
            raise UsageError(
                f"this adapter serves the client {self._client_name!r}; make another one for "
                f"{client_name!r}, on the same file if you like"
            )
        self._client_name = client_name
        points: list[RecoveryPoint] = []

        def read(table: Table) -> None:
            rows = table.rows_where("client_name = ?", [client_name])  # pyright: ignore[reportUnknownMemberType]  # its own types are loose
            points.extend(RecoveryPoint(row["sub_id"], row["bookmark"]) for row in rows)

        self._within(read)
        return points

    @override
    def update(self, point: RecoveryPoint) -> None:
        self._enqueue({point.sub_id: point.bookmark})

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self._enqueue({} if sub_id is None else {sub_id: ""}, forget_all=sub_id is None)

    def _enqueue(self, points: dict[str, str], *, forget_all: bool = False) -> None:
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
        error, self._error = self._error, None
        if error is not None:
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
            if not done:  # again after a while, unless somebody is in a hurry
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S)

    def _write(self, points: dict[str, str], *, forget_all: bool) -> bool:
        """One transaction; False, and the points enqueued again, when it failed."""
        name = self._client_name

        def write(table: Table) -> None:
            if forget_all:
                table.delete_where("client_name = ?", [name])  # pyright: ignore[reportUnknownMemberType]  # as above
            for sub_id in [each for each, bookmark in points.items() if not bookmark]:
                table.delete_where("client_name = ? and sub_id = ?", [name, sub_id])  # pyright: ignore[reportUnknownMemberType]  # as above
            rows = [
                {"client_name": name, "sub_id": sub_id, "bookmark": bookmark}
                for sub_id, bookmark in points.items()
                if bookmark
            ]
            if rows:
                table.upsert_all(rows, pk=_KEY)

        try:
            self._within(write)
        except StoreError as error:
            with self._changed:
                self._pending = points | self._pending
                self._forget_all = self._forget_all or forget_all
            if self._on_error is not None:
                self._on_error(error)
            else:
                self._error = error
            return False
        return True

    @override
    async def prune(self) -> None:
        """Give the space of forgotten rows back to the disk."""
        import sqlite3  # noqa: PLC0415  # see `_within`

        try:
            connection = sqlite3.connect(self._path)
            try:
                connection.execute("vacuum")
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise StoreError(f"{self._path}: vacuum: {error}") from error

    @override
    async def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._raise_error()
