"""Watches the leases of queue messages whose handlers are at work.

On request it extends a lease when half of it is over, and cancels a handler when its lease ends. An
application may extend a lease itself, so the end is looked up again when it has come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from inspect import isawaitable

import trio

from haclient.errors import DisconnectedError
from haclient.protocol.messages import Message
from haclient.transport.message_queue import Handler
from haclient_stores.logs import SafeLogger


@dataclass(slots=True)
class _AtWork:
    message: Message
    extend_at: float


class LeaseWatch:
    """Watches the leases of one subscription.

    Args:
        extend_s: By how much a lease is extended, again and again; `None` to extend none.
        cancels: Whether a handler is cancelled when the lease of its message ends.
        log: Logs that.
    """

    def __init__(self, *, extend_s: float | None, cancels: bool, log: SafeLogger) -> None:
        self._extend_s = extend_s
        self._cancels = cancels
        self._log = log
        self._at_work: dict[trio.CancelScope, _AtWork] = {}
        self._sleeps_until = 0.0
        self._is_earlier = trio.Event()

    async def call(self, handler: Handler, message: Message) -> None:
        """Call a handler; it is cancelled if the lease of its message ends before.

        The message loses its lease then, since the server redelivers it.
        """
        now = trio.current_time()
        ends_at, extend_at = self._end_of(message), math.inf
        if ends_at <= now:  # it waited for too long
            self._ended(message)
            return
        if self._extend_s is not None and message.lease_period:
            known = message.lease_deadline
            left_s = self._extend_s if known is None else max(0.0, known - now)
            extend_at = now + min(self._extend_s, left_s) / 2
        was_cut = False
        with trio.CancelScope() as scope:
            self._at_work[scope] = _AtWork(message, extend_at)
            if min(extend_at, ends_at) < self._sleeps_until:
                self._is_earlier.set()
            try:
                result = handler(message)
                if isawaitable(result):
                    await result
            except DisconnectedError:
                if not scope.cancel_called:
                    raise
                was_cut = True  # a handler in a thread gets it from the call that is cancelled
            finally:
                del self._at_work[scope]
        if was_cut or scope.cancelled_caught:
            self._ended(message)

    def _end_of(self, message: Message) -> float:
        """When a handler is to be cancelled; infinite for never."""
        ends_at = message.lease_deadline if self._cancels else None
        return math.inf if ends_at is None else ends_at

    def _ended(self, message: Message) -> None:
        message.lease = None
        self._log.warning(
            "the lease of message %s of the queue %s ended before it was processed: it comes "
            "again; extend_lease= holds it for longer",
            message.bookmark,
            message.topic,
            extra={"sub_id": message.sub_id},
        )

    async def run(self) -> None:
        """Extend and end leases as they are due, for ever."""
        while True:
            self._is_earlier = trio.Event()
            self._sleeps_until = self._carry_out(trio.current_time())
            with trio.move_on_at(self._sleeps_until):
                await self._is_earlier.wait()

    def _carry_out(self, now: float) -> float:
        """Do what is due; return when something is due next."""
        next_at = math.inf
        for scope, at_work in self._at_work.items():
            if at_work.extend_at <= now and self._extend_s is not None:
                at_work.message.extend_lease(self._extend_s)
                at_work.extend_at = now + self._extend_s / 2
            ends_at = self._end_of(at_work.message)
            if ends_at <= now:
                scope.cancel()
            else:
                next_at = min(next_at, at_work.extend_at, ends_at)
        return next_at
