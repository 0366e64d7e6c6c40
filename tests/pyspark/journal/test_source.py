"""`format("amps-journal")` gives each row of a broker's log once, in batches and in streams."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from haclient import HAClient
from haclient.client import Client
from haclient.errors import StoreCorrupt, UsageError
from haclient.pyspark.journal.records import record_offsets
from haclient.pyspark.journal.source import (
    JournalDataSource,
    JournalRangeReader,
    JournalSettings,
    JournalStreamReader,
    decode_place,
)
from haclient.pyspark.rows import COLUMNS, DataLoss, signed
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    JournalFormatError,
    encode_block,
    read_blocks,
    segment_name,
)
from haclient_fake_server.server import BrokerServer
from haclient_fake_server.testing.processes import BrokerProcess
from support.journals import FIRST_US, JournalWriter, deletion, message, model_rows
from support.streams import finish

START = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=FIRST_US)
POSITIONS = {"columns": "position"}


def write(folder: Path, count: int = 600, *, segment_bytes: int = 64 * 1024) -> JournalWriter:
    """A journal of several segments: a delete in each block, keys, correlation ids, two topics."""
    writer = JournalWriter(folder, segment_bytes=segment_bytes)
    for number in range(0, count, 10):
        topic = "orders" if number < count // 2 else "prices"
        writer.append(
            [
                *(
                    message(
                        b"x" * (100 + each),
                        topic=topic,
                        publisher_id=2**64 - 1 - each % 3,
                        key=b"k%d" % each if each % 2 else b"",
                        correlation_id=b"c" * (each % 4),
                    )
                    for each in range(9)
                ),
                deletion(b"k1,k3", topic=topic),
            ]
        )
    writer.seal()
    return writer


def rows_of(reader: JournalRangeReader | JournalStreamReader, *splits: InputPartition) -> list[Any]:
    """The rows of some splits, as tuples, read in this process."""
    batches = [batch for split in splits for batch in reader.read(split)]
    return [row for batch in batches for row in zip(*map(values_of, batch.columns), strict=True)]


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column; times in microseconds."""
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    values: list[Any] = plain.to_pylist()
    return values


def reader(folder: Path, **options: str) -> JournalRangeReader:
    return JournalRangeReader(JournalSettings({"journalPath": str(folder), **options}))


def stream(folder: Path, **options: str) -> JournalStreamReader:
    defaults = {"journalPath": str(folder), "startingBookmark": "EPOCH", **POSITIONS}
    return JournalStreamReader(JournalSettings({**defaults, **options}, is_stream=True))


def read_all(folder: Path, **options: str) -> list[Any]:
    source = reader(folder, **options)
    return rows_of(source, *source.partitions())


def positions(folder: Path, **options: str) -> list[int]:
    return [row[0] for row in read_all(folder, **POSITIONS, **options)]


def model(folder: Path) -> list[Any]:
    """All rows as a slow reader gives them."""
    return [
        tuple(row._replace(publisher_id=signed(row.publisher_id), sequence=signed(row.sequence)))
        for row in model_rows(folder)
    ]


