"""The fleet report reads the stores of many clients, and changes none of them."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from haclient.errors import UsageError
from haclient.pyspark.jobs.fleet import fleet, store_rows
from haclient.pyspark.rows import COLUMNS, schema_ddl
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


def test_a_fleet_has_at_least_one_store(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="at least one store"):
        fleet(spark, [])
