"""The client for asyncio: what is particular to it, such as cancellation, loops and their ends."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import logging
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest
import trio

from haclient import EPOCH, Command, Message, Topic, TypedStream
from haclient.aio import BaseClient, HAClient
from haclient.errors import UsageError
from haclient.transport.message_queue import HandlerErrorPolicy
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.broker_thread import BrokerThread, broker_thread
from support.loops import in_loop, until
from support.process import interrupted, run_script

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0
THREAD_LIMIT_S = 30.0
T = TypeVar("T")


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread() as running:
        yield running


@asynccontextmanager
async def opened(broker: BrokerThread) -> AsyncGenerator[HAClient]:
    async with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
        yield client


@in_loop
async def test_values_are_read_from_a_stream_of_asyncio(broker: BrokerThread) -> None:
    numbers = Topic("numbers", int)
    async with opened(broker) as client:
        await client.publish_json("numbers", 7)
        async with client.bookmark_stream("numbers", sub_id="s", bookmark=EPOCH) as messages:
            value, message = await anext(TypedStream(numbers, messages))
            message.discard()
    assert value == 7


def calls_of(client: BaseClient) -> int:
    """How many calls are under way in the client's thread."""
    calls = client.__bridge__.thread._calls
    assert calls is not None
    return len(calls.child_tasks)


@in_loop
async def test_a_task_that_is_cancelled_while_it_waits_loses_no_message(
    broker: BrokerThread,
) -> None:
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


def subscriptions(client: BaseClient) -> int:
    """How many subscriptions the client has; for its thread."""
    return len(list(client.__bridge__.inner._core.session.router.all()))


def count_subscriptions(client: BaseClient) -> int:
    return client.__bridge__.thread.now(lambda: subscriptions(client), "counting")


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
@in_loop
async def test_a_subscription_whose_caller_was_cancelled_has_ended(
    broker: BrokerThread, subscribe: Callable[[BaseClient], Awaitable[object]]
) -> None:
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
        while count_subscriptions(client) == 0 or client.__bridge__.thread.now(
            lambda: calls_of(client), "looking"
        ):
            pass  # the call is complete, and the loop has not had a turn to notice
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert count_subscriptions(client) == 0


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
@in_loop
async def test_a_cancelled_command_that_is_complete_takes_back_only_what_it_has_begun(
    broker: BrokerThread, command: Command, *, is_active: bool
) -> None:
    async with opened(broker) as client:
        await client.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=print)
        await client.subscribe("copies", handler=print, sub_id="plain")
        handler = print if command.sub_id == "other" else None
        task = asyncio.ensure_future(client.execute_async(command, handler))
        await asyncio.sleep(0)
        while client.__bridge__.thread.now(lambda: calls_of(client), "looking"):
            pass  # until it is complete, and the loop has not had a turn to notice
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        active = {each.sub_id for each in client.metrics.subscriptions}
        assert active == ({"s", "plain"} if is_active else {"plain"})


@in_loop
async def test_what_a_handler_raises_cancels_the_block_and_leaves_it(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("no such order")

    async def fail(_: Message) -> None:
        raise error

    async def block() -> None:
        async with opened(broker) as client:
            await client.subscribe("orders", handler=fail)
            await client.publish("orders", b"1")
            await asyncio.Event().wait()  # knows nothing of the client

    with pytest.raises(ValueError, match="no such order") as raised:
        await block()
    assert raised.value is error
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.01)  # it is not cancelled any more
    assert "client orders-7 has ended by an error: ValueError" in caplog.text


@in_loop
async def test_a_cancellation_from_outside_goes_before_the_error_of_a_handler(
    broker: BrokerThread,
) -> None:
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


EAGER = getattr(asyncio, "eager_task_factory", None)


@pytest.mark.skipif(EAGER is None, reason="not applicable: Python 3.12 begins to have it")
@in_loop
async def test_an_eager_handler_cannot_close_its_client_either(broker: BrokerThread) -> None:
    refused: list[UsageError] = []
    async with opened(broker) as client:

        async def handle(_: Message) -> None:
            try:
                await client.aclose()
            except UsageError as error:
                refused.append(error)

        await client.subscribe("orders", handler=handle)
        asyncio.get_running_loop().set_task_factory(EAGER)
        await client.publish("orders", b"1")
        await until(lambda: bool(refused))


