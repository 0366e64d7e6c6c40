"""Recovery points in a SQLite database.

SQLite syncs the disk in each transaction, which takes milliseconds, and another program may have
the database locked for seconds. So all database work runs in threads. Points that arrive while the
adapter's thread writes are combined into one transaction, which holds only the newest point of each
subscription. The table is that of `TransactionalRecoveryPoint`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, RecoveryPointAdapter
from haclient_stores.adapters.recovery_tables import RecoveryTables
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
_HINTS: Final = {  # by SQLite's primary result codes
    5: f"another program has it locked for over {_LOCKED_S:g} s: end that, or use another file",
    8: "let this user write to the file and to its directory",
    13: "make room on the disk",
    14: "give the path of a file, in a directory that is there and that this user may write to",
    26: "this file is something else: give another path",
}
_BUSY: Final = 5


class SqliteRecoveryPointAdapter(RecoveryPointAdapter):
    """Keeps recovery points in the table `haclient_recovery_points` of a database.

    Args:
        path: The database; created when it is missing. Several clients may share it.
        on_error: Called in the adapter's thread with each write error; the write is retried a
            second later. Without it the next `update` or `close` raises the error, which leaves the
            client's block.

    Raises:
        StoreError: The database cannot be opened.
        UsageError: An argument is invalid.
    """

    def __init__(
        self, path: str | Path, *, on_error: Callable[[StoreError], object] | None = None
    ) -> None:
        # The file is opened again for each piece of work, in whatever directory that happens.
        self._path = RealDisk().resolve(check_path(path, "the file of the database"))
        self._on_error = on_error
        self._client_name = ""
        self._known: set[str] = set()
        self._pending: dict[str, RecoveryPoint | None] = {}  # None: forget it
        self._closing = False
        self._errors = deque[StoreError](maxlen=1)  # the thread appends, the client takes
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        with self._database() as connection:
            _check_is_database(connection)

    @contextmanager
    def _database(self) -> Generator[sqlite3.Connection]:
        """Open the database for a block, and close it; whatever was begun is rolled back."""
        import sqlite3  # noqa: PLC0415  # which only its users pay for

        try:
            connection = sqlite3.connect(self._path, timeout=_LOCKED_S, isolation_level=None)
            with closing(connection):
                yield connection
        except (sqlite3.Error, ValueError, OverflowError) as error:
            code: int = getattr(error, "sqlite_errorcode", 0) & 0xFF
            hint = f"; {_HINTS[code]}" if code in _HINTS else ""
            raise StoreError(f"{self._path}: recovery points: {error}{hint}") from error

    @contextmanager
    def _tables(self) -> Generator[RecoveryTables]:
        """One transaction of this client on the tables."""
        with self._database() as connection:
            tables = RecoveryTables(connection, "?")
            tables.client_name = self._client_name
            # Lock for writing at the start: a transaction that reads first and then writes fails
            # without waiting if another client has written in between.
            connection.execute("begin immediate")
            tables.create()  # and commit
            connection.execute("begin immediate")
            yield tables
            connection.execute("commit")

    @override
    async def recover(self, client_name: str) -> Iterable[RecoveryPoint]:
        if self._client_name not in {"", client_name}:
            raise UsageError(
                f"this adapter serves the client {self._client_name!r}; make another one for "
                f"{client_name!r}, on the same file if you like"
            )
        self._client_name = client_name
        points = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        self._known.update(point.sub_id for point in points)
        return points

    def _read(self) -> list[RecoveryPoint]:
        with self._tables() as tables:
            return [point for point, _, _ in tables.read_points()]

    @override
    def update(self, point: RecoveryPoint) -> None:
        self._enqueue({point.sub_id: point})

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self._enqueue(dict.fromkeys(self._known if sub_id is None else [sub_id]))

    def _enqueue(self, points: dict[str, RecoveryPoint | None]) -> None:
        if self._closing or not self._client_name:
            raise UsageError(f"{self._path}: updates come after `recover` and before `close`")
        self._raise_error()
        self._known.update(points)
        with self._changed:
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
                self._changed.wait_for(lambda: self._pending or self._closing)
                points, self._pending = self._pending, {}
                closing = self._closing
            try:
                if points:
                    self._write(points)
            except StoreError as error:
                self._report(error)
                with self._changed:  # retry after a while, unless a close is waiting
                    self._pending = points | self._pending
                    self._changed.wait_for(lambda: self._closing, timeout=_RETRY_S)
            if closing:
                return

    def _write(self, points: dict[str, RecoveryPoint | None]) -> None:
        with self._tables() as tables:
            for sub_id, point in points.items():
                if point is None:
                    tables.forget(sub_id)
                else:
                    tables.save_point(point, start="", entered_us=0, connection=None)

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
        await trio.to_thread.run_sync(self._vacuum, abandon_on_cancel=True)

    def _vacuum(self) -> None:
        with self._database() as connection:
            connection.execute("vacuum")

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


def _check_is_database(connection: sqlite3.Connection) -> None:
    """Check that the file is a database, without waiting for those who have it locked."""
    import sqlite3  # noqa: PLC0415  # see `_database`

    connection.execute("pragma busy_timeout = 0")
    try:
        connection.execute("select count(*) from sqlite_master")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != _BUSY:
            raise
