"""The client: one connection to one server, with stores (seed S4; rows CC1-CC18).

`Client` does each step apart: connect, logon, work, disconnect. It does not reconnect: after a loss
its streams end, what waits for an ack raises, and `connect` may be called again; what the stores
keep is then replayed and resumed. `HAClient` does all of that by itself.

The client owns a nursery, opened by `async with`; leaving the block drains, closes the connection
and the stores, and leaves no task behind. An error of a background task (a handler that raised, a
bookmark store that is full) cancels the block and leaves it as itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

import trio
from typing_extensions import Self

from haclient.auth import Authenticator, DefaultAuthenticator
from haclient.errors import DisconnectedError, HAClientError, TimedOut, UsageError
from haclient.protocol.codec import encode_frame, publish_head
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.protocol.uri import Uri
from haclient.session.acks import PendingCommand
from haclient.session.heartbeat import Heartbeat
from haclient.session.logon import LoggedOn
from haclient.session.machine import Received, Session
from haclient.session.states import ConnectionState
from haclient.session.subscriptions import Subscription
from haclient.streams import MessageStream
from haclient.transport.commander import Commander, Fields, lost_error
from haclient.transport.connection import Connection, would_deadlock
from haclient.transport.dial import dial
from haclient.transport.dispatch import DEFAULT_CAP_BYTES, Delivery
from haclient.transport.events import Events
from haclient.transport.exceptions import open_nursery
from haclient.transport.handling import Handler, HandlerErrorPolicy, check_policy, serve
from haclient.transport.log_on import check_client_name, log_on
from haclient.transport.publisher import DEFAULT_MAX_UNPERSISTED_BYTES, Payload, Publisher
from haclient_stores.bookmarks import MOST_RECENT, StartPoint
from haclient_stores.interfaces import BookmarkStore, PublishStore

__all__ = ["Client"]

_TIMEOUT_S: Final = 10.0  # how long a command may take unless the call says otherwise
_DRAIN_S: Final = 5.0  # how long leaving the block waits for what was published to be persisted
_logger = logging.getLogger(__name__)


def _clock_us() -> int:
    """Microseconds since 1970: a publisher without history numbers from here (design 5)."""
    return time.time_ns() // 1000


class Client:
    """An AMPS client for one server at a time.

    Args:
        name: Identifies this client and its publishes; the same in every run, unlike all others.
        publish_store: Keeps publishes until they are persisted. The client owns it and closes it.
        bookmark_store: Remembers what subscriptions have finished with. Owned and closed likewise.
        heartbeat: Seconds between beats; `None` for none (HB1).
        idle_limit: Silence in seconds after which the server is given up; two beats by default.
        authenticator: Turns the URI's password into what is sent.
        logon_options: Options of the logon, such as `ack_conflation=100ms` (CC4).
        on_failed_write: Called with the message and the reason when a publish is refused (PS6).
        on_duplicate: Called with each message that a bookmark store filtered out (BS12).
        on_last_chance: Called with each message that belongs to no subscription.
        on_disconnect: Called with the reason when the connection is lost.
        on_handler_error: What a raising handler does: leave the block (`"raise"`), or see
            `haclient.transport.handling`.
        max_queued_bytes: How much a subscription may hold before reading stops (MS5).
        max_unpersisted_bytes: Where `publish` begins to wait for acks.
        clock_us: Microseconds since 1970, asked once per logon.

    Raises:
        UsageError: The name or a limit can never work.
    """

    def __init__(  # noqa: PLR0913  # the extension points of seed S4, all by keyword
        self,
        name: str,
        *,
        publish_store: PublishStore | None = None,
        bookmark_store: BookmarkStore | None = None,
        heartbeat: float | None = None,
        idle_limit: float | None = None,
        authenticator: Authenticator | None = None,
        logon_options: str | Options = "",
        logon_correlation_id: str = "",
        on_failed_write: Callable[[Message, str], object] | None = None,
        on_duplicate: Callable[[Message], object] | None = None,
        on_last_chance: Callable[[Message], object] | None = None,
        on_disconnect: Callable[[HAClientError], object] | None = None,
        on_handler_error: HandlerErrorPolicy = "raise",
        max_queued_bytes: int = DEFAULT_CAP_BYTES,
        max_unpersisted_bytes: int = DEFAULT_MAX_UNPERSISTED_BYTES,
        clock_us: Callable[[], int] = _clock_us,
    ) -> None:
        check_policy(on_handler_error)
        self.name = check_client_name(name)
        self._heartbeat = None if heartbeat is None else Heartbeat(heartbeat, idle_limit)
        self._authenticator = authenticator or DefaultAuthenticator()
        self._logon_options = str(logon_options)
        self._logon_correlation_id = logon_correlation_id
        self._on_handler_error = on_handler_error
        self._max_queued_bytes = max_queued_bytes
        self._clock_us = clock_us
        self._session = Session()
        self._commander = Commander(self._session, bookmark_store)
        self._publisher = Publisher(
            publish_store,
            max_unpersisted_bytes=max_unpersisted_bytes,
            would_deadlock=self._refuse_deadlock,
        )
        self._events = Events(
            failed_write=on_failed_write,
            duplicate=on_duplicate,
            last_chance=on_last_chance,
            disconnect=on_disconnect,
        )
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._connection: Connection | None = None
        self._closed = trio.Event()
        self._uri: Uri | None = None
        self._state = ConnectionState.DISCONNECTED
        self._server: LoggedOn | None = None
        self._lost_because: HAClientError | None = None
        self._stores = [each for each in (publish_store, bookmark_store) if each is not None]
        for store in self._stores:
            store.open_for(name)

    # -- life -----------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._nursery = await self._stack.enter_async_context(open_nursery())
        self._nursery.start_soon(self._events.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                await self._drain()
        finally:
            await self._leave(kind, error, traceback)

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        nursery, self._nursery = self._nursery, None
        self._shut()
        if nursery is not None:
            nursery.cancel_scope.cancel()
        try:
            await self._stack.__aexit__(kind, error, traceback)
        finally:
            for store in self._stores:
                store.close()

    async def connect(self, uri: str | Uri, *, timeout: float | None = _TIMEOUT_S) -> None:
        """Open a connection (CC2); `logon` comes next.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: Nobody listens there.
            TimedOut: It took longer than `timeout` seconds.
        """
        nursery = self._running()
        if self._connection is not None:
            raise UsageError("this client is connected: disconnect first, or use another client")
        self._uri = Uri.parse(uri) if isinstance(uri, str) else uri
        link = await dial(self._uri, timeout=timeout)
        connection = Connection(
            link,
            self._session,
            log=self._publisher.log,
            on_received=self._received,
            events=self._events,
            hurried=self._hurried,
        )
        self._connection = self._commander.connection = connection
        self._closed = trio.Event()
        self._lost_because = None
        self._publisher.connected(connection.writer)
        self._state = ConnectionState.CONNECTED
        nursery.start_soon(self._serve, connection)

    async def logon(self, *, timeout: float | None = _TIMEOUT_S) -> None:
        """Say who we are; then trim and replay the publish store (PS7, PS8) and start the beats.

        Raises:
            AuthenticationError: The server refused user or password.
            NameInUse: The client name belongs to a connection of another user.
            PublishGap: The server lacks what was acknowledged, and the store minds.
            TimedOut: The server did not answer in time.
        """
        connection, uri = self._connection, self._uri
        if connection is None or uri is None:
            raise self._not_connected()
        if self._commander.logged_on:
            raise UsageError("this connection has logged on already")
        try:
            self._server = await log_on(
                connection,
                self._commander,
                client_name=self.name,
                uri=uri,
                authenticator=self._authenticator,
                options=self._logon_options,
                correlation_id=self._logon_correlation_id,
                timeout=timeout,
            )
            self._publisher.logged_on(self._server, self._clock_us())
        except BaseException:
            connection.close()
            raise
        self._commander.logged_on = True
        self._state = ConnectionState.LOGGED_ON
        if self._heartbeat is not None:
            await self._start_heartbeat(self._heartbeat, timeout=timeout)

    async def disconnect(self) -> None:
        """Close the connection; what the stores keep stays kept. The client may connect again."""
        closed = self._closed
        if self._connection is not None:
            self._shut()
            await closed.wait()

    async def set_heartbeat(
        self, interval: float | None, idle_limit: float | None = None
    ) -> None:
        """Beat every `interval` seconds, now if logged on, else from the next logon (HB1, HB3).

        Raises:
            UsageError: A limit can never work.
        """
        self._heartbeat = None if interval is None else Heartbeat(interval, idle_limit)
        if self._connection is None or not self._commander.logged_on:
            return
        if self._heartbeat is None:
            self._connection.set_heartbeat(None)
            self._connection.writer.send(encode_frame({"c": "heartbeat", "opts": "stop"}))
        else:
            await self._start_heartbeat(self._heartbeat, timeout=_TIMEOUT_S)

    async def _start_heartbeat(self, heartbeat: Heartbeat, *, timeout: float | None) -> None:
        fields = self._fields("heartbeat", opts=heartbeat.options, a="processed")
        await self._commander.command(fields, what="heartbeat", timeout=timeout)
        if self._connection is not None:
            self._connection.set_heartbeat(heartbeat)

    async def _serve(self, connection: Connection) -> None:
        reason: HAClientError = DisconnectedError("the client was closed")
        try:
            reason = await connection.run()
        finally:
            self._lost(reason)

    def _lost(self, reason: HAClientError) -> None:
        """The connection is over: what waits fails, what streams ends."""
        self._connection = self._commander.connection = None
        self._commander.logged_on = False
        self._publisher.lost()
        self._lost_because = reason
        if self._state is not ConnectionState.SHUTDOWN:
            self._state = ConnectionState.DISCONNECTED
        for subscription in self._session.lost(lambda pending: lost_error(pending, reason)):
            sink = subscription.sink
            if isinstance(sink, Delivery):
                sink.end(reason, raises=subscription.finite)
        _logger.info("client %s: %s", self.name, reason)
        self._events.tell("disconnect", reason)
        self._closed.set()

    def _shut(self) -> None:
        if self._nursery is None:
            self._state = ConnectionState.SHUTDOWN
        if self._connection is not None:
            self._connection.close()

    async def _drain(self) -> None:
        """Before leaving: what was published has left, and is persisted if that comes soon (CC3)."""
        publisher, connection = self._publisher, self._connection
        if connection is None or not self._commander.logged_on:
            return
        with trio.move_on_after(_DRAIN_S):
            while publisher.log is None and connection.writer.outbox_bytes:
                await connection.writer.room()
        try:
            await self.publish_flush(timeout=_DRAIN_S)
        except (TimedOut, DisconnectedError) as error:
            _logger.warning("client %s leaves with publishes not persisted: %s", self.name, error)

    def _running(self) -> trio.Nursery:
        if self._nursery is None:
            raise UsageError("use the client as `async with Client(...) as client:`")
        return self._nursery

    def _not_connected(self) -> HAClientError:
        return self._lost_because or DisconnectedError("not connected: call connect first")

    def _hurried(self) -> bool:
        return bool(self._session.pending or self._publisher.persisted)

    def _refuse_deadlock(self, what: str) -> None:
        connection = self._connection
        full = None if connection is None else connection.reading_stopped_by
        if full is not None and full.consumer is trio.lowlevel.current_task():
            raise would_deadlock(what)

    def _received(self, received: Received) -> None:
        for ack in received.failed:
            message = self._publisher.refused(ack)
            _logger.warning("publish %d was refused: %s", message.sequence, ack.reason)
            self._events.tell("failed_write", message, ack.reason)
        if received.persisted:
            self._publisher.acknowledged(received.persisted)
        for message in received.duplicates:
            self._events.tell("duplicate", message)
        for message in received.unrouted:
            self._events.tell("last_chance", message)
