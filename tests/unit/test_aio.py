"""The client for asyncio: calls, cancellation, handlers, streams, and every end."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import gc
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import TypeVar

import pytest
import trio

from haclient import (
    EPOCH,
    Command,
    ConnectionState,
    Message,
    Options,
    Topic,
    TypedStream,
    blocking,
)
from haclient.aio import BaseClient, Client, HAClient, MessageStream
from haclient.errors import ConnectionRefused, DisconnectedError, TimedOut, UsageError
from haclient.servers.delay import FixedDelayStrategy
from haclient.streams import TimedMessages
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.testing.processes import BrokerProcess
from support.broker_thread import BrokerThread, broker_thread, publish
from support.listening import on_states
from support.process import interrupted, run_script

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0
T = TypeVar("T")


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread(BrokerConfig(queues=(QueueTopic(name="jobs"),))) as running:
        yield running


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a test in a loop of its own; one that hangs fails."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await main()

    return asyncio.run(limited())


@asynccontextmanager
async def opened(broker: BrokerThread) -> AsyncGenerator[HAClient]:
    async with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
        yield client


async def bodies(client: BaseClient, topic: str, count: int) -> list[str]:
    """What is in the log of a topic, in order."""
    found: list[str] = []
    async with client.bookmark_stream(topic, sub_id=f"all of {topic}", bookmark=EPOCH) as messages:
        while len(found) < count:
            found.append((await anext(messages)).text)
    return found


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nothing of what is waited for has an event
        await asyncio.sleep(0.001)


# -- calls -----------------------------------------------------------------------------


def test_a_program_publishes_and_reads(broker: BrokerThread) -> None:
    async def main() -> None:
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
            assert [message async for message in messages] == []
            assert [batch async for batch in messages.batches()] == []
            assert messages.ended
            await client.flush()
        assert str(client.state) == "shutdown"
        assert repr(client) == "<haclient.aio.Client 'orders-7', not open>"

    run(main)


@pytest.mark.row("MS4", "MS9")
def test_lists_are_collected_and_none_stands_for_a_time_without_a_message(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
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
                waiting = asyncio.create_task(messages.__anext__())
                assert await anext(timed) is None
                await client.publish("orders", "5")
                assert (await waiting).text == "5"
                assert await anext(timed) is None
            with pytest.raises(StopAsyncIteration):
                await anext(timed)

    run(main)


@pytest.mark.row("MS6")
def test_of_what_waits_only_the_newest_message_of_each_key_is_taken(broker: BrokerThread) -> None:
    async def main() -> None:
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

    run(main)


def test_tasks_share_a_client_and_each_keeps_its_order(broker: BrokerThread) -> None:
    async def main() -> None:
        async with opened(broker) as client:

            async def publish(task: int) -> None:
                for number in range(50):
                    await client.publish("orders", f"{task} {number}")

            await asyncio.gather(*(publish(task) for task in range(8)))
            await client.publish_flush(timeout=LIMIT_S)
            found = await bodies(client, "orders", 400)
        for task in range(8):
            own = [text for text in found if text.startswith(f"{task} ")]
            assert own == [f"{task} {number}" for number in range(50)]

    run(main)


def test_tasks_share_a_stream_and_each_message_goes_to_one(broker: BrokerThread) -> None:
    async def main() -> None:
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

                await asyncio.gather(*(work() for _ in range(4)))
        assert sorted(taken) == list(range(500))

    run(main)


def test_a_client_survives_the_kill_of_its_server(amps_broker_process: BrokerProcess) -> None:
    broker = amps_broker_process

    async def main() -> None:
        async with HAClient.memory_backed(
            "orders-7",
            servers=[broker.uri],
            exit_timeout=LIMIT_S,
            delay_strategy=FixedDelayStrategy(0.05),
        ) as client:
            for number in range(50):
                await client.publish("orders", f"{number}")
                if number == 20:
                    await asyncio.to_thread(broker.kill)
                if number == 40:
                    await asyncio.to_thread(broker.start)
            await client.publish_flush(timeout=LIMIT_S)
            assert client.unpersisted_count == 0

    run(main)


def test_a_timeout_is_the_one_of_the_trio_client(broker: BrokerThread) -> None:
    async def main() -> None:
        async with opened(broker) as client:
            with pytest.raises(TimedOut):
                await client.flush(timeout=0)
            with pytest.raises(UsageError, match=r"timeout is a number of seconds.*not -1"):
                await client.flush(timeout=-1)

    run(main)


def test_a_server_that_refuses_raises_where_the_client_is_opened() -> None:
    async def main() -> None:
        client = Client("orders-7")
        async with client:
            with pytest.raises(ConnectionRefused):
                await client.connect("tcp://127.0.0.1:1/amps/json", timeout=LIMIT_S)
        with pytest.raises(UsageError, match="a client runs once"):
            await client.open()

    run(main)


def test_a_client_that_cannot_connect_raises_why_and_leaves_no_thread() -> None:
    async def main() -> None:
        client = HAClient.memory_backed("orders-7", servers=["tcp://127.0.0.1:1/amps/nothing/x"])
        with pytest.raises(UsageError):
            await client.open()
        assert client.__bridge__.home.thread.has_ended

    with pytest.raises(UsageError):
        run(main)


def test_properties_are_there_before_and_after(broker: BrokerThread) -> None:
    async def main() -> None:
        client = HAClient.memory_backed("orders-7", servers=[broker.uri])
        assert client.name == "orders-7"
        assert not client.state.is_logged_on
        async with client:
            assert client.state.is_logged_on
            # Plain methods and properties work in other threads, too.
            assert not await asyncio.to_thread(lambda: not client.state.is_logged_on)
            assert await asyncio.to_thread(client.publish_nowait, "orders", b"1")
        assert client.unpersisted_count == 0
        with pytest.raises(AttributeError, match="name cannot be set"):
            client.name = "x"

    run(main)


def test_the_health_of_a_client_is_told_before_its_run_and_after_it(broker: BrokerThread) -> None:
    async def main() -> None:
        client = HAClient.memory_backed("orders-7", servers=[broker.uri])
        assert not client.health().is_alive
        async with client:
            assert client.health().is_alive
        assert not client.health().is_alive
        assert "is alive       no" in client.report()
        assert client.metrics.oldest_unpersisted_age == 0.0

    run(main)


def test_values_are_read_from_a_stream_of_asyncio(broker: BrokerThread) -> None:
    async def main() -> None:
        numbers = Topic("numbers", int)
        async with opened(broker) as client:
            await client.publish_json("numbers", 7)
            async with client.bookmark_stream("numbers", sub_id="s", bookmark=EPOCH) as messages:
                value, message = await anext(TypedStream(numbers, messages))
                message.discard()
        assert value == 7

    run(main)


# -- cancellation ----------------------------------------------------------------------


def test_a_call_that_is_cancelled_ends_in_the_client_too(
    amps_broker_process: BrokerProcess,
) -> None:
    broker = amps_broker_process

    async def main() -> None:
        async with HAClient("orders-7", servers=[broker.uri], exit_timeout=0) as client:
            await client.flush()
            broker.pause()
            for wait in (asyncio.wait_for, _within):
                with pytest.raises(TimeoutError):
                    await wait(client.flush(timeout=None), 0.01)
            waiting = asyncio.create_task(client.flush(timeout=None))
            await asyncio.sleep(0)
            waiting.cancel()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert client.__bridge__.now(lambda: calls_of(client), "looking") == 0
            broker.resume()
            await client.flush(timeout=LIMIT_S)

    run(main)


def calls_of(client: BaseClient) -> int:
    """How many calls are under way in the client's thread."""
    calls = client.__bridge__.home.thread._calls
    assert calls is not None
    return len(calls.child_tasks)


