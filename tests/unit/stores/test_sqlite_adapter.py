from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from haclient_stores.adapters import RecoveryPoint
from haclient_stores.errors import StoreError, UsageError
from haclient_stores.sqlite_adapter import SqliteRecoveryPointAdapter

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
    adapter = SqliteRecoveryPointAdapter(path, table="my points")
    assert list(await adapter.recover("me")) == []
    for sequence in range(1, 101):
        adapter.update(RecoveryPoint("s", f"1|{sequence}|"))
    await adapter.close()
    database = sqlite3.connect(path)
    rows = database.execute('select * from "my points"').fetchall()
    assert rows == [("me", "s", "1|100|")]
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
    with pytest.raises(StoreError, match="vacuum"):
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
    assert failed.wait(20)
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
