"""The sink of `format("amps")`: writers for streams and for batches, and how a query gets one.

`publish_stream` and `publish_frame` give each row its lane, put the lanes into partitions of their
own and configure the writer; the rules that make it exactly once are in
`haclient.pyspark.sink.lanes`. `format("amps")` without them is at-least-once.

PySpark calls a writer in four places: `streamWriter` on the driver before the tasks of each batch,
`write` in a worker for each partition, and `commit` or `abort` on the driver. A task learns the ids
of its query and batch from local properties of its context, which PySpark sets for its own sinks;
both come from the checkpoint, so that a batch that is repeated has the same ones.

A refusal by the server cannot be repeated away: the server has seen the sequence, and would take
the row for a duplicate the next time. So the task of a stream writes it to a file beside the
checkpoint before it fails, and no attempt and no later start goes on while that file is there. The
task of a batch, which has no such place, does not fail, since the next attempt would succeed: it
reports the refusal, and the job fails when it is to be committed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import trio
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType
from typing_extensions import override

from haclient.errors import PublishFailed, UsageError
from haclient.protocol.uri import Uri
from haclient.pyspark.options import OptionReader
from haclient.pyspark.sink.lane_publisher import (
    Command,
    Refused,
    Rows,
    Target,
    publish_at_least_once,
    publish_exactly_once,
)
from haclient.pyspark.sink.lanes import (
    LANE_COLUMN,
    PUBLISHED,
    Guard,
    check_lane,
    lane_name,
    ordered,
)
from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"

GUARD_FILE: Final = "haclient-sink.json"
"""Beside the checkpoint: what must not change while it is used."""

REFUSED_FILE: Final = "haclient-sink-refused.json"
"""Beside the checkpoint: what the server has refused, and no attempt can publish again."""

_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_MAX_REPORTED: Final = 100  # lanes whose refusals are shown
_MILLISECONDS: Final = 1000


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The options of a sink, checked.

    Attributes:
        target: Where and how to publish.
        topic: The topic of every row; empty where the column `topic` has it.
        exactly_once: Whether a row that is written twice ends once in the log.
        prefix: Of the publishers' names.
        lanes: How many there are, 0 where any number of partitions will do.
        order_by: The order columns.
        with_digests: Whether messages carry the digest by which a resumed batch is verified.
        lane_key: The expression that gives a row its lane, as text.
        job_id: Names the publishers of a batch job; empty for one that is made up.
        dead_letter_topic: Where rows go that the server has refused; empty to fail.
        refused_path: A directory for Parquet files of those rows; empty to fail.
        checkpoint: Where the checkpoint of a stream is; empty for a batch.
    """

    target: Target
    topic: str
    exactly_once: bool
    prefix: str
    lanes: int
    order_by: tuple[str, ...]
    with_digests: bool
    lane_key: str
    job_id: str
    dead_letter_topic: str
    refused_path: str
    checkpoint: str

    @property
    def guard(self) -> Guard:
        """What must not change while a checkpoint is used."""
        return Guard(self.lanes, self.lane_key, self.order_by, self.prefix)


