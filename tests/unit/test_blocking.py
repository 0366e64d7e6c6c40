"""The blocking client: many threads, handlers, interrupts, and every end."""

from __future__ import annotations

import asyncio  # noqa: TID251  # a thread that runs it is refused
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from linecache import getline
from types import FrameType
from typing import TYPE_CHECKING

import pytest
import trio
from typing_extensions import override

from haclient import (
    EPOCH,
    Command,
    ConnectionState,
    DefaultServerChooser,
    FixedDelayStrategy,
    Message,
)
from haclient.blocking import BaseClient, Client, HAClient, MessageStream
from haclient.errors import (
    ConnectionRefused,
    DisconnectedError,
    ReconnectGaveUp,
    TimedOut,
    UsageError,
)
from haclient.servers.chooser import ConnectionInfo
from haclient.streams import TimedMessages
from haclient.transport.settings import HAOptions
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.testing.processes import BrokerProcess
from support.broker_thread import BrokerThread, broker_thread, publish
from support.forks import refusals
from support.listening import on_states
from support.process import interrupted, run_script

if TYPE_CHECKING:
    from _typeshed import TraceFunction

pytestmark = [pytest.mark.row("CC35")]
LIMIT_S = 300.0


@pytest.fixture
def broker() -> Generator[BrokerThread]:
    queue = QueueTopic(name="jobs", max_per_subscription_backlog=10)
    with broker_thread(BrokerConfig(queues=(queue,))) as running:
        yield running


@pytest.fixture
def client(broker: BrokerThread) -> Generator[HAClient]:
    with HAClient.memory_backed("orders-7", servers=[broker.uri]) as opened:
        yield opened


def bodies(client: HAClient | Client, topic: str, count: int) -> list[str]:
    """What is in the log of a topic, in order."""
    with client.bookmark_stream(topic, sub_id=f"all of {topic}", bookmark=EPOCH) as messages:
        return [message.text for message in islice(messages, count)]


@pytest.mark.row("MS6")
def test_of_what_waits_only_the_newest_message_of_each_key_is_taken(client: HAClient) -> None:
    kind = dict[str, str]
    with (
        client.bookmark_stream("orders", sub_id="slow", bookmark=EPOCH).conflate(
            lambda message: message.json(kind).get("id")
        ) as slow,
        client.bookmark_stream("orders", sub_id="every", bookmark=EPOCH) as everything,
    ):
        client.publish_persisted("orders", b'{"id":"a","v":"1"}')
        assert next(slow).json(kind)["v"] == "1"
        for number in range(2, 6):
            client.publish("orders", b'{"id":"a","v":"%d"}' % number)
            client.publish("orders", b'{"id":"b","v":"%d"}' % number)
        assert [next(everything).json(kind)["v"] for _ in range(9)][-1] == "5"
        client.publish_persisted("orders", b'{"id":"c","v":"6"}')
        while next(everything).json(kind)["id"] != "c":
            pass
        assert [next(slow).json(kind)["v"] for _ in range(3)] == ["5", "5", "6"]
        assert next(slow.with_timeout(0)) is None
    with pytest.raises(UsageError, match="messages of a queue"):
        client.queue_stream("jobs").conflate()
    with pytest.raises(UsageError, match="a stream of deltas"):
        client.stream("orders", delta=True).conflate()


# -- calls -----------------------------------------------------------------------------


def test_a_script_publishes_and_reads(broker: BrokerThread) -> None:
    with Client("orders-7") as client:
        client.connect(broker.uri)
        client.logon()
        assert client.state is ConnectionState.LOGGED_ON
        with client.stream("orders") as messages:
            client.publish("orders", b"1")
            client.publish("orders", "2")
            assert next(messages).data == b"1"
            assert next(messages.batches())[0].data == b"2"
            assert messages.sub_id
        assert list(messages) == []
        assert messages.ended
        client.flush()
    assert str(client.state) == "shutdown"
    assert repr(client) == "<haclient.blocking.Client 'orders-7', not open>"


