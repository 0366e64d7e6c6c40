"""The queue of a query, whose server may stop sending before the end of the records.

The `processed` ack accepts a query. Its records and their end come later, or fail to come, so the
timeout of the query also limits each silence: the time in which nothing arrives. It runs only while
the consumer waits with an empty queue, since the delay of a slow consumer is not the server's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio
from typing_extensions import override

from haclient.errors import HAClientError
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker
from haclient.transport.message_queue import DEFAULT_CAP_BYTES, MessageQueue


class QueryQueue(MessageQueue):
    """A queue that ends by an error when nothing has arrived for too long."""

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
            overdue: Called when the limit is over; returns the error with which the query ends, or
                `None` if the server is not at fault.
            is_lasting: Whether live messages follow the records: for these there is no limit.
        """
        self._limit_s, self._overdue, self._is_lasting = limit_s, overdue, is_lasting

    def lift_limit(self) -> None:
        """Limit no silence any more."""
        self._limit_s = math.inf

    @override
    def mark(self, marker: Marker) -> None:
        if self._is_lasting:  # the records are complete, or are sent again on another connection
            self.lift_limit()
        super().mark(marker)

    @override
    async def next_batch(self) -> list[Message] | None:
        batch = await super().next_batch()
        self._quiet_since = None
        return batch

    @override
    async def _arrival(self) -> None:
        if self._quiet_since is None:  # else an earlier wait was cancelled, in the same silence
            self._quiet_since = trio.current_time()
        deadline = self._quiet_since + self._limit_s
        with trio.CancelScope(deadline=deadline) as scope:
            await super()._arrival()
        self._quiet_since = None
        if scope.cancelled_caught and self._limit_s < math.inf:
            error = self._overdue()
            if error is not None:
                self.end(error, raises=True)
