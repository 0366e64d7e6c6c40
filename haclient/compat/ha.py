"""The client that stays connected, with the official names."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final, Self

from typing_extensions import override

import haclient.blocking
from haclient.compat.client import Client
from haclient.compat.listeners import MessageHandler
from haclient.compat.policies import ReplaceableDelayStrategy, chooser_of, strategy_of
from haclient.compat.stores import (
    BaseBookmarkStore,
    BasePublishStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
)
from haclient.compat.subscription_manager import MemorySubscriptionManager
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.errors import DisconnectedError, UsageError
from haclient.facade.thread_bridge import refuse_event_loop
from haclient.options import TIMEOUT_S, HAOptions
from haclient.protocol.commands import Command as NativeCommand
from haclient.protocol.options import Options
from haclient.servers.delay import FixedDelayStrategy
from haclient.subscription_manager import SubscriptionManager
from haclient_stores.interfaces import BookmarkStore, PublishStore

_MANAGER: Final = ("add", "remove", "clear", "entries")


class HAClient(Client):
    """An AMPS client that stays connected to one of several servers.

    Args:
        name: Identifies this client and its publishes; the same in every run, unlike all others.
        publish_store: Keeps publishes, or the name of the files of such a store; in memory by
            default.
        bookmark_store: Remembers what was finished, or the name of the file of such a store; in
            memory by default.
        no_store: Whether there are no stores where none are given.

    Raises:
        UsageError: An argument is not a store.
        StoreLocked: The files of a store are in use.
    """

    _connects_by = "connect_and_logon"

    def __init__(
        self,
        name: str,
        publish_store: BasePublishStore | str | None = None,
        bookmark_store: BaseBookmarkStore | str | None = None,
        no_store: bool = False,  # noqa: FBT001, FBT002  # the official signature
    ) -> None:
        super().__init__(name)
        self._chooser: object = None
        self._strategy: object = None
        self._delay = ReplaceableDelayStrategy()
        self._manager: SubscriptionManager = MemorySubscriptionManager()
        if publish_store is not None or not no_store:
            self.set_publish_store(MemoryPublishStore() if publish_store is None else publish_store)
        if bookmark_store is not None or not no_store:
            try:
                self.set_bookmark_store(
                    MemoryBookmarkStore() if bookmark_store is None else bookmark_store
                )
            except BaseException:  # nobody will close this client
                self._release(self._publish_store)
                raise

    @classmethod
    def create_memory_backed(cls, name: str) -> Self:
        """A client with both stores in memory."""
        return cls(name)

    @classmethod
    def create_file_backed(cls, name: str, publish_log_name: str, subscribe_log_name: str) -> Self:
        """A client with both stores in files.

        Args:
            name: The client name.
            publish_log_name: The directory of the publish store.
            subscribe_log_name: The file of the bookmark store.

        Returns:
            The client, not yet connected.
        """
        return cls(name, publish_log_name, subscribe_log_name)

    # -- life ---------------------------------------------------------------------

    def connect_and_logon(self) -> None:
        """Connect to one of the chooser's servers, log on, and stay connected from then on.

        What `subscribe` of the subscription manager was given is placed then.

        Raises:
            UsageError: There is no server chooser, or the client is connected, maybe by another
                thread, for which this waits.
            DisconnectedError: Another thread has closed the client meanwhile.
            ReconnectGaveUp: No server could be reached within the limits.
            AuthenticationError: Every server refused user or password.
            CommandError: The server refused a subscription of the manager; the client stays
                connected.
        """
        self._refuse_connected()  # before waiting for a thread that waits for this handler
        with self._alone("connect_and_logon"):
            self._refuse_connected()
            if "server_chooser" not in self._options:
                raise UsageError("connect_and_logon needs servers: call set_server_chooser first")
            self._delay.reset()  # it may have state of an earlier connection with another clock
            manager = self._manager
            if isinstance(manager, MemorySubscriptionManager):
                manager.connecting(self.report)
            self._inner = self._start()
        if isinstance(manager, MemorySubscriptionManager):
            manager.connected(self)

    def _refuse_connected(self) -> None:
        self._forget_ended()
        if self._inner is not None:
            raise UsageError("the client is connected already: disconnect it first")

    @override
    def execute_async(
        self, command: NativeCommand, on_message: MessageHandler | None = None
    ) -> str:
        sub_id = super().execute_async(command, on_message)
        if on_message is not None and isinstance(self._manager, MemorySubscriptionManager):
            self._manager.note_handler(sub_id, command, on_message)
        return sub_id

    @override
    def connect(self, uri: str) -> None:
        """Refused: the server chooser decides where to connect."""
        raise UsageError(
            "an HAClient connects by itself: add the server to its chooser, then connect_and_logon"
        )

    @override
    def logon(
        self,
        timeout: float = 0,
        authenticator: object = None,
        options: Options | str | None = None,
    ) -> None:
        """Refused: `connect_and_logon` logs on."""
        raise UsageError("an HAClient logs on by itself: call connect_and_logon")

    @override
    def disconnect(self) -> None:
        """Close connection and stores, at once; see `connect_and_logon` for another connection.

        In a handler it closes the connection, and the stores are closed when the handler returns.
        A client that has lost its connection for good is closed without an error. If another thread
        is connecting, that ends with a `DisconnectedError`.
        """
        inner = self._inner
        if inner is None:
            if (opening := self._opening) is not None:
                opening.__bridge__.thread.cancel()
            return
        thread = inner.__bridge__.thread
        thread.check_process()
        refuse_event_loop("disconnect", thread)
        is_handler = thread.is_in_callback
        self._is_leaving = self._is_leaving or is_handler
        try:
            inner.disconnect()
        except BaseException as error:
            if not (thread.is_of_end(error) or isinstance(error, DisconnectedError)):
                raise
        if is_handler:
            thread.cancel()
            return
        with suppress(DisconnectedError):  # by which it had ended before; it was logged then
            self.close()

    @override
    def _make(
        self, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> haclient.blocking.BaseClient:
        return haclient.blocking.HAClient(
            self._name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            **self._all_options(),
        )

    @override
    def _all_options(self) -> HAOptions:
        options = super()._all_options()
        options["delay_strategy"] = self._delay
        options["subscription_manager"] = self._manager
        if isinstance(self._manager, MemorySubscriptionManager):
            options["on_resubscribe_failure"] = self._manager.answer
            limit_s = self._manager.timeout_s
            if limit_s is not None and math.isfinite(limit_s):
                options["connect_timeout"] = max(limit_s, options.get("connect_timeout", TIMEOUT_S))
        store = self._publish_store
        if store is not None and store.error_on_publish_gap is False:
            options["on_publish_gap"] = "continue"
        return options

    def disconnected(self) -> bool:
        """Whether there is no connection that has logged on right now."""
        inner = self._inner
        return inner is None or not inner.state.is_logged_on

    # -- policies -------------------------------------------------------------------

    def set_server_chooser(self, chooser: object) -> None:
        """Choose the servers; before connecting.

        Args:
            chooser: A chooser, with the official names or those of `haclient`.

        Raises:
            UsageError: It is not a server chooser, or the client is connected.
        """
        self._check_not_open("set_server_chooser")
        self._options["server_chooser"] = chooser_of(chooser)
        self._chooser = chooser

    def get_server_chooser(self) -> object:
        """The server chooser that was set; `None` without one."""
        return self._chooser

    def set_reconnect_delay_strategy(self, strategy: object) -> None:
        """Decide the waits between attempts; before connecting.

        Args:
            strategy: A strategy, with the official names or those of `haclient`.

        Raises:
            UsageError: It is not a delay strategy, or the client is connected.
        """
        self._check_not_open("set_reconnect_delay_strategy")
        self._delay.inner = strategy_of(strategy)
        self._strategy = strategy

    def get_reconnect_delay_strategy(self) -> object:
        """The delay strategy that was set; `None` for the default."""
        return self._strategy

    def set_reconnect_delay(self, delay: float) -> None:
        """Wait the same time before each further attempt at a server.

        Args:
            delay: Milliseconds.

        Raises:
            UsageError: The delay is negative or not a number.
        """
        seconds_of(delay, "delay")
        self._strategy = self._delay.inner = FixedDelayStrategy(delay / 1000)

    def set_timeout(self, timeout: float) -> None:
        """Limit each step of an attempt to connect; before connecting.

        Args:
            timeout: Milliseconds.

        Raises:
            UsageError: The timeout is negative or not a number.
        """
        self._check_not_open("set_timeout")
        self._options["connect_timeout"] = seconds_of(timeout)

    def get_timeout(self) -> int:
        """Milliseconds for each step of an attempt to connect."""
        return milliseconds_of(self._options.get("connect_timeout", TIMEOUT_S))

    def set_subscription_manager(self, manager: SubscriptionManager) -> None:
        """Set the subscription manager; before connecting.

        Args:
            manager: A `MemorySubscriptionManager` of this module, or one with the methods of
                `haclient.SubscriptionManager`.

        Raises:
            UsageError: It is none, or the client is connected.
        """
        self._check_not_open("set_subscription_manager")
        missing = [name for name in _MANAGER if not callable(getattr(manager, name, None))]
        if missing:
            raise UsageError(
                f"{type(manager).__name__} is no subscription manager of haclient: it lacks "
                f"{', '.join(missing)}"
            )
        self._manager = manager

    def get_subscription_manager(self) -> SubscriptionManager:
        """The subscription manager: the one that was set, or one in memory."""
        return self._manager