def read_settings(options: Mapping[str, str], schema: StructType) -> SinkSettings:
    """Read the options of a sink, and check the columns that it gets.

    Args:
        options: As the user gave them.
        schema: Of the rows.

    Raises:
        UsageError: An option or a column is wrong; the message says how.
    """
    read = OptionReader("amps", options)
    guarantee = read.choice("guarantee", (EXACTLY_ONCE, AT_LEAST_ONCE), AT_LEAST_ONCE)
    exactly_once = guarantee == EXACTLY_ONCE
    topic = read.text("topic", "")
    policy = read.choice("onFailedWrite", ("fail", "table", "deadLetter"), "fail")
    refused_path = read.required("failedWritesPath") if policy == "table" else ""
    dead_letter = read.required("deadLetterTopic") if policy == "deadLetter" else ""
    if exactly_once and policy != "fail":
        raise UsageError(f"amps: onFailedWrite={policy} needs guarantee={AT_LEAST_ONCE}")
    names = schema.fieldNames()
    verifies = read.flag("verifyResume", default=True) if read.has("verifyResume") else None
    if verifies and "correlation_id" in names:
        raise UsageError(
            "amps: verifyResume=true writes correlation ids of its own: drop the column "
            "correlation_id, or set verifyResume=false"
        )
    target = Target(
        uris=_uris(read.required("uri", "tcp://127.0.0.1:9007/amps/json")),
        command=cast(
            "Command",
            read.choice("command", ("publish", "delta_publish", "sow_delete"), "publish"),
        ),
        expiration=read.integer("expiration"),
        timeout_s=read.integer("flushTimeoutMs", 10_000) / _MILLISECONDS,
        verifies=verifies,
    )
    settings = SinkSettings(
        target=target,
        topic=topic,
        exactly_once=exactly_once,
        prefix=read.text("publisherPrefix", "spark"),
        lanes=read.integer("lanes", 0),
        order_by=read.names("orderColumns"),
        with_digests=exactly_once and verifies is not False and "correlation_id" not in names,
        lane_key=read.text("laneKey", ""),
        job_id=read.text("jobId", ""),
        dead_letter_topic=dead_letter,
        refused_path=refused_path,
        checkpoint=read.text("checkpointLocation", ""),
    )
    read.check_unknown()
    _check_columns(settings, schema)
    return settings


def _uris(text: str) -> tuple[str, ...]:
    uris = tuple(each.strip() for each in text.split(",") if each.strip())
    for uri in uris:
        Uri.parse(uri)
    return uris


def _check_columns(settings: SinkSettings, schema: StructType) -> None:
    """Check that the rows have what the sink needs.

    Raises:
        UsageError: A column is missing, or has a type that cannot be published.
    """
    names = schema.fieldNames()
    if "data" not in names:
        raise UsageError(
            f"amps: the rows need a column data of type BINARY or STRING, found {', '.join(names)}"
        )
    for name in PUBLISHED:
        kinds = (BinaryType, StringType) if name == "data" else (StringType,)
        if name in names and not isinstance(schema[name].dataType, kinds):
            wanted = " or ".join(kind.typeName().upper() for kind in kinds)
            found = schema[name].dataType.simpleString()
            raise UsageError(f"amps: the column {name} has to be {wanted}, found {found}")
    if not settings.topic and "topic" not in names:
        raise UsageError("amps: set the option topic, or give the rows a column topic")
    for name in settings.order_by:
        if name not in names:
            raise UsageError(f"amps: there is no column {name} to order by: {', '.join(names)}")
    if settings.exactly_once and (LANE_COLUMN not in names or not settings.lanes):
        raise UsageError(
            f"amps: guarantee={EXACTLY_ONCE} needs lanes: write what publish_stream(df, ...) or "
            "publish_frame(df, ...) of haclient.pyspark returns"
        )


# -- writers ----------------------------------------------------------------------------


