"""Reading a range in a task while servers come and go, without a session of PySpark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from haclient.errors import HAClientError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.range_reader import LogRange, batches_of
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import read_range
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.journal.format import segment_name
from support.broker_thread import BrokerThread, broker_thread, publish

A, B, C = (publisher_id(name) for name in "ABC")


def settings(*brokers: BrokerThread, timeout_s: float = 30, **more: str) -> ServerOptions:
    given = {
        "uri": ",".join(broker.uri for broker in brokers),
        "topic": "orders",
        "columns": "publisher_id,sequence",
        "fetchTimeoutMs": str(int(timeout_s * 1000)),
        "batchRows": "10",
        "clientName": "reader",
        **more,
    }
    return ServerOptions(OptionReader("amps", given))


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Publisher (unsigned) and sequence of each row."""
    found: list[tuple[int, int]] = []
    for batch in batches:
        ids, sequences = (column.to_pylist() for column in batch.columns)
        found += zip((each % 2**64 for each in ids), sequences, strict=True)
    return found


def fill(broker: BrokerThread, name: str, sequences: Sequence[int], *, size: int = 10) -> None:
    publish(broker.uri, "orders", [b"x" * size] * len(sequences), name=name, first=sequences[0])


@pytest.fixture
def servers() -> Iterator[tuple[BrokerThread, BrokerThread]]:
    """Two instances without replication: the tests choose what each of them has, in which order."""
    with ExitStack() as stack:
        yield (
            stack.enter_context(broker_thread(BrokerConfig(name="east"))),
            stack.enter_context(broker_thread(BrokerConfig(name="west"))),
        )


PART = LogRange(ends={A: 100, B: 60}, covered={A: 50}, messages=110)
WANTED = sorted([(A, n) for n in range(51, 101)] + [(B, n) for n in range(1, 61)])


