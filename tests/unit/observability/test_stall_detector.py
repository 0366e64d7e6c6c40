from __future__ import annotations

import logging
import threading
from collections.abc import Generator

import pytest
import trio
from typing_extensions import override

from haclient.client import HAClient
from haclient.errors import UsageError
from haclient.observability.stall_detector import StallDetector
from haclient.protocol.messages import Message
from support.broker import running_broker

LIMIT_S = 300.0  # of a test that hangs


class Reports(logging.Handler):
    """Notes each warning, in whatever thread it is logged, and whether a stall lasts.

    A busy machine may stall the event loop anywhere, which is reported too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_stalled = threading.Event()
        self.texts: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if "blocked" in record.getMessage():
            self.is_stalled.set()
        else:
            self.is_stalled.clear()

    def has(self, words: str) -> bool:
        return any(words in text for text in self.texts)

    async def end_of_stall(self) -> None:
        while self.is_stalled.is_set():  # noqa: ASYNC110  # the detector's thread has no event
            await trio.sleep(0.001)


@pytest.fixture
def reports() -> Generator[Reports]:
    logger, found = logging.getLogger("haclient.observability.stall_detector"), Reports()
    logger.addHandler(found)
    yield found
    logger.removeHandler(found)


def a_handler_that_computes(reports: Reports) -> None:
    assert reports.is_stalled.wait(LIMIT_S)  # blocks the event loop until that is reported


@pytest.mark.row("HB8")
async def test_a_blocked_event_loop_is_reported_while_it_is_blocked(reports: Reports) -> None:
    with trio.fail_after(LIMIT_S), StallDetector(limit=0.05):
        while not reports.has("in a_handler_that_computes"):
            await reports.end_of_stall()
            a_handler_that_computes(reports)
        await reports.end_of_stall()
    assert reports.has("goes on after")  # not as the last one: a busy machine may stall here, too


@pytest.mark.row("HB8")
async def test_a_handler_that_computes_is_reported_before_the_server_cuts_the_connection(
    reports: Reports,
) -> None:
    send, handled = trio.open_memory_channel[bytes](1)

    def a_handler_of_orders(message: Message) -> None:
        assert reports.is_stalled.wait(LIMIT_S)  # blocks the event loop, heartbeats with it
        send.send_nowait(message.data)

    async with running_broker() as server:
        uri = f"{server.uris[0]}/amps/json"
        client = HAClient("one", servers=[uri], heartbeat=20.0)
        with trio.fail_after(LIMIT_S), StallDetector(limit=0.05):
            async with client:
                await client.subscribe("orders", handler=a_handler_of_orders)
                while not reports.has("in a_handler_of_orders"):
                    await reports.end_of_stall()
                    await client.publish("orders", b"x")
                    assert await handled.receive() == b"x"
                await client.flush(timeout=LIMIT_S)
                assert client.metrics.connections == 1, "the server has cut nothing"


async def test_a_detector_that_was_left_ends_its_thread() -> None:
    with StallDetector(limit=0.01) as detector:
        thread = detector._thread
    assert thread is not None
    await trio.to_thread.run_sync(thread.join, LIMIT_S)
    assert not thread.is_alive()


async def test_a_detector_is_used_once() -> None:
    with StallDetector() as detector, pytest.raises(UsageError, match="make a new one"):
        detector.__enter__()


def test_a_detector_outside_trio_is_refused() -> None:
    with pytest.raises(UsageError, match=r"inside trio\.run"):
        StallDetector().__enter__()


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_can_never_work_is_refused(limit: float) -> None:
    with pytest.raises(UsageError, match="limit is"):
        StallDetector(limit)
