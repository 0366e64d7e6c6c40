"""`format("amps")` reads servers in a session of PySpark, as a program would use it."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StringType, StructField, StructType

from haclient.protocol.identity import publisher_id
from haclient.pyspark.rows import COLUMNS
from haclient.pyspark.server.settings import task_name
from haclient_fake_server.config import BrokerConfig
from support.broker_thread import BrokerThread, broker_of_three, broker_thread, publish
from support.process import LIMIT_S
from support.streams import finish, run_stream, written

ROWS = [b'{"id":%3d}' % number for number in range(100)]
DOWN = "tcp://127.0.0.1:1/amps/json"


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    """100 orders of one publisher, 50 trades of another, 20 prices of a third; no other log."""
    with broker_of_three(("orders", "^trades", "prices"), ROWS) as broker:
        yield broker


def frame(spark: SparkSession, broker: BrokerThread, **options: str) -> DataFrame:
    return spark.read.format("amps").options(**{"uri": broker.uri, **options}).load()


def bodies(rows: DataFrame) -> list[bytes]:
    return [bytes(row.data) for row in rows.select("data").collect()]


@pytest.mark.smoke
@pytest.mark.row("SB1", "SB5", "SS11")
def test_a_topic_has_all_columns_and_its_order(spark: SparkSession, broker: BrokerThread) -> None:
    rows = frame(spark, broker, topic="orders")
    assert rows.schema.names == [*COLUMNS]
    found = rows.collect()
    assert [bytes(row.data) for row in found] == ROWS
    first = found[0].asDict()
    assert first.pop("timestamp").year >= 2023
    assert first == {
        "topic": "orders",
        "bookmark": f"{publisher_id('pubber')}|1|",
        "publisher_id": publisher_id("pubber"),
        "sequence": 1,
        "position": None,
        "command": "publish",
        "sow_key": None,
        "correlation_id": "x1",
        "data": ROWS[0],
    }


@pytest.mark.row("SB2", "SB7")
def test_options_choose_topics_ranges_columns_and_partitions(
    spark: SparkSession, broker: BrokerThread
) -> None:
    middle = f"{publisher_id('pubber')}|90|"
    for options, count in (
        ({"topic": "orders,trades.eu", "minPartitions": "2"}, 150),
        ({"topicPattern": "^(trades|prices)"}, 70),
        ({"topic": "orders", "startingBookmark": middle, "filter": "/id < 95"}, 5),
        ({"topic": "orders", "endingTimestamp": "2001-01-01T00:00:00Z"}, 0),
    ):
        assert frame(spark, broker, **options).count() == count, options
    halves = frame(
        spark, broker, topic="orders", splits='["/id % 2 = 0", "/id % 2 = 1"]', columns="data,topic"
    )
    assert halves.schema.names == ["data", "topic"]
    assert halves.rdd.getNumPartitions() == 2
    assert bodies(halves) == ROWS[::2] + ROWS[1::2]


@pytest.mark.row("SB4")
def test_a_query_of_the_state_of_the_world_has_an_order_and_a_limit(
    spark: SparkSession, broker: BrokerThread
) -> None:
    query = {"topic": "prices", "command": "sow", "orderBy": "/id DESC", "topN": "3"}
    found = frame(spark, broker, **query).collect()
    assert [bytes(row.data) for row in found] == ROWS[19:16:-1]
    assert {row.command for row in found} == {"sow"}
    assert all(row.sow_key and row.timestamp for row in found)


def while_it_runs(act: Callable[[], None]) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """A function for `mapInArrow` that acts before the rows of a task are read."""

    def act_then_pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        act()
        yield from batches

    return act_then_pass_on


def note_name(folder: Path) -> Callable[[Iterator[pa.RecordBatch]], Any]:
    """A function for `mapInArrow` that keeps the name of each attempt; the first one fails."""

    def note_then_pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:  # the file shows a name that is there already
            (folder / task_name("reader")).touch(exist_ok=False)
            with suppress(FileNotFoundError):
                (folder / "fails").unlink()
                raise RuntimeError("a fault")
            yield batch

    return note_then_pass_on


@pytest.mark.row("SS10")
def test_no_two_tasks_and_no_two_attempts_have_the_same_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "fails").touch()
    rows = spark.range(0, 3, numPartitions=3)
    for started in (4, 7):  # three tasks and the attempt that fails; then three of another job
        assert rows.mapInArrow(note_name(tmp_path), rows.schema).count() == 3
        assert len(list(tmp_path.glob("reader-*"))) == started


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Generator[SimpleQueue[logging.LogRecord]]:
    """What the broker logs."""
    caplog.set_level(logging.INFO, "haclient_fake_server")
    found: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(found)
    logging.getLogger("haclient_fake_server").addHandler(handler)
    yield found
    logging.getLogger("haclient_fake_server").removeHandler(handler)


@pytest.mark.row("SS10")
@pytest.mark.parametrize("command", ["subscribe", "sow"])
def test_each_task_connects_with_a_name_of_its_own(
    spark: SparkSession,
    broker: BrokerThread,
    command: str,
    events: SimpleQueue[logging.LogRecord],
) -> None:
    splits = json.dumps([f"/id % 4 = {number}" for number in range(4)])
    read = frame(spark, broker, topic="prices", command=command, splits=splits, clientName="tasks")
    assert read.count() == 20
    names: list[str] = []
    while len(names) < 4:  # the broker tells of each connection when it has ended
        said = events.get(timeout=LIMIT_S).getMessage()
        names += re.findall(r"client '(tasks-[^']+)(?<!-plan)' .* ended", said)
    assert len(set(names)) == 4, names


@pytest.mark.row("SB3")
def test_the_end_is_fixed_when_the_query_is_planned(spark: SparkSession) -> None:
    with broker_thread() as broker:
        publish(broker.uri, "orders", ROWS)
        rows = frame(spark, broker, topic="orders", columns="data")
        uri = broker.uri

        def publish_more() -> None:
            publish(uri, "orders", ROWS, name="late")

        assert bodies(rows.mapInArrow(while_it_runs(publish_more), "data BINARY")) == ROWS
        assert frame(spark, broker, topic="orders").count() == 200


@pytest.mark.row("SB1")
@pytest.mark.usefixtures("pushing")
def test_the_condition_of_a_query_does_not_stay_with_its_dataframe(
    spark: SparkSession, broker: BrokerThread
) -> None:
    rows = frame(spark, broker, topicPattern=".*")
    assert rows.where("topic = 'orders'").count() == 100
    assert rows.count() == 170


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders", "uri": DOWN}, r"no server can be reached: .*127\.0\.0\.1:1\b"),
        ({"topic": "notes"}, "the server keeps no log of the topic 'notes': read topics that"),
        ({"topic": "orders", "command": "sow"}, "refused the query of 'orders': .*invalid topic"),
        ({"topic": "orders", "filter": "/a ===="}, "the server has refused the query .*filter"),
        ({"topic": "orders", "startingBookmark": "5|5|"}, r"5\|5\|.* is not in the log: it was"),
        ({"topic": "orders", "topik": "x"}, "unknown option topik: did you mean topic"),
        ({}, "the option topic is missing: set it, such as orders"),
        ({"topic": "orders", "columns": "price"}, "names 'price', which does not exist: known"),
    ],
)
def test_an_error_is_one_line_in_the_program(
    spark: SparkSession, broker: BrokerThread, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):  # `.` is no end of a line
        frame(spark, broker, **options).count()


@pytest.mark.row("SB6")
def test_fields_of_bodies_are_columns(spark: SparkSession, broker: BrokerThread) -> None:
    schema = StructType([StructField("id", LongType()), StructField("a`b", StringType())])
    for given in (schema, "id BIGINT, `a``b` STRING"):
        reader = spark.read.format("amps").options(uri=broker.uri, topic="orders")
        rows = reader.option("bodySchema", given).option("columns", "sequence").load()  # type: ignore[arg-type]  # PySpark makes it a text
        assert rows.schema.simpleString() == (
            "struct<sequence:bigint,id:bigint,a`b:string,_corrupt:binary>"
        )
        assert [row.id for row in rows.where("id > 97").collect()] == [98, 99]
        assert rows.where("_corrupt IS NOT NULL").count() == 0
    typed = frame(spark, broker, topicPattern=".*", bodySchema="id STRING NOT NULL")
    with pytest.raises(PySparkException, match="bodySchema: id is NOT NULL, and a body may lack"):
        typed.count()
    assert "data" not in frame(spark, broker, topic="orders", bodySchema="id INT").columns


def test_sql_reads_and_writes_views_and_tables_whose_queries_have_the_options(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path
) -> None:
    options = f"uri '{broker.uri}', topic 'orders'"
    given = f"`uri` = '{broker.uri}', `topic` = 'orders'"
    spark.sql(f"CREATE TEMPORARY VIEW orders USING amps OPTIONS ({options})")
    assert spark.table("orders").count() == 100
    with pytest.raises(PySparkException, match=r"amps: PySpark does not pass the OPTIONS of a tab"):
        spark.sql(f"CREATE TABLE kept USING amps OPTIONS ({options})")
    spark.sql("CREATE TABLE log USING amps")
    spark.sql("CREATE TABLE sink (data STRING) USING amps")
    try:
        query = f"SELECT count(*) n FROM log WITH ({given})"  # noqa: S608  # our own text
        assert spark.sql(query).collect()[0].n == 100
        reading = {"uri": broker.uri, "topic": "orders"}
        assert spark.read.options(**reading).table("log").count() == 100
        assert spark.readStream.options(**reading).table("log").isStreaming
        given = given.replace("orders", "trades.sql")
        spark.sql(f"INSERT INTO sink WITH ({given}) VALUES ('a')")  # noqa: S608  # the same
        spark.sql(f"INSERT INTO log WITH ({given}) (data) VALUES (X'62')")  # noqa: S608  # the same
        with pytest.raises(PySparkException, match=r"uri is missing: .*options of the query"):
            spark.table("log").count()
        rows = spark.sql("SELECT 'c' AS data")
        rows.writeTo("sink").options(uri=broker.uri, topic="trades.sql").append()
        assert bodies(frame(spark, broker, topic="trades.sql")) == [b"a", b"b", b"c"]
        followed = spark.readStream.options(**reading, startingOffsets="earliest").table("log")
        stream = followed.selectExpr("CAST(data AS STRING) AS data").writeStream
        stream = stream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path))
        finish(lambda: stream.options(uri=broker.uri, topic="trades.live").toTable("sink"))
        assert bodies(frame(spark, broker, topic="trades.live")) == ROWS
        without = r"uri is missing: .*options of the query only, none of CREATE TABLE: .*INSERT"
        for write in (
            "INSERT INTO sink VALUES ('a')",
            f"CREATE TABLE kept USING amps OPTIONS ({options}) AS SELECT 'a' AS data",
        ):
            with pytest.raises(PySparkException, match=without):
                spark.sql(write)
        with pytest.raises(PySparkException, match=without):
            rows.write.insertInto("sink")
    finally:
        for name in ("log", "sink"):
            spark.sql(f"DROP TABLE {name}")
        spark.sql("DROP VIEW orders")


# --- streams ------------------------------------------------------------------------------------


def sizes_of(query: StreamingQuery) -> list[int]:
    return [size for each in query.recentProgress if (size := each["numInputRows"])]


@pytest.mark.smoke
@pytest.mark.row("SS1", "SS5", "SS6", "SS8")
def test_a_stream_goes_on_where_it_ended_and_tells_its_lag(
    spark: SparkSession, tmp_path: Path
) -> None:
    publisher = publisher_id("pubber")
    config = BrokerConfig(name="east", data_dir=tmp_path / "east")
    with broker_thread(config) as broker:
        publish(broker.uri, "orders", ROWS)
        query = run_stream(spark, tmp_path, broker.uri, maxMessagesPerTrigger="40")
        assert sizes_of(query) == [40, 40, 20]
        source = query.recentProgress[0]["sources"][0]
        latest, end = source["latestOffset"], source["endOffset"]
        lag = messages_of(latest) - messages_of(end)
        assert lag == 60
        broker.stop()
        broker.start()
        publish(broker.uri, "orders", ROWS[:30], first=101)
        again = run_stream(spark, tmp_path, broker.uri, maxBytesPerTrigger="150")
        assert sizes_of(again) == [15, 15]
    assert written(spark, tmp_path) == [(publisher, number) for number in range(1, 131)]


def messages_of(offset: object) -> int:
    """How many messages a stream has read at an offset, as its progress has it."""
    found: Any = json.loads(offset) if isinstance(offset, str) else offset
    return int(found["messages"])


@pytest.mark.row("SS1", "SS4", "SS10")
def test_a_stream_in_vector_mode_goes_on_at_another_instance(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two instances have the same messages in another order; the second one has more."""
    with (
        broker_thread(BrokerConfig(name="east")) as east,
        broker_thread(BrokerConfig(name="west")) as west,
    ):
        for broker, names in ((east, ("A", "B")), (west, ("B", "A"))):
            for name in names:
                publish(broker.uri, "orders", ROWS, name=name)
        both = f"{east.uri},{west.uri}"
        assert sum(sizes_of(run_stream(spark, tmp_path, both, maxMessagesPerTrigger="150"))) == 200
        publish(west.uri, "orders", ROWS[:10], name="A", first=101)
        publish(west.uri, "orders", ROWS[:10], name="C")
        east.stop()
        assert sizes_of(run_stream(spark, tmp_path, both)) == [20]
    wanted = [("A", 110), ("B", 100), ("C", 10)]
    assert written(spark, tmp_path) == sorted(
        (publisher_id(name), number) for name, last in wanted for number in range(1, last + 1)
    )


@pytest.mark.row("SS9")
def test_a_stream_never_goes_on_in_another_log(spark: SparkSession, tmp_path: Path) -> None:
    with broker_thread(BrokerConfig(name="east")) as broker:  # in memory: each start is another log
        publish(broker.uri, "orders", ROWS)
        run_stream(spark, tmp_path, broker.uri)
        broker.stop()
        broker.start()
        publish(broker.uri, "orders", ROWS + ROWS)
        with pytest.raises(PySparkException, match="it is another one, or its end was lost"):
            run_stream(spark, tmp_path, broker.uri)
        with pytest.raises(PySparkException, match="endingBookmark has to be left out"):
            run_stream(spark, tmp_path / "other", broker.uri, endingBookmark="NOW")
