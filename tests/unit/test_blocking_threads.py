"""The blocking client: what is particular to it, such as interrupts and the end of a program."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a thread that runs it is refused
import gc
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from linecache import getline
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import trio

from haclient import (
    EPOCH,
    Command,
    ConnectionState,
    Message,
)
from haclient.blocking import HAClient, MessageStream
from haclient.errors import (
    DisconnectedError,
    UsageError,
)
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.broker_thread import BrokerThread, broker_thread
from support.listening import on_states
from support.process import interrupted, run_script
from support.threads import begin, result_of, until

if TYPE_CHECKING:
    from _typeshed import TraceFunction

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    with broker_thread(BrokerConfig(queues=(QueueTopic(name="jobs"),))) as running:
        yield running


@pytest.fixture
def client(broker: BrokerThread) -> Generator[HAClient]:
    with HAClient.memory_backed("orders-7", servers=[broker.uri]) as opened:
        yield opened


def test_what_a_handler_raises_while_the_block_fails_leaves_it_as_it_is(
    broker: BrokerThread,
) -> None:
    began = threading.Event()

    def fail(_: Message) -> None:
        began.set()
        with suppress(DisconnectedError):
            while True:  # until the client is being left
                left.flush()
        raise ValueError("no such order")

    with (  # noqa: PT012  # it leaves the block
        pytest.raises(ValueError, match="no such order") as raised,
        HAClient.memory_backed("orders-7", servers=[broker.uri]) as left,
    ):
        left.subscribe("orders", handler=fail)
        left.publish("orders", b"1")
        assert began.wait(LIMIT_S)
        raise KeyError("of the block")
    assert isinstance(raised.value.__context__, KeyError)


def test_an_exit_of_the_block_goes_before_what_a_handler_raises(broker: BrokerThread) -> None:
    failed = threading.Event()

    def fail(_: Message) -> None:
        failed.set()
        raise ValueError("no such order")

    def leave() -> None:
        with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
            client.subscribe("orders", handler=fail)
            client.publish("orders", b"1")
            assert failed.wait(LIMIT_S)
            sys.exit(3)

    with pytest.raises(SystemExit):
        leave()


@pytest.mark.parametrize("drains", [True, False])
def test_a_handler_whose_call_waits_for_ever_does_not_keep_the_client_open(
    broker: BrokerThread, *, drains: bool
) -> None:
    ended: list[BaseException] = []
    waits = threading.Event()
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    messages = client.stream("orders").open()

    def wait(_: Message) -> None:
        waits.set()
        try:
            messages.wait_caught_up()
        except DisconnectedError as error:
            ended.append(error)

    client.subscribe("start", handler=wait)
    for body in ("1", "2"):  # the second one stays in the queue, and the end behind it
        client.publish("orders", body)
        client.flush()
        if body == "1":
            assert next(messages).text == "1"
    client.publish("start", b"1")
    assert waits.wait(LIMIT_S)
    if drains:
        client.close()
    else:
        client.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert len(ended) == 1


def test_a_handler_that_waits_for_its_own_thread_does_not_keep_a_failing_client_open(
    broker: BrokerThread,
) -> None:
    ended: list[BaseException] = []
    reads = threading.Event()
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()

    def read() -> None:
        with client.stream("replies") as replies:
            reads.set()
            try:
                next(replies)
            except DisconnectedError as error:
                ended.append(error)

    def wait(_: Message) -> None:
        reading = threading.Thread(target=read)
        reading.start()
        reading.join()

    def fail(_: Message) -> None:
        raise ValueError("of another handler")

    client.subscribe("start", handler=wait)
    client.subscribe("orders", handler=fail)
    client.publish("start", b"1")
    assert reads.wait(LIMIT_S)
    client.publish("orders", b"1")
    client.__bridge__.thread.join(LIMIT_S)
    with pytest.raises(ValueError, match="of another handler"):
        client.close()
    assert len(ended) == 1


def test_a_handler_does_not_take_the_end_of_its_client_for_that_of_a_stream(
    broker: BrokerThread,
) -> None:
    """A loop that seemed complete would have its message discarded."""
    began, ended, store = threading.Event(), list[str](), MemoryBookmarkStore()

    def handle(_: Message) -> None:
        with mine.stream("replies") as replies:
            began.set()
            for _ in replies:
                pass
            ended.append("all replies are there")

    with HAClient("me", servers=[broker.uri], bookmark_store=store) as mine:
        mine.publish_persisted("orders", "x", timeout=LIMIT_S)
        mine.bookmark_subscribe(
            "orders", handler=handle, sub_id="s", bookmark=EPOCH, auto_discard=True
        )
        assert began.wait(LIMIT_S)
    assert ended == []


def test_a_call_while_the_client_is_closed_is_told_that_it_was_left(broker: BrokerThread) -> None:
    calls: list[Callable[[HAClient], object]] = [
        lambda client: client.subscribe("orders", handler=print),
        lambda client: client.stream("orders").open(),
        lambda client: client.pause("s"),
        lambda client: client.ack("orders", "1|1|"),
        lambda client: client.move_to(broker.uri),
        lambda client: client.flush(),
    ]
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()

    def listener(state: ConnectionState) -> None:
        if state is ConnectionState.SHUTDOWN:  # the last moment: the close waits for this
            for call in calls:
                with pytest.raises(DisconnectedError, match="the client was left"):
                    call(client)
            calls.clear()

    client.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=print)
    client.add_event_listener(on_states(listener))
    client.close()
    assert not calls


@pytest.mark.parametrize("call", ["open", "close", "publish"])
def test_a_thread_that_runs_an_event_loop_is_refused(call: str, broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    if call != "open":
        client.open()
    arguments = ("orders", b"1") if call == "publish" else ()

    async def in_loop() -> None:
        getattr(client, call)(*arguments)

    with pytest.raises(UsageError, match=rf"^{call} of haclient.blocking .* trio: use haclient.HA"):
        trio.run(in_loop)
    with pytest.raises(UsageError, match=rf"^{call} of .* asyncio: use haclient.aio.HAClient"):
        asyncio.run(in_loop())
    client.close()


def test_a_handler_that_runs_an_event_loop_is_refused(broker: BrokerThread) -> None:
    called, errors = threading.Event(), list[str]()
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])

    async def in_loop() -> None:
        client.publish("orders", b"1")

    def handle(_: Message) -> None:
        for run in (asyncio.run, lambda main: trio.run(lambda: main)):
            with suppress(Exception):
                with pytest.raises(UsageError) as caught:
                    run(in_loop())
                errors.append(str(caught.value))
        called.set()

    with client:
        client.subscribe("start", handler=handle)
        client.publish("start", b"1")
        assert called.wait(LIMIT_S)
    assert len(errors) == 2


SCRIPT = """
import signal, sys
from haclient.blocking import HAClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
client = HAClient.memory_backed("orders-7", servers=[sys.argv[1]])
"""


def test_a_program_that_closes_nothing_ends_in_order_whoever_opened_the_client(
    amps_broker_process: BrokerProcess,
) -> None:
    """The server confirms nothing: the end of a client says so, whichever thread opened it."""
    text = """