@in_loop
async def test_a_task_that_a_handler_has_started_may_close_the_client(broker: BrokerThread) -> None:
    closing: list[asyncio.Task[None]] = []
    client = await HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    await client.subscribe(
        "orders", handler=lambda _: closing.append(asyncio.create_task(client.aclose()))
    )
    await client.publish("orders", b"1")
    await until(lambda: bool(closing))
    await closing[0]
    assert client.__bridge__.thread.has_ended


@in_loop
async def test_a_close_that_is_cancelled_leaves_at_once(amps_broker_process: BrokerProcess) -> None:
    broker = amps_broker_process

    client = HAClient.memory_backed("orders-7", servers=[broker.uri], exit_timeout=None)
    await client.open()
    await client.flush()
    broker.pause()
    await client.publish("orders", b"1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.aclose(), 0.01)
    assert client.__bridge__.thread.has_ended
    broker.resume()


@in_loop
async def test_an_opening_that_is_cancelled_leaves_nothing_behind() -> None:
    client = HAClient.memory_backed("cancelled", servers=["tcp://127.0.0.1:1/amps/json"])
    for opening in (client.open, client.open):
        try:
            await asyncio.wait_for(opening(), 0.01)
        except TimeoutError:
            assert client.__bridge__.thread.has_ended
        except UsageError as error:
            assert "a client runs once" in str(error)
    client.__bridge__.thread.join(THREAD_LIMIT_S)  # it says that it has ended just before it does
    assert not [each for each in threading.enumerate() if each.name == "haclient cancelled"]


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


@pytest.mark.parametrize("policy", ["raise", "continue", "discard"])
def test_a_message_for_a_closed_loop_ends_the_client_and_stays_undiscarded(
    broker: BrokerThread, policy: HandlerErrorPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """No handler has seen it, so no policy for what handlers raise is asked."""
    store = MemoryBookmarkStore()

    async def main() -> HAClient:
        client = await HAClient(
            "orders-7", servers=[broker.uri], bookmark_store=store, on_handler_error=policy
        ).open()
        await client.bookmark_subscribe("orders", sub_id="s", handler=print, bookmark=EPOCH)
        return client

    client = in_loop(main)()
    thread = client.__bridge__.thread
    with caplog.at_level(logging.ERROR):
        client.publish_nowait("orders", b"1")
        thread.join(THREAD_LIMIT_S)
    assert "the event loop of the client 'orders-7' was closed before the client" in caplog.text
    assert store.subscription("s").undiscarded_count == 1


@pytest.mark.parametrize("policy", ["raise", "continue", "discard"])
@in_loop
async def test_a_handler_whose_task_is_cancelled_has_not_failed(
    broker: BrokerThread, policy: HandlerErrorPolicy
) -> None:
    """So a loop that ends before its client finishes no message: `asyncio.run` cancels all."""
    store, begun, handled = MemoryBookmarkStore(), asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        if message.data == b"2":
            handled.set()
            return
        begun.set()
        await asyncio.Event().wait()

    async with HAClient(
        "orders-7", servers=[broker.uri], bookmark_store=store, on_handler_error=policy
    ) as client:
        before = asyncio.all_tasks()  # now: the handler may run before a publish returns
        await client.bookmark_subscribe(
            "orders", sub_id="s", handler=handle, bookmark=EPOCH, auto_discard=True
        )
        await client.publish_many("orders", [b"1", b"2"])
        await begun.wait()
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await handled.wait()
    assert [done for _, _, done in store.entries("s")] == [False, True]


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
    client.__bridge__.thread.stop()  # as at the end of the program
    client.__bridge__.thread.join()
    pending = asyncio.all_tasks(loop)
    loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
    loop.close()


def test_a_loop_that_is_closed_inside_a_block_leaves_the_client(broker: BrokerThread) -> None:
    loop = asyncio.new_event_loop()
    threads = []

    async def main() -> None:
        async with opened(broker) as client, client.stream("orders") as messages:
            threads.append(client.__bridge__.thread)
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
