"""`haclient.blocking.run` and `haclient.aio.run`: what a signal ends, in which order."""

from __future__ import annotations

import asyncio  # noqa: TID251  # what is tested
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest
from typing_extensions import override

import haclient
from haclient import EPOCH, Message, aio, blocking
from haclient.errors import DisconnectedError, GraceExpired, UsageError
from haclient_fake_server.config import BrokerConfig, QueueTopic, parse_queue
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker_thread import BrokerThread, broker_thread
from support.threads import until

T = TypeVar("T")
CONFIG = BrokerConfig(queues=(QueueTopic(name="jobs"), parse_queue("tasks,max_backlog=5")))
ENTRY_POINTS = [pytest.param(each.run, id=each.__name__) for each in (haclient, aio, blocking)]


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give blocks that are left more than a second, after which the process would be ended."""
    monkeypatch.setattr("haclient.facade.shutdown.CLOSING_S", 120.0)


@pytest.fixture(scope="module")
def broker() -> Generator[BrokerThread]:
    with broker_thread(CONFIG) as running:
        yield running


def signalled(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def run_blocking(main: Callable[[], T], *, grace: float = 25.0) -> T | None:
    return blocking.run(main, grace=grace)


def run_asyncio(main: Callable[[], T], *, grace: float = 25.0) -> T | None:
    async def in_loop() -> T:
        return main()

    return aio.run(in_loop, grace=grace)


RUNS = pytest.mark.parametrize("run", [run_blocking, run_asyncio])


@RUNS
def test_without_a_signal_the_result_is_that_of_main(run: Callable[..., object]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run(lambda: 7) == 7
    assert signal.getsignal(signal.SIGTERM) is before
    assert not {"haclient-drain", "haclient-grace"} & {each.name for each in threading.enumerate()}


@RUNS
def test_an_error_of_main_leaves_it_as_it_is(run: Callable[..., object]) -> None:
    def main() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(main)


@RUNS
def test_a_main_that_returns_by_itself_in_spite_of_a_signal_has_a_result(
    run: Callable[..., object],
) -> None:
    done = threading.Event()

    def main() -> int:
        try:
            signalled()
            done.wait(0)
        except BaseException:  # it was interrupted, and goes on nevertheless
            done.set()
        return 3

    assert run(main) in {3, None}  # None: interrupted after its last line


@RUNS
@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf")])
def test_a_grace_that_is_no_time_is_refused(run: Callable[..., object], grace: float) -> None:
    with pytest.raises(UsageError, match="grace is a finite number of seconds, zero or above, not"):
        run(pytest.fail, grace=grace)


@RUNS
def test_another_thread_than_the_main_one_is_refused(run: Callable[..., object]) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(run, pytest.fail)
    with pytest.raises(UsageError, match="signals are handled by the main thread"):
        running.result()


@pytest.mark.parametrize("grace", [0, 25.0])
def test_sigterm_interrupts_a_main_that_blocks(grace: float) -> None:
    ended: list[str] = []

    def main() -> None:
        try:
            signalled()
            threading.Event().wait()
        finally:
            ended.append("in order")

    assert blocking.run(main, grace=grace) is None
    assert ended == ["in order"]


def test_sigint_ends_in_order_too_and_is_told_of_afterwards() -> None:
    async def main() -> None:
        signalled(signal.SIGINT)
        await asyncio.Event().wait()

    def blocked() -> None:
        signalled(signal.SIGINT)
        threading.Event().wait()

    with pytest.raises(KeyboardInterrupt):
        aio.run(main)
    with pytest.raises(KeyboardInterrupt):
        blocking.run(blocked)


def test_sigint_is_told_of_also_when_main_returns_by_itself() -> None:
    async def main() -> None:
        signalled(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        aio.run(main)
    with pytest.raises(KeyboardInterrupt):
        blocking.run(partial(signalled, signal.SIGINT))


@pytest.mark.row("HA24")
def test_a_handler_finishes_its_message_and_gets_no_further_one(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="haclient")
    seen: list[str] = []
    goes_on = threading.Event()

    def handle(message: Message) -> None:
        seen.append(message.text)
        signalled()
        until(lambda: "finishing what was begun" in caplog.text)  # in the main thread
        goes_on.wait(0.2)  # the second message has arrived by now, or will be dropped later
        seen.append("finished")

    def main() -> None:
        with blocking.HAClient.memory_backed("worker", servers=[broker.uri]) as client:
            client.publish_many("jobs", [b"1", b"2"])
            client.publish_flush(timeout=60)
            client.queue_subscribe("jobs", handler=handle)
            threading.Event().wait()

    assert blocking.run(main) is None
    assert seen == ["1", "finished"]
    with (
        blocking.HAClient.memory_backed("next", servers=[broker.uri]) as client,
        client.queue_stream("jobs") as messages,
    ):
        left = next(messages)
        assert left.text == "2"
        left.ack()


def test_the_end_of_a_main_that_waited_raises_what_had_ended_its_client(
    broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Message) -> None:
        raise ValueError("no such account")

    def main() -> None:
        with blocking.HAClient.memory_backed("failed", servers=[broker.uri]) as client:
            client.bookmark_subscribe("accounts", sub_id="s1", handler=fail)
            client.publish("accounts", b"1")
            while "client failed has ended by an error" not in caplog.text:
                threading.Event().wait(0.01)
            signalled()
            threading.Event().wait()

    with pytest.raises(ValueError, match="no such account"):
        blocking.run(main)


@pytest.mark.row("HA24")
@pytest.mark.parametrize("reader", ["sub", "another"])
def test_a_handler_whose_stream_ends_keeps_its_message(broker: BrokerThread, reader: str) -> None:
    seen, store = list[str](), MemoryBookmarkStore()

    def main() -> None:
        with (
            blocking.HAClient("sub", servers=[broker.uri], bookmark_store=store) as client,
            blocking.HAClient("another", servers=[broker.uri]) as another,
        ):

            def handle(_: Message) -> None:
                with (client if reader == "sub" else another).stream("replies") as replies:
                    signalled()
                    seen.append("begun")
                    seen.extend(reply.text for reply in replies)
                    seen.append("all are there")

            client.publish_persisted(f"orders.{reader}", "x", timeout=60)
            client.bookmark_subscribe(
                f"orders.{reader}", handler=handle, sub_id="s", bookmark=EPOCH, auto_discard=True
            )
            threading.Event().wait()

    assert blocking.run(main) is None
    assert seen == ["begun"]
    assert store.subscription("s").undiscarded_count == 1


@pytest.mark.row("HA24")
def test_a_handler_of_asyncio_whose_tasks_read_streams_keeps_its_message(
    broker: BrokerThread,
) -> None:
    seen, store = list[str](), MemoryBookmarkStore()

    async def main() -> None:
        async with aio.HAClient("sub", servers=[broker.uri], bookmark_store=store) as client:

            async def read() -> None:
                async with client.stream("replies") as replies:
                    seen.append("begun")
                    seen.extend([reply.text async for reply in replies])

            async def handle(_: Message) -> None:
                signalled()
                await asyncio.gather(read(), read())
                seen.append("all are there")

            await client.publish_persisted("orders.aio", "x", timeout=60)
            await client.bookmark_subscribe(
                "orders.aio", handler=handle, sub_id="s", bookmark=EPOCH, auto_discard=True
            )
            await asyncio.Event().wait()

    assert aio.run(main) is None
    assert seen == ["begun", "begun"]
    assert store.subscription("s").undiscarded_count == 1


STUBBORN = """
import os, signal, threading, time
from haclient import blocking

