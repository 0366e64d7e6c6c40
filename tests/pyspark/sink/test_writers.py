"""The sink with a real session and a real broker: every count is taken from the broker's log."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import trio

from haclient.client import Client
from haclient.protocol.commands import Command
from haclient_fake_server.testing.faults import Cut
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.proxy_thread import ProxyThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.timeout(600)  # a session takes a minute to start on a busy machine

TOPIC = "orders"
LANES = 3
ROWS = 3000  # in a file, and so in a batch
LIMIT_S = 100.0


@pytest.fixture
def broker() -> Generator[BrokerProcess]:
    with BrokerProcess() as process:
        yield process


class Logged(NamedTuple):
    """A message in the broker's log."""

    publisher: str
    sequence: int
    data: bytes


def log_of(uri: str, topic: str = TOPIC) -> list[Logged]:
    """Every message of a topic, in the order of the broker's log."""

    async def read() -> list[Logged]:
        found: list[Logged] = []
        async with Client("reader") as client:
            await client.connect(uri)
            await client.logon()
            command = Command("subscribe", topic=topic, bookmark=EPOCH, ack_type="completed")
            async for message in await client.execute(command):
                if message.kind == "ack":
                    return found
                publisher, sequence = message.bookmark.split("|")[:2]
                found.append(Logged(publisher, int(sequence), message.data))
        return found

    return trio.run(read)


def body(number: int) -> bytes:
    return b'{"key":"k%d","n":%d}' % (number % 17, number)


def bodies(batches: int) -> list[bytes]:
    return [body(number) for number in range(batches * ROWS)]


def check_once(uri: str, batches: int) -> None:
    """Every row of the first batches is in the log exactly once; sequences rise per publisher."""
    log = log_of(uri)
    assert Counter(each.data for each in log) == Counter(bodies(batches))
    for publisher in {each.publisher for each in log}:
        sequences = [each.sequence for each in log if each.publisher == publisher]
        assert sequences == sorted(set(sequences))


class World:
    """A stream from files to the broker; each file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.files = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.files.mkdir()

    def add_batch(self, number: int, *, changed: bool = False) -> None:
        """Add a file with `ROWS` rows, the older ones first."""
        first = number * ROWS
        rows = [f"{body(each).decode()}" for each in range(first, first + ROWS)]
        if changed:
            rows = [each.replace('"n"', '"m"') for each in rows]
        file = self.files / f"{number:04d}.json"
        file.write_text("\n".join(rows) + "\n")

    def frame(self, partitions: int) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

        lines = (
            self.spark.readStream.format("text")
            .option("maxFilesPerTrigger", "1")
            .load(str(self.files))
        )
        return lines.repartition(partitions).select(
            F.col("value").alias("data"),
            F.get_json_object("value", "$.key").alias("key"),
            F.get_json_object("value", "$.n").cast("long").alias("n"),
        )

    def writer(
        self, uri: str, *, partitions: int = 2, options: Mapping[str, object] | None = None
    ) -> DataStreamWriter:
        from haclient.pyspark import publish_stream  # noqa: PLC0415  # needs the extra

        given: dict[str, object] = {"lanes": LANES, "order_by": "n", "key": "key", "topic": TOPIC}
        given |= {"flushTimeoutMs": 100_000, **(options or {})}
        return publish_stream(self.frame(partitions), uri=uri, **given)  # type: ignore[arg-type]  # one dictionary

    def run(self, uri: str, *, partitions: int = 2) -> None:
        """Run until every file was published; raises what ends the query."""
        self.start(uri, partitions=partitions).awaitTermination()

    def start(
        self, uri: str, *, partitions: int = 2, options: Mapping[str, object] | None = None
    ) -> StreamingQuery:
        writer = self.writer(uri, partitions=partitions, options=options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True).start()

    def forget_commit(self, batch: int) -> None:
        """As after a crash between the last task of a batch and its commit."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    yield World(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.row("SK1", "SK2", "SK4")
def test_a_stream_is_once_in_the_log_and_in_order(world: World, broker: BrokerProcess) -> None:
    for number in range(3):
        world.add_batch(number)
    world.run(broker.uri)
    check_once(broker.uri, 3)
    log = log_of(broker.uri)
    assert len({each.publisher for each in log}) == LANES
    for key in range(17):  # a key is in one lane, whose rows are ordered
        numbers = [json.loads(each.data)["n"] for each in log if b'"k%d"' % key in each.data]
        assert numbers == sorted(numbers)


@pytest.mark.row("SK4")
def test_a_batch_that_is_repeated_after_a_crash_is_not_published_again(
    world: World, broker: BrokerProcess
) -> None:
    for number in range(2):
        world.add_batch(number)
    world.run(broker.uri)
    world.forget_commit(1)
    world.add_batch(2)
    world.run(broker.uri, partitions=5)
    check_once(broker.uri, 3)


