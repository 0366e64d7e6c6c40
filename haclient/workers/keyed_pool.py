"""Shares messages among workers, and keeps the order of each key.

Messages of equal keys are handled in order and one at a time; messages of different keys are
handled in parallel, by whatever worker is free. A redelivered message is handled after later ones
of its key that have arrived before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import trio

from haclient.protocol.messages import Message
from haclient.transport.message_queue import Handler
from haclient.workers.message_runner import MessageRunner


class KeyedPool:
    """The messages that are with the workers of one subscription, at work or waiting.

    Args:
        capacity: How many there may be.
        key: Returns the key of a message; `None` keeps no order.
        runner: Handles the messages.

    Attributes:
        count: How many there are.
    """

    def __init__(
        self, capacity: int, key: Callable[[Message], Hashable] | None, runner: MessageRunner
    ) -> None:
        self._capacity = capacity
        self._key = key
        self._runner = runner
        self.count = 0
        self._ready: deque[tuple[Hashable, Message]] = deque()
        self._busy: dict[Hashable, deque[Message]] = {}  # what waits behind a message of its key
        self._is_ended = False
        self._arrived = trio.lowlevel.ParkingLot()
        self._finished = trio.lowlevel.ParkingLot()

    async def put(self, message: Message) -> None:
        """Give a message to the workers, behind those of its key; wait while there is no room.

        Raises:
            Exception: What the key function raised, if the policy is `raise`.
        """
        while self.count >= self._capacity:
            await self._finished.park()
        if self._is_ended:  # dropped, a moment before the cancellation of this task
            return
        key: Hashable = None
        if self._key is not None:
            try:
                key = self._key(message)
                waiting = self._busy.get(key)
            except Exception as error:  # the application's: the key is part of the handling
                await self._runner.failed(message, error)
                return
            if waiting is not None:
                waiting.append(message)
                self.count += 1
                return
            self._busy[key] = deque()
        self._ready.append((key, message))
        self.count += 1
        self._arrived.unpark()

    def end(self) -> None:
        """Nothing follows: the workers end when they have handled what is there."""
        self._is_ended = True
        self._arrived.unpark_all()

    def drop_waiting(self) -> None:
        """Drop what waits: the workers end after the messages that they are handling."""
        self.count -= len(self._ready) + sum(map(len, self._busy.values()))
        self._ready.clear()
        for waiting in self._busy.values():
            waiting.clear()
        self.end()

    async def work(self, handler: Handler | None = None) -> None:
        """Handle messages until none will follow; the task of one worker.

        Args:
            handler: Called instead of the handler of the queue.

        Raises:
            Exception: What the handler raised, if the policy is `raise`; what a policy raised. That
                message, and one that was cancelled, still counts in `count`.
        """
        while self._ready or not self._is_ended:
            if not self._ready:
                await self._arrived.park()
                continue
            key, message = self._ready.popleft()
            await self._runner.run((message,), handler)
            self.count -= 1
            if self._key is not None:
                if waiting := self._busy[key]:
                    self._ready.append((key, waiting.popleft()))
                else:
                    del self._busy[key]
            # Not for each message: it costs as much as a twentieth of a call in a thread. While
            # half of them are ready, no worker idles.
            if len(self._ready) <= self._capacity // 2:
                self._finished.unpark_all()