import logging, threading
logging.basicConfig()
client = HAClient.memory_backed("orders-7", servers=[sys.argv[1]], exit_timeout=0.01)
opening = threading.Thread(target=client.open, daemon=sys.argv[2] == "daemon")
opening.start()
opening.join()
print("opened", flush=True)
sys.stdin.readline()
client.publish("orders", b"1")
"""
    for daemon in ("daemon", "not"):
        with run_script(SCRIPT + text, amps_broker_process.uri, daemon) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "opened\n"
            amps_broker_process.pause()
            try:
                _, err = process.communicate("\n", timeout=LIMIT_S)
            finally:
                amps_broker_process.resume()
        assert process.returncode == 0
        assert "ResourceWarning: the client 'orders-7' was never closed" in err
        assert "client orders-7 leaves with publishes not persisted" in err, daemon


def test_a_program_whose_warnings_are_errors_closes_all_clients(
    amps_broker_process: BrokerProcess,
) -> None:
    text = """
import logging, warnings
logging.basicConfig()
warnings.simplefilter("error")
others = [
    HAClient.memory_backed(name, servers=[sys.argv[1]], exit_timeout=0.01).open()
    for name in ("orders-8", "orders-9")
]
print("opened", flush=True)
sys.stdin.readline()
for each in others:
    each.publish("orders", b"1")