def test_threads_share_a_client_and_each_keeps_its_order(client: HAClient) -> None:
    def publish(thread: int) -> None:
        for number in range(100):
            client.publish("orders", f"{thread} {number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    client.publish_flush(timeout=LIMIT_S)
    found = bodies(client, "orders", 800)
    assert len(set(found)) == 800
    for thread in range(8):
        own = [text for text in found if text.startswith(f"{thread} ")]
        assert own == [f"{thread} {number}" for number in range(100)]


def test_threads_share_a_stream_and_each_message_goes_to_one(client: HAClient) -> None:
    client.publish_many("orders", [b"%d" % number for number in range(1000)])
    taken: list[str] = []
    with client.bookmark_stream("orders", sub_id="s1", bookmark=EPOCH) as messages:

        def work() -> None:
            for message in messages:
                message.discard()
                taken.append(message.text)
                if len(taken) == 1000:
                    messages.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: work(), range(4)))
    assert sorted(taken, key=int) == [str(number) for number in range(1000)]


def test_a_client_survives_the_kill_of_its_server(
    amps_broker_process: BrokerProcess,
) -> None:
    broker = amps_broker_process
    with HAClient.memory_backed(
        "orders-7",
        servers=[broker.uri],
        exit_timeout=LIMIT_S,
        delay_strategy=FixedDelayStrategy(0.05),
    ) as client:
        for number in range(50):
            client.publish("orders", f"{number}")
            if number == 20:
                broker.kill()
            if number == 40:
                broker.start()
        client.publish_flush(timeout=LIMIT_S)
        assert client.unpersisted_count == 0


def wait_for_nothing(client: BaseClient) -> None:
    """Wait until the client ends, and ask it why."""
    with client.stream("nothing") as messages:
        assert next(messages, None) is None
    client.flush()


def test_a_timeout_is_the_one_of_the_trio_client(client: HAClient) -> None:
    with pytest.raises(TimedOut):
        client.flush(timeout=0)
    with pytest.raises(UsageError, match=r"timeout is a number of seconds.*not -1"):
        client.flush(timeout=-1)


def test_a_server_that_refuses_raises_where_the_client_is_opened() -> None:
    client = Client("orders-7")
    with client, pytest.raises(ConnectionRefused):
        client.connect("tcp://127.0.0.1:1/amps/json", timeout=LIMIT_S)
    with pytest.raises(UsageError, match="a client runs once"):
        client.open()


