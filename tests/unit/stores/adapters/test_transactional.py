from __future__ import annotations

import queue
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from haclient.session.resume import resume_bookmarks
from haclient.testing import check_bookmark_store
from haclient_stores.adapters import transactional
from haclient_stores.adapters.transactional import TransactionalRecoveryPoint
from haclient_stores.errors import StoreLocked, UsageError
from support.postgres import postgres_server

if TYPE_CHECKING:
    import psycopg

    Database: TypeAlias = psycopg.Connection[Any]

pytestmark = pytest.mark.row("BS24")

LIMIT_S = 300.0  # for a thread that has failed


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


# -- PostgreSQL --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as address:
        yield address


@pytest.fixture
def postgres(server: str) -> Iterator[Callable[[], Database]]:
    """Makes connections to a database in which nothing is."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: it is in [test]")
    made: list[Database] = []

    def connect() -> Database:
        connection: Database = psycopg.connect(server)
        made.append(connection)
        return connection

    first = connect()
    first.execute("drop schema public cascade")
    first.execute("create schema public")
    first.execute("create table results (bookmark text)")
    first.commit()
    yield connect
    for each in made:
        each.close()


def opened_in_postgres(connection: Database) -> TransactionalRecoveryPoint:
    store = TransactionalRecoveryPoint(connection, placeholder="%s")
    store.open_for("me")
    return store


def is_idle(connection: Database) -> bool:
    return connection.info.transaction_status.name == "IDLE"


@pytest.mark.row("RP9")
@pytest.mark.parametrize("rows_as_dicts", [False, True])
def test_a_driver_with_other_marks_and_strict_transactions(
    postgres: Callable[[], Database], *, rows_as_dicts: bool
) -> None:
    """The documented program, twice, and one message that fails in between."""
    psycopg = pytest.importorskip("psycopg")
    connection = postgres()
    if rows_as_dicts:
        connection.row_factory = psycopg.rows.dict_row
    for first in (1, 101):
        store = opened_in_postgres(connection)
        assert is_idle(connection)
        handle = store.subscription("s")
        handle.begin(acked=False, start=None)
        handle.entered("east:9007")
        assert handle.resume() == ("0" if first == 1 else "7|100|")
        for sequence in range(first, first + 100):
            number = store.log("s", f"7|{sequence}|")
            with suppress(psycopg.errors.UndefinedTable), connection.transaction():
                store.save(Delivered("s", f"7|{sequence}|"))
                connection.execute("insert into nothing values (1)")
            with connection.transaction():
                store.save(Delivered("s", f"7|{sequence}|"))
            store.discard("s", number)
        with connection.transaction():
            store.trim("s")
        assert is_idle(connection)
    store = opened_in_postgres(connection)
    store.purge()
    assert connection.execute("select * from haclient_recovery_points").fetchall() == []
    assert connection.execute("select * from haclient_done").fetchall() == []


@pytest.mark.row("RP9")
def test_a_failed_read_leaves_a_connection_that_can_be_used(
    postgres: Callable[[], Database],
) -> None:
    psycopg = pytest.importorskip("psycopg")
    connection = postgres()
    store = TransactionalRecoveryPoint(connection, placeholder="%s", create_tables=False)
    with pytest.raises(psycopg.errors.UndefinedTable):
        store.open_for("me")
    assert is_idle(connection)
    with pytest.raises(psycopg.ProgrammingError, match="forbidden"), connection.transaction():
        TransactionalRecoveryPoint(connection, placeholder="%s")
    opened_in_postgres(connection)


@pytest.mark.row("RP9")
@pytest.mark.parametrize("seed", range(3))
def test_each_message_has_its_effect_once_in_postgres_whenever_the_process_is_killed(
    postgres: Callable[[], Database], seed: int
) -> None:
    rng = random.Random(seed)
    largest = 2**64 - 1
    rows: list[tuple[str]] = []
    messages = [f"{largest - n % 3}|{largest - 200 + n}|" for n in range(1, 101)]
    for _ in range(200):
        connection = postgres()
        store = opened_in_postgres(connection)
        wanted = {str(item) for item in store.most_recent("s")}
        start = min((messages.index(item) + 1 for item in wanted), default=0)
        batch = messages[start : start + rng.randint(1, 100)]
        numbers = store.subscription("s").log_batch(batch)
        held = [(n, m) for n, m in zip(numbers, batch, strict=True) if n]
        rng.shuffle(held)
        for number, message in held[: rng.randint(1, 15)]:
            with connection.transaction(force_rollback=rng.random() < 0.1) as transaction:
                connection.execute("insert into results values (%s)", [message])
                store.save(Delivered("s", message))
            if transaction.force_rollback:
                continue
            if rng.random() < 0.1:
                break  # killed between commit and discard
            store.discard("s", number)
        if rng.random() < 0.5:  # killed within a transaction
            connection.execute("insert into results values ('lost')")
        connection.close()
        with postgres() as check:
            rows = check.execute("select bookmark from results").fetchall()
        assert len(rows) == len(set(rows)), "it has its effect twice"
        if len(rows) == len(messages):
            break
    assert sorted(row[0] for row in rows) == sorted(messages)


@pytest.mark.row("RP9")
def test_tables_of_an_earlier_shape_get_their_columns_in_postgres(
    postgres: Callable[[], Database],
) -> None:
    connection = postgres()
    connection.execute(
        "create table haclient_recovery_points (client_name text not null, sub_id text not null, "
        "bookmark text not null, primary key (client_name, sub_id))"
    )
    connection.execute("insert into haclient_recovery_points values ('me', 's', '7|5|')")
    connection.commit()
    store = opened_in_postgres(connection)
    assert str(store.most_recent("s")) == "7|5|"
    with connection.transaction():
        store.save(Delivered("s", "7|6|"))
    assert opened_in_postgres(postgres()).is_discarded("s", "7|6|")


def test_save_in_another_thread_while_the_client_goes_on(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "results.db", check_same_thread=False)
    connection.execute("pragma synchronous = off")
    store = opened(connection)
    ready: queue.Queue[list[tuple[int, str]] | None] = queue.Queue()
    done: queue.Queue[list[tuple[int, str]] | None] = queue.Queue()

    def work() -> None:
        while (batch := ready.get(timeout=LIMIT_S)) is not None:
            with connection:
                for _, bookmark in batch:
                    store.save(Delivered("s", bookmark))
            done.put(batch)
        done.put(None)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    for begin in range(1, 5001, 50):
        bookmarks = [f"{1 + n % 3}|{n}|" for n in range(begin, begin + 50)]
        numbers = store.subscription("s").log_batch(bookmarks)
        ready.put(list(zip(numbers, bookmarks, strict=True)))
        while not done.empty():
            for number, _ in done.get(timeout=LIMIT_S) or ():
                store.discard("s", number)
    ready.put(None)
    while (batch := done.get(timeout=LIMIT_S)) is not None:
        for number, _ in batch:
            store.discard("s", number)
    thread.join()
    with connection:
        store.trim("s")
    assert count(connection) == 0
    assert str(opened(connection).most_recent("s")) == "2|4999|,3|5000|,1|4998|"
    connection.close()
    connection.close()


# -- where it begins, and in whose order -------------------------------------------------------


def count(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("select count(*) from haclient_done").fetchone()
    return int(found)


def saved(connection: sqlite3.Connection, store: TransactionalRecoveryPoint, *marks: str) -> None:
    for bookmark in marks:
        number = store.log("s", bookmark)
        assert number > 0
        write(connection, store, bookmark)
        store.discard("s", number)


def asked(store: TransactionalRecoveryPoint, server: str) -> tuple[str, ...]:
    return resume_bookmarks(store.subscription("s"), server, last="", overlap_us=5_000_000)


@pytest.mark.row("BS23", "BS9", "HA17")
def test_the_next_process_knows_whose_order_it_is(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    log.entered("east:9007")
    log.completed("")
    saved(connection, store, "7|1|")
    log.caught_up(20_000_000)
    with connection:
        store.trim("s")
    again = opened(connection)
    assert asked(again, "east:9007") == ("7|1|",)
    assert asked(again, "west:9007") == ("7|1|,19700101T000015Z", "7|1|")
    again.subscription("s").entered("west:9007")
    saved(connection, again, "7|2|")
    with connection:
        again.trim("s")
    assert asked(opened(connection), "west:9007") == ("7|2|",)


@pytest.mark.row("BS23", "SM4")
def test_the_first_save_says_where_it_began(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0|1|", entered_us=5_000_000)
    assert asked(opened(connection), "east:9007") == ("0",), "nothing was saved"
    store.log("s", "7|8|")
    saved(connection, store, "7|9|")
    again = opened(connection)
    for server in ("east:9007", "west:9007"):
        assert asked(again, server) == ("19700101T000005Z",)
    assert again.is_discarded("s", "7|9|")
    assert not again.is_discarded("s", "7|8|")


@pytest.mark.parametrize("start", ["20240131T120000Z", "7|3|,8|1|", "[7|3|:7|99|]"])
def test_any_start_is_kept(connection: sqlite3.Connection, start: str) -> None:
    store = opened(connection)
    store.subscription("s").begin(acked=False, start=start)
    store.log("s", "7|4|")
    saved(connection, store, "7|5|")
    assert asked(opened(connection), "west:9007") == (start,)


def test_an_explicit_start_forgets_what_was_saved(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    marks = [f"7|{n}|" for n in range(1, 101)]
    saved(connection, store, *marks)
    store.log("s", "7|101|")
    write(connection, store, "7|101|")
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    assert not store.is_discarded("s", "7|101|")
    assert opened(connection).is_discarded("s", "7|101|"), "nothing was saved since"
    held = store.log("s", "7|1|")
    write(connection, store, "7|1|")
    again = opened(connection)
    assert [again.is_discarded("s", mark) for mark in ("7|1|", "7|2|", "7|101|")] == [
        True,
        False,
        False,
    ]
    store.discard("s", held)
    saved(connection, store, *marks[1:])
    assert count(connection) <= 64
    assert opened(connection).is_discarded("s", "7|100|")


def test_what_was_forgotten_comes_back_with_the_transaction(
    connection: sqlite3.Connection,
) -> None:
    """It is forgotten again in each, until one is known to be committed."""
    store = opened(connection)
    saved(connection, store, "7|1|", "7|2|", "7|3|")
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    first, second = store.log("s", "7|1|"), store.log("s", "7|2|")

    def fails() -> None:
        with connection:
            store.save(Delivered("s", "7|1|"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert opened(connection).is_discarded("s", "7|3|")
    write(connection, store, "7|2|")
    store.discard("s", second)
    again = opened(connection)
    assert [again.is_discarded("s", f"7|{n}|") for n in (1, 2, 3)] == [False, True, False]
    write(connection, store, "7|1|")
    store.discard("s", first)
    saved(connection, store, "7|3|")
    again = opened(connection)
    assert [again.is_discarded("s", f"7|{n}|") for n in (1, 2, 3, 4)] == [True] * 3 + [False]


def rolled_back(
    connection: sqlite3.Connection, store: TransactionalRecoveryPoint, bookmark: str
) -> None:
    with suppress(RuntimeError), connection:
        store.save(Delivered("s", bookmark))
        raise RuntimeError


@pytest.mark.parametrize("given_up", [1, 2, 5])
def test_a_message_that_is_given_up_takes_nothing_else_along(
    connection: sqlite3.Connection, given_up: int
) -> None:
    """Its transaction is rolled back, and it is discarded: that says nothing of what was saved."""
    store = opened(connection)
    saved(connection, store, "7|1|", "7|2|")
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    for sequence in range(1, given_up + 1):
        number = store.log("s", f"7|{sequence}|")
        rolled_back(connection, store, f"7|{sequence}|")
        store.discard("s", number)
    store.log("s", "7|8|")
    write(connection, store, "7|8|")
    again = opened(connection)
    assert [again.is_discarded("s", f"7|{n}|") for n in (2, 8)] == [False, True]


def test_a_transaction_that_is_still_open_does_not_count_as_known(
    connection: sqlite3.Connection,
) -> None:
    """It sees what it has written itself, and may be rolled back after that."""
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    first = store.log("s", "7|1|")
    store.subscription("s").log_batch(["7|2|", "7|3|", "7|4|"])
    rolled_back(connection, store, "7|1|")
    with suppress(RuntimeError), connection:
        store.save(Delivered("s", "7|2|"))
        store.discard("s", first)
        store.save(Delivered("s", "7|3|"))
        raise RuntimeError
    write(connection, store, "7|4|")
    assert opened(connection).is_discarded("s", "7|4|")


def test_once_it_is_known_a_save_is_one_statement(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    saved(connection, store, "7|1|", "7|2|")
    number = store.log("s", "7|3|")
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    write(connection, store, "7|3|")
    connection.set_trace_callback(None)
    store.discard("s", number)
    assert len([each for each in statements if "haclient_" in each]) == 1


def test_the_recovery_point_never_goes_back(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was found out before a `trim` is not saved after it: the rows are deleted."""
    monkeypatch.setattr(transactional, "_TRIM_EVERY", 2)
    store = opened(connection)
    numbers = [store.log("s", mark) for mark in ("7|1|", "7|2|")]
    for mark in ("7|1|", "7|2|"):
        write(connection, store, mark)
    for number in numbers:
        store.discard("s", number)
    with connection:
        store.trim("s")
    store.log("s", "7|3|")
    write(connection, store, "7|3|")
    assert str(opened(connection).most_recent("s")) == "7|2|"


