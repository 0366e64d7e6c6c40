"""Waits that would never end are refused to callers outside of the client's thread as well."""

from __future__ import annotations

import asyncio  # noqa: TID251  # one of the facades is for it
import threading
from collections.abc import Callable, Generator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient import Message, aio, blocking
from haclient.errors import UsageError
from haclient.transport.callers import Takers, calling, current_caller, waiting_caller
from support.broker_thread import BrokerThread, broker_thread
from support.clock import in_virtual_time

LIMIT_S = 60.0
BEHIND = "stands behind messages which the caller has yet to take"


@in_virtual_time
async def test_the_caller_is_the_task_unless_it_carries_out_the_call_of_another_one() -> None:
    found: dict[str, object] = {}

    async def call(name: str, caller: object | None) -> None:
        with calling(caller):
            await trio.lowlevel.checkpoint()
            found[name] = waiting_caller()
        assert current_caller() is trio.lowlevel.current_task()

    somebody = object()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "called", somebody)
        nursery.start_soon(call, "of nobody", None)
        tasks = {task for task in nursery.child_tasks if "call" in task.name}
        await wait_all_tasks_blocked()
    assert found["called"] is somebody
    assert found["of nobody"] in tasks


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread() as running:
        yield running


@pytest.fixture
def flood(broker: BrokerThread) -> Generator[Callable[[int], None]]:
    """Publishes so many messages, more than a client with small queues reads at once."""
    with blocking.HAClient.memory_backed("pub", servers=[broker.uri]) as publisher:

        def publish(count: int) -> None:
            publisher.publish_many("orders", [bytes(1_000)] * count)
            publisher.publish_flush(timeout=LIMIT_S)

        yield publish


