"""The fleet report reads the stores of many clients, and changes none of them."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs.fleet import fleet, store_rows
from haclient.pyspark.rows import COLUMNS, schema_ddl, signed
from haclient.stores import FilePublishStore, LoggedBookmarkStore, RingBookmarkStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGE = 2**64 - 7
"""A publisher id that is negative as a BIGINT."""


@pytest.fixture
def stores(tmp_path: Path) -> dict[str, Path]:
    """A bookmark log with 1, 2 and 4 of six discarded; a ring; a publish store; a broken file."""
    paths = {name: tmp_path / name for name in ("logged", "ring", "publish", "broken")}
    with closing(LoggedBookmarkStore(paths["logged"])) as store:
        store.open_for("me")
        store.subscription("s1").log_batch([f"{LARGE}|{n}|" for n in range(1, 7)])
        for number in (1, 2, 4):
            store.discard("s1", number)
        store.discard("s2", store.log("s2", "8|1|"))
    with closing(RingBookmarkStore(paths["ring"])) as store:
        store.open_for("ringer")
        store.log("s1", "8|5|")
    with closing(FilePublishStore(paths["publish"])) as publishing:
        publishing.open_for("sender")
        publishing.store(b'{"c":"p","t":"x","s":', b"}", b"1")
    paths["broken"].write_bytes(b"nothing of the kind")
    return paths


def rows_of(frame: DataFrame) -> dict[tuple[str, str | None], dict[str, Any]]:
    rows = [row.asDict() for row in frame.collect()]
    return {(Path(row["path"]).name, row["sub_id"]): row for row in rows}


def test_each_subscription_and_store_is_a_row(spark: SparkSession, stores: dict[str, Path]) -> None:
    before = {path: path.read_bytes() for path in stores.values() if path.is_file()}
    found = rows_of(fleet(spark, stores.values()))
    assert sorted(found, key=str) == [
        ("broken", None), ("logged", "s1"), ("logged", "s2"), ("publish", None), ("ring", "s1")
    ]  # fmt: skip
    first = found["logged", "s1"]
    assert (first["kind"], first["client"], first["undiscarded"]) == ("logged bookmark", "me", 3)
    assert first["recovery_point"] == f"{LARGE}|2|"
    assert (first["publisher_id"], first["sequence"]) == (-7, 3)
    assert found["logged", "s2"]["sequence"] is None
    assert found["ring", "s1"]["kind"] == "ring bookmark"
    assert (found["publish", None]["kind"], found["publish", None]["undiscarded"]) == ("publish", 1)
    assert "neither a bookmark store" in found["broken", None]["error"]
    assert {path: path.read_bytes() for path in before} == before


def test_stores_in_use_are_read_too(stores: dict[str, Path]) -> None:
    with closing(LoggedBookmarkStore(stores["logged"])):
        rows = list(store_rows(stores["logged"]))
    assert [row["sub_id"] for row in rows] == ["s1", "s2"]


@pytest.mark.row("AU6")
def test_a_journal_says_how_far_each_subscription_is_behind(
    spark: SparkSession, stores: dict[str, Path], tmp_path: Path
) -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    logged = [
        ("t", "", -7, n, n + 100, at.replace(minute=n), "publish", None, None, b"")
        for n in range(3, 9)
    ]
    journal = spark.createDataFrame(logged, schema_ddl(COLUMNS))
    with closing(LoggedBookmarkStore(tmp_path / "late")) as store:
        store.log("s1", "8|5|")
    found = rows_of(fleet(spark, [stores["logged"], tmp_path / "late"], journal=journal))
    first = found["logged", "s1"]
    assert (first["backlog"], first["is_removed"]) == (6, False)
    assert first["oldest_at"].astimezone(UTC) == at.replace(minute=3)
    # The journal begins later: what this subscription still needs is not there any more.
    assert found["late", "s1"]["is_removed"]
    assert not found["logged", "s2"]["is_removed"]
    assert "does not have the oldest undiscarded" in found["late", "s1"]["problem"]
    assert found["logged", "s1"]["problem"] is None


@pytest.mark.row("AU5")
def test_a_restart_that_would_lose_or_drop_messages_is_told_beforehand(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Each store has had sequences 1 to 5, of which 3 are persisted; the journals differ."""
    ends = {"fits": 4, "lost": 2, "reused": 7}
    first: dict[str, int] = {}
    for name in ends:
        with closing(FilePublishStore(tmp_path / name)) as store:
            store.open_for(name)
            sequences = [store.store(b'{"c":"p","t":"x","s":', b"}", b"1") for _ in range(5)]
            store.discard_up_to(sequences[2])
            first[name] = sequences[0]
    at = datetime(2026, 1, 31, tzinfo=UTC)
    logged = [
        ("t", "", signed(publisher_id(name)), first[name] + n, at, "publish", None, None, b"")
        for name, end in ends.items()
        for n in range(end)
    ]
    rows = [(*row[:4], position, *row[4:]) for position, row in enumerate(logged, 1)]
    journal = spark.createDataFrame(rows, schema_ddl(COLUMNS))
    found = rows_of(fleet(spark, [tmp_path / name for name in ends], journal=journal))
    problems = {name: row["problem"] for (name, _), row in found.items()}
    low = first["lost"] - 1
    assert problems["fits"] is None
    assert problems["lost"] == (
        f"the store has forgotten messages up to sequence {low + 3}, the journal ends at {low + 2}"
    )
    low = first["reused"] - 1
    assert problems["reused"] == (
        f"the store goes on after sequence {low + 5}, the journal has messages up to {low + 7}: "
        "new ones are dropped as duplicates"
    )
    # Without its oldest segments the journal may have had what it lacks now.
    rest = journal.where("position > 6")
    found = rows_of(fleet(spark, [tmp_path / "fits", tmp_path / "lost"], journal=rest))
    assert [row["problem"] for row in found.values()] == [None, None]


def test_a_fleet_has_at_least_one_store(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="at least one store"):
        fleet(spark, [])
