from __future__ import annotations

import logging
import threading

import pytest
import trio
from typing_extensions import override

from haclient.errors import UsageError
from haclient.ha import HAClient
from haclient.protocol.messages import Message
from haclient.stall_detector import StallDetector
from support.broker import running_broker

LIMIT_S = 120.0  # of a test that hangs


class Reports(logging.Handler):
    """Sets an event for each kind of warning, in whatever thread it is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled = threading.Event()
        self.ended = threading.Event()
        self.texts: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        (self.stalled if "blocked" in record.getMessage() else self.ended).set()


@pytest.fixture
def reports() -> Reports:
    return Reports()


def a_handler_that_computes(reports: Reports) -> None:
    assert reports.stalled.wait(LIMIT_S)  # blocks the event loop until that is reported


@pytest.mark.row("HB8")
async def test_a_blocked_event_loop_is_reported_while_it_is_blocked(reports: Reports) -> None:
    logger = logging.getLogger("haclient.stall_detector")
    logger.addHandler(reports)
    try:
        with StallDetector(limit=0.05):
            a_handler_that_computes(reports)
            assert await trio.to_thread.run_sync(reports.ended.wait, LIMIT_S)
    finally:
        logger.removeHandler(reports)
    assert "in a_handler_that_computes" in reports.texts[0]
    assert "goes on after" in "".join(reports.texts)


@pytest.mark.row("HB8")
async def test_a_handler_that_computes_is_reported_before_the_server_cuts_the_connection(
    reports: Reports,
) -> None:
    handled = trio.Event()

    def a_handler_of_orders(message: Message) -> None:
        assert message.data == b"x"
        assert reports.stalled.wait(LIMIT_S)  # blocks the event loop, heartbeats with it
        handled.set()

    logger = logging.getLogger("haclient.stall_detector")
    logger.addHandler(reports)
    try:
        async with running_broker() as server:
            uri = f"{server.uris[0]}/amps/json"
            client = HAClient("one", servers=[uri], heartbeat=20.0)
            with StallDetector(limit=0.05):
                async with client:
                    await client.subscribe("orders", handler=a_handler_of_orders)
                    await client.publish("orders", b"x")
                    await handled.wait()
                    await client.flush(timeout=LIMIT_S)
                    assert client.metrics.connections == 1, "the server has cut nothing"
    finally:
        logger.removeHandler(reports)
    assert "a_handler_of_orders" in reports.texts[0], "the stack names the handler"


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
    with pytest.raises(UsageError, match="limit is in seconds above 0"):
        StallDetector(limit)
