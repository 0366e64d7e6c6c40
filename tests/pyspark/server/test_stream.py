"""The streaming source: its offsets and partitions, without a session of PySpark."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadAllAvailable

from haclient.errors import HAClientError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.options import OptionReader
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import CONNECT_TIMEOUT_S, ask, connected
from haclient.pyspark.server.range_reader import LogRange
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.source import ServerLogReader
from haclient.pyspark.server.stream import LogStreamReader
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.journal.format import segment_name
from support.broker import RawClient, port_of
from support.broker_thread import BrokerThread, broker_thread, publish

ROWS = [b'{"id":%3d}' % number for number in range(100)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with broker_thread(BrokerConfig(name="east", data_dir=tmp_path / "east")) as broker:
        yield broker


def stream(*brokers: BrokerThread, **options: str) -> LogStreamReader:
    uri = ",".join(broker.uri for broker in brokers)
    given = {"uri": uri, "topic": "orders", "startingBookmark": "EPOCH", **options}
    return LogStreamReader(ServerOptions(OptionReader("amps", given), is_stream=True))


def next_batch(
    source: LogStreamReader, start: dict[str, Any]
) -> tuple[dict[str, Any], list[bytes]]:
    """What PySpark does: plan the end, then read."""
    end = source.latestOffset(start, source.getDefaultReadLimit())
    rows: list[bytes] = []
    for part in source.partitions(start, end):
        for batch in source.read(part):
            rows += batch.column("data").to_pylist()
    return end, rows


MODES = pytest.mark.parametrize("mode", ["position", "vector"])


@pytest.mark.row("SS1", "SS2", "SS5")
@MODES
def test_batches_have_at_most_so_many_messages(broker: BrokerThread, mode: str) -> None:
    publish(broker.uri, "orders", ROWS)
    source = stream(broker, offsetMode=mode, maxMessagesPerTrigger="40")
    offset = source.initialOffset()
    sizes: list[int] = []
    rows: list[bytes] = []
    for _ in range(4):
        before = offset
        offset, found = next_batch(source, before)
        again = [  # a batch that is repeated, by another process
            batch.column("data").to_pylist()
            for part in stream(broker, offsetMode=mode).partitions(before, offset)
            for batch in stream(broker, offsetMode=mode).read(part)
        ]
        assert list(chain.from_iterable(again)) == found
        sizes.append(len(found))
        rows += found
    assert sizes == [40, 40, 20, 0]
    assert rows == ROWS
    assert offset["messages"] == 100


@pytest.mark.row("SS5")
def test_batches_have_at_most_so_many_bytes(broker: BrokerThread) -> None:
    publish(broker.uri, "orders", ROWS)
    source = stream(broker, maxBytesPerTrigger="100")
    _, rows = next_batch(source, source.initialOffset())
    assert len(rows) == 10


@MODES
def test_without_new_messages_the_offset_stays_and_no_batch_begins(
    broker: BrokerThread, mode: str
) -> None:
    source = stream(broker, offsetMode=mode)
    start = source.initialOffset()
    publish(broker.uri, "trades", ROWS)
    assert source.latestOffset(start, source.getDefaultReadLimit()) == start
    publish(broker.uri, "orders", ROWS[:1], first=101)
    end, rows = next_batch(source, start)
    assert end != start
    assert rows == ROWS[:1]


@MODES
def test_a_stream_begins_now_by_default(broker: BrokerThread, mode: str) -> None:
    publish(broker.uri, "orders", ROWS[:50])
    source = LogStreamReader(
        ServerOptions(
            OptionReader("amps", {"uri": broker.uri, "topic": "orders", "offsetMode": mode}),
            is_stream=True,
        )
    )
    start = source.initialOffset()
    publish(broker.uri, "orders", ROWS[50:], first=51)
    publish(broker.uri, "orders", ROWS[:5], name="new")
    _, rows = next_batch(source, start)
    assert sorted(rows) == sorted(ROWS[50:] + ROWS[:5])


@MODES
def test_a_stream_goes_on_after_its_server_was_started_again(
    broker: BrokerThread, mode: str
) -> None:
    publish(broker.uri, "orders", ROWS[:60])
    source = stream(broker, offsetMode=mode)
    offset, first = next_batch(source, source.initialOffset())
    broker.stop()
    broker.start()
    publish(broker.uri, "orders", ROWS[60:], first=61)
    _, second = next_batch(stream(broker, offsetMode=mode), offset)
    assert first + second == ROWS


def test_a_stream_goes_on_after_its_server_was_started_many_times(tmp_path: Path) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path)
    with broker_thread(config) as broker:
        publish(broker.uri, "orders", ROWS[:60])
        offset, first = next_batch(stream(broker), stream(broker).initialOffset())
        for _ in range(20):
            broker.stop()
            broker.start()
        publish(broker.uri, "orders", ROWS[60:], first=61)
        _, second = next_batch(stream(broker), offset)
        assert len(trio.run(starts_in_logon_ack, broker.uri)) == 16
    assert first + second == ROWS


@pytest.mark.row("SS9")
def test_another_log_is_data_loss_and_never_a_silent_restart() -> None:
    with broker_thread() as broker:  # in memory
        publish(broker.uri, "orders", ROWS)
        source = stream(broker)
        offset, _ = next_batch(source, source.initialOffset())
        broker.stop()
        broker.start()
        publish(broker.uri, "orders", ROWS + ROWS)
        with pytest.raises(DataLoss, match="it is another one, or its end was lost"):
            source.latestOffset(offset, source.getDefaultReadLimit())


@pytest.mark.row("SS3", "SS4")
def test_a_stream_goes_on_at_a_replica_that_lags_has_another_order_and_a_new_publisher() -> None:
    def publish_to(broker: BrokerThread, name: str, first: int, last: int) -> None:
        bodies = [f"{name}{n}".encode() for n in range(first, last + 1)]
        publish(broker.uri, "orders", bodies, name=name, first=first)

    east_config, west_config = BrokerConfig(name="east"), BrokerConfig(name="west")
    with broker_thread(east_config) as east, broker_thread(west_config) as west:
        publish_to(east, "A", 1, 40)
        publish_to(east, "B", 1, 40)
        publish_to(west, "C", 1, 10)  # a publisher that east never gets
        publish_to(west, "B", 1, 20)  # and only a part of what east has
        source = stream(east, west, maxMessagesPerTrigger="60")
        start = source.initialOffset()
        middle, rows = next_batch(source, start)
        assert len(rows) == 60
        planned = source.latestOffset(middle, source.getDefaultReadLimit())
        east.stop()
        publish_to(west, "A", 1, 50)
        publish_to(west, "B", 21, 50)
        for part in source.partitions(middle, planned):
            for batch in source.read(part):
                rows += batch.column("data").to_pylist()
        assert len(rows) == 80
        offset = planned
        while True:
            offset, found = next_batch(source, offset)
            if not found:
                break
            rows += found
    assert sorted(rows) == sorted(
        f"{name}{n}".encode()
        for name, last in (("A", 50), ("B", 50), ("C", 10))
        for n in range(1, last + 1)
    )


@pytest.mark.row("SS6")
@MODES
def test_available_now_ends_with_what_was_there_at_its_start(
    broker: BrokerThread, mode: str
) -> None:
    publish(broker.uri, "orders", ROWS[:50])
    source = stream(broker, offsetMode=mode, maxMessagesPerTrigger="30")
    source.prepareForTriggerAvailableNow()
    offset, rows = next_batch(source, source.initialOffset())
    publish(broker.uri, "orders", ROWS[50:], first=51)
    offset, more = next_batch(source, offset)
    assert rows + more == ROWS[:50]
    assert next_batch(source, offset) == (offset, [])


@pytest.mark.row("SS8")
@MODES
def test_the_lag_is_the_difference_of_two_offsets(broker: BrokerThread, mode: str) -> None:
    publish(broker.uri, "orders", ROWS)
    source = stream(broker, offsetMode=mode, maxMessagesPerTrigger="30")
    assert source.reportLatestOffset() is None
    offset, _ = next_batch(source, source.initialOffset())
    latest = source.reportLatestOffset()
    assert latest is not None
    assert latest["messages"] - offset["messages"] == 70


@pytest.mark.row("SB7")
def test_a_batch_is_cut_into_partitions(broker: BrokerThread) -> None:
    publish(broker.uri, "orders", ROWS)
    for options, sizes in (
        ({"minPartitions": "4"}, [25] * 4),
        ({"splits": '["/id < 10", "/id >= 10"]'}, [10, 90]),
    ):
        source = stream(broker, **options)
        start = source.initialOffset()
        end = source.latestOffset(start, source.getDefaultReadLimit())
        parts = source.partitions(start, end)
        assert [sum(b.num_rows for b in source.read(part)) for part in parts] == sizes


@pytest.mark.row("SS9")
def test_a_stream_whose_messages_were_removed_fails_or_goes_on_with_the_oldest(
    tmp_path: Path,
) -> None:
    config = BrokerConfig(name="east", data_dir=tmp_path, segment_bytes=64 * 1024)
    with broker_thread(config) as broker:
        bodies = [b"%6d" % number + b"x" * 1000 for number in range(200)]
        publish(broker.uri, "orders", bodies)
        first = f"{publisher_id('pubber')}|1|"
        source = stream(broker, maxMessagesPerTrigger="1")
        offset, _ = next_batch(source, source.initialOffset())
        broker.stop()
        (tmp_path / segment_name(1)).unlink()
        broker.start()
        with pytest.raises(DataLoss, match="of the log of 'east' were removed: set failOnDataLoss"):
            stream(broker).latestOffset(offset, ReadAllAvailable())
        with pytest.raises(DataLoss, match=rf"{re.escape(first)} is not in the log: it was remo"):
            stream(broker, startingBookmark=first).initialOffset()
        accepting = {"failOnDataLoss": "false", "startingBookmark": first}
        for start in (offset, stream(broker, **accepting).initialOffset()):
            _, left = next_batch(stream(broker, **accepting), start)
            assert left == bodies[-len(left) :]
            assert 0 < len(left) < 200


def test_a_committed_batch_moves_the_guard_of_its_stream(broker: BrokerThread) -> None:
    publish(broker.uri, "orders", ROWS)
    source = stream(broker, guard="reports", maxMessagesPerTrigger="40")
    offset, _ = next_batch(source, source.initialOffset())
    source.commit(offset)
    stream(broker).commit(offset)  # sets none
    with_bad_offset = {**offset, "places": {"west": {"start": "0", "position": 1}}}
    source.commit(with_bad_offset)  # of another instance: nothing to guard here
    answer = trio.run(guards_of, broker.uri)
    assert [(guard["name"], guard["after"]) for guard in answer["guards"]] == [("reports", 40)]
    broker.stop()
    source.commit(offset)  # a hint: the query goes on
    assert source.reportLatestOffset() == offset  # and so it does without the lag


@contextmanager
def losing(broker: BrokerThread) -> Generator[str]:
    """The URI of a server whose link is lost when it is asked about its log."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def start(target: Callable[..., None], *args: socket.socket) -> None:
        threads.append(threading.Thread(target=target, args=args, daemon=True))
        threads[-1].start()

    def shut(*sockets: socket.socket) -> None:
        for each in sockets:
            with suppress(OSError):  # the other side was first
                each.shutdown(socket.SHUT_RDWR)

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and b"/HACLIENT/" not in data:
                sink.sendall(data)
        shut(source, sink)

    def accept() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port_of(broker.uri)))
                ends.extend((near, far))
                start(forward, near, far)
                start(forward, far, near)

    start(accept)
    try:
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}/amps/json"
    finally:
        shut(listener)
        threads[0].join()  # no more ends and threads from here on
        shut(*ends)
        for thread in threads:
            thread.join()
        for each in ends:
            each.close()