def test_telling_of_a_start_keeps_the_point_that_was_saved_since(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional, "_TRIM_EVERY", 1)
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    first, *_ = store.subscription("s").log_batch(["7|1|", "7|2|", "7|3|", "7|4|"])
    write(connection, store, "7|2|")
    write(connection, store, "7|1|")
    store.discard("s", first)
    write(connection, store, "7|3|")
    write(connection, store, "7|4|")
    again = opened(connection)
    assert [again.is_discarded("s", f"7|{n}|") for n in (1, 2, 3, 4)] == [True] * 4


def test_a_point_of_a_new_start_leaves_no_earlier_rows(connection: sqlite3.Connection) -> None:
    """Else what is saved again would stand there already, and not count."""
    store = opened(connection)
    store.log("s", "7|1|")
    saved(connection, store, "7|2|")
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    first = store.log("s", "7|1|")
    rolled_back(connection, store, "7|1|")
    store.discard("s", first)
    with connection:
        store.trim("s")
    assert count(connection) == 0
    saved(connection, store, "7|2|")
    assert opened(connection).is_discarded("s", "7|2|")


def test_purge_after_an_explicit_start(connection: sqlite3.Connection) -> None:
    store = opened(connection)
    store.subscription("s").begin(acked=False, start="0")
    saved(connection, store, "7|1|")
    store.purge("s")
    saved(connection, store, "7|1|")
    assert opened(connection).is_discarded("s", "7|1|")


