"""The options of the sink, read once and checked against the columns that it gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final, cast

from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType, StructType

from haclient.errors import UsageError
from haclient.pyspark.options import SERVER, OptionReader
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
_NO_JSON: Final = re.compile(r"\b(?:map<|interval|variant)")

_FORMAT: Final = 'publish_frame(..., format="json"), publish_stream likewise, else the option'

_TEXT: Final = (StringType,)
_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "topic": (_TEXT, "STRING"),
    "data": ((BinaryType, StringType), "BINARY or STRING"),
    "value": ((BinaryType, StringType), "BINARY or STRING"),
    "key": (_TEXT, "STRING"),
    "correlation_id": (_TEXT, "STRING"),
    "expiration": ((IntegralType,), "INT or BIGINT"),
}


class SinkSettings:
    """The options of a sink, checked against the columns of its rows.

    Args:
        options: As the user gave them.
        schema: Of the rows.

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
        json_columns: The columns that bodies are made of; empty where a column has the bodies.

    Raises:
        UsageError: An option or a column is wrong; the message says how.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        read = OptionReader(SERVER, options)
        guarantee = read.choice("guarantee", (EXACTLY_ONCE, STAGED, AT_LEAST_ONCE), AT_LEAST_ONCE)
        self.exactly_once = guarantee != AT_LEAST_ONCE
        self.topic = read.text("topic", "")
        policy = read.choice("onFailedWrite", ("fail", "table", "deadLetter"), "fail")
        self.refused_path = read.required("failedWritesPath") if policy == "table" else ""
        is_dead = policy == "deadLetter"
        self.dead_letter_topic = read.required("deadLetterTopic") if is_dead else ""
        if self.exactly_once:
            check_topics([self.topic])
            if policy != "fail":
                raise UsageError(f"amps: onFailedWrite={policy} needs guarantee={AT_LEAST_ONCE}")
        has_ids = "correlation_id" in schema.names
        verifies = read.flag("verifyResume", default=None)
        if verifies and has_ids:
            raise UsageError(
                "amps: verifyResume=true writes correlation ids of its own: drop the column "
                "correlation_id, or set verifyResume=false"
            )
        self.with_digests = self.exactly_once and verifies is not False and not has_ids
        self.lanes = read.integer("lanes", 0)
        self.target = _target(read, self.lanes, verifies=verifies)
        self.prefix = read.text("publisherPrefix", "spark")
        self.order_by = read.names("orderColumns")
        self.lane_key = read.text("laneKey", "")
        self.job_id = read.text("jobId", "")
        self.checkpoint = read.text("checkpointLocation", "")
        staging = read.text("stagingLocation", f"{self.checkpoint.rstrip('/')}/{_STAGING}")
        self.staging = staging if guarantee == STAGED else ""
        if not self.staging and read.has("stagingLocation"):
            raise UsageError(f"amps: stagingLocation needs guarantee={STAGED}, found {guarantee}")
        self.json_columns = _json_columns(read, schema)
        read.check_unknown()
        _check_columns(self, schema)

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

    def published_as(self, prefix: str, topic: str) -> SinkSettings:
        """The settings of a batch that was staged with another prefix and topic."""
        settings = copy(self)
        settings.prefix, settings.topic = prefix, topic
        return settings


def option_text(value: str | float | bool) -> str:  # noqa: FBT001  # the value of an option
    """An option as PySpark passes it on."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_topics(topics: Iterable[str]) -> None:
    """Check that rows may be published exactly once to these topics.

    A server refuses the rows of its own topics, and no attempt can publish them again: so they are
    noticed before anything is published.

    Raises:
        UsageError: One is a topic of the server.
    """
    for topic in topics:
        if topic.startswith(_RESERVED):
            raise UsageError(
                f"amps: {topic} is a topic of the server, as all that begin with "
                f"{' or '.join(_RESERVED)}: publish to another one"
            )


def _json_columns(read: OptionReader, schema: StructType) -> tuple[str, ...]:
    """The columns that `format=json` makes bodies of; none without it.

    Raises:
        UsageError: There are bodies, or a column that JSON cannot have.
    """
    is_fixed = read.flag("hasBodies", default=False)
    if not read.choice("format", ("json",), ""):
        return ()
    if is_fixed:
        raise UsageError(f"amps: format=json comes too late as an option: {_FORMAT}")
    if "data" in schema.names:
        raise UsageError("amps: format=json makes the column data, which is there: drop one")
    fields = [each for each in schema if each.name not in {*PUBLISHED, LANE_COLUMN}]
    for field in fields:
        kind = field.dataType.simpleString()
        if _NO_JSON.search(kind):
            raise UsageError(
                f"amps: format=json cannot encode the column {field.name} of type {kind}: drop it, "
                "or make the column data with to_json(struct(*))"
            )
    if not fields:
        raise UsageError("amps: format=json needs columns to encode")
    return tuple(field.name for field in fields)


def _target(read: OptionReader, lanes: int, *, verifies: bool | None) -> Target:
    limit = read.integer("maxRowsPerSecond", None)
    expiration = read.integer("expiration", None)
    if expiration is not None and expiration > MAX_EXPIRATION_S:
        raise read.error("expiration", f"1 to {MAX_EXPIRATION_S} seconds")
    return Target(
        uris=read.uris("uri"),
        command=cast(
            "Command",
            read.choice("command", ("publish", "delta_publish", "sow_delete"), "publish"),
        ),
        expiration=expiration,
        timeout_s=read.integer("flushTimeoutMs", 10_000) / _MILLISECONDS,
        verifies=verifies,
        # At most all lanes publish at the same time; without lanes, it is not known how many do.
        rows_per_second=None if limit is None else limit / (lanes or 1),
    )


def _check_columns(settings: SinkSettings, schema: StructType) -> None:
    """Check that the rows have what the sink needs.

    Raises:
        UsageError: A column is missing, or has a type that cannot be published.
    """
    names = schema.fieldNames()
    deletes_by_key = settings.target.command == "sow_delete" and "key" in names
    if not (settings.json_columns or deletes_by_key or {"data", "value"} & {*names}):
        raise UsageError(
            "amps: the rows need a column data or value of type BINARY or STRING, or format=json "
            f"to encode all of them ({_FORMAT}), found "
            f"{', '.join(name for name in names if name != LANE_COLUMN)}"
        )
    for name, (kinds, wanted) in _TYPES.items():
        is_published = name != "value" or not (settings.json_columns or "data" in names)
        if name in names and is_published and not isinstance(schema[name].dataType, kinds):
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
