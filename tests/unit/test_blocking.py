# Made of tests/unit/test_aio.py by tools/make_blocking.py: change that, and run this.
"""The blocking client: what it has in common with the one for asyncio."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from itertools import product

import pytest

from haclient import EPOCH, Command, ConnectionState, FixedDelayStrategy, Message, RecordChange
from haclient.blocking import BaseClient, Client, HAClient, LiveRecords
from haclient.errors import (
    ConnectionRefused,
    DisconnectedError,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.events import PublishesPersisted
from haclient.transport.message_queue import HandlerErrorPolicy
from haclient_fake_server.config import BrokerConfig, QueueTopic, SowTopic
from haclient_fake_server.testing.processes import BrokerProcess
from support.broker_thread import BrokerThread, broker_thread, publish
from support.forks import refusals
from support.listening import on_states
from support.threads import (
    at_once,
    begin,
    in_other_thread,
    in_thread,
    rest_of,
    result_of,
    start,
    until,
)

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0
NOWHERE = "tcp://127.0.0.1:1/amps/json"
CONFIG = BrokerConfig(
    queues=(QueueTopic(name="jobs", max_per_subscription_backlog=10),),
    sow_topics=(SowTopic("prices", ("/id",)),),
)
Record = dict[str, object]
SEATS = ["handler", "queue handler", "policy", "listener"]


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread(CONFIG) as running:
        yield running


@contextmanager
def opened(broker: BrokerThread | BrokerProcess) -> Generator[HAClient]:
    with HAClient.memory_backed(
        "orders-7",
        servers=[broker.uri],
        exit_timeout=LIMIT_S,
        delay_strategy=FixedDelayStrategy(0.05),
    ) as client:
        yield client


def bodies(client: BaseClient, topic: str, count: int) -> list[str]:
    """What is in the log of a topic, in order."""
    found: list[str] = []
    with client.bookmark_stream(topic, sub_id=f"all of {topic}", bookmark=EPOCH) as messages:
        while len(found) < count:
            found.append((next(messages)).text)
    return found


# -- calls -----------------------------------------------------------------------------


@in_thread
def test_a_program_publishes_and_reads(broker: BrokerThread) -> None:
    with Client("orders-7") as client:
        client.connect(broker.uri)
        client.logon()
        assert client.state is ConnectionState.LOGGED_ON
        with client.stream("orders") as messages:
            client.publish("orders", b"1")
            client.publish("orders", "2")
            assert (next(messages)).data == b"1"
            assert (next(messages.batches()))[0].data == b"2"
            assert messages.sub_id
        assert rest_of(messages) == []
        assert rest_of(messages.batches()) == []
        assert messages.ended
        client.flush()
    assert str(client.state) == "shutdown"
    assert repr(client) == "<haclient.blocking.Client 'orders-7', not open>"


@pytest.mark.row("MS4", "MS9")
@in_thread
def test_lists_are_collected_and_none_stands_for_a_time_without_a_message(
    broker: BrokerThread,
) -> None:
    with opened(broker) as client:
        with client.stream("orders") as messages:
            timed = messages.with_timeout(0.05)
            assert next(timed) is None
            for number in range(5):
                client.publish("orders", str(number))
            batch = next(messages.batches(3, LIMIT_S))
            assert [message.text for message in batch] == ["0", "1", "2"]
            found = [next(messages.with_timeout(LIMIT_S)) for _ in range(2)]
            assert [message and message.text for message in found] == ["3", "4"]
            waiting = begin(messages.__next__)  # it takes the next one, whenever that comes
            assert [next(timed), next(timed)] == [None, None]
            client.publish("orders", "5")
            assert (result_of(waiting)).text == "5"
            assert next(timed) is None
        with pytest.raises(StopIteration):
            next(timed)
        with pytest.raises(UsageError, match="max_seconds needs max_messages"):
            messages.batches(max_seconds=1.0)


@pytest.mark.row("MS6")
@in_thread
def test_of_what_waits_only_the_newest_message_of_each_key_is_taken(
    broker: BrokerThread,
) -> None:
    with (
        opened(broker) as client,
        client.bookmark_stream("orders", sub_id="slow", bookmark=EPOCH).conflate(
            lambda message: message.data[:1]
        ) as slow,
        client.bookmark_stream("orders", sub_id="every", bookmark=EPOCH) as everything,
    ):
        client.publish_persisted("orders", b"a1")
        assert (next(slow)).data == b"a1"
        for body in (b"a2", b"b2", b"a3", b"b3", b"c3"):
            client.publish("orders", body)
        while (next(everything)).data != b"c3":
            pass
        assert [(next(slow)).data for _ in range(3)] == [b"a3", b"b3", b"c3"]
        assert next(slow.with_timeout(0)) is None
        with pytest.raises(UsageError, match="messages of a queue"):
            client.queue_stream("jobs").conflate()
        with pytest.raises(UsageError, match="a stream of deltas"):
            client.stream("orders", delta=True).conflate()


@in_thread
def test_callers_share_a_client_and_each_keeps_its_order(broker: BrokerThread) -> None:
    with opened(broker) as client:

        def publish_all(caller: int) -> None:
            for number in range(50):
                client.publish("orders", f"{caller} {number}")

        at_once(*(partial(publish_all, caller) for caller in range(8)))
        client.publish_flush(timeout=LIMIT_S)
        found = bodies(client, "orders", 400)
    for caller in range(8):
        own = [text for text in found if text.startswith(f"{caller} ")]
        assert own == [f"{caller} {number}" for number in range(50)]


@in_thread
def test_callers_share_a_stream_and_each_message_goes_to_one(broker: BrokerThread) -> None:
    with opened(broker) as client:
        client.publish_many("orders", [b"%d" % number for number in range(500)])
        taken: list[int] = []
        with client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages:

            def work() -> None:
                for message in messages:
                    message.discard()
                    taken.append(int(message.data))
                    if len(taken) == 500:
                        messages.close()

            at_once(*(work for _ in range(4)))
    assert sorted(taken) == list(range(500))


@in_thread
def test_a_client_survives_the_kill_of_its_server(amps_broker_process: BrokerProcess) -> None:
    with opened(amps_broker_process) as client:
        for number in range(50):
            client.publish("orders", f"{number}")
            if number == 20:
                in_other_thread(amps_broker_process.kill)
            if number == 40:
                in_other_thread(amps_broker_process.start)
        client.publish_flush(timeout=LIMIT_S)
        assert client.unpersisted_count == 0


@in_thread
def test_a_timeout_is_the_one_of_the_trio_client(broker: BrokerThread) -> None:
    with opened(broker) as client:
        with pytest.raises(TimedOut):
            client.flush(timeout=0)
        with pytest.raises(UsageError, match=r"timeout is a number of seconds.*not -1"):
            client.flush(timeout=-1)


@in_thread
def test_properties_are_there_before_and_after_and_cannot_be_set(
    broker: BrokerThread,
) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    assert client.name == "orders-7"
    assert client.metrics.state is ConnectionState.DISCONNECTED
    assert not client.health().is_alive
    with client:
        assert client.health().is_alive
        client.publish_persisted("orders", b"1")
        # Plain methods and properties work in every thread.
        assert in_other_thread(lambda: client.name) == "orders-7"
        assert in_other_thread(lambda: client.publish_nowait("orders", b"1"))
    assert client.metrics.logons == 1
    assert not client.health().is_alive
    assert "is alive       no" in client.report()
    with pytest.raises(AttributeError, match="name cannot be set"):
        client.name = "x"  # type: ignore[assignment]  # what is refused


# -- opening ---------------------------------------------------------------------------


@in_thread
def test_a_server_that_refuses_raises_where_the_client_is_opened() -> None:
    client = Client("orders-7")
    with client:
        assert client.state is ConnectionState.DISCONNECTED
        with pytest.raises(ConnectionRefused):
            client.connect(NOWHERE, timeout=LIMIT_S)
    with pytest.raises(UsageError, match="a client runs once"):
        client.open()


@in_thread
def test_a_client_that_cannot_connect_raises_why_and_leaves_no_thread() -> None:
    delays = FixedDelayStrategy(0.001, give_up_after=0.01)
    client = HAClient.memory_backed("orders-7", servers=[NOWHERE], delay_strategy=delays)
    with pytest.raises(ReconnectGaveUp):
        client.open()
    assert client.__bridge__.thread.has_ended


@in_thread
def test_opening_without_a_server_ends_after_its_limit_and_another_client_opens(
    broker: BrokerThread,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server = f"tcp://127.0.0.1:{mute.getsockname()[1]}/amps/json"
        client = HAClient.memory_backed("orders-7", servers=[server])
        with pytest.raises(TimedOut, match=r"not logged on within 0\.1 s"):
            client.open(timeout=0.1)
    assert client.__bridge__.thread.has_ended
    with pytest.raises(UsageError):
        client.open()
    limits, error = iter((0.3, 3.0, 30.0, LIMIT_S)), TimedOut()
    while error.__cause__ is None:  # a busy machine may not have got as far as the refusal
        refused = HAClient.memory_backed("orders-8", servers=[NOWHERE])
        with pytest.raises(TimedOut, match=r"^open: not logged on within") as late:
            refused.open(timeout=next(limits))
        error = late.value
    assert isinstance(error.__cause__, ConnectionRefused)
    assert "; there is no connection: cannot connect" in str(error)
    again = HAClient.memory_backed("orders-7", servers=[broker.uri]).open(timeout=LIMIT_S)
    assert again.health().is_ready
    again.close()


@pytest.mark.parametrize("timeout", [-1, -5, float("nan"), "3"])
@in_thread
def test_a_limit_that_is_no_time_opens_nothing(broker: BrokerThread, timeout: float) -> None:
    client = HAClient("orders-7", servers=[broker.uri])
    with pytest.raises(UsageError, match=rf"timeout is a number of seconds.*not {timeout!r}"):
        client.open(timeout=timeout)
    with client:
        assert client.health().is_ready


@pytest.mark.parametrize("timeout", [1e10, float("inf")])
@in_thread
def test_a_limit_may_be_longer_than_any_wait(broker: BrokerThread, timeout: float) -> None:
    client = HAClient("orders-7", servers=[broker.uri]).open(timeout=timeout)
    assert client.health().is_ready
    client.close()


# -- handlers --------------------------------------------------------------------------


@in_thread
def test_a_handler_takes_one_message_at_a_time_in_order_and_may_call_the_client(
    broker: BrokerThread,
) -> None:
    seen: list[str] = []
    at_work = 0

    with opened(broker) as client:

        def handle(message: Message) -> None:
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            client.publish("answers", message.data)
            seen.append(message.text)
            at_work -= 1

        client.publish_many("orders", [b"%d" % number for number in range(50)])
        client.bookmark_subscribe(
            "orders", sub_id="s1", bookmark=EPOCH, handler=handle, auto_discard=True
        )
        until(lambda: len(seen) == 50)
        assert seen == [str(number) for number in range(50)]
        client.publish_flush(timeout=LIMIT_S)
        assert bodies(client, "answers", 50) == seen
        client.unsubscribe("s1")
        # Everything was discarded: a resume has nothing to deliver but what is new.
        client.publish("orders", b"new")
        with client.bookmark_stream("orders", sub_id="s1") as messages:
            assert (next(messages)).text == "new"


@pytest.mark.parametrize("kind", ["stream", "records"])
@in_thread
def test_what_a_handler_raises_ends_each_iteration_and_all_later_calls(
    broker: BrokerThread, kind: str
) -> None:
    error = ValueError("no such order")

    def fail(_: Message) -> None:
        raise error

    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    messages = client.stream("others").open()
    prices = client.records("prices").open()
    client.subscribe("orders", handler=fail)
    waiting = begin(messages.__next__ if kind == "stream" else prices.changes().__next__)
    client.publish("orders", b"1")
    with pytest.raises(ValueError, match="no such order") as raised:
        result_of(waiting)
    assert raised.value is error
    until(lambda: client.__bridge__.thread.has_ended)
    for call in (client.flush, prices.changes().__next__, messages.__next__, client.close):
        with pytest.raises(ValueError, match="no such order"):
            call()
    client.close()  # it was told


@in_thread
def test_an_error_policy_decides(broker: BrokerThread) -> None:
    failed: list[str] = []

    def handle(message: Message) -> None:
        raise ValueError(message.text)

    def on_error(message: Message, error: Exception) -> None:
        failed.append(f"{message.text} {error}")

    with HAClient.memory_backed("a", servers=[broker.uri], on_handler_error=on_error) as client:
        client.subscribe("orders", handler=handle)
        client.publish_many("orders", [b"1", b"2"])
        until(lambda: len(failed) == 2)
    assert failed == ["1 1", "2 2"]


CALLBACKS = {
    ("handler", "raises"): ValueError,
    ("queue handler", "raises"): ValueError,
    ("policy", "raises"): ValueError,
    ("listener", "raises"): None,  # it is logged
    **dict.fromkeys(product(SEATS, ["waits for others", "waits for an ack"])),
    **dict.fromkeys(product(SEATS, ["disconnects"]), DisconnectedError),
}
"""What leaves the block of a client, by the callback and by what that does at its first call."""


def misbehave(client: HAClient, behaviour: str, others: list[str]) -> None:
    if behaviour == "raises":
        raise ValueError("of the callback")
    if behaviour == "waits for others":
        until(lambda: "later" in others)
    elif behaviour == "waits for an ack":
        client.publish_persisted("others", "of the callback", timeout=LIMIT_S)
    else:
        client.disconnect()


def fail(message: Message) -> None:
    raise ValueError(message.text)


@pytest.mark.row("OB7")
@pytest.mark.parametrize(("seat", "behaviour"), CALLBACKS)
@in_thread
def test_a_callback_ends_the_client_as_documented_or_not_at_all(
    broker: BrokerThread, seat: str, behaviour: str
) -> None:
    """The other cases, of the client itself, are in tests/properties/test_callbacks.py."""
    others: list[str] = []
    calls: list[object] = []
    outcome: Exception | None = None
    wanted = {"later", *(["of the callback"] if behaviour == "waits for an ack" else [])}

    def callback(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            misbehave(client, behaviour, others)

    def take(message: Message) -> None:
        others.append(message.text)

    policy: HandlerErrorPolicy = callback if seat == "policy" else "raise"
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], on_handler_error=policy)
    try:
        with client:
            client.subscribe("others", handler=take)
            client.subscribe("failing", handler=fail if seat == "policy" else take)
            if seat == "handler":
                client.subscribe("orders", handler=callback)
            if seat == "queue handler":
                client.queue_subscribe("jobs", handler=callback, on_handler_error="raise")
            if seat == "listener":
                client.add_event_listener(callback, PublishesPersisted)
            for topic in ("orders", "jobs", "failing"):
                client.publish(topic, "1")
            client.publish("others", "later")
            until(lambda: calls)
            while CALLBACKS[seat, behaviour] is not None:  # until a call raises
                client.flush(timeout=LIMIT_S)
            until(lambda: wanted <= {*others})
    except (ValueError, DisconnectedError) as error:
        outcome = error
    assert type(outcome) is (CALLBACKS[seat, behaviour] or type(None))


@in_thread
def test_a_handler_that_closes_its_client_is_refused(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()

    def handle(_: Message) -> None:
        client.close()

    client.subscribe("orders", handler=handle)
    client.publish("orders", b"1")
    until(lambda: client.__bridge__.thread.has_ended)
    with pytest.raises(UsageError, match="close was called by a handler"):
        client.close()


@in_thread
def test_a_listener_may_call_the_client_and_can_be_removed(broker: BrokerThread) -> None:
    seen: list[tuple[ConnectionState, str]] = []

    def listen(state: ConnectionState) -> None:
        seen.append((state, client.name))

    listener = on_states(listen)
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], on_event=listener)
    with client:
        until(lambda: ConnectionState.RESUBSCRIBED in {state for state, _ in seen})
        client.remove_event_listener(listener)
        with pytest.raises(UsageError, match="no such event listener"):
            client.remove_event_listener(listener)
        before = len(seen)
    assert len(seen) == before
    assert {name for _, name in seen} == {"orders-7"}


@in_thread
def test_a_wire_tap_is_called_in_the_clients_thread_and_may_read_properties(
    broker: BrokerThread,
) -> None:
    seen: list[tuple[str, str]] = []

    def tap(_: str, __: str) -> None:
        seen.append((client.name, threading.current_thread().name))

    client = HAClient.memory_backed("orders-7", servers=[broker.uri], wire_tap=tap)
    with client:
        client.flush()
    assert set(seen) == {("orders-7", "haclient orders-7")}


# -- queues ----------------------------------------------------------------------------


@in_thread
def test_a_queue_is_consumed_by_handlers_and_by_streams(broker: BrokerThread) -> None:
    worked: list[str] = []

    def work(message: Message) -> None:
        worked.append(message.text)

    with opened(broker) as client:
        client.publish_many("jobs", [b"%d" % number for number in range(20)])
        with client.queue_stream("jobs", auto_ack=True) as messages:
            taken = [(next(messages)).text for _ in range(11)]  # the last is not acked
        client.flush_acks(timeout=LIMIT_S)
        client.queue_subscribe("jobs", handler=work)
        until(lambda: len(worked) == 10)
    assert set(taken[:10]) | set(worked) == {str(number) for number in range(20)}
    assert not set(taken[:10]) & set(worked)


@in_thread
def test_each_caller_acknowledges_what_it_has_taken_itself(broker: BrokerThread) -> None:
    with opened(broker) as client:
        client.publish_many("jobs", [f"{number}" for number in range(4)])
        with client.queue_stream("jobs", auto_ack=True) as messages:
            slow = next(messages)
            others: list[Message] = []

            def take() -> None:
                for _ in range(3):
                    others.append(next(messages))  # noqa: PERF401  # one by one

            at_once(take)
            assert [message.lease for message in others[:2]] == [None, None]
            assert slow.lease is not None


@in_thread
def test_a_message_that_waited_here_while_its_lease_was_lost_is_skipped(
    broker: BrokerThread,
) -> None:
    with opened(broker) as client, client.queue_stream("jobs") as messages:
        in_other_thread(partial(publish, broker.uri, "jobs", [b"1"]))
        buffer, thread = messages._buffer, messages.__bridge__.thread
        taken = thread.wait(buffer.take, "iterating")
        thread.wait(partial(buffer.put_back, taken), "iterating")  # its caller was interrupted
        in_other_thread(broker.stop)  # and what was in the queue is gone
        in_other_thread(broker.start)
        in_other_thread(partial(publish, broker.uri, "jobs", [b"2"]))
        assert (next(messages)).text == "2"


# -- live records ----------------------------------------------------------------------


def by_id(record: Record) -> object:
    return record["id"]


@pytest.mark.row("CC12")
@in_thread
def test_a_program_reads_the_records_and_follows_each_change(broker: BrokerThread) -> None:
    with opened(broker) as client:
        client.publish_persisted("prices", b'{"id":1,"px":1}', timeout=LIMIT_S)
        with client.records("prices", key=by_id, deltas=True) as prices:
            assert isinstance(prices, LiveRecords)
            assert dict(prices) == {1: {"id": 1, "px": 1}}
            assert prices.caught_up
            client.publish("prices", b'{"id":1,"px":2}')
            change = next(prices.changes())
            assert change == RecordChange("changed", 1, {"id": 1, "px": 1}, {"id": 1, "px": 2})
            with pytest.raises(UsageError, match="opened before"):
                prices.open()
            client.sow_delete("prices", filter="/id > 0")
            assert (next(prices.changes())).kind == "removed"
        assert prices.ended
        assert rest_of(prices.changes()) == []
    assert rest_of(prices.changes()) == []
    prices.close()


@in_thread
def test_the_end_of_records_ends_the_loops_of_all_callers(broker: BrokerThread) -> None:
    seen: list[object] = []
    with opened(broker) as client:
        prices = client.records("prices", key=by_id).open()

        def follow() -> None:
            for change in prices.changes():
                seen.append(change.key)  # noqa: PERF401  # at once, for the others

        following = [begin(follow) for _ in range(3)]
        client.publish_many("prices", [b'{"id":%d}' % number for number in range(10)])
        until(lambda: len(seen) == 10)
        prices.close()
        for each in following:
            result_of(each)
        assert set(seen) == set(range(10))
        assert client.metrics.subscriptions == ()


@in_thread
def test_records_of_a_client_that_does_not_reconnect_raise_and_the_last_ones_stay(
    broker: BrokerThread,
) -> None:
    with Client("orders-7") as client:
        client.connect(broker.uri)
        client.logon()
        client.publish("prices", b'{"id":1}')
        client.flush()
        with client.records("prices", key=by_id) as prices:
            in_other_thread(broker.stop)
            with pytest.raises(DisconnectedError):
                next(prices.changes())
            assert prices[1] == {"id": 1}


@in_thread
def test_records_that_are_refused_leave_nothing_behind(broker: BrokerThread) -> None:
    with opened(broker) as client:
        client.publish_persisted("prices", b'{"id":1}', timeout=LIMIT_S)
        with pytest.raises(UsageError, match="key function"):
            client.records("prices", key=lambda record: record["no"]).open()
        assert client.metrics.subscriptions == ()


# -- ends ------------------------------------------------------------------------------


@in_thread
def test_leaving_by_an_exception_raises_that_and_does_not_drain(
    amps_broker_process: BrokerProcess,
) -> None:
    client = HAClient.memory_backed(
        "orders-7", servers=[amps_broker_process.uri], exit_timeout=None
    )

    def leave() -> None:
        with client:
            client.flush()
            amps_broker_process.pause()
            client.publish("orders", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    amps_broker_process.resume()


@in_thread
def test_a_close_ends_a_call_that_waits_elsewhere(
    amps_broker_process: BrokerProcess,
) -> None:
    servers = [amps_broker_process.uri]
    client = HAClient("orders-7", servers=servers, exit_timeout=0).open()
    client.flush()
    amps_broker_process.pause()
    thread = client.__bridge__.thread
    waiting = begin(partial(client.flush, timeout=None))
    until(lambda: thread.now(lambda: thread._calls and thread._calls.child_tasks, "test"))
    client.close()
    with pytest.raises(DisconnectedError, match=r"closed|left"):
        result_of(waiting)
    amps_broker_process.resume()


@in_thread
def test_a_close_ends_an_opening_that_finds_no_server() -> None:
    client = HAClient.memory_backed("orders-7", servers=[NOWHERE])
    opening = begin(client.open)
    until(lambda: client.metrics.failed_attempts > 0)
    client.close()
    with pytest.raises(DisconnectedError, match="open: the client 'orders-7' was closed"):
        result_of(opening)
    with pytest.raises(UsageError, match="a client runs once"):
        client.open()


@in_thread
def test_a_closed_client_refuses_calls_and_closes_again(broker: BrokerThread) -> None:
    with opened(broker) as client:
        messages = client.stream("orders").open()
        opened_by_call = client.execute(Command("subscribe", topic="orders"))
        client.close()
        with pytest.raises(UsageError, match="publish of a client that was closed"):
            client.publish("orders", b"1")
        with pytest.raises(UsageError, match="publish_nowait of a client that was closed"):
            client.publish_nowait("orders", b"1")
        messages.close()
        opened_by_call.close()
        assert messages.ended
    never = HAClient.memory_backed("never", servers=[broker.uri])
    with pytest.raises(UsageError, match="publish of a client that is not open"):
        never.publish("orders", b"1")
    never.close()


@in_thread
def test_a_forked_process_gets_a_clear_error_and_no_message_of_the_other(
    broker: BrokerThread,
) -> None:
    with opened(broker) as client:
        client.publish_many("orders", [b"1", b"2", b"3"])
        client.publish_flush(timeout=LIMIT_S)
        with client.bookmark_stream("orders", sub_id="a", bookmark=EPOCH) as messages:
            first = next(messages)
            calls: list[Callable[[], object]] = [
                partial(start, partial(client.publish, "orders", b"1")),
                partial(start, messages.__next__),
                partial(start, messages.with_timeout(LIMIT_S).__next__),
                first.discard,
            ]
            assert refusals(*calls) == len(calls)
            assert [(next(messages)).text for _ in range(2)] == ["2", "3"]
            first.discard()
        assert client.publish("orders", b"1")


@in_thread
def test_a_client_that_is_dropped_warns_and_ends(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    thread = client.__bridge__.thread
    with pytest.warns(ResourceWarning, match="'orders-7' was never closed"):  # noqa: PT031  # all of it warns
        del client
        gc.collect()
    in_other_thread(thread.join)
