from __future__ import annotations

import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import trio

from haclient.recovery_points import sqlite
from haclient.recovery_points.sqlite import SqliteRecoveryPointAdapter
from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.errors import StoreError, UsageError

if TYPE_CHECKING:
    from _typeshed import TraceFunction

pytestmark = pytest.mark.row("RP9")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "points.db"


def away(path: Path) -> None:
    """Take the database away, and put something in its place that is none."""
    path.rename(path.with_suffix(".away"))
    path.mkdir()


def back(path: Path) -> None:
    path.rmdir()
    path.with_suffix(".away").rename(path)


async def test_points_are_rows_that_anybody_can_read(path: Path) -> None:
    adapter = SqliteRecoveryPointAdapter(path)
    assert list(await adapter.recover("me")) == []
    for sequence in range(1, 101):
        adapter.update(RecoveryPoint("s", f"1|{sequence}|", "east:9007", sequence))
    await adapter.close()
    database = sqlite3.connect(path)
    rows = database.execute("select * from haclient_recovery_points").fetchall()
    assert rows == [("me", "s", "1|100|", "", 0, "east:9007", 100, 0)]
    database.close()


async def test_updates_come_between_recover_and_close(path: Path) -> None:
    adapter = SqliteRecoveryPointAdapter(path)
    with pytest.raises(UsageError, match="after `recover`"):
        adapter.update(RecoveryPoint("s", "1|1|"))
    await adapter.recover("me")
    with pytest.raises(UsageError, match="serves the client 'me'"):
        await adapter.recover("you")
    await adapter.close()
    with pytest.raises(UsageError, match="before `close`"):
        adapter.purge()


def test_a_database_that_cannot_be_opened_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="recovery points: unable to open"):
        SqliteRecoveryPointAdapter(tmp_path / "no such directory" / "points.db")


@pytest.mark.row("RP8")
async def test_an_error_of_writing_is_raised_by_whoever_comes_next(path: Path) -> None:
    adapter = SqliteRecoveryPointAdapter(path)
    await adapter.recover("me")
    away(path)
    adapter.update(RecoveryPoint("s", "1|1|"))
    with pytest.raises(StoreError, match="recovery points: unable to open"):
        await adapter.close()
    with pytest.raises(StoreError, match="give the path of a file"):
        await adapter.prune()


@pytest.mark.row("RP8")
async def test_or_reported_and_tried_again_until_it_works(path: Path) -> None:
    reported: list[StoreError] = []
    failed = threading.Event()

    def report(error: StoreError) -> None:
        reported.append(error)
        failed.set()

    adapter = SqliteRecoveryPointAdapter(path, on_error=report)
    await adapter.recover("me")
    away(path)
    adapter.purge()
    adapter.update(RecoveryPoint("s", "1|1|"))
    assert failed.wait(60)
    back(path)
    adapter.update(RecoveryPoint("t", "1|2|"))
    await adapter.close()
    again = SqliteRecoveryPointAdapter(path)
    points = {point.sub_id: point.bookmark for point in await again.recover("me")}
    assert points == {"s": "1|1|", "t": "1|2|"}
    await again.close()


def test_clients_that_share_a_database_may_begin_at_the_same_time(tmp_path: Path) -> None:
    refused: list[StoreError] = []
    together = threading.Barrier(4)

    def begin(path: Path) -> None:
        together.wait()
        try:
            SqliteRecoveryPointAdapter(path)
        except StoreError as error:
            refused.append(error)

    for attempt in range(30):
        path = tmp_path / f"{attempt}.db"
        threads = [threading.Thread(target=begin, args=(path,)) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert refused == []


async def kept(path: Path) -> dict[str, RecoveryPoint]:
    adapter = SqliteRecoveryPointAdapter(path)
    points = {point.sub_id: point for point in await adapter.recover("me")}
    await adapter.close()
    return points


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program is in the middle of a transaction; `rollback` ends it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("begin exclusive")
        yield database


def test_a_file_that_is_no_database_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"no database" * 100)  # a test may write a file
    with pytest.raises(StoreError, match=r"points\.db: .* not a database; .* give another path"):
        SqliteRecoveryPointAdapter(path)
    assert path.read_bytes() == b"no database" * 100  # as above