@pytest.mark.row("SS3")
def test_a_batch_is_planned_at_the_next_server_when_one_is_lost_with_the_question() -> None:
    with broker_thread(BrokerConfig(name="west")) as west, losing(west) as lost:
        publish(west.uri, "orders", ROWS)
        given = {"uri": f"{lost},{west.uri}", "topic": "orders", "startingBookmark": "EPOCH"}
        source = LogStreamReader(ServerOptions(OptionReader("amps", given), is_stream=True))
        _, rows = next_batch(source, source.initialOffset())
        assert rows == ROWS
        assert source.reportLatestOffset() is not None
        (part,) = ServerLogReader(ServerOptions(OptionReader("amps", given))).partitions()
        assert cast("LogRange", part).messages == len(ROWS)
        given["uri"] = f"{lost},{lost}"
        with pytest.raises(HAClientError, match=r"no server has answered: .*; .*") as failed:
            ServerLogReader(ServerOptions(OptionReader("amps", given))).partitions()
        assert len(str(failed.value).splitlines()) == 1


def test_a_server_that_is_down_keeps_no_other_one_from_its_guard() -> None:
    with (
        broker_thread(BrokerConfig(name="east")) as east,
        broker_thread(BrokerConfig(name="west")) as west,
    ):
        for broker in (east, west):
            publish(broker.uri, "orders", ROWS)
        source = stream(east, west, guard="reports", maxMessagesPerTrigger="40")
        start = source.initialOffset()
        east.stop()
        offset, _ = next_batch(source, start)
        source.commit(offset)
        answer = trio.run(guards_of, west.uri)
    assert [(guard["name"], guard["after"]) for guard in answer["guards"]] == [("reports", 40)]


