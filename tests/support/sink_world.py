"""A stream from files to a broker, and a plain count of what is in the broker's journal."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from support.journals import ModelRow, model_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

LANES = 2
ROWS = 600  # in a file, and so in a batch
FIRST_S = 1_769_851_800
"""2026-01-31 09:30:00 UTC"""


def body(number: int) -> bytes:
    return b'{"key":"k%d","n":%d}' % (number % 17, number)


def bodies(batches: int) -> list[bytes]:
    return [body(number) for number in range(batches * ROWS)]


class SinkWorld:
    """A stream that publishes files to a topic of its own; each file is a batch.

    Args:
        spark: The session.
        folder: For files and checkpoint.
        uri: The broker.
        journal: The directory of its journal.
        topic: What is published to.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, uri: str, journal: Path, topic: str
    ) -> None:
        self.spark = spark
        self.uri = uri
        self.journal = journal
        self.topic = topic
        self.files = folder / "input"
        self.checkpoint = folder / "checkpoint"
        self.files.mkdir()

    @property
    def log(self) -> list[ModelRow]:
        """Every message of the topic, in the order of the broker's journal."""
        return [row for row in model_rows(self.journal) if row.topic == self.topic]

    @property
    def query_id(self) -> str:
        """The id of the query, which its checkpoint keeps."""
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def check_once(self, batches: int) -> None:
        """Every row of the first batches is in the log exactly once; sequences rise."""
        assert Counter(row.data for row in self.log) == Counter(bodies(batches))
        self.check_order()

    def check_order(self) -> None:
        """The sequences of each publisher rise."""
        last: dict[int, int] = {}
        for row in self.log:
            assert row.sequence > last.get(row.publisher_id, 0)
            last[row.publisher_id] = row.sequence

    def add_batch(self, number: int, *, changed: bool = False) -> None:
        """Add a file with `ROWS` rows, the older ones first."""
        first = number * ROWS
        rows = [f"{body(each).decode()}" for each in range(first, first + ROWS)]
        if changed:
            rows = [each.replace('"n"', '"m"') for each in rows]
        file = self.files / f"{number:04d}.json"
        file.write_text("\n".join(rows) + "\n")
        os.utime(file, (FIRST_S + number,) * 2)  # batches are taken by the time of their files

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
        self,
        *,
        uri: str = "",
        partitions: int = 2,
        frame: DataFrame | None = None,
        options: Mapping[str, object] | None = None,
    ) -> DataStreamWriter:
        """What `publish_stream` returns for the files, with the checkpoint."""
        from haclient.pyspark import publish_stream  # noqa: PLC0415  # needs the extra

        given: dict[str, object] = {
            "uri": uri or self.uri,
            "topic": self.topic,
            "key": "key",
            "order_by": "n",
            "lanes": LANES,
            "flushTimeoutMs": 100_000,  # for a machine that is busy
            **(options or {}),
        }
        frame = self.frame(partitions) if frame is None else frame
        writer = publish_stream(frame, **given)  # type: ignore[arg-type]  # one dictionary
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(availableNow=True)

    def run(
        self,
        *,
        uri: str = "",
        partitions: int = 2,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Run until every file was published; raises what ends the query."""
        self.start(uri=uri, partitions=partitions, options=options).awaitTermination()

    def start(
        self,
        *,
        uri: str = "",
        partitions: int = 2,
        options: Mapping[str, object] | None = None,
    ) -> StreamingQuery:
        return self.writer(uri=uri, partitions=partitions, options=options).start()

    def forget(self, batch: int, *logs: str) -> None:
        """Remove what the checkpoint says of a batch.

        Without `commits` it is as after a crash between the last task of the batch and its commit;
        without `offsets`, too, as before the batch was planned.
        """
        for log in logs:
            for name in (f"{batch}", f".{batch}.crc"):
                (self.checkpoint / log / name).unlink()
