"""Queries of the State of the World, without a session of PySpark."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import trio

from haclient.errors import HAClientError, UsageError
from haclient.pyspark.options import OptionReader
from haclient.pyspark.server.settings import ServerOptions
from haclient.pyspark.server.sow import SowReader
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker_thread import BrokerThread, broker_thread, publish
from support.peer import listening, together

ROWS = [b'{"id":%d}' % number for number in range(20)]


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    """20 prices, each in the State of the World."""
    config = BrokerConfig(name="east", sow_topics=(SowTopic("prices", ("/id",)),))
    with broker_thread(config) as broker:
        publish(broker.uri, "prices", ROWS)
        yield broker


def query(broker: BrokerThread, **options: str) -> list[list[bytes]]:
    """The records of each partition."""
    given = {"uri": broker.uri, "topic": "prices", "command": "sow", "columns": "data", **options}
    source = SowReader(ServerOptions(OptionReader("amps", given)))
    return [
        [value for batch in source.read(part) for value in batch.column("data").to_pylist()]
        for part in source.partitions()
    ]


@pytest.mark.row("SB4")
def test_a_query_is_one_partition_or_one_for_each_split(broker: BrokerThread) -> None:
    assert [sorted(part) for part in query(broker)] == [sorted(ROWS)]
    assert query(broker, orderBy="/id DESC", topN="3") == [ROWS[19:16:-1]]
    assert query(broker, orderBy="/id", batchRows="3", batchSize="2") == [ROWS]
    halves = query(broker, splits='["/id < 5", "/id >= 5"]', filter="/id > 1")
    assert [len(part) for part in halves] == [3, 15]


def test_a_topic_without_records_is_named(broker: BrokerThread) -> None:
    with pytest.raises(HAClientError, match=r"refused the query of 'orders': .*invalid topic"):
        query(broker, topic="orders")


async def test_a_server_that_accepts_a_query_and_is_silent_then_is_given_up() -> None:
    async with listening() as server:
        given = {"uri": server.uri, "topic": "prices", "command": "sow", "fetchTimeoutMs": "300"}
        source = SowReader(ServerOptions(OptionReader("amps", given)))
        (part,) = source.partitions()

        async def accept() -> None:
            peer = await server.accept()
            await peer.log_on()
            await peer.answer("sow")

        async def read() -> None:
            with pytest.raises(HAClientError, match=r"sent nothing of the result for 0\.3 s"):
                await trio.to_thread.run_sync(lambda: list(source.read(part)))

        await together(read, accept)


def test_an_option_of_the_log_is_unknown() -> None:
    given = {
        "uri": "tcp://h:1/amps/json",
        "topic": "a",
        "command": "sow",
        "startingBookmark": "EPOCH",
    }
    with pytest.raises(UsageError, match="unknown option startingbookmark"):
        ServerOptions(OptionReader("amps", given))
