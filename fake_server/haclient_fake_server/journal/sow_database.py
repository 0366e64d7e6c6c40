"""The records of file-backed topics in SQLite, next to the journal.

The database has the records as they were at one place of the log. Every few seconds, and when the
broker is closed, what has changed since is written together with the new place, in one transaction.
A broker that starts takes the records from it and reads only what follows in the log, so what comes
before may be removed. The log is synced up to the place first: after a loss of power, too, it has
what the database refers to.

A database that is missing, damaged, or of another log is made anew from the log.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from haclient_fake_server.engine.journal import Cursor
from haclient_fake_server.engine.patterns import TopicPatternError, to_bytes, to_text
from haclient_fake_server.engine.sow.saved import SavedRecords, SowChanges, SowLayout
from haclient_fake_server.engine.sow.table import SowRecord
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.log_place import LogPlace, end_of, place_problem
from haclient_stores.errors import StoreError

FILE_NAME: Final = "sow.db"
FORMAT_VERSION: Final = 2

BUSY_TIMEOUT_S: Final = 5.0
"""How long a call waits for another program that has locked the database."""

_log = logging.getLogger(__name__)

_UPSERT: Final = """
insert into records values (?, ?, ?, ?, ?, ?, ?, ?) on conflict (topic, key) do update set
body = excluded.body, timestamp = excluded.timestamp, correlation_id = excluded.correlation_id,
bookmark = excluded.bookmark, lifetime_s = excluded.lifetime_s, crc = excluded.crc
"""


class _Unfit(Exception):
    """The database cannot be used, and why."""


_DAMAGE: Final = (
    *(sqlite3.DatabaseError, _Unfit, ValueError, TypeError, AttributeError),
    TopicPatternError,  # of a layout
)


class PreparedChanges(NamedTuple):
    """What one transaction writes.

    Attributes:
        changes: In parts. Records may be later ones than those of the place: the log that follows
            makes the same of them.
        place: The place of the log to which they lead.
    """

    changes: Iterator[SowChanges]
    place: LogPlace


class SowDatabase:
    """The database of one broker.

    Args:
        directory: The journal's directory, whose lock also protects the database.
        journal: The journal, as the broker that starts has opened it.
        layout: That of the configuration. Records of a topic that was not file-backed or had other
            keys under a stored one are dropped.

    Attributes:
        saved: What the database has; `None` for a new one.

    Raises:
        StoreError: The disk failed.
    """

    def __init__(
        self,
        directory: Path,
        journal: JournalFiles,
        layout: SowLayout,
    ) -> None:
        self._path = directory / FILE_NAME
        self._journal = journal
        self._layout = layout
        self._place: LogPlace | None = None
        self.saved: SavedRecords | None = None
        try:
            self._database = self._opened()
        except (sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    @property
    def safe_position(self) -> int:
        """What comes before this position of the log is not needed for the records."""
        return 0 if self._place is None else self._place.next_position

    def note_start(self) -> None:
        """Name the youngest start, which the log has by now, and give unused space back."""
        start_id = f"{self._journal.log_starts[-1].id:016x}"
        try:
            with self._database as database:
                database.execute("update place set start_id = ?", (start_id,))
            (free,), (pages,) = (
                database.execute(f"pragma {name}").fetchone()
                for name in ("freelist_count", "page_count")
            )
            if 2 * free > pages:
                database.execute("vacuum")
        except sqlite3.OperationalError as error:  # a full disk: what is there still serves
            _log.warning("%s: not written, and tried again later: %s", self._path, error)

    @property
    def is_due(self) -> bool:
        """Whether the log has grown since the last transaction."""
        live = self._journal.live
        return self._place is None or self._place.end != Cursor(live.number, live.end)

    def prepare(self, changes: Iterator[SowChanges]) -> PreparedChanges:
        """Prepare a call of `write`, on the thread of the event loop, while nothing is appended."""
        return PreparedChanges(changes, end_of(self._journal))

    def write(self, prepared: PreparedChanges) -> None:
        """Write all changes at once, where nobody else has to be served.

        The log has to be synced.

        Raises:
            StoreError: The disk failed; nothing has changed.
        """
        for each in prepared.changes:
            self.add(each)
        self.commit(prepared.place)

    def add(self, changes: SowChanges) -> None:
        """Write a part of the changes, which counts from `commit` on; may run in a thread.

        Raises:
            StoreError: The disk failed; nothing has changed, and no part was written.
        """
        topic = _topic(changes.message_type, changes.topic)
        gone = [(topic, to_bytes(key)) for key, record in changes.records if not record]
        rows = [_row(topic, record) for _, record in changes.records if record]
        try:
            self._database.executemany("delete from records where topic = ? and key = ?", gone)
            self._database.executemany(_UPSERT, rows)
        except sqlite3.Error as error:
            self.rollback()
            raise self._failure(error) from error

    def commit(self, place: LogPlace) -> None:
        """Write the place to which all parts lead; may run in a thread.

        The log has to be synced since the last part was taken.

        Raises:
            StoreError: The disk failed; nothing has changed, and no part was written.
        """
        try:
            with self._database as database:
                self._write_place(database, place)
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._place = place

    def rollback(self) -> None:
        """Give up the parts that were written since the last `commit`."""
        with suppress(sqlite3.Error):  # a disk that has failed: the next `commit` says so
            self._database.rollback()

    def close(self) -> None:
        """Close the database; the last call."""
        self._database.close()

    def _failure(self, error: Exception) -> StoreError:
        # That SQLite has no room for its shared-memory file is told by this name alone.
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return StoreError(f"{self._path}: {error} ({name})")

    def _opened(self) -> sqlite3.Connection:
        """The database, with what was saved, or a new one."""
        database: sqlite3.Connection | None = None
        problem = "" if self._journal.next_position == 1 else "it is missing"
        if self._path.exists():
            try:
                database = _connect(self._path)
                self.saved = self._load(database)
            except _DAMAGE as error:
                name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
                if isinstance(error, sqlite3.OperationalError) and name != "SQLITE_ERROR":
                    raise  # it may be whole: another program has locked it, or the disk failed
                problem = str(error)
            finally:
                if database is not None and self.saved is None:
                    database.close()
        if database is not None and self.saved is not None:
            return database
        if problem:
            first = self._journal.first_position
            lost = f"; records from before position {first} are lost" if first > 1 else ""
            _log.warning("%s: made anew from the log: %s%s", self._path, problem, lost)
        return self._created()

    def _created(self) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
        database = _connect(self._path)
        import sqlite_utils  # noqa: PLC0415  # it takes a tenth of a second

        schema = sqlite_utils.Database(database)
        schema.table("place").create(
            {"start_id": str, "segment": int, "offset": int, "block": int, "header": bytes}
            | {"next_position": int}
        )
        schema.table("layouts").create({"text": str}, pk="text")
        schema.table("records").create(
            {"topic": bytes, "key": bytes, "body": bytes, "timestamp": str}
            | {"correlation_id": bytes, "bookmark": str, "lifetime_s": int, "crc": int}
        )
        schema.table("records").create_index(["topic", "key"], unique=True)
        database.execute(f"pragma user_version = {FORMAT_VERSION}")
        database.commit()
        return database

    def _load(self, database: sqlite3.Connection) -> SavedRecords:
        """Check the database, and drop what is of another configuration.

        Raises:
            _Unfit: It is of another log, or damaged.
        """
        (version,) = database.execute("pragma user_version").fetchone()
        if version != FORMAT_VERSION:
            raise _Unfit(f"format {version}, this is {FORMAT_VERSION}")
        row = database.execute("select * from place").fetchone()
        if row is None:
            raise _Unfit("it was never completed")
        start_id, segment, offset, block, header, next_position = row
        place = LogPlace(int(start_id, 16), Cursor(segment, offset), block, header, next_position)
        if problem := place_problem(self._journal, place):
            raise _Unfit(problem)
        # Each record has its checksum, but a page may lack some, or the index may name others.
        (found,) = database.execute("pragma integrity_check(1)").fetchone()
        if found != "ok":
            raise _Unfit(" ".join(found.split()))
        stored = [text for (text,) in database.execute("select text from layouts")]
        layouts = [SowLayout.parse(text) for text in stored]

        def has(message_type: str, topic: str) -> bool:
            keys = self._layout.keys_of(message_type, topic)
            return keys is not None and all(
                each.keys_of(message_type, topic) == keys for each in layouts
            )

        with database:
            for (topic,) in database.execute("select distinct topic from records").fetchall():
                if not has(*_names(topic)):
                    self._drop_topic(database, topic)
            if self._layout.text not in stored:
                # Until all is written under it, a topic counts only if it is the same under each.
                database.execute("insert into layouts values (?)", (self._layout.text,))
        records = list(_records(database))
        if stored == [self._layout.text]:  # else the log alone may have some of the records
            self._place = place
        return SavedRecords(place.end, next_position, has, records)

    def _drop_topic(self, database: sqlite3.Connection, topic: bytes) -> None:
        """Drop the records of a topic, which are read from the log, as far as that has them."""
        count = database.execute("delete from records where topic = ?", (topic,)).rowcount
        first = self._journal.first_position
        if first > 1:
            what = f"{count} records of topic {_names(topic)[1]!r} are dropped"
            why = "since it is configured in another way"
            lost = f"those from before position {first} of the log are lost"
            _log.warning("%s: %s, %s; %s", self._path, what, why, lost)

    def _write_place(self, database: sqlite3.Connection, place: LogPlace) -> None:
        database.execute("delete from place")
        values = (f"{place.start_id:016x}", *place.end, place.block, place.header)
        database.execute(
            "insert into place values (?, ?, ?, ?, ?, ?)", (*values, place.next_position)
        )
        database.execute("delete from layouts")
        database.execute("insert into layouts values (?)", (self._layout.text,))


def report_unused(directory: Path, journal: JournalFiles) -> None:
    """Report a database that no topic uses any more, if the log has less than it."""
    path, first = directory / FILE_NAME, journal.first_position
    if first > 1 and path.exists():
        what = f"what it alone has from before position {first} of the log is missing"
        _log.warning("%s: not read, since no topic is file-backed: %s", path, what)


def _connect(path: Path) -> sqlite3.Connection:
    # One thread at a time has it.
    database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _records(database: sqlite3.Connection) -> Iterator[tuple[str, str, SowRecord]]:
    names: dict[bytes, tuple[str, str]] = {}
    for *row, crc in database.execute("select * from records order by rowid"):
        topic, key, body, timestamp, correlation_id, bookmark, lifetime_s = row
        if crc != _crc(body, row):
            raise _Unfit("the checksum of a record is wrong")
        if topic not in names:
            names[topic] = _names(topic)
        record = SowRecord(
            to_text(key), body, timestamp, to_text(correlation_id), bookmark, lifetime_s=lifetime_s
        )
        yield *names[topic], record


def _topic(message_type: str, topic: str) -> bytes:
    return to_bytes(f"{message_type} {topic}")


def _names(topic: bytes) -> tuple[str, str]:
    message_type, _, name = to_text(topic).partition(" ")
    return message_type, name


def _row(topic: bytes, record: SowRecord) -> tuple[object, ...]:
    row = [
        topic,
        to_bytes(record.key),
        record.body,
        record.timestamp,
        to_bytes(record.correlation_id),
        record.bookmark,
        record.lifetime_s,
    ]
    return *row, _crc(record.body, row)


def _crc(body: bytes, row: Sequence[object]) -> int:
    """The checksum of a row, whose third value is the body."""
    return zlib.crc32(body, zlib.crc32(repr((*row[:2], *row[3:])).encode()))
