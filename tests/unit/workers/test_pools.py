from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from haclient import aio, blocking
from haclient.errors import DisconnectedError, UsageError, WorkerError
from haclient.protocol.messages import Message, MessageLease
from haclient.streams import MessageStream, QueueStream
from haclient.transport.message_queue import MessageQueue
from haclient.workers import ProcessPool, ThreadPool, run_workers
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.lengths import length
from support.process import is_running

pytestmark = pytest.mark.usefixtures("freed_semaphores")

LIMIT_S = 300.0  # of a test that hangs


class Discards:
    """The numbers that were discarded, in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def discard(self, number: int, /) -> None:
        self.numbers.append(number)


class Bench:
    """A stream whose messages are numbered from 1 on."""

    def __init__(self) -> None:
        self.delivery = MessageQueue()
        self.discards = Discards()
        self.stream = MessageStream(self.delivery, open_=self._open, close=self._close)
        self._count = 0

    async def _open(self) -> str:
        return "s"

    async def _close(self) -> None:
        self.delivery.drop()
        self.delivery.end()

    def put(self, *keys: str) -> None:
        for key in keys:
            self._count += 1
            message = Message(
                sow_key=key, data=b"%d" % self._count, number=self._count, owner=self.discards
            )
            self.delivery.put([message], 1)


async def opened(*keys: str, ends: bool = True) -> Bench:
    bench = Bench()
    await bench.stream.open()
    bench.put(*keys)
    if ends:
        bench.delivery.end()
    return bench


def key_of(message: Message) -> str:
    return message.sow_key


def number_of(message: Message) -> int:
    return int(message.data)


# -- what worker processes run; at the top level of a module, since it is pickled


def double(message: Message) -> tuple[int, int]:
    return os.getpid(), 2 * int(message.data)


def kill_once(message: Message) -> int:
    """Kill the worker process, the first time."""
    path = Path(message.sow_key)
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return int(message.data)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


def kill_always(_: Message) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class TwoArgumentsError(Exception):
    """Pickled, but never unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def fail_oddly(_: Message) -> None:
    raise TwoArgumentsError("was", "here")


def fail_plainly(message: Message) -> None:
    raise LookupError(f"no {message.sow_key}")


def return_a_lock(_: Message) -> object:
    return threading.Lock()


def wait_for_ever(message: Message) -> None:
    Path(message.sow_key).write_text(str(os.getpid()), encoding="utf-8")
    threading.Event().wait()


# -- threads -----------------------------------------------------------------------------


@pytest.mark.row("MS10")
async def test_each_message_is_discarded_after_its_call_has_returned() -> None:
    bench = await opened("a", "b", "c")
    returned: list[int] = []

    def work(message: Message) -> int:
        assert message.number not in bench.discards.numbers
        returned.append(message.number)
        return message.number

    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, work, ThreadPool(2), key=key_of)
    assert sorted(returned) == sorted(bench.discards.numbers) == [1, 2, 3]


@pytest.mark.row("MS10")
async def test_two_keys_are_processed_in_parallel() -> None:
    both = threading.Barrier(2)
    bench = await opened("a", "b")

    def work(_: Message) -> None:
        both.wait(LIMIT_S)  # broken unless both are in it at the same time

    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, work, ThreadPool(2))
    assert sorted(bench.discards.numbers) == [1, 2]


@pytest.mark.row("MS10")
async def test_a_message_that_is_slow_holds_the_recovery_point_and_nothing_else() -> None:
    store = MemoryBookmarkStore()
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    bench = Bench()
    await bench.stream.open()
    numbers = log.log_batch(["1|1|", "1|2|", "1|3|"])
    messages = [
        Message(bookmark=f"1|{each}|", number=number, owner=log, sow_key=str(each))
        for each, number in enumerate(numbers, 1)
    ]
    bench.delivery.put(messages, 3)
    bench.delivery.end()
    go = threading.Event()
    points: list[str] = []

    def work(message: Message) -> None:
        if message.sow_key == "1":
            go.wait(LIMIT_S)

    def finished(message: Message, _: None) -> None:
        if message.sow_key == "3":
            points.append(str(log.recovery_point()))
            go.set()

    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, work, ThreadPool(2), on_result=finished)
    assert [1 for point in points if "1|1|" in point or "1|2|" in point] == []
    assert len(points) == 1
    assert "1|3|" in str(log.recovery_point())


