"""Live records in plain threads: reading, following from several threads, and every end."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from haclient import RecordChange
from haclient.blocking import Client, HAClient, LiveRecords
from haclient.errors import DisconnectedError, UsageError
from support.broker_thread import PRICES, BrokerThread, broker_thread
from support.process import LIMIT_S

Record = dict[str, object]


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    with broker_thread(PRICES) as running:
        yield running


def by_id(record: Record) -> object:
    return record["id"]


@pytest.mark.row("CC12", "CC35")
def test_a_program_reads_the_records_and_follows_each_change(broker: BrokerThread) -> None:
    with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
        client.publish_persisted("prices", b'{"id":1,"px":1}', timeout=LIMIT_S)
        with client.records("prices", key=by_id) as prices:
            assert isinstance(prices, LiveRecords)
            assert list(prices) == [1]
            assert prices.caught_up
            client.publish("prices", b'{"id":1,"px":2}')
            change = next(prices.changes())
            assert change == RecordChange("changed", 1, {"id": 1, "px": 1}, {"id": 1, "px": 2})
            client.sow_delete("prices", filter="/id > 0")
            assert next(prices.changes()).kind == "removed"
        assert prices.ended
        assert list(prices.changes()) == []
    assert list(prices.changes()) == []
    prices.close()


@pytest.mark.row("CC35")
def test_close_ends_the_loops_of_all_threads(broker: BrokerThread) -> None:
    seen: list[object] = []
    with HAClient.memory_backed("orders-8", servers=[broker.uri]) as client:
        prices = client.records("prices", key=by_id).open()

        def follow() -> None:
            seen.extend(change.key for change in prices.changes())

        threads = [threading.Thread(target=follow) for _ in range(3)]
        for thread in threads:
            thread.start()
        client.publish_many("prices", [b'{"id":%d}' % number for number in range(10)])
        client.publish_flush(timeout=LIMIT_S)
        while len(seen) < 10:
            threading.Event().wait(0.001)
        prices.close()
        for thread in threads:
            thread.join()
        assert sorted(seen, key=str) == sorted(range(10), key=str)
        assert client.metrics.subscriptions == ()


@pytest.mark.row("CC35")
def test_a_client_that_does_not_reconnect_raises_and_the_last_records_stay() -> None:
    with broker_thread(PRICES) as broker, Client("orders-7") as client:
        client.connect(broker.uri)
        client.logon()
        client.publish("prices", b'{"id":1}')
        client.flush()
        with client.records("prices", key=by_id) as prices:
            broker.stop()
            with pytest.raises(DisconnectedError):
                next(prices.changes())
            assert prices[1] == {"id": 1}


def test_what_was_opened_stays_open_and_what_is_refused_leaves_nothing_behind(
    broker: BrokerThread,
) -> None:
    with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
        client.publish_persisted("prices", b'{"id":1}', timeout=LIMIT_S)
        with pytest.raises(UsageError, match="key function"):
            client.records("prices", key=lambda record: record["no"]).open()
        assert client.metrics.subscriptions == ()
        with client.records("prices") as prices:
            with pytest.raises(UsageError, match="opened before"):
                prices.open()
            client.publish("prices", b'{"id":77}')  # no other test has this record
            assert next(prices.changes()).new == {"id": 77}
