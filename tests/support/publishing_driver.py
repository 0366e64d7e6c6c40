"""A driver in a process of its own, which publishes the lines of files as a stream.

The argument is `Job` as JSON. A file is a batch. Faults happen where the test has left a marker
file, which whoever takes it removes, so that each happens once. Every line of the output is a word
and what belongs to it: `reads` n partitions; `failed` and why a query has ended; `done`.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from haclient.pyspark import publish_stream, register
from haclient.pyspark.amps import AmpsDataSource
from support.process import QUICK_JVM
from support.streams import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ = "task-fails-while-reading"
PUBLISHED = "task-fails-after-publishing"
COMMIT = "crash-in-commit-of-{topic}-{batch}"
GATE = "gate-before-commit-of-{topic}-{batch}"
"""A file: the commit waits while the test holds its lock."""

MARKERS = "markers"
"""The directory of the marker files, beside the checkpoints: a sink is told of these."""

PATIENCE_MS = 100_000
"""How long the broker may take for a step, on a machine that is busy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream from files to a topic.

    Attributes:
        files: A directory of text files; each is a batch.
        checkpoint: A directory.
        topic: Where the lines go.
        reads: For each start of the query, the number of read partitions.
        is_exactly_once: Whether it has lanes; else it is at-least-once.
    """

    files: str
    checkpoint: str
    topic: str
    reads: tuple[int, ...]
    is_exactly_once: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a driver does.

    Attributes:
        master: The cluster.
        uri: The broker.
        markers: The directory of the marker files.
        lanes: Of each stream.
        streams: One after the other.
    """

    master: str
    uri: str
    markers: str
    lanes: int
    streams: tuple[Stream, ...]

    def to_json(self) -> str:
        """The argument of the process."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Job:
        """The job that an argument describes."""
        values = json.loads(text)
        streams = values.pop("streams")
        return cls(
            **values,
            streams=tuple(Stream(**{**each, "reads": tuple(each["reads"])}) for each in streams),
        )


def take(markers: str, name: str) -> bool:
    """Whether a fault is to happen now; only the first one who asks is told so."""
    try:
        (Path(markers) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def report(word: str, what: object) -> None:
    """Write a line for the test."""
    sys.stdout.write(f"{word} {what}\n")
    sys.stdout.flush()


class FaultySink(DataSourceStreamArrowWriter):
    """The sink of a stream, with faults around it.

    Args:
        sink: The real one.
        topic: Where it publishes.
        markers: The directory of the marker files.
    """

    def __init__(self, sink: DataSourceStreamWriter, topic: str, markers: str) -> None:
        self._sink = sink
        self._topic = topic
        self._markers = markers

    @override
    def write(  # type: ignore[override]  # PySpark's own
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        done = self._sink.write(iterator)  # type: ignore[arg-type]  # batches or rows: PySpark's own
        if take(self._markers, PUBLISHED):
            raise RuntimeError("a fault: everything is published, and the task fails")
        return done

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        gate = Path(self._markers) / GATE.format(topic=self._topic, batch=batchId)
        if gate.exists():
            with gate.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)
        self._sink.commit(messages, batchId)
        if take(self._markers, COMMIT.format(topic=self._topic, batch=batchId)):
            os.kill(os.getpid(), signal.SIGKILL)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(messages, batchId)


class FaultySource(AmpsDataSource):
    """`format("amps")` with faults."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._markers = str(Path(options["checkpointLocation"]).with_name(MARKERS))

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        sink = super().streamWriter(schema, overwrite)
        return FaultySink(sink, self.options["topic"], self._markers)


def start_session(master: str) -> SparkSession:
    """A session on the cluster."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        # Few batches: compiling a plan takes longer than interpreting it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.locality.wait": "0",
        # An executor that was killed does not come back: fetch from others soon.
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "100ms",
        "spark.sql.files.openCostInBytes": "1",
    }
    builder = SparkSession.builder.master(master).appName("haclient cluster test")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")  # for a test that fails
    register(session)
    return session


def rows_of(spark: SparkSession, stream: Stream, markers: str) -> DataFrame:
    """The lines of the files, with `key` and `n`."""

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if take(markers, READ):
                raise RuntimeError("a fault: the task fails while it reads")
            yield batch

    lines = (
        spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(stream.files)
    ).mapInArrow(pass_on, "value STRING")
    return lines.select(
        sf.col("value").alias("data"),
        sf.get_json_object("value", "$.key").alias("key"),
        sf.get_json_object("value", "$.n").cast("long").alias("n"),
    )


def publish(spark: SparkSession, job: Job, stream: Stream, reads: int) -> None:
    """Start the query and wait for its end.

    Raises:
        PySparkException: The query has failed.
    """
    spark.conf.set("spark.sql.files.minPartitionNum", str(reads))
    first = min(Path(stream.files).iterdir())
    report("reads", spark.read.text(str(first)).rdd.getNumPartitions())
    spark.dataSource.register(FaultySource)
    rows = rows_of(spark, stream, job.markers)
    if stream.is_exactly_once:
        writer = publish_stream(
            rows, uri=job.uri, topic=stream.topic, key="key", lanes=job.lanes, order_by="n"
        )
    else:
        writer = rows.writeStream.format("amps").options(uri=job.uri, topic=stream.topic)
    writer = (
        writer.option("checkpointLocation", stream.checkpoint)
        .option("flushTimeoutMs", PATIENCE_MS)
        .trigger(availableNow=True)
    )
    finish(writer.start)


def main() -> None:
    """Run the job of the argument."""
    job = Job.of(sys.argv[1])
    spark = start_session(job.master)
    for stream in job.streams:
        for reads in stream.reads:
            try:
                publish(spark, job, stream, reads)
            except PySparkException as error:  # the next start repeats the batch
                report("failed", str(error).replace("\n", " "))
            else:
                report("done", stream.topic)
                break
    spark.stop()


if __name__ == "__main__":
    main()
