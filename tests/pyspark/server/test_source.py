"""The batch source: planning and reading, without a session of PySpark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest

from haclient.errors import HAClientError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server import source as source_module
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import ServerLogReader
from haclient.pyspark.server.stream import LogStreamReader
from haclient_fake_server.config import BrokerConfig, LogTopic
from support.broker_thread import BrokerThread, broker_of_three, broker_thread, publish

ROWS = [b'{"id":%d}' % number for number in range(100)]
PUBBER = publisher_id("pubber")


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    """100 orders of one publisher, then 50 trades of another; the log has no topic `none`."""
    logged = ("orders", "trades", "trades.eu", "tradesXeu", "prices")
    with broker_of_three(logged, ROWS) as broker:
        yield broker


def reader(broker: BrokerThread | str, **options: str) -> ServerLogReader:
    uri = broker if isinstance(broker, str) else broker.uri
    return ServerLogReader(ServerOptions(OptionReader("amps", {"uri": uri, **options})))


def bodies(batches: Iterable[pa.RecordBatch]) -> list[bytes]:
    return [value for batch in batches for value in batch.column("data").to_pylist()]


def stamps(source: ServerLogReader) -> list[list[int]]:
    """The times of each partition, in microseconds."""
    parts = ([batch["timestamp"] for batch in source.read(each)] for each in source.partitions())
    return [[each for times in part for each in times.cast("int64").to_pylist()] for part in parts]


def read(source: ServerLogReader) -> list[list[bytes]]:
    """The payloads of each partition."""
    return [bodies(source.read(part)) for part in source.partitions()]


@pytest.mark.row("SB1", "SB2", "SB5")
def test_all_of_a_topic_is_read_in_the_order_of_the_log(broker: BrokerThread) -> None:
    source = reader(broker, topic="orders", batchRows="30")
    (part,) = source.partitions()
    batches = list(source.read(part))
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    assert bodies(batches) == ROWS
    row: dict[str, Any] = batches[0].to_pylist()[0]
    assert row.pop("timestamp").year >= 2023
    assert row == {
        "topic": "orders",
        "bookmark": "7094790850998930143|1|",
        "publisher_id": 7094790850998930143,
        "sequence": 1,
        "position": None,
        "command": "publish",
        "sow_key": None,
        "correlation_id": "x1",
        "data": ROWS[0],
    }


@pytest.mark.row("SB1", "SB2")
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"topic": "orders,trades.eu"}, 150),
        ({"topic": "trades.eu"}, 50),
        ({"topic": "tradesXeu"}, 0),
        ({"topicPattern": "^trades"}, 50),
        ({"topicPattern": "rades"}, 50),
        ({"topicPattern": ".*"}, 170),
        ({"topic": "orders", "filter": "/id < 10"}, 10),
        # Of matches and others in turns: a range that were read without the filter has others, too.
        ({"topic": "orders", "filter": "/id % 10 = 3"}, 10),
        ({"topic": "orders", "filter": "/id % 10 = 3", "offsetMode": "vector"}, 10),
        ({"topicPattern": "^(orders|trades)", "filter": "/id % 10 = 3"}, 15),
        ({"topic": "orders", "startingBookmark": "NOW"}, 0),
        ({"topic": "orders", "startingBookmark": "7094790850998930143|90|"}, 10),
        ({"topic": "orders", "endingBookmark": "7094790850998930143|90|"}, 90),
        ({"topic": "orders", "startingTimestamp": "2100-01-01T00:00:00Z"}, 0),
        (
            {
                "topic": "orders",
                "startingBookmark": f"{PUBBER}|95|,{PUBBER}|90|",
            },
            10,
        ),
        ({"topic": "orders", "startingOffsets": f"{PUBBER}|97|,21000101T000000"}, 3),
        ({"subscribe": "orders", "startingOffsets": "Earliest", "endingOffsets": "LATEST"}, 100),
        ({"subscribePattern": "^tr", "endingBookmark": "now"}, 50),
        ({"topic": "orders", "endingOffsets": "epoch"}, 0),
        ({"topic": "orders", "endingOffsets": "2001-01-01"}, 0),
        ({"topic": "orders", "startingBookmark": "2001-01-01T00:00:00Z"}, 100),
        ({"topic": "orders", "endingTimestamp": "2001-01-01T00:00:00Z"}, 0),
        ({"topic": "orders", "startingTimestamp": "2001-01-01T00:00:00Z"}, 100),
        (
            {
                "topic": "orders",
                "offsetMode": "vector",
                "startingBookmark": "7094790850998930143|90|",
            },
            10,
        ),
    ],
)
def test_a_range_is_chosen_by_options(
    broker: BrokerThread, options: dict[str, str], count: int
) -> None:
    assert sum(map(len, read(reader(broker, **options)))) == count


@pytest.mark.row("SB7")
@pytest.mark.parametrize("mode", ["position", "vector"])
def test_a_range_is_cut_into_equal_parts(broker: BrokerThread, mode: str) -> None:
    options = {"topicPattern": "^(orders|trades)", "minPartitions": "4", "offsetMode": mode}
    found = read(reader(broker, **options))
    assert [len(part) for part in found] == [38, 38, 38, 36]
    assert list(chain.from_iterable(found)) == ROWS + ROWS[:50]


@pytest.mark.row("SB7")
@pytest.mark.parametrize("mode", ["position", "vector"])
def test_a_large_range_is_cut_into_equal_parts_while_it_is_counted_once(
    broker: BrokerThread, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "PIECE_MESSAGES", 4)
    options = {"topicPattern": "^(orders|trades)", "minPartitions": "4", "offsetMode": mode}
    found = read(reader(broker, **options))
    assert [len(part) for part in found] == [32, 32, 32, 32, 22]
    assert list(chain.from_iterable(found)) == ROWS + ROWS[:50]


@pytest.mark.row("SB7")
def test_each_split_is_a_partition(broker: BrokerThread) -> None:
    splits = '["/id % 2 = 0", "/id % 2 = 1"]'
    found = read(reader(broker, topic="orders", splits=splits, filter="/id < 10"))
    assert found == [ROWS[0:10:2], ROWS[1:10:2]]


@pytest.mark.row("SB7")
@pytest.mark.parametrize("mode", ["position", "vector"])
def test_each_topic_is_a_partition(broker: BrokerThread, mode: str) -> None:
    options = {"topic": "trades.eu,orders,tradesXeu", "partitionBy": "topic", "offsetMode": mode}
    assert read(reader(broker, **options)) == [ROWS[:50], ROWS]
    assert read(reader(broker, **options, filter="/id < 3")) == [ROWS[:3], ROWS[:3]]


@pytest.mark.row("SB7")
@pytest.mark.parametrize("mode", ["position", "vector"])
def test_a_range_is_cut_into_slices_of_equal_time(mode: str) -> None:
    with broker_thread() as broker:
        for number in range(5):
            publish(broker.uri, "orders", ROWS, name=f"publisher {number}")
        options = {"topic": "orders", "partitionBy": "time", "minPartitions": "4"}
        parts = stamps(reader(broker, **options, offsetMode=mode))
    times = list(chain.from_iterable(parts))
    assert len(times) == 500
    assert times == sorted(times)
    begin, span = times[0], times[-1] - times[0]
    bounds = [begin + span * number // 4 for number in range(4)]
    slices = [{bisect_right(bounds, each) for each in part} for part in parts]
    assert slices == [{number} for number in sorted(chain.from_iterable(slices))]
    assert len(slices) > 1


@pytest.mark.row("SB3")
def test_what_is_published_after_planning_is_not_read() -> None:
    with broker_thread() as broker:
        publish(broker.uri, "orders", ROWS)
        source = reader(broker, topic="orders")
        parts = source.partitions()
        publish(broker.uri, "orders", ROWS, first=101)
        publish(broker.uri, "orders", ROWS, name="new")
        for _ in range(2):  # and again, as a task that is tried again
            assert [bodies(source.read(part)) for part in parts] == [ROWS]


def test_a_server_that_is_down_is_named() -> None:
    with pytest.raises(
        HAClientError, match=r"no server can be reached: .*127\.0\.0\.1:1"
    ) as failed:
        reader("tcp://127.0.0.1:1/amps/json", topic="a").partitions()
    assert len(str(failed.value).splitlines()) == 1


def test_a_topic_without_a_log_is_named() -> None:
    with (
        broker_thread(BrokerConfig(log_topics=())) as broker,
        pytest.raises(UsageError, match="the server keeps no log of the topic 'orders'"),
    ):
        reader(broker, topic="orders").partitions()


@pytest.mark.parametrize("topic", ["eu.trades", "orders,eu.trades"])
def test_a_topic_without_a_log_is_named_although_it_is_read_by_a_pattern(topic: str) -> None:
    given = {"topic": topic, "startingBookmark": "EPOCH"}
    with broker_thread(BrokerConfig(log_topics=(LogTopic("orders"),))) as broker:
        following = LogStreamReader(
            ServerOptions(OptionReader("amps", {"uri": broker.uri, **given}), is_stream=True)
        )
        for plan in (reader(broker, **given).partitions, following.initialOffset):
            with pytest.raises(UsageError, match=r"keeps no log of the topic 'eu\.trades'"):
                plan()


def test_a_bookmark_that_is_not_in_the_log_is_data_loss(broker: BrokerThread) -> None:
    with pytest.raises(DataLoss, match=r"5\|5\|.*is not in the log"):
        reader(broker, topic="orders", startingBookmark="5|5|").partitions()
    accepting = reader(broker, topic="orders", startingBookmark="5|5|", failOnDataLoss="false")
    assert read(accepting) == [ROWS]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_end_that_is_not_in_the_log_is_named_as_the_end(
    broker: BrokerThread, fails: str
) -> None:
    source = reader(broker, topic="orders", endingBookmark="5|5|", failOnDataLoss=fails)
    with pytest.raises(DataLoss) as failed:
        source.partitions()
    assert str(failed.value) == "amps: endingBookmark 5|5| is not in the log: end elsewhere"


@pytest.mark.row("SB9")
def test_a_log_that_was_replaced_after_planning_is_data_loss() -> None:
    with broker_thread(BrokerConfig(name="east")) as broker:  # in memory: each start is another log
        publish(broker.uri, "orders", ROWS)
        source = reader(broker, topic="orders")
        (part,) = source.partitions()
        broker.stop()
        broker.start()
        publish(broker.uri, "orders", ROWS)
        with pytest.raises(DataLoss, match="it is another one, or its end was lost"):
            bodies(source.read(part))