async def _within(call: Awaitable[None], timeout: float) -> None:
    async with asyncio.timeout(timeout):
        await call


def test_a_task_that_is_cancelled_while_it_waits_loses_no_message(broker: BrokerThread) -> None:
    async def main() -> None:
        taken: list[str] = []
        async with opened(broker) as client, client.stream("orders") as messages:
            for number in range(100):
                waiting = asyncio.ensure_future(anext(messages))
                await asyncio.sleep(0)
                await client.publish("orders", f"{number}")
                waiting.cancel()
                with suppress(asyncio.CancelledError):
                    taken.append((await waiting).text)
            while len(taken) < 100:
                taken.append((await anext(messages)).text)
        assert taken == [str(number) for number in range(100)]

    run(main)


def subscriptions(client: BaseClient) -> int:
    """How many subscriptions the client has; for its thread."""
    return len(list(client.__bridge__.inner._core.session.router.all()))


def count_subscriptions(client: BaseClient) -> int:
    return client.__bridge__.now(lambda: subscriptions(client), "counting")


SUBSCRIBING: list[Callable[[BaseClient], Awaitable[object]]] = [
    lambda client: client.subscribe("orders", handler=print),
    lambda client: client.execute_async(Command("subscribe", topic="orders"), print),
    lambda client: client.execute(Command("subscribe", topic="orders")),
    lambda client: client.stream("orders").open(),
    lambda client: client.stream("orders").__aenter__(),
]