def frame(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("amps-journal").options(journalPath=str(folder), **options).load()


# --- batches ------------------------------------------------------------------------------------


@pytest.mark.row("SB5")
def test_every_row_is_the_one_of_a_slow_reader(tmp_path: Path) -> None:
    write(tmp_path)
    rows = read_all(tmp_path)
    assert rows == model(tmp_path)
    assert [row[6] for row in rows[:10]] == ["publish"] * 9 + ["sow_delete"]


@pytest.mark.row("SB7")
def test_splits_and_batches_of_any_size_give_the_same_rows(tmp_path: Path) -> None:
    write(tmp_path, 5000, segment_bytes=2**20)
    for options in (
        {"maxPartitionBytes": "1"},
        {"maxPartitionBytes": "300k"},
        {"minPartitions": "3"},
        {"batchRows": "7"},
    ):
        assert positions(tmp_path, **options) == [*range(1, 5001)]
    assert len(reader(tmp_path, maxPartitionBytes="1").partitions()) > 2
    assert len(reader(tmp_path, minPartitions="3").partitions()) >= 3
    assert len(reader(tmp_path).partitions()) == 1
    source = reader(tmp_path, batchRows="7")
    sizes = {batch.num_rows for split in source.partitions() for batch in source.read(split)}
    assert max(sizes) == 7


@pytest.mark.row("SB3")
def test_the_end_is_fixed_when_the_query_is_planned(tmp_path: Path) -> None:
    writer = write(tmp_path)
    source = reader(tmp_path, **POSITIONS)
    splits = source.partitions()
    first = rows_of(source, *splits)
    for _ in range(50):
        writer.append([message(b"late" * 100)] * 10)
    writer.seal()
    assert rows_of(source, *splits) == first == [(p,) for p in range(1, 601)]
    assert len(positions(tmp_path)) == 1100


@pytest.mark.row("SB2")
@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 1, 600),
        ({"startingBookmark": "EPOCH"}, 1, 600),
        ({"startingOffsets": "earliest"}, 1, 600),
        ({"startingPosition": "301", "endingPosition": "420"}, 301, 420),
        ({"endingPosition": "9999"}, 1, 600),
        ({"startingBookmark": f"{2**64 - 1}|4|"}, 12, 600),
        ({"startingBookmark": f"{2**64 - 1}|7|,{2**64 - 2}|4|"}, 13, 600),
        ({"endingBookmark": f"{2**64 - 1}|4|"}, 1, 11),
        ({"startingTimestamp": (START + timedelta(microseconds=101)).isoformat()}, 101, 600),
        ({"endingTimestamp": (START + timedelta(microseconds=101)).isoformat()}, 1, 100),
        ({"startingBookmark": "20260131T093000.000101Z"}, 101, 600),
        ({"startingOffsets": "2026-01-31T09:30:00.000101Z"}, 101, 600),
        ({"startingOffsets": f"{2**64 - 1}|4|", "endingOffsets": "Latest"}, 12, 600),
        ({"startingBookmark": "Earliest", "endingBookmark": "NOW"}, 1, 600),
        ({"endingOffsets": "2026-01-31T09:30:00.000101Z"}, 1, 100),
    ],
)
def test_a_range_has_positions_bookmarks_or_times_as_ends(
    tmp_path: Path, options: dict[str, str], first: int, last: int
) -> None:
    write(tmp_path)
    found = positions(tmp_path, **options)
    assert (found[0], found[-1]) == (first, last)
    assert found == [*range(first, last + 1)]


def test_topics_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    write(tmp_path)
    assert positions(tmp_path, topic="orders") == [*range(1, 301)]
    assert positions(tmp_path, topic="orders,prices") == [*range(1, 601)]
    assert positions(tmp_path, topicPattern="^pri") == [*range(301, 601)]
    assert positions(tmp_path, topic="other") == []
    assert positions(tmp_path, subscribe="orders") == [*range(1, 301)]
    assert positions(tmp_path, subscribePattern="^pri") == [*range(301, 601)]


def test_a_range_without_rows_is_empty(tmp_path: Path) -> None:
    write(tmp_path)
    assert positions(tmp_path, startingBookmark="NOW") == []
    assert positions(tmp_path, startingOffsets="latest") == []
    assert positions(tmp_path, endingOffsets="epoch") == []
    assert positions(tmp_path, startingPosition="700") == []
    JournalWriter(tmp_path / "new").close()
    assert positions(tmp_path / "new") == []


@pytest.mark.row("SB9")
def test_removed_positions_are_an_error_unless_that_is_accepted(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / segment_name(1)).unlink()
    left = positions(tmp_path)
    assert left[0] > 1
    for options in ({"startingPosition": "1"}, {"startingBookmark": f"{2**64 - 1}|1|"}):
        with pytest.raises(DataLoss, match="failOnDataLoss=false"):
            positions(tmp_path, **options)
        assert positions(tmp_path, failOnDataLoss="false", **options) == left
    with pytest.raises(DataLoss, match=r"endingBookmark .* is not in the log"):
        positions(tmp_path, endingBookmark="1|1|")


def test_a_segment_that_is_removed_while_it_is_read_is_left_out_if_that_is_accepted(
    tmp_path: Path,
) -> None:
    write(tmp_path, 2000)
    for accept in (False, True):
        source = reader(tmp_path, failOnDataLoss=str(not accept), **POSITIONS)
        splits = source.partitions()
        oldest = min(tmp_path.glob("journal.*[0-9]"))
        oldest.unlink()
        if accept:
            assert rows_of(source, *splits) == [(p,) for p in positions(tmp_path)]
        else:
            with pytest.raises(DataLoss, match="was removed after the query was planned"):
                rows_of(source, *splits)