@dataclass
class LaneDone(WriterCommitMessage):
    """What a task reports to the driver.

    Attributes:
        lane: Its lane, or its partition.
        rows: Rows that it had.
        skipped: Those that an earlier attempt had published.
        failure: Why the batch cannot be committed; empty when it can.
    """

    lane: int
    rows: int
    skipped: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One task: who it publishes as.

    Attributes:
        owner: The id of the query, or of the job.
        lane: The partition.
        batch_id: The batch of a stream, 0 otherwise.
    """

    owner: str
    lane: int
    batch_id: int


def write_task(settings: SinkSettings, task: Task, batches: Iterator[pa.RecordBatch]) -> LaneDone:
    """Publish the rows of one task.

    Raises:
        HAClientError: They could not be published; another attempt may succeed.
    """
    name = lane_name(settings.prefix, task.owner, task.lane)
    if not settings.exactly_once:
        return _write_in_order_of_arrival(settings, task, name, batches)
    table = _lane_table(settings, task.lane, batches)
    rows = _rows(settings, table)
    work = partial(
        publish_exactly_once,
        name,
        task.batch_id,
        rows,
        settings.target,
        with_digests=settings.with_digests,
    )
    check_refusals(settings)
    try:
        skipped = trio.run(work)
    except PublishFailed as refusal:  # another attempt would not publish these rows either
        if not settings.checkpoint:
            return LaneDone(task.lane, len(rows.bodies), 0, str(refusal))
        content = json.dumps({"batch": task.batch_id, "refused": str(refusal)}).encode()
        files, root = _file_system(settings.checkpoint)
        _write(files, f"{root}/{REFUSED_FILE}", content)
        raise
    return LaneDone(task.lane, len(rows.bodies), skipped)


def _lane_table(
    settings: SinkSettings, lane: int, batches: Iterator[pa.RecordBatch]
) -> pa.Table | None:
    """The rows of a lane, in the order in which they are published; `None` when there are none."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return None
    wanted = [
        name
        for name in dict.fromkeys([*PUBLISHED, *settings.order_by, LANE_COLUMN])
        if name in found[0].schema.names
    ]
    table = pa.Table.from_batches(found).select(wanted).combine_chunks()
    check_lane(table, lane)
    return ordered(table, settings.order_by)


def _rows(settings: SinkSettings, table: pa.Table | pa.RecordBatch | None) -> Rows:
    """The messages of a table.

    Raises:
        UsageError: A value is null.
    """
    if table is None:
        return Rows(settings.topic, [])
    columns = {name: table[name] for name in PUBLISHED if name in table.schema.names}
    if settings.topic:
        columns.pop("topic", None)
    for name, column in columns.items():
        if column.null_count and name != "correlation_id":
            raise UsageError(
                f"amps: the column {name} is null in {column.null_count} rows: filter them out"
            )
    topics = columns["topic"].to_pylist() if "topic" in columns else settings.topic
    ids = columns.get("correlation_id")
    return Rows(
        topics,
        columns["data"].cast(pa.large_binary()).to_pylist(),
        [] if ids is None else pc.fill_null(ids, "").to_pylist(),
    )


def _write_in_order_of_arrival(
    settings: SinkSettings, task: Task, name: str, batches: Iterator[pa.RecordBatch]
) -> LaneDone:
    keeps = bool(settings.dead_letter_topic or settings.refused_path)

    async def publish() -> int:
        rows = (_rows(settings, batch) for batch in batches if batch.num_rows)
        count, refused = await publish_at_least_once(
            name, rows, settings.target, keeps_refused=keeps
        )
        if refused and settings.refused_path:
            _write_refused(settings.refused_path, task, refused)
        elif refused:
            letters = Rows(settings.dead_letter_topic, [each.data for each in refused])
            await publish_at_least_once(name, [letters], settings.target, keeps_refused=False)
        return count

    return LaneDone(task.lane, trio.run(publish), 0)