@pytest.mark.row("MS10")
@settings(max_examples=length(15))
@given(
    keys=st.lists(st.sampled_from("abcde"), max_size=40),
    workers=st.integers(1, 4),
    max_waiting=st.integers(1, 8),
    seed=st.integers(0, 1000),
)
def test_messages_of_a_key_are_processed_in_order_one_at_a_time(
    keys: list[str], workers: int, max_waiting: int, seed: int
) -> None:
    rng, lock = Random(seed), threading.Lock()
    seen: dict[str, list[int]] = defaultdict(list)
    results: dict[str, list[int]] = defaultdict(list)
    at_work: set[str] = set()

    def work(message: Message) -> int:
        with lock:
            assert message.sow_key not in at_work
            at_work.add(message.sow_key)
            rounds = rng.randrange(3000)
        sum(range(rounds))
        with lock:
            at_work.remove(message.sow_key)
            seen[message.sow_key].append(message.number)
        return message.number

    def collect(message: Message, number: int) -> None:
        assert number == message.number
        results[message.sow_key].append(number)

    async def main() -> list[int]:
        bench = await opened(*keys)
        with trio.fail_after(LIMIT_S):
            await run_workers(
                bench.stream,
                work,
                ThreadPool(workers),
                key=key_of,
                on_result=collect,
                max_waiting=max_waiting,
            )
        return bench.discards.numbers

    discarded = trio.run(main)
    expected: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys, 1):
        expected[key].append(number)
    assert seen == results == expected
    assert sorted(discarded) == list(range(1, len(keys) + 1))


@pytest.mark.row("MS10")
async def test_no_more_messages_wait_than_the_bound_allows() -> None:
    bench = await opened(*"abcdefgh")
    started, go = threading.Event(), threading.Event()

    def work(_: Message) -> None:
        started.set()
        go.wait(LIMIT_S)

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_workers(bench.stream, work, ThreadPool(1), max_waiting=2)
            )
            await trio.to_thread.run_sync(started.wait, LIMIT_S)
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            # One is processed, two wait, one has been taken and waits for room.
            assert bench.delivery.queued_bytes >= 8 - 4
            go.set()
    assert sorted(bench.discards.numbers) == list(range(1, 9))


@pytest.mark.row("MS10")
async def test_an_error_ends_the_run_and_leaves_its_message_undiscarded() -> None:
    bench = await opened("a", "bad", "a", ends=False)

    def work(message: Message) -> None:
        if message.sow_key == "bad":
            raise LookupError("no such order")

    with trio.fail_after(LIMIT_S), pytest.raises(LookupError, match="no such order"):
        await run_workers(bench.stream, work, ThreadPool(1))
    assert bench.discards.numbers == [1]


@pytest.mark.row("MS10")
@pytest.mark.parametrize(("policy", "discarded"), [("continue", [1, 3]), ("discard", [1, 2, 3])])
async def test_the_policy_of_the_client_decides_about_errors(
    policy: str, discarded: list[int]
) -> None:
    bench = await opened("a", "bad", "a")
    bench.delivery.error_policy = policy  # type: ignore[assignment]  # one of its words

    def work(message: Message) -> None:
        if message.sow_key == "bad":
            raise LookupError

    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, work, ThreadPool(1))
    assert bench.discards.numbers == discarded


async def test_a_message_for_which_no_thread_can_be_started_is_left_to_no_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = await opened("a")

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("trio._threads.start_thread_soon", refuse)
    with trio.fail_after(LIMIT_S), pytest.raises(UsageError, match="no thread could be started"):
        await run_workers(bench.stream, number_of, ThreadPool(1), on_handler_error="discard")
    assert bench.discards.numbers == []


async def test_a_key_that_cannot_be_had_is_an_error_of_its_message() -> None:
    bench = await opened("a", "b")
    failed: list[bytes] = []

    def key(message: Message) -> str:
        if message.sow_key == "a":
            raise KeyError("customer")
        return "b"

    with trio.fail_after(LIMIT_S):
        await run_workers(
            bench.stream,
            number_of,
            ThreadPool(1),
            key=key,
            on_handler_error=lambda message, _: failed.append(message.data),
        )
    assert failed == [b"1"]
    assert bench.discards.numbers == [2]


async def test_an_error_of_the_stream_comes_after_what_was_before_it() -> None:
    bench = await opened("a", "b", ends=False)
    bench.delivery.fail(DisconnectedError("lost"))
    with trio.fail_after(LIMIT_S), pytest.raises(DisconnectedError, match="lost"):
        await run_workers(bench.stream, number_of, ThreadPool(2))
    assert sorted(bench.discards.numbers) == [1, 2]


class Call:
    """What a worker calls: it ends when it may."""

    def __init__(self) -> None:
        self._has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, _: Message) -> None:
        self._has_begun.set()
        self.may_end.wait(LIMIT_S)

    async def begun(self) -> None:
        await trio.to_thread.run_sync(self._has_begun.wait, LIMIT_S)


async def is_cancelled(bench: Bench, *, exit_timeout: float) -> bool:
    """Cancel a run while a call is under way, which ends if there is time for it."""
    call = Call()

    async def cancel(scope: trio.CancelScope) -> None:
        await call.begun()
        scope.cancel()
        if exit_timeout:
            call.may_end.set()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel, scope)
                await run_workers(bench.stream, call, ThreadPool(1), exit_timeout=exit_timeout)
    call.may_end.set()
    return scope.cancelled_caught


