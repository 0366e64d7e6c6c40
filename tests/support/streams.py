"""Streams that are run to their end, for tests of the data pipeline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["STARTS", "TOO_LATE", "finish", "run_stream", "written"]

STARTS = 5
"""PySpark gives the process of a source, or of a sink's commit, ten seconds to start.

A busy machine may take more, and then the query is started again, so often at most.
"""

TOO_LATE = "Python worker failed to connect back"
"""What PySpark says then."""


def finish(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Run a query to its end, stop it and return it; one whose process did not start is repeated.

    Args:
        start: Starts the query.
    """
    for left in reversed(range(STARTS)):
        query = start()
        try:
            query.awaitTermination()
        except PySparkException as error:
            if TOO_LATE not in str(error) or not left:
                raise
        else:
            return query
        finally:
            query.stop()
    raise AssertionError("unreachable")


def run_stream(
    spark: SparkSession,
    out: Path,
    uri: str,
    *,
    transform: Callable[[DataFrame], DataFrame] = lambda rows: rows,
    **options: str,
) -> StreamingQuery:
    """Run a stream of orders into Parquet until the present end of the log."""
    given = {"uri": uri, "topic": "orders", "startingBookmark": "EPOCH", **options}

    def start() -> StreamingQuery:
        rows = spark.readStream.format("amps").options(**given).load()
        return (
            transform(rows)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(out / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(out / "rows"))
        )

    return finish(start)


def written(spark: SparkSession, out: Path) -> list[tuple[int, int]]:
    """Publisher and sequence of each row that a stream has written, sorted."""
    rows = spark.read.parquet(str(out / "rows")).select("publisher_id", "sequence").collect()
    return sorted((row.publisher_id % 2**64, row.sequence) for row in rows)
