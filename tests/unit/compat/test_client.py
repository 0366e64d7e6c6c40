"""Commands with the official names, against a broker."""

from __future__ import annotations

import json
import threading

import pytest
from typing_extensions import override

from haclient import compat
from haclient.errors import DisconnectedError, InvalidTopic, UsageError
from support.broker_thread import BrokerThread
from unit.compat.conftest import wait_until

pytestmark = pytest.mark.row("B18")


def bodies(stream: compat.MessageStream) -> list[str]:
    return [each.get_data() for each in stream if each is not None and each.get_data()]


def test_a_stream_gets_what_is_published_after_it_was_placed(plain: compat.Client) -> None:
    with plain.subscribe("orders", "/id > 1") as stream:
        plain.publish("orders", '{"id": 1}')
        plain.publish("orders", b'{"id": 2}')
        message = next(stream)
    assert message is not None
    assert (message.get_command(), message.get_topic()) == ("publish", "orders")
    assert (message.get_data(), message.get_data_raw()) == ('{"id": 2}', b'{"id": 2}')


@pytest.mark.parametrize("by_name", [False, True])
def test_a_handler_comes_first_or_by_name(plain: compat.Client, *, by_name: bool) -> None:
    got: list[str] = []

    def on_message(message: compat.Message) -> None:
        got.append(message.get_data())

    if by_name:
        sub_id = plain.subscribe(on_message=on_message, topic="orders", sub_id="s1")
    else:
        sub_id = plain.subscribe(on_message, "orders", None, None, 5000, "s1")
    assert sub_id == "s1"
    plain.publish("orders", "a")
    wait_until(lambda: got == ["a"])
    plain.unsubscribe("s1")
    plain.publish("orders", "b")
    plain.flush(5000)
    assert got == ["a"]


def test_a_wrong_argument_is_refused_as_python_does(plain: compat.Client) -> None:
    with pytest.raises(TypeError, match="filtre"):
        plain.subscribe("orders", filtre="x")  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]  # on purpose
    with pytest.raises(TypeError, match="too many"):
        plain.sow("prices", None, 10)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]  # on purpose
    with pytest.raises(UsageError, match="milliseconds"):
        plain.subscribe("orders", timeout=-1)


def test_a_query_has_its_records_between_begin_and_end(plain: compat.Client) -> None:
    for number in range(3):
        plain.publish("prices", json.dumps({"id": number}))
    plain.flush()
    commands = [each.get_command() for each in plain.sow("prices") if each is not None]
    assert commands == ["group_begin", "sow", "sow", "sow", "group_end"]
    assert bodies(plain.sow("prices", order_by="/id DESC", top_n=1)) == ['{"id": 2}']
    with plain.sow_and_subscribe("prices", "/id = 2") as stream:
        first = [next(stream) for _ in range(3)]
        plain.publish("prices", '{"id": 2, "px": 1}')
        update = next(stream)
    assert [each.get_command() for each in first if each] == ["group_begin", "sow", "group_end"]
    assert update is not None
    assert update.get_command() == "publish"


def test_changes_alone_are_followed(plain: compat.Client) -> None:
    plain.publish("prices", '{"id": 1, "px": 1}')
    with plain.sow_and_delta_subscribe("prices") as both, plain.delta_subscribe("prices") as delta:
        assert [next(both) for _ in range(3)]
        plain.delta_publish("prices", '{"id": 1, "px": 2}')
        for stream in (both, delta):
            message = next(stream)
            assert message is not None
            assert json.loads(message.get_data()) == {"id": 1, "px": 2}


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("has_handler", [True, False])
def test_a_delete_has_its_options(
    broker: BrokerThread, *, has_store: bool, has_handler: bool
) -> None:
    rest = ("prices", "1 = 1", "expire")  # an option that a queue has
    with compat.Client("delete-1") as client:
        if has_store:
            client.set_publish_store(compat.MemoryPublishStore())
        client.connect(broker.uri)
        client.logon()
        with pytest.raises(compat.InvalidOptionsException):
            client.sow_delete(lambda _: None, *rest) if has_handler else client.sow_delete(*rest)


