"""Publishes a stream exactly once whose rows are not the same each time they are computed.

A query with `uuid()`, `rand()`, a clock or a lookup computes other rows when a batch is repeated.
So each batch is computed once and frozen before its first row is published:

1. *Freeze.* One task for each lane sorts its rows and writes them to a Parquet file, whose name no
   other attempt of it uses.
2. *Seal.* The driver writes `_SUCCESS`: the files of the batch, its topic and its prefix. From here
   on this is the batch; what other attempts have written is not in it.
3. *Publish.* One task for each file publishes its rows, in the order of the file, with publishers
   and sequences as in `exactly-once`.
4. *Remove.* When the next batch begins, PySpark has committed this one, and its files go.

A crash before 2 freezes the batch again: nothing of it was published. A crash after it publishes
the same files again. Lanes are a part of what is frozen, so the number of lanes, key and order may
change from one batch to the next.

The staging location belongs to one query, whose id it keeps, and has to live, and to be rolled
back, with the checkpoint: a later batch in it says that only one was.

PySpark calls a function for each batch (`foreachBatch`) on the driver, which needs the checkpoint.
That is set after `publish_stream` has returned: so the writer is a `DataStreamWriter` that keeps
its options, and gets its function when it is started.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from typing_extensions import override

from haclient.errors import UsageError
from haclient.pyspark.sink.checkpoint_files import (
    check_unlogged,
    file_system,
    query_id,
    read_file,
    write_file,
)
from haclient.pyspark.sink.lanes import LANE_COLUMN, PUBLISHED, explained
from haclient.pyspark.sink.settings import STAGED, SinkSettings, option_text
from haclient.pyspark.sink.writers import (
    Task,
    check_checkpoint,
    check_has_checkpoint,
    lane_table,
    publish_lane,
    rows_of,
)
from pyspark import TaskContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter as _Writer
    from pyspark.sql.types import StructType
else:
    _Writer = object  # the class of the session's writer takes its place, see `lane_writer`

SUCCESS_FILE: Final = "_SUCCESS"
"""In the directory of a batch: it is frozen, and these are its files."""

OWNER_FILE: Final = "haclient-staging.json"
"""In the staging location: the query to which it belongs."""

_VERSION: Final = 1
_MAX_SHOWN: Final = 3  # entries of a directory in an error
_REPORT: Final = "lane BIGINT, name STRING, rows BIGINT"


class FrozenLane(NamedTuple):
    """A lane: its number, its file in the directory of the batch, and the number of its rows."""

    lane: int
    name: str
    rows: int


class FrozenBatch(NamedTuple):
    """What is published for a batch, however often it is repeated.

    Attributes:
        batch_id: The batch.
        prefix: Of the publishers' names.
        topic: The topic of all rows; empty where the column `topic` has it.
        lanes: The lanes that have rows.
    """

    batch_id: int
    prefix: str
    topic: str
    lanes: tuple[FrozenLane, ...]

    def to_json(self) -> bytes:
        """The content of `_SUCCESS`."""
        lanes = [each._asdict() for each in self.lanes]
        return json.dumps({"version": _VERSION, **self._asdict(), "lanes": lanes}).encode()


def read_frozen(content: bytes, path: str) -> FrozenBatch:
    """Read a `_SUCCESS`.

    Raises:
        UsageError: It is damaged, or of a newer version; the message has the path.
    """
    what = "the batch may be published in part. Restore the staging location with the checkpoint"
    with explained(path, what):
        found = json.loads(content)
        if found["version"] != _VERSION:
            raise UsageError(
                f"{path} has version {found['version']}, and this reads version {_VERSION}: "
                "it needs a newer haclient"
            )
        lanes = tuple(FrozenLane(**each) for each in found["lanes"])
        return FrozenBatch(int(found["batch_id"]), found["prefix"], found["topic"], lanes)


class Staging:
    """The directory of staged batches, as the driver sees it.

    Args:
        location: A path or URI that every worker reaches.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._files, self._root = file_system(location)

    def claim(self, query: str) -> None:
        """Check that it belongs to the query with this id; the first one takes it.

        Raises:
            UsageError: It belongs to another one, or to somebody else.
        """
        path = f"{self._root}/{OWNER_FILE}"
        if (content := read_file(self._files, path)) is None:
            self._check_empty()
            write_file(self._files, path, json.dumps({"query": query}).encode())
            content = read_file(self._files, path)  # two queries may have found nothing
        with explained(path, "it names the query"):
            owner = str(json.loads(content or b"")["query"])
        if owner != query:
            raise UsageError(
                f"amps: the staging location {self.location} belongs to query {owner}, and the "
                f"checkpoint to query {query}: give each query its own, or, when its checkpoint "
                "was deleted on purpose, remove the directory"
            )

    def _check_empty(self) -> None:
        """Check that nobody has files there: batches are directories that are removed.

        Raises:
            UsageError: Somebody has.
        """
        # An owner file that another attempt is writing has a longer name.
        names = [each for each in self._names() if not each.startswith(OWNER_FILE)]
        if names:
            raise UsageError(
                f"amps: the staging location {self.location} is not empty and belongs to no query "
                f"(found {', '.join(sorted(names)[:_MAX_SHOWN])}): batches are removed there, so "
                "set stagingLocation to a directory of its own"
            )

    def start_batch(self, batch_id: int) -> None:
        """Remove what is staged of committed batches, which are those before this one.

        Raises:
            UsageError: There is a later batch.
        """
        for found in self._batches():
            if found > batch_id:
                raise UsageError(
                    f"amps: the staging location {self.location} has batch {found}, and the query "
                    f"is at batch {batch_id}: the checkpoint was rolled back without it, and the "
                    "server would drop rows as duplicates. Begin with a new checkpoint"
                )
            if found < batch_id:
                self._files.delete_dir(f"{self._root}/{found}")

    def read(self, batch_id: int) -> FrozenBatch | None:
        """A batch that is frozen, or `None`."""
        path = f"{self._root}/{batch_id}/{SUCCESS_FILE}"
        content = read_file(self._files, path)
        return None if content is None else read_frozen(content, path)

    def clear(self, batch_id: int) -> None:
        """Remove what an attempt has left that did not get as far as `_SUCCESS`."""
        if batch_id in self._batches():
            self._files.delete_dir(f"{self._root}/{batch_id}")
        self._files.create_dir(f"{self._root}/{batch_id}", recursive=True)

    def seal(self, frozen: FrozenBatch) -> None:
        """Say that a batch is frozen."""
        path = f"{self._root}/{frozen.batch_id}/{SUCCESS_FILE}"
        write_file(self._files, path, frozen.to_json())

    def _batches(self) -> list[int]:
        return [int(each) for each in self._names() if each.isdecimal()]

    def _names(self) -> list[str]:
        wanted = pyarrow.fs.FileSelector(self._root, allow_not_found=True)
        return [each.base_name for each in self._files.get_file_info(wanted)]


