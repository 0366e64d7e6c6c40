"""Streams with the official names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from haclient import compat
from haclient.errors import UsageError
from haclient_fake_server.config import BrokerConfig, parse_queue
from support.broker_thread import BrokerThread, broker_thread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")


def test_a_timeout_gives_none_and_the_stream_goes_on(plain: compat.Client) -> None:
    with plain.subscribe("orders").timeout(1) as stream:
        assert next(stream) is None
        plain.publish("orders", "a")
        plain.flush()
        message = next(each for each in stream if each is not None)
        assert message.get_data() == "a"
        plain.publish("orders", "b")
        following = next(stream.timeout(0))  # without a limit from here on
        assert following is not None
        assert following.get_data() == "b"
    with pytest.raises(compat.UsageError, match="milliseconds"):
        stream.timeout(-1)


def test_a_closed_stream_has_ended(plain: compat.Client) -> None:
    stream = plain.subscribe("orders")
    stream.close()
    stream.close()
    assert list(stream) == []


def test_a_stream_ends_with_the_connection_that_its_client_has_closed(
    plain: compat.Client,
) -> None:
    stream = plain.subscribe("orders")
    plain.disconnect()
    assert list(stream) == []
    assert isinstance(stream.end_reason, compat.DisconnectedException)


@pytest.mark.parametrize("is_entered", [True, False])
def test_a_message_whose_processing_failed_is_not_acknowledged(
    plain: compat.Client, *, is_entered: bool
) -> None:
    plain.publish("jobs", "a")
    plain.set_auto_ack(True)

    def process() -> None:
        stream = plain.subscribe("jobs")
        with stream if is_entered else closing(stream):
            next(stream)
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        process()
    with plain.subscribe("jobs") as stream:
        again = next(stream)
    assert again is not None
    assert again.get_data() == "a"


def test_a_message_that_another_thread_still_processes_is_not_acknowledged(
    broker: BrokerThread, plain: compat.Client
) -> None:
    for body in "ab":
        plain.publish("jobs", body)
    plain.flush()
    with compat.Client("consumer") as consumer, ThreadPoolExecutor(1) as other:
        consumer.connect(broker.uri)
        consumer.logon()
        consumer.set_auto_ack(True)
        stream = consumer.execute(jobs())
        assert str(other.submit(next, stream).result()) == "a"
        assert str(next(stream)) == "b"  # which says nothing about "a"
        consumer.flush_acks()
        consumer.disconnect()
    with plain.execute(jobs()).timeout(1000) as again:
        assert [str(next(again)), str(next(again))] == ["a", "b"]


def test_what_is_back_in_its_queue_is_not_delivered(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, queues=(parse_queue("jobs,max_backlog=2"),))
    with broker_thread(config) as broker, compat.HAClient("consumer") as client:
        client.set_server_chooser(chooser(broker.uri))
        client.set_reconnect_delay(1)
        client.connect_and_logon()
        for body in "ab":
            client.publish("jobs", body)
        client.publish_flush(30_000)
        stream = client.execute(jobs())
        assert str(next(stream)) == "a"
        broker.stop()  # "b" has arrived, and its lease has ended with the connection
        wait_until(client.disconnected)
        assert list(stream) == []
        broker.start()


def test_a_coroutine_function_is_no_handler(plain: compat.Client) -> None:
    async def handle(_: compat.Message) -> None: ...

    with pytest.raises(UsageError, match="a plain function"):
        plain.subscribe(handle, "orders")


def jobs() -> compat.Command:
    return compat.Command("subscribe").set_topic("jobs").set_options("max_backlog=2")


def test_what_a_stream_leaves_undiscarded_comes_again_when_its_command_is_executed_again(
    tmp_path: Path,
) -> None:
    with (
        broker_thread(BrokerConfig(data_dir=tmp_path)) as broker,
        compat.HAClient("reader") as client,
    ):
        client.set_server_chooser(chooser(broker.uri))
        client.set_reconnect_delay(1)
        client.connect_and_logon()
        for body in "abc":
            client.publish("orders", body)
        client.publish_flush(30_000)
        stream = client.bookmark_subscribe("orders", "0", sub_id="s")
        client.discard(present(next(stream)))
        broker.stop()
        assert [str(each) for each in stream] == ["b", "c"]
        broker.start()
        wait_until(lambda: not client.disconnected())
        with client.bookmark_subscribe("orders", sub_id="s").timeout(30_000) as again:
            assert [str(next(again)), str(next(again))] == ["b", "c"]


def present(message: compat.Message | None) -> compat.Message:
    assert message is not None
    return message


def test_a_stream_that_was_left_by_break_does_not_stop_its_client(plain: compat.Client) -> None:
    """Its queue of 4 MiB would fill, and reading would stop, with it the acks of all others."""
    plain.publish("orders", "first")
    for message in plain.bookmark_subscribe("orders", plain.Bookmarks.EPOCH):
        assert message is not None
        break
    kept = plain.subscribe("others")
    plain.subscribe("orders")  # nothing refers to this one either
    for _ in range(8):
        plain.publish("orders", bytes(1_000_000))
    plain.flush(30_000)
    plain.publish("others", "x")
    following = next(kept)
    assert following is not None
    assert following.get_data() == "x"
    kept.close()


def test_a_stream_that_is_collected_after_its_client_was_closed_does_nothing(
    plain: compat.Client,
) -> None:
    stream = plain.subscribe("orders")
    plain.close()
    del stream
