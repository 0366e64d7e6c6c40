"""A connection of a hub whose other end reads nothing, and that never has much to send."""

from __future__ import annotations

import pytest

from haclient_fake_server.offline_queue import OfflineQueue

__all__ = ["SilentSession"]


class SilentSession:
    """A connection whose other end reads nothing.

    Attributes:
        number: Its number at the hub.
        is_over: Whether a failed write has ended it.
    """

    unsent_bytes = 0
    offline_bytes = 0
    is_offline = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_over = False

    def put(self, data: bytes) -> None:
        pass

    def wake(self) -> None:
        pass

    # It never has much to send and is never cut: a broker that does so here is wrong.

    def take_offline(self, queue: OfflineQueue) -> None:
        pytest.fail(f"a client with nothing to read was offlined: {queue}")

    def finish_slow_client(self, detail: str = "") -> None:
        pytest.fail(f"a client with nothing to read was taken for slow: {detail}")

    def cut(self, reason: str) -> None:
        pytest.fail(f"a client was cut: {reason}")

    def finish(self, reason: str) -> None:
        assert reason == "internal error"
        self.is_over = True