@pytest.mark.parametrize(
    "subscribe", SUBSCRIBING, ids=["subscribe", "execute_async", "execute", "open", "enter"]
)
def test_a_subscription_whose_caller_was_cancelled_has_ended(
    broker: BrokerThread, subscribe: Callable[[BaseClient], Awaitable[object]]
) -> None:
    async def main() -> None:
        async with opened(broker) as client:
            cancelled = 0
            for turns in range(12):
                task = asyncio.ensure_future(subscribe(client))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                else:  # it was faster
                    await client.unsubscribe()
                assert count_subscriptions(client) == 0, turns
            assert cancelled
            task = asyncio.ensure_future(subscribe(client))
            await asyncio.sleep(0)
            while count_subscriptions(client) == 0 or client.__bridge__.now(
                lambda: calls_of(client), "looking"
            ):
                pass  # the call is complete, and the loop has not had a turn to notice
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert count_subscriptions(client) == 0

    run(main)


def test_a_replaced_subscription_stays_when_its_caller_is_cancelled(broker: BrokerThread) -> None:
    async def main() -> None:
        got: list[str] = []

        def take(message: Message) -> None:
            got.append(message.text)

        async with opened(broker) as client:
            await client.subscribe("orders", sub_id="s", handler=take)
            options = Options(replace=True)
            cancelled = 0
            for turns in range(4):
                call = client.subscribe("orders", sub_id="s", options=options, handler=take)
                task = asyncio.ensure_future(call)
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                else:  # it was faster, which it cannot be in the first two turns
                    assert turns > 1
            assert cancelled >= 2
            await client.publish("orders", b"1")
            await until(lambda: got == ["1"])

    run(main)


@pytest.mark.parametrize(
    ("command", "is_active"),
    [
        (Command("publish", topic="copies", data=b"x"), True),
        (Command("subscribe", topic="orders", sub_id="s", options="pause"), True),
        (Command("subscribe", topic="orders", sub_id="s", options="resume"), True),
        (Command("subscribe", topic="orders", sub_id="s", options="replace"), True),
        (Command("unsubscribe", sub_id="s"), False),
        (Command("subscribe", topic="orders", sub_id="other", options="replace"), True),
    ],
    ids=["publish", "pause", "resume", "replace", "unsubscribe", "replace nothing"],
)
def test_a_cancelled_command_that_is_complete_takes_back_only_what_it_has_begun(
    broker: BrokerThread, command: Command, *, is_active: bool
) -> None:
    async def main() -> None:
        async with opened(broker) as client:
            await client.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=print)
            await client.subscribe("copies", handler=print, sub_id="plain")
            handler = print if command.sub_id == "other" else None
            task = asyncio.ensure_future(client.execute_async(command, handler))
            await asyncio.sleep(0)
            while client.__bridge__.now(lambda: calls_of(client), "looking"):
                pass  # until it is complete, and the loop has not had a turn to notice
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            active = {each.sub_id for each in client.metrics.subscriptions}
            assert active == ({"s", "plain"} if is_active else {"plain"})

    run(main)


# -- handlers --------------------------------------------------------------------------