def test_tables_of_an_earlier_shape_get_the_columns(connection: sqlite3.Connection) -> None:
    for statement in (
        (
            "create table haclient_recovery_points (client_name text not null, "
            "sub_id text not null, bookmark text not null, primary key (client_name, sub_id))"
        ),
        (
            "create table haclient_done (client_name text not null, sub_id text not null, "
            "publisher text not null, sequence text not null, "
            "primary key (client_name, sub_id, publisher, sequence))"
        ),
        "insert into haclient_recovery_points values ('me', 's', '7|1|')",
    ):
        connection.execute(statement)
    row = "me", "s", f"{7:020d}", f"{3:020d}"
    connection.execute("insert into haclient_done values (?, ?, ?, ?)", row)
    connection.commit()
    store = opened(connection)
    assert [store.is_discarded("s", f"7|{n}|") for n in (1, 2, 3)] == [True, False, True]
    assert asked(store, "east:9007") == ("0",), "in whose order the point is nobody knows"
    saved(connection, store, "7|2|")


@pytest.mark.row("BS23")
def test_a_bookmark_store_whose_whole_state_is_one_sqlite_file(tmp_path: Path) -> None:
    """Discards in any order, the start, the server and the time: with no other file beside it."""
    path = tmp_path / "bookmarks.db"
    rng = random.Random(1)
    finished: set[str] = set()
    marks = [f"{1 + n % 2}|{n}|" for n in range(1, 41)]
    for turn in range(20):
        connection = sqlite3.connect(path)
        connection.execute("pragma synchronous = off")
        store = opened(connection)
        log = store.subscription("s")
        if turn == 0:
            log.begin(acked=False, start="0|1|", entered_us=5_000_000)
        for mark in marks:
            assert store.is_discarded("s", mark) == (mark in finished)
        arrived = dict(zip(marks, log.log_batch(marks), strict=True))
        for mark in rng.sample(marks, 3):
            if arrived[mark]:
                with connection:
                    store.save(Delivered("s", mark))
                log.discard(arrived[mark])
                finished.add(mark)
        connection.close()
    assert {each.name for each in tmp_path.iterdir()} == {path.name}  # a test may look at files


