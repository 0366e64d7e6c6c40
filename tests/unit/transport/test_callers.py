"""Waits that would never end are refused to callers outside of the client's thread as well."""

from __future__ import annotations

import asyncio  # noqa: TID251  # one of the facades is for it
import threading
from collections.abc import Callable, Generator
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient import Client, Message, aio, blocking
from haclient.errors import HAClientError, UsageError
from haclient.transport import connection
from haclient.transport.caller import calling, current_caller
from haclient.transport.callers import AckLot, AckWaits, Consumers
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker_thread import BrokerThread, broker_thread
from support.clock import in_virtual_time
from support.peer import listening, together

LIMIT_S = 300.0
BEHIND = "stands behind messages which the caller has yet to take"


@in_virtual_time
async def test_the_caller_is_the_task_unless_it_carries_out_the_call_of_another_one() -> None:
    found: dict[str, object] = {}

    async def call(name: str, caller: object | None) -> None:
        with calling(caller):
            await trio.lowlevel.checkpoint()
            found[name] = current_caller()
        assert current_caller() is trio.lowlevel.current_task()

    somebody = object()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "called", somebody)
        nursery.start_soon(call, "of nobody", None)
        tasks = {task for task in nursery.child_tasks if "call" in task.name}
        await wait_all_tasks_blocked()
    assert found["called"] is somebody
    assert found["of nobody"] in tasks


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients notice in no time that nobody takes messages any more."""
    monkeypatch.setattr(connection, "_RECHECK_EVERY_S", 0.02)


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
def test_a_thread_that_goes_on_taking_after_one_that_has_ended_is_refused(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    """Also if it has got the ident of that one, as is usual."""
    told: list[str] = []

    def take_and_wait() -> None:
        next(messages)  # of those that the first one was handed over
        try:
            client.flush(timeout=LIMIT_S)
        except HAClientError as error:
            told.append(str(error))

    client = blocking.HAClient("sub", servers=[broker.uri], max_queued_bytes=4_000)
    with client, client.stream("orders") as messages:
        flood(502)
        for function in (lambda: next(messages), take_and_wait):
            each = threading.Thread(target=function)
            each.start()
            each.join()
    assert [BEHIND in each for each in told] == [True]


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
@pytest.mark.row("CC35")
async def test_a_task_stops_waiting_when_the_one_that_was_to_take_the_messages_has_ended() -> None:
    client = Client(
        "sub",
        publish_store=MemoryPublishStore(),
        max_queued_bytes=4_000,
        max_unpersisted_bytes=4_000,
        exit_timeout=0,
    )

    async def take() -> None:
        await anext(messages)
        await trio.sleep(5)

    async with listening() as server, client, trio.open_nursery() as nursery:
        peer = await server.log_on(client)
        messages = client.stream("orders", sub_id="s")
        await together(messages.open, lambda: peer.answer("subscribe"))
        nursery.start_soon(peer.listen_until_end)
        await peer.publish("s", b"first")
        await anext(messages)
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        await peer.publish("s", b"second")
        await wait_all_tasks_blocked()
        await peer.publish("s", *[bytes(1_000)] * 20)
        began = trio.current_time()
        await client.publish("copies", bytes(300_000))
        with pytest.raises(UsageError, match=BEHIND), trio.fail_after(LIMIT_S):
            await client.publish("copies", b"over the limit")
        assert trio.current_time() - began >= 5
        nursery.cancel_scope.cancel()


@pytest.mark.row("CC35")
def test_a_thread_stops_waiting_when_the_last_one_that_takes_messages_has_ended(
    broker: BrokerThread, flood: Callable[[int], None]
) -> None:
    took, goes_on, told = threading.Semaphore(0), threading.Event(), list[str]()
    client = blocking.HAClient.memory_backed(
        "sub", servers=[broker.uri], max_queued_bytes=4_000, max_unpersisted_bytes=4_000
    )

    def take() -> None:
        next(messages)
        took.release()
        goes_on.wait(LIMIT_S)

    def copy() -> None:
        next(messages)
        try:
            for _ in range(6):
                client.publish("copies", bytes(1_000))
        except UsageError as error:
            told.append(str(error))

    with client, client.stream("orders") as messages:
        flood(500)
        other = threading.Thread(target=take)
        other.start()
        took.acquire()
        waiting = threading.Thread(target=copy)
        waiting.start()
        pause = threading.Event()
        while not client.__bridge__.now(partial(is_stuck, client), "test"):
            pause.wait(0.001)
        goes_on.set()
        waiting.join(LIMIT_S)
        messages.close()
        waiting.join(LIMIT_S)
        other.join(LIMIT_S)
    assert [BEHIND in each for each in told] == [True]


@pytest.mark.row("CC35")
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_asyncio_task_stops_waiting_when_the_last_one_that_takes_messages_has_ended(
    broker: BrokerThread, flood: Callable[[int], None], *, is_cancelled: bool
) -> None:
    async def main() -> None:
        took, goes_on = asyncio.Event(), asyncio.Event()

        async def take() -> None:
            await anext(messages)
            took.set()
            await goes_on.wait()

        async def copy() -> None:
            await anext(messages)
            for _ in range(6):
                await client.publish("copies", bytes(1_000))

        client = aio.HAClient.memory_backed(
            "sub", servers=[broker.uri], max_queued_bytes=4_000, max_unpersisted_bytes=4_000
        )
        async with client, client.stream("orders") as messages:
            await asyncio.to_thread(flood, 500)
            other = asyncio.create_task(take())
            await took.wait()
            waiting = asyncio.create_task(copy())
            while not client.__bridge__.now(partial(is_stuck, client), "test"):  # noqa: ASYNC110  # there is no event
                await asyncio.sleep(0.001)
            if is_cancelled:
                other.cancel()
            else:
                goes_on.set()
            with pytest.raises(UsageError, match=BEHIND):
                await asyncio.wait_for(waiting, LIMIT_S)

    asyncio.run(main())


def is_stuck(client: blocking.HAClient | aio.HAClient) -> bool:
    """Whether a publish waits for an ack, and a full queue has stopped the reading."""
    core = client.__bridge__.inner._core
    connection = core.connection
    is_stopped = connection is not None and connection.reading_stopped_by is not None
    return is_stopped and bool(core.publisher.watermark)


@in_virtual_time
async def test_of_callers_that_share_a_queue_all_that_have_not_ended_are_expected() -> None:
    consumers = Consumers()
    consumers.are_outside = True
    assert (consumers.last, consumers.expected()) == (None, [])
    mine, ends = threading.current_thread(), threading.Event()
    other = threading.Thread(target=ends.wait)
    other.start()
    tasks: list[trio.lowlevel.Task] = []

    async def take() -> None:
        tasks.append(trio.lowlevel.current_task())
        consumers.add(tasks[0])
        assert consumers.expected() == [mine, tasks[0]]

    consumers.add(mine)
    assert (consumers.last, consumers.expected()) == (mine, [mine])
    consumers.add(other)
    assert (consumers.last, consumers.expected()) == (other, [mine, other])
    ends.set()
    other.join(LIMIT_S)
    assert consumers.expected() == [mine]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
    assert consumers.expected() == [mine]


@in_virtual_time
async def test_tasks_take_turns_and_only_the_last_one_is_expected_while_it_lives() -> None:
    consumers, mine = Consumers(), trio.lowlevel.current_task()

    async def take() -> None:
        consumers.add(trio.lowlevel.current_task())
        assert consumers.expected() == [trio.lowlevel.current_task()]

    consumers.add(mine)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
    assert consumers.expected() == [mine]


class Waits:
    """Callers that share a queue, and their waits."""

    def __init__(self, nursery: trio.Nursery, *callers: str) -> None:
        self._nursery = nursery
        self.consumers = Consumers()
        self.consumers.are_outside = True
        for each in callers:
            self.consumers.add(each)
        self.is_stopped = True
        self.waits = AckWaits(lambda: self.consumers.expected() if self.is_stopped else ())
        self.ends: dict[str, str] = {}

    async def begin(self, caller: str, ack: trio.Event | None = None) -> None:
        self._nursery.start_soon(self._wait, caller, trio.Event() if ack is None else ack)
        await wait_all_tasks_blocked()

    async def _wait(self, caller: str, ack: trio.Event) -> None:
        with calling(caller):
            try:
                await self.waits.until(ack, f"flush of {caller}")
            except UsageError as error:
                self.ends[caller] = str(error)
            else:
                self.ends[caller] = "acknowledged"

    async def recheck(self) -> None:
        self.waits.recheck()
        await wait_all_tasks_blocked()


@in_virtual_time
async def test_of_the_consumers_of_a_full_queue_the_last_one_to_wait_is_refused() -> None:
    async with trio.open_nursery() as nursery:
        shared, ack = Waits(nursery, "a", "b"), trio.Event()
        other_ack = trio.Event()
        await shared.begin("a", ack)
        await shared.begin("c", other_ack)  # it takes nothing
        await shared.recheck()
        assert shared.ends == {}
        await shared.begin("b")
        assert list(shared.ends) == ["b"]
        assert shared.ends["b"].startswith("flush of b waits for an ack that")
        ack.set()
        other_ack.set()
        await wait_all_tasks_blocked()
        assert (shared.ends["a"], shared.ends["c"]) == ("acknowledged", "acknowledged")


@in_virtual_time
async def test_when_reading_stops_one_of_the_callers_that_wait_is_refused() -> None:
    async with trio.open_nursery() as nursery:
        shared = Waits(nursery, "a", "b")
        shared.is_stopped = False
        await shared.begin("a")
        await shared.begin("b")
        await shared.recheck()
        assert shared.ends == {}
        shared.is_stopped = True
        await shared.recheck()
        assert list(shared.ends) == ["a"]
        await shared.recheck()
        assert list(shared.ends) == ["a"], "which may take the messages"
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_of_tasks_that_took_turns_the_last_one_is_refused_and_the_others_wait() -> None:
    async with trio.open_nursery() as nursery:
        turns = Waits(nursery, "a", "b")
        turns.consumers.are_outside = False
        turns.is_stopped = False
        await turns.begin("a")
        await turns.begin("b")
        turns.is_stopped = True
        await turns.recheck()
        assert list(turns.ends) == ["b"]
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_lot_wakes_everyone_who_waits_and_refuses_a_wait_that_would_never_end() -> None:
    async with trio.open_nursery() as nursery:
        shared = Waits(nursery, "a", "b")
        lot = AckLot(shared.waits)
        ends = list[str]()

        async def park(caller: str) -> None:
            with calling(caller):
                try:
                    await lot.park("ready")
                except UsageError:
                    ends.append(f"{caller} is refused")
                else:
                    ends.append(caller)

        for each in ("a", "b", "c"):
            nursery.start_soon(park, each)
            await wait_all_tasks_blocked()
        assert ends == ["b is refused"]
        lot.unpark_all()
        await wait_all_tasks_blocked()
        assert sorted(ends) == ["a", "b is refused", "c"]
        nursery.start_soon(park, "d")  # for the next time
        await wait_all_tasks_blocked()
        assert len(ends) == 3
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_an_ack_that_has_come_counts_although_its_wait_is_refused_just_then() -> None:
    async with trio.open_nursery() as nursery:
        shared, ack = Waits(nursery, "a"), trio.Event()
        shared.is_stopped = False
        await shared.begin("a", ack)
        shared.is_stopped = True
        ack.set()
        await shared.recheck()
        assert shared.ends == {"a": "acknowledged"}


@in_virtual_time
async def test_the_caller_that_has_stopped_the_reading_is_known() -> None:
    async with trio.open_nursery() as nursery:
        shared = Waits(nursery, "a")
        assert not shared.waits.is_stopped_by_caller
        with calling("a"):
            assert shared.waits.is_stopped_by_caller
            shared.is_stopped = False
            assert not shared.waits.is_stopped_by_caller


@in_virtual_time
async def test_a_caller_whose_ack_has_come_is_expected_to_take_before_it_has_run() -> None:
    async with trio.open_nursery() as nursery:
        shared, ack = Waits(nursery, "a", "b"), trio.Event()
        shared.is_stopped = False
        await shared.begin("a", ack)
        await shared.begin("b")
        shared.is_stopped = True
        ack.set()
        await shared.recheck()
        assert shared.ends == {"a": "acknowledged"}
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_an_ack_that_came_before_the_wait_is_no_reason_to_refuse_it() -> None:
    async with trio.open_nursery() as nursery:
        shared, ack = Waits(nursery, "a"), trio.Event()
        ack.set()
        await shared.begin("a", ack)
        assert shared.ends == {"a": "acknowledged"}