@pytest.mark.row("MS10")
async def test_a_cancelled_run_finishes_the_calls_under_way_and_drops_what_waits() -> None:
    bench = await opened("a", "b", "c", ends=False)
    assert await is_cancelled(bench, exit_timeout=LIMIT_S)
    assert bench.discards.numbers == [1]


@pytest.mark.row("MS10")
async def test_a_call_that_outlasts_the_limit_stays_undiscarded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = await opened("a", ends=False)
    await is_cancelled(bench, exit_timeout=0)
    assert bench.discards.numbers == []
    assert "1 messages were not processed within 0 s" in caplog.text


async def test_a_client_that_ends_in_order_waits_for_the_workers() -> None:
    bench = await opened("a", ends=False)
    call = Call()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_workers, bench.stream, call, ThreadPool(1))
            await call.begun()
            bench.delivery.stop(keeps=False)
            assert not bench.delivery.is_idle
            call.may_end.set()
            await bench.delivery.wait_idle()
    assert bench.discards.numbers == [1]


# -- queues ------------------------------------------------------------------------------


class Lease(MessageLease):
    def __init__(self, *, is_over: bool = False) -> None:
        self.acks: list[str] = []
        self.is_over = is_over

    @override
    def is_deliverable(self, message: Message, /) -> bool:
        return not self.is_over

    @override
    def acknowledge(self, message: Message, option: str, /) -> None:
        self.acks.append(option)

    @override
    def extend(self, message: Message, seconds: float, /) -> None:
        raise AssertionError("nobody extends it")

    @override
    def deadline(self, message: Message, /) -> float | None:
        return None


async def queue_of(lease: Lease, *, auto_ack: bool = False) -> QueueStream:
    bench = Bench()
    stream = QueueStream(bench.delivery, open_=bench._open, close=bench._close, auto_ack=auto_ack)
    await stream.open()
    bench.delivery.put([Message(data=b"1", lease=lease)], 1)
    bench.delivery.end()
    return stream


@pytest.mark.row("MS10")
@pytest.mark.parametrize(
    ("policy", "work", "acks"),
    [
        ("raise", number_of, [""]),
        ("discard", fail_plainly, ["expire"]),
    ],
)
async def test_a_message_of_a_queue_is_acknowledged_as_its_call_has_ended(
    policy: str, work: Callable[[Message], object], acks: list[str]
) -> None:
    lease = Lease()
    stream = await queue_of(lease)
    with trio.fail_after(LIMIT_S):
        await run_workers(stream, work, ThreadPool(1), on_handler_error=policy)  # type: ignore[arg-type]  # one of its words
    assert lease.acks == acks


async def test_a_message_whose_lease_is_over_is_not_processed() -> None:
    lease = Lease(is_over=True)
    stream = await queue_of(lease)
    with trio.fail_after(LIMIT_S):
        await run_workers(stream, fail_plainly, ThreadPool(1), on_handler_error="raise")
    assert lease.acks == []


async def test_a_queue_stream_that_acknowledges_by_itself_is_refused() -> None:
    stream = await queue_of(Lease(), auto_ack=True)
    with pytest.raises(UsageError, match="before a worker has processed it"):
        await run_workers(stream, number_of, ThreadPool(1))


# -- processes ---------------------------------------------------------------------------


@pytest.mark.row("MS10")
async def test_processes_give_their_results_in_the_order_of_each_key() -> None:
    keys = [str(number % 3) for number in range(12)]
    bench = await opened(*keys)
    results: dict[str, list[tuple[int, int]]] = defaultdict(list)

    def collect(message: Message, result: tuple[int, int]) -> None:
        results[message.sow_key].append(result)

    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, double, ProcessPool(2), key=key_of, on_result=collect)
    for key, found in results.items():
        assert [value for _, value in found] == [
            2 * number for number, each in enumerate(keys, 1) if each == key
        ]
        assert os.getpid() not in {pid for pid, _ in found}
    assert sorted(bench.discards.numbers) == list(range(1, 13))


@pytest.mark.row("MS10")
async def test_a_killed_process_is_replaced_and_its_message_is_processed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = await opened(str(tmp_path / "1"), str(tmp_path / "2"))
    results: list[int] = []
    with trio.fail_after(LIMIT_S):
        await run_workers(
            bench.stream,
            kill_once,
            ProcessPool(1),
            on_result=lambda _, number: results.append(number),
        )
    assert results == bench.discards.numbers == [1, 2]
    assert "died, and is replaced" in caplog.text