def _write_refused(path: str, task: Task, refused: Sequence[Refused]) -> None:
    """Write refused rows to a Parquet file of their own."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # only where it is needed

    table = pa.table(
        {
            "topic": [each.topic for each in refused],
            "data": pa.array([each.data for each in refused], pa.binary()),
            "reason": [each.reason for each in refused],
        }
    )
    files, root = _file_system(path)
    files.create_dir(root, recursive=True)
    # A task that is repeated writes another file: the rows are refused at least once, too.
    file = f"refused-{task.owner}-{task.batch_id}-{task.lane}-{uuid.uuid4().hex}.parquet"
    pq.write_table(table, f"{root}/{file}", filesystem=files)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a stream.

    Args:
        settings: Its options.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneDone:  # type: ignore[override]  # PySpark's own
        context = TaskContext.get()
        owner = context.getLocalProperty(_QUERY_ID) if context else None
        batch_id = context.getLocalProperty(_BATCH_ID) if context else None
        if context is None or not owner or not batch_id:
            raise UsageError(
                "amps: this version of PySpark does not tell a task its query and batch "
                f"({_QUERY_ID}, {_BATCH_ID}): use publish_frame with a job_id in foreachBatch"
            )
        task = Task(owner, context.partitionId(), int(batch_id))
        return write_task(self._settings, task, iterator)

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        check_lanes(self._settings, messages)


class BatchSink(DataSourceArrowWriter):
    """Writes a DataFrame once. The instance travels to every task, and so does the id of the job.

    Args:
        settings: Its options.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._job_id = settings.job_id or uuid.uuid4().hex

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneDone:  # type: ignore[override]  # PySpark's own
        context = TaskContext.get()
        lane = context.partitionId() if context else 0
        return write_task(self._settings, Task(self._job_id, lane, 0), iterator)

    @override
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        check_lanes(self._settings, messages)


