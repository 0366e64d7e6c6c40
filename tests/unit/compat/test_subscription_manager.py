"""The subscription manager with the official names."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import haclient.subscription_manager
from haclient import compat
from haclient.errors import BadRegexTopic, InvalidTopic, TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient_fake_server.engine.settings import LogTopic
from support.broker_thread import BrokerThread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")


def client_of(broker: BrokerThread, *, no_store: bool = False) -> compat.HAClient:
    client = compat.HAClient("desk-1", no_store=no_store)
    client.set_server_chooser(chooser(broker.uri))
    client.set_reconnect_delay_strategy(compat.FixedDelayStrategy(1))
    return client


def manager_of(client: compat.HAClient) -> compat.MemorySubscriptionManager:
    manager = client.get_subscription_manager()
    assert isinstance(manager, compat.MemorySubscriptionManager)
    return manager


def subscribe(topic: str, sub_id: str) -> compat.Command:
    return compat.Command("subscribe").set_topic(topic).set_sub_id(sub_id)


def test_what_was_given_before_connecting_is_placed_then_and_kept_after_a_loss(
    broker: BrokerThread,
) -> None:
    got: list[str] = []
    with client_of(broker) as client:
        manager = compat.MemorySubscriptionManager()
        client.set_subscription_manager(manager)
        command = subscribe("orders", "s1")
        manager.subscribe(lambda m: got.append(m.get_data()), command)
        manager.subscribe(lambda _: got.append("never"), subscribe("orders", "s2"))
        manager.unsubscribe("s2")
        command.set_topic("elsewhere")  # it is the caller's
        client.connect_and_logon()
        client.publish("orders", "a")
        wait_until(lambda: got == ["a"])
        manager.resubscribe(client)  # which it has
        assert [entry.sub_id for entry in manager.entries()] == ["s1"]
        broker.stop()
        broker.start()
        wait_until(lambda: not client.disconnected() and publishes(client, "b") and "b" in got)
        client.publish("orders", "c")
        wait_until(lambda: got[-1] == "c")
        assert got.count("c") == 1  # there is one subscription


def publishes(client: compat.HAClient, body: str) -> bool:
    try:
        client.publish("orders", body)
    except compat.DisconnectedException:
        return False
    return True


def test_resubscribe_places_what_an_earlier_connection_had(broker: BrokerThread) -> None:
    got: list[str] = []
    with client_of(broker, no_store=True) as client:
        client.connect_and_logon()
        client.subscribe(lambda m: got.append(f"1 {m.get_data()}"), "orders", sub_id="s1")
        client.subscribe(lambda m: got.append(f"2 {m.get_data()}"), "orders", sub_id="s2")
        client.unsubscribe("s2")
        client.sow(lambda _: None, "prices")
        client.disconnect()
        client.connect_and_logon()
        client.publish("orders", "a")
        client.flush(30_000)
        assert list(manager_of(client).entries()) == []
        manager_of(client).resubscribe(client)
        client.publish("orders", "b")
        wait_until(lambda: got == ["1 b"])


@pytest.mark.parametrize("bookmark", [compat.Client.Bookmarks.EPOCH, compat.Client.Bookmarks.NOW])
def test_resubscribe_continues_where_the_earlier_connection_stopped(
    broker: BrokerThread, tmp_path: Path, bookmark: str
) -> None:
    got: list[str] = []

    def handle(message: compat.Message) -> None:
        got.append(message.get_data())
        message.discard()

    with client_of(broker, no_store=True) as client:
        client.set_bookmark_store(str(tmp_path / "bookmarks"))
        client.connect_and_logon()
        client.bookmark_subscribe(handle, "orders", bookmark, sub_id="s1")
        for body in "ab":
            client.publish("orders", body)
        wait_until(lambda: got == ["a", "b"])
        client.disconnect()
        with compat.Client("other") as other:
            other.connect(broker.uri)
            other.logon()
            other.publish("orders", "c")
            other.publish_flush(30_000)
        client.connect_and_logon()
        manager_of(client).resubscribe(client)
        client.publish("orders", "d")
        wait_until(lambda: got[-1] == "d")
    assert got == ["a", "b", "c", "d"]


def restart(broker: BrokerThread, *log_topics: str) -> None:
    """Start the broker again, with a transaction log of these topics only."""
    broker.stop()
    broker._config = replace(broker._config, log_topics=tuple(map(LogTopic, log_topics)))
    broker.start()


class Handler:
    """Answers, and notes what it was asked."""

    def __init__(self, *, answer: bool) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, str, type[Exception]]] = []

    def failure(self, command: Command, on_message: object, acks: str, error: Exception) -> bool:
        assert callable(on_message)
        self.asked.append((command.sub_id, command.topic, acks, type(error)))
        return self.answer


def test_a_subscription_that_is_refused_is_left_out_if_the_handler_says_so(
    broker: BrokerThread,
) -> None:
    got: list[str] = []
    handler = Handler(answer=True)
    with client_of(broker) as client:
        manager_of(client).set_failed_resubscribe_handler(handler)
        client.connect_and_logon()
        client.bookmark_subscribe(lambda _: None, "prices", "0", sub_id="s1")
        client.subscribe(lambda m: got.append(m.get_data()), "orders", sub_id="s2")
        restart(broker, "orders", "jobs")
        wait_until(lambda: bool(handler.asked))
        wait_until(lambda: publishes(client, "b") and "b" in got)
        assert handler.asked == [("s1", "prices", "", InvalidTopic)]
        assert [entry.sub_id for entry in manager_of(client).entries()] == ["s2"]


@pytest.mark.parametrize("raises", [False, True])
def test_it_is_tried_again_if_the_handler_says_no_or_raises(
    broker: BrokerThread, *, raises: bool
) -> None:
    got: list[str] = []
    errors: list[Exception] = []
    asked: list[str] = []

    def decide(command: Command, _handler: object, _acks: str, _error: Exception) -> bool:
        asked.append(command.sub_id)
        if raises:
            raise ValueError("no idea")
        return False

    with client_of(broker) as client:
        client.set_exception_listener(errors.append)
        manager_of(client).set_failed_resubscribe_handler(decide)
        client.connect_and_logon()
        client.bookmark_subscribe(lambda m: got.append(m.get_data()), "prices", sub_id="s1")
        restart(broker, "orders", "jobs")
        wait_until(lambda: len(asked) > 1)
        restart(broker, ".*")
        wait_until(lambda: not client.disconnected() and '{"id": 1}' in put(client, got))
    assert any(isinstance(error, ValueError) for error in errors) is raises


def put(client: compat.HAClient, got: list[str]) -> list[str]:
    with suppress(compat.DisconnectedException):
        client.publish("prices", '{"id": 1}')
    return got


def test_without_a_handler_a_refused_subscription_ends_the_client(broker: BrokerThread) -> None:
    client = client_of(broker)
    client.connect_and_logon()
    client.bookmark_subscribe(lambda _: None, "prices", "0", sub_id="s1")
    restart(broker, "orders", "jobs")
    wait_until(lambda: not publishes_or_ended(client))
    with pytest.raises(InvalidTopic):
        client.close()


def publishes_or_ended(client: compat.HAClient) -> bool:
    """Whether the client goes on."""
    try:
        client.publish("orders", "x")
    except compat.DisconnectedException:
        return True
    except InvalidTopic:
        return False
    return True


def test_a_refusal_when_it_is_placed_is_raised_or_decided(broker: BrokerThread) -> None:
    handler = Handler(answer=True)
    with client_of(broker) as client:
        manager = manager_of(client)
        manager.subscribe(lambda _: None, subscribe("(", "s1"))
        with pytest.raises(BadRegexTopic):
            client.connect_and_logon()
        manager.set_failed_resubscribe_handler(handler)
        manager.resubscribe(client)
        assert handler.asked == [("s1", "(", "", BadRegexTopic)]
        manager.resubscribe(client)  # there is nothing left
        assert len(handler.asked) == 1


def test_the_resubscription_timeout_is_in_milliseconds(broker: BrokerThread) -> None:
    with client_of(broker) as client:
        manager = manager_of(client)
        assert manager.get_resubscription_timeout() is None
        manager.set_resubscription_timeout(0.000_001)
        manager.subscribe(lambda _: None, subscribe("orders", "s1"))
        with pytest.raises(TimedOut):
            client.connect_and_logon()
        manager.set_resubscription_timeout(30_000)
        assert manager.get_resubscription_timeout() == 30_000
        assert client._all_options().get("connect_timeout") == 30  # when a link was lost
        manager.set_resubscription_timeout(0)
        assert "connect_timeout" not in client._all_options()  # a silent server is left
        manager.resubscribe(client)
        assert [entry.sub_id for entry in manager.entries()] == ["s1"]
        with pytest.raises(UsageError, match="milliseconds"):
            manager.set_resubscription_timeout(-1)


class Recorder:
    """A client that notes the limits of the subscriptions that are placed."""

    def __init__(self, manager: compat.MemorySubscriptionManager) -> None:
        self.limits: dict[str, float | None] = {}
        self._manager = manager

    def get_timeout(self) -> int:
        return 2_000

    def execute_async(self, command: Command, on_message: object = None) -> str:
        assert callable(on_message)
        self.limits[command.sub_id] = command.timeout
        self._manager.unsubscribe("gone")  # as another thread does
        self._manager.add(haclient.subscription_manager.Entry(command.sub_id, {"c": "subscribe"}))
        self._manager.note_handler(command.sub_id, command, on_message)
        return command.sub_id


def test_each_subscription_is_placed_with_a_limit() -> None:
    manager = compat.MemorySubscriptionManager()
    client = Recorder(manager)
    manager.subscribe(print, subscribe("orders", "plain"))
    manager.subscribe(print, subscribe("orders", "own").set_timeout(500))
    manager.subscribe(print, subscribe("orders", "none").set_timeout(0))
    manager.subscribe(print, subscribe("orders", "gone"))
    manager.resubscribe(client)
    assert client.limits == {"plain": 2, "own": 0.5, "none": 2}
    manager.connecting(print)
    manager.set_resubscription_timeout(7_000)
    manager.resubscribe(client)
    assert client.limits == {"plain": 7, "own": 0.5, "none": 7}
    manager.connecting(print)
    manager.set_resubscription_timeout(0)
    manager.resubscribe(client)
    assert client.limits == {"plain": math.inf, "own": 0.5, "none": math.inf}
    assert manager.get_resubscription_timeout() == 0


def test_what_cannot_be_is_refused_and_everything_can_be_forgotten() -> None:
    manager = compat.MemorySubscriptionManager()
    with pytest.raises(UsageError, match="set_sub_id"):
        manager.subscribe(lambda _: None, compat.Command("subscribe"))
    with pytest.raises(UsageError, match="method failure"):
        manager.set_failed_resubscribe_handler(3)
    client = compat.HAClient("desk-2")
    with pytest.raises(UsageError, match="lacks add, remove, clear, entries"):
        client.set_subscription_manager(3)  # type: ignore[arg-type]  # on purpose
    native = haclient.subscription_manager.MemorySubscriptionManager()
    client.set_subscription_manager(native)
    assert client.get_subscription_manager() is native
    entry = haclient.subscription_manager.Entry("s1", {"c": "subscribe"})
    manager.add(entry)
    manager.unsubscribe("all")
    assert list(manager.entries()) == []
