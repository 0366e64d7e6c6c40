"""How a query gets the sink: `publish_stream` and `publish_frame`.

Both give each row its lane, put the lanes into partitions of their own and configure the writer.
The rules that make it exactly once are in `haclient.pyspark.sink.lanes`, and those for a query that
stages its batches in `haclient.pyspark.sink.staged`. `format("amps")` without them is
at-least-once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from haclient.errors import UsageError
from haclient.pyspark.sink.lanes import LANE_COLUMN, PUBLISHED
from haclient.pyspark.sink.settings import EXACTLY_ONCE, STAGED, SinkSettings, option_text
from haclient.pyspark.sink.staged import lane_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def publish_stream(  # noqa: PLR0913  # what makes a row's place, and where it goes
    df: DataFrame,
    *,
    uri: str,
    key: str | Sequence[str],
    lanes: int,
    order_by: str | Sequence[str],
    topic: str | None = None,
    guarantee: str = EXACTLY_ONCE,
    staging_location: str | None = None,
    **options: str | int | bool,
) -> DataStreamWriter:
    """Configure a writer that publishes a stream exactly once.

    Args:
        df: A streaming DataFrame with `data`, and the columns that are named here.
        uri: Servers, with commas between them, best first.
        key: Columns whose value decides the lane of a row: rows of one key keep their order.
        lanes: The number of publishers that work in parallel; it cannot change later, unless
            batches are staged.
        order_by: Columns that order the rows of one batch in a lane.
        topic: The topic of all rows; `None` takes the column `topic`.
        guarantee: `exactly-once` for a query that computes the same rows again when a batch is
            repeated; `exactly-once-staged` for any query: each batch is written to files before it
            is published from them; or `at-least-once`.
        staging_location: Where `exactly-once-staged` keeps these files: a path or URI that every
            worker reaches. `None` takes `haclient-staging` within the checkpoint.
        **options: More options of the sink.

    Returns:
        The writer; `.option("checkpointLocation", ...)` and `.start()` come next.

    Raises:
        UsageError: `df` is no stream, a column is missing, or an option is wrong.
    """
    if not df.isStreaming:
        raise UsageError("publish_stream takes a streaming DataFrame: use publish_frame for others")
    options["guarantee"] = guarantee
    if staging_location is not None:
        options["stagingLocation"] = staging_location
    return lane_writer(*_with_lanes(df, uri, key, lanes, order_by, topic, options))


def publish_frame(  # noqa: PLR0913  # what makes a row's place, and where it goes
    df: DataFrame,
    *,
    uri: str,
    key: str | Sequence[str],
    lanes: int,
    order_by: str | Sequence[str],
    topic: str | None = None,
    job_id: str = "",
    **options: str | int | bool,
) -> DataFrameWriter:
    """Configure a writer that publishes each row of a DataFrame once, also if tasks are retried.

    Args:
        df: A DataFrame with `data`, and the columns that are named here.
        uri: Servers, with commas between them, best first.
        key: Columns whose value decides the lane of a row.
        lanes: The number of publishers that work in parallel.
        order_by: Columns that order the rows in a lane.
        topic: The topic of all rows; `None` takes the column `topic`.
        job_id: Names this job: run again under the same one, with the same rows, it publishes what
            is missing. Empty for a job that is new each time.
        **options: More options of the sink.

    Returns:
        The writer; `.save()` comes next.

    Raises:
        UsageError: `df` is a stream, a column is missing, or an option is wrong.
    """
    if df.isStreaming:
        raise UsageError("publish_frame takes a DataFrame that is no stream: use publish_stream")
    if options.get("guarantee") == STAGED:
        raise UsageError(
            f"publish_frame has no guarantee={STAGED}: write the rows to a table first, and "
            "publish what is read from it, under a job_id"
        )
    if job_id:
        options["jobId"] = job_id
    frame, made = _with_lanes(df, uri, key, lanes, order_by, topic, options)
    return frame.write.format("amps").mode("append").options(**made)


def _with_lanes(  # noqa: PLR0913, PLR0917  # as above
    df: DataFrame,
    uri: str,
    key: str | Sequence[str],
    lanes: int,
    order_by: str | Sequence[str],
    topic: str | None,
    options: Mapping[str, str | int | bool],
) -> tuple[DataFrame, dict[str, str]]:
    """A DataFrame whose partitions are lanes, and the options of its writer."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

    keys = [key] if isinstance(key, str) else list(key)
    orders = [order_by] if isinstance(order_by, str) else list(order_by)
    if not keys or not orders or not lanes > 0:
        raise UsageError(
            f"publish needs a key, an order and a number of lanes, found key={keys}, "
            f"order_by={orders}, lanes={lanes}"
        )
    for name in (*keys, *orders):
        if name not in df.columns:
            raise UsageError(f"there is no column {name}: {', '.join(df.columns)}")
        kind = df.schema[name].dataType.simpleString()
        if "map<" in kind or (name in orders and "<" in kind):
            lacks = "order" if name in orders else "hash"
            raise UsageError(
                f"the column {name} is a {kind}, which has no {lacks}: take "
                f"a part of it as a column of its own, such as {name}.field"
            )
    lane = F.pmod(F.xxhash64(*(F.col(each) for each in keys)), F.lit(lanes)).cast("int")
    is_encoded = any(name.lower() == "format" for name in options)
    body = "value" if "data" not in df.columns else "data"
    wanted = dict.fromkeys(df.columns if is_encoded else [*PUBLISHED, body, *orders])
    laned = df.withColumn(LANE_COLUMN, lane)
    frame = laned.select(*(each for each in wanted if each in df.columns), LANE_COLUMN)
    made = {
        "guarantee": EXACTLY_ONCE,
        **{name: option_text(value) for name, value in options.items()},
        "uri": uri,
        "lanes": str(lanes),
        "laneKey": ",".join(keys),
        "orderColumns": ",".join(orders),
        "hasBodies": option_text(not is_encoded),  # what format=json would encode is left out
    }
    if topic is not None:
        made["topic"] = topic
    # What is wrong is said here, and not by the first batch.
    if not SinkSettings(made, laned.schema).staging:  # else each batch gets its lanes by itself
        frame = frame.repartitionById(lanes, F.col(LANE_COLUMN))
    return frame, made