"""
    with run_script(SCRIPT + text, amps_broker_process.uri) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        amps_broker_process.pause()
        try:
            _, err = process.communicate("\n", timeout=LIMIT_S)
        finally:
            amps_broker_process.resume()
    assert process.returncode == 0
    for name in ("orders-8", "orders-9"):
        assert f"client {name} leaves with publishes not persisted" in err
        assert f"the client '{name}' was never closed" in err


def test_a_client_is_not_closed_while_a_thread_of_the_program_works(broker: BrokerThread) -> None:
    text = """
import threading
is_open = threading.Event()  # Python 3.12 starts no thread once the main thread has ended
def work():
    with client:
        print("works", flush=True)
        is_open.set()
        sys.stdin.readline()
        print(client.publish_persisted("orders", b"1"), flush=True)
working = threading.Thread(target=work)
working.start()
def ends():
    threading.main_thread().join()
    print("main thread has ended", flush=True)
threading.Thread(target=ends).start()
is_open.wait()
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(2)} == {
            "works\n",
            "main thread has ended\n",
        }
        out, err = process.communicate("\n", timeout=LIMIT_S)
    assert out.strip().isdecimal()
    assert err == ""


def test_a_client_can_be_opened_when_python_has_waited_for_all_threads(
    broker: BrokerThread,
) -> None:
    text = """
import atexit
def last_words():
    try:
        with client:
            print(client.publish_persisted("orders", b"1"))
    except RuntimeError as error:
        print(error)  # of Python 3.12, which starts no thread any more
atexit.register(last_words)
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert out.strip().isdecimal() or "at interpreter shutdown" in out, err
    assert err == ""


def test_a_client_that_is_opened_while_the_program_ends_is_closed(broker: BrokerThread) -> None:
    text = """
from haclient import ConnectionState
from haclient.errors import DisconnectedError
late = HAClient.memory_backed("late", servers=[sys.argv[1]])
def opens(event):
    if getattr(event, "state", None) is ConnectionState.SHUTDOWN:
        print("opens", flush=True)
        try:
            late.open()
        except DisconnectedError as error:
            print(error, flush=True)
            assert str(error) == "open: the client 'late' was closed while it waited"
client.open()
client.add_event_listener(opens)
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    if out:  # Python 3.12 starts no threads at this time, and no listeners are called
        assert "the client 'late' was never closed" in err
        assert "AssertionError" not in err


@pytest.mark.parametrize(
    "waiting",
    [
        'next(client.stream("orders").open())',
        'next(iter(client.stream("orders").open().batches()))',
    ],
)
def test_an_interrupt_ends_a_call_that_waits(waiting: str, broker: BrokerThread) -> None:
    text = f"""
with client:
    try:
        print("waits", flush=True)
        {waiting}
    except KeyboardInterrupt:
        print("sequence", client.publish("orders", b"1"), flush=True)
        client.publish_flush(timeout=300)
        raise
"""
    with run_script(SCRIPT + text, broker.uri) as process:
        out, _ = interrupted(process)
    assert out.startswith("sequence ")


def test_an_interrupt_at_any_line_of_the_opening_leaves_nothing_behind(
    broker: BrokerThread,
) -> None:
    """The main thread is interrupted at the first line, the second, ... until it is through."""
    lines = 0
    while not opened_in_spite_of_interrupt(broker.uri, lines):
        lines += 1
        gc.collect()  # a client that was never closed would warn, which fails the test
    assert lines > 20
    for thread in threading.enumerate():
        if thread.name == "haclient orders-7" and thread.is_alive():  # cancelled before it began
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def opened_in_spite_of_interrupt(uri: str, lines: int) -> bool:
    """Open a client, with an interrupt at one line; whether it was open before that was reached."""
    client = HAClient.memory_backed("orders-7", servers=[uri])
    try:
        with interrupt_at_line(lines):
            client.open()
    except KeyboardInterrupt:
        assert not client.__bridge__.thread.is_running
        return False
    client.close()
    return True