@pytest.mark.row("MS10")
async def test_a_message_that_kills_each_process_is_an_error_that_names_it() -> None:
    bench = await opened("poison")
    with trio.fail_after(LIMIT_S), pytest.raises(WorkerError, match=r"3 worker processes.*poison"):
        await run_workers(bench.stream, kill_always, ProcessPool(1))
    assert bench.discards.numbers == []


@pytest.mark.row("MS10")
async def test_what_a_process_raises_comes_with_its_traceback() -> None:
    bench = await opened("b")
    with trio.fail_after(LIMIT_S), pytest.raises(LookupError, match="no b") as caught:
        await run_workers(bench.stream, fail_plainly, ProcessPool(1))
    assert "in fail_plainly" in "".join(caught.value.__notes__)


@pytest.mark.row("MS10")
async def test_an_exception_that_cannot_be_unpickled_is_named() -> None:
    bench = await opened("b")
    with trio.fail_after(LIMIT_S), pytest.raises(WorkerError, match="TwoArgumentsError: was here"):
        await run_workers(bench.stream, fail_oddly, ProcessPool(1))


@pytest.mark.row("MS10")
async def test_a_result_that_cannot_be_pickled_is_named() -> None:
    bench = await opened("b")
    with (
        trio.fail_after(LIMIT_S),
        pytest.raises(UsageError, match=r"return_a_lock returned a lock"),
    ):
        await run_workers(bench.stream, return_a_lock, ProcessPool(1))


@pytest.mark.row("MS10")
async def test_a_function_that_cannot_be_pickled_is_refused_before_anything_is_taken() -> None:
    bench = await opened("a")
    with pytest.raises(UsageError, match="at the top level of a module, or use ThreadPool"):
        await run_workers(bench.stream, lambda _: None, ProcessPool(1))
    assert bench.delivery.queued_bytes == 1


@pytest.mark.row("MS10")
async def test_a_process_that_outlasts_the_limit_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    bench = await opened(str(path), ends=False)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_workers(bench.stream, wait_for_ever, ProcessPool(1), exit_timeout=0)
            )
            await until(lambda: path.exists() and path.read_text(encoding="utf-8") != "")
            nursery.cancel_scope.cancel()
        pid = int(path.read_text(encoding="utf-8"))
        await until(lambda: not is_running(pid))
    assert bench.discards.numbers == []


async def until(holds: Callable[[], bool]) -> None:
    """Wait for another process, within the limit of the test."""
    while not holds():  # noqa: ASYNC110  # a process sends no event
        await trio.sleep(0.01)


# -- misuse ------------------------------------------------------------------------------


async def test_a_coroutine_function_is_refused() -> None:
    async def work(message: Message) -> None: ...

    bench = await opened()
    with pytest.raises(UsageError, match="work is a plain function"):
        await run_workers(bench.stream, work, ThreadPool(1))


@pytest.mark.parametrize("facade", [aio, blocking])
def test_a_stream_of_another_facade_is_refused_in_the_call(facade: ModuleType) -> None:
    stream = object.__new__(facade.MessageStream)
    with pytest.raises(UsageError, match=rf"not one of {facade.__name__}"):
        _ = run_workers(stream, number_of, ThreadPool(1))  # not awaited: nobody does that there


@pytest.mark.parametrize(("name", "value"), [("max_waiting", 0), ("exit_timeout", -1.0)])
async def test_a_limit_that_can_never_work_is_refused(name: str, value: float) -> None:
    bench = await opened()
    with pytest.raises(UsageError, match=name):
        await run_workers(bench.stream, number_of, ThreadPool(1), **{name: value})  # type: ignore[arg-type]  # one of the two


@pytest.mark.parametrize("pool", [ThreadPool, ProcessPool])
def test_a_pool_has_a_worker(pool: type[ThreadPool | ProcessPool]) -> None:
    with pytest.raises(UsageError, match="workers is a whole number of at least 1, not 0"):
        pool(0)


async def test_a_stream_has_one_pool_at_a_time() -> None:
    bench = await opened("a", ends=False)
    with bench.stream.working(), pytest.raises(UsageError, match="already"):
        await run_workers(bench.stream, number_of, ThreadPool(1))


@pytest.mark.row("MS10")
async def test_an_exit_in_a_thread_follows_the_policy_and_ends_no_program() -> None:
    def leave_once(message: Message) -> None:
        if message.data == b"1":
            raise SystemExit(3)

    bench = await opened("a", "a")
    with trio.fail_after(LIMIT_S):
        await run_workers(bench.stream, leave_once, ThreadPool(1), on_handler_error="continue")
    assert bench.discards.numbers == [2]
    bench = await opened("a")
    with trio.fail_after(LIMIT_S), pytest.raises(WorkerError, match=r"SystemExit\(3\)"):
        await run_workers(bench.stream, leave_once, ThreadPool(1), on_handler_error="raise")