def test_records_are_deleted_in_each_form(plain: compat.Client) -> None:
    for number in range(4):
        plain.publish("prices", json.dumps({"id": number}))
    assert plain.sow_delete("prices", "/id = 0").get_records_deleted() == 1
    assert plain.sow_delete_by_data("prices", '{"id": 1}').get_records_deleted() == 1
    (key,) = [each.get_sow_key() for each in plain.sow("prices", "/id = 2") if each][1:-1]
    assert plain.sow_delete_by_keys("prices", key).get_records_deleted() == 1
    acks: list[compat.Message] = []
    plain.sow_delete(acks.append, "prices", "1 = 1")
    wait_until(lambda: len(acks) == 1)
    assert (acks[0].get_ack_type(), acks[0].get_records_deleted()) == ("stats", 1)


def test_a_command_of_the_caller_stays_as_it_was(
    plain: compat.Client,
) -> None:
    command = compat.Command("subscribe").set_topic("orders")
    with plain.execute(command) as stream:
        assert stream.get_sub_id()
    assert command.get_timeout() == 0  # the caller's command is as it was


def test_a_queue_is_consumed_with_and_without_auto_ack(plain: compat.Client) -> None:
    for body in "ab":
        plain.publish("jobs", body)
    plain.set_auto_ack(True)
    assert plain.get_auto_ack()
    with plain.subscribe("jobs") as stream:
        got = [next(stream), next(stream)]
    assert [each.get_data() for each in got if each is not None] == ["a", "b"]
    plain.flush_acks()
    plain.set_auto_ack(False)
    plain.publish("jobs", "c")
    with plain.subscribe("jobs").timeout(30_000) as stream:
        message = next(stream)
        assert message is not None
        assert message.get_data() == "c"  # those before have left the queue
        plain.ack(message, "cancel")
        again = next(stream)
        assert again is not None
        assert again.get_data() == "c"
        plain.ack("jobs", again.get_bookmark())


def test_what_a_handler_of_a_queue_returns_from_is_acknowledged(plain: compat.Client) -> None:
    plain.set_auto_ack(True)
    got: list[str] = []

    def on_message(message: compat.Message) -> None:
        got.append(message.get_data())

    plain.subscribe(on_message, "jobs")
    for body in "abc":
        plain.publish("jobs", body)
    wait_until(lambda: got == ["a", "b", "c"])  # the backlog is one: each was acknowledged


def test_a_handler_that_raises_ends_nothing_and_the_listener_is_told(plain: compat.Client) -> None:
    errors: list[Exception] = []
    got: list[str] = []
    plain.set_exception_listener(errors.append)

    def on_message(message: compat.Message) -> None:
        got.append(message.get_data())
        if len(got) == 1:
            raise ValueError("the first one")

    plain.subscribe(on_message, "orders")
    plain.publish("orders", "a")
    plain.publish("orders", "b")
    wait_until(lambda: got == ["a", "b"] and bool(errors))
    assert [str(error) for error in errors] == ["the first one"]


def test_a_handler_may_call_the_client(plain: compat.Client) -> None:
    got: list[str] = []

    def on_message(message: compat.Message) -> None:
        plain.publish("copies", message.get_data_raw())
        plain.flush(5000)
        got.append(message.get_data())

    plain.subscribe(on_message, "orders")
    with plain.subscribe("copies") as copies:
        plain.publish("orders", "a")
        copy = next(copies)
    assert copy is not None
    assert copy.get_data() == "a"


def test_the_empty_id_of_a_publish_ends_no_subscription(plain: compat.Client) -> None:
    got: list[str] = []

    def on_message(message: compat.Message) -> None:
        got.append(message.get_data())

    plain.subscribe(on_message, "orders")
    sub_id = plain.execute_async(compat.Command("publish").set_topic("copies").set_data("x"))
    plain.unsubscribe(sub_id)
    plain.publish("orders", "a")
    wait_until(lambda: got == ["a"])
    plain.unsubscribe("all")
    plain.publish("orders", "b")
    plain.flush()
    assert got == ["a"]


def test_a_refusal_has_both_official_names(plain: compat.Client) -> None:
    for kind in (compat.InvalidTopicException, compat.InvalidTopicError, InvalidTopic):
        with pytest.raises(kind):
            plain.sow("orders")


def test_before_connecting_and_after_closing_commands_say_what_to_call(
    broker: BrokerThread,
) -> None:
    client = compat.Client("early-1")
    for _ in range(2):
        with pytest.raises(DisconnectedError, match="call connect and logon first"):
            client.publish("orders", "x")
        client.unsubscribe()
        client.disconnect()
        client.connect(broker.uri)
        client.logon(5000)
        client.publish("orders", "x")
        client.flush()
        client.close()
    client.close()