def test_handlers_run_in_the_loop_one_at_a_time_in_order_before_the_discard(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        loop, seen, at_work = asyncio.get_running_loop(), [], 0
        request: ContextVar[str] = ContextVar("request", default="")

        async with opened(broker) as client:

            async def handle(message: Message) -> None:
                nonlocal at_work
                at_work += 1
                assert at_work == 1
                assert asyncio.get_running_loop() is loop
                await client.publish("answers", message.data)
                seen.append((message.text, request.get()))
                at_work -= 1

            await client.publish_many("orders", [b"%d" % number for number in range(50)])
            request.set("r1")
            await client.bookmark_subscribe(
                "orders", sub_id="s1", bookmark=EPOCH, handler=handle, auto_discard=True
            )
            await until(lambda: len(seen) == 50)
            assert seen == [(str(number), "r1") for number in range(50)]
            await client.publish_flush(timeout=LIMIT_S)
            assert await bodies(client, "answers", 50) == [text for text, _ in seen]
            await client.unsubscribe("s1")
            # Everything was discarded: a resume has nothing to deliver but what is new.
            await client.publish("orders", b"new")
            async with client.bookmark_stream("orders", sub_id="s1") as messages:
                assert (await anext(messages)).text == "new"

    run(main)


def test_a_plain_handler_runs_in_the_loop_and_may_start_tasks(broker: BrokerThread) -> None:
    async def main() -> None:
        seen: list[tuple[str, int]] = []
        tasks: list[asyncio.Task[int | None]] = []
        async with opened(broker) as client:

            def handle(message: Message) -> None:
                seen.append((message.text, threading.get_ident()))
                tasks.append(asyncio.create_task(client.publish("answers", message.data)))

            await client.subscribe("orders", handler=handle)
            await client.publish("orders", b"1")
            await until(lambda: len(seen) == 1)
            assert await tasks[0]
        assert seen == [("1", threading.get_ident())]

    run(main)


def test_what_a_handler_raises_cancels_the_block_and_leaves_it(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("no such order")

    async def fail(_: Message) -> None:
        raise error

    async def main() -> None:
        async with opened(broker) as client:
            await client.subscribe("orders", handler=fail)
            await client.publish("orders", b"1")
            await asyncio.Event().wait()  # knows nothing of the client

    async def and_goes_on() -> BaseException:
        try:
            await main()
        except ValueError as raised:
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0.01)  # it is not cancelled any more
            return raised
        raise AssertionError

    assert run(and_goes_on) is error
    assert "client orders-7 has ended by an error: ValueError" in caplog.text


def test_what_a_handler_raises_reaches_calls_of_an_opened_client(broker: BrokerThread) -> None:
    def fail(_: Message) -> None:
        raise ValueError("no such order")

    async def main() -> None:
        client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        await client.subscribe("orders", handler=fail)
        messages = await client.stream("others").open()
        await client.publish("orders", b"1")
        with pytest.raises((ValueError, StopAsyncIteration)):  # it ends as the client does
            await anext(messages)
        await until(lambda: client.__bridge__.home.thread.has_ended)
        with pytest.raises(ValueError, match="no such order"):
            await client.flush()
        with pytest.raises(ValueError, match="no such order"):
            await client.aclose()
        await client.aclose()  # it was told

    run(main)


def test_a_cancellation_from_outside_goes_before_the_error_of_a_handler(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        failing = asyncio.Event()

        async def fail(_: Message) -> None:
            failing.set()
            raise ValueError("no such order")

        async def body() -> None:
            async with opened(broker) as client:
                await client.subscribe("orders", handler=fail)
                await client.publish("orders", b"1")
                try:
                    await asyncio.Event().wait()
                finally:
                    task.cancel()

        task = asyncio.create_task(body())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert failing.is_set()

    run(main)


def test_an_error_policy_of_asyncio_decides(broker: BrokerThread) -> None:
    async def main() -> None:
        failed: list[str] = []

        async def handle(message: Message) -> None:
            raise ValueError(message.text)

        async def on_error(message: Message, error: Exception) -> None:
            await asyncio.sleep(0)
            failed.append(f"{message.text} {error}")

        client = HAClient.memory_backed("a", servers=[broker.uri], on_handler_error=on_error)
        async with client:
            await client.subscribe("orders", handler=handle)
            await client.publish_many("orders", [b"1", b"2"])
            await until(lambda: len(failed) == 2)
        assert failed == ["1 1", "2 2"]

    run(main)


def test_a_handler_that_is_at_work_when_the_client_is_left_is_cancelled_and_waited_for(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        steps: list[str] = []

        async def handle(_: Message) -> None:
            steps.append("begins")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("ends")

        async with opened(broker) as client:
            await client.subscribe("orders", handler=handle)
            await client.publish("orders", b"1")
            await until(lambda: bool(steps))
        assert steps == ["begins", "ends"]

    run(main)


def test_a_handler_that_was_cancelled_by_somebody_else_counts_as_failed(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        async def handle(_: Message) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(LIMIT_S)

        async with opened(broker) as client:
            await client.subscribe("orders", handler=handle)
            await client.publish("orders", b"1")
            await asyncio.Event().wait()

    with pytest.raises(DisconnectedError, match=r"the task of the callback .* was cancelled"):
        run(main)


def test_a_handler_that_closes_its_client_is_refused(broker: BrokerThread) -> None:
    async def main() -> None:
        async with opened(broker) as client:

            async def handle(_: Message) -> None:
                await client.aclose()

            await client.subscribe("orders", handler=handle)
            await client.publish("orders", b"1")
            await asyncio.Event().wait()

    with pytest.raises(UsageError, match="aclose was called by a handler"):
        run(main)


def test_a_task_that_a_handler_has_started_may_close_the_client(broker: BrokerThread) -> None:
    async def main() -> None:
        closing: list[asyncio.Task[None]] = []
        client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        await client.subscribe(
            "orders", handler=lambda _: closing.append(asyncio.create_task(client.aclose()))
        )
        await client.publish("orders", b"1")
        await until(lambda: bool(closing))
        await closing[0]
        assert client.__bridge__.home.thread.has_ended

    run(main)


def test_a_listener_may_call_the_client_and_can_be_removed(broker: BrokerThread) -> None:
    async def main() -> None:
        seen: list[tuple[ConnectionState, str]] = []

        async def listen(state: ConnectionState) -> None:
            await asyncio.sleep(0)
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

    run(main)


def test_the_last_state_reaches_a_listener_in_the_loop(broker: BrokerThread) -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        async with HAClient.memory_backed(
            "orders-7",
            servers=[broker.uri],
            on_event=on_states(lambda state: seen.append(str(state))),
        ):
            pass
        return seen

    assert run(main)[-1] == "shutdown"


def test_a_wire_tap_is_called_in_the_clients_thread_and_may_read_properties(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        seen: list[tuple[str, str]] = []

        def tap(_: str, __: str) -> None:
            seen.append((client.name, threading.current_thread().name))

        client = HAClient.memory_backed("orders-7", servers=[broker.uri], wire_tap=tap)
        async with client:
            await client.flush()
        assert set(seen) == {("orders-7", "haclient orders-7")}

    run(main)


def test_a_queue_is_consumed_by_handlers_and_by_streams(broker: BrokerThread) -> None:
    async def main() -> None:
        worked: list[str] = []

        async def work(message: Message) -> None:
            await asyncio.sleep(0)
            worked.append(message.text)

        async with opened(broker) as client:
            await client.publish_many("jobs", [b"%d" % number for number in range(20)])
            async with client.queue_stream("jobs", auto_ack=True) as messages:
                taken = [(await anext(messages)).text for _ in range(11)]
            await client.flush_acks(timeout=LIMIT_S)
            await client.queue_subscribe("jobs", handler=work)
            await until(lambda: len(worked) == 10)
        assert set(taken[:10]) | set(worked) == {str(number) for number in range(20)}
        assert not set(taken[:10]) & set(worked)

    run(main)


# -- ends ------------------------------------------------------------------------------


def test_a_message_that_waited_here_while_its_lease_was_lost_is_skipped(
    broker: BrokerThread,
) -> None:
    async def main() -> None:
        async with opened(broker) as client, client.queue_stream("jobs") as messages:
            await asyncio.to_thread(publish, broker.uri, "jobs", [b"1"])
            await messages._fill(None)  # all that a caller does who is cancelled then
            broker.stop()  # and what was in the queue is gone
            broker.start()
            await asyncio.to_thread(publish, broker.uri, "jobs", [b"2"])
            assert (await anext(messages)).text == "2"

    run(main)


def test_a_wait_that_has_to_wait_for_another_task_first_is_no_longer(broker: BrokerThread) -> None:
    asked: list[float] = []

    async def main() -> None:
        class Recording:
            def with_timeout(self, seconds: float) -> TimedMessages:
                asked.append(seconds)
                return stream.with_timeout(0)

        async with opened(broker) as client, client.stream("orders") as messages:
            stream = messages.__bridge__.inner
            timed = messages.with_timeout(LIMIT_S)
            messages.__bridge__._inner = Recording()  # type: ignore[assignment]  # no more is called
            assert await anext(timed) is None
            messages.__bridge__._inner = stream

    run(main)
    assert 0 < asked[0] < LIMIT_S


def test_leaving_by_an_exception_raises_that_and_does_not_drain(
    amps_broker_process: BrokerProcess,
) -> None:
    broker = amps_broker_process

    async def main() -> None:
        async with HAClient.memory_backed(
            "orders-7", servers=[broker.uri], exit_timeout=None
        ) as client:
            await client.flush()
            broker.pause()
            await client.publish("orders", b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    broker.resume()


def test_close_in_another_task_ends_a_call_that_waits(amps_broker_process: BrokerProcess) -> None:
    broker = amps_broker_process

    async def main() -> None:
        client = await HAClient("orders-7", servers=[broker.uri], exit_timeout=0).open()
        await client.flush()
        broker.pause()
        waiting = asyncio.create_task(client.flush(timeout=None))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(DisconnectedError, match=r"closed|left"):
            await waiting
        broker.resume()

    run(main)


def test_a_close_that_is_cancelled_leaves_at_once(amps_broker_process: BrokerProcess) -> None:
    broker = amps_broker_process

    async def main() -> None:
        client = HAClient.memory_backed("orders-7", servers=[broker.uri], exit_timeout=None)
        await client.open()
        await client.flush()
        broker.pause()
        await client.publish("orders", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.aclose(), 0.01)
        assert client.__bridge__.home.thread.has_ended
        broker.resume()

    run(main)


def test_an_opening_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        client = HAClient.memory_backed("cancelled", servers=["tcp://127.0.0.1:1/amps/json"])
        for opening in (client.open, client.open):
            try:
                await asyncio.wait_for(opening(), 0.01)
            except TimeoutError:
                assert client.__bridge__.home.thread.has_ended
            except UsageError as error:
                assert "a client runs once" in str(error)
        assert not [each for each in threading.enumerate() if each.name == "haclient cancelled"]

    run(main)


def test_a_close_ends_an_opening_that_finds_no_server() -> None:
    async def main() -> None:
        client = HAClient.memory_backed("orders-7", servers=["tcp://127.0.0.1:1/amps/json"])
        opening = asyncio.create_task(client.open())
        await until(lambda: client.metrics.failed_attempts > 0)
        await client.aclose()
        with pytest.raises(DisconnectedError, match="open: the client 'orders-7' was closed"):
            await opening

    run(main)


def test_a_closed_client_refuses_calls_and_closes_again(broker: BrokerThread) -> None:
    async def main() -> None:
        async with opened(broker) as client:
            await client.aclose()
            with pytest.raises(UsageError, match="publish of a client that was closed"):
                await client.publish("orders", b"1")
            with pytest.raises(UsageError, match="publish_nowait of a client that was closed"):
                client.publish_nowait("orders", b"1")
        never = HAClient.memory_backed("never", servers=[broker.uri])
        with pytest.raises(UsageError, match="publish of a client that is not open"):
            await never.publish("orders", b"1")
        await never.aclose()

    run(main)


def test_a_client_belongs_to_one_loop(broker: BrokerThread) -> None:
    with asyncio.Runner() as first:
        client = first.run(HAClient.memory_backed("orders-7", servers=[broker.uri]).open())
        for call in (client.publish("orders", b"1"), client.aclose()):
            with pytest.raises(UsageError, match="in another event loop than the one in which"):
                asyncio.run(in_coroutine(call))
        with pytest.raises(UsageError, match=r"no event loop of asyncio runs: use haclient.HAC"):
            trio.run(client.publish, "orders", b"1")
        waiting = client.publish("orders", b"1")
        with pytest.raises(UsageError, match=r"no event loop of asyncio runs: use haclient.block"):
            waiting.send(None)
        first.run(client.aclose())


async def in_coroutine(call: Awaitable[object]) -> None:
    await call


def test_two_loops_have_a_client_each(broker: BrokerThread) -> None:
    async def main(name: str) -> str:
        client = HAClient.memory_backed(name, servers=[broker.uri])
        async with client, client.stream(name) as messages:
            await client.publish(name, b"1")
            return (await anext(messages)).topic

    topics: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: topics.append(run(lambda: main(name))))
        for name in ("a", "b")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert sorted(topics) == ["a", "b"]


def test_the_blocking_client_points_here(broker: BrokerThread) -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match=r"use haclient\.aio\.HAClient"):
            blocking.HAClient("orders-7", servers=[broker.uri]).open()

    run(main)


def test_a_message_for_a_closed_loop_ends_the_client(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> HAClient:
        client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        await client.subscribe("orders", handler=print)
        return client

    client = run(main)
    thread = client.__bridge__.home.thread
    with caplog.at_level(logging.ERROR):
        client.publish_nowait("orders", b"1")
        thread.join()
    assert "the event loop of the client 'orders-7' was closed before the client" in caplog.text


def test_a_handler_of_a_loop_that_has_stopped_does_not_hold_the_client_up(
    broker: BrokerThread,
) -> None:
    loop = asyncio.new_event_loop()
    begun = asyncio.Event()

    async def handle(_: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> HAClient:
        client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        await client.subscribe("orders", handler=handle)
        await client.publish("orders", b"1")
        await begun.wait()
        return client

    client = loop.run_until_complete(main())
    client.__bridge__.home.thread.stop()  # as at the end of the program
    client.__bridge__.home.thread.join()
    pending = asyncio.all_tasks(loop)
    loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    loop.close()


def test_a_forked_process_gets_a_clear_error(broker: BrokerThread) -> None:
    async def main() -> int:
        async with opened(broker) as client:
            child = os.fork()
            if child == 0:  # only `os._exit` from here
                try:
                    await client.publish("orders", b"1")
                except UsageError as error:
                    await client.aclose()  # does nothing: it belongs to the other process
                    os._exit(0 if "before this process was forked" in str(error) else 2)
                finally:
                    os._exit(3)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert await client.publish("orders", b"1")
            return os.waitstatus_to_exitcode(status)

    assert run(main) == 0


def test_a_client_that_is_dropped_warns_and_ends(broker: BrokerThread) -> None:
    async def main() -> None:
        client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        thread = client.__bridge__.home.thread
        with pytest.warns(ResourceWarning, match="'orders-7' was never closed"):  # noqa: PT031  # as long as
            del client
            gc.collect()
        await asyncio.to_thread(thread.join)

    run(main)


def test_a_loop_that_is_closed_inside_a_block_leaves_the_client(broker: BrokerThread) -> None:
    loop = asyncio.new_event_loop()
    threads = []

    async def main() -> None:
        async with opened(broker) as client, client.stream("orders") as messages:
            threads.append(client.__bridge__.home.thread)
            await anext(messages)

    coroutine = main()
    task = loop.create_task(coroutine)

    async def wait() -> None:
        await until(lambda: bool(threads))

    loop.run_until_complete(wait())
    coroutine.close()  # as the garbage collector does
    threads[0].join()
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()


SCRIPT = """
import asyncio, signal, sys
from haclient.aio import HAClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
client = HAClient.memory_backed("orders-7", servers=[sys.argv[1]])
"""


def test_a_program_that_closes_nothing_ends_and_is_warned(broker: BrokerThread) -> None:
    text = """
async def main():
    await client.open()
    await client.publish("orders", b"1")
asyncio.run(main())
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "ResourceWarning: the client 'orders-7' was never closed" in err

    async def main() -> list[str]:
        async with opened(broker) as reader:
            return await bodies(reader, "orders", 1)

    assert run(main) == ["1"]  # it was drained


@pytest.mark.parametrize("waiting", ["await anext(messages)", "await asyncio.Event().wait()"])
def test_an_interrupt_leaves_the_block_in_order(waiting: str, broker: BrokerThread) -> None:
    # A signal just before the loop sleeps is noticed when it wakes: hence the ticks.
    text = f"""
async def tick():
    while True:
        await asyncio.sleep(0.1)
async def main():
    ticking = asyncio.create_task(tick())
    async with client, client.stream("orders") as messages:
        try:
            print("waits", flush=True)
            {waiting}
        except asyncio.CancelledError:
            print("sequence", await client.publish("orders", b"1"), flush=True)
            raise
asyncio.run(main())
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        out, err = interrupted(process)
    assert out.startswith("sequence ")
    assert "ResourceWarning" not in err


def test_streams_of_a_closed_client_close(broker: BrokerThread) -> None:
    async def main() -> None:
        async with opened(broker) as client:
            messages = await client.stream("orders").open()
            assert isinstance(messages, MessageStream)
            await client.aclose()
            await messages.aclose()
            assert messages.ended

    run(main)