# -- tasks ------------------------------------------------------------------------------------


def freeze_lane(
    batches: Iterator[pa.RecordBatch], *, settings: SinkSettings, directory: str
) -> Iterator[pa.RecordBatch]:
    """Write the rows of one lane to a file, in the order in which they are published.

    Yields:
        A row that describes the file; none where the lane is empty.

    Raises:
        UsageError: A row is in the wrong lane, or has a value that cannot be published.
    """
    context = TaskContext.get()
    lane = context.partitionId() if context else 0
    table = lane_table(settings, lane, batches)
    if table is None:
        return
    rows_of(settings, table)  # what cannot be published must not be frozen: it would stay for ever
    # An attempt that was given up may write on, or end last: it must not meet this file.
    name = f"lane-{lane}-{uuid.uuid4().hex}.parquet"
    files, root = file_system(directory)
    # The driver has made the directory, but on a local path perhaps not that of this host.
    files.create_dir(root, recursive=True)
    published = [each for each in PUBLISHED if each in table.column_names]
    pq.write_table(table.select(published), f"{root}/{name}", filesystem=files, compression="zstd")
    yield pa.RecordBatch.from_pylist([FrozenLane(lane, name, table.num_rows)._asdict()])


def publish_frozen(
    batches: Iterator[pa.RecordBatch],
    *,
    settings: SinkSettings,
    query: str,
    frozen: FrozenBatch,
    directory: str,
) -> Iterator[pa.RecordBatch]:
    """Publish frozen lanes, without the rows that an earlier attempt has published.

    Args:
        batches: Rows whose `id` is the place of a lane in `frozen.lanes`.
        settings: The options.
        query: The id of the query.
        frozen: The batch.
        directory: Where its files are.

    Yields:
        A row for each lane that was published.

    Raises:
        HAClientError: Rows could not be published; another attempt may succeed.
    """
    for batch in batches:
        for place in cast("list[int]", batch.column("id").to_pylist()):
            lane = frozen.lanes[place]
            table = _read_lane(directory, lane)
            done = publish_lane(
                settings, Task(query, lane.lane, frozen.batch_id), rows_of(settings, table)
            )
            yield pa.RecordBatch.from_pylist([lane._replace(rows=done.rows)._asdict()])