def test_of_a_journal_only_the_columns_that_are_asked_for_are_decoded(tmp_path: Path) -> None:
    """A key is not as long as the record's header says: only who decodes it notices."""
    write(tmp_path, 10)
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    *_, block = read_blocks(bytes(data), SEGMENT_HEADER_BYTES, segment=1)
    at = record_offsets(bytes(data), [block])[-1] + RECORD_HEADER_BYTES
    data[at - 4 : at - 2] = b"\xff\xff"  # the length of the key
    data[block.offset : block.end] = encode_block(
        bytes(data[block.start : block.end]),
        count=block.records,
        first_position=block.first_position,
        segment=1,
        offset=block.offset,
    )
    path.write_bytes(data)
    assert positions(tmp_path) == [*range(1, 11)]
    headers = "topic,bookmark,publisher_id,sequence,position,timestamp,command"
    assert len(read_all(tmp_path, columns=headers)) == 10
    for column in ("sow_key", "correlation_id", "data"):
        with pytest.raises(JournalFormatError, match="lengths in a record header do not add up"):
            read_all(tmp_path, columns=column)


def test_damage_is_an_error_that_names_the_file_and_the_place(tmp_path: Path) -> None:
    write(tmp_path)
    path = tmp_path / segment_name(1)
    data = bytearray(path.read_bytes())
    data[SEGMENT_HEADER_BYTES + 2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=rf"{segment_name(1)}: corrupt at byte \d+: the checksu"):
        positions(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the option journalPath is missing: set it, such as"),
        ({"journalPath": "x", "topc": "a"}, "unknown option topc: did you mean topic"),
        ({"journalPath": "x", "topic": "a", "topicPattern": "b"}, "exclude each other"),
        ({"journalPath": "x", "columns": "a"}, "columns names 'a', which does not exist"),
        (
            {"journalPath": "x", "startingBookmark": "?"},
            "has to be earliest, latest, EPOCH, NOW, bo",
        ),
        ({"journalPath": "x", "startingBookmark": "recent"}, "startingBookmark has to be earliest"),
        ({"journalPath": "x", "endingBookmark": "1|1|,2|1|"}, "has to be one bookmark"),
        ({"journalPath": "x", "endingOffsets": "?"}, "endingOffsets has to be earliest"),
        ({"journalPath": "x", "path": "y"}, "journalPath and path exclude each other: keep one"),
        (
            {"path": "x", "subscribe": "a", "subscribePattern": "b"},
            "subscribe and subscribePattern",
        ),
        ({"path": "x", "startingOffset": "NOW"}, r"did you mean startingOffsets\?"),
        ({"journalPath": "x", "startingPosition": "1", "startingOffsets": "latest"}, "exclude"),
        ({"journalPath": "x", "maxBytesPerTrigger": "0"}, "has to be a number of bytes"),
        ({"journalPath": "x", "maxBytesPerTrigger": "1", "maxMessagesPerTrigger": "1"}, "exclude"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        JournalDataSource(options).schema()
    assert "\n" not in str(caught.value)


# --- in PySpark ---------------------------------------------------------------------------------


def test_pyspark_reads_what_a_broker_has_written(spark: SparkSession, tmp_path: Path) -> None:
    """Through a real broker: SOW keys, a correlation id, a delete."""

    async def publish() -> None:
        config = BrokerConfig(
            name="east", data_dir=tmp_path, sow_topics=(SowTopic("orders", ("/id",)),)
        )
        async with (
            BrokerServer(config) as server,
            HAClient("shop", servers=[f"{server.uris[0]}/amps/json"]) as client,
        ):
            for number in range(5):
                body = b'{"id": %d}' % number
                await client.publish("orders", body, correlation_id=f"c{number}")
            await client.publish("größe", b"[]")
            await client.sow_delete("orders", filter="/id = 1")

    trio.run(publish)
    rows = frame(spark, tmp_path, instance="east").orderBy("position").collect()
    assert [(r.position, r.topic, r.command) for r in rows] == [
        *((p, "orders", "publish") for p in range(1, 6)),
        (6, "größe", "publish"),
        (7, "orders", "sow_delete"),
    ]
    assert [bytes(r.data) for r in rows[:2]] == [b'{"id": 0}', b'{"id": 1}']
    assert [r.correlation_id for r in rows] == ["c0", "c1", "c2", "c3", "c4", None, None]
    assert rows[1].sow_key == bytes(rows[6].data).decode()
    assert all(abs(r.timestamp.year - 2020) < 50 for r in rows)
    with pytest.raises(PySparkException, match="the option instance is 'west', but another insta"):
        frame(spark, tmp_path, instance="west").count()


def test_pyspark_counts_every_row_once_over_many_splits(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path, 20_000, segment_bytes=2**20)
    rows = frame(spark, tmp_path, maxPartitionBytes="1m")
    assert rows.rdd.getNumPartitions() > 2
    found = rows.selectExpr(
        "count(*) n", "count(distinct position) d", "min(position) a", "max(position) b"
    ).collect()[0]
    assert (found.n, found.d, found.a, found.b) == (20_000, 20_000, 1, 20_000)
    by_topic = {r.topic: r["count"] for r in rows.groupBy("topic").count().collect()}
    assert by_topic == {"orders": 10_000, "prices": 10_000}
    assert rows.schema.names == [*COLUMNS]


@pytest.mark.row("SB1")
@pytest.mark.usefixtures("pushing")
def test_the_condition_of_a_query_does_not_stay_with_its_dataframe(
    spark: SparkSession, tmp_path: Path
) -> None:
    """PySpark keeps the partitions that it has planned for pushed filters, for each later query."""
    write(tmp_path)
    rows = frame(spark, tmp_path)
    assert rows.where("position <= 10").count() == 10
    assert rows.count() == 600
    both = frame(spark, tmp_path)
    assert both.where("position <= 10").union(both).count() == 610


def test_errors_of_a_source_are_readable_in_the_program(
    spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match=r"the option journalPath is missing: set it"):
        spark.read.format("amps-journal").load()
    typed = frame(spark, tmp_path / "none", bodySchema="id BIGINT, sequence BIGINT")
    with pytest.raises(PySparkException, match=r"bodySchema and columns both have sequence: leave"):
        typed.where("id = 1").count()
    with pytest.raises(PySparkException, match=r"bodySchema: \*/ id BIGNT, _corrupt"):
        frame(spark, tmp_path, bodySchema="id BIGNT")
    with pytest.raises(PySparkException, match=r"journalPath names .*, which is no directory here"):
        frame(spark, tmp_path / "none").count()
    write(tmp_path)
    path = tmp_path / segment_name(1)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(PySparkException, match=r"journal.00000001: corrupt at byte \d+"):
        frame(spark, tmp_path).count()
    reading = spark.read.format("amps-journal").schema("data BINARY")
    with pytest.raises(PySparkException, match=r"give no schema, and choose columns"):
        reading.load(journalPath=str(tmp_path)).count()


# --- streams ------------------------------------------------------------------------------------


def drain(source: JournalStreamReader, start: dict[str, Any]) -> Iterator[list[int]]:
    """The positions of each micro-batch until there is nothing more."""
    while (end := source.latestOffset(start, source.getDefaultReadLimit())) != start:
        found = [row[0] for row in rows_of(source, *source.partitions(start, end))]
        again = [row[0] for row in rows_of(source, *source.partitions(start, end))]
        assert again == found
        yield found
        start = end


@pytest.mark.row("SS5")
@pytest.mark.parametrize(
    ("options", "kind", "batches"),
    [
        ({}, ReadAllAvailable, 1),
        ({"maxMessagesPerTrigger": "250"}, ReadMaxRows, 3),
        ({"maxOffsetsPerTrigger": "599"}, ReadMaxRows, 2),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes, 2),
    ],
)
def test_a_stream_reads_as_much_at_once_as_its_limit_says(
    tmp_path: Path, options: dict[str, str], kind: type, batches: int
) -> None:
    write(tmp_path)
    source = stream(tmp_path, **options)
    assert isinstance(source.getDefaultReadLimit(), kind)
    found = [*drain(source, source.initialOffset())]
    assert len(found) >= batches
    assert [position for batch in found for position in batch] == [*range(1, 601)]


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    writer = write(tmp_path)
    settings = JournalSettings({"journalPath": str(tmp_path), **POSITIONS}, is_stream=True)
    source = JournalStreamReader(settings)
    start = source.initialOffset()
    assert [*drain(source, start)] == []
    writer.append([message()] * 3)
    assert [*drain(source, start)] == [[601, 602, 603]]


def test_a_stream_that_would_begin_beyond_the_end_is_refused(tmp_path: Path) -> None:
    write(tmp_path)

    def start(position: str) -> dict[str, Any]:
        options = {"journalPath": str(tmp_path), "startingPosition": position}
        return JournalStreamReader(JournalSettings(options, is_stream=True)).initialOffset()

    assert start("601")["position"] == 601
    with pytest.raises(UsageError, match=r"startingPosition is 602, but the next position .* 601"):
        start("602")


@pytest.mark.row("SS8")
def test_a_stream_reports_how_far_the_log_is(tmp_path: Path) -> None:
    write(tmp_path)
    source = stream(tmp_path, maxMessagesPerTrigger="10")
    end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    assert decode_place(end).position == 11
    assert decode_place(source.reportLatestOffset() or {}).position == 601


@pytest.mark.row("SS6")
def test_a_stream_of_what_is_available_now_stops_there(tmp_path: Path) -> None:
    writer = write(tmp_path)
    source = stream(tmp_path, maxMessagesPerTrigger="400")
    source.prepareForTriggerAvailableNow()
    writer.append([message()] * 3)
    found = [position for batch in drain(source, source.initialOffset()) for position in batch]
    assert found == [*range(1, 601)]


@pytest.mark.row("SS2")
def test_a_restarted_stream_reads_its_last_range_again_from_a_log_that_went_on(
    tmp_path: Path,
) -> None:
    writer = write(tmp_path, 300)
    source = stream(tmp_path)
    start = source.initialOffset()
    end = source.latestOffset(start, source.getDefaultReadLimit())
    before = rows_of(source, *source.partitions(start, end))
    for _ in range(60):
        writer.append([message(b"y" * 500)] * 10)
    writer.close()
    JournalWriter(tmp_path, segment_bytes=64 * 1024, start_id=78).close()
    again = stream(tmp_path)
    assert rows_of(again, *again.partitions(start, end)) == before
    assert len(before) == 300


def test_starting_options_count_for_the_first_start_alone(tmp_path: Path) -> None:
    writer = write(tmp_path, 100)
    first = stream(tmp_path)
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    writer.append([message(b"y")] * 20)
    writer.close()
    later = {"startingTimestamp": (START + timedelta(days=365)).isoformat()}
    settings = JournalSettings({"journalPath": str(tmp_path), **POSITIONS, **later}, is_stream=True)
    again = JournalStreamReader(settings)
    last = again.latestOffset(end, again.getDefaultReadLimit())
    assert len(rows_of(again, *again.partitions(end, last))) == 20


def test_a_broker_that_starts_again_makes_no_batch(tmp_path: Path) -> None:
    write(tmp_path).close()
    source = stream(tmp_path)
    end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    JournalWriter(tmp_path, segment_bytes=64 * 1024, start_id=78).close()
    assert source.latestOffset(end, source.getDefaultReadLimit()) == end


@pytest.mark.row("SS9")
def test_a_stream_whose_positions_were_removed_fails_or_goes_on_with_the_oldest(
    tmp_path: Path,
) -> None:
    write(tmp_path)
    offsets = stream(tmp_path).initialOffset()
    (tmp_path / segment_name(1)).unlink()
    with pytest.raises(DataLoss, match="position 1 is wanted, the oldest that is left is"):
        next(drain(stream(tmp_path), offsets))
    left = next(drain(stream(tmp_path, failOnDataLoss="false"), offsets))
    assert left == positions(tmp_path)


@pytest.mark.row("SS9")
def test_a_stream_never_goes_on_in_another_log(tmp_path: Path) -> None:
    write(tmp_path / "a").close()
    JournalWriter(tmp_path / "b", start_id=5).close()
    source = stream(tmp_path / "a")
    end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    other = stream(tmp_path / "b", failOnDataLoss="false")
    with pytest.raises(DataLoss, match="is another log than the one that was read"):
        other.latestOffset(end, other.getDefaultReadLimit())


@pytest.mark.row("SS9")
@pytest.mark.parametrize("count", [200, 700])
def test_a_running_stream_notices_that_its_log_was_replaced(tmp_path: Path, count: int) -> None:
    folder = tmp_path / "journal"
    write(folder).close()
    source = stream(folder)
    end = source.latestOffset(source.initialOffset(), source.getDefaultReadLimit())
    shutil.rmtree(folder)
    writer = JournalWriter(folder, segment_bytes=64 * 1024, start_id=5)
    writer.now_us += 1
    for _ in range(count):  # fewer segments than before, or as many
        writer.append([message(b"x" * 100)])
    writer.close()
    with pytest.raises(DataLoss, match="is another log than the one that was read"):
        source.latestOffset(end, source.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"version": 2, "position": 1}, "an offset of version 2, but this version of haclient"),
        ({"orders": {"0": 1}}, "the checkpoint is of another source"),
    ],
)
def test_an_offset_of_something_else_is_refused(offset: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decode_place(offset)


@pytest.mark.parametrize(
    "end", [{"endingPosition": "5"}, {"endingTimestamp": "1970-01-01T00:00:00Z"}]
)
def test_a_stream_with_an_end_is_refused(tmp_path: Path, end: dict[str, str]) -> None:
    options = {"journalPath": str(tmp_path), **end, **POSITIONS}
    with pytest.raises(UsageError, match="a stream has no end, use Trigger"):
        JournalDataSource(options).streamReader(StructType().add("position", "long"))


def run_stream(spark: SparkSession, folder: Path, out: Path, **options: str) -> list[int]:
    """Run a stream into Parquet until the present end of the log; the rows of its batches."""
    source = spark.readStream.format("amps-journal").options(
        journalPath=str(folder), startingBookmark="EPOCH", **options
    )

    def start() -> StreamingQuery:
        return (
            source.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(out / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(out / "rows"))
        )

    return [progress["numInputRows"] for progress in finish(start).recentProgress]


@pytest.mark.smoke
@pytest.mark.row("SS1", "RP10")
def test_a_stream_into_parquet_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    writer = write(journal)
    sizes = run_stream(spark, journal, out, maxMessagesPerTrigger="250")
    assert [size for size in sizes if size] == [250, 250, 100]
    for _ in range(30):
        writer.append([message(b"z" * 900)] * 10)
    run_stream(spark, journal, out, maxMessagesPerTrigger="250")
    rows = spark.read.parquet(str(out / "rows")).select("position").collect()
    assert sorted(row.position for row in rows) == [*range(1, 901)]


def test_a_stream_whose_log_was_replaced_fails_with_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal).close()
    run_stream(spark, journal, out)
    shutil.rmtree(journal)
    JournalWriter(journal, start_id=5).close()
    with pytest.raises(PySparkException, match="is another log than the one that was read up to"):
        run_stream(spark, journal, out)


