from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from haclient_stores.errors import StoreLocked, UsageError
from haclient_stores.transactional import TransactionalRecoveryPoint

pytestmark = pytest.mark.row("BS24")


@dataclass(frozen=True)
class Delivered:
    sub_id: str
    bookmark: str


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    made = sqlite3.connect(tmp_path / "results.db")
    made.execute("pragma synchronous = off")  # what a kill leaves is the same
    made.execute("create table results (bookmark text)")
    yield made
    made.close()


def opened(connection: sqlite3.Connection) -> TransactionalRecoveryPoint:
    """The store of the next process."""
    store = TransactionalRecoveryPoint(connection)
    store.open_for("me")
    return store


def results(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("select bookmark from results order by rowid")]


def write(connection: sqlite3.Connection, store: TransactionalRecoveryPoint, bookmark: str) -> None:
    """The user's transaction."""
    with connection:
        connection.execute("insert into results values (?)", [bookmark])
        store.save(Delivered("s", bookmark))


def test_a_kill_between_commit_and_discard_repeats_nothing(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    numbers = list(store.subscription("s").log_batch(["7|1|", "7|2|", "7|3|"]))
    write(connection, store, "7|2|")
    store = opened(connection)
    assert store.is_discarded("s", "7|2|")
    assert not store.is_discarded("s", "7|1|")
    again = store.subscription("s").log_batch(["7|1|", "7|2|", "7|3|"])
    assert [bool(number) for number in again] == [True, False, True]
    store.discard("s", again[0])
    assert str(store.most_recent("s")) == "7|2|"
    assert numbers == [1, 2, 3]


def test_a_transaction_that_is_rolled_back_takes_the_recovery_point_along(
    connection: sqlite3.Connection,
) -> None:
    store = opened(connection)
    store.log("s", "7|1|")

    def fails() -> None:
        with connection:
            connection.execute("insert into results values ('7|1|')")
            store.save(Delivered("s", "7|1|"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    store = opened(connection)
    assert store.log("s", "7|1|") > 0
    assert results(connection) == []


@pytest.mark.parametrize("seed", range(5))
def test_each_message_has_its_effect_once_whenever_the_process_is_killed(
    connection: sqlite3.Connection, seed: int
) -> None:
    rng = random.Random(seed)
    messages = [f"{1 + n % 3}|{n}|" for n in range(1, 301)]
    for _ in range(400):
        store = opened(connection)
        handle = store.subscription("s")
        wanted = {str(item) for item in store.most_recent("s")}
        start = min((messages.index(item) + 1 for item in wanted), default=0)
        batch = messages[start : start + rng.randint(1, 150)]
        numbers = handle.log_batch(batch)
        hands = [(n, m) for n, m in zip(numbers, batch, strict=True) if n]
        rng.shuffle(hands)
        for number, message in hands[: rng.randint(1, 20)]:
            write(connection, store, message)
            if rng.random() < 0.95:
                store.discard("s", number)
            else:
                break  # killed between the two
        if len(results(connection)) == len(messages):
            break
    assert sorted(results(connection)) == sorted(messages)


def test_rows_that_the_recovery_point_has_passed_are_deleted(
    connection: sqlite3.Connection,
) -> None:
    store = opened(connection)
    for sequence in range(1, 1001):
        number = store.log("s", f"7|{sequence}|")
        write(connection, store, f"7|{sequence}|")
        store.discard("s", number)
    (count,) = connection.execute("select count(*) from haclient_done").fetchone()
    assert count <= 64
    with connection:
        store.trim("s")
        store.trim("unknown")
    (count,) = connection.execute("select count(*) from haclient_done").fetchone()
    assert count == 0
    assert str(opened(connection).most_recent("s")) == "7|1000|"


def test_the_largest_numbers_are_kept_exactly(connection: sqlite3.Connection) -> None:
    largest = f"{2**64 - 1}|{2**64 - 1}|"
    store = opened(connection)
    store.log("s", largest)
    write(connection, store, largest)
    assert opened(connection).is_discarded("s", largest)


def test_another_connection_may_have_the_transaction(
    connection: sqlite3.Connection, tmp_path: Path
) -> None:
    store = opened(connection)
    store.log("s", "7|1|")
    other = sqlite3.connect(tmp_path / "results.db")
    with other:
        store.save(Delivered("s", "7|1|"), other)
    other.close()
    assert opened(connection).is_discarded("s", "7|1|")


def test_purge_forgets_in_the_database_too(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    store.log("s", "7|1|")
    write(connection, store, "7|1|")
    store = opened(connection)
    store.purge("s")
    assert not store.is_discarded("s", "7|1|")
    assert not opened(connection).is_discarded("s", "7|1|")
    store.purge()


def test_what_cannot_be_saved_is_refused(connection: sqlite3.Connection) -> None:
    store = TransactionalRecoveryPoint(connection, create_tables=False)
    with pytest.raises(UsageError, match=r"cannot save '7\|1\|'"):
        store.save(Delivered("s", "7|1|"))
    connection.execute("drop table if exists haclient_done")
    store = opened(connection)
    with pytest.raises(UsageError, match="cannot save ''"):
        store.save(Delivered("s", ""))
    with pytest.raises(StoreLocked):
        store.open_for("you")
    store.open_for("me")


class Paramstyle:
    """A connection whose driver marks parameters in another way, as psycopg does."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def cursor(self) -> Paramstyle:
        return self

    def execute(self, operation: str, parameters: object = (), /) -> None:
        assert isinstance(parameters, tuple)
        self.heard.append(operation)

    def fetchall(self) -> list[tuple[str, ...]]:
        return []

    def commit(self) -> None:
        self.heard.append("commit")

    def close(self) -> None:
        return


def test_the_mark_of_a_parameter_is_the_drivers_own() -> None:
    connection = Paramstyle()
    store = TransactionalRecoveryPoint(connection, placeholder="%s")
    store.open_for("me")
    store.save(Delivered("s", "7|1|"))
    assert "values (%s, %s, %s, %s)" in connection.heard[-1]
    assert not any("?" in statement for statement in connection.heard)