def check_lanes(settings: SinkSettings, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Check on the driver that every lane was published, each by one task.

    Raises:
        PublishFailed: The server has refused rows.
        UsageError: The tasks are not the lanes.
    """
    if failures := _failures(messages):
        raise PublishFailed(f"amps: {'; '.join(failures)}", reason=failures[0], sequence=0)
    if not settings.exactly_once:
        return
    lanes = sorted(each.lane for each in messages if isinstance(each, LaneDone))
    if lanes != list(range(settings.lanes)):
        raise UsageError(
            f"amps: {settings.lanes} lanes need a task each, found the tasks {lanes}: write what "
            "publish_stream or publish_frame returns, without another repartition"
        )


def _failures(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    done = [each for each in messages if isinstance(each, LaneDone)]
    return [each.failure for each in done if each.failure][:_MAX_REPORTED]


# -- files beside the checkpoint -----------------------------------------------------------


def check_checkpoint(settings: SinkSettings) -> None:
    """Before the tasks of a batch: nothing has changed since the checkpoint began.

    Raises:
        UsageError: Lanes, key, order or prefix are others, or an earlier batch was refused.
    """
    if not settings.checkpoint or not settings.exactly_once:
        return
    check_refusals(settings)
    files, root = _file_system(settings.checkpoint)
    guard = f"{root}/{GUARD_FILE}"
    content = _read(files, guard)
    if content is None:
        _write(files, guard, settings.guard.to_json())
    else:
        settings.guard.check(content, guard)


def check_refusals(settings: SinkSettings) -> None:
    """Check that no row of this checkpoint was refused before.

    Raises:
        UsageError: One was.
    """
    if not settings.checkpoint:
        return
    files, root = _file_system(settings.checkpoint)
    refused = f"{root}/{REFUSED_FILE}"
    if (content := _read(files, refused)) is not None:
        raise UsageError(
            f"rows of this query are not in the server's log ({content.decode():.300}), and it "
            f"takes them for duplicates now: publish them in another way, then remove {refused}"
        )


def _file_system(location: str) -> tuple[pyarrow.fs.FileSystem, str]:
    if "://" not in location and not location.startswith("file:"):
        return pyarrow.fs.LocalFileSystem(), location.rstrip("/")
    if location.startswith("file:/") and not location.startswith("file://"):
        location = f"file://{location[5:]}"
    files, path = pyarrow.fs.FileSystem.from_uri(location)
    return files, path.rstrip("/")


def _read(files: pyarrow.fs.FileSystem, path: str) -> bytes | None:
    if files.get_file_info(path).type == pyarrow.fs.FileType.NotFound:
        return None
    with files.open_input_stream(path) as stream:
        return bytes(stream.read())


def _write(files: pyarrow.fs.FileSystem, path: str, content: bytes) -> None:
    files.create_dir(path.rpartition("/")[0], recursive=True)
    temporary = f"{path}.{uuid.uuid4().hex}"  # two tasks may write at the same time
    with files.open_output_stream(temporary) as stream:
        stream.write(content)
    files.move(temporary, path)


# -- how a query gets a sink -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lanes:
    """A DataFrame whose partitions are lanes, and the options of its writer."""

    frame: DataFrame
    options: dict[str, str]


def publish_stream(  # what makes a row's place, and where it goes
    df: DataFrame,
    *,
    uri: str,
    key: str | Sequence[str],
    lanes: int,
    order_by: str | Sequence[str],
    topic: str | None = None,
    **options: str | int | bool,
) -> DataStreamWriter:
    """Publish a stream exactly once: a writer to which a checkpoint and a trigger are added.

    Args:
        df: A streaming DataFrame with `data`, and the columns that are named here.
        uri: Servers, with commas between them, best first.
        key: Columns whose value decides the lane of a row: rows of one key keep their order.
        lanes: How many rows are published at the same time; it cannot change later.
        order_by: Columns that order the rows of one batch in a lane.
        topic: The topic of all rows; `None` takes the column `topic`.
        **options: More options of the sink.

    Returns:
        The writer; `.option("checkpointLocation", ...)` and `.start()` come next.

    Raises:
        UsageError: It is no stream, a column is missing, or an option is wrong.
    """
    if not df.isStreaming:
        raise UsageError("publish_stream takes a streaming DataFrame: use publish_frame for others")
    made = _with_lanes(df, uri, key, lanes, order_by, topic, options)
    return made.frame.writeStream.format("amps").options(**made.options)


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
    """Publish a DataFrame, each row once however often a task is repeated.

    Args:
        df: A DataFrame with `data`, and the columns that are named here.
        uri: Servers, with commas between them, best first.
        key: Columns whose value decides the lane of a row.
        lanes: How many rows are published at the same time.
        order_by: Columns that order the rows in a lane.
        topic: The topic of all rows; `None` takes the column `topic`.
        job_id: Names this job: run again under the same one, with the same rows, it publishes what
            is missing. Empty for a job that is new each time.
        **options: More options of the sink.

    Returns:
        The writer; `.save()` comes next.

    Raises:
        UsageError: It is a stream, a column is missing, or an option is wrong.
    """
    if df.isStreaming:
        raise UsageError("publish_frame takes a DataFrame that is no stream: use publish_stream")
    if job_id:
        options["jobId"] = job_id
    made = _with_lanes(df, uri, key, lanes, order_by, topic, options)
    return made.frame.write.format("amps").mode("append").options(**made.options)


def _with_lanes(  # noqa: PLR0913, PLR0917  # as above
    df: DataFrame,
    uri: str,
    key: str | Sequence[str],
    lanes: int,
    order_by: str | Sequence[str],
    topic: str | None,
    options: Mapping[str, str | int | bool],
) -> _Lanes:
    """Give each row its lane, and each lane a partition."""
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
    lane = F.pmod(F.xxhash64(*(F.col(each) for each in keys)), F.lit(lanes)).cast("int")
    wanted = dict.fromkeys([*PUBLISHED, *orders])
    frame = df.withColumn(LANE_COLUMN, lane).select(
        *(each for each in wanted if each in df.columns), LANE_COLUMN
    )
    given = {name: _text(value) for name, value in options.items()}
    made = {
        "guarantee": EXACTLY_ONCE,
        **given,
        "uri": uri,
        "lanes": str(lanes),
        "laneKey": ",".join(keys),
        "orderColumns": ",".join(orders),
    }
    if topic is not None:
        made["topic"] = topic
    read_settings(made, frame.schema)  # what is wrong is said here, and not by the first batch
    return _Lanes(frame.repartitionById(lanes, F.col(LANE_COLUMN)), made)


def _text(value: str | int | bool) -> str:  # noqa: FBT001  # the value of an option
    return str(value).lower() if isinstance(value, bool) else str(value)
