from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from haclient_stores.adapters import processed_messages
from haclient_stores.adapters.processed_messages import ProcessedMessages
from haclient_stores.errors import StoreError, UsageError
from support.postgres import postgres_server

pytestmark = pytest.mark.row("QC15")

LIMIT_S = 300.0  # for a thread that has failed


@dataclass(frozen=True)
class Queued:
    topic: str
    bookmark: str


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = connect(tmp_path)
    made.execute("create table results (bookmark text)")
    yield made
    made.close()


def connect(folder: Path) -> sqlite3.Connection:
    made = sqlite3.connect(folder / "results.db")
    made.execute("pragma synchronous = off")
    return made


def work(connection: sqlite3.Connection, ledger: ProcessedMessages, message: Queued) -> None:
    """The documented handler."""
    with connection:
        if ledger.is_new(message):
            connection.execute("insert into results values (?)", [message.bookmark])
            ledger.record(message)


def results(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("select bookmark from results order by rowid")]


def test_a_message_that_comes_again_has_its_effect_once(connection: sqlite3.Connection) -> None:
    largest = f"{2**64 - 1}|{2**64 - 1}|"
    for ledger in (ProcessedMessages(connection), ProcessedMessages(connection)):
        for bookmark in ("7|1|", "7|2|", largest):
            work(connection, ledger, Queued("jobs", bookmark))
    assert results(connection) == ["7|1|", "7|2|", largest]


def test_two_queues_over_one_topic_are_processed_each(connection: sqlite3.Connection) -> None:
    ledger = ProcessedMessages(connection)
    for queue in ("jobs", "audit"):
        work(connection, ledger, Queued(queue, "7|1|"))
    assert results(connection) == ["7|1|", "7|1|"]


def test_a_rollback_takes_the_record_along(connection: sqlite3.Connection) -> None:
    ledger, message = ProcessedMessages(connection), Queued("jobs", "7|1|")

    def fail() -> None:
        with connection:
            ledger.record(message)
            assert not ledger.is_new(message)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert ledger.is_new(message)


def test_the_second_of_two_consumers_at_work_is_stopped(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    ledger, message = ProcessedMessages(connection), Queued("jobs", "7|1|")
    other = connect(tmp_path)
    theirs = ProcessedMessages(other)
    assert ledger.is_new(message)
    assert theirs.is_new(message)
    work(connection, ledger, message)

    def finish() -> None:
        with other:
            other.execute("insert into results values ('twice')")
            theirs.record(message)

    with pytest.raises(StoreError, match="processed already"):
        finish()
    assert results(other) == ["7|1|"]
    other.close()


def test_rows_are_deleted_when_their_time_is_over(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processed_messages, "PRUNE_EVERY", 10)
    now_us = 10**15
    ledger = ProcessedMessages(connection, keep_s=60.0, clock_us=lambda: now_us)
    most = 0
    for sequence in range(1, 201):
        now_us += 1_000_000
        work(connection, ledger, Queued("jobs", f"7|{sequence}|"))
        (count,) = connection.execute("select count(*) from haclient_processed").fetchone()
        most = max(most, count)
    assert 60 <= most <= 70
    assert not ledger.is_new(Queued("jobs", "7|141|"))
    with connection:
        now_us += 3_600_000_000
        assert ledger.prune() > 0
    assert ledger.is_new(Queued("jobs", "7|200|"))


def test_another_connection_may_be_the_one_of_the_transaction(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    ledger, message = ProcessedMessages(connection), Queued("jobs", "7|1|")
    other = connect(tmp_path)
    with other:
        assert ledger.is_new(message, other)
        ledger.record(message, other)
    assert not ledger.is_new(message)
    other.close()


def test_a_table_of_ones_own_is_not_touched(connection: sqlite3.Connection) -> None:
    ProcessedMessages(connection, create_table=False)
    with pytest.raises(sqlite3.OperationalError):
        connection.execute("select * from haclient_processed")
    ProcessedMessages(connection)
    ProcessedMessages(connection)


def test_a_refused_table_leaves_no_transaction_open(connection: sqlite3.Connection) -> None:
    connection.execute("create view haclient_processed as select 1")
    with pytest.raises(sqlite3.Error):
        ProcessedMessages(connection)
    assert not connection.in_transaction


@pytest.mark.parametrize("bookmark", ["", "nonsense", "7|1|,7|2|", "0|1|"])
def test_only_a_message_of_a_queue_can_be_recorded(
    connection: sqlite3.Connection, bookmark: str
) -> None:
    ledger = ProcessedMessages(connection)
    if bookmark == "0|1|":  # a message like any other
        assert ledger.is_new(Queued("jobs", bookmark))
        return
    for method in (ledger.is_new, ledger.record):
        with pytest.raises(UsageError, match="only a message of a queue"):
            method(Queued("jobs", bookmark))


def test_what_can_never_work_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(UsageError, match="keep_s"):
        ProcessedMessages(connection, keep_s=0)


@pytest.mark.row("RP9")
def test_two_consumers_at_the_same_time_in_postgresql() -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: it is in [test]")
    with postgres_server() as address, psycopg.connect(address) as first:
        ledger = ProcessedMessages(first, placeholder="%s")
        first.execute("create table results (bookmark text)")
        first.commit()
        message, outcomes = Queued("jobs", "7|1|"), list[str]()
        begun = threading.Event()

        def second() -> None:
            with psycopg.connect(address) as other:
                theirs = ProcessedMessages(other, placeholder="%s", create_table=False)
                try:
                    with other.transaction():
                        assert theirs.is_new(message), "the first is not committed"
                        other.execute("insert into results values ('twice')")
                        begun.set()
                        theirs.record(message)  # waits for the first
                except StoreError as error:
                    outcomes.append(str(error))

        with first.transaction():
            assert ledger.is_new(message)
            first.execute("insert into results values ('once')")
            ledger.record(message)
            thread = threading.Thread(target=second)
            thread.start()
            assert begun.wait(LIMIT_S)
        thread.join(LIMIT_S)
        assert len(outcomes) == 1
        assert first.execute("select bookmark from results").fetchall() == [("once",)]
