"""The columns of a row that is published: where its body, its topic and its key come from."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Generator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from haclient.errors import UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import ServerLogReader
from haclient.pyspark.server.sow import SowReader
from haclient.pyspark.sink.settings import SinkSettings
from haclient.pyspark.sink.writers import Task, rows_of, with_data, write_task
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread

URI = "tcp://h:1/amps/json"
PATIENT = {"flushTimeoutMs": "100000"}  # for a machine that is busy


def columns(**types: DataType) -> StructType:
    schema = StructType()
    for name, kind in types.items():
        schema = schema.add(name, kind)
    return schema


def bodies(rows: pa.RecordBatch, schema: StructType, **options: str) -> list[bytes]:
    """What would be published of rows."""
    settings = SinkSettings({"uri": URI, "topic": "t", **options}, schema)
    return [*rows_of(settings, with_data(settings, rows)).bodies]


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    """Topics whose publishers give the keys."""
    topics = tuple(SowTopic(name, ()) for name in ("keyed", "lanes", "deleted"))
    with broker_thread(BrokerConfig(sow_topics=topics)) as broker:
        yield broker


def records(broker: BrokerThread, topic: str, command: str = "sow") -> list[tuple[str, bytes]]:
    """Key and body of each record, or of each message of the log."""
    given = {"uri": broker.uri, "topic": topic, "command": command, "columns": "sow_key,data"}
    options = ServerOptions(OptionReader("amps", given))
    reader = SowReader(options) if options.is_query else ServerLogReader(options)
    found = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows: list[dict[str, Any]] = [row for batch in found for row in batch.to_pylist()]
    return [(row["sow_key"], row["data"]) for row in rows]


def test_the_body_may_be_in_a_column_value() -> None:
    rows = pa.record_batch({"value": ["a", "b"]})
    assert bodies(rows, columns(value=StringType())) == [b"a", b"b"]
    both = pa.record_batch({"value": [1], "data": [b"a"]})
    assert bodies(both, columns(value=LongType(), data=BinaryType())) == [b"a"]
    with pytest.raises(UsageError, match="the column value has to be BINARY or STRING, found int"):
        bodies(rows, columns(value=IntegerType()))


def test_a_row_without_a_body_is_encoded_as_json_on_request() -> None:
    rows = pa.record_batch(
        {
            "topic": ["t"],
            "id": [1],
            "px": [1.5],
            "nan": [math.inf],
            "none": pa.array([None], pa.string()),
            "name": ["Zürich"],
            "at": pa.array([0], pa.timestamp("us", tz="Europe/Berlin")),  # of the session
            "plain": pa.array([0], pa.timestamp("us")),
            "day": [dt.date(2026, 1, 31)],
            "raw": [b"\x01\x02"],
            "amount": [Decimal("1.50")],
            "legs": [[{"qty": math.nan}, {"qty": 1}]],
            "value": [7],
            "_lane": pa.array([0], pa.int32()),
        }
    )
    names = [name for name in rows.schema.names if name not in {"topic", "_lane"}]
    schema = columns(topic=StringType(), _lane=IntegerType(), **dict.fromkeys(names, LongType()))
    assert bodies(rows, schema, format="JSON") == [
        '{"id":1,"px":1.5,"name":"Zürich","at":"1970-01-01T00:00:00Z",'
        '"plain":"1970-01-01T00:00:00","day":"2026-01-31","raw":"AQI=","amount":"1.50","legs":[{"qty":null},{"qty":1.0}],"value":7}'.encode()
    ]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (columns(data=BinaryType(), id=LongType()), "format=json makes the column data"),
        (columns(key=StringType(), topic=StringType()), "format=json needs columns to encode"),
        (
            columns(m=MapType(StringType(), LongType())),
            "cannot encode the column m of type map<string,bigint>: drop it",
        ),
    ],
)
def test_what_cannot_be_encoded_is_named(schema: StructType, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SinkSettings({"uri": URI, "topic": "t", "format": "json"}, schema)


@pytest.mark.row("SK7")
def test_a_row_may_have_the_key_of_its_record(broker: BrokerThread) -> None:
    settings = SinkSettings(
        {**PATIENT, "uri": broker.uri, "topic": "keyed", "format": "json"},
        columns(key=StringType(), px=DoubleType()),
    )
    rows = pa.record_batch({"key": ["a", "b", "a"], "px": [1.0, 2.0, 3.0]})
    write_task(settings, Task("query", 0, 0), iter([rows]))
    assert records(broker, "keyed") == [("a", b'{"px":3.0}'), ("b", b'{"px":2.0}')]
    with pytest.raises(UsageError, match="the column key has to be STRING, found binary"):
        SinkSettings({"uri": URI, "topic": "t"}, columns(data=BinaryType(), key=BinaryType()))


@pytest.mark.row("SK7")
def test_rows_of_a_lane_have_keys_correlation_ids_and_expirations(broker: BrokerThread) -> None:
    given = {"guarantee": "exactly-once", "lanes": "1", "orderColumns": "at", "format": "json"}
    schema = columns(
        key=StringType(),
        at=LongType(),
        correlation_id=StringType(),
        expiration=LongType(),
        _lane=IntegerType(),
    )
    settings = SinkSettings({**PATIENT, **given, "uri": broker.uri, "topic": "lanes"}, schema)
    rows = pa.record_batch(
        {
            "key": ["b", "a"],
            "at": [2, 1],
            "correlation_id": ["two", None],
            "expiration": pa.array([None, 60], pa.int64()),
            "_lane": pa.array([0, 0], pa.int32()),
        }
    )
    for _ in range(2):  # a task that is repeated publishes nothing twice
        write_task(settings, Task("lanes", 0, 0), iter([rows]))
    found = records(broker, "lanes", command="subscribe")
    assert found == [("a", b'{"at":1}'), ("b", b'{"at":2}')]


@pytest.mark.row("SK7")
def test_a_record_is_deleted_by_its_key_alone(broker: BrokerThread) -> None:
    given = {**PATIENT, "uri": broker.uri, "topic": "deleted"}
    schema = columns(key=StringType(), value=StringType())
    rows = pa.record_batch({"key": ["a", "b"], "value": ["1", "2"]})
    write_task(SinkSettings(given, schema), Task("query", 0, 0), iter([rows]))
    settings = SinkSettings({**given, "command": "sow_delete"}, columns(key=StringType()))
    keys = pa.record_batch({"key": ["b"]})
    write_task(settings, Task("query", 1, 0), iter([keys]))
    assert records(broker, "deleted") == [("a", b"1")]