def test_guards_are_set_at_all_servers_at_the_same_time(broker: BrokerThread) -> None:
    publish(broker.uri, "orders", ROWS)
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        # The first one is silent until the second one is asked, at most until it is given up.
        second.settimeout(CONNECT_TIMEOUT_S / 2)
        asked = threading.Event()

        def serve() -> None:
            with first.accept()[0], suppress(TimeoutError), second.accept()[0]:
                asked.set()

        silent = [f"tcp://127.0.0.1:{each.getsockname()[1]}/amps/json" for each in (first, second)]
        start = stream(broker, offsetMode="vector").initialOffset()
        given = {"uri": ",".join([*silent, broker.uri]), "topic": "orders", "guard": "reports"}
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        LogStreamReader(ServerOptions(OptionReader("amps", given), is_stream=True)).commit(start)
        thread.join()
    assert asked.is_set()


async def starts_in_logon_ack(uri: str) -> list[str]:
    """The starts of the log that each client is told."""
    async with RawClient.connect(f"tcp://127.0.0.1:{port_of(uri)}") as client:
        return (await client.logon("reader")).log_starts.split(",")


async def guards_of(uri: str) -> dict[str, Any]:
    """What the broker has of guards."""
    async with connected([uri], "reader") as client:
        return await ask(client, "/HACLIENT/guards", {})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"maxMessagesPerTrigger": "0"}, "a whole number from 1"),
        ({"maxMessagesPerTrigger": "1", "maxBytesPerTrigger": "1"}, "exclude each other"),
        ({"endingBookmark": "NOW"}, "endingBookmark has to be left out: a stream has no end"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ServerOptions(
            OptionReader("amps", {"uri": "tcp://a:1/amps/json", "topic": "orders", **options}),
            is_stream=True,
        )
