"""The queue of a query, of which the server may stop in the middle.

The `processed` ack accepts a query; its records and its end come later, and each of them may fail
to come. So the time of the query limits each silence, too. It runs only while the consumer waits
with an empty queue: a slow consumer is not the server's delay.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from typing_extensions import override

from haclient.errors import HAClientError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.message_queue import DEFAULT_CAP_BYTES, Delivery


class QueryDelivery(Delivery):
    """A queue that ends when nothing has come for too long."""

    __slots__ = ("_is_lasting", "_limit_s", "_overdue", "_quiet_since")

    def __init__(self, cap_bytes: int = DEFAULT_CAP_BYTES, *, raises: bool = True) -> None:
        super().__init__(cap_bytes, raises=raises)
        self._limit_s = math.inf
        self._is_lasting = False
        self._overdue: Callable[[], HAClientError | None] = lambda: None
        self._quiet_since: float | None = None

    def limit(
        self, limit_s: float, overdue: Callable[[], HAClientError | None], *, is_lasting: bool
    ) -> None:
        """Limit each silence from now on.

        Args:
            limit_s: Seconds.
            overdue: Called after a silence; returns the error with which the query ends, or `None`
                if the silence is not the server's.
            is_lasting: Whether the limit ends with the first records: live messages follow them.
        """
        self._limit_s, self._overdue, self._is_lasting = limit_s, overdue, is_lasting

    def lift_limit(self) -> None:
        """Wait for as long as it takes from now on."""
        self._limit_s = math.inf

    @override
    def mark(self, marker: Marker) -> None:
        if self._is_lasting:  # its records are complete, or come again on another connection
            self.lift_limit()
        super().mark(marker)

    @override
    async def next_batch(self) -> list[Message] | None:
        batch = await super().next_batch()
        self._quiet_since = None
        return batch

    @override
    async def _arrival(self) -> None:
        if self._quiet_since is None:  # else an earlier wait was cancelled: the silence goes on
            self._quiet_since = trio.current_time()
        deadline = self._quiet_since + self._limit_s
        with trio.CancelScope(deadline=deadline) as scope:
            await super()._arrival()
        self._quiet_since = None
        if scope.cancelled_caught and self._limit_s < math.inf:
            error = self._overdue()
            if error is not None:
                self.fail(error)
