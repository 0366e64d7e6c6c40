"""The data source as PySpark calls it on the driver; nothing here needs a session."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from haclient.client import Client
from haclient.errors import PublishFailed, UsageError
from haclient.pyspark.amps import AmpsDataSource
from haclient.pyspark.sink.checkpoint_files import (
    GUARD_FILE,
    RESOLVED_DIRECTORY,
    UNLOGGED_DIRECTORY,
)
from haclient.pyspark.sink.settings import SinkSettings
from haclient.pyspark.sink.writers import LaneDone, Task, check_lanes, rows_of, write_task
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.journals import model_records, model_rows

URI = "tcp://h:1/amps/json"


def columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


ROWS = columns(data=BinaryType(), id=LongType())
LANES = columns(data=BinaryType(), id=LongType(), _lane=IntegerType())
PATIENT = {"flushTimeoutMs": "100000"}  # for a machine that is busy
EXACTLY_ONCE = {
    **PATIENT,
    "uri": URI,
    "topic": "t",
    "guarantee": "exactly-once",
    "lanes": "2",
}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"uri": ""}, "the option uri is missing"),
        ({"uri": "nowhere"}, "nowhere"),
        ({"topic": ""}, "set the option topic, or give the rows a column topic"),
        ({"guarantee": "exactly-once"}, "needs lanes: write what publish_stream"),
        ({"guarantee": "twice"}, "guarantee has to be one of exactly-once"),
        ({"flushTimeoutMs": "soon"}, "flushTimeoutMs has to be a whole number from 1 on"),
        ({"onFailedWrite": "table"}, "the option failedWritesPath is missing"),
        ({"onFailedWrite": "deadLetter"}, "the option deadLetterTopic is missing"),
        ({"orderColumns": "x"}, "there is no column x to order by: data, id"),
        ({"topik": "t"}, "unknown option topik: did you mean topic"),
        ({"format": "json", "hasBodies": "true"}, "comes too late as an option: publish_frame"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    given = {"uri": URI, "topic": "t", **options}
    for write in (AmpsDataSource(given).writer, AmpsDataSource(given).streamWriter):
        with pytest.raises(UsageError, match=message):
            write(ROWS, overwrite=False)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            columns(id=LongType(), _lane=IntegerType()),
            r'to encode all of them \(publish_frame\(..., format="json"\), .*, found id$',
        ),
        (columns(data=LongType()), "data has to be BINARY or STRING, found bigint"),
        (columns(data=BinaryType(), topic=IntegerType()), "topic has to be STRING, found int"),
    ],
)
def test_a_wrong_column_is_named(schema: StructType, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        AmpsDataSource({"uri": URI, "topic": "t"}).writer(schema, overwrite=False)


def test_exactly_once_has_no_policy_but_to_fail_and_no_foreign_correlation_ids() -> None:
    refused = {**EXACTLY_ONCE, "onFailedWrite": "deadLetter", "deadLetterTopic": "d"}
    with pytest.raises(UsageError, match="onFailedWrite=deadLetter needs guarantee=at-least-once"):
        SinkSettings(refused, LANES)
    with_ids = columns(data=BinaryType(), correlation_id=StringType(), _lane=IntegerType())
    assert not SinkSettings(EXACTLY_ONCE, with_ids).with_digests
    assert SinkSettings(EXACTLY_ONCE, LANES).with_digests
    with pytest.raises(UsageError, match="drop the column correlation_id, or set verifyResume"):
        SinkSettings({**EXACTLY_ONCE, "verifyResume": "true"}, with_ids)


def test_a_log_is_only_appended_to() -> None:
    with pytest.raises(UsageError, match="nothing in a log can be overwritten"):
        AmpsDataSource({"uri": URI, "topic": "t"}).writer(ROWS, overwrite=True)


def test_each_lane_needs_a_task() -> None:
    settings = SinkSettings(EXACTLY_ONCE, LANES)
    check_lanes(settings, [LaneDone(1, 5, 0), LaneDone(0, 5, 5)])
    for lanes in ([0], [0, 0], [0, 1, 2], []):
        with pytest.raises(UsageError, match="2 lanes need a task each, found the tasks"):
            check_lanes(settings, [LaneDone(lane, 5, 0) for lane in lanes])
    check_lanes(SinkSettings({"uri": URI, "topic": "t"}, ROWS), [LaneDone(0, 5, 0), None])


@pytest.mark.row("SK6")
@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "{}/"])
def test_the_guard_is_kept_beside_the_checkpoint(tmp_path: Path, form: str) -> None:
    options = {**EXACTLY_ONCE, "laneKey": "id", "checkpointLocation": form.format(tmp_path / "c")}

    def plan(**changed: str) -> None:
        AmpsDataSource({**options, **changed}).streamWriter(LANES, overwrite=False)

    plan()
    plan()
    assert (tmp_path / "c" / GUARD_FILE).exists()
    with pytest.raises(UsageError, match="lanes is 3 and was 2 when this checkpoint began"):
        plan(lanes="3")


@pytest.mark.row("SK8")
def test_a_query_with_refused_rows_does_not_go_on(tmp_path: Path) -> None:
    options = {**EXACTLY_ONCE, "checkpointLocation": str(tmp_path)}
    rows = pa.record_batch(
        {"data": [b"a", b"b"], "id": [1, 2], "_lane": pa.array([0, 0], pa.int32())}
    )
    with BrokerProcess("--sow", "t:/key") as broker:
        given = {**options, "uri": broker.uri}
        settings = SinkSettings(given, LANES)
        wanted = (
            rf"row 1: bad message.*: publish .*, then move every file of .*{UNLOGGED_DIRECTORY}"
        )
        with pytest.raises(PublishFailed, match=wanted):
            write_task(settings, Task("query", 0, 7), iter([rows]))
        # The server has seen the rows: without the file, these would succeed and publish nothing.
        for lane in (0, 1):
            with pytest.raises(UsageError, match=rf'"batch": 7.*then move .*{UNLOGGED_DIRECTORY}'):
                write_task(settings, Task("query", lane, 7), iter(()))
        # PySpark asks once more for a writer to abort; an error there would hide the refusal.
        AmpsDataSource(given).streamWriter(LANES, overwrite=False)


@pytest.mark.row("SK8")
@pytest.mark.parametrize("is_told", [True, False])
def test_a_query_goes_on_when_the_user_has_resolved_its_refused_rows(
    tmp_path: Path,
    is_told: bool,  # noqa: FBT001  # pytest passes it by name
) -> None:
    options = {**EXACTLY_ONCE, "topic": "t", "lanes": "1", "checkpointLocation": str(tmp_path)}
    bodies = [b'{"id":1}', b'{"no":2}', b'{"id":3}']
    rows = pa.record_batch({"data": bodies, "_lane": pa.array([0] * 3, pa.int32())})
    unlogged, resolved = tmp_path / UNLOGGED_DIRECTORY, tmp_path / RESOLVED_DIRECTORY
    with BrokerProcess("--sow", "t:/id") as broker:
        settings = SinkSettings({**options, "uri": broker.uri}, LANES)
        publish = partial(write_task, settings, Task("query", 0, 0))
        with pytest.raises(PublishFailed, match="row 3: bad sow key"):  # rows are sorted
            publish(iter([rows]))
        if not is_told:  # the executor that was told is lost
            shutil.rmtree(unlogged)
            with pytest.raises(PublishFailed, match=r"1 of the 3 rows .*\(row 3\): it has refused"):
                publish(iter([rows]))
        (file,) = unlogged.iterdir()
        file.rename(resolved / file.name)
        for _ in range(2):
            assert publish(iter([rows])).skipped == 3
        write_task(settings, Task("query", 0, 1), iter([rows.slice(0, 1)]))  # the next batch
        assert not list(unlogged.iterdir())


@pytest.mark.row("SK8")
def test_a_query_whose_rows_retention_has_removed_goes_on_when_the_user_says_so(
    tmp_path: Path,
) -> None:
    journal, checkpoint = tmp_path / "journal", tmp_path / "c"
    options = {**EXACTLY_ONCE, "lanes": "1", "checkpointLocation": str(checkpoint)}
    rows = pa.record_batch({"data": [b"a", b"b"], "_lane": pa.array([0, 0], pa.int32())})
    many = pa.record_batch({"data": [b"x" * 20_000] * 200})
    with BrokerProcess("--segment-bytes", str(2**20), data_dir=journal) as broker:
        settings = SinkSettings({**options, "uri": broker.uri}, LANES)
        publish = partial(write_task, settings, Task("query", 0, 0))
        assert publish(iter([rows])).skipped == 0
        others = SinkSettings(
            {**PATIENT, "uri": broker.uri, "topic": "t"}, columns(data=BinaryType())
        )
        write_task(others, Task("other", 0, 0), iter([many]))
        broker.stop()
        for file in journal.glob("journal.00000001*"):
            file.unlink()
        broker.start()
        wanted = r"\(rows 1 to 2\): it has refused them, or has removed them with its oldest"
        with pytest.raises(PublishFailed, match=wanted):
            publish(iter([rows]))
        for file in (checkpoint / UNLOGGED_DIRECTORY).iterdir():
            file.rename(checkpoint / RESOLVED_DIRECTORY / file.name)
        assert publish(iter([rows])).skipped == 2


@pytest.mark.row("SK8")
def test_a_batch_with_refused_rows_is_not_committed() -> None:
    rows = pa.record_batch({"data": [b"a"], "_lane": pa.array([0], pa.int32())})
    with BrokerProcess("--sow", "t:/key") as broker:
        given = {**EXACTLY_ONCE, "uri": broker.uri, "lanes": "1"}
        settings = SinkSettings(given, LANES)
        done = write_task(settings, Task("job", 0, 0), iter([rows]))
        with pytest.raises(PublishFailed, match="row 1: bad message"):
            check_lanes(settings, [done])


@pytest.mark.row("SK2")
@pytest.mark.parametrize("topic", ["/AMPS/x", "/HACLIENT/x"])
def test_the_topics_of_a_server_are_refused_before_anything_is_published(topic: str) -> None:
    with pytest.raises(UsageError, match=f"{topic} is a topic of the server"):
        SinkSettings({**EXACTLY_ONCE, "topic": topic}, LANES)
    given = {name: value for name, value in EXACTLY_ONCE.items() if name != "topic"}
    settings = SinkSettings(given, StructType([*LANES.fields, StructField("topic", StringType())]))
    rows = pa.table({"data": [b"a", b"b"], "topic": ["t", topic]})
    with pytest.raises(UsageError, match=f"{topic} is a topic of the server"):
        rows_of(settings, rows)
    SinkSettings({"uri": URI, "topic": topic}, ROWS)  # at least once, such a row can go elsewhere


@pytest.mark.row("SK4")
def test_an_empty_frame_needs_no_task_for_each_lane() -> None:
    settings = SinkSettings({**EXACTLY_ONCE, "lanes": "3"}, LANES)
    check_lanes(settings, [LaneDone(0, 0, 0)])
    with pytest.raises(UsageError, match=r"3 lanes need a task each, found the tasks \[0\]"):
        check_lanes(settings, [LaneDone(0, 1, 0)])


@pytest.mark.row("SK8")
@pytest.mark.parametrize("with_place", [False, True])
def test_a_job_with_a_refused_row_never_ends_well_under_its_id(
    tmp_path: Path,
    with_place: bool,  # noqa: FBT001  # a parameter
) -> None:
    rows = pa.record_batch(
        {"data": [b'{"id":1}', b'{"no":2}'], "_lane": pa.array([0, 0], pa.int32())}
    )
    place = {"checkpointLocation": str(tmp_path / "job")} if with_place else {}
    with BrokerProcess("--sow", "t:/id") as broker:
        given = {**EXACTLY_ONCE, "uri": broker.uri, "lanes": "1", "jobId": "j", **place}
        settings = SinkSettings(given, LANES)
        for message in ("row 2: bad sow key", "1 of the 2 rows of batch 0 that an earlier"):
            if with_place:
                with pytest.raises((PublishFailed, UsageError), match="row 2: bad sow key"):
                    write_task(settings, Task("j", 0, 0), iter([rows]))
            else:
                done = write_task(settings, Task("j", 0, 0), iter([rows]))
                with pytest.raises(PublishFailed, match=message):
                    check_lanes(settings, [done])


@pytest.mark.row("SK8")
def test_a_dead_letter_is_a_message_whatever_the_row_was_to_be() -> None:
    rows = pa.record_batch({"data": [b'{"no":1}']})
    options = {"command": "sow_delete", "expiration": "5", "topic": "t"}
    letters = {"onFailedWrite": "deadLetter", "deadLetterTopic": "dead"}
    with BrokerProcess("--sow", "t:/id") as broker:
        given = {**PATIENT, "uri": broker.uri, **options, **letters}
        settings = SinkSettings(given, columns(data=BinaryType()))
        assert write_task(settings, Task("job", 0, 0), iter([rows])).rows == 1
        assert trio.run(first_dead_letter, broker.uri) == ("dead", b'{"no":1}'.decode())


@pytest.mark.row("SK8")
def test_refused_rows_go_to_a_table_or_to_a_dead_letter_topic(tmp_path: Path) -> None:
    topics = ["orders", "/AMPS/x", "orders"]
    rows = pa.record_batch({"data": [b"a", b"b", b"c"], "topic": topics})
    schema = columns(data=BinaryType(), topic=StringType())
    with BrokerProcess() as broker:

        def write(**options: str) -> None:
            settings = SinkSettings({**PATIENT, "uri": broker.uri, **options}, schema)
            assert write_task(settings, Task("job", 0, 0), iter([rows])).rows == 3

        with pytest.raises(PublishFailed, match="has refused 1 rows, the first one: not entitled"):
            write()
        write(onFailedWrite="table", failedWritesPath=str(tmp_path / "refused"))
        (file,) = (tmp_path / "refused").iterdir()
        assert pq.read_table(file).to_pylist() == [
            {"topic": "/AMPS/x", "data": b"b", "reason": "not entitled"}
        ]
        write(onFailedWrite="deadLetter", deadLetterTopic="dead")
        found = trio.run(first_dead_letter, broker.uri)
    assert found == ("dead", "b")


async def first_dead_letter(uri: str) -> tuple[str, str]:
    """The first message of the dead letter topic."""
    async with Client("reader") as client:
        await client.connect(uri)
        await client.logon()
        async with client.bookmark_stream("dead", sub_id="s", bookmark=EPOCH) as stream:
            message = await anext(stream)
            return message.topic, message.text


@pytest.mark.row("SK7")
def test_a_row_may_have_an_expiration_of_its_own() -> None:
    seconds = pa.array([60, None, 0], pa.int32())
    rows = pa.record_batch({"data": [b"a", b"b", b"c"], "expiration": seconds})
    schema = columns(data=BinaryType(), expiration=IntegerType())
    given = {**PATIENT, "uri": URI, "topic": "t"}
    assert rows_of(SinkSettings(given, schema), rows).expirations == [60, None, 0]
    settings = SinkSettings({**given, "expiration": "5"}, schema)
    assert rows_of(settings, rows).expirations == [60, 5, 0]
    for wrong in (-1, 2**32):
        rows = pa.record_batch({"data": [b"a"], "expiration": pa.array([wrong], pa.int64())})
        with pytest.raises(UsageError, match=f"the column expiration has to be .* found {wrong}"):
            rows_of(settings, rows)
    with pytest.raises(UsageError, match="expiration has to be INT or BIGINT, found string"):
        SinkSettings(given, columns(data=BinaryType(), expiration=StringType()))


@pytest.mark.row("SK7")
def test_correlation_ids_and_expirations_are_in_the_journal(tmp_path: Path) -> None:
    rows = pa.record_batch(
        {
            "data": [b"b", b"a"],
            "correlation_id": ["two", None],
            "expiration": pa.array([None, 60], pa.int64()),
            "_lane": pa.array([0, 0], pa.int32()),
        }
    )
    types = {"data": BinaryType(), "correlation_id": StringType(), "expiration": LongType()}
    schema = columns(**types, _lane=IntegerType())
    with BrokerProcess(data_dir=tmp_path) as broker:
        settings = SinkSettings({**EXACTLY_ONCE, "uri": broker.uri}, schema)
        write_task(settings, Task("query", 0, 0), iter([rows]))
    found = [each for each in model_records(tmp_path) if each.is_data]
    assert [(each.payload, each.correlation_id, each.expiration_s) for each in found] == [
        (b"a", b"", 60),
        (b"b", b"two", None),
    ]


@pytest.mark.row("SK1")
def test_a_sink_publishes_changes_and_deletes_records(tmp_path: Path) -> None:
    work = {
        "publish": b'{"id":1,"a":1}',
        "delta_publish": b'{"id":1,"b":2}',
        "sow_delete": b'{"id":1}',
    }
    with BrokerProcess("--sow", "t:/id", data_dir=tmp_path) as broker:
        for batch, (command, data) in enumerate(work.items()):
            given = {**EXACTLY_ONCE, "uri": broker.uri, "command": command}
            rows = pa.record_batch({"data": [data], "_lane": pa.array([0], pa.int32())})
            done = write_task(SinkSettings(given, LANES), Task("query", 0, batch), iter([rows]))
            assert (done.rows, done.skipped, done.failure) == (1, 0, "")
    found = [row for row in model_rows(tmp_path) if row.topic == "t"]
    assert [row.command for row in found] == ["publish", "publish", "sow_delete"]
    assert json.loads(found[1].data) == {"id": 1, "a": 1, "b": 2}, "merged by the broker"