async def test_the_client_goes_on_while_another_program_has_the_database_locked(
    path: Path,
) -> None:
    """Were it waited for in trio's own thread, the lock could never go."""
    await kept(path)
    with locked(path) as other:
        adapter = SqliteRecoveryPointAdapter(path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adapter.recover, "me")
            await trio.sleep(0.05)
            other.rollback()
        other.execute("begin exclusive")
        adapter.update(RecoveryPoint("s", "1|1|"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(adapter.close)
            await trio.sleep(0.05)
            other.rollback()
    assert await kept(path) == {"s": RecoveryPoint("s", "1|1|")}


async def test_a_database_that_stays_locked_is_told_with_what_to_do(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCKED_S", 0.01)
    adapter = SqliteRecoveryPointAdapter(path)
    await adapter.recover("me")
    wanted = r"points\.db: .* is locked; another program .* use another file"
    with locked(path):
        with pytest.raises(StoreError, match=wanted):
            await SqliteRecoveryPointAdapter(path).recover("me")
        adapter.update(RecoveryPoint("s", "1|1|"))
        with pytest.raises(StoreError, match=wanted):
            await adapter.close()


@pytest.mark.row("RP8")
async def test_a_write_that_does_not_come_back_is_left(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_LOCKED_S", 60.0)  # the write waits for the lock
    monkeypatch.setattr(sqlite, "_CLOSE_S", 0.01)
    adapter = SqliteRecoveryPointAdapter(path)
    await adapter.recover("me")
    with locked(path):
        adapter.update(RecoveryPoint("s", "1|1|"))
        with pytest.raises(StoreError, match=r"the last ones were not written in 0\.01 s"):
            await adapter.close()


@pytest.mark.row("RP8")
async def test_what_was_purged_while_a_write_failed_stays_purged(path: Path) -> None:
    failed = threading.Event()
    adapter: SqliteRecoveryPointAdapter

    def purge(_: StoreError) -> None:
        if not failed.is_set():
            adapter.purge()
            adapter.update(RecoveryPoint("t", "1|2|"))
            back(path)
        failed.set()

    adapter = SqliteRecoveryPointAdapter(path, on_error=purge)
    await adapter.recover("me")
    away(path)
    adapter.update(RecoveryPoint("s", "1|1|"))
    assert failed.wait(60)
    await adapter.close()
    assert await kept(path) == {"t": RecoveryPoint("t", "1|2|")}


@pytest.mark.row("RP8")
async def test_an_error_handler_that_raises_is_no_end_of_the_writing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = threading.Event()

    def fail(_: StoreError) -> None:
        back(path)
        failed.set()
        raise RuntimeError

    adapter = SqliteRecoveryPointAdapter(path, on_error=fail)
    await adapter.recover("me")
    away(path)
    adapter.update(RecoveryPoint("s", "1|1|"))
    assert failed.wait(60)
    with pytest.raises(StoreError, match="unable to open"):
        await adapter.close()
    assert await kept(path) == {"s": RecoveryPoint("s", "1|1|")}
    assert "on_error has raised" in caplog.text


async def test_text_that_is_no_unicode_is_an_error_and_not_the_end(path: Path) -> None:
    reported: list[StoreError] = []
    adapter = SqliteRecoveryPointAdapter(path, on_error=reported.append)
    await adapter.recover("me")
    adapter.update(RecoveryPoint("\udcff", "1|1|"))
    await adapter.close()
    assert "surrogates not allowed" in str(reported[0])


def test_an_error_that_the_thread_reports_meanwhile_is_raised_by_the_next_call(path: Path) -> None:
    """The other thread reports it before the first instruction of the reader, the second, ..."""
    place, is_reported = 0, True
    while is_reported:
        adapter, raised = SqliteRecoveryPointAdapter(path), list[str]()
        adapter._report(StoreError("first"))
        with reporting_at(place, adapter) as reported:
            raised += raised_by(adapter)
        raised += raised_by(adapter)
        is_reported = bool(reported)
        assert raised[-1:] == (["second"] if is_reported else ["first"]), place
        place += 1
    assert place > 5


def raised_by(adapter: SqliteRecoveryPointAdapter) -> list[str]:
    try:
        adapter._raise_error()
    except StoreError as error:
        return [str(error)]
    return []


@contextmanager
def reporting_at(place: int, adapter: SqliteRecoveryPointAdapter) -> Iterator[list[str]]:
    """Have another error reported after so many instructions of `_raise_error`."""
    left, reported = place, list[str]()

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal left
        if frame.f_code.co_name != "_raise_error":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0:
                adapter._report(StoreError("second"))
                reported.append("second")
            left -= 1
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one when the tracing begins
    try:
        sys.settrace(trace)
        yield reported
    finally:
        sys.settrace(before)