def main():
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            {then}

blocking.run(main, grace=0)
"""


@pytest.mark.parametrize(
    ("then", "code", "text"),
    [
        ("pass", 1, "the grace of 0 s is over, and this is not finished: work of the application"),
        # On a busy machine the first of these may pass for one that `run` has sent again.
        ("while True: os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, ""),
    ],
)
def test_a_main_that_does_not_end_is_ended_with_its_process(
    then: str, code: int, text: str
) -> None:
    command = [sys.executable, "-c", STUBBORN.format(then=then)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@RUNS
def test_a_child_that_main_forks_is_ended_by_the_first_signal(run: Callable[..., object]) -> None:
    def main() -> int:
        child = os.fork()
        if child == 0:  # only `os._exit` from here
            try:
                signalled()
            finally:
                os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert run(main) == -signal.SIGTERM


@pytest.mark.row("HA24")
def test_a_publish_of_a_main_that_cleans_up_is_refused_and_does_not_hang(
    broker: BrokerThread,
) -> None:
    def main() -> None:
        with blocking.HAClient.memory_backed("cleaner", servers=[broker.uri]) as client:
            signalled()
            try:
                threading.Event().wait()
            finally:
                with pytest.raises(DisconnectedError, match="is ending"):
                    client.publish("jobs", b"bye")

    async def in_loop() -> None:
        async with aio.HAClient.memory_backed("cleaner", servers=[broker.uri]) as client:
            signalled()
            try:
                await asyncio.Event().wait()
            finally:
                with pytest.raises(DisconnectedError, match="is ending"):
                    await client.publish("jobs", b"bye")

    assert blocking.run(main) is None
    assert aio.run(in_loop) is None


def test_a_store_that_only_its_thread_may_ask_does_not_keep_the_process_alive() -> None:
    refuses = threading.Event()

    class Bound(MemoryPublishStore):
        @property
        @override
        def unpersisted_count(self) -> int:
            if refuses.is_set() and threading.current_thread().name != "haclient bound":
                raise RuntimeError("another thread")
            return super().unpersisted_count

    with broker_thread() as broker:
        client = blocking.HAClient(
            "bound", servers=[broker.uri], publish_store=Bound(), exit_timeout=120
        ).open()

    def main() -> None:
        client.publish("jobs", b"1")  # the server is gone
        refuses.set()
        signalled()
        threading.Event().wait()

    with pytest.raises(GraceExpired, match="the store raised RuntimeError: another thread"):
        blocking.run(main, grace=0.05)
    refuses.clear()
    client.__bridge__.thread.cancel()
    client.__bridge__.thread.join()


# -- haclient.aio.run: main is a task, which a signal cancels after the drain -----------


@pytest.mark.parametrize("run", ENTRY_POINTS)
def test_a_coroutine_instead_of_its_function_is_refused_by_name(run: Callable[..., None]) -> None:
    async def main() -> None:
        pytest.fail("it must not run")

    with pytest.raises(UsageError, match=r"run\(main\), not run\(main\(\)\)"):
        run(main())


@pytest.mark.parametrize("run", ENTRY_POINTS)
def test_what_a_function_has_returned_is_refused_in_its_place(run: Callable[..., None]) -> None:
    with pytest.raises(UsageError, match=r"main is a function without arguments, not None"):
        run(None)


def test_blocking_refuses_an_async_function_which_would_not_run() -> None:
    async def main() -> None:
        pytest.fail("it must not run")

    with pytest.raises(UsageError, match=r"use haclient\.run, or haclient\.aio\.run for asyncio"):
        blocking.run(main)


@pytest.mark.parametrize("grace", [0, 25.0])
def test_sigterm_cancels_a_main_of_asyncio(grace: float) -> None:
    ended: list[str] = []

    async def main() -> None:
        try:
            signalled()
            await asyncio.Event().wait()
        finally:
            ended.append("in order")

    assert aio.run(main, grace=grace) is None
    assert ended == ["in order"]


def test_a_cancellation_of_mains_own_leaves_it_as_it_is() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        aio.run(main)


@pytest.mark.row("HA24")
def test_a_stream_of_asyncio_ends_and_what_main_does_then_is_flushed(broker: BrokerThread) -> None:
    seen: list[str] = []

    async def main() -> str:
        async with aio.HAClient.memory_backed("reader", servers=[broker.uri]) as client:
            await client.publish_many("shipped", [b"1", b"2"])
            async with client.bookmark_stream("shipped", sub_id="s", bookmark=EPOCH) as messages:
                async for message in messages:
                    seen.append(message.text)
                    if len(seen) == 1:
                        signalled()
                await client.publish("left over", b"last")
        return "ended"

    assert aio.run(main) in {"ended", None}  # None: all was flushed before it returned
    assert seen[0] == "1"


@pytest.mark.row("HA24")
def test_all_threads_of_a_queue_stream_finish_their_messages(broker: BrokerThread) -> None:
    taken, finished, goes_on = list[str](), list[str](), threading.Event()
    workers: list[threading.Thread] = []

    def work(messages: blocking.MessageStream) -> None:
        for message in messages:
            taken.append(message.text)
            if message.text == "fails":
                return  # it has ended, so nobody waits for it
            goes_on.wait()
            message.ack()
            finished.append(message.text)

    def main() -> None:
        with (
            blocking.HAClient.memory_backed("workers", servers=[broker.uri]) as client,
            client.queue_stream("tasks", max_backlog=5) as messages,
        ):
            for _ in range(4):
                workers.append(threading.Thread(target=work, args=(messages,)))
                workers[-1].start()
            client.publish_many("tasks", [b"fails", b"1", b"2"])
            until(lambda: len(taken) == 3)
            threading.Timer(0.5, goes_on.set).start()
            signalled()
            threading.Event().wait()

    blocking.run(main)
    for each in workers:
        each.join()
    assert sorted(finished) == ["1", "2"]
    with (
        blocking.HAClient.memory_backed("browser", servers=[broker.uri]) as client,
        client.sow("tasks") as left,
    ):
        assert [message.text for message in left] == ["fails"]


@pytest.mark.row("HA24")
def test_nobody_waits_for_a_message_whose_stream_was_closed(broker: BrokerThread) -> None:
    def main() -> None:
        with blocking.HAClient.memory_backed("worker", servers=[broker.uri]) as client:
            client.publish("tasks", b"fails")
            with (
                suppress(OSError),
                client.queue_stream("tasks", max_backlog=5) as messages,
            ):
                for message in messages:
                    with message:
                        signalled()
                        threading.Event().wait(0.3)
                        raise OSError("the database is down")
            threading.Event().wait()  # such as before the stream is opened again

    blocking.run(main, grace=20)  # raises nothing: it does not wait for the end of the grace


def test_the_end_of_the_grace_says_what_is_left(broker: BrokerThread) -> None:
    goes_on = asyncio.Event()

    async def handle(_message: Message) -> None:
        signalled()
        await goes_on.wait()

    async def main() -> None:
        async with aio.HAClient.memory_backed("slow", servers=[broker.uri]) as client:
            await client.publish_persisted("slow", b"1")
            await client.bookmark_subscribe("slow", sub_id="s1", bookmark=EPOCH, handler=handle)
            await asyncio.Event().wait()

    with pytest.raises(GraceExpired, match=r"'slow'.*at work: s1"):
        aio.run(main, grace=0.05)