def test_topics_of_one_name_are_told_apart_by_their_message_type(tmp_path: Path) -> None:
    async def publish(uri: str, name: str, body: bytes) -> None:
        async with Client(name) as client:
            await client.connect(uri)
            await client.logon()
            await client.publish_many("prices", [body] * 3, first_sequence=1)
            await client.flush(ack="persisted")

    with BrokerProcess(data_dir=tmp_path) as broker:
        for name, kind, body in (("alice", "json", b"{}"), ("bob", "fix", b"1=2;")):
            trio.run(publish, broker.uri.replace("/json", f"/{kind}"), name, body)

    def bodies(**options: str) -> list[bytes]:
        source = reader(tmp_path, columns="data", **options)
        return [data for (data,) in rows_of(source, *source.partitions())]

    assert bodies() == [b"{}"] * 3 + [b"1=2;"] * 3
    assert bodies(messageType="json", topic="prices") == [b"{}"] * 3
    assert bodies(messageType="fix") == [b"1=2;"] * 3
    assert bodies(messageType="fix", topic="orders") == []
    assert bodies(messageType="nvfix") == []
    stream = JournalStreamReader(
        JournalSettings(
            {
                "journalPath": str(tmp_path),
                "columns": "data",
                "messageType": "fix",
                "startingBookmark": "EPOCH",
            }
        )
    )
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert rows_of(stream, *stream.partitions(start, end)) == [(b"1=2;",)] * 3
