"""What is set before connecting, and what can be asked."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a thread that runs it is refused
from collections.abc import Callable

import pytest

from haclient import compat
from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient_fake_server.config import BrokerConfig
from support.broker_thread import BrokerThread, broker_thread
from unit.compat.conftest import chooser, wait_until

pytestmark = pytest.mark.row("B18")


def test_names_and_defaults_are_there_before_connecting() -> None:
    client = compat.Client("desk-1")
    assert (client.name(), client.get_name()) == ("desk-1", "desk-1")
    assert client.get_name_hash() == publisher_id("desk-1")
    assert (client.get_uri(), client.get_server_version()) == ("", "")
    assert client.get_connection_info() == {}
    assert client.get_unpersisted_count() == 0
    assert client.get_publish_store() is None
    assert client.get_bookmark_store() is None
    assert client.get_most_recent("s1") == "0"
    client.prune_store()
    assert (client.get_logon_options(), client.get_logon_correlation_data()) == ("", "")
    assert client.get_ack_batch_size() is client.get_ack_timeout() is None


def test_settings_come_before_connecting(ha: compat.HAClient) -> None:
    store, late = compat.MemoryPublishStore(), "comes before connect_and_logon"
    changes: tuple[Callable[[], object], ...] = (
        lambda: ha.set_publish_store(store),
        lambda: ha.set_bookmark_store(compat.MemoryBookmarkStore()),
        lambda: ha.set_logon_options("ack_conflation=1ms"),
        lambda: ha.set_logon_correlation_data("x"),
        lambda: ha.add_http_preflight_header("a", "b"),
        ha.clear_http_preflight_headers,
        lambda: ha.set_ack_batch_size(3),
        lambda: ha.set_ack_timeout(3),
        lambda: ha.set_timeout(3),
        lambda: ha.set_transport_filter(None),
        lambda: ha.set_server_chooser(chooser()),
        lambda: ha.set_reconnect_delay_strategy(compat.FixedDelayStrategy()),
        lambda: ha.set_subscription_manager(compat.MemorySubscriptionManager()),
    )
    for change in changes:
        with pytest.raises(UsageError, match=late):
            change()
    with pytest.raises(UsageError):
        ha.set_heartbeat(3)
    with pytest.raises(compat.AlreadyConnectedException, match="disconnect it first"):
        ha.connect_and_logon()


def test_settings_reach_the_server(broker: BrokerThread) -> None:
    with compat.Client("desk-2") as client:
        client.set_logon_options("ack_conflation=1ms")
        client.set_logon_correlation_data("desk2")
        client.set_ack_batch_size(3)
        client.set_ack_timeout(250)
        client.add_http_preflight_header("X-Desk", "2")
        client.clear_http_preflight_headers()
        client.set_heartbeat(5)
        client.connect(broker.uri)
        client.logon()
        assert client.get_logon_options() == "ack_conflation=1ms"
        assert client.get_logon_correlation_data() == "desk2"
        assert (client.get_ack_batch_size(), client.get_ack_timeout()) == (3, 250)
        assert client.get_uri() == broker.uri
        assert client.get_server_version()
        assert client.get_connection_info()["client_name"] == "desk-2"
        client.set_heartbeat(0)


def test_a_preflight_header_makes_a_connection_begin_with_an_http_upgrade() -> None:
    with broker_thread(BrokerConfig()) as broker, compat.Client("desk-3") as client:
        client.add_http_preflight_header("X-Desk", "3")
        try:
            client.connect(broker.uri)
        except compat.AMPSException as error:  # what the broker answers without HTTP
            assert "HTTP" in str(error)
        else:
            client.logon()


def test_the_listeners_are_called_from_the_moment_they_are_set(
    ha: compat.HAClient,
) -> None:
    heard: list[str] = []
    ha.set_global_command_type_message_handler("ack", lambda m: heard.append(m.get_ack_type()))
    ha.flush()
    wait_until(lambda: "processed" in heard)
    ha.set_global_command_type_message_handler("ack", None)
    count = len(heard)
    ha.flush()
    assert len(heard) == count
    with pytest.raises(UsageError, match="no command"):
        ha.set_global_command_type_message_handler("nothing", lambda _: None)


def test_a_refused_publish_goes_to_its_handler_else_to_the_last_chance(
    ha: compat.HAClient,
) -> None:
    failed: list[tuple[str, str]] = []
    last: list[str] = []
    ha.set_last_chance_message_handler(lambda m: last.append(m.get_topic()))
    ha.publish("prices", "no json")
    wait_until(lambda: len(last) == 1)
    ha.set_failed_write_handler(lambda m, reason: failed.append((m.get_topic(), reason)))
    ha.publish("prices", "no json")
    wait_until(lambda: len(failed) == 1)
    assert (last, failed[0][0]) == (["prices"], "prices")
    assert failed[0][1]
    ha.set_unhandled_message_handler(None)


def test_what_is_missing_says_what_to_do_instead() -> None:
    client = compat.Client("desk-4")
    with pytest.raises(AttributeError, match="max_queued_bytes"):
        client.set_default_max_depth(3)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]  # on purpose
    with pytest.raises(AttributeError, match=r"docs/migration\.md"):
        client.no_such_thing()  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]  # on purpose


def test_an_unknown_command_is_refused_before_connecting_too() -> None:
    with pytest.raises(UsageError, match="no command"):
        compat.Client("desk-5").set_global_command_type_message_handler("nothing", lambda _: None)


def test_a_handler_of_commands_is_called_although_it_was_set_before_connecting(
    broker: BrokerThread,
) -> None:
    got: list[str] = []
    with compat.Client("desk-6") as client:
        client.set_global_command_type_message_handler("ack", lambda m: got.append(m.get_command()))
        client.connect(broker.uri)
        client.logon()
        client.flush()
        wait_until(lambda: "ack" in got)


def test_a_setting_in_a_loop_of_asyncio_is_refused_and_ends_nothing(ha: compat.HAClient) -> None:
    async def main() -> None:
        ha.set_timeout(5)

    with pytest.raises(UsageError, match="runs asyncio"):
        asyncio.run(main())
    ha.publish("orders", "x")
    ha.publish_flush(30_000)


def test_a_transport_filter_sees_headers_without_passwords(broker: BrokerThread) -> None:
    seen: list[tuple[bytes, int]] = []
    with compat.Client("desk-7") as client:
        client.set_transport_filter(lambda data, direction: seen.append((data, direction)))
        client.connect(broker.uri.replace("tcp://", "tcp://desk:secret@"))
        client.logon()
        client.publish("orders", "a body")
        client.flush()
    everything = b"".join(data for data, _ in seen)
    assert b"desk-7" in everything
    assert b"secret" not in everything
    assert b"a body" not in everything
    assert any(b'"logon"' in data and direction == 0 for data, direction in seen)
    assert any(b'"ack"' in data and direction == 1 for data, direction in seen)


def test_a_transport_filter_is_taken_away_or_ends_when_it_raises(broker: BrokerThread) -> None:
    errors: list[Exception] = []
    seen: list[bytes] = []

    def fail(data: bytes, direction: int) -> None:
        seen.append(data)
        raise ValueError(direction)

    for is_taken_away in (True, False):
        with compat.Client("desk-8") as client:
            client.set_exception_listener(errors.append)
            client.set_transport_filter(fail)
            if is_taken_away:
                client.set_transport_filter(None)
            client.connect(broker.uri)
            client.logon()
            client.flush()
        assert len(seen) == (0 if is_taken_away else 1)
    assert [type(error) for error in errors] == [ValueError]
