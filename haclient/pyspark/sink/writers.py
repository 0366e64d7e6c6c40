"""The writers of the sink of `format("amps")`: what PySpark calls on the driver and in tasks.

PySpark calls a writer in four places: `streamWriter` on the driver before the tasks of each batch,
`write` in a worker for each partition, and `commit` or `abort` on the driver. For these two it
calls `streamWriter` a second time. What that raises hides the error of the task, so `streamWriter`
checks nothing that a task can change.

A task learns the ids of its query and batch from local properties of its context, which PySpark
sets for its own sinks; both come from the checkpoint, so that a batch that is repeated has the same
ones.

A refusal by the server cannot be repeated away: the server has seen the sequence, and would take
the row for a duplicate the next time. So the task of a stream writes it to a file beside the
checkpoint before it fails, and no attempt and no later start goes on while that file is there: the
user moves it to where the rows of the batch are read that no attempt publishes. The
task of a batch, which has no such place, does not fail, since the next attempt would succeed: it
reports the refusal, and the job fails when it is to be committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import trio
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from typing_extensions import override

from haclient.errors import PublishFailed, UsageError
from haclient.protocol.messages import Message
from haclient.pyspark.json_bodies import encode_rows
from haclient.pyspark.sink.checkpoint_files import (
    check_guard,
    check_unlogged,
    file_system,
    keep_unlogged,
    resolved_rows,
)
from haclient.pyspark.sink.lane_publisher import (
    Rows,
    RowsNotLogged,
    claim_lanes,
    publish_at_least_once,
    publish_exactly_once,
)
from haclient.pyspark.sink.lanes import (
    LANE_COLUMN,
    PUBLISHED,
    check_lane,
    digest_of,
    job_name,
    lane_name,
    ordered,
)
from haclient.pyspark.sink.settings import (
    EXACTLY_ONCE,
    MAX_EXPIRATION_S,
    STAGED,
    SinkSettings,
    check_topics,
)
from haclient.pyspark.sink.task_input import all_rows
from pyspark import TaskContext

_BATCH_ID: Final = "streaming.sql.batchId"
_QUERY_ID: Final = "sql.streaming.queryId"
_MAX_REPORTED: Final = 100  # lanes whose refusals are shown
_MAY_BE_NULL: Final = frozenset({"correlation_id", "expiration", "key"})


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
    if not settings.exactly_once:
        return _write_in_order_of_arrival(settings, task, batches)
    table = lane_table(settings, task.lane, batches)
    return publish_lane(settings, task, rows_of(settings, table))


def publish_lane(settings: SinkSettings, task: Task, rows: Rows) -> LaneDone:
    """Publish the rows of a lane, all of its batch in order, that no attempt has published.

    Raises:
        HAClientError: They could not be published; another attempt may succeed.
    """
    check_unlogged(settings.checkpoint)
    resolved = resolved_rows(settings.checkpoint, task.batch_id, task.lane)
    work = partial(
        publish_exactly_once,
        lane_name(settings.prefix, task.owner, task.lane),
        task.batch_id,
        replace(rows, resolved=resolved),
        settings.target,
        digest=digest_of(rows.topics, rows.bodies, rows.keys) if settings.with_digests else "",
        # Run again under its id, a job would not know what an earlier run was told.
        keeps_refusals=bool(settings.checkpoint) or not settings.job_id,
    )
    try:
        skipped = trio.run(work)
    except RowsNotLogged as error:  # another attempt would not publish these rows either
        if not settings.checkpoint:
            return LaneDone(task.lane, len(rows.bodies), 0, str(error))
        advice = keep_unlogged(
            settings.checkpoint, task.batch_id, task.lane, error.rows, str(error)
        )
        raise RowsNotLogged(
            f"{error}: {advice}", rows=error.rows, reason=error.reason, sequence=error.sequence
        ) from None
    return LaneDone(task.lane, len(rows.bodies), skipped)


def lane_table(
    settings: SinkSettings, lane: int, batches: Iterator[pa.RecordBatch]
) -> pa.Table | None:
    """The rows of a lane, in the order in which they are published; `None` when there are none.

    Raises:
        DisconnectedError: Spark ended the rows early.
        UsageError: A row is in the wrong lane, or the rows cannot be ordered.
    """
    found = [with_data(settings, batch) for batch in all_rows(batches) if batch.num_rows]
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


def rows_of(settings: SinkSettings, table: pa.Table | pa.RecordBatch | None) -> Rows:
    """The messages of a table.

    Raises:
        UsageError: A value is null, or is no expiration, or a topic is one of the server.
    """
    if table is None:
        return Rows(settings.topic, [])
    columns = {name: table[name] for name in PUBLISHED if name in table.schema.names}
    if settings.topic:
        columns.pop("topic", None)
    for name, column in columns.items():
        if column.null_count and name not in _MAY_BE_NULL:
            raise UsageError(
                f"amps: the column {name} is null in {column.null_count} rows: filter them out"
            )
    topics = columns["topic"].to_pylist() if "topic" in columns else settings.topic
    if settings.exactly_once and not isinstance(topics, str):
        check_topics(set(topics))

    def texts(name: str) -> Sequence[str]:
        return pc.fill_null(columns[name], "").to_pylist() if name in columns else []

    return Rows(
        topics,
        columns["data"].cast(pa.large_binary()).to_pylist(),
        texts("correlation_id"),
        _expirations(settings, columns.get("expiration")),
        texts("key"),
    )


def with_data(settings: SinkSettings, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with a column `data`, which is made of others if the user has none."""
    names: list[str] = batch.schema.names
    if settings.json_columns:
        data = encode_rows(batch, settings.json_columns)
    elif "data" in names:
        return batch
    elif "value" in names:
        data = batch["value"]
    else:  # deletes by key
        data = pa.array([b""] * batch.num_rows, pa.binary())
    return pa.RecordBatch.from_arrays([*batch.columns, data], names=[*names, "data"])


