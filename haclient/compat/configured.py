"""What an application sets before it connects, and may ask at any time.

The client of `haclient.blocking` is made when the application connects, from what is set here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Self, TypeVar

import haclient.auth
import haclient.blocking
import haclient.protocol.messages
from haclient.compat.listeners import Listeners, MessageHandler
from haclient.compat.messages import Message
from haclient.compat.names import advice
from haclient.compat.stores import (
    BaseBookmarkStore,
    BasePublishStore,
    bookmark_store_of,
    publish_store_of,
)
from haclient.compat.units import seconds_of
from haclient.errors import DisconnectedError, HAClientError, UsageError
from haclient.protocol.identity import publisher_id
from haclient.protocol.options import Options
from haclient.transport.events import CommandTap
from haclient.transport.settings import HAOptions
from haclient_stores.interfaces import BookmarkStore, PublishStore

_T = TypeVar("_T")


class ConfiguredClient(ABC):
    """The settings, listeners and properties of a client.

    Args:
        name: The client name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._options: HAOptions = {"on_handler_error": "continue"}
        self._headers: dict[str, str] = {}
        self._authenticator: haclient.auth.Authenticator | None = None
        self._publish_store: BasePublishStore | None = None
        self._bookmark_store: BaseBookmarkStore | None = None
        self._inner: haclient.blocking.Client | None = None
        self._was_closed = False
        self._auto_ack = False
        self._listeners = Listeners()
        self._on_command: dict[str, Callable[[haclient.protocol.messages.Message], object]] = {}

    if not TYPE_CHECKING:  # else each name would pass the type checker

        def __getattr__(self, name: str) -> object:
            raise AttributeError(advice(name), name=name, obj=self)

    @abstractmethod
    def _make(
        self, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> haclient.blocking.Client:
        """A client with what is set, which is not open yet."""

    def _all_options(self) -> HAOptions:
        listeners = self._listeners
        options: HAOptions = {
            "on_exception": listeners.on_exception,
            "on_disconnect": listeners.on_disconnect,
            "on_failed_write": listeners.on_failed_write,
            "on_duplicate": listeners.on_duplicate,
            "on_last_chance": listeners.on_last_chance,
            "on_state": listeners.on_state,
        }
        options.update(self._options)
        if self._headers:
            options["preflight_headers"] = dict(self._headers)
        return options

    def _start(self) -> haclient.blocking.Client:
        """Make a client and open it; its stores are opened again for the next try if it fails."""
        publishes, bookmarks = self._publish_store, self._bookmark_store
        stores = [store for store in (publishes, bookmarks) if store is not None]
        for store in stores:
            store.own(self)
            if self._was_closed:
                store.open_again()
        self._was_closed = True  # until it is open: a client that cannot be made closes them
        inner = self._make(
            None if publishes is None else publishes.native,
            None if bookmarks is None else bookmarks.native,
        )
        inner.open()
        self._was_closed = False
        for store in stores:
            store.connected()
        for command, listener in self._on_command.items():
            inner.add_command_listener(command, listener)
        return inner

    @property
    def _open(self) -> haclient.blocking.Client:
        if self._inner is None:
            raise DisconnectedError(f"not connected: call {self._connects_by} first")
        return self._inner

    _connects_by = "connect and logon"

    def _forget_ended(self) -> None:
        """A client that has ended, such as one that gave up, may be followed by another one."""
        if self._inner is None:
            return
        thread = self._inner.__bridge__.thread
        if thread.is_running and get_ident() not in thread.callback_threads and self._has_stopped():
            thread.stop(drains=False)  # its end may be under way
            thread.join()
        if not thread.is_running:
            self._inner = None
            self._was_closed = True

    def _has_stopped(self) -> bool:
        """Whether the client will not connect any more."""
        haclient.blocking.refuse_event_loop("connecting", self._open.__bridge__.thread)
        try:
            return not self._open.health().is_alive
        except HAClientError:  # it ends at this moment
            return True

    # -- what is set before connecting ----------------------------------------------

    def _check_not_open(self, what: str) -> None:
        self._forget_ended()
        if self._inner is not None:
            raise UsageError(f"{what} comes before {self._connects_by}")

    def set_heartbeat(self, interval: float, timeout: float | None = None) -> None:
        """Send heartbeats. Both times are seconds, as in the official client.

        Args:
            interval: Seconds between two heartbeats; 0 for none.
            timeout: Silence in seconds after which the server is considered dead; two intervals by
                default.

        Raises:
            UsageError: A limit can never work, or an `HAClient` is connected.
        """
        if self._inner is not None:
            self._inner.set_heartbeat(interval or None, timeout)
        self._options["heartbeat"] = interval or None
        self._options["idle_limit"] = timeout

    def set_publish_store(self, store: BasePublishStore | str) -> None:
        """Keep publishes until they are persisted; before connecting.

        Args:
            store: One of this module's publish stores, or the name of the files of one.

        Raises:
            UsageError: It is neither, or the client is connected.
        """
        self._check_not_open("set_publish_store")
        self._publish_store = publish_store_of(store)

    def get_publish_store(self) -> BasePublishStore | None:
        """The publish store; `None` without one."""
        return self._publish_store

    def set_bookmark_store(self, store: BaseBookmarkStore | str) -> None:
        """Remember what subscriptions have finished with; before connecting.

        Args:
            store: One of this module's bookmark stores, or the name of the file of one.

        Raises:
            UsageError: It is neither, or the client is connected.
        """
        self._check_not_open("set_bookmark_store")
        self._bookmark_store = bookmark_store_of(store)

    def get_bookmark_store(self) -> BaseBookmarkStore | None:
        """The bookmark store; `None` without one."""
        return self._bookmark_store

    def set_logon_options(self, options: Options | str) -> None:
        """Set the options of each logon; before connecting."""
        self._check_not_open("set_logon_options")
        self._options["logon_options"] = options

    def get_logon_options(self) -> str:
        """The options of each logon that were set; empty for the defaults."""
        return str(self._options.get("logon_options", ""))

    def set_logon_correlation_data(self, data: str) -> None:
        """Set what the server's administration shows of this client; before connecting."""
        self._check_not_open("set_logon_correlation_data")
        self._options["logon_correlation_id"] = data

    def get_logon_correlation_data(self) -> str:
        """What the server's administration shows of this client."""
        return self._options.get("logon_correlation_id", "")

    def add_http_preflight_header(self, name: str, value: str) -> None:
        """Begin each connection with an HTTP upgrade that has this header; before connecting."""
        self._check_not_open("add_http_preflight_header")
        self._headers[name] = value

    def clear_http_preflight_headers(self) -> None:
        """Forget the headers of the HTTP upgrade; before connecting."""
        self._check_not_open("clear_http_preflight_headers")
        self._headers.clear()

    def set_auto_ack(self, auto_ack: bool) -> None:  # noqa: FBT001  # the official signature
        """Acknowledge a queue's message when its handler returns or the stream's next is taken."""
        self._auto_ack = auto_ack

    def get_auto_ack(self) -> bool:
        """Whether messages of queues are acknowledged automatically."""
        return self._auto_ack

    def set_ack_batch_size(self, count: int) -> None:
        """Send so many acknowledgements together; before connecting."""
        self._check_not_open("set_ack_batch_size")
        self._options["ack_batch_size"] = count

    def get_ack_batch_size(self) -> int | None:
        """How many acknowledgements are sent together; `None` for a third of the backlog."""
        return self._options.get("ack_batch_size")

    def set_ack_timeout(self, timeout: float) -> None:
        """Let an acknowledgement wait for others for so many milliseconds; before connecting."""
        self._check_not_open("set_ack_timeout")
        seconds_of(timeout)
        self._options["ack_timeout"] = timeout / 1000

    def get_ack_timeout(self) -> int | None:
        """How many milliseconds an acknowledgement waits; `None` for the default."""
        seconds = self._options.get("ack_timeout")
        return None if seconds is None else round(seconds * 1000)

    # -- listeners --------------------------------------------------------------------

    def set_exception_listener(self, listener: Callable[[Exception], object] | None) -> None:
        """Call `listener` with each exception of a handler, listener or background task."""
        self._listeners.exception = listener

    def set_disconnect_handler(self, handler: Callable[[Self], object] | None) -> None:
        """Call `handler` with this client when its connection is lost.

        On a `Client` it may connect and log on again. An `HAClient` reconnects by itself, before
        or after the call.
        """
        self._listeners.disconnect = None if handler is None else partial(handler, self)

    def set_failed_write_handler(self, handler: Callable[[Message, str], object] | None) -> None:
        """Call `handler` with each publish that the server refused, and the reason."""
        self._listeners.failed_write = handler

    def set_duplicate_message_handler(self, handler: MessageHandler | None) -> None:
        """Call `handler` with each message that the bookmark store filtered out."""
        self._listeners.duplicate = handler

    def set_last_chance_message_handler(self, handler: MessageHandler | None) -> None:
        """Call `handler` with each message that belongs to no subscription."""
        self._listeners.last_chance = handler

    def set_unhandled_message_handler(self, handler: MessageHandler | None) -> None:
        """The same as `set_last_chance_message_handler`."""
        self._listeners.last_chance = handler

    def set_global_command_type_message_handler(
        self, command: str, handler: MessageHandler | None
    ) -> None:
        """Call `handler` with each message of one command, whoever else gets it.

        Args:
            command: Such as `publish`, `sow`, `oof`, `ack` or `heartbeat`.
            handler: Takes a message; `None` for no more calls.

        Raises:
            UsageError: There is no such command.
        """
        CommandTap.event_of(command)  # refuses what is no command
        before = self._on_command.pop(command, None)
        if before is not None and self._inner is not None:
            self._inner.remove_command_listener(command, before)
        if handler is None:
            return

        def listener(native: haclient.protocol.messages.Message) -> None:
            self._listeners.call(handler, Message(native))

        if self._inner is not None:
            self._inner.add_command_listener(command, listener)
        self._on_command[command] = listener

    def add_connection_state_listener(self, listener: Callable[[int], object]) -> None:
        """Call `listener` with the number of each state; see `ConnectionStateListener`."""
        self._listeners.add_state(listener)

    def remove_connection_state_listener(self, listener: Callable[[int], object]) -> None:
        """Call it no more."""
        self._listeners.remove_state(listener)

    def clear_connection_state_listeners(self) -> None:
        """Call none of them any more."""
        self._listeners.clear_states()

    # -- what can be asked ---------------------------------------------------------------

    def name(self) -> str:
        """The client name."""
        return self._name

    get_name = name

    def get_name_hash(self) -> int:
        """The hash of the client name: the publisher id in the bookmarks of its publishes."""
        return publisher_id(self._name)

    def get_uri(self) -> str:
        """The server of the connection, without a password; empty without one."""
        return "" if self._inner is None else str(self._inner.uri)

    def get_server_version(self) -> str:
        """The server's version as it writes it; empty before the first logon."""
        return "" if self._inner is None else self._inner.server_version

    def get_connection_info(self) -> dict[str, str]:
        """What is known of the connection; empty without one."""
        return {} if self._inner is None else dict(self._inner.connection_info)

    def get_unpersisted_count(self) -> int:
        """Publishes in the store that are not persisted yet; 0 without a store."""
        return 0 if self._publish_store is None else self._publish_store.unpersisted_count()

    # -- for stores -----------------------------------------------------------------------------

    def in_thread(self, function: Callable[[], _T], what: str) -> _T:
        """Call a function in the client's thread, where its stores may be used.

        Args:
            function: A plain function that does not wait.
            what: The call, for error messages.

        Returns:
            What it returns.
        """
        if self._inner is None:
            return function()
        return self._inner.__bridge__.read(lambda _: function(), what)

    def wait_empty(self, timeout_s: float) -> None:
        """Wait until everything is persisted.

        Args:
            timeout_s: Seconds.

        Raises:
            TimedOut: It took longer.
        """
        self._open.wait_empty(timeout=timeout_s)
