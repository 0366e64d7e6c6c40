"""The client that stays connected, with the official names."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typing_extensions import override

from haclient import compat
from haclient.errors import StoreLocked, UsageError
from haclient.servers.chooser import ConnectionInfo
from haclient.stores import MemoryPublishStore
from support.broker_thread import BrokerThread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")
Bookmarks = compat.Client.Bookmarks
NOBODY = "tcp://127.0.0.1:1/amps/json"


def test_handlers_continue_and_streams_end_when_the_server_restarts(
    ha: compat.HAClient, broker: BrokerThread
) -> None:
    got: list[str] = []
    states: list[int] = []
    ha.add_connection_state_listener(states.append)
    ha.subscribe(lambda m: got.append(m.get_data()), "orders")
    stream = ha.subscribe("orders")
    broker.stop()
    assert list(stream) == []
    assert isinstance(stream.end_reason, compat.DisconnectedException)
    broker.start()
    # What is published before it is subscribed again is missing: it is no bookmark subscription.
    wait_until(lambda: bool(ha.publish("orders", "again") and got))
    wait_until(lambda: compat.ConnectionStateListener.Resubscribed in states)
    assert not ha.disconnected()
    with ha.subscribe("orders") as stream:
        ha.publish("orders", "more")
        message = next(stream)
    assert message is not None
    assert message.get_data() in {"again", "more"}


def test_the_disconnect_handler_hears_of_a_loss_and_not_of_a_close(
    ha: compat.HAClient, broker: BrokerThread
) -> None:
    lost: list[compat.HAClient] = []
    ha.set_disconnect_handler(lost.append)
    broker.stop()
    wait_until(lambda: lost == [ha])
    broker.start()
    wait_until(lambda: not ha.disconnected())
    ha.close()
    assert lost == [ha]


def test_a_plain_client_connects_again_in_its_disconnect_handler(
    plain: compat.Client, broker: BrokerThread
) -> None:
    connected: list[bool] = []

    def reconnect(client: compat.Client) -> None:
        broker.start()
        client.connect(broker.uri)
        client.logon()
        connected.append(True)

    plain.set_disconnect_handler(reconnect)
    broker.stop()
    wait_until(lambda: connected == [True])
    plain.publish("orders", "x")
    plain.flush()


def test_a_subscription_resumes_in_the_next_client_where_it_was_discarded(
    broker: BrokerThread, tmp_path: Path
) -> None:
    paths = str(tmp_path / "orders.pub"), str(tmp_path / "orders.bm")
    client = compat.HAClient.create_file_backed("desk-1", *paths)
    client.set_server_chooser(chooser(broker.uri))
    client.connect_and_logon()
    for body in "abc":
        client.publish("orders", body)
    client.publish_flush(30_000)
    with client.bookmark_subscribe("orders", Bookmarks.MOST_RECENT, None, "s1") as stream:
        first = next(stream)
        assert first is not None
        client.discard(first)
    client.disconnect()
    client.connect_and_logon()  # the same object: its stores are opened again
    command = compat.Command("subscribe").set_topic("orders").set_sub_id("s1")
    with client.execute(command.set_bookmark("recent")) as stream:
        rest = [next(stream), next(stream)]
    assert [each.get_data() for each in rest if each is not None] == ["b", "c"]
    client.close()
    other = compat.HAClient("desk-1", *paths)
    other.set_server_chooser(chooser(broker.uri))
    other.connect_and_logon()
    store = other.get_bookmark_store()
    assert store is not None
    assert store.get_most_recent("s1") == other.get_most_recent("s1")
    other.prune_store("not.needed")
    store.purge("s1")
    assert other.get_most_recent("s1") == "0"
    other.close()


def test_connecting_can_be_tried_again_with_the_same_stores(broker: BrokerThread) -> None:
    servers = chooser(NOBODY)
    client = compat.HAClient.create_memory_backed("desk-2")
    client.set_server_chooser(servers)
    client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1, 20))
    for _ in range(2):
        with pytest.raises(compat.ConnectionException, match="gave up after"):
            client.connect_and_logon()
    servers.add(broker.uri)
    client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1))
    client.connect_and_logon()
    client.set_reconnect_delay(3)
    client.publish("orders", "x")
    client.publish_flush()
    client.disconnect()
    assert client.disconnected()
    with pytest.raises(UsageError, match="in memory"):  # what it had is gone
        client.connect_and_logon()


def test_without_stores_and_with_given_ones(broker: BrokerThread) -> None:
    none = compat.HAClient("desk-3", no_store=True)
    assert none.get_publish_store() is None
    assert none.get_bookmark_store() is None
    with compat.HAClient("desk-4", no_store=True) as client:
        client.set_publish_store(MemoryPublishStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # one of haclient works, too
        client.set_server_chooser(chooser(broker.uri))
        client.set_timeout(5000)
        assert client.get_timeout() == 5000
        client.connect_and_logon()
        client.publish("orders", "x")
        client.publish_flush()
        assert client.get_unpersisted_count() == 0


def test_what_an_ha_client_does_itself_is_refused(ha: compat.HAClient) -> None:
    with pytest.raises(UsageError, match="chooser"):
        ha.connect("tcp://127.0.0.1:1/amps/json")
    with pytest.raises(UsageError, match="connect_and_logon"):
        ha.logon()
    with pytest.raises(UsageError, match="set_server_chooser"):
        compat.HAClient("desk-5").connect_and_logon()


def test_getters_give_what_was_set() -> None:
    client = compat.HAClient("desk-6")
    assert client.get_server_chooser() is client.get_reconnect_delay_strategy() is None
    assert isinstance(client.get_subscription_manager(), compat.MemorySubscriptionManager)
    servers, strategy = chooser(NOBODY), compat.ExponentialDelayStrategy()
    manager = compat.MemorySubscriptionManager()
    client.set_server_chooser(servers)
    client.set_reconnect_delay_strategy(strategy)
    client.set_subscription_manager(manager)
    assert client.get_server_chooser() is servers
    assert client.get_reconnect_delay_strategy() is strategy
    assert client.get_subscription_manager() is manager
    assert client.get_timeout() == 10_000


def test_close_in_a_handler_is_refused_and_the_client_goes_on(ha: compat.HAClient) -> None:
    errors: list[Exception] = []
    ha.set_exception_listener(errors.append)
    ha.subscribe(lambda _: ha.close(), "orders")
    ha.publish("orders", "x")
    wait_until(lambda: len(errors) == 1)
    assert "was called by a handler" in str(errors[0])
    ha.publish("orders", "y")
    ha.publish_flush(30_000)


def test_a_client_that_a_handler_has_disconnected_is_followed_by_another(
    broker: BrokerThread,
) -> None:
    errors: list[Exception] = []
    with compat.HAClient("desk-6", no_store=True) as client:
        client.set_server_chooser(chooser(broker.uri))
        client.set_exception_listener(errors.append)
        client.connect_and_logon()
        client.subscribe(lambda _: client.disconnect(), "orders")
        client.publish("orders", "x")
        wait_until(client.disconnected)
        client.connect_and_logon()
        client.publish("orders", "y")
        client.flush()
    assert errors == []


def test_disconnect_in_a_handler_ends_the_client_and_closes_its_stores(
    broker: BrokerThread, tmp_path: Path
) -> None:
    errors: list[Exception] = []
    paths = str(tmp_path / "a.pub"), str(tmp_path / "a.bm")

    def disconnect(_message: compat.Message) -> None:
        client.disconnect()
        client.disconnect()
        with pytest.raises(compat.DisconnectedException, match="connect_and_logon first"):
            client.publish("orders", "y")  # nobody would send it

    client = compat.HAClient("desk-6", *paths)
    client.set_server_chooser(chooser(broker.uri))
    client.set_exception_listener(errors.append)
    client.connect_and_logon()
    client.subscribe(disconnect, "orders")
    client.publish("orders", "x")
    wait_until(lambda: is_unlocked(paths[0]))  # although nobody calls the client
    assert errors == []
    with pytest.raises(compat.DisconnectedException, match="connect_and_logon first"):
        client.publish("orders", "y")
    client.disconnect()
    client.close()


def test_of_two_threads_that_connect_at_once_the_second_one_is_refused(
    broker: BrokerThread, tmp_path: Path
) -> None:
    for number in range(5):
        paths = str(tmp_path / f"{number}.pub"), str(tmp_path / f"{number}.bm")
        with compat.HAClient("desk-6", *paths) as client:
            client.set_server_chooser(chooser(broker.uri))
            barrier = threading.Barrier(2)

            def connect(
                client: compat.HAClient = client, start: threading.Barrier = barrier
            ) -> str:
                start.wait()
                try:
                    client.connect_and_logon()
                except compat.AlreadyConnectedException as error:
                    return str(error)
                client.publish("orders", "x")
                client.publish_flush(30_000)
                return "connected"

            with ThreadPoolExecutor(2) as executor:
                results = {each.result() for each in [executor.submit(connect) for _ in range(2)]}
            assert results == {
                "connected",
                "the client is connected already: disconnect it first",
            }


class CountingChooser(compat.DefaultServerChooser):
    """Notes that the client cannot connect."""

    def __init__(self) -> None:
        super().__init__([NOBODY])
        self.has_failed = threading.Event()

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        super().report_failure(error, info)
        self.has_failed.set()


@pytest.mark.parametrize("by", ["close", "disconnect"])
def test_another_thread_ends_connecting(broker: BrokerThread, tmp_path: Path, by: str) -> None:
    paths = str(tmp_path / "a.pub"), str(tmp_path / "a.bm")
    client, servers = compat.HAClient("desk-6", *paths), CountingChooser()
    client.set_server_chooser(servers)
    client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1))
    with ThreadPoolExecutor(1) as executor:
        connecting = executor.submit(client.connect_and_logon)
        assert servers.has_failed.wait(60)
        with pytest.raises(UsageError, match="set_publish_store comes before"):
            client.set_publish_store(paths[0])
        assert client.get_unpersisted_count() == 0
        assert client.get_most_recent("s1") == "0"
        client.close() if by == "close" else client.disconnect()
        with pytest.raises(compat.DisconnectedException, match="was closed while it waited"):
            connecting.result()
    assert is_unlocked(paths[0])
    client.set_server_chooser(chooser(broker.uri))
    client.connect_and_logon()
    client.close()


@pytest.mark.parametrize("by", ["close", "connect_and_logon"])
def test_a_listener_does_not_wait_for_the_connecting_that_waits_for_it(
    broker: BrokerThread, by: str
) -> None:
    errors: list[Exception] = []

    def call(state: int) -> None:
        if state == compat.ConnectionStateListener.Connected:
            client.close() if by == "close" else client.connect_and_logon()

    with compat.HAClient("desk-6") as client:
        client.set_exception_listener(errors.append)
        client.add_connection_state_listener(call)
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        wait_until(lambda: bool(errors))
        client.publish("orders", "x")
    assert [type(error) for error in errors] == [UsageError]


def is_unlocked(path: str) -> bool:
    """Whether nobody has a publish store open."""
    try:
        compat.PublishStore(path).native.close()
    except StoreLocked:
        return False
    return True


@pytest.mark.parametrize("wait", [True, False])
def test_disconnect_of_a_client_that_has_given_up_is_no_error(
    broker: BrokerThread, tmp_path: Path, *, wait: bool
) -> None:
    paths = str(tmp_path / "a.pub"), str(tmp_path / "a.bm")
    client = compat.HAClient("desk-7", *paths)
    client.set_server_chooser(chooser(broker.uri))
    client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1, 20))
    client.connect_and_logon()
    broker.stop()
    if wait:
        wait_until(lambda: has_ended(client, []))
    client.disconnect()
    client.disconnect()
    client.close()
    with compat.HAClient("desk-7", *paths):
        pass
    with pytest.raises(compat.DisconnectedException, match="connect_and_logon first"):
        client.publish("orders", "x")


def test_a_client_that_has_given_up_connects_again(broker: BrokerThread, tmp_path: Path) -> None:
    paths = str(tmp_path / "a.pub"), str(tmp_path / "a.bm")
    with compat.HAClient.create_file_backed("desk-7", *paths) as client:
        client.set_server_chooser(chooser(broker.uri))
        client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1, 20))
        client.set_exception_listener(lambda _: None)
        client.connect_and_logon()
        broker.stop()
        published: list[int | None] = []
        wait_until(lambda: has_ended(client, published))
        assert client.get_unpersisted_count() == len(published)
        broker.start()
        client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1))
        client.connect_and_logon()
        client.publish_flush(30_000)
        assert client.get_unpersisted_count() == 0


def has_ended(client: compat.HAClient, published: list[int | None]) -> bool:
    """Whether a publish is refused; it is noted otherwise."""
    try:
        published.append(client.publish("orders", "x"))
    except (compat.ConnectionException, UsageError):  # its store may just have been closed
        return True
    return False


def test_without_a_bookmark_it_begins_where_it_has_got_to(ha: compat.HAClient) -> None:
    for body in "ab":
        ha.publish("orders", body)
    ha.publish_flush()
    with ha.bookmark_subscribe("orders", sub_id="s1") as stream:
        got = [next(stream), next(stream)]
    assert [each.get_data() for each in got if each is not None] == ["a", "b"]


def test_a_setting_that_cannot_be_is_mended_and_connecting_goes_on(broker: BrokerThread) -> None:
    with compat.HAClient("desk-8") as client:
        client.set_server_chooser(chooser(broker.uri))
        client.set_ack_batch_size(-1)
        for _ in range(2):
            with pytest.raises(UsageError, match="ack_batch_size"):
                client.connect_and_logon()
        client.set_ack_batch_size(10)
        with pytest.raises(UsageError, match="heartbeat"):
            client.set_heartbeat(-1)
        client.connect_and_logon()
        client.publish("orders", "x")
        client.publish_flush()


def test_a_store_that_was_given_ends_with_its_client(broker: BrokerThread) -> None:
    with compat.HAClient("desk-9", no_store=True) as client:
        client.set_publish_store(MemoryPublishStore())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]  # one of haclient works, too
        client.set_server_chooser(chooser(broker.uri))
        client.connect_and_logon()
        client.disconnect()
        with pytest.raises(UsageError, match="set another one"):
            client.connect_and_logon()
        client.set_publish_store(compat.MemoryPublishStore())
        client.connect_and_logon()
