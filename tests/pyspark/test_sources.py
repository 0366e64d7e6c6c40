"""What both data sources have in common, as PySpark asks them; nothing here needs a session."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from haclient.errors import UsageError
from haclient.pyspark.amps import AmpsDataSource
from haclient.pyspark.journal.source import (
    JournalDataSource,
    JournalSettings,
)
from haclient.pyspark.sources import LogDataSource

SERVER = {"uri": "tcp://h:1/amps/json", "topic": "a"}
JOURNAL = {"path": "/data/east", "topic": "a"}
SOURCES = [(AmpsDataSource, SERVER), (JournalDataSource, JOURNAL)]

both = pytest.mark.parametrize(("source", "given"), SOURCES, ids=["amps", "amps-journal"])


@both
def test_a_range_does_not_end_before_it_starts(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    times = {"startingTimestamp": "2026-02-01", "endingTimestamp": "2026-01-01"}
    with pytest.raises(UsageError, match="endingTimestamp has to be no earlier than the start, 20"):
        source({**given, **times}).schema()
    positions = {"startingPosition": "9", "endingPosition": "3"}
    with pytest.raises(UsageError, match="endingPosition has to be no lower than startingPosition"):
        JournalSettings({**JOURNAL, **positions})


@both
def test_the_fields_of_bodies_are_columns_in_place_of_the_body(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    ddl = source({**given, "bodySchema": "id BIGINT"}).schema()
    assert ddl.startswith("topic STRING, bookmark STRING, ")
    assert ddl.endswith("correlation_id STRING, /* bodySchema: */ id BIGINT, _corrupt BINARY")
    assert "data" not in ddl
    chosen = source({**given, "bodySchema": "id BIGINT", "columns": "data,topic"}).schema()
    assert chosen == "data BINARY, topic STRING, /* bodySchema: */ id BIGINT, _corrupt BINARY"


@both
@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsets"])
def test_a_stream_does_not_begin_at_a_time_to_come(
    source: type[LogDataSource], given: dict[str, str], option: str
) -> None:
    options = {**given, option: "2999-01-01T00:00:00Z", "columns": "topic"}
    opened = source(options)
    schema = StructType([StructField("topic", StringType())])
    with pytest.raises(UsageError, match="is to begin at 29990101T000000Z, a time to come"):
        opened.streamReader(schema).initialOffset()


def test_a_schema_may_be_a_struct_type() -> None:
    schema = StructType(
        [
            StructField("id", LongType()),
            StructField("a`b", ArrayType(DecimalType(10, 2))),
            StructField("c", StructType([StructField("d", StringType())])),
        ]
    )
    options = {**SERVER, "columns": "topic", "bodySchema": str(schema)}  # as PySpark passes it
    assert AmpsDataSource(options).schema() == (
        "topic STRING, /* bodySchema: */ `id` bigint, `a``b` array<decimal(10,2)>, "
        "`c` struct<d:string>, _corrupt BINARY"
    )
    for text in ("StructType(", "StructType([open('x')])", "StructType([1])"):
        with pytest.raises(UsageError, match="bodySchema has to be DDL such as 'id BIGINT', or a"):
            AmpsDataSource({**SERVER, "bodySchema": text}).schema()


@both
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_task_reads_the_fields_of_bodies(
    source: type[LogDataSource], given: dict[str, str], *, is_stream: bool
) -> None:
    options = {**given, "columns": "topic", "bodySchema": "id BIGINT"}
    schema = StructType(
        [
            StructField("topic", StringType()),
            StructField("id", LongType()),
            StructField("_corrupt", BinaryType()),
        ]
    )
    settings = source(options).read_options(schema, is_stream=is_stream)
    assert settings.columns == ("topic", "command", "data")
    batch = pa.record_batch(
        {
            "topic": ["a", "a", "b"],
            "command": ["publish", "publish", "sow_delete"],
            "data": [b'{"id":1}', b"?", b"key"],
        }
    )
    (rows,) = pickle.loads(pickle.dumps(settings)).rows(iter([batch]))  # noqa: S301  # our own
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        ("a", 1, None),
        ("a", None, b"?"),
        ("b", None, None),
    ]


@both
def test_a_schema_of_the_user_is_refused(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    schema = StructType([StructField("id", LongType())])
    for options in (given, {**given, "bodySchema": "id BIGINT"}):
        with pytest.raises(UsageError, match="give no schema, and choose columns by the option"):
            source(options).read_options(schema, is_stream=False)


@both
def test_a_wrong_option_is_named_before_anything_is_planned(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    for wrong, problem in (
        ({"topik": "x"}, r"unknown option topik: did you mean topic\?"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger has to be a whole number"),
        ({"endingOffsets": "first"}, "the option endingOffsets has to be earliest"),
    ):
        with pytest.raises(UsageError, match=problem):
            source({**given, **wrong}).schema()
    for right in ({"maxMessagesPerTrigger": "5"}, {"endingOffsets": "latest"}):
        source({**given, **right}).schema()


def test_the_path_of_load_may_be_the_uri_of_a_server() -> None:
    def uris(**given: str) -> tuple[str, ...]:
        source = AmpsDataSource({"topic": "a", **given})
        return source.read_options(None, is_stream=False).uris

    assert uris(path=SERVER["uri"]) == (SERVER["uri"],)
    assert uris(path="file:/warehouse/a", uri=SERVER["uri"]) == (SERVER["uri"],)
    with pytest.raises(UsageError, match="the option uri is missing"):
        uris(path="file:/warehouse/a")


def test_a_journal_is_read_only() -> None:
    source = JournalDataSource(JOURNAL)
    for write in (source.writer, source.streamWriter):
        with pytest.raises(UsageError, match="amps-journal is read only: publish to a server"):
            write(StructType([]), overwrite=False)


@both
def test_the_options_of_a_table_are_refused_and_a_table_without_any_is_not(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    made = {"provider": source.name(), "owner": "bob"}
    kept = {f"option.{name}": value for name, value in given.items()}
    with pytest.raises(UsageError, match=r"the OPTIONS of a table .*: create a TEMPORARY VIEW, or"):
        source({**made, **given, **kept}).schema()
    assert source(made).schema().startswith("topic STRING, ")
    with pytest.raises(UsageError, match=r"is missing: .*options of the query only"):
        source({}).schema()


@both
def test_the_option_that_pushed_conditions_down_is_refused_with_what_to_do(
    source: type[LogDataSource], given: dict[str, str]
) -> None:
    message = "unknown option filterpushdown: select with filter, topic or times; a journal's cond"
    with pytest.raises(UsageError, match=message):
        source({**given, "filterPushdown": "true"}).schema()