def test_opening_without_a_server_ends_after_its_limit_and_another_client_opens(
    broker: BrokerThread,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        server = f"tcp://127.0.0.1:{mute.getsockname()[1]}/amps/json"
        client = HAClient.memory_backed("orders-7", servers=[server])
        with pytest.raises(TimedOut, match=r"not logged on within 0\.1 s"):
            client.open(timeout=0.1)
    with pytest.raises(UsageError):
        client.open()
    refused = HAClient.memory_backed("orders-8", servers=["tcp://127.0.0.1:1/amps/json"])
    with pytest.raises(TimedOut, match=r"^open: .*; there is no connection: cannot conn") as late:
        refused.open(timeout=0.3)
    assert isinstance(late.value.__cause__, ConnectionRefused)
    again = HAClient.memory_backed("orders-7", servers=[broker.uri]).open(timeout=LIMIT_S)
    assert again.health().is_ready
    again.close()


@pytest.mark.parametrize("timeout", [-1, -5, float("nan"), "3"])
def test_a_limit_that_is_no_time_opens_nothing(broker: BrokerThread, timeout: float) -> None:
    client = HAClient("orders-7", servers=[broker.uri])
    with pytest.raises(UsageError, match=rf"timeout is a number of seconds.*not {timeout!r}"):
        client.open(timeout=timeout)
    with client:
        assert client.health().is_ready


@pytest.mark.parametrize("timeout", [1e10, float("inf")])
def test_a_limit_may_be_longer_than_any_wait(broker: BrokerThread, timeout: float) -> None:
    client = HAClient("orders-7", servers=[broker.uri]).open(timeout=timeout)
    assert client.health().is_ready
    client.close()


def test_a_property_is_there_before_and_after_and_cannot_be_set(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    assert client.name == "orders-7"
    assert not client.state.is_logged_on
    with client:
        assert client.state.is_logged_on
    assert client.unpersisted_count == 0
    with pytest.raises(AttributeError, match="name cannot be set"):
        client.name = "x"


# -- handlers --------------------------------------------------------------------------


def test_a_handler_runs_in_another_thread_in_order_and_may_call_the_client(
    client: HAClient,
) -> None:
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    def handle(message: Message) -> None:
        client.publish("answers", message.data)
        seen.append((message.text, threading.current_thread().name))
        if len(seen) == 50:
            done.set()

    client.publish_many("orders", [b"%d" % number for number in range(50)])
    client.bookmark_subscribe(
        "orders", sub_id="s1", bookmark=EPOCH, handler=handle, auto_discard=True
    )
    assert done.wait(LIMIT_S)
    assert [text for text, _ in seen] == [str(number) for number in range(50)]
    assert not {name for _, name in seen} & {"MainThread", "haclient orders-7"}
    client.publish_flush(timeout=LIMIT_S)
    assert bodies(client, "answers", 50) == [text for text, _ in seen]


def test_what_a_handler_raises_reaches_the_call_that_waits(broker: BrokerThread) -> None:
    error = ValueError("no such order")

    def fail(_: Message) -> None:
        raise error

    def wait() -> None:
        with HAClient.memory_backed("orders-7", servers=[broker.uri]) as client:
            client.subscribe("orders", handler=fail)
            with client.stream("others") as messages:
                client.publish("orders", b"1")
                next(messages)

    with pytest.raises(ValueError, match="no such order") as raised:
        wait()
    assert raised.value is error


def test_what_a_handler_raises_leaves_the_block_if_no_call_waits(broker: BrokerThread) -> None:
    failed = threading.Event()

    def fail(_: Message) -> None:
        failed.set()
        raise ValueError("no such order")

    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    client.subscribe("orders", handler=fail)
    client.publish("orders", b"1")
    assert failed.wait(LIMIT_S)
    with pytest.raises(ValueError, match="no such order"):
        client.close()
    client.close()  # it was told


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


def test_a_callback_is_a_plain_function(client: HAClient) -> None:
    async def later(_: Message) -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=r"is a plain function, and .*later.* is a coroutine"):
        client.subscribe("orders", handler=later)


def test_a_plain_function_that_returns_a_coroutine_ends_the_client(broker: BrokerThread) -> None:
    async def later(_: Message) -> None:
        raise AssertionError

    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    client.subscribe("orders", handler=lambda message: later(message))  # noqa: PLW0108  # a plain one
    client.publish("orders", b"1")
    with pytest.raises((UsageError, DisconnectedError)):  # the latter while it is being closed
        wait_for_nothing(client)
    with pytest.raises(UsageError, match="is a plain function"):
        client.close()


def test_a_listener_may_call_the_client_and_can_be_removed(broker: BrokerThread) -> None:
    seen: list[tuple[ConnectionState, str]] = []
    opened = threading.Event()

    def listen(state: ConnectionState) -> None:
        seen.append((state, client.name))
        if state is ConnectionState.RESUBSCRIBED:
            opened.set()

    listener = on_states(listen)
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], on_event=listener)
    with client:
        client.flush()
        assert opened.wait(LIMIT_S)
        client.remove_event_listener(listener)
        with pytest.raises(UsageError, match="no such event listener"):
            client.remove_event_listener(listener)
        before = len(seen)
    assert (ConnectionState.CONNECTED, "orders-7") in seen
    assert len(seen) == before


def test_a_queue_is_consumed_by_handlers_and_by_streams(client: HAClient) -> None:
    for number in range(20):
        client.publish("jobs", f"{number}")
    worked: list[str] = []
    done = threading.Event()

    def work(message: Message) -> None:
        worked.append(message.text)
        if len(worked) == 10:
            done.set()

    with client.queue_stream("jobs", auto_ack=True) as messages:
        taken = [next(messages).text for _ in range(11)]  # the last one is not acknowledged
    client.flush_acks(timeout=LIMIT_S)
    client.queue_subscribe("jobs", handler=work)
    assert done.wait(LIMIT_S)
    assert set(taken[:10]) | set(worked) == {str(number) for number in range(20)}
    assert not set(taken[:10]) & set(worked)


def test_each_thread_acknowledges_what_it_has_taken_itself(client: HAClient) -> None:
    client.publish_many("jobs", [f"{number}" for number in range(4)])
    with client.queue_stream("jobs", auto_ack=True) as messages:
        slow = next(messages)
        with ThreadPoolExecutor(1) as other:
            first, second, _ = (other.submit(next, messages).result(LIMIT_S) for _ in range(3))
        assert (first.lease, second.lease) == (None, None)
        assert slow.lease is not None