@pytest.mark.row("SK4")
def test_tasks_that_fail_half_way_continue_where_they_got_to(
    world: World, broker: BrokerProcess
) -> None:
    for number in range(2):
        world.add_batch(number)
    with ProxyThread(broker.address) as proxy:
        for place in (20_000, 45_000, 60_000):
            proxy.apply(Cut(direction="up", at_byte=place))
        world.run(proxy.uri)
        assert proxy.waiting == 0, "every cut has hit a task"
    check_once(broker.uri, 2)


@pytest.mark.row("SK5")
def test_a_rolled_back_checkpoint_is_fenced(world: World, broker: BrokerProcess) -> None:
    world.add_batch(0)
    world.run(broker.uri)
    shutil.copytree(world.checkpoint, old := world.checkpoint.with_name("old"))
    for number in (1, 2):
        world.add_batch(number)
    world.run(broker.uri)
    shutil.rmtree(world.checkpoint)
    old.rename(world.checkpoint)
    with pytest.raises(Exception, match="has published batch 2 already, and is to publish batch 1"):
        world.run(broker.uri)
    check_once(broker.uri, 3)


@pytest.mark.row("SK4")
def test_changed_content_of_a_batch_is_refused(world: World, broker: BrokerProcess) -> None:
    world.add_batch(0)
    world.run(broker.uri)
    world.forget_commit(0)
    world.add_batch(0, changed=True)
    with pytest.raises(Exception, match="batch 0 was published in part and has other rows now"):
        world.run(broker.uri)
    check_once(broker.uri, 1)


@pytest.mark.row("SK4")
def test_a_deleted_checkpoint_publishes_again_and_loses_nothing(
    world: World, broker: BrokerProcess
) -> None:
    world.add_batch(0)
    world.run(broker.uri)
    shutil.rmtree(world.checkpoint)
    world.run(broker.uri)
    assert Counter(each.data for each in log_of(broker.uri)) == Counter(bodies(1) * 2)


@pytest.mark.row("SK6")
def test_the_number_of_lanes_of_a_checkpoint_cannot_change(
    world: World, broker: BrokerProcess
) -> None:
    world.add_batch(0)
    world.run(broker.uri)
    world.add_batch(1)
    with pytest.raises(Exception, match="lanes is 4 and was 3 when this checkpoint began"):
        world.start(broker.uri, options={"lanes": LANES + 1}).awaitTermination()
    check_once(broker.uri, 1)


@pytest.mark.row("SK5")
def test_a_task_whose_name_is_taken_fails_and_its_next_attempt_publishes(
    world: World, broker: BrokerProcess
) -> None:
    world.add_batch(0)
    world.run(broker.uri)
    query_id = json.loads((world.checkpoint / "metadata").read_text())["id"]
    world.add_batch(1)

    async def take_the_name() -> None:
        lost = trio.Event()
        name = f"spark-{query_id}-0"
        async with Client(name, on_disconnect=lambda _: lost.set()) as client:
            await client.connect(broker.uri)
            await client.logon()
            with trio.fail_after(LIMIT_S):
                await lost.wait()  # until a task takes the name back

    query = world.start(broker.uri)
    trio.run(take_the_name)
    query.awaitTermination()
    check_once(broker.uri, 2)


# -- batches -----------------------------------------------------------------------------


def frame(spark: SparkSession, count: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    return spark.range(count).select(
        F.col("id"), F.concat(F.lit("row "), F.col("id")).cast("binary").alias("data")
    )


@pytest.mark.row("SK1", "SK4")
def test_a_job_that_is_run_again_under_its_id_publishes_what_is_missing(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    from haclient.pyspark import publish_frame  # noqa: PLC0415  # needs the extra

    def save(rows: DataFrame, job_id: str) -> None:
        options = {"key": "id", "lanes": LANES, "order_by": "id", "topic": TOPIC}
        publish_frame(rows, uri=broker.uri, job_id=job_id, **options).save()  # type: ignore[arg-type]  # one dictionary

    rows = frame(spark, 1000)
    save(rows, "nightly")
    save(rows.repartition(7), "nightly")
    assert sorted(each.data for each in log_of(broker.uri)) == sorted(
        b"row %d" % number for number in range(1000)
    )
    save(rows, "")
    save(rows, "")
    assert len(log_of(broker.uri)) == 3000
    with pytest.raises(Exception, match="was published in part and has other rows now"):
        save(frame(spark, 900), "nightly")


@pytest.mark.row("SK1", "SK3")
def test_without_lanes_a_batch_is_at_least_once_with_topics_of_its_rows(
    spark: SparkSession, broker: BrokerProcess
) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    rows = frame(spark, 1000).withColumn("topic", F.concat(F.lit("t"), F.col("id") % 3))
    for _ in range(2):
        rows.write.format("amps").option("uri", broker.uri).mode("append").save()
    assert [len(log_of(broker.uri, f"t{number}")) for number in range(3)] == [668, 666, 666]