@pytest.mark.row("BS22", "BS23")
def test_it_is_a_bookmark_store_like_any_other() -> None:
    with ExitStack() as stack:

        def make() -> TransactionalRecoveryPoint:
            made = stack.enter_context(closing(sqlite3.connect(":memory:")))
            return TransactionalRecoveryPoint(made)

        check_bookmark_store(make)


def test_what_an_ack_covered_on_an_earlier_link_has_its_effect_once(
    connection: sqlite3.Connection,
) -> None:
    store = opened(connection)
    log = store.subscription("s")
    log.begin(acked=True, start=None)
    numbers = list(log.log_batch(["1|1|", "1|2|", "2|1|", "3|1|"]))
    for number, bookmark in zip(numbers[:3], ("1|1|", "1|2|", "2|1|"), strict=True):
        write(connection, store, bookmark)
        log.discard(number)
    log.persisted("1|1|")
    log.persisted("2|1|")  # what came before it on this link is covered, too
    with connection:
        store.trim("s")
    log.link_lost(5)
    log.begin(acked=True, start=None)
    with connection:
        store.trim("s")
    assert str(store.most_recent("s")) == "1|2|,2|1|"
    store = opened(connection)
    assert all(store.is_discarded("s", bookmark) for bookmark in ("1|1|", "1|2|", "2|1|"))
    assert [bool(n) for n in store.subscription("s").log_batch(["1|2|", "2|1|", "3|1|"])] == [
        False,
        False,
        True,
    ]
