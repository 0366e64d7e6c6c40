"""`publish_frame`, a writer without lanes, and wrong arguments: real session, real broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from haclient.errors import UsageError
from haclient_fake_server.testing.processes import BrokerProcess
from support.journals import model_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

LANES = 2


def frame(spark: SparkSession, count: int) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    return spark.range(count).select(
        F.col("id"), F.concat(F.lit("row "), F.col("id")).cast("binary").alias("data")
    )


def data_of(journal: Path, topic: str) -> list[bytes]:
    return [row.data for row in model_rows(journal) if row.topic == topic]


@pytest.mark.row("SK1", "SK4")
def test_a_job_that_is_run_again_under_its_id_publishes_what_is_missing(
    spark: SparkSession, broker: BrokerProcess, journal: Path
) -> None:
    from haclient.pyspark import publish_frame  # noqa: PLC0415  # needs the extra

    def save(rows: DataFrame, job_id: str) -> None:
        options = {"key": "id", "lanes": LANES, "order_by": "id", "topic": "jobs"}
        publish_frame(rows, uri=broker.uri, job_id=job_id, **options).save()  # type: ignore[arg-type]  # one dictionary

    rows = frame(spark, 200)
    save(rows, "nightly")
    save(rows.repartition(7), "nightly")
    assert sorted(data_of(journal, "jobs")) == sorted(b"row %d" % each for each in range(200))
    save(rows, "")
    save(rows, "")
    assert len(data_of(journal, "jobs")) == 600
    with pytest.raises(Exception, match="was published in part and has other rows now"):
        save(frame(spark, 100), "nightly")


@pytest.mark.row("SK4")
def test_a_job_that_is_run_again_with_another_number_of_lanes_is_refused(
    spark: SparkSession, broker: BrokerProcess, journal: Path
) -> None:
    from haclient.pyspark import publish_frame  # noqa: PLC0415  # needs the extra

    def save(lanes: int) -> None:
        publish_frame(
            frame(spark, 3),
            uri=broker.uri,
            job_id="of lanes",
            topic="of lanes",
            key="id",
            lanes=lanes,
            order_by="id",
        ).save()

    save(4)
    for other in (1, 8):
        with pytest.raises(Exception, match=f"was published with 4 lanes, and is to have {other}"):
            save(other)
    save(4)
    assert sorted(data_of(journal, "of lanes")) == [b"row 0", b"row 1", b"row 2"]


@pytest.mark.row("SK1", "SK3")
def test_without_lanes_a_batch_is_at_least_once_with_topics_of_its_rows(
    spark: SparkSession, broker: BrokerProcess, journal: Path
) -> None:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    rows = frame(spark, 100).withColumn("topic", F.concat(F.lit("t"), F.col("id") % 3))
    for _ in range(2):
        rows.write.format("amps").option("uri", broker.uri).mode("append").save()
    assert [len(data_of(journal, f"t{number}")) for number in range(3)] == [68, 66, 66]


@pytest.mark.row("SK4")
def test_a_task_whose_rows_stop_in_the_middle_publishes_none_of_them(
    spark: SparkSession, broker: BrokerProcess, journal: Path, tmp_path: Path
) -> None:
    """Spark then closes what it sends to the task, which looks to Arrow like the end of all rows.

    So it is when an executor is lost from which a lane reads: here the lane's own plan fails, once.
    Published, the rows that came would have the places of others, which the server would drop.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    failed = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 3 and not failed.exists():
                failed.touch()
                raise OSError("a part of the rows is lost")
            yield batch

    options = {"guarantee": "exactly-once", "lanes": "1", "laneKey": "id", "orderColumns": "id"}
    per_batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(per_batch, 10)
    try:  # the rows that come first go last; ten of them are more than Spark keeps before it sends
        text = F.format_string("%03d", "id")
        data = F.concat(text, F.repeat(F.lit("x"), 20_000)).cast("binary").alias("data")
        lane = F.lit(0).alias("_lane")
        made = spark.range(200).coalesce(1).select((199 - F.col("id")).alias("id"))
        rows = made.select("id", data, lane).mapInArrow(
            fail_once, "id long, data binary, _lane int"
        )
        writer = rows.write.format("amps").mode("append").options(uri=broker.uri, **options)
        writer.options(topic="lost", jobId="once").save()
    finally:
        spark.conf.unset(per_batch)
    assert failed.exists()
    assert [row[:3] for row in data_of(journal, "lost")] == [b"%03d" % row for row in range(200)]


