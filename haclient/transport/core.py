"""The life of a client's connection: connect, logon, serve, lose, leave (protocol 5, design 5).

`Core` puts the pieces together for one client: session, commander, publisher, events, and at most
one connection at a time. It is below the public API, so that a client that reconnects by itself can
use the same steps in another order.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final

import trio

from haclient.auth import Authenticator
from haclient.errors import DisconnectedError, HAClientError, PublishFailed, TimedOut, UsageError
from haclient.protocol.codec import Payload, encode_frame
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.session.heartbeat import Heartbeat
from haclient.session.logon import LoggedOn
from haclient.session.machine import Received, Session
from haclient.session.states import ConnectionState
from haclient.session.subscriptions import Subscription
from haclient.transport.client_thread import ClientThread
from haclient.transport.commander import Commander, Fields, lost_error
from haclient.transport.connection import Connection
from haclient.transport.deleting import delete_stored
from haclient.transport.dial import Dialler
from haclient.transport.dispatch import Delivery
from haclient.transport.events import Events
from haclient.transport.exceptions import open_nursery
from haclient.transport.leaving import drain, let_go
from haclient.transport.log_on import check_client_name, log_on
from haclient.transport.publisher import Publisher
from haclient.transport.settings import TIMEOUT_S, Settings
from haclient.transport.upkeep import Upkeep, open_all
from haclient.transport.writer import Writer

__all__ = ["Core"]

_LAST_CALLS_S: Final = 5.0  # how long leaving the block waits for callbacks of what has happened
# Makes the server pay its persisted ack now. The watermark is what is waited for: no id is needed.
_HURRY: Final = encode_frame({"c": "flush", "cid": "flush", "a": "persisted"})
_logger = logging.getLogger(__name__)


class Core:
    """One client's pieces and their life."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.name = check_client_name(settings.name)
        self.session = Session()
        self.thread = ClientThread()
        self.commander = Commander(
            self.session, settings.bookmark_store, settings.clock_us, self.thread
        )
        self.publisher = Publisher(
            settings.publish_store,
            max_unpersisted_bytes=settings.max_unpersisted_bytes,
            would_deadlock=self._refuse_deadlock,
            lasting=settings.lasting,
            thread=self.thread,
        )
        self.state = ConnectionState.DISCONNECTED
        self.server: LoggedOn | None = None
        self.events = Events(
            failed_write=settings.on_failed_write,
            duplicate=settings.on_duplicate,
            last_chance=settings.on_last_chance,
            disconnect=settings.on_disconnect,
            state=settings.on_state,
        )
        self._heartbeat = settings.heartbeat
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._connection: Connection | None = None
        self._dialler = Dialler()
        self._logging_on = False
        self._closed = trio.Event()
        self._uri: Uri | None = None
        self._lost_because: HAClientError | None = None
        self._stores = open_all(settings.publish_store, settings.bookmark_store, self.name)
        self._upkeep = Upkeep(settings.bookmark_store, self._stores)
        if settings.publish_store is not None:
            settings.publish_store.number_above(settings.clock_us())

    # -- life -----------------------------------------------------------------

    async def enter(self) -> None:
        """Open the nursery that everything of this client runs in."""
        if self._nursery is not None or self.state is ConnectionState.SHUTDOWN:
            raise UsageError("a client runs once: make a new one with the same stores' paths")
        self.thread.bind()
        self.commander.places.now_us()  # from here on the clock may step
        await self._upkeep.recover(self.name)
        self._nursery = await self._stack.enter_async_context(open_nursery())
        for task in (self.events.run, *self._upkeep.tasks):
            self._nursery.start_soon(task)

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain unless an error is passing through, close everything, wait for every task (CC3)."""
        try:
            if error is None:
                await self._drain()
        finally:
            await self._close(kind, error, traceback)

    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        nursery, self._nursery = self._nursery, None
        if self._connection is not None:
            self._connection.close()
        if nursery is not None:
            nursery.cancel_scope.cancel()
        try:
            await self._stack.__aexit__(kind, error, traceback)
        finally:
            try:
                self._tell(ConnectionState.SHUTDOWN)
                with trio.CancelScope(shield=True) as last_calls:
                    last_calls.deadline = trio.current_time() + _LAST_CALLS_S
                    await self.events.finish()
                if last_calls.cancelled_caught:
                    _logger.warning("client %s: its callbacks did not end in time", self.name)
            finally:
                await self._upkeep.close()

    async def connect(self, uri: str | Uri, *, timeout: float | None) -> None:
        """Open a connection (CC2); `logon` comes next.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: Nobody listens there.
            DisconnectedError: Another task called `disconnect` meanwhile.
            TimedOut: It took longer than `timeout` seconds.
        """
        nursery = self.running()
        if self._dialler.busy:
            raise UsageError("connect is under way in another task: wait for that one")
        if self._connection is not None:
            raise UsageError("this client is connected: disconnect first, or use another client")
        self._uri = Uri.parse(uri) if isinstance(uri, str) else uri
        link = await self._dialler.dial(self._uri, timeout=timeout)
        connection = Connection(
            link,
            self.session,
            writer=Writer(link, self.publisher.log, self.publisher.gate),
            on_received=self._received,
            events=self.events,
            hurried=self._hurried,
            on_stopped=self.publisher.persisted.release,
            on_heard=self.commander.heard,
        )
        self._connection = self.commander.connection = connection
        self.commander.places.server = self._uri.address
        self._closed = trio.Event()
        self._lost_because = None
        self.publisher.connected(connection.writer)
        self._tell(ConnectionState.CONNECTED)
        nursery.start_soon(self._serve, connection)

    async def logon(self, *, timeout: float | None) -> None:
        """Say who we are; then trim and replay the publish store (PS7, PS8) and start the beats.

        Raises:
            AuthenticationError: The server refused user or password.
            NameInUse: The client name belongs to a connection of another user.
            PublishGap: The server lacks what was acknowledged, and the store minds.
            TimedOut: The server did not answer in time.
        """
        self.thread.check("logon")
        connection, uri = self._connection, self._uri
        if connection is None or uri is None:
            raise self._not_connected()
        if self._logging_on:
            raise UsageError("logon is under way in another task: wait for that one")
        if self.commander.logged_on:
            raise UsageError("this connection has logged on already")
        closed = self._closed
        self._logging_on = True
        try:
            await self._log_on(connection, uri, self.settings.authenticator, timeout=timeout)
            self._reconcile()
            if self._heartbeat is not None:
                await self._start_heartbeat(self._heartbeat, timeout=timeout)
            self.publisher.open_log()
        except BaseException:
            await self._abandon(connection, closed)
            raise
        finally:
            self._logging_on = False
        self._tell(ConnectionState.LOGGED_ON)

    async def _log_on(
        self,
        connection: Connection,
        uri: Uri,
        authenticator: Authenticator,
        *,
        timeout: float | None,
    ) -> None:
        self.server = await log_on(
            connection,
            self.commander,
            client_name=self.name,
            uri=uri,
            authenticator=authenticator,
            options=self.settings.logon_options,
            correlation_id=self.settings.logon_correlation_id,
            timeout=timeout,
        )
        self._check_serving(connection)  # it may have been lost right behind the ack
        self.commander.server_version = self.server.server_version
        self.commander.logged_on = True

    def _reconcile(self) -> None:
        if self.server is not None:
            self.publisher.reconcile(self.server, self.settings.clock_us())

    def _check_serving(self, connection: Connection) -> None:
        """Look whether it is still in use.

        Raises:
            HAClientError: It was lost; this says why.
        """
        if self._connection is not connection:
            raise self._not_connected()

    @staticmethod
    async def _abandon(
        connection: Connection, closed: trio.Event, reason: HAClientError | None = None
    ) -> None:
        """Close a connection that came to nothing; then the client may connect again at once."""
        connection.close(reason)
        with trio.CancelScope(shield=True):
            await closed.wait()

    async def ready(self) -> None:
        """Wait until commands may be sent; there is nothing to wait for without reconnecting."""

    def subscriptions(self) -> list[Subscription]:
        """Every subscription that has not ended."""
        return self.session.router.all()

    def opened(self, subscription: Subscription, fields: Fields, body: bytes) -> None:
        """A subscription that lasts was accepted; who reconnects remembers it."""

    def closed(self, subscription: Subscription) -> None:
        """A subscription was ended on purpose."""

    def drops(self, sub_id: str, error: HAClientError) -> bool:  # noqa: ARG002  # for HACore
        """Whether a handler's subscription that the server has ended may end with a log line."""
        return False

    async def disconnect(self) -> None:
        """Close the connection; what the stores keep stays kept. The client may connect again."""
        self.thread.check("disconnect")
        closed = self._closed
        self._dialler.stop()
        if self._connection is not None:
            self._connection.close()
            await closed.wait()

    async def set_heartbeat(self, interval: float | None, idle_limit: float | None = None) -> None:
        """Beat every `interval` seconds, now if logged on, else from the next logon (HB1, HB3).

        Raises:
            UsageError: A limit can never work.
        """
        self.thread.check("set_heartbeat")
        self._heartbeat = None if interval is None else Heartbeat(interval, idle_limit)
        if self._connection is None or not self.commander.logged_on:
            return
        if self._heartbeat is None:
            self._connection.set_heartbeat(None)
            self._connection.writer.send(encode_frame({"c": "heartbeat", "opts": "stop"}))
        else:
            await self._start_heartbeat(self._heartbeat, timeout=TIMEOUT_S)

    async def _start_heartbeat(self, heartbeat: Heartbeat, *, timeout: float | None) -> None:
        connection = self.commander.connected()
        fields = self.fields("heartbeat", a="processed", opts=heartbeat.options)
        await self.commander.command(fields, what="heartbeat", urgent=True, timeout=timeout)
        self._check_serving(connection)
        connection.set_heartbeat(heartbeat)

    async def _serve(self, connection: Connection) -> None:
        reason: HAClientError = DisconnectedError("the client was closed")
        try:
            reason = await connection.run()
        except Exception as error:  # our own failure, such as a full store: it leaves the block
            reason = DisconnectedError("the connection was closed by an error of this client")
            reason.__cause__ = error
            raise
        finally:
            self._lost(reason)

    def _lost(self, reason: HAClientError) -> None:
        """The connection is over: what waits fails, what streams ends."""
        self._connection = self.commander.connection = None
        self.commander.logged_on = False
        self.publisher.lost()
        self._lost_because = reason
        for subscription in self.session.lost(lambda pending: lost_error(pending, reason)):
            self._end(subscription, reason)
        _logger.info("client %s: %s", self.name, reason)
        self._tell(ConnectionState.DISCONNECTED)
        self.events.tell("disconnect", reason)
        self._closed.set()

    def _end(self, subscription: Subscription, reason: HAClientError) -> None:
        """The connection of a subscription is lost; what has arrived is still handed out."""
        if isinstance(subscription.sink, Delivery):
            subscription.sink.end(reason, raises=subscription.finite)

    def _tell(self, state: ConnectionState) -> None:
        """A state is reached (HA20)."""
        self.state = state
        self.events.tell("state", state)

    async def _drain(self) -> None:
        """Before leaving: what was published has left, and is persisted if soon (CC3, HA25)."""
        publisher, limit_s = self.publisher, self.settings.exit_timeout_s
        if limit_s == 0 or (publisher.log is None and not self.commander.logged_on):
            return
        let_go(self.session.router.all())
        left = await drain(publisher, self.flush_persisted, limit_s=limit_s)
        if left:
            _logger.warning("client %s leaves with publishes not persisted: %s", self.name, left)

    async def flush_persisted(self, *, timeout: float | None) -> None:
        """Wait until everything published so far is persisted (CC9, PS15).

        Without a store, wait until the server has processed it. With one, a `flush` that asks for
        `persisted` goes along, so that the server does not wait out its ack conflation.

        Raises:
            TimedOut: It took longer than `timeout` seconds; what is left stays in the store.
            DisconnectedError: There is no connection, or it was lost.
        """
        log = self.publisher.log
        if log is None:
            await self.flush(timeout=timeout)
            return
        target = log.last_sequence
        if not log.unpersisted_count:
            return
        if self._connection is not None and self.commander.logged_on:
            self._connection.writer.send(_HURRY)
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            await self.publisher.wait_persisted(target, "publish_flush")
            return
        raise TimedOut(
            f"publish_flush: {log.unpersisted_count} publishes are not persisted after "
            f"{timeout:g} s; they stay in the store"
        )

    async def flush(self, *, timeout: float | None) -> None:
        """Wait until the server has processed every command sent so far (CC10)."""
        await self.commander.command(
            self.fields("flush", a="processed"), what="flush", timeout=timeout
        )

    async def wait_persisted(self, sequence: int, *, timeout: float | None) -> None:
        """Wait until one publish, and all before it, is persisted (CC8).

        Raises:
            PublishFailed: The server refused it.
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost.
        """
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            await self.publisher.wait_persisted(sequence, "wait_persisted")
            if (reason := self.publisher.refusals.get(sequence)) is not None:
                raise PublishFailed(
                    f"the server refused publish {sequence}: {reason}",
                    reason=reason,
                    sequence=sequence,
                )
            return
        raise TimedOut(f"wait_persisted: {sequence} is not persisted after {timeout:g} s")

    async def wait_empty(self, *, timeout: float | None) -> None:
        """Wait until nothing is unpersisted (PS14).

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost.
        """
        with trio.move_on_after(float("inf") if timeout is None else timeout):
            while self.publisher.log is not None and self.publisher.log.unpersisted_count:
                await self.flush_persisted(timeout=None)
            return
        raise TimedOut(f"wait_empty: not everything is persisted after {timeout:g} s")

    async def sow_delete(self, fields: Fields, body: Payload, *, timeout: float | None) -> Message:
        """Delete SOW records; with a store the command is kept until it is persisted (PS3)."""
        body = body.encode() if isinstance(body, str) else bytes(body)
        if self.publisher.log is not None:
            return await delete_stored(
                self.commander, self.publisher, fields, body, timeout=timeout
            )
        header = {**fields, "cid": self.session.next_command_id(), "a": "processed,stats"}
        return await self.commander.command(
            header, body, what="sow_delete", awaited="stats", timeout=timeout
        )

    def fields(self, command: str, **others: str | int) -> Fields:
        """The header of a command with a new id."""
        return {"c": command, "cid": self.session.next_command_id(), **others}

    def running(self) -> trio.Nursery:
        """The nursery of this client.

        Raises:
            UsageError: The client is used outside its `async with`.
        """
        self.thread.check("a method of the client")
        if self._nursery is None:
            raise UsageError("use the client as `async with Client(...) as client:`")
        return self._nursery

    @property
    def entered(self) -> bool:
        """Whether the client's `async with` was entered, and not left."""
        return self._nursery is not None

    def _not_connected(self) -> HAClientError:
        return self._lost_because or DisconnectedError("not connected: call connect first")

    def _hurried(self) -> bool:
        return bool(self.session.pending or self.publisher.persisted)

    def _refuse_deadlock(self, what: str) -> None:
        if self._connection is not None:
            self._connection.refuse_deadlock(what)

    def _received(self, received: Received) -> None:
        for ack in received.failed:
            message = self.publisher.refused(ack)
            _logger.warning("publish %d was refused: %s", message.sequence, ack.reason)
            self.events.tell("failed_write", message, ack.reason)
        for subscription, error in received.ended:
            _logger.error("client %s: the server has ended %s", self.name, error)
            self.closed(subscription)
        if received.persisted:
            self.publisher.acknowledged(received.persisted)
        for message in received.duplicates:
            self.events.tell("duplicate", message)
        for message in received.unrouted:
            self.events.tell("last_chance", message)
