"""Services under `haclient.run`, as processes of their own, that a supervisor ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

from haclient.client import HAClient
from haclient.stores import FilePublishStore
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from support.process import LIMIT_S, SMALL_PIPE_BYTES, Child, running_broker

MESSAGES = 5000
"""More than three services can begin while six reads of a pipe each are behind."""

_START: Final = """
import sys, threading, time
import trio
import haclient
from haclient import HAClient
from haclient.stores import *
uri, path, grace = sys.argv[1], sys.argv[2], float(sys.argv[3])
def show(*words):
    print(*words, flush=True)
"""

_SUBSCRIBER: Final = (
    _START
    + """
async def main():
    client = HAClient("sub", servers=[uri], bookmark_store=LoggedBookmarkStore(path))
    async def handle(message):
        show("begin", message.data.decode())
        await trio.sleep(float(sys.argv[4]))
        show("done", message.data.decode())
    async with client:
        await client.bookmark_subscribe("orders", sub_id="s", handler=handle, auto_discard=True)
        await trio.sleep_forever()
haclient.run(main, grace=grace)
show("end")
"""
)

_PUBLISHER: Final = (
    _START
    + """
async def main():
    client = HAClient("pub", servers=[uri], publish_store=MemoryPublishStore())
    async with client:
        number = 0
        while True:
            number += 1
            await client.publish("orders", str(number))
            show(number)
            await trio.lowlevel.checkpoint()
haclient.run(main, grace=grace)
"""
)

_BLOCKED: Final = (
    _START
    + """
async def main():
    client = HAClient("sub", servers=[uri], bookmark_store=LoggedBookmarkStore(path))
    def handle(message):
        show("begin")
        while True:
            time.sleep(0.01)
    async with client:
        await client.bookmark_subscribe("orders", sub_id="blocked", handler=handle)
        await trio.sleep_forever()
haclient.run(main, grace=grace)
"""
)


def child(code: str, uri: str, path: Path, *arguments: float) -> Child:
    """A service that cannot run far ahead of what is read of its output."""
    command = [sys.executable, "-c", code, uri, str(path), *map(str, arguments)]
    return Child(command, pipe_bytes=SMALL_PIPE_BYTES)


def publish(uri: str, count: int) -> None:
    async def work() -> None:
        async with HAClient.memory_backed("other", servers=[uri]) as client:
            for number in range(1, count + 1):
                await client.publish("orders", str(number))
            await client.publish_flush()

    trio.run(work)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with running_broker(tmp_path / "broker") as running:
        yield running.uri


@pytest.mark.row("HA24")
def test_a_subscriber_that_is_told_to_end_handles_no_message_twice(
    broker: str, tmp_path: Path
) -> None:
    publish(broker, MESSAGES)
    finished: list[str] = []
    for _ in range(3):
        with child(_SUBSCRIBER, broker, tmp_path / "s.bookmarks", LIMIT_S, 0.01) as process:
            said = [process.line() for _ in range(5)]  # in the middle of its work
            process.send(signal.SIGTERM)
            said += [line.decode() for line in process.rest()]
            assert process.wait() == 0
            assert said.pop() == "end"
        begun = [line.removeprefix("begin ") for line in said if line.startswith("begin ")]
        done = [line.removeprefix("done ") for line in said if line.startswith("done ")]
        assert begun == done  # what it has begun it has finished
        finished += done
    assert 6 <= len(finished) < MESSAGES  # it has not handled all that had arrived, either
    assert finished == [str(number) for number in range(1, len(finished) + 1)]


@pytest.mark.row("HA24")
def test_a_publisher_that_is_told_to_end_has_everything_persisted(
    broker: str, tmp_path: Path
) -> None:
    with child(_PUBLISHER, broker, tmp_path, LIMIT_S) as process:
        said = [process.line() for _ in range(100)]
        process.send(signal.SIGTERM)
        said += [line.decode() for line in process.rest()]
        assert process.wait() == 0
    found: list[str] = []

    async def read() -> None:
        async with (
            HAClient("reader", servers=[broker]) as client,
            client.bookmark_stream("orders", sub_id="r", bookmark="0") as messages,
        ):
            async for message in messages:
                found.append(message.text)
                if len(found) == len(said):
                    return

    async def limited() -> None:
        with trio.fail_after(LIMIT_S):
            await read()

    trio.run(limited)
    assert found == said


@pytest.mark.row("HA24")
def test_an_end_of_the_grace_ends_the_program_and_says_what_was_left(
    broker: str, tmp_path: Path
) -> None:
    publish(broker, 1)
    with child(_SUBSCRIBER, broker, tmp_path / "s.bookmarks", 0.1, 3600) as process:
        assert process.line() == "begin 1"
        assert process.stop(signal.SIGTERM) == 1
        assert "GraceExpired: the grace of 0.1 s is over" in process.err
        assert "client 'sub': at work: s" in process.err


@pytest.mark.row("HA24")
def test_a_handler_that_blocks_its_thread_does_not_outlive_the_grace(
    broker: str, tmp_path: Path
) -> None:
    publish(broker, 1)
    with child(_BLOCKED, broker, tmp_path / "s.bookmarks", 0.1) as process:
        assert process.line() == "begin"
        assert process.stop(signal.SIGTERM) == 1
        assert process.err.startswith("haclient: error: the grace of 0.1 s is over")
        assert "client 'sub': at work: blocked" in process.err
    LoggedBookmarkStore(tmp_path / "s.bookmarks").close()  # whole, and not locked


@pytest.mark.row("HA24")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_program_at_once(
    broker: str, tmp_path: Path, number: signal.Signals
) -> None:
    publish(broker, 1)
    with child(_BLOCKED, broker, tmp_path / "s.bookmarks", 3600) as process:
        assert process.line() == "begin"
        process.send(signal.SIGTERM)
        while process.is_running:  # the first one may still be on its way
            process.send(number)
        assert process.wait() == -number


@pytest.mark.row("HA24")
def test_what_no_server_persists_waits_in_the_store(tmp_path: Path) -> None:
    code = _PUBLISHER.replace("MemoryPublishStore()", "FilePublishStore(path), exit_timeout=0.1")
    with (
        running_broker(tmp_path / "broker") as running,
        child(code, running.uri, tmp_path / "store", LIMIT_S) as process,
    ):
        said = [process.line() for _ in range(10)]
        running.kill()
        # More than the pipe holds: the last ones were published without a broker.
        said += [process.line() for _ in range(2 * SMALL_PIPE_BYTES)]
        process.send(signal.SIGTERM)
        said += [line.decode() for line in process.rest()]
        assert process.wait() == 0
    store = FilePublishStore(tmp_path / "store")
    assert 10 <= store.unpersisted_count <= len(said)
    store.close()