# -- what is wrong is said in one line ---------------------------------------------------------


def test_wrong_arguments_of_publish_are_said_before_anything_starts(spark: SparkSession) -> None:
    from haclient.pyspark import publish_frame, publish_stream  # noqa: PLC0415  # needs the extra

    rows, stream = frame(spark, 1), spark.readStream.format("rate").load()
    maps = spark.sql("SELECT 1 id, map('a', 1) m")
    given = {"uri": "tcp://h:1/amps/json", "topic": "t", "key": "id", "order_by": "id", "lanes": 2}
    for publish, df, changed, message in (
        (publish_stream, rows, {}, "publish_stream takes a streaming DataFrame"),
        (publish_frame, stream, {}, "publish_frame takes a DataFrame that is no stream"),
        (publish_frame, rows, {"key": "x"}, "there is no column x"),
        (publish_frame, rows, {"lanes": 0}, "a number of lanes, found .* lanes=0"),
        (publish_frame, maps, {"key": "m"}, "column m is a map<string,int>, which has no hash"),
        (
            publish_frame,
            maps,
            {"order_by": "m"},
            "column m is a map<string,int>, which has no order",
        ),
        (publish_frame, maps, {}, r'publish_frame\(..., format="json"\), .*, found id, m$'),
        (publish_frame, maps, {"format": "json"}, "cannot encode the column m of type map<"),
        (publish_frame, rows, {"onFailedWrite": "table", "failedWritesPath": "p"}, "needs guara"),
    ):
        with pytest.raises(UsageError, match=message):
            publish(df, **{**given, **changed})  # type: ignore[arg-type]  # one dictionary


def test_a_stream_that_cannot_be_published_is_refused_when_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    from haclient.pyspark import publish_stream  # noqa: PLC0415  # needs the extra

    rows = spark.readStream.format("rate").load().selectExpr("value id", "string(value) data")
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(tmp_path))
    try:
        for guarantee in ("exactly-once", "exactly-once-staged"):
            writer = publish_stream(
                rows,
                uri="tcp://h:1/amps/json",
                topic="t",
                key="id",
                order_by="id",
                lanes=2,
                guarantee=guarantee,
            )
            with pytest.raises(UsageError, match=f"={guarantee} needs the checkpoint .*; the sett"):
                writer.start()
    finally:
        spark.conf.unset(setting)
    writer = publish_stream(
        rows, uri="tcp://h:1/amps/json", topic="t", key="id", order_by="id", lanes=2
    )
    writer = writer.option("checkpointLocation", str(tmp_path)).outputMode("update")
    with pytest.raises(UsageError, match="no sink in Python: use the output mode complete, or"):
        writer.start()


@pytest.mark.row("SK7")
def test_columns_become_bodies_and_keys(
    spark: SparkSession, broker: BrokerProcess, journal: Path
) -> None:
    from haclient.pyspark import publish_frame  # noqa: PLC0415  # needs the extra

    rows = spark.sql("SELECT id, string(id) key, double(id) / 2 px FROM range(4)")
    given: dict[str, Any] = {"uri": broker.uri, "key": "id", "order_by": "id", "lanes": 2}
    publish_frame(rows, topic="columns", format="json", **given).save()
    found = {row.sow_key: row.data for row in model_rows(journal) if row.topic == "columns"}
    assert found == {str(each): b'{"id":%d,"px":%.1f}' % (each, each / 2) for each in range(4)}
    values = rows.selectExpr("id", "concat('row ', id) value")
    with pytest.raises(Exception, match="format=json comes too late as an option: publish_frame"):
        publish_frame(values, topic="values", **given).option("format", "json").save()
    publish_frame(values, topic="values", **given).save()
    assert sorted(data_of(journal, "values")) == [b"row %d" % each for each in range(4)]


def test_the_drivers_exception_says_which_option_is_wrong(spark: SparkSession) -> None:
    writer = frame(spark, 1).write.format("amps").option("topic", "t").mode("append")
    with pytest.raises(Exception, match="amps: the option uri is missing: set it, such as tcp:"):
        writer.save()