def test_a_message_that_waited_here_while_its_lease_was_lost_is_skipped(
    broker: BrokerThread,
) -> None:
    with (
        HAClient.memory_backed("orders-7", servers=[broker.uri]) as client,
        client.queue_stream("jobs") as messages,
    ):
        publish(broker.uri, "jobs", [b"1"])
        messages._fill(None)  # all that a caller does who is interrupted then
        broker.stop()  # and what was in the queue is gone
        broker.start()
        publish(broker.uri, "jobs", [b"2"])
        assert next(messages).text == "2"


def test_a_wait_that_has_to_wait_for_another_thread_first_is_no_longer(client: HAClient) -> None:
    asked: list[float] = []

    class Recording:
        def with_timeout(self, seconds: float) -> TimedMessages:
            asked.append(seconds)
            return stream.with_timeout(0)

    with client.stream("orders") as messages:
        stream = messages.__bridge__.inner
        timed = messages.with_timeout(LIMIT_S)
        messages.__bridge__._inner = Recording()  # type: ignore[assignment]  # no more is called
        assert next(timed) is None
        messages.__bridge__._inner = stream
    assert 0 < asked[0] < LIMIT_S


# -- ends ------------------------------------------------------------------------------


def test_close_in_another_thread_ends_a_call_that_waits(
    amps_broker_process: BrokerProcess,
) -> None:
    broker, waits = amps_broker_process, threading.Event()
    options: HAOptions = {"servers": [broker.uri], "exit_timeout": 0}
    with HAClient("orders-7", **options) as client, ThreadPoolExecutor(1) as pool:

        def wait() -> None:
            waits.set()
            client.flush(timeout=None)

        client.flush()
        broker.pause()
        result = pool.submit(wait)
        assert waits.wait(LIMIT_S)
        client.close()
        with pytest.raises(DisconnectedError, match=r"closed|left"):
            result.result(LIMIT_S)


def test_close_in_another_thread_ends_an_opening_that_finds_no_server() -> None:
    tried = threading.Event()

    class Chooser(DefaultServerChooser):
        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            super().report_failure(error, info)
            tried.set()

    chooser = Chooser(["tcp://127.0.0.1:1/amps/json"])
    client = HAClient.memory_backed("orders-7", server_chooser=chooser)
    with ThreadPoolExecutor(2) as pool:
        opening = pool.submit(client.open)
        assert tried.wait(LIMIT_S)
        closing = pool.submit(client.close)
        is_closed = not wait([closing], LIMIT_S).not_done
        client.__bridge__.thread.cancel()  # else the pool would wait for ever
        assert is_closed
        with pytest.raises(DisconnectedError, match="open: the client 'orders-7' was closed"):
            opening.result(LIMIT_S)
    with pytest.raises(UsageError, match="a client runs once"):
        client.open()


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

    client.add_event_listener(on_states(listener))
    client.close()
    assert not calls


def test_a_closed_client_refuses_calls_and_closes_again(client: HAClient) -> None:
    client.close()
    with pytest.raises(UsageError, match="publish of a client that was closed"):
        client.publish("orders", b"1")
    with pytest.raises(UsageError, match="publish_nowait of a client that was closed"):
        client.publish_nowait("orders", b"1")
    client.close()


def test_a_client_that_was_not_opened_says_so(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    with pytest.raises(UsageError, match=r"publish of a client that is not open: use `with`"):
        client.publish("orders", b"1")
    client.close()


def test_a_handler_that_closes_its_client_is_refused(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    client.subscribe("orders", handler=lambda _: client.close())
    client.publish("orders", b"1")
    with pytest.raises((UsageError, DisconnectedError)):  # the latter while it is being closed
        wait_for_nothing(client)
    with pytest.raises(UsageError, match="close was called by a handler"):
        client.close()


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


def test_a_forked_process_gets_a_clear_error(client: HAClient) -> None:
    child = os.fork()
    if child == 0:  # only `os._exit` from here: the test's fixtures belong to the other process
        try:
            client.publish("orders", b"1")
        except UsageError as error:
            client.close()  # does nothing: it belongs to the other process
            os._exit(0 if "before this process was forked" in str(error) else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.publish("orders", b"1")


def test_a_forked_process_gets_no_message_of_the_other_and_finishes_none(client: HAClient) -> None:
    client.publish_many("orders", [b"1", b"2", b"3"])
    client.publish_flush(timeout=LIMIT_S)
    with client.bookmark_stream("orders", sub_id="a", bookmark=EPOCH) as messages:
        first = next(messages)
        while not messages._buffer.is_ready:  # what is taken together waits in this process
            messages._fill(None)
        assert refusals(partial(next, messages), first.discard) == 2
        assert [next(messages).text for _ in range(2)] == ["2", "3"]
        first.discard()


def test_a_forked_process_does_not_wait_for_a_thread_of_the_other(client: HAClient) -> None:
    with client.stream("orders") as messages, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, messages)
        while messages._taking.acquire(blocking=False):  # until the other thread has it
            messages._taking.release()
        timed = messages.with_timeout(LIMIT_S)
        assert refusals(partial(next, messages), partial(next, timed)) == 2
        client.publish("orders", b"1")
        assert waiting.result(LIMIT_S).text == "1"


def test_a_client_that_is_dropped_warns_and_ends(broker: BrokerThread) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri]).open()
    thread = client.__bridge__.thread
    with pytest.warns(ResourceWarning, match="'orders-7' was never closed"):  # noqa: PT031  # as long as
        del client
        gc.collect()
    thread.join()