def test_an_interrupt_at_any_line_of_the_closing_leaves_a_client_that_can_be_closed(
    broker: BrokerThread,
) -> None:
    lines, is_closed = 0, False
    while not is_closed:
        client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
        with suppress(KeyboardInterrupt), interrupt_at_line(lines):
            client.close()
            is_closed = True
        thread = client.__bridge__.thread
        thread.stop()  # as at the end of the process
        ended = threading.Event()
        thread.notify_ended(ended.set)
        is_ended = ended.wait(LIMIT_S)
        thread.cancel()
        assert is_ended, f"interrupted at line {lines}"
        lines += 1
    assert lines > 10


@pytest.mark.parametrize(
    "open_stream",
    [
        lambda client: client.stream("orders").__enter__(),
        lambda client: client.stream("orders").open(),
        lambda client: client.execute(Command("subscribe", topic="orders")),
    ],
    ids=["with", "open", "execute"],
)
def test_an_interrupt_at_any_line_of_the_opening_of_a_stream_leaves_none_open(
    client: HAClient, open_stream: Callable[[HAClient], MessageStream]
) -> None:
    lines, opened = 0, list[MessageStream]()
    while not opened:
        with suppress(KeyboardInterrupt), interrupt_at_line(lines):
            opened.append(open_stream(client))
        client.flush()
        assert len(client.metrics.subscriptions) == len(opened), f"interrupted at line {lines}"
        lines += 1
    assert lines > 20
    opened[0].close()


def test_an_interrupt_at_any_line_of_a_wait_lets_other_threads_take_messages(
    client: HAClient,
) -> None:
    with client.stream("orders") as messages:
        timed, lines, is_through = messages.with_timeout(0), 0, False
        while not is_through:
            with suppress(KeyboardInterrupt), interrupt_at_line(lines):
                next(timed)
                is_through = True
            other = threading.Thread(target=next, args=(timed,), daemon=True)
            other.start()
            other.join(LIMIT_S)
            assert not other.is_alive(), f"interrupted at line {lines}"
            lines += 1
        assert lines > 20


@contextmanager
def interrupt_at_line(lines: int) -> Generator[None]:
    """Interrupt what is called in the package, or in `Thread.start`, after so many lines of it."""
    left = lines

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal left
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name != "start" and "haclient" not in file:
            return None
        # A real interrupt comes before or after a lock is released, not in the midst of it.
        if event == "line" and not getline(file, frame.f_lineno).lstrip().startswith("with "):
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
            left -= 1
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        yield
    finally:
        sys.settrace(before)


def test_with_auto_ack_no_thread_acknowledges_what_others_of_one_stream_still_process() -> None:
    count, others = 6, list[Message]()
    all_have_one, finished = threading.Barrier(count), threading.Event()

    def work() -> None:
        others.append(next(messages))
        all_have_one.wait(LIMIT_S)
        assert finished.wait(LIMIT_S)
        next(messages, None)

    queue = QueueTopic(name="jobs", max_per_subscription_backlog=count)
    with (
        broker_thread(BrokerConfig(queues=(queue,))) as broker,
        HAClient("orders-7", servers=[broker.uri]) as client,
        client.queue_stream("jobs", auto_ack=True, max_backlog=count) as messages,
    ):
        running = [begin(work) for _ in range(count - 1)]
        client.publish_many("jobs", [b"%d" % number for number in range(count + 1)])
        own = next(messages)
        all_have_one.wait(LIMIT_S)
        assert None not in [own.lease, *(each.lease for each in others)]
        next(messages)  # the server grants no seventh lease before one has ended
        assert own.lease is None
        assert None not in [each.lease for each in others]
        finished.set()
        until(lambda: all(each.lease is None for each in others))
    for each in running:
        result_of(each)
