"""The life cycle of a client's connection: connect, log on, run, lose, close.

`Core` puts the pieces together for one client: session, commands, publisher, callbacks, and at
most one connection at a time. `Client` calls `connect` and `logon`; `Reconnector` takes the single
steps in the order of its recovery plan.

In a client that reconnects (`status.reconnects`), commands wait until the client is live, and
lasting subscriptions survive a lost connection: undelivered messages are dropped, since they are
redelivered, and delivered, undiscarded ones are de-duplicated by the bookmark store.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final

import trio

from haclient import events
from haclient.errors import (
    DisconnectedError,
    HAClientError,
    TimedOut,
    UsageError,
    failure_text,
)
from haclient.options import Settings, seconds
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.session.acks import refused_publish
from haclient.session.auditing import Auditor
from haclient.session.connection_state import (
    ClosedByClient,
    ClosedByOwnError,
    ConnectionState,
    ConnectionStatus,
    check_client_name,
)
from haclient.session.flight_recorder import FlightRecorder
from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.leases import QueueAcks
from haclient.session.resume import ResumeContext
from haclient.session.session import Received, Session
from haclient.subscription_manager import SubscriptionManager
from haclient.transport.ack_sender import AckSender
from haclient.transport.commands import Commands, Fields, Flusher, log_on
from haclient.transport.connection import Connection
from haclient.transport.links.dial import Dialler
from haclient.transport.links.link import log_state
from haclient.transport.message_queue import ActiveConsumers, ClientLeft, release_queues
from haclient.transport.publisher import AuditedPublisher, Publisher
from haclient.transport.reporter import Reporter
from haclient.transport.store_maintenance import StoreMaintenance, open_all
from haclient.transport.subscription_control import AutomaticPauses, SubscriptionControl
from haclient.transport.tasks import ClientThread, open_nursery
from haclient.transport.writer import Writer

_LAST_CALLS_S: Final = 5.0  # how long leaving the block waits for callbacks of what has happened


class Core:
    """The parts of one client and their lifetime.

    Args:
        settings: The settings of the client.
        manager: Remembers the subscriptions to send again, in a client that reconnects.

    Attributes:
        status: The state of the connection; its single owner.
        heartbeat: The timers of each connection; `None` for no heartbeats.
        counters: What the client has done so far, over all its connections.
        kept: The subscriptions that survive a lost connection.
        resume: Where bookmark subscriptions resume.
    """

    def __init__(self, settings: Settings, manager: SubscriptionManager | None = None) -> None:
        self.settings = settings
        self.name = check_client_name(settings.name)
        self.status = ConnectionStatus(reconnects=manager is not None)
        self.session = Session()
        self.thread = ClientThread()
        self.counters = self.session.counters
        self.reporter = Reporter(
            self.name, settings.clock_us, settings.on_event, settings.on_failed_write
        )
        self.auditor = _auditor_of(settings)
        self.commands = Commands(self.session, self.status)
        self.resume = ResumeContext(self.reporter.clock_us, overlap_s=settings.overlap_s)
        self.kept = KeptSubscriptions(manager, self.session.router)
        self.changes = SubscriptionControl(self.commands, self.kept, self.reporter, self.thread)
        self.queue_acks = QueueAcks(
            self.status, batch_size=settings.ack_batch_size, timeout_s=settings.ack_timeout
        )
        self.ack_sender = AckSender(
            self.queue_acks,
            self.session,
            self.thread,
            clock_us=settings.clock_us,
            log=self.reporter.log,
        )
        self.publisher = self._new_publisher()
        self.flusher = Flusher(self.commands, self.publisher, self.queue_acks)
        self.flight = FlightRecorder(self.name, settings.clock_us)
        self._tap = settings.wire_tap and self.reporter.guarded(settings.wire_tap)
        self.connection: Connection | None = None
        self.heartbeat = settings.new_heartbeat()
        self.heartbeat_round_trip_s: float | None = None
        self.consumers = ActiveConsumers()
        self._manager = manager
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None
        self._dialler = Dialler(settings.dial_options)
        self._logging_on = False
        self._drained_up_to: int | None = None  # the last publish that `drain` has waited for
        self._closed = trio.Event()  # the end of the connection
        self.uri: Uri | None = None
        stores = open_all(settings, manager, self.auditor)
        if self.auditor is not None:
            self.auditor.kept(self.publisher.log)
        self._maintenance = StoreMaintenance(
            settings.bookmark_store, stores, reporter=self.reporter
        )
        if settings.publish_store is not None:
            settings.publish_store.number_above(settings.clock_us())

    def _new_publisher(self) -> Publisher:
        settings = self.settings
        publisher = Publisher if self.auditor is None else partial(AuditedPublisher, self.auditor)
        return publisher(
            settings.publish_store,
            max_unpersisted_bytes=settings.max_unpersisted_bytes,
            waits=self.commands.waits,
            status=self.status,
            thread=self.thread,
        )

    # -- life -----------------------------------------------------------------

    async def enter(self) -> None:
        """Open the nursery that everything of this client runs in."""
        if self._nursery is not None or self.status.state is ConnectionState.SHUTDOWN:
            raise UsageError("a client runs once: make a new one with the same stores' paths")
        if not trio.lowlevel.in_trio_run():
            raise UsageError(
                "haclient.HAClient and haclient.Client run on trio: start the program with "
                "trio.run(main), or use haclient.aio under asyncio, or haclient.blocking without "
                "an event loop"
            )
        self.thread.bind()
        try:
            if self._manager is not None:
                entries = self._manager.entries()
                self.session.reserved_ids = frozenset(each.sub_id for each in entries)
            self.resume.now_us(trio.current_time())  # from here on the clock may step
            self._maintenance.claim()
            await self._maintenance.recover(self.name)
        except BaseException:  # the client was not entered, so calls stay refused
            self.thread.release(was_open=False)
            raise
        self._nursery = await self._stack.enter_async_context(open_nursery())
        for task in (self.reporter.run, self.ack_sender.run, *self._maintenance.tasks):
            self._nursery.start_soon(task)

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drain unless an error is passing through, close everything, wait for every task."""
        try:
            if error is None:
                if seconds(self.settings.exit_timeout) > 0:  # else what has arrived is left alone
                    release_queues(self.session.router.all())
                await self.drain()
        finally:
            await self._close(kind, error, traceback)

    async def _close(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(DisconnectedError("the client was left"))
        self._dialler.stop()  # of a `connect` by a task outside of the block
        nursery, self._nursery = self._nursery, None
        self.reporter.closing(_LAST_CALLS_S)
        if self.connection is not None:
            self._send_acks()
            self.connection.close()
        # Before tasks are cancelled, since a handler in a thread may wait for these consumers.
        # Subscriptions that the router has end with the connection.
        for subscription in self.kept:
            if subscription not in self.session.router:
                subscription.end(ClientLeft("the client was left"))
        if nursery is not None:
            nursery.cancel_scope.cancel()
        try:
            with self.reporter.reporting(apart_from=error):
                await self._stack.__aexit__(kind, error, traceback)
        finally:
            try:
                self.set_state(ConnectionState.SHUTDOWN)
                with trio.CancelScope(shield=True) as last_calls:
                    last_calls.deadline = trio.current_time() + _LAST_CALLS_S
                    await self.reporter.finish()
                if last_calls.cancelled_caught:
                    self.reporter.log.warning(
                        "client %s: its callbacks did not end in time", self.name
                    )
                self._warn_of_late_publishes()
            finally:
                try:
                    await self._maintenance.close()
                finally:
                    self.thread.release()

    def stop(self, reason: HAClientError) -> None:
        """Expect no other connection: every task that waits for one gets the reason."""
        self.status.stop(reason)
        self.publisher.watermark.release()  # no ack will come: each waiter checks the status
        if self.connection is None:  # else the end of it does this
            self.session.pending.fail_all(reason)
        self.commands.recovered()
        if self.status.state is ConnectionState.RECONNECTING:
            self.set_state(ConnectionState.DISCONNECTED)

    # -- connecting and logging on -------------------------------------------------

    async def connect(self, uri: str | Uri, *, timeout: float) -> None:
        """Open a connection; `logon` comes next.

        Args:
            uri: Where to.
            timeout: Seconds for the whole of it.

        Raises:
            UsageError: The URI is wrong, or there is a connection already.
            ConnectionRefused: Nobody listens there.
            DisconnectedError: Another task called `disconnect` meanwhile.
            TimedOut: It took longer than `timeout` seconds.
        """
        nursery = self.running("connect")
        if self._dialler.busy:
            raise UsageError("connect is under way in another task: wait for that one")
        if self.connection is not None:
            raise UsageError("this client is connected: disconnect first, or use another client")
        self.uri = self.reporter.uri = uri if isinstance(uri, Uri) else Uri.parse(uri)
        with self.flight.attempt():
            link = await self._dialler.dial(self.uri, timeout=timeout)
        log, gate = self.publisher.log, self.publisher.gate
        connection = Connection(
            link,
            self.session,
            writer=Writer(link, log, gate, self.counters, tap=self._tap, flight=self.flight),
            owner=self,
            back_pressure=AutomaticPauses(self.commands, self.changes, self.reporter),
            log=self.reporter.log,
        )
        self.connection = self.commands.connection = connection
        self._closed = trio.Event()
        self.status.connected(self.uri.address)
        self.counters.connections += 1
        self.publisher.connected(connection.writer)
        self.ack_sender.connected(connection.writer)
        self.set_state(ConnectionState.CONNECTED)
        self.reporter.emit(events.ConnectionMade)
        nursery.start_soon(self._serve, connection)

    async def logon(self, *, timeout: float) -> None:
        """Log on; then trim and replay the publish store and start the heartbeat.

        Args:
            timeout: Seconds for each answer of the server.

        Raises:
            AuthenticationError: The server refused user or password.
            NameInUse: The client name belongs to a connection of another user.
            PublishGap: The server lacks what was acknowledged, and the store refuses gaps.
            TimedOut: The server did not answer in time.
        """
        self.thread.check("logon")
        if self._logging_on:
            raise UsageError("logon is under way in another task: wait for that one")
        if self.status.is_logged_on:
            raise UsageError("this connection has logged on already")
        connection = self.check_connected()
        self._logging_on = True
        try:
            await self.log_on(
                self.settings.authenticator or DefaultAuthenticator(), timeout=timeout
            )
            self.reconcile()
            await self.start_heartbeat(timeout=timeout)
            await self.open_log()
        except BaseException as error:  # refused, lost or cancelled: half a logon is of no use
            if self.connection is connection:  # another task may have connected again
                await self.abandon(error if isinstance(error, HAClientError) else None)
            if isinstance(error, HAClientError):
                self.flight.log_before(error)
            raise
        finally:
            self._logging_on = False
        self.set_state(ConnectionState.LOGGED_ON)

    async def log_on(self, authenticator: Authenticator, *, timeout: float) -> None:
        """Exchange the logon alone; it raises what `logon` does."""
        connection, uri = self.check_connected(), self.uri
        assert uri is not None  # noqa: S101  # a connection was dialled by one
        server = await log_on(
            connection,
            self.commands,
            client_name=self.name,
            uri=uri,
            authenticator=authenticator,
            options=str(self.settings.logon_options),
            correlation_id=self.settings.logon_correlation_id,
            timeout=timeout,
        )
        self.check_connected(connection)  # it may have been lost right after the ack
        self.status.logged_on(server)
        self.counters.logons += 1
        if not self.resume.servers.logged_on(self.status.address, server):
            self.reporter.log.warning(
                "%s has another transaction log than before (a lost disk, or a restored backup): "
                "bookmark subscriptions resume by time there",
                self.status.address,
            )
        self.reporter.emit(events.LogonAccepted)

    def reconcile(self) -> None:
        """Trim the publish store to what the server has persisted, and number above it."""
        if self.status.server is None:
            return
        log = self.publisher.log
        count = log.unpersisted_count
        self.publisher.reconcile(self.status.server, self.settings.clock_us())
        if log.unpersisted_count < count:  # their acks were lost with an earlier connection
            self.reporter.emit(events.PublishesPersisted, sequence=log.last_persisted)

    async def open_log(self) -> None:
        """Start to send the log: first its unpersisted publishes, then every new one.

        Raises:
            HAClientError: The connection was lost meanwhile.
        """
        log, connection = self.publisher.log, self.check_connected()
        await self.publisher.measure()
        self.check_connected(connection)
        if count := log.unpersisted_count:
            last = log.last_sequence
            self.reporter.emit(events.PublishesReplayed, count=count, sequence=last)
        self.publisher.open_log()

    def check_connected(self, connection: Connection | None = None) -> Connection:
        """The connection in use, which has to be this one if one is given.

        Raises:
            HAClientError: There is none, or it was lost; this says why.
        """
        if self.connection is None or self.connection is not (connection or self.connection):
            raise self.status.why_not_connected()
        return self.connection

    async def abandon(self, reason: HAClientError | None = None) -> None:
        """Close an unfinished connection; when it returns, the client may connect again."""
        if self.connection is not None:
            closed = self._closed
            self.connection.close(reason)
            # Shielded: until this connection has ended, no other one can be opened.
            with trio.CancelScope(shield=True):
                await closed.wait()

    async def disconnect(self) -> None:
        """Close the connection; the stores are unaffected, and the client may connect again."""
        self.thread.check("disconnect")
        closed = self._closed
        self._dialler.stop()
        if self.connection is not None:
            self._send_acks()
            self.connection.close()
            await closed.wait()

    def _send_acks(self) -> None:
        """Send the acknowledgements that were collected, as far as the socket takes them."""
        self.queue_acks.send_pending()
        if self.connection is not None:
            self.connection.writer.flush()

    async def start_heartbeat(self, *, timeout: float) -> bool:
        """Start the heartbeat of the current connection; return whether one was configured."""
        heartbeat = self.heartbeat
        if heartbeat is None:
            return False
        connection = self.commands.connected()
        fields: Fields = {"c": "heartbeat", "cid": self.session.next_command_id()}
        fields |= {"a": "processed", "opts": heartbeat.options}
        began = trio.current_time()
        try:
            await self.commands.send(fields, what="heartbeat", urgent=True, timeout=timeout)
        except (trio.Cancelled, TimedOut):
            # It is sent: the server expects our heartbeats from now on, or closes the connection.
            if self.heartbeat is heartbeat:
                connection.set_heartbeat(heartbeat)
            raise
        self.heartbeat_round_trip_s = trio.current_time() - began
        self.check_connected(connection)
        if self.heartbeat is heartbeat:  # else another task has changed it meanwhile
            connection.set_heartbeat(heartbeat)
        return True

    # -- serving and losing --------------------------------------------------------

    async def _serve(self, connection: Connection) -> None:
        reason: HAClientError = ClosedByClient("the client was closed")
        try:
            reason = await connection.run()
        except Exception as error:  # our own failure, such as a full store: it leaves the block
            reason = ClosedByOwnError("the connection was closed by an error of this client")
            reason.__cause__ = error
            raise
        finally:
            self._lost(connection, reason)

    def _lost(self, connection: Connection, reason: HAClientError) -> None:
        """The connection has ended: fail pending commands; end or keep the subscriptions."""
        self.connection = self.commands.connection = None
        self.status.lost(reason)
        self.counters.disconnections += 1
        self.flight.ended(reason)
        active, is_followed = self.session.router.all(), self.status.expects_connection
        try:
            self.publisher.lost()
            queues = [one.leases for one in active if one.leases is not None]
            self.queue_acks.lost(sum(one.most_unacknowledged for one in queues if one.is_queue))
            for subscription in self.session.lost(reason):
                is_kept = subscription in self.kept
                if subscription.lost(reason, is_kept=is_kept, is_followed=is_followed):
                    self.reporter.emit(events.SubscriptionGap, sub_id=subscription.sub_id)
        except BaseException:  # a store has failed, which ends the client: nobody may wait for it
            self.session.lost(reason)
            for subscription in active:
                subscription.end(reason)
            raise
        finally:
            self._closed.set()  # `abandon` waits for it, shielded
        self.set_state(ConnectionState.DISCONNECTED)
        if not self.status.reconnects:  # else the reconnector logs it, with the server
            ours = connection.closed_by_us or isinstance(reason, ClosedByOwnError)
            level = logging.INFO if ours else logging.WARNING
            self.reporter.log.log(level, "client %s: %s", self.name, reason)
            if not connection.closed_by_us:
                self.flight.log_before(reason)
        self.reporter.emit(events.ConnectionLost, error=reason)

    async def wait_lost(self) -> None:
        """Wait until the current connection has ended."""
        await self._closed.wait()

    def set_state(self, state: ConnectionState) -> None:
        """Enter a state and report it to the listeners of the application."""
        self.status.state = state
        log_state(self.name, state)
        self.flight.reached(state)
        self.reporter.emit(events.StateChanged, state=state)

    # -- what connections that follow each other share -------------------------------

    def live(self) -> None:
        """The recovery is complete: wake every command that waited for it."""
        self.status.live()
        self.commands.recovered()

    # -- waiting for the server ------------------------------------------------------

    async def drain(self) -> bool:
        """Before leaving: wait until publishes are sent and, within a limit, persisted.

        Returns:
            Whether there is time left.
        """
        limit_s, began = seconds(self.settings.exit_timeout), trio.current_time()
        if limit_s == 0:
            return True
        unfinished = await self.flusher.finish(limit_s=limit_s)
        for left in unfinished:
            self.reporter.log.warning("client %s leaves with %s", self.name, left)
        self._drained_up_to = self.publisher.log.last_sequence
        return trio.current_time() - began < limit_s

    def pass_on_points(self) -> None:
        """Have the adapter of the bookmark store write what it has held back."""
        try:
            self._maintenance.pass_on_points(trio.current_time())
        except Exception as error:  # of the adapter: the points of others are to be written
            text = failure_text(error)
            self.reporter.log.warning("client %s: recovery points: %s", self.name, text)

    def _warn_of_late_publishes(self) -> None:
        """Warn of what listeners and other threads have published since `drain` ended."""
        log, last = self.publisher.log, self._drained_up_to
        count = 0 if last is None else min(log.last_sequence - last, log.unpersisted_count)
        if count:
            self.reporter.log.warning(
                "client %s leaves with publishes not persisted: %d were published after the last "
                "wait for the server",
                self.name,
                count,
            )

    def unfinished(self) -> list[str]:
        """What is neither persisted nor acknowledged, in words."""
        publishes, told = self.publisher.publishes, list[str]()
        if count := publishes.log.unpersisted_count:
            told.append(f"{count} publishes not persisted, {publishes.what_remains()}")
        if not self.queue_acks.is_idle:
            told.append("acknowledgements of queue messages not sent")
        return told

    def running(self, what: str) -> trio.Nursery:
        """The nursery of this client.

        Args:
            what: The call that needs it, such as `subscribe`.

        Raises:
            UsageError: The client is used outside its `async with`.
            HAClientError: It is being left.
        """
        self.thread.check(what)
        if self._nursery is None:
            raise self.status.stop_reason or DisconnectedError(f"{what}: the client is being left")
        return self._nursery

    @property
    def entered(self) -> bool:
        """Whether the client's `async with` was entered, and not left."""
        return self._nursery is not None

    def caught_up(self, until: float, *, is_last: bool) -> None:
        """Note up to when everything has been received; see `ConnectionOwner`."""
        router, moved = self.session.router, list(self.session.moved)
        self.session.moved.clear()
        # One that has ended meanwhile has received nothing since, whatever the link has.
        active = router.all() if is_last else [one for one in moved if one in router]
        positions = [one.position for one in active]
        self.resume.note_caught_up(positions, until, trio.current_time(), is_last=is_last)

    def received(self, received: Received) -> None:
        """Do what one chunk from the server asks for, apart from deliveries."""
        if self.auditor is not None:
            self.auditor.received(received)
        self.counters.duplicates += len(received.duplicates)
        for ack in received.failed:
            self.refused(ack)
        for subscription, error in received.ended:
            text = f": the server has ended {error}"
            self.reporter.subscription_ended(subscription.sub_id, error, text=text)
            self.kept.drop(subscription)
        if received.log_reached:
            self.resume.servers.reached(received.log_reached)
        if received.persisted:
            self.resume.servers.persisted(received.persisted)
            self.publisher.acknowledged(received.persisted)
            self.reporter.emit(events.PublishesPersisted, sequence=received.persisted)
        if received.duplicates:
            self.reporter.emit(events.DuplicatesDropped, messages=tuple(received.duplicates))
        if received.unrouted:
            self.reporter.emit(events.MessagesUnrouted, messages=tuple(received.unrouted))

    def refused(self, ack: Message) -> None:
        """Report a publish that is refused, once, however often servers say so."""
        message = self.publisher.refused(ack)
        if message is None:
            return
        self.counters.failed_writes += 1
        which = message.sequence or "without a sequence number"
        error = refused_publish(f"publish {which} was refused", ack)
        # The caller of a delete that is awaited gets the reason as an error.
        is_raised = ack.command_id in self.flusher.awaited_deletes
        self.reporter.log.log(logging.INFO if is_raised else logging.WARNING, "%s", error)
        self.reporter.publish_refused(error, message)


def _auditor_of(settings: Settings) -> Auditor | None:
    log = settings.audit_log
    return None if log is None else Auditor(log, settings.clock_us)
