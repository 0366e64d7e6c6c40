from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.adapters.recovery_tables import FIRST_GENERATION, RecoveryTables

LARGEST = 2**64 - 1


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection


@pytest.fixture
def tables(connection: sqlite3.Connection) -> RecoveryTables:
    tables = RecoveryTables(connection, "?")
    tables.create()
    tables.client_name = "me"
    return tables


def test_points_and_done_messages_read_back_for_their_client_only(tables: RecoveryTables) -> None:
    point = RecoveryPoint("s", f"{LARGEST}|{LARGEST}|", "tcp://a:1", 7, 3)
    tables.save_point(point, start="7|1|", entered_us=5, connection=None)
    tables.save_done("s", LARGEST, LARGEST, 3, connection=None)
    tables.save_done("s", LARGEST, LARGEST, 3, connection=None)
    assert tables.read_points() == [(point, "7|1|", 5)]
    assert tables.read_done() == [("s", LARGEST, LARGEST, 3)]
    assert tables.read_generation("s") == 3
    tables.client_name = "you"
    assert (tables.read_points(), tables.read_done()) == ([], [])
    assert tables.read_generation("s") == FIRST_GENERATION


def test_a_point_takes_along_the_messages_that_it_has_passed(tables: RecoveryTables) -> None:
    for sequence in (8, 9, 10, 11):
        tables.save_done("s", 7, sequence, 1, connection=None)
    tables.save_done("s", 6, 1, 1, connection=None)
    tables.trim_done(RecoveryPoint("s", "7|10|"), None)
    assert tables.read_done() == [("s", 6, 1, 1), ("s", 7, 11, 1)]


def test_earlier_generations_and_whole_subscriptions_can_be_forgotten(
    tables: RecoveryTables,
) -> None:
    for generation, sequence in ((1, 5), (2, 6)):
        tables.save_done("s", 7, sequence, generation, connection=None)
    tables.save_done("t", 7, 5, 1, connection=None)
    tables.forget_earlier("s", 2, None)
    assert tables.read_done() == [("s", 7, 6, 2), ("t", 7, 5, 1)]
    tables.save_point(RecoveryPoint("s", "7|5|"), start="", entered_us=0, connection=None)
    tables.forget("s")
    assert (tables.read_points(), tables.read_done()) == ([], [("t", 7, 5, 1)])


def test_a_transaction_that_raises_is_rolled_back(
    connection: sqlite3.Connection, tables: RecoveryTables
) -> None:
    def fail() -> None:
        with tables.transaction():
            tables.save_done("s", 7, 5, 1, connection=None)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert tables.read_done() == []
    with tables.transaction():
        tables.save_done("s", 7, 5, 1, connection=None)
    connection.rollback()
    assert tables.read_done() == [("s", 7, 5, 1)]


def test_tables_of_an_earlier_shape_get_their_columns(connection: sqlite3.Connection) -> None:
    connection.execute(
        "create table haclient_done (client_name text not null, sub_id text not null, "
        "publisher text not null, sequence text not null, "
        "primary key (client_name, sub_id, publisher, sequence))"
    )
    connection.execute("insert into haclient_done values ('me', 's', '7', '5')")
    tables = RecoveryTables(connection, "?")
    tables.create()
    tables.client_name = "me"
    assert tables.read_done() == [("s", 7, 5, FIRST_GENERATION)]