def _expirations(
    settings: SinkSettings, column: pa.ChunkedArray | pa.Array | None
) -> Sequence[int | None]:
    """The expirations of rows in seconds; where the column is null, that of the options."""
    if column is None:
        return []
    limits = pc.min_max(column).as_py()
    for found in limits.values():
        if found is not None and not 0 <= found <= MAX_EXPIRATION_S:
            raise UsageError(
                f"amps: the column expiration has to be 0 to {MAX_EXPIRATION_S} seconds, found "
                f"{found}"
            )
    default = settings.target.expiration
    result: list[int | None] = [default if each is None else each for each in column.to_pylist()]
    return result


def _write_in_order_of_arrival(
    settings: SinkSettings, task: Task, batches: Iterator[pa.RecordBatch]
) -> LaneDone:
    name = lane_name(settings.prefix, task.owner, task.lane)
    keeps = bool(settings.dead_letter_topic or settings.refused_path)

    async def publish() -> int:
        rows = (
            rows_of(settings, with_data(settings, batch)) for batch in batches if batch.num_rows
        )
        count, refused = await publish_at_least_once(
            name, rows, settings.target, keeps_refused=keeps
        )
        if refused and settings.refused_path:
            _write_refused(settings.refused_path, task, refused)
        elif refused:
            letters = Rows(settings.dead_letter_topic, [each.data for each in refused])
            # A letter is a message of its own, whatever was to be done with the row.
            target = replace(settings.target, command="publish", expiration=None)
            await publish_at_least_once(name, [letters], target, keeps_refused=False)
        return count

    return LaneDone(task.lane, trio.run(publish), 0)


def _write_refused(path: str, task: Task, refused: Sequence[Message]) -> None:
    """Write refused rows to a Parquet file of their own."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # only where it is needed

    table = pa.table(
        {
            "topic": [each.topic for each in refused],
            "data": pa.array([each.data for each in refused], pa.binary()),
            "reason": [each.reason for each in refused],
        }
    )
    files, root = file_system(path)
    files.create_dir(root, recursive=True)
    # A task that is repeated writes another file: the rows are refused at least once, too.
    file = f"refused-{task.owner}-{task.batch_id}-{task.lane}-{uuid.uuid4().hex}.parquet"
    pq.write_table(table, f"{root}/{file}", filesystem=files)


def _refuse_staging(settings: SinkSettings) -> None:
    if settings.staging:
        raise UsageError(
            f"amps: guarantee={STAGED} is for streams: start what publish_stream(df, ...) of "
            "haclient.pyspark returns"
        )


def check_checkpoint(settings: SinkSettings) -> None:
    """Before the tasks of a batch: nothing has changed since the checkpoint began.

    Raises:
        UsageError: Lanes, key, order or prefix are others.
    """
    if settings.checkpoint and settings.exactly_once:
        check_guard(settings.checkpoint, settings.guard)


def check_has_checkpoint(settings: SinkSettings) -> None:
    """Check that a stream has told the sink where its checkpoint is.

    Raises:
        UsageError: It has not.
    """
    if settings.exactly_once and not settings.checkpoint:
        raise UsageError(
            f"amps: guarantee={STAGED if settings.staging else EXACTLY_ONCE} needs the checkpoint "
            'among the options of the query: add .option("checkpointLocation", ...); the setting '
            "spark.sql.streaming.checkpointLocation does not reach the sink"
        )


def check_job(settings: SinkSettings) -> None:
    """Before the tasks of a batch job that has an id: its number of lanes has not changed.

    Raises:
        HAClientError: It has, or the server cannot be asked.
    """
    if settings.job_id and settings.exactly_once:
        name = job_name(settings.prefix, settings.job_id)
        trio.run(claim_lanes, name, settings.lanes, settings.target)


class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def __init__(self, settings: SinkSettings) -> None:
        _refuse_staging(settings)
        check_has_checkpoint(settings)
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
    """Writes a DataFrame once. The instance, and so the id of the job, travels to every task."""

    def __init__(self, settings: SinkSettings) -> None:
        _refuse_staging(settings)
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
    done = [each for each in messages if isinstance(each, LaneDone)]
    if failures := [each.failure for each in done if each.failure][:_MAX_REPORTED]:
        raise PublishFailed(f"amps: {'; '.join(failures)}", reason=failures[0], sequence=0)
    if not settings.exactly_once:
        return
    lanes = sorted(each.lane for each in done)
    # PySpark makes a single task of a frame that it knows to be empty.
    is_empty = bool(done) and not any(each.rows for each in done)
    if lanes != list(range(settings.lanes)) and not is_empty:
        raise UsageError(
            f"amps: {settings.lanes} lanes need a task each, found the tasks {lanes}: write what "
            "publish_stream or publish_frame returns, without another repartition"
        )