def _read_lane(directory: str, lane: FrozenLane) -> pa.Table:
    files, root = file_system(directory)
    path = f"{root}/{lane.name}"
    try:
        table: pa.Table = pq.read_table(path, filesystem=files)
    except (OSError, pa.ArrowInvalid) as error:
        raise UsageError(
            f"amps: the staged file {path} cannot be read ({error}): the stagingLocation has to be "
            "on a file system that all workers reach, and stays as it is while the query lives"
        ) from error
    if table.num_rows != lane.rows:
        raise UsageError(f"amps: {path} has {table.num_rows} rows, and {lane.rows} were staged")
    return table


# -- driver -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedSink:
    """Publishes each batch of a query: what PySpark calls in `foreachBatch`."""

    settings: SinkSettings

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Freeze a batch, unless an earlier attempt has, and publish it.

        Raises:
            HAClientError: It could not be published. PySpark repeats it when the query is started
                again.
        """
        query = query_id(self.settings.checkpoint)
        check_checkpoint(self.settings)
        check_unlogged(self.settings.checkpoint)
        staging = Staging(self.settings.staging)
        staging.claim(query)
        staging.start_batch(batch_id)
        directory = f"{self.settings.staging.rstrip('/')}/{batch_id}"
        frozen = staging.read(batch_id) or self._freeze(staging, batch, batch_id, directory)
        self._publish(batch, query, frozen, directory)

    def _freeze(
        self, staging: Staging, batch: DataFrame, batch_id: int, directory: str
    ) -> FrozenBatch:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415  # the custom of PySpark

        staging.clear(batch_id)
        work = partial(freeze_lane, settings=self.settings, directory=directory)
        parts = batch.repartitionById(self.settings.lanes, F.col(LANE_COLUMN))
        reports = cast("list[tuple[int, str, int]]", parts.mapInArrow(work, _REPORT).collect())
        lanes = tuple(sorted(FrozenLane(*each) for each in reports))
        frozen = FrozenBatch(batch_id, self.settings.prefix, self.settings.topic, lanes)
        staging.seal(frozen)
        return frozen

    def _publish(self, batch: DataFrame, query: str, frozen: FrozenBatch, directory: str) -> None:
        if not (count := len(frozen.lanes)):
            return
        work = partial(
            publish_frozen,
            # Names and content are those of the first attempt, whatever the options say now.
            settings=self.settings.published_as(frozen.prefix, frozen.topic),
            query=query,
            frozen=frozen,
            directory=directory,
        )
        tasks = batch.sparkSession.range(0, count, 1, count)
        done = tasks.mapInArrow(work, _REPORT).collect()
        if len(done) != count:
            raise UsageError(f"amps: {count} lanes are staged, and {len(done)} were published")


class _LaneWriter(_Writer):
    """A `DataStreamWriter` that knows its options, and what is wrong with them, when it starts."""

    _given: dict[str, str]
    _schema: StructType
    _mode: str | None

    def configure(self, schema: StructType, options: dict[str, str]) -> _Writer:
        """Take the place of a constructor: PySpark has made this object as one of its own class."""
        self._given = {}
        self._schema = schema
        self._mode = None
        return self.options(**options)

    @override
    def option(self, key: str, value: bool | float | str | None) -> _Writer:
        if value is not None:
            self._given[key] = option_text(value)
        super().option(key, value)
        return self

    @override
    def options(self, **options: bool | float | str | None) -> _Writer:
        for key, value in options.items():
            self.option(key, value)
        return self

    @override
    def outputMode(self, outputMode: str) -> _Writer:
        self._mode = outputMode
        super().outputMode(outputMode)
        return self

    @override
    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # PySpark's names
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: bool | float | str | None,
    ) -> StreamingQuery:
        self.options(**options)
        settings = SinkSettings(self._given, self._schema)
        check_has_checkpoint(settings)
        if settings.staging:
            self.foreachBatch(StagedSink(settings))
        elif (outputMode or self._mode or "").lower() == "update":
            raise UsageError(
                "amps: PySpark gives updates to no sink in Python: use the output mode complete, "
                f"or guarantee={STAGED}, which takes updates"
            )
        return super().start(path, format, outputMode, partitionBy, queryName)


def lane_writer(frame: DataFrame, options: dict[str, str]) -> _Writer:
    """A writer that publishes the lanes of a stream, from staged files if the options say so.

    Args:
        frame: A streaming DataFrame, with lanes.
        options: Those of the sink, so far.
    """
    writer = frame.writeStream.format("amps")
    # A session of Apache Spark Connect has a writer of another class, and each makes its own.
    writer.__class__ = type("LaneStreamWriter", (_LaneWriter, type(writer)), {})
    return cast("_LaneWriter", writer).configure(frame.schema, options)
