"""`exactly-once-staged`: rows that differ each time they are computed, and crashes at each step."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from haclient.errors import UsageError
from haclient.pyspark.sink.settings import SinkSettings
from haclient.pyspark.sink.staged import (
    OWNER_FILE,
    SUCCESS_FILE,
    FrozenBatch,
    FrozenLane,
    Staging,
    freeze_lane,
    publish_frozen,
)
from haclient.pyspark.sink.writers import check_checkpoint
from haclient_fake_server.testing.faults import Cut
from haclient_fake_server.testing.processes import BrokerProcess
from support.proxy_thread import ProxyThread
from support.sink_world import LANES, ROWS, SinkWorld

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

NOBODY = "tcp://127.0.0.1:1/amps/json"


class StagedWorld:
    """The stream of `SinkWorld` with a random id in each row: no two attempts have the same rows.

    Even the lane of a row is random.

    Args:
        world: The stream, its checkpoint and its broker.
        folder: For the marker file.
    """

    def __init__(self, world: SinkWorld, folder: Path) -> None:
        self.world = world
        self.staging = world.checkpoint / "haclient-staging"
        self.fails = folder / "fails"

    def frame(self, partitions: int) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

        rows = self.world.frame(partitions).withColumn("key", F.expr("uuid()"))
        data = F.concat(F.col("data"), F.lit(" "), F.expr("uuid()"))
        return rows.withColumn("data", failing(str(self.fails), data))

    def start(
        self, *, uri: str = "", partitions: int = 2, lanes: int = LANES, **options: str
    ) -> StreamingQuery:
        given = {"guarantee": "exactly-once-staged", "lanes": lanes, "order_by": ["n", "key"]}
        frame = self.frame(partitions)
        return self.world.writer(uri=uri, frame=frame, options={**given, **options}).start()

    def run(
        self, *, uri: str = "", partitions: int = 2, lanes: int = LANES, **options: str
    ) -> None:
        """Run until every file was published; raises what ends the query."""
        self.start(uri=uri, partitions=partitions, lanes=lanes, **options).awaitTermination()

    def frozen(self, batch: int) -> list[bytes]:
        """The rows of a staged batch."""
        folder = self.staging / f"{batch}"
        lanes = json.loads((folder / SUCCESS_FILE).read_text())["lanes"]
        files = [pq.read_table(folder / lane["name"]) for lane in lanes]
        return [str(row).encode() for file in files for row in file["data"].to_pylist()]

    def check_once(self, batches: int) -> None:
        """Every row of the first batches is in the log once, whatever its random part."""
        log = [json.loads(row.data.split()[0])["n"] for row in self.world.log]
        assert Counter(log) == Counter(range(batches * ROWS))
        self.world.check_order()


def failing(marker: str, data: Column) -> Column:
    """The data, until the last row: there the query fails while a file exists."""
    from pyspark.sql.functions import udf  # noqa: PLC0415  # needs the extra

    def checked(text: str, number: int) -> str:
        if number == ROWS - 1 and Path(marker).exists():
            raise RuntimeError("the power is gone")
        return text

    return udf(checked, "string", useArrow=False)(data, "n")


@pytest.fixture
def staged(world: SinkWorld, tmp_path: Path) -> StagedWorld:
    return StagedWorld(world, tmp_path)


@pytest.mark.row("SK4")
def test_a_crash_while_staging_or_before_publishing_publishes_one_evaluation_of_each_row(
    staged: StagedWorld,
) -> None:
    staged.world.add_batch(0)
    staged.fails.touch()
    with pytest.raises(Exception, match="the power is gone"):
        staged.run()
    assert not list(staged.staging.glob(f"*/{SUCCESS_FILE}"))
    staged.fails.unlink()
    with pytest.raises(Exception, match="no server takes spark-"):
        staged.run(uri=NOBODY, partitions=3, lanes=1)
    frozen = staged.frozen(0)
    assert staged.world.log == []
    staged.run(partitions=4, lanes=LANES + 1)
    assert Counter(row.data for row in staged.world.log) == Counter(frozen)
    staged.check_once(1)


@pytest.mark.row("SK4")
def test_a_crash_half_way_or_before_the_commit_publishes_no_row_twice(
    staged: StagedWorld, broker: BrokerProcess
) -> None:
    world = staged.world
    world.add_batch(0)
    with ProxyThread(broker.address) as proxy:
        for _ in range(50):  # each connection is lost after some rows
            proxy.apply(Cut(direction="up", at_byte=4_000))
        with pytest.raises(Exception, match="connection"):
            staged.run(uri=proxy.uri, lanes=1)
    assert 0 < len(world.log) < ROWS
    frozen = staged.frozen(0)
    staged.run(partitions=5)
    assert Counter(row.data for row in world.log) == Counter(frozen)
    world.forget(0, "commits")
    world.add_batch(1)
    staged.run(partitions=1, lanes=LANES + 1)
    staged.check_once(2)
    assert [each.name for each in staged.staging.iterdir() if each.is_dir()] == ["1"]


@pytest.mark.row("SK4", "SK6")
def test_staged_batches_of_another_query_are_refused(staged: StagedWorld, tmp_path: Path) -> None:
    staged.world.add_batch(0)
    location = str(tmp_path / "elsewhere")
    staged.run(staging_location=location)
    staged.check_once(1)
    shutil.rmtree(staged.world.checkpoint)
    with pytest.raises(Exception, match=r"elsewhere belongs to query .*, and the checkpoint to"):
        staged.run(staging_location=location)
    staged.check_once(1)


# -- without a session ------------------------------------------------------------------------

SCHEMA = StructType([StructField("data", BinaryType()), StructField("_lane", IntegerType())])
STAGED = {"guarantee": "exactly-once-staged", "uri": NOBODY, "topic": "t", "lanes": "2"}


def settings(folder: Path, **options: str) -> SinkSettings:
    given = {**STAGED, "checkpointLocation": str(folder), "flushTimeoutMs": "100000", **options}
    return SinkSettings(given, SCHEMA)


def rows(count: int, lane: int = 0) -> pa.RecordBatch:
    bodies = [b"%d" % number for number in range(count)]
    found: pa.RecordBatch = pa.record_batch(
        {"data": bodies, "_lane": pa.array([lane] * count, pa.int32())}
    )
    return found


def frozen_batch(tmp_path: Path, options: SinkSettings, count: int) -> tuple[FrozenBatch, str]:
    """Freeze a batch of one lane, and the directory where it is."""
    directory = str(tmp_path / "0")
    (report,) = freeze_lane(iter([rows(count)]), settings=options, directory=directory)
    lane = FrozenLane(**report.to_pylist()[0])
    return FrozenBatch(0, "p", "t", (lane,)), directory


def test_a_staging_location_belongs_to_one_query(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "s"))
    for _ in range(2):
        staging.claim("one")
    with pytest.raises(UsageError, match="belongs to query one, and the checkpoint to query two"):
        staging.claim("two")
    (tmp_path / "s" / OWNER_FILE).write_text("{}")
    with pytest.raises(UsageError, match=f"{OWNER_FILE} is damaged"):
        staging.claim("one")


def test_committed_batches_are_removed_and_a_later_one_says_that_the_checkpoint_is_older(
    tmp_path: Path,
) -> None:
    staging = Staging(f"file://{tmp_path}/s")
    staging.start_batch(0)  # nothing is there yet
    for batch in (3, 4):
        staging.clear(batch)
        staging.seal(FrozenBatch(batch, "p", "t", ()))
    staging.start_batch(4)
    assert staging.read(3) is None
    assert staging.read(4) == FrozenBatch(4, "p", "t", ())
    with pytest.raises(UsageError, match="has batch 4, and the query is at batch 3"):
        staging.start_batch(3)


def test_what_an_attempt_has_left_is_no_batch(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path))
    staging.clear(0)
    (tmp_path / "0" / "lane-0-x.parquet").touch()
    assert staging.read(0) is None
    staging.clear(0)
    assert list((tmp_path / "0").iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1, "lanes": [{"lane": 1}]}', "[]"])
def test_a_damaged_batch_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / SUCCESS_FILE).write_text(content)
    with pytest.raises(UsageError, match=f"{SUCCESS_FILE} is damaged"):
        Staging(str(tmp_path)).read(0)


def test_a_batch_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / SUCCESS_FILE).write_text('{"version": 2}')
    with pytest.raises(UsageError, match="has version 2, and this reads version 1"):
        Staging(str(tmp_path)).read(0)


def test_two_attempts_of_a_task_write_two_files(tmp_path: Path) -> None:
    first, directory = frozen_batch(tmp_path, settings(tmp_path), 3)
    second, _ = frozen_batch(tmp_path, settings(tmp_path), 2)
    assert first.lanes[0].name != second.lanes[0].name
    assert pq.read_table(f"{directory}/{first.lanes[0].name}").column_names == ["data"]
    assert list(freeze_lane(iter(()), settings=settings(tmp_path), directory=directory)) == []


def test_a_row_that_cannot_be_published_is_not_frozen(tmp_path: Path) -> None:
    null = pa.record_batch({"data": pa.array([None], pa.binary()), "_lane": pa.array([0], "int32")})
    with pytest.raises(UsageError, match="the column data is null in 1 rows"):
        next(freeze_lane(iter([null]), settings=settings(tmp_path), directory=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_that_a_worker_does_not_reach_is_named(tmp_path: Path) -> None:
    frozen, directory = frozen_batch(tmp_path, settings(tmp_path), 3)
    (tmp_path / "0" / frozen.lanes[0].name).unlink()
    ids = iter([pa.record_batch({"id": [0]})])
    with pytest.raises(UsageError, match="on a file system that all workers reach"):
        next(
            publish_frozen(
                ids, settings=settings(tmp_path), query="q", frozen=frozen, directory=directory
            )
        )


@pytest.mark.row("SK6")
def test_a_location_with_files_of_somebody_else_is_refused_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    file = tmp_path / "0" / "results.csv"
    file.parent.mkdir()
    file.write_text("x")
    with pytest.raises(UsageError, match=r"is not empty and belongs to no query \(found 0\)"):
        Staging(str(tmp_path)).claim("q")
    assert [each.name for each in tmp_path.iterdir()] == ["0"]


def test_a_location_that_another_attempt_takes_right_now_can_be_taken(tmp_path: Path) -> None:
    (tmp_path / f"{OWNER_FILE}.0123").write_text("")  # it is being written, or a crash left it
    for _ in range(2):
        Staging(str(tmp_path)).claim("q")


@pytest.mark.row("SK6")
@pytest.mark.parametrize("then", ["exactly-once", "exactly-once-staged"])
def test_a_checkpoint_keeps_its_guarantee(tmp_path: Path, then: str) -> None:
    schema = StructType([StructField("data", BinaryType()), StructField("_lane", IntegerType())])
    (tmp_path / "metadata").write_text('{"id":"q"}')
    given = {"uri": NOBODY, "topic": "t", "lanes": "1", "checkpointLocation": str(tmp_path)}
    for guarantee in (then, *({"exactly-once", "exactly-once-staged"} - {then})):
        settings = SinkSettings({**given, "guarantee": guarantee}, schema)
        if guarantee == then:
            check_checkpoint(settings)
            check_checkpoint(settings)
        else:
            wanted = f"guarantee is {guarantee} and was {then} when this checkpoint began"
            with pytest.raises(UsageError, match=wanted):
                check_checkpoint(settings)
