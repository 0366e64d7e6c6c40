"""The one thread that a client runs in, and the calls that other threads may make.

A client belongs to the thread that runs trio: its stores, queues and counters have no locks. A call
from another thread is refused before it changes anything. The exceptions are the methods of a
message: a worker thread that processes a message (`trio.to_thread.run_sync(work, message)`) may
discard or acknowledge it, or extend its lease. That then runs on the client's thread, and the call
returns after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TypeVarTuple

import trio

from haclient.errors import UsageError
from haclient_stores.interfaces import Discard, SubscriptionLog

_Arguments = TypeVarTuple("_Arguments")


class ClientThread:
    """Binds a client to the thread in which its `async with` block is entered.

    A hot function writes out the comparison, which costs some 30 ns::

        if get_ident() != thread.ident:
            thread.check("publish")

    Attributes:
        ident: `threading.get_ident()` of the thread; 0 before the block is entered.
    """

    __slots__ = ("_name", "_token", "ident")

    def __init__(self) -> None:
        self.ident = 0
        self._name = ""
        self._token: trio.lowlevel.TrioToken | None = None

    def bind(self) -> None:
        """Bind the client to the calling thread, which runs trio."""
        self.ident = get_ident()
        self._name = threading.current_thread().name
        self._token = trio.lowlevel.current_trio_token()

    def check(self, what: str) -> None:
        """Refuse a call from another thread than the client's.

        Args:
            what: The call, such as `publish`.

        Raises:
            UsageError: The client was entered in another thread.
        """
        if self.ident in {0, get_ident()}:
            return
        raise UsageError(
            f"{what} was called by the thread {threading.current_thread().name!r}, but the client "
            f"belongs to {self._name!r}, which runs trio: call it through trio.from_thread.run or "
            "trio.from_thread.run_sync; only the methods of a message, such as message.discard(), "
            "work in every thread"
        )

    def discard(self, log: SubscriptionLog, number: int) -> None:
        """Discard a message on the client's thread and wait until that is done.

        Raises:
            UsageError: As for `call`.
        """
        self.call("message.discard()", log.discard, number)

    def call(
        self,
        what: str,
        function: Callable[[*_Arguments], object],
        *arguments: *_Arguments,
    ) -> None:
        """Call a function on the client's thread and wait until it has returned.

        Args:
            what: The call of the application, such as `message.discard()`.
            function: A plain function.
            *arguments: Its arguments.

        Raises:
            UsageError: The trio run that the client belonged to is over, or this thread runs trio
                itself, which must not be blocked.
        """
        if get_ident() == self.ident:  # a closed store belongs to no thread
            function(*arguments)
            return
        if self._token is None:
            raise UsageError(f"{what} of a client that was never entered")
        if trio.lowlevel.in_trio_run():
            raise UsageError(
                f"{what} was called inside a trio run of another thread, which it would block: "
                f"call it through trio.to_thread.run_sync({what.rstrip('()')})"
            )
        try:
            trio.from_thread.run_sync(function, *arguments, trio_token=self._token)
        except trio.RunFinishedError:  # the client was left long ago, and its store is closed
            raise UsageError(
                f"{what} came after the client was left: wait for your threads inside its async "
                "with block"
            ) from None


class LoggedBy:
    """Where `message.discard()` goes: a subscription's part of the bookmark store.

    Args:
        log: That part, of a store that belongs to the client's thread.
        thread: The client's thread.

    Attributes:
        discard: See `MessageOwner.discard`. It is the store's own function, since a call from here
            to there would cost as much as the discard itself.
    """

    __slots__ = ("discard",)

    discard: Discard

    def __init__(self, log: SubscriptionLog, thread: ClientThread) -> None:
        self.discard = log.discard_function(partial(thread.discard, log))