@pytest.mark.row("SS3", "SS4")
def test_the_same_range_is_read_from_a_replica_with_another_order(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    east, west = servers
    for broker, names in ((east, "ABC"), (west, "CBA")):
        for name in names:
            fill(broker, name, range(1, 121))
    for broker in servers:
        found = rows_of(read_range(settings(broker), PART))
        assert sorted(found) == WANTED
        for publisher in (A, B):
            of_one = [sequence for each, sequence in found if each == publisher]
            assert of_one == sorted(of_one)


@pytest.mark.row("SS3")
def test_a_task_goes_on_at_a_replica_when_its_server_dies_in_the_middle(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    east, west = servers
    count = 4_000
    fill(east, "A", range(1, count + 1), size=2000)
    fill(west, "B", range(1, 11), size=2000)
    fill(west, "A", range(1, count + 1), size=2000)
    part = LogRange(ends={A: count}, messages=count)
    reading = read_range(settings(east, west, batchRows="100"), part)
    found = rows_of(iter([next(reading)]))
    east.stop()
    found += rows_of(reading)
    assert found == [(A, number) for number in range(1, count + 1)]


@pytest.mark.row("SS3", "SS9")
def test_a_task_waits_for_a_replica_that_lags(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    _, west = servers
    fill(west, "A", range(1, 71))

    def fill_the_rest() -> None:
        fill(west, "A", range(71, 121))
        fill(west, "B", range(1, 61))

    later = threading.Timer(1, fill_the_rest)
    later.start()
    assert sorted(rows_of(read_range(settings(west), PART))) == WANTED
    later.join()


def test_what_no_server_sends_in_time_is_named(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    fill(servers[0], "A", range(1, 71))
    with pytest.raises(
        HAClientError, match=rf"no server has sent what follows {A}\|70\|"
    ) as failed:
        rows_of(read_range(settings(*servers, timeout_s=1), PART))
    assert len(str(failed.value).splitlines()) == 1


def test_a_password_is_not_in_the_error_of_a_server_that_has_not_all(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    fill(servers[0], "A", range(1, 71))
    asked = settings(*servers, timeout_s=1)
    uris = tuple(each.replace("tcp://", "tcp://bob:hunter2@") for each in asked.uris)
    with pytest.raises(HAClientError, match="server 2 of uri does not have it") as failed:
        rows_of(read_range(settings(timeout_s=1, uri=",".join(uris)), PART))
    assert "hunter2" not in str(failed.value)


@pytest.mark.row("SB9")
def test_a_message_that_is_gone_is_data_loss(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    fill(servers[0], "A", range(1, 80))
    fill(servers[0], "A", range(90, 121))
    fill(servers[0], "B", range(1, 61))
    with pytest.raises(DataLoss, match="had 110 messages when it was planned, and 100 were read"):
        rows_of(read_range(settings(servers[0]), PART))


@pytest.fixture
def shortened(tmp_path: Path) -> Iterator[BrokerThread]:
    """A server whose log has lost all of A and the first messages of B."""
    config = BrokerConfig(name="east", data_dir=tmp_path, segment_bytes=64 * 1024)
    with broker_thread(config) as broker:
        fill(broker, "A", range(1, 21))
        fill(broker, "B", range(1, 201), size=1000)
        broker.stop()
        (tmp_path / segment_name(1)).unlink()
        broker.start()
        yield broker


SHORTENED = LogRange(ends={A: 20, B: 200}, messages=220)


@pytest.mark.row("SS9")
def test_a_range_ends_without_a_publisher_of_which_all_was_removed(
    shortened: BrokerThread,
) -> None:
    accepting = settings(shortened, timeout_s=20, failOnDataLoss="false")
    found = rows_of(read_range(accepting, SHORTENED))
    assert {publisher for publisher, _ in found} == {B}
    assert [number for _, number in found] == [*range(201 - len(found), 201)]


def test_what_one_server_has_removed_is_read_from_the_other(
    shortened: BrokerThread, servers: tuple[BrokerThread, BrokerThread]
) -> None:
    _, west = servers
    fill(west, "A", range(1, 21))
    accepting = settings(shortened, west, failOnDataLoss="false")
    found = rows_of(read_range(accepting, SHORTENED))
    assert [number for publisher, number in found if publisher == A] == [*range(1, 21)]


def test_what_a_server_never_had_is_waited_for_although_its_log_is_shortened(
    shortened: BrokerThread,
) -> None:
    accepting = settings(shortened, timeout_s=1, failOnDataLoss="false")
    for part in (LogRange(ends={C: 5}), LogRange(ends={A: 21})):
        with pytest.raises(HAClientError, match="no server has sent what follows"):
            rows_of(read_range(accepting, part))


def test_a_range_without_messages_connects_to_nobody() -> None:
    given = {"uri": "tcp://127.0.0.1:1/amps/json", "topic": "a"}
    nowhere = ServerOptions(OptionReader("amps", given))
    assert list(read_range(nowhere, LogRange())) == []


def test_a_generator_that_is_closed_ends_its_thread(
    servers: tuple[BrokerThread, BrokerThread],
) -> None:
    fill(servers[0], "A", range(1, 1001))
    reading = read_range(settings(servers[0]), LogRange(ends={A: 1000}))
    next(reading)
    assert any(thread.name == "haclient-reader" for thread in threading.enumerate())
    reading.close()
    assert not any(thread.name == "haclient-reader" for thread in threading.enumerate())


def test_a_generator_that_is_closed_does_not_wait_for_a_silent_server() -> None:
    async def read(emit: Callable[[pa.RecordBatch], None]) -> None:
        emit(pa.record_batch({"a": [1]}))
        await trio.sleep_forever()

    reading = batches_of(read)
    next(reading)
    closing = threading.Thread(target=reading.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()


def test_an_error_reaches_the_task() -> None:
    async def fail(_: object) -> None:
        raise HAClientError("as it was raised")

    with pytest.raises(HAClientError, match="as it was raised"):
        list(batches_of(fail))