@pytest.mark.row("CC35")
def test_a_thread_does_not_wait_for_what_is_behind_its_own_messages(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    client = blocking.HAClient.memory_backed(
        "sub", servers=[broker.uri], max_queued_bytes=4_000, max_unpersisted_bytes=4_000
    )
    with client, client.stream("orders") as messages:
        flood(1)
        next(messages)
        flood(500)
        with pytest.raises(UsageError, match=BEHIND):
            client.flush(timeout=LIMIT_S)

        def copy() -> None:
            for _ in range(100):
                client.publish("copies", bytes(1_000))

        with pytest.raises(UsageError, match=BEHIND):  # no other limit would end it
            copy()
        others: list[BaseException | None] = [UsageError("it has not ended")]

        def flush() -> None:  # another thread may wait until this one has taken them
            client.flush(timeout=LIMIT_S)
            others[0] = None

        waiting = threading.Thread(target=flush)
        waiting.start()
        for _ in range(500):
            next(messages)
        waiting.join(LIMIT_S)
        assert others == [None]
        client.flush(timeout=LIMIT_S)


@pytest.mark.row("CC35")
def test_a_handler_in_a_thread_does_not_wait_for_what_is_behind_its_own_messages(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    told: list[str] = []
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def handle(_: Message) -> None:
        if done.is_set():
            return
        begun.set()
        goes_on.wait(LIMIT_S)
        try:
            client.flush(timeout=LIMIT_S)
        except UsageError as error:
            told.append(str(error))
        done.set()

    with blocking.HAClient("sub", servers=[broker.uri], max_queued_bytes=4_000) as client:
        client.subscribe("orders", handler=handle)
        flood(1)
        assert begun.wait(LIMIT_S)
        flood(500)
        goes_on.set()
        assert done.wait(LIMIT_S)
        client.flush(timeout=LIMIT_S)
    assert [BEHIND in each for each in told] == [True]


@pytest.mark.row("CC35")
def test_an_asyncio_task_does_not_wait_for_what_is_behind_its_own_messages(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    told: list[str] = []

    async def main() -> None:
        begun, goes_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(_: Message) -> None:
            if done.is_set():
                return
            begun.set()
            await goes_on.wait()
            try:
                await client.flush(timeout=LIMIT_S)
            except UsageError as error:
                told.append(str(error))
            done.set()

        client = aio.HAClient("sub", servers=[broker.uri], max_queued_bytes=4_000)
        async with client, client.stream("orders") as messages:
            await asyncio.to_thread(flood, 1)
            await anext(messages)
            await asyncio.to_thread(flood, 500)
            with pytest.raises(UsageError, match=BEHIND):
                await client.flush(timeout=LIMIT_S)
            waiting = asyncio.create_task(client.flush(timeout=LIMIT_S))
            for _ in range(500):
                await anext(messages)
            await waiting
            await messages.aclose()
            await client.subscribe("orders", handler=handle)
            await asyncio.to_thread(flood, 1)
            await begun.wait()
            await asyncio.to_thread(flood, 500)
            goes_on.set()
            await done.wait()
            await client.flush(timeout=LIMIT_S)

    asyncio.run(main())
    assert [BEHIND in each for each in told] == [True]


@pytest.mark.row("CC35")
def test_a_thread_waits_while_another_one_takes_from_the_stream_that_they_share(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    took, goes_on = threading.Semaphore(0), threading.Event()

    def take() -> None:
        next(messages)
        took.release()
        goes_on.wait(LIMIT_S)
        for _ in range(500):
            next(messages)

    client = blocking.HAClient("sub", servers=[broker.uri], max_queued_bytes=4_000)
    with client, client.stream("orders") as messages:
        flood(502)
        next(messages)  # the other one gets its first messages from the same hand-over
        other = threading.Thread(target=take)
        other.start()
        took.acquire()
        threading.Timer(0.01, goes_on.set).start()
        client.flush(timeout=LIMIT_S)
        other.join(LIMIT_S)
        flood(1)
        next(messages)
        flood(500)
        with pytest.raises(UsageError, match=BEHIND):  # the other one has ended
            client.flush(timeout=LIMIT_S)


@pytest.mark.row("CC35")
def test_an_asyncio_task_waits_while_another_one_takes_from_the_stream_that_they_share(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    async def main() -> None:
        took, goes_on = asyncio.Event(), asyncio.Event()

        async def take() -> None:
            await anext(messages)
            took.set()
            await goes_on.wait()
            for _ in range(500):
                await anext(messages)

        client = aio.HAClient("sub", servers=[broker.uri], max_queued_bytes=4_000)
        async with client, client.stream("orders") as messages:
            await asyncio.to_thread(flood, 502)
            await anext(messages)
            other = asyncio.create_task(take())
            await took.wait()
            asyncio.get_running_loop().call_later(0.01, goes_on.set)
            await client.flush(timeout=LIMIT_S)
            await other
            await asyncio.to_thread(flood, 1)
            await anext(messages)
            await asyncio.to_thread(flood, 500)
            with pytest.raises(UsageError, match=BEHIND):
                await client.flush(timeout=LIMIT_S)

    asyncio.run(main())


@pytest.mark.row("CC35")
def test_threads_that_share_a_full_stream_and_publish_do_not_keep_a_client_from_moving(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    client = blocking.HAClient(
        "sub", servers=[broker.uri], connect_timeout=LIMIT_S, max_queued_bytes=4_000
    )
    errors: list[BaseException] = []
    has_moved = threading.Event()

    def copy() -> None:
        try:
            for message in messages:
                client.publish("copies", message.data)
                if has_moved.is_set():
                    return
        except BaseException as error:  # the threads have nobody above
            errors.append(error)

    with broker_thread() as other, client, client.stream("orders", resumes=True) as messages:
        threads = [threading.Thread(target=copy) for _ in range(2)]
        flood(2_000)
        for each in threads:
            each.start()
        client.move_to(other.uri, timeout=LIMIT_S)
        has_moved.set()
        messages.close()
        for each in threads:
            each.join(LIMIT_S)
    assert errors == []


@pytest.mark.row("CC35")
def test_of_threads_that_share_a_full_stream_not_all_may_wait(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    told: list[str] = []
    both, done = threading.Barrier(2), threading.Semaphore(0)
    client = blocking.HAClient.memory_backed(
        "sub", servers=[broker.uri], max_queued_bytes=4_000, max_unpersisted_bytes=4_000
    )

    def copy() -> None:
        next(messages)
        both.wait(LIMIT_S)
        try:
            for _ in range(6):
                client.publish("copies", bytes(1_000))
        except UsageError as error:
            told.append(str(error))
        done.release()
        for _ in messages:
            pass

    with client, client.stream("orders") as messages:
        flood(500)
        threads = [threading.Thread(target=copy) for _ in range(2)]
        for each in threads:
            each.start()
        ended = [done.acquire(timeout=LIMIT_S) for _ in threads]
        messages.close()
        for each in threads:
            each.join(LIMIT_S)
    assert ended == [True, True]
    assert told
    assert all(BEHIND in each for each in told)


@in_virtual_time
async def test_of_the_takers_of_a_stream_those_that_have_ended_do_not_count() -> None:
    takers, last = Takers(), object()
    assert takers.only(last) is last
    mine, ends = threading.current_thread(), threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    tasks: list[trio.lowlevel.Task] = []

    async def take() -> None:
        tasks.append(trio.lowlevel.current_task())
        takers.add(tasks[0])

    takers.add(mine)
    assert takers.only(last) is mine
    with calling(mine):
        assert takers.stuck() is None
        assert waiting_caller() is mine
        assert takers.stuck() is mine
    assert takers.stuck() is None
    takers.add(other)
    assert takers.only(last) is takers
    assert mine in takers
    assert last not in takers
    ends.set()
    other.join(LIMIT_S)
    assert takers.only(last) is mine
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
    assert takers.only(last) is mine
