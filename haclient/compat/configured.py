"""The settings that an application makes before it connects, and the properties of a client.

When the application connects, the client of `haclient.blocking` is created from these settings.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Self, TypeVar, cast

import haclient.blocking
import haclient.servers.auth
from haclient.client.base import BaseClient
from haclient.compat.listeners import KINDS, Listeners, MessageHandler
from haclient.compat.messages import Message
from haclient.compat.names import advice
from haclient.compat.stores import (
    BaseBookmarkStore,
    BasePublishStore,
    bookmark_store_of,
    publish_store_of,
)
from haclient.compat.units import seconds_of
from haclient.compat.version_info import VersionInfo
from haclient.errors import DisconnectedError, HAClientError, UsageError
from haclient.events import EventListener, MessagesReceived
from haclient.facade.thread import Bridge
from haclient.facade.thread_bridge import BlockingThread, refuse_event_loop
from haclient.options import HAOptions
from haclient.protocol.identity import publisher_id
from haclient.protocol.options import Options
from haclient.session.connection_state import Heartbeat
from haclient_stores.interfaces import BookmarkStore, PublishStore

_T = TypeVar("_T")
_LOOK_AGAIN_S: Final = 0.05


class ConfiguredClient(ABC):
    """The settings, listeners and properties of a client.

    Args:
        name: The client name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._options: HAOptions = {"on_handler_error": "continue"}
        self._headers: dict[str, str] = {}
        self._authenticator: haclient.servers.auth.Authenticator | None = None
        self._publish_store: BasePublishStore | None = None
        self._bookmark_store: BaseBookmarkStore | None = None
        self._inner: haclient.blocking.BaseClient | None = None
        self._connecting = threading.Lock()  # held until a new client is open
        self._opening: haclient.blocking.BaseClient | None = None
        self._forgetting = threading.Lock()
        self._is_leaving = False  # a handler has disconnected the client, and waits for nothing
        self._auto_ack = False
        self._listeners = Listeners()

    if not TYPE_CHECKING:  # otherwise any name would pass the type checker

        def __getattr__(self, name: str) -> object:
            raise AttributeError(advice(name), name=name, obj=self)

    @abstractmethod
    def _make(
        self, publish_store: PublishStore | None, bookmark_store: BookmarkStore | None
    ) -> haclient.blocking.BaseClient:
        """A client with the current settings, not open yet."""

    def _all_options(self) -> HAOptions:
        options: HAOptions = {"on_failed_write": self._listeners.on_failed_write, **self._options}
        if self._headers:
            options["preflight_headers"] = dict(self._headers)
        return options

    def _start(self) -> haclient.blocking.BaseClient:
        """Create and open a client; if that fails, its stores are reopened at the next attempt."""
        publishes, bookmarks = self._publish_store, self._bookmark_store
        try:
            for store in self._stores:
                store.own(self)
                store.reopen()
            self._opening = inner = self._make(
                None if publishes is None else publishes.native,
                None if bookmarks is None else bookmarks.native,
            )
            # Not the option `on_event`: each event that nobody needs would cost a turn of a thread.
            bridge = inner.__bridge__
            listener = cast("EventListener", bridge.thread.wrap(self._listeners.on_event))
            bridge.inner.add_event_listener(listener, *KINDS)
            inner.open()
            if not inner.__bridge__.thread.is_running:
                raise inner.__bridge__.thread.why_cut_short("open")  # noqa: TRY301  # as if `open` had raised it
        except BaseException:
            self._close_stores()
            raise
        finally:
            self._opening = None
        for store in self._stores:
            store.connected()
        if self._listeners.of_commands:
            inner.add_event_listener(self._listeners.on_received, MessagesReceived)
        return inner

    @contextmanager
    def _alone(self, what: str, *, ends: bool = False) -> Generator[None]:
        """Wait until no other thread connects, and have others wait meanwhile.

        Args:
            what: The call, for error messages.
            ends: Whether to end the attempt of another thread.

        Raises:
            UsageError: A callback of the client that connects calls this.
        """
        while not self._connecting.acquire(timeout=_LOOK_AGAIN_S):
            opening = self._opening
            if opening is None:  # not made yet, or open at this moment
                continue
            thread = opening.__bridge__.thread
            refuse_event_loop(what, thread)
            if thread.is_in_callback:
                raise UsageError(
                    f"{what} cannot be called in a handler, since it waits for the handler to end: "
                    "call it in another thread"
                )
            if ends:
                thread.cancel()
        try:
            yield
        finally:
            self._connecting.release()

    @property
    def _stores(self) -> list[BasePublishStore | BaseBookmarkStore]:
        return [each for each in (self._publish_store, self._bookmark_store) if each is not None]

    def _close_stores(self) -> None:
        """Release files and locks; `_start` reopens the stores."""
        with ExitStack() as closing:  # both, even if the first one cannot be synced
            for store in self._stores:
                closing.callback(store.close_for, self)

    def _release(self, store: BasePublishStore | BaseBookmarkStore | None) -> None:
        """Close a store that is replaced, unless the application has made it."""
        if store is not None and store.is_owned_by(self):
            store.close_for(self)

    @property
    def _open(self) -> haclient.blocking.BaseClient:
        if self._is_leaving or (inner := self._inner) is None:
            raise DisconnectedError(f"not connected: call {self._connects_by} first")
        return inner

    _connects_by = "connect and logon"

    def _forget_ended(self) -> None:
        """Drop a client that has ended, such as one that gave up: another one may follow."""
        inner = self._inner
        if inner is None:
            return
        thread = inner.__bridge__.thread
        if thread.is_running and not thread.is_in_callback and self._has_stopped(inner):
            thread.cancel()  # it may be shutting down
            thread.join()
        if thread.is_running:
            return
        self._forget(inner, self._close_stores)

    def _forget(
        self, inner: haclient.blocking.BaseClient, release_stores: Callable[[], None]
    ) -> None:
        """Drop a client whose thread has ended."""
        with self._forgetting:
            if self._inner is inner:  # no other thread has done this
                if not inner.__bridge__.thread.is_forked:  # there the files are those of the parent
                    release_stores()
                self._inner = None  # the next client may use the stores now
                self._is_leaving = False

    def _pause_stores(self) -> None:
        with ExitStack() as pausing:  # both, even if the first one cannot be synced
            for store in self._stores:
                pausing.callback(store.pause_for, self)

    def _has_stopped(self, inner: haclient.blocking.BaseClient) -> bool:
        """Whether the client will not connect any more."""
        refuse_event_loop("connecting", inner.__bridge__.thread)
        try:
            return self._is_leaving or not inner.health().is_alive
        except HAClientError:  # the client ends at this moment
            return True

    # -- what is set before connecting ----------------------------------------------

    def _check_not_open(self, what: str) -> None:
        self._forget_ended()
        if self._inner is not None or self._connecting.locked():
            raise UsageError(f"{what} comes before {self._connects_by}")

    def set_heartbeat(self, interval: float, timeout: float | None = None) -> None:
        """Send heartbeats. Both times are seconds, as in the official client.

        Args:
            interval: Seconds between two heartbeats; 0 for none.
            timeout: Silence in seconds after which the server is considered dead; two intervals by
                default.

        Raises:
            UsageError: A time is invalid, or an `HAClient` is connected.
        """
        heartbeat = Heartbeat(interval, idle_limit=timeout) if interval else None
        if isinstance(self._inner, haclient.blocking.Client):
            self._inner.set_heartbeat(heartbeat)
        else:
            self._check_not_open("set_heartbeat")
        self._options["heartbeat"] = heartbeat

    def set_publish_store(self, store: BasePublishStore | str) -> None:
        """Keep publishes until they are persisted; before connecting.

        Args:
            store: One of this module's publish stores, or the name of the files of one.

        Raises:
            UsageError: It is not a publish store, or the client is connected.
        """
        self._check_not_open("set_publish_store")
        self._release(self._publish_store)  # first: it may have the same files
        self._publish_store = made = publish_store_of(store)
        if isinstance(store, str):
            made.own(self)

    def get_publish_store(self) -> BasePublishStore | None:
        """The publish store; `None` without one."""
        return self._publish_store

    def set_bookmark_store(self, store: BaseBookmarkStore | str) -> None:
        """Record which messages subscriptions have finished; before connecting.

        Args:
            store: One of this module's bookmark stores, or the name of the file of one.

        Raises:
            UsageError: It is not a bookmark store, or the client is connected.
        """
        self._check_not_open("set_bookmark_store")
        self._release(self._bookmark_store)  # first: it may have the same file
        self._bookmark_store = made = bookmark_store_of(store)
        if isinstance(store, str):
            made.own(self)

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
        """Set the text that the server's administration shows of this client; before connecting."""
        self._check_not_open("set_logon_correlation_data")
        self._options["logon_correlation_id"] = data

    def get_logon_correlation_data(self) -> str:
        """The text that the server's administration shows for this client."""
        return self._options.get("logon_correlation_id", "")

    def set_transport_filter(self, transport_filter: Callable[[bytes, int], object] | None) -> None:
        """Show each header that is sent or received; before connecting.

        Args:
            transport_filter: Gets the header, without the body and with the password masked, and 0
                for what is sent or 1 for what is received. It changes nothing. It runs in the
                thread of the client, so it must be quick and must not use the client; when it
                raises, the exception listener gets that, and it is called no more. `None` for none.

        Raises:
            UsageError: The client is connected.
        """
        self._check_not_open("set_transport_filter")
        if transport_filter is None:
            self._options.pop("wire_tap", None)
            return

        def tap(direction: str, header: str) -> None:
            transport_filter(header.encode(), int(direction == "<"))

        self._options["wire_tap"] = tap

    def add_http_preflight_header(self, name: str, value: str) -> None:
        """Begin each connection with an HTTP upgrade that has this header; before connecting."""
        self._check_not_open("add_http_preflight_header")
        self._headers[name] = value

    def clear_http_preflight_headers(self) -> None:
        """Remove the headers of the HTTP upgrade; before connecting."""
        self._check_not_open("clear_http_preflight_headers")
        self._headers.clear()

    def set_auto_ack(self, auto_ack: bool) -> None:  # noqa: FBT001  # the official signature
        """Acknowledge a queue's message when its handler returns, or at the next iteration."""
        self._auto_ack = auto_ack

    def get_auto_ack(self) -> bool:
        """Whether messages of queues are acknowledged automatically."""
        return self._auto_ack

    def set_ack_batch_size(self, count: int) -> None:
        """Set how many acknowledgements are sent together; before connecting."""
        self._check_not_open("set_ack_batch_size")
        self._options["ack_batch_size"] = count

    def get_ack_batch_size(self) -> int | None:
        """How many acknowledgements are sent together; `None` for a third of the backlog."""
        return self._options.get("ack_batch_size")

    def set_ack_timeout(self, timeout: float) -> None:
        """Set how many milliseconds an acknowledgement waits for others; before connecting."""
        self._check_not_open("set_ack_timeout")
        if math.isinf(seconds_of(timeout)) and timeout:
            raise UsageError("an acknowledgement cannot wait for ever: give ack_timeout an end")
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
        """Call `handler` with each message of one command, in addition to other receivers.

        Args:
            command: Such as `publish`, `sow`, `oof`, `ack` or `heartbeat`.
            handler: Takes a message; `None` for no more calls.

        Raises:
            UsageError: There is no such command.
        """
        listeners, inner = self._listeners, self._inner
        had_any = bool(listeners.of_commands)
        listeners.set_of_command(command, handler)
        if inner is None or had_any == bool(listeners.of_commands):
            return
        if had_any:
            inner.remove_event_listener(listeners.on_received)
        else:
            inner.add_event_listener(listeners.on_received, MessagesReceived)

    def add_connection_state_listener(self, listener: Callable[[int], object]) -> None:
        """Call `listener` with the number of each state; see `ConnectionStateListener`."""
        self._listeners.add_state(listener)

    def remove_connection_state_listener(self, listener: Callable[[int], object]) -> None:
        """Stop calling `listener`."""
        self._listeners.remove_state(listener)

    def clear_connection_state_listeners(self) -> None:
        """Stop calling all state listeners."""
        self._listeners.clear_states()

    # -- properties --------------------------------------------------------------------

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
        """The server's version as text; empty before the first logon."""
        return self.get_connection_info().get("server_version", "")

    def get_server_version_info(self) -> VersionInfo:
        """The server's version to compare; lower than any other before the first logon."""
        return VersionInfo(self.get_server_version())

    def get_connection_info(self) -> dict[str, str]:
        """Facts about the connection; empty without one."""
        return {} if self._inner is None else dict(self._inner.connection_info)

    def get_unpersisted_count(self) -> int:
        """Publishes in the store that are not persisted yet; 0 without a store."""
        return 0 if self._publish_store is None else self._publish_store.unpersisted_count()

    # -- for stores and adapters ----------------------------------------------------------------

    def in_thread(
        self, function: Callable[[], _T], what: str, *, otherwise: Callable[[], _T]
    ) -> _T:
        """Call a function in the client's thread, where its stores may be used.

        Args:
            function: A plain function that does not wait.
            what: The call, for error messages.
            otherwise: Called instead, in this thread, if the client's thread does not run.

        Returns:
            The return value of the function.
        """
        opened = self._inner
        inner = opened or self._opening
        if inner is None or not inner.__bridge__.thread.is_running:
            return otherwise()
        thread = inner.__bridge__.thread
        try:
            refuse_event_loop(what, thread)
        except UsageError:
            return function()  # in this thread, where the numbers of a publish store can be read
        is_called = False

        def call() -> _T:
            nonlocal is_called
            is_called = True
            return function()

        try:
            return thread.now(call, what)
        except BaseException as error:
            if is_called or opened is None or not thread.is_of_end(error):
                raise
            thread.join()  # it is about to end
            return otherwise()

    def bridge(self) -> Bridge[BaseClient, BlockingThread]:
        """Calls the client of `haclient` in its thread; for adapters.

        Raises:
            DisconnectedError: It was not connected.
        """
        return self._open.__bridge__

    def report(self, error: Exception) -> None:
        """Give an exception of a callback of a store to the exception listener."""
        self._listeners.on_exception(error)

    def wait_empty(self, timeout_s: float) -> None:
        """Wait until everything is persisted.

        Args:
            timeout_s: Seconds.

        Raises:
            TimedOut: It took longer.
        """
        self._open.publish_flush(timeout=timeout_s)