SCRIPT = """
import signal, sys
from haclient.blocking import HAClient
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
client = HAClient.memory_backed("orders-7", servers=[sys.argv[1]])
"""


def test_a_program_that_closes_nothing_ends_and_is_warned(broker: BrokerThread) -> None:
    with run_script(
        SCRIPT + 'client.open()\nclient.publish("orders", b"1")\n', broker.uri
    ) as process:
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "ResourceWarning: the client 'orders-7' was never closed" in err
    with Client("reader") as reader:
        reader.connect(broker.uri)
        reader.logon()
        assert bodies(reader, "orders", 1) == ["1"]  # it was drained


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


def test_a_client_is_measured_before_it_is_opened_and_after_it_was_closed(
    broker: BrokerThread,
) -> None:
    client = HAClient.memory_backed("orders-7", servers=[broker.uri])
    assert client.metrics.state is ConnectionState.DISCONNECTED
    with client:
        client.publish_persisted("orders", b"1")
    assert client.metrics.state.value == "shutdown"
    assert client.metrics.logons == 1
    assert client.metrics.oldest_unpersisted_age == 0.0


def test_the_health_of_a_client_is_told_before_its_run_and_after_any_end(
    broker: BrokerThread,
) -> None:
    delays = FixedDelayStrategy(0.001, give_up_after=0.01)
    client = HAClient.memory_backed("orders-7", servers=[broker.uri], delay_strategy=delays)
    assert not client.health().is_alive
    client.open()
    assert client.health().is_alive
    client.publish_persisted("orders", b"1")
    broker.stop()
    client.__bridge__.thread.join()
    assert not client.health().is_alive
    assert client.health().reasons[0].startswith("the client was not entered, or was left; its ")
    assert "is alive       no" in client.report()
    assert client.metrics.oldest_unpersisted_age == 0.0
    with pytest.raises(ReconnectGaveUp):
        client.close()
    assert not client.health().is_alive


def test_none_stands_for_a_time_without_a_message(client: HAClient) -> None:
    with client.stream("orders") as messages:
        timed = messages.with_timeout(0.05)
        assert next(timed) is None
        client.publish("orders", "1")
        client.publish("orders", "2")
        found = [message.text for message in islice(filter(None, timed), 2)]
        assert found == ["1", "2"]
        assert next(timed) is None
        waiting = threading.Thread(target=next, args=(messages,), daemon=True)
        waiting.start()  # it takes the next message, for as long as that may take
        assert next(timed) is None
        assert next(timed) is None
        client.publish("orders", "3")
        waiting.join(LIMIT_S)
        assert not waiting.is_alive()
    with pytest.raises(StopIteration):
        next(timed)


def test_lists_are_collected(client: HAClient) -> None:
    with client.stream("orders") as messages:
        for number in range(5):
            client.publish("orders", str(number))
        batches = messages.batches(3, LIMIT_S)
        assert [message.text for message in next(batches)] == ["0", "1", "2"]
        assert [message.text for message in next(messages.batches(2, LIMIT_S))] == ["3", "4"]
    with pytest.raises(UsageError, match="max_seconds needs max_messages"):
        messages.batches(max_seconds=1.0)


def test_an_interrupt_ends_the_opening_of_a_client() -> None:
    text = 'print("waits", flush=True)\nclient.open()\n'
    with run_script(SCRIPT + text, "tcp://127.0.0.1:1/amps/json") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
    assert "\nKeyboardInterrupt\n" in err


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
        assert not client.__bridge__.thread.is_abandoned
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
