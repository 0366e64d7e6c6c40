"""The client for asyncio: what it has in common with the one for threads."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product

import pytest

from haclient import EPOCH, Command, ConnectionState, FixedDelayStrategy, Message, RecordChange
from haclient.aio import BaseClient, Client, HAClient, LiveRecords
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
from support.loops import at_once, begin, in_loop, in_other_thread, rest_of, result_of, start, until

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


@asynccontextmanager
async def opened(broker: BrokerThread | BrokerProcess) -> AsyncGenerator[HAClient]:
    async with HAClient.memory_backed(
        "orders-7",
        servers=[broker.uri],
        exit_timeout=LIMIT_S,
        delay_strategy=FixedDelayStrategy(0.05),
    ) as client:
        yield client


async def bodies(client: BaseClient, topic: str, count: int) -> list[str]:
    """What is in the log of a topic, in order."""
    found: list[str] = []
    async with client.bookmark_stream(topic, sub_id=f"all of {topic}", bookmark=EPOCH) as messages:
        while len(found) < count:
            found.append((await anext(messages)).text)
    return found


# -- calls -----------------------------------------------------------------------------


@in_loop
async def test_a_program_publishes_and_reads(broker: BrokerThread) -> None:
    async with Client("orders-7") as client:
        await client.connect(broker.uri)
        await client.logon()
        assert client.state is ConnectionState.LOGGED_ON
        async with client.stream("orders") as messages:
            await client.publish("orders", b"1")
            await client.publish("orders", "2")
            assert (await anext(messages)).data == b"1"
            assert (await anext(messages.batches()))[0].data == b"2"
            assert messages.sub_id
        assert await rest_of(messages) == []
        assert await rest_of(messages.batches()) == []
        assert messages.ended
        await client.flush()
    assert str(client.state) == "shutdown"
    assert repr(client) == "<haclient.aio.Client 'orders-7', not open>"


@pytest.mark.row("MS4", "MS9")
@in_loop
async def test_lists_are_collected_and_none_stands_for_a_time_without_a_message(
    broker: BrokerThread,
) -> None:
    async with opened(broker) as client:
        async with client.stream("orders") as messages:
            timed = messages.with_timeout(0.05)
            assert await anext(timed) is None
            for number in range(5):
                await client.publish("orders", str(number))
            batch = await anext(messages.batches(3, LIMIT_S))
            assert [message.text for message in batch] == ["0", "1", "2"]
            found = [await anext(messages.with_timeout(LIMIT_S)) for _ in range(2)]
            assert [message and message.text for message in found] == ["3", "4"]
            waiting = begin(messages.__anext__)  # it takes the next one, whenever that comes
            assert [await anext(timed), await anext(timed)] == [None, None]
            await client.publish("orders", "5")
            assert (await result_of(waiting)).text == "5"
            assert await anext(timed) is None
        with pytest.raises(StopAsyncIteration):
            await anext(timed)
        with pytest.raises(UsageError, match="max_seconds needs max_messages"):
            messages.batches(max_seconds=1.0)


@pytest.mark.row("MS6")
@in_loop
async def test_of_what_waits_only_the_newest_message_of_each_key_is_taken(
    broker: BrokerThread,
) -> None:
    async with (
        opened(broker) as client,
        client.bookmark_stream("orders", sub_id="slow", bookmark=EPOCH).conflate(
            lambda message: message.data[:1]
        ) as slow,
        client.bookmark_stream("orders", sub_id="every", bookmark=EPOCH) as everything,
    ):
        await client.publish_persisted("orders", b"a1")
        assert (await anext(slow)).data == b"a1"
        for body in (b"a2", b"b2", b"a3", b"b3", b"c3"):
            await client.publish("orders", body)
        while (await anext(everything)).data != b"c3":
            pass
        assert [(await anext(slow)).data for _ in range(3)] == [b"a3", b"b3", b"c3"]
        assert await anext(slow.with_timeout(0)) is None
        with pytest.raises(UsageError, match="messages of a queue"):
            client.queue_stream("jobs").conflate()
        with pytest.raises(UsageError, match="a stream of deltas"):
            client.stream("orders", delta=True).conflate()


@in_loop
async def test_callers_share_a_client_and_each_keeps_its_order(broker: BrokerThread) -> None:
    async with opened(broker) as client:

        async def publish_all(caller: int) -> None:
            for number in range(50):
                await client.publish("orders", f"{caller} {number}")

        await at_once(*(partial(publish_all, caller) for caller in range(8)))
        await client.publish_flush(timeout=LIMIT_S)
        found = await bodies(client, "orders", 400)
    for caller in range(8):
        own = [text for text in found if text.startswith(f"{caller} ")]
        assert own == [f"{caller} {number}" for number in range(50)]


@in_loop
async def test_callers_share_a_stream_and_each_message_goes_to_one(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        await client.publish_many("orders", [b"%d" % number for number in range(500)])
        taken: list[int] = []
        async with client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as messages:

            async def work() -> None:
                async for message in messages:
                    message.discard()
                    taken.append(int(message.data))
                    if len(taken) == 500:
                        await messages.aclose()

            await at_once(*(work for _ in range(4)))
    assert sorted(taken) == list(range(500))


@in_loop
async def test_a_client_survives_the_kill_of_its_server(amps_broker_process: BrokerProcess) -> None:
    async with opened(amps_broker_process) as client:
        for number in range(50):
            await client.publish("orders", f"{number}")
            if number == 20:
                await in_other_thread(amps_broker_process.kill)
            if number == 40:
                await in_other_thread(amps_broker_process.start)
        await client.publish_flush(timeout=LIMIT_S)
        assert client.unpersisted_count == 0


@in_loop
async def test_a_timeout_is_the_one_of_the_trio_client(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        with pytest.raises(TimedOut):
            await client.flush(timeout=0)
        with pytest.raises(UsageError, match=r"timeout is a number of seconds.*not -1"):
            await client.flush(timeout=-1)


@in_loop
async def test_properties_are_there_before_and_after_and_cannot_be_set(
    broker: BrokerThread,
) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    assert client.name == "orders-7"
    assert client.metrics.state is ConnectionState.DISCONNECTED
    assert not client.health().is_alive
    async with client:
        assert client.health().is_alive
        await client.publish_persisted("orders", b"1")
        # Plain methods and properties work in every thread.
        assert await in_other_thread(lambda: client.name) == "orders-7"
        assert await in_other_thread(lambda: client.publish_nowait("orders", b"1"))
    assert client.metrics.logons == 1
    assert not client.health().is_alive
    assert "is alive       no" in client.report()
    with pytest.raises(AttributeError, match="name cannot be set"):
        client.name = "x"  # type: ignore[assignment]  # what is refused


# -- opening ---------------------------------------------------------------------------


@in_loop
async def test_a_server_that_refuses_raises_where_the_client_is_opened() -> None:
    client = Client("orders-7")
    async with client:
        assert client.state is ConnectionState.DISCONNECTED
        with pytest.raises(ConnectionRefused):
            await client.connect(NOWHERE, timeout=LIMIT_S)
    with pytest.raises(UsageError, match="a client runs once"):
        await client.open()


@in_loop
async def test_a_client_that_cannot_connect_raises_why_and_leaves_no_thread() -> None:
    delays = FixedDelayStrategy(0.001, give_up_after=0.01)
    client = HAClient.memory_backed("orders-7", servers=[NOWHERE], delay_strategy=delays)
    with pytest.raises(ReconnectGaveUp):
        await client.open()
    assert client.__bridge__.thread.has_ended


@in_loop
async def test_opening_without_a_server_ends_after_its_limit_and_another_client_opens(
    broker: BrokerThread,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server = f"tcp://127.0.0.1:{mute.getsockname()[1]}/amps/json"
        client = HAClient.memory_backed("orders-7", servers=[server])
        with pytest.raises(TimedOut, match=r"not logged on within 0\.1 s"):
            await client.open(timeout=0.1)
    assert client.__bridge__.thread.has_ended
    with pytest.raises(UsageError):
        await client.open()
    limits, error = iter((0.3, 3.0, 30.0, LIMIT_S)), TimedOut()
    while error.__cause__ is None:  # a busy machine may not have got as far as the refusal
        refused = HAClient.memory_backed("orders-8", servers=[NOWHERE])
        with pytest.raises(TimedOut, match=r"^open: not logged on within") as late:
            await refused.open(timeout=next(limits))
        error = late.value
    assert isinstance(error.__cause__, ConnectionRefused)
    assert "; there is no connection: cannot connect" in str(error)
    again = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open(timeout=LIMIT_S)
    assert again.health().is_ready
    await again.aclose()


@pytest.mark.parametrize("timeout", [-1, -5, float("nan"), "3"])
@in_loop
async def test_a_limit_that_is_no_time_opens_nothing(broker: BrokerThread, timeout: float) -> None:
    client = HAClient("orders-7", servers=[broker.uri])
    with pytest.raises(UsageError, match=rf"timeout is a number of seconds.*not {timeout!r}"):
        await client.open(timeout=timeout)
    async with client:
        assert client.health().is_ready


@pytest.mark.parametrize("timeout", [1e10, float("inf")])
@in_loop
async def test_a_limit_may_be_longer_than_any_wait(broker: BrokerThread, timeout: float) -> None:
    client = await HAClient("orders-7", servers=[broker.uri]).open(timeout=timeout)
    assert client.health().is_ready
    await client.aclose()


# -- handlers --------------------------------------------------------------------------


@in_loop
async def test_a_handler_takes_one_message_at_a_time_in_order_and_may_call_the_client(
    broker: BrokerThread,
) -> None:
    seen: list[str] = []
    at_work = 0

    async with opened(broker) as client:

        async def handle(message: Message) -> None:
            nonlocal at_work
            at_work += 1
            assert at_work == 1
            await client.publish("answers", message.data)
            seen.append(message.text)
            at_work -= 1

        await client.publish_many("orders", [b"%d" % number for number in range(50)])
        await client.bookmark_subscribe(
            "orders", sub_id="s1", bookmark=EPOCH, handler=handle, auto_discard=True
        )
        await until(lambda: len(seen) == 50)
        assert seen == [str(number) for number in range(50)]
        await client.publish_flush(timeout=LIMIT_S)
        assert await bodies(client, "answers", 50) == seen
        await client.unsubscribe("s1")
        # Everything was discarded: a resume has nothing to deliver but what is new.
        await client.publish("orders", b"new")
        async with client.bookmark_stream("orders", sub_id="s1") as messages:
            assert (await anext(messages)).text == "new"


@pytest.mark.parametrize("kind", ["stream", "records"])
@in_loop
async def test_what_a_handler_raises_ends_each_iteration_and_all_later_calls(
    broker: BrokerThread, kind: str
) -> None:
    error = ValueError("no such order")

    async def fail(_: Message) -> None:
        raise error

    client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    messages = await client.stream("others").open()
    prices = await client.records("prices").open()
    await client.subscribe("orders", handler=fail)
    waiting = begin(messages.__anext__ if kind == "stream" else prices.changes().__anext__)
    await client.publish("orders", b"1")
    with pytest.raises(ValueError, match="no such order") as raised:
        await result_of(waiting)
    assert raised.value is error
    await until(lambda: client.__bridge__.thread.has_ended)
    for call in (client.flush, prices.changes().__anext__, messages.__anext__, client.aclose):
        with pytest.raises(ValueError, match="no such order"):
            await call()
    await client.aclose()  # it was told


@in_loop
async def test_an_error_policy_decides(broker: BrokerThread) -> None:
    failed: list[str] = []

    async def handle(message: Message) -> None:
        raise ValueError(message.text)

    async def on_error(message: Message, error: Exception) -> None:
        failed.append(f"{message.text} {error}")

    async with HAClient.memory_backed(
        "a", servers=[broker.uri], on_handler_error=on_error
    ) as client:
        await client.subscribe("orders", handler=handle)
        await client.publish_many("orders", [b"1", b"2"])
        await until(lambda: len(failed) == 2)
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


async def misbehave(client: HAClient, behaviour: str, others: list[str]) -> None:
    if behaviour == "raises":
        raise ValueError("of the callback")
    if behaviour == "waits for others":
        await until(lambda: "later" in others)
    elif behaviour == "waits for an ack":
        await client.publish_persisted("others", "of the callback", timeout=LIMIT_S)
    else:
        await client.disconnect()


async def fail(message: Message) -> None:
    raise ValueError(message.text)


@pytest.mark.row("OB7")
@pytest.mark.parametrize(("seat", "behaviour"), CALLBACKS)
@in_loop
async def test_a_callback_ends_the_client_as_documented_or_not_at_all(
    broker: BrokerThread, seat: str, behaviour: str
) -> None:
    """The other cases, of the client itself, are in tests/properties/test_callbacks.py."""
    others: list[str] = []
    calls: list[object] = []
    outcome: Exception | None = None
    wanted = {"later", *(["of the callback"] if behaviour == "waits for an ack" else [])}

    async def callback(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 1:
            await misbehave(client, behaviour, others)

    async def take(message: Message) -> None:
        others.append(message.text)

    policy: HandlerErrorPolicy = callback if seat == "policy" else "raise"
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], on_handler_error=policy)
    try:
        async with client:
            await client.subscribe("others", handler=take)
            await client.subscribe("failing", handler=fail if seat == "policy" else take)
            if seat == "handler":
                await client.subscribe("orders", handler=callback)
            if seat == "queue handler":
                await client.queue_subscribe("jobs", handler=callback, on_handler_error="raise")
            if seat == "listener":
                client.add_event_listener(callback, PublishesPersisted)
            for topic in ("orders", "jobs", "failing"):
                await client.publish(topic, "1")
            await client.publish("others", "later")
            await until(lambda: calls)
            while CALLBACKS[seat, behaviour] is not None:  # until a call raises
                await client.flush(timeout=LIMIT_S)
            await until(lambda: wanted <= {*others})
    except (ValueError, DisconnectedError) as error:
        outcome = error
    assert type(outcome) is (CALLBACKS[seat, behaviour] or type(None))


@in_loop
async def test_a_handler_that_closes_its_client_is_refused(broker: BrokerThread) -> None:
    client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()

    async def handle(_: Message) -> None:
        await client.aclose()

    await client.subscribe("orders", handler=handle)
    await client.publish("orders", b"1")
    await until(lambda: client.__bridge__.thread.has_ended)
    with pytest.raises(UsageError, match="aclose was called by a handler"):
        await client.aclose()


@in_loop
async def test_a_listener_may_call_the_client_and_can_be_removed(broker: BrokerThread) -> None:
    seen: list[tuple[ConnectionState, str]] = []

    async def listen(state: ConnectionState) -> None:
        seen.append((state, client.name))

    listener = on_states(listen)
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], on_event=listener)
    async with client:
        await until(lambda: ConnectionState.RESUBSCRIBED in {state for state, _ in seen})
        client.remove_event_listener(listener)
        with pytest.raises(UsageError, match="no such event listener"):
            client.remove_event_listener(listener)
        before = len(seen)
    assert len(seen) == before
    assert {name for _, name in seen} == {"orders-7"}


@in_loop
async def test_a_wire_tap_is_called_in_the_clients_thread_and_may_read_properties(
    broker: BrokerThread,
) -> None:
    seen: list[tuple[str, str]] = []

    def tap(_: str, __: str) -> None:
        seen.append((client.name, threading.current_thread().name))

    client = HAClient.memory_backed("orders-7", servers=[broker.uri], wire_tap=tap)
    async with client:
        await client.flush()
    assert set(seen) == {("orders-7", "haclient orders-7")}


# -- queues ----------------------------------------------------------------------------


@in_loop
async def test_a_queue_is_consumed_by_handlers_and_by_streams(broker: BrokerThread) -> None:
    worked: list[str] = []

    async def work(message: Message) -> None:
        worked.append(message.text)

    async with opened(broker) as client:
        await client.publish_many("jobs", [b"%d" % number for number in range(20)])
        async with client.queue_stream("jobs", auto_ack=True) as messages:
            taken = [(await anext(messages)).text for _ in range(11)]  # the last is not acked
        await client.flush_acks(timeout=LIMIT_S)
        await client.queue_subscribe("jobs", handler=work)
        await until(lambda: len(worked) == 10)
    assert set(taken[:10]) | set(worked) == {str(number) for number in range(20)}
    assert not set(taken[:10]) & set(worked)


@in_loop
async def test_each_caller_acknowledges_what_it_has_taken_itself(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        await client.publish_many("jobs", [f"{number}" for number in range(4)])
        async with client.queue_stream("jobs", auto_ack=True) as messages:
            slow = await anext(messages)
            others: list[Message] = []

            async def take() -> None:
                for _ in range(3):
                    others.append(await anext(messages))  # noqa: PERF401  # one by one

            await at_once(take)
            assert [message.lease for message in others[:2]] == [None, None]
            assert slow.lease is not None


@in_loop
async def test_a_message_that_waited_here_while_its_lease_was_lost_is_skipped(
    broker: BrokerThread,
) -> None:
    async with opened(broker) as client, client.queue_stream("jobs") as messages:
        await in_other_thread(partial(publish, broker.uri, "jobs", [b"1"]))
        buffer, thread = messages._buffer, messages.__bridge__.thread
        taken = await thread.wait(buffer.take, "iterating")
        await thread.wait(partial(buffer.put_back, taken), "iterating")  # its caller was cancelled
        await in_other_thread(broker.stop)  # and what was in the queue is gone
        await in_other_thread(broker.start)
        await in_other_thread(partial(publish, broker.uri, "jobs", [b"2"]))
        assert (await anext(messages)).text == "2"


# -- live records ----------------------------------------------------------------------


def by_id(record: Record) -> object:
    return record["id"]


@pytest.mark.row("CC12")
@in_loop
async def test_a_program_reads_the_records_and_follows_each_change(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        await client.publish_persisted("prices", b'{"id":1,"px":1}', timeout=LIMIT_S)
        async with client.records("prices", key=by_id, deltas=True) as prices:
            assert isinstance(prices, LiveRecords)
            assert dict(prices) == {1: {"id": 1, "px": 1}}
            assert prices.caught_up
            await client.publish("prices", b'{"id":1,"px":2}')
            change = await anext(prices.changes())
            assert change == RecordChange("changed", 1, {"id": 1, "px": 1}, {"id": 1, "px": 2})
            with pytest.raises(UsageError, match="opened before"):
                await prices.open()
            await client.sow_delete("prices", filter="/id > 0")
            assert (await anext(prices.changes())).kind == "removed"
        assert prices.ended
        assert await rest_of(prices.changes()) == []
    assert await rest_of(prices.changes()) == []
    await prices.aclose()


@in_loop
async def test_the_end_of_records_ends_the_loops_of_all_callers(broker: BrokerThread) -> None:
    seen: list[object] = []
    async with opened(broker) as client:
        prices = await client.records("prices", key=by_id).open()

        async def follow() -> None:
            async for change in prices.changes():
                seen.append(change.key)  # noqa: PERF401  # at once, for the others

        following = [begin(follow) for _ in range(3)]
        await client.publish_many("prices", [b'{"id":%d}' % number for number in range(10)])
        await until(lambda: len(seen) == 10)
        await prices.aclose()
        for each in following:
            await result_of(each)
        assert set(seen) == set(range(10))
        assert client.metrics.subscriptions == ()


@in_loop
async def test_records_of_a_client_that_does_not_reconnect_raise_and_the_last_ones_stay(
    broker: BrokerThread,
) -> None:
    async with Client("orders-7") as client:
        await client.connect(broker.uri)
        await client.logon()
        await client.publish("prices", b'{"id":1}')
        await client.flush()
        async with client.records("prices", key=by_id) as prices:
            await in_other_thread(broker.stop)
            with pytest.raises(DisconnectedError):
                await anext(prices.changes())
            assert prices[1] == {"id": 1}


@in_loop
async def test_records_that_are_refused_leave_nothing_behind(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        await client.publish_persisted("prices", b'{"id":1}', timeout=LIMIT_S)
        with pytest.raises(UsageError, match="key function"):
            await client.records("prices", key=lambda record: record["no"]).open()
        assert client.metrics.subscriptions == ()


# -- ends ------------------------------------------------------------------------------


@in_loop
async def test_leaving_by_an_exception_raises_that_and_does_not_drain(
    amps_broker_process: BrokerProcess,
) -> None:
    client = HAClient.memory_backed(
        "orders-7", servers=[amps_broker_process.uri], exit_timeout=None
    )

    async def leave() -> None:
        async with client:
            await client.flush()
            amps_broker_process.pause()
            await client.publish("orders", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await leave()
    amps_broker_process.resume()


@in_loop
async def test_a_close_ends_a_call_that_waits_elsewhere(
    amps_broker_process: BrokerProcess,
) -> None:
    servers = [amps_broker_process.uri]
    client = await HAClient("orders-7", servers=servers, exit_timeout=0).open()
    await client.flush()
    amps_broker_process.pause()
    thread = client.__bridge__.thread
    waiting = begin(partial(client.flush, timeout=None))
    await until(lambda: thread.now(lambda: thread._calls and thread._calls.child_tasks, "test"))
    await client.aclose()
    with pytest.raises(DisconnectedError, match=r"closed|left"):
        await result_of(waiting)
    amps_broker_process.resume()


@in_loop
async def test_a_close_ends_an_opening_that_finds_no_server() -> None:
    client = HAClient.memory_backed("orders-7", servers=[NOWHERE])
    opening = begin(client.open)
    await until(lambda: client.metrics.failed_attempts > 0)
    await client.aclose()
    with pytest.raises(DisconnectedError, match="open: the client 'orders-7' was closed"):
        await result_of(opening)
    with pytest.raises(UsageError, match="a client runs once"):
        await client.open()


@in_loop
async def test_a_closed_client_refuses_calls_and_closes_again(broker: BrokerThread) -> None:
    async with opened(broker) as client:
        messages = await client.stream("orders").open()
        opened_by_call = await client.execute(Command("subscribe", topic="orders"))
        await client.aclose()
        with pytest.raises(UsageError, match="publish of a client that was closed"):
            await client.publish("orders", b"1")
        with pytest.raises(UsageError, match="publish_nowait of a client that was closed"):
            client.publish_nowait("orders", b"1")
        await messages.aclose()
        await opened_by_call.aclose()
        assert messages.ended
    never = HAClient.memory_backed("never", servers=[broker.uri])
    with pytest.raises(UsageError, match="publish of a client that is not open"):
        await never.publish("orders", b"1")
    await never.aclose()


@in_loop
async def test_a_forked_process_gets_a_clear_error_and_no_message_of_the_other(
    broker: BrokerThread,
) -> None:
    async with opened(broker) as client:
        await client.publish_many("orders", [b"1", b"2", b"3"])
        await client.publish_flush(timeout=LIMIT_S)
        async with client.bookmark_stream("orders", sub_id="a", bookmark=EPOCH) as messages:
            first = await anext(messages)
            calls: list[Callable[[], object]] = [
                partial(start, partial(client.publish, "orders", b"1")),
                partial(start, messages.__anext__),
                partial(start, messages.with_timeout(LIMIT_S).__anext__),
                first.discard,
            ]
            assert refusals(*calls) == len(calls)
            assert [(await anext(messages)).text for _ in range(2)] == ["2", "3"]
            first.discard()
        assert await client.publish("orders", b"1")


@in_loop
async def test_a_client_that_is_dropped_warns_and_ends(broker: BrokerThread) -> None:
    client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    thread = client.__bridge__.thread
    with pytest.warns(ResourceWarning, match="'orders-7' was never closed"):  # noqa: PT031  # all of it warns
        del client
        gc.collect()
    await in_other_thread(thread.join)
