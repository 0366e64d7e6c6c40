"""The options of the sink, read once and checked against the columns that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast

from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.sink.lane_publisher import Command, Target
from haclient.pyspark.sink.lanes import LANE_COLUMN, PUBLISHED, LaneGuard

EXACTLY_ONCE: Final = "exactly-once"
STAGED: Final = "exactly-once-staged"
AT_LEAST_ONCE: Final = "at-least-once"

MAX_EXPIRATION_S: Final = 2**32 - 1
"""A server refuses more."""

_RESERVED: Final = ("/AMPS", "/HACLIENT/")
_STAGING: Final = "haclient-staging"  # within the checkpoint, so that both are rolled back together
_MILLISECONDS: Final = 1000

_TEXT: Final = (StringType,)
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "topic": (_TEXT, "STRING"),
    "data": ((BinaryType, StringType), "BINARY or STRING"),
    "correlation_id": (_TEXT, "STRING"),
    "expiration": ((IntegralType,), "INT or BIGINT"),
}


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
        with_digests: Whether messages carry the digest of their batch, to verify it when resumed.
        lane_key: The expression that gives a row its lane, as text.
        job_id: Names the publishers of a batch job; empty for one that is made up.
        dead_letter_topic: Where rows go that the server has refused; empty to fail.
        refused_path: A directory for Parquet files of those rows; empty to fail.
        checkpoint: Where the checkpoint of a stream is, or where a batch job keeps its refusals;
            empty for a batch job that keeps none.
        staging: Where batches are staged; empty where they are not.
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
    staging: str = ""

    @property
    def guard(self) -> LaneGuard:
        """What must not change while a checkpoint is used.

        A staged batch keeps its own lanes, so that only the guarantee counts: rows that one of them
        has published in part would be in other lanes with the other one.
        """
        if self.staging:
            return LaneGuard(0, "", (), "", guarantee=STAGED)
        return LaneGuard(
            self.lanes,
            self.lane_key,
            self.order_by,
            self.prefix,
            topic=self.topic,
            command=self.target.command,
            guarantee=EXACTLY_ONCE,
        )


def read_settings(options: Mapping[str, str], schema: StructType) -> SinkSettings:
    """Read the options of a sink, and check the columns that it gets.

    Args:
        options: As the user gave them.
        schema: Of the rows.

    Raises:
        UsageError: An option or a column is wrong; the message says how.
    """
    read = OptionReader("amps", options)
    guarantee = read.choice("guarantee", (EXACTLY_ONCE, STAGED, AT_LEAST_ONCE), AT_LEAST_ONCE)
    exactly_once = guarantee != AT_LEAST_ONCE
    topic = read.text("topic", "")
    policy = read.choice("onFailedWrite", ("fail", "table", "deadLetter"), "fail")
    refused_path = read.required("failedWritesPath") if policy == "table" else ""
    dead_letter = read.required("deadLetterTopic") if policy == "deadLetter" else ""
    if exactly_once and policy != "fail":
        raise UsageError(f"amps: onFailedWrite={policy} needs guarantee={AT_LEAST_ONCE}")
    if exactly_once:
        check_topics([topic])
    names = schema.fieldNames()
    verifies = read.flag("verifyResume", default=True) if read.has("verifyResume") else None
    if verifies and "correlation_id" in names:
        raise UsageError(
            "amps: verifyResume=true writes correlation ids of its own: drop the column "
            "correlation_id, or set verifyResume=false"
        )
    lanes = read.integer("lanes", 0)
    target = _target(read, lanes, verifies=verifies)
    checkpoint = read.text("checkpointLocation", "")
    staging = read.text("stagingLocation", f"{checkpoint.rstrip('/')}/{_STAGING}")
    if guarantee != STAGED and read.has("stagingLocation"):
        raise UsageError(f"amps: stagingLocation needs guarantee={STAGED}, found {guarantee}")
    settings = SinkSettings(
        target=target,
        topic=topic,
        exactly_once=exactly_once,
        prefix=read.text("publisherPrefix", "spark"),
        lanes=lanes,
        order_by=read.names("orderColumns"),
        with_digests=exactly_once and verifies is not False and "correlation_id" not in names,
        lane_key=read.text("laneKey", ""),
        job_id=read.text("jobId", ""),
        dead_letter_topic=dead_letter,
        refused_path=refused_path,
        checkpoint=checkpoint,
        staging=staging if guarantee == STAGED else "",
    )
    read.check_unknown()
    _check_columns(settings, schema)
    return settings


def check_topics(topics: Iterable[str]) -> None:
    """Check that rows may be published to these topics.

    A server refuses the rows of its own topics, and no attempt can publish them again: so they are
    noticed before anything is published.

    Args:
        topics: Topics of rows that are published exactly once.

    Raises:
        UsageError: One is a topic of the server.
    """
    for topic in topics:
        if topic.startswith(_RESERVED):
            raise UsageError(
                f"amps: {topic} is a topic of the server, as all that begin with "
                f"{' or '.join(_RESERVED)}: publish to another one"
            )


def _target(read: OptionReader, lanes: int, *, verifies: bool | None) -> Target:
    limit = read.integer("maxRowsPerSecond")
    return Target(
        uris=read.uris("uri"),
        command=cast(
            "Command",
            read.choice("command", ("publish", "delta_publish", "sow_delete"), "publish"),
        ),
        expiration=_expiration(read),
        timeout_s=read.integer("flushTimeoutMs", 10_000) / _MILLISECONDS,
        verifies=verifies,
        # At most all lanes publish at the same time; without lanes, it is not known how many do.
        rows_per_second=None if limit is None else limit / (lanes or 1),
    )


def _expiration(read: OptionReader) -> int | None:
    found = read.integer("expiration")
    if found is not None and found > MAX_EXPIRATION_S:
        raise read.error("expiration", f"1 to {MAX_EXPIRATION_S} seconds")
    return found


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
        kinds, wanted = _TYPES[name]
        if name in names and not isinstance(schema[name].dataType, kinds):
            found = schema[name].dataType.simpleString()
            raise UsageError(f"amps: the column {name} has to be {wanted}, found {found}")
    if not settings.topic and "topic" not in names:
        raise UsageError("amps: set the option topic, or give the rows a column topic")
    for name in settings.order_by:
        if name not in names:
            raise UsageError(f"amps: there is no column {name} to order by: {', '.join(names)}")
    if settings.exactly_once and (LANE_COLUMN not in names or not settings.lanes):
        raise UsageError(
            "amps: an exactly-once guarantee needs lanes: write what publish_stream(df, ...) or "
            "publish_frame(df, ...) of haclient.pyspark returns"
        )
