"""The subscription manager with the official names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias, cast

from typing_extensions import override

import haclient.subscription_manager
from haclient.compat.listeners import MessageHandler
from haclient.compat.messages import Command
from haclient.compat.stores import BaseBookmarkStore
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import CommandError, HAClientError, UsageError
from haclient.options import TIMEOUT_S
from haclient.protocol.commands import Command as NativeCommand
from haclient.subscription_manager import Entry

FailedResubscribeHandler: TypeAlias = Callable[
    [NativeCommand, MessageHandler, str, Exception], bool
]
"""Gets command, handler, requested acks and error; whether to go on without the subscription."""


class Subscriber(Protocol):
    """A client that places subscriptions."""

    def execute_async(
        self, command: NativeCommand, on_message: MessageHandler | None = None
    ) -> str:
        """Send a command whose messages go to a handler."""
        ...


class MemorySubscriptionManager(haclient.subscription_manager.MemorySubscriptionManager):
    """Remembers the subscriptions of an `HAClient`, which subscribes them again by itself.

    It also has their handlers. So `resubscribe` places those that a connection does not have: what
    `subscribe` was given, and what an earlier connection had that has ended for good.
    """

    def __init__(self) -> None:
        super().__init__()
        self._handled: dict[str, tuple[NativeCommand, MessageHandler]] = {}
        self._active: set[str] = set()
        self._waiting: set[str] = set()  # given to `subscribe`, and not placed yet
        self._failed: FailedResubscribeHandler | None = None
        self._timeout_s: float | None = None
        self._report: Callable[[Exception], object] | None = None

    # -- for the application ------------------------------------------------------------------

    def subscribe(self, on_message: MessageHandler, command: NativeCommand) -> None:
        """Remember a subscription, which `resubscribe` or `connect_and_logon` places.

        Args:
            on_message: Its handler.
            command: The command, with its `sub_id`.

        Raises:
            UsageError: It has no `sub_id`.
        """
        if not command.sub_id:
            raise UsageError("a subscription is remembered under its id: set_sub_id of the command")
        self._handled[command.sub_id] = (dataclasses.replace(command), on_message)
        self._waiting.add(command.sub_id)

    def unsubscribe(self, sub_id: str) -> None:
        """Forget a subscription; `client.unsubscribe` ends it at the server, too.

        Args:
            sub_id: Its id; `"all"` for all.
        """
        if sub_id == "all":
            self.clear()
        else:
            self.remove(sub_id)

    def resubscribe(self, client: Subscriber) -> None:
        """Place the subscriptions that the client does not have, in order.

        An `HAClient` subscribes again by itself when a connection was lost. This is for one that
        has ended, such as by `disconnect` or because it gave up, and was connected again. What an
        earlier connection had continues there if it has a bookmark and the client a bookmark store.

        Args:
            client: The client that has this manager.

        Raises:
            CommandError: The server refused one, and there is no handler for that, or it has
                answered `False`; those before it are active.
            TimedOut: The server did not answer within the timeout of the command, else the
                resubscription timeout, else that of the client.
        """
        self._place(client, list(self._handled))

    def _place(self, client: Subscriber, sub_ids: list[str]) -> None:
        for sub_id in sub_ids:
            if sub_id in self._active:
                continue
            handled = self._handled.get(sub_id)
            if handled is None:  # another thread has unsubscribed it in the meantime
                continue
            command, on_message = handled
            if sub_id not in self._waiting:
                command = _resumed(client, command)
            limited = dataclasses.replace(command, timeout=self._limit_s(client, command))
            try:
                client.execute_async(limited, on_message)
            except CommandError as error:
                if self.answer(sub_id, error) != "drop":
                    raise
                self.remove(sub_id)
            else:
                if sub_id in self._handled:  # without this limit, which may be another next time
                    self._handled[sub_id] = handled

    def _limit_s(self, client: Subscriber, command: NativeCommand) -> float:
        """How long to wait for the server's answer to a subscription that is placed."""
        if command.timeout is not None and math.isfinite(command.timeout):
            return command.timeout  # no limit is the default of the methods: nothing was asked for
        if self._timeout_s is not None:
            return self._timeout_s
        get_timeout = getattr(client, "get_timeout", None)  # a plain client has none
        return seconds_of(get_timeout()) if callable(get_timeout) else TIMEOUT_S

    def set_failed_resubscribe_handler(self, handler: object) -> None:
        """Decide what becomes of a subscription that every server has refused.

        Args:
            handler: A function, or an object with the method `failure`. It gets the command, its
                message handler, the requested acks and the error. `True` goes on without the
                subscription, `False` tries again for as long as the delay strategy allows. It runs
                in the thread of the client, so it must be quick and must not use the client. What
                it raises goes to the exception listener, and is `False`. `None`, the default, ends
                the client with the error.

        Raises:
            UsageError: It is neither a function nor an object with the method `failure`.
        """
        failure = getattr(handler, "failure", handler)
        if failure is not None and not callable(failure):
            raise UsageError(f"a handler is a function or has the method failure, not {handler!r}")
        self._failed = cast("FailedResubscribeHandler | None", failure)

    def set_resubscription_timeout(self, timeout: float) -> None:
        """Limit the wait for the server's answer to each subscription; before connecting.

        By default it is the timeout of the client, as for each step of connecting. A command with
        a timeout of its own keeps that when it is placed.

        Args:
            timeout: Milliseconds. 0 is no limit for subscriptions that are placed. After a lost
                connection the timeout of the client still counts: a server that does not answer
                must not hold up the fail-over.

        Raises:
            UsageError: It is negative or no number.
        """
        self._timeout_s = seconds_of(timeout)

    def get_resubscription_timeout(self) -> int | None:
        """Milliseconds for the answer to each subscription; `None` where nothing was set."""
        return None if self._timeout_s is None else milliseconds_of(self._timeout_s)

    # -- for the client -----------------------------------------------------------------------

    @property
    def timeout_s(self) -> float | None:
        """The resubscription timeout in seconds; `None` where nothing was set."""
        return self._timeout_s

    def connecting(self, report: Callable[[Exception], object]) -> None:
        """Note that a new client is being created, which has no subscriptions yet.

        Args:
            report: Gets exceptions of the handler.
        """
        self._report = report
        self._active.clear()
        super().clear()

    def connected(self, client: Subscriber) -> None:
        """The client has connected: place what `subscribe` was given."""
        self._place(client, [sub_id for sub_id in self._handled if sub_id in self._waiting])

    def note_handler(self, sub_id: str, command: NativeCommand, on_message: MessageHandler) -> None:
        """Remember the handler of a command, if it is an active subscription."""
        if sub_id in self._active:
            self._handled[sub_id] = (dataclasses.replace(command, sub_id=sub_id), on_message)

    def answer(self, sub_id: str, error: HAClientError) -> str:
        """What becomes of a subscription that every server has refused."""
        if self._failed is None:
            return "fail"
        command, on_message = self._handled.get(sub_id) or (_named(sub_id), _nothing)
        try:
            goes_on = self._failed(command, on_message, command.ack_type, error)
        except Exception as raised:  # of any kind: it is the application's
            if self._report is None:
                raise
            self._report(raised)
            return "retry"
        return "drop" if goes_on else "retry"

    @override
    def add(self, entry: Entry) -> None:
        super().add(entry)
        self._active.add(entry.sub_id)
        self._waiting.discard(entry.sub_id)

    @override
    def remove(self, sub_id: str) -> None:
        super().remove(sub_id)
        self._active.discard(sub_id)
        self._waiting.discard(sub_id)
        self._handled.pop(sub_id, None)

    @override
    def clear(self) -> None:
        super().clear()
        for each in (self._active, self._waiting, self._handled):
            each.clear()


def _resumed(client: Subscriber, command: NativeCommand) -> NativeCommand:
    """A command that an earlier connection had: an explicit bookmark would begin once more."""
    get_store: Callable[[], BaseBookmarkStore | None] | None = getattr(
        client, "get_bookmark_store", None
    )
    store = get_store() if get_store is not None else None
    return command if store is None else store.resumed(command)


def _named(sub_id: str) -> Command:
    """The command of a stream, of which only the id is known."""
    return Command("subscribe", sub_id=sub_id)


def _nothing(message: object) -> None:
    """The handler of a stream."""