def test_a_client_connects_again_after_disconnect(
    plain: compat.Client, broker: BrokerThread
) -> None:
    with pytest.raises(compat.AlreadyConnectedException):
        plain.connect(broker.uri)
    plain.disconnect()
    with pytest.raises(compat.DisconnectedException):
        plain.publish("orders", "x")
    plain.connect(broker.uri)
    plain.logon()
    plain.publish("orders", "x")
    plain.flush()


def threads_of(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == f"haclient {name}"]


@pytest.mark.parametrize("with_store", [False, True])
def test_disconnect_releases_the_thread_and_a_later_connection_goes_on(
    broker: BrokerThread, *, with_store: bool
) -> None:
    client = compat.Client("again-1")
    if with_store:
        client.set_publish_store(compat.MemoryPublishStore())
        client.set_bookmark_store(compat.MemoryBookmarkStore())
    for number in (1, 2):
        client.connect(broker.uri)
        client.logon()
        stream = client.bookmark_subscribe("orders", sub_id="s", bookmark=None)
        client.publish("orders", str(number))
        message = next(stream)
        assert message is not None
        if with_store:
            client.publish_flush()
            message.discard()
            assert message.get_data() == str(number), "the first one was discarded"
        assert len(threads_of("again-1")) == 1
        client.disconnect()
        assert threads_of("again-1") == []
        client.disconnect()
        with pytest.raises(compat.DisconnectedException, match="call connect and logon first"):
            client.publish("orders", "x")
    client.close()


def test_a_disconnect_after_one_that_was_interrupted_finishes_it(broker: BrokerThread) -> None:
    client = compat.Client("again-4")
    client.connect(broker.uri)
    client.logon()
    assert client._inner is not None
    thread = client._inner.__bridge__.thread
    thread.cancel()  # as far as the first one came
    thread.join()
    client.disconnect()
    with pytest.raises(compat.DisconnectedException, match="call connect and logon first"):
        client.publish("orders", "x")


def test_what_was_not_persisted_survives_a_disconnect_in_memory(broker: BrokerThread) -> None:
    client = compat.Client("again-2")
    client.set_publish_store(compat.MemoryPublishStore())
    client.connect(broker.uri)
    client.publish("orders", "before the logon")
    client.disconnect()
    assert client.get_unpersisted_count() == 1
    client.connect(broker.uri)
    client.logon()
    client.publish_flush(30_000)
    assert client.get_unpersisted_count() == 0
    client.close()


def test_a_disconnect_in_a_listener_closes_the_connection(broker: BrokerThread) -> None:
    client = compat.Client("again-3")
    done = threading.Event()

    def on_message(_: compat.Message) -> None:
        client.disconnect()
        done.set()

    client.connect(broker.uri)
    client.logon()
    client.subscribe(on_message, "orders")
    client.publish("orders", "x")
    assert done.wait(30)
    with pytest.raises(compat.DisconnectedException):
        client.publish("orders", "x")
    client.close()
    assert threads_of("again-3") == []


def test_logon_asks_its_authenticator_and_refuses_options_that_come_too_late(
    broker: BrokerThread,
) -> None:
    asked: list[tuple[str, str]] = []

    class Authenticator(compat.DefaultAuthenticator):
        @override
        def authenticate(self, username: str, password: str) -> str:
            asked.append((username, password))
            return password

    uri = broker.uri.replace("tcp://", "tcp://desk:secret@")
    with compat.Client("auth-1") as client:
        client.connect(uri)
        with pytest.raises(UsageError, match="set_logon_options"):
            client.logon(0, None, "ack_conflation=1ms")
        client.logon(5000, Authenticator())
        assert asked == [("desk", "secret")]
        assert "secret" not in client.get_uri()


def test_threads_publish_and_stores_answer_in_any_of_them(broker: BrokerThread) -> None:
    client = compat.Client("threads-1")
    client.set_publish_store(compat.MemoryPublishStore())
    client.connect(broker.uri)
    client.logon()
    threads = [
        threading.Thread(target=lambda: [client.publish("orders", "x") for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.publish_flush(30_000)
    store = client.get_publish_store()
    assert store is not None
    store.flush(30_000)
    assert (client.get_unpersisted_count(), store.unpersisted_count()) == (0, 0)
    assert store.get_lowest_unpersisted() == 0
    assert store.get_last_persisted() > 0
    client.close()
