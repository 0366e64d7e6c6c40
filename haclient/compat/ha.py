"""The client that stays connected, with the official names."""

from __future__ import annotations

from typing import Self

from typing_extensions import override

import haclient.blocking
from haclient.compat.client import Client
from haclient.compat.policies import chooser_of, strategy_of
from haclient.compat.stores import (
    BaseBookmarkStore,
    BasePublishStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
)
from haclient.compat.units import milliseconds_of, seconds_of
from haclient.delay import FixedDelayStrategy
from haclient.errors import UsageError
from haclient.protocol.options import Options
from haclient.subscription_manager import SubscriptionManager
from haclient.transport.settings import TIMEOUT_S
from haclient_stores.interfaces import BookmarkStore, PublishStore


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
        UsageError: A store is none.
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
        if publish_store is not None or not no_store:
            self.set_publish_store(MemoryPublishStore() if publish_store is None else publish_store)
        if bookmark_store is not None or not no_store:
            self.set_bookmark_store(
                MemoryBookmarkStore() if bookmark_store is None else bookmark_store
            )

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

        Raises:
            UsageError: There is no server chooser, or the client is connected.
            ReconnectGaveUp: No server could be reached within the limits.
            AuthenticationError: Every server refused user or password.
        """
        self._check_not_open("connect_and_logon")
        if "server_chooser" not in self._options:
            raise UsageError("connect_and_logon needs servers: call set_server_chooser first")
        strategy = self._options.get("delay_strategy")
        if strategy is not None:
            strategy.reset()  # of an earlier connection, which has had another clock
        self._inner = self._start()

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
        """Close connection and stores, at once; see `connect_and_logon` for another connection."""
        inner = self._inner
        if inner is not None:
            inner.disconnect()
            self.close()

    @override
    def _make(
        self, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> haclient.blocking.Client:
        return haclient.blocking.HAClient(
            self._name,
            publish_store=publish_store,
            bookmark_store=bookmark_store,
            **self._all_options(),
        )

    def disconnected(self) -> bool:
        """Whether there is no connection that has logged on right now."""
        inner = self._inner
        return not isinstance(inner, haclient.blocking.HAClient) or inner.disconnected

    # -- policies -------------------------------------------------------------------

    def set_server_chooser(self, chooser: object) -> None:
        """Choose the servers; before connecting.

        Args:
            chooser: A chooser, with the official names or those of `haclient`.

        Raises:
            UsageError: It is none, or the client is connected.
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
            UsageError: It is none, or the client is connected.
        """
        self._check_not_open("set_reconnect_delay_strategy")
        self._options["delay_strategy"] = strategy_of(strategy)
        self._strategy = strategy

    def get_reconnect_delay_strategy(self) -> object:
        """The delay strategy that was set; `None` for the default."""
        return self._strategy

    def set_reconnect_delay(self, delay: float) -> None:
        """Wait the same time before each further attempt at a server.

        Args:
            delay: Milliseconds.

        Raises:
            UsageError: It is negative or no number.
        """
        seconds_of(delay, "delay")
        inner = self._inner
        if isinstance(inner, haclient.blocking.HAClient):
            inner.set_reconnect_delay(delay / 1000)
        self._strategy = self._options["delay_strategy"] = FixedDelayStrategy(delay / 1000)

    def set_timeout(self, timeout: float) -> None:
        """Limit each step of an attempt to connect; before connecting.

        Args:
            timeout: Milliseconds.

        Raises:
            UsageError: It is negative or no number.
        """
        self._check_not_open("set_timeout")
        self._options["connect_timeout"] = seconds_of(timeout)

    def get_timeout(self) -> int:
        """Milliseconds for each step of an attempt to connect."""
        return milliseconds_of(self._options.get("connect_timeout", TIMEOUT_S))

    def set_subscription_manager(self, manager: SubscriptionManager) -> None:
        """Remember subscriptions elsewhere; before connecting.

        Args:
            manager: One with the methods of `haclient.SubscriptionManager`.
        """
        self._check_not_open("set_subscription_manager")
        self._options["subscription_manager"] = manager

    def get_subscription_manager(self) -> SubscriptionManager | None:
        """The subscription manager that was set; `None` for the one in memory."""
        return self._options.get("subscription_manager")

    def set_retry_on_disconnect(self, retry: bool) -> None:  # noqa: FBT001  # the official signature
        """Whether a publish without a store waits for the next connection; before connecting."""
        self._check_not_open("set_retry_on_disconnect")
        self._options["retry_on_disconnect"] = retry

    def get_retry_on_disconnect(self) -> bool:
        """Whether a publish without a store waits for the next connection."""
        return self._options.get("retry_on_disconnect", False)
