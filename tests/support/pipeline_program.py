"""A program as a user of Apache Spark writes it: it reads, publishes and audits.

Where it runs is chosen outside of it, by `spark-submit` or by SPARK_REMOTE. It imports nothing of
the tests. The arguments are the broker's URI, the directory of its journal, one for files of its
own, and the topic to which it copies the topic `orders`. Its output is one line, `Found` as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.functions import lit, udf

import haclient
from haclient.pyspark import audit, publish_stream, read_journal, register

STARTS = 5
TOO_LATE = "Python worker failed to connect back"
"""As in `support.streams`: a busy machine needs several starts of a query."""


class Found(NamedTuple):
    """What the program has found.

    Attributes:
        session: The module of the session's class.
        driver: The file from which it has haclient.
        worker: The same on a worker.
        journal: How many rows a batch of `amps-journal` has.
        read_journal: How many `read_journal` has.
        server: How many a batch of `amps` has.
        refused: The error of a query with an option that does not exist.
        batches: The batches that were committed, by its first run and by the one that repeats the
            last batch.
        judgement: The audit's verdict.
    """

    session: str
    driver: str
    worker: str
    journal: int
    read_journal: int
    server: int
    refused: str
    batches: list[list[int]]
    judgement: str


def copy_orders(rows: DataFrame, uri: str, topic: str, checkpoint: Path) -> list[int]:
    """Publish a stream until the present end of the log; the batches that are committed then."""
    writer = publish_stream(
        rows.select("data", "sequence"),
        uri=uri,
        topic=topic,
        key="sequence",
        order_by="sequence",
        lanes=2,
        flushTimeoutMs=100_000,  # for a machine that is busy
    )
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for left in reversed(range(STARTS)):
        query = writer.start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            if TOO_LATE not in str(error) or not left:
                raise
        else:
            break
    batches = (path.name for path in (checkpoint / "commits").iterdir())
    return sorted(int(name) for name in batches if name.isdecimal())


def where_from(_: object) -> str:
    """The file from which the process has haclient."""
    from haclient import pyspark  # noqa: PLC0415 - the function is sent by value

    return str(pyspark.__file__)


def refusal(reader: DataFrameReader) -> str:
    """The error of a query."""
    try:
        reader.load().count()
    except PySparkException as error:
        return str(error)
    return ""


def main() -> None:
    """Do everything once."""
    uri, journal, folder, topic = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    server = spark.read.format("amps").option("uri", uri)
    files = spark.read.format("amps-journal").option("topic", "orders")
    stream = (
        spark.readStream.format("amps")
        .options(uri=uri, topic="orders", startingOffsets="earliest", maxMessagesPerTrigger=250)
        .load()
    )
    checkpoint = Path(folder) / "checkpoint"
    batches = [copy_orders(stream, uri, topic, checkpoint)]
    # As if the last batch had been published, and the driver killed before it was committed.
    for name in ("{}", ".{}.crc"):
        (checkpoint / "commits" / name.format(batches[0][-1])).unlink()
    batches.append(copy_orders(stream, uri, topic, checkpoint))
    found = Found(
        session=type(spark).__module__,
        driver=haclient.__file__,
        worker=spark.range(1).select(udf(where_from)(lit(0))).collect()[0][0],
        journal=files.load(journal).count(),
        read_journal=read_journal(spark, journal, topic="orders", columns=["position"]).count(),
        server=server.option("topic", "orders").option("columns", "position").load().count(),
        refused=refusal(server.option("topik", "x")),
        batches=batches,
        judgement=audit(journal).judgement,
    )
    sys.stdout.write(json.dumps(found._asdict()) + "\n")
    spark.stop()


if __name__ == "__main__":
    main()
