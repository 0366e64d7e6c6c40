"""Commands: sent, confirmed, and repeated until a server has answered.

Every command except a publish requests a `processed` ack and waits for it; a refusal is raised as
the error that its reason names. A client that reconnects repeats a command until a server has
answered it.

A logon comes first on each connection. The server accepts it, refuses it, or asks for other
credentials (`retry`), which the authenticator then provides. `haclient.session.connection_state`
makes the frames and reads the answers.

`Flusher` waits until a server has processed, acknowledged or persisted what was sent to it so far.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import trio

from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    StoreFull,
    TimedOut,
    UsageError,
)
from haclient.protocol.codec import Payload, encode_frame, encode_header
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.auth import Authenticator
from haclient.session.acks import PendingCommand, explained, is_refusal
from haclient.session.connection_state import (
    MAX_ROUNDS,
    ConnectionStatus,
    LoggedOn,
    logon_fields,
    read_logon_ack,
    refusal,
)
from haclient.session.leases import QueueAcks
from haclient.session.session import Session
from haclient.session.subscriptions import Subscription
from haclient.transport.back_pressure import AckLot, AckWaits
from haclient.transport.connection import Connection
from haclient.transport.publisher import Publisher

Fields: TypeAlias = dict[str, str | int]
"""A command's header by wire name."""

_T = TypeVar("_T")


class Commands:
    """Sends the commands of a client and waits for their acks.

    Args:
        session: Where waiting commands are registered.
        status: The state of the connection.

    Attributes:
        session: As above.
        status: As above.
        waits: The calls that wait for acks.
        connection: The connection in use; `None` if there is none.
    """

    def __init__(self, session: Session, status: ConnectionStatus) -> None:
        self.session = session
        self.status = status
        self.waits = AckWaits()
        self.connection: Connection | None = None
        self._recovery = AckLot(self.waits)  # calls that wait for a state of the recovery

    def connected(self) -> Connection:
        """The connection in use.

        Raises:
            DisconnectedError: There is none, or it has not logged on.
        """
        if self.connection is None:
            raise DisconnectedError("not connected: call connect and logon first")
        if not self.status.is_logged_on:
            raise DisconnectedError("not logged on: call logon first")
        return self.connection

    def check_connection_follows(self) -> None:
        """Check that there is a connection or will be one: without, no subscription is active.

        Raises:
            HAClientError: There is none, and none will follow; this says why.
        """
        if self.status.stop_reason is not None:
            raise self.status.stop_reason
        if not self.status.reconnects:
            self.connected()

    # -- one command --------------------------------------------------------

    async def send(  # noqa: PLR0913  # one frame and how to wait for its answer
        self,
        fields: Fields,
        body: bytes = b"",
        *,
        what: str,
        awaited: str = "processed",
        urgent: bool = False,
        timeout: float,
        patient: bool = False,
        on_answer: Callable[[PendingCommand], object] | None = None,
        replaces: Subscription | None = None,
    ) -> Message:
        """Send one command and wait for the ack that confirms it; see `confirm` for the wait.

        There is no checkpoint before it is in the outbox.

        Args:
            fields: Its header.
            body: Its body.
            what: The command in words, for errors.
            awaited: The ack type that confirms it.
            urgent: Whether it is sent before all publishes; else after them.
            timeout: Seconds to wait.
            patient: As for `confirm`.
            on_answer: Called as the answer arrives, so in the order of arrival, whichever of the
                tasks that wait for answers runs first.
            replaces: See `PendingCommand`.

        Returns:
            That ack.
        """
        writer, event = self.connected().writer, trio.Event()

        def wake() -> None:
            if on_answer is not None:
                on_answer(pending)
            event.set()

        pending = PendingCommand(
            str(fields["cid"]), what, awaited=awaited, wake=wake, replaces=replaces
        )
        frame = encode_frame(fields, body)
        self.session.pending.add(pending)
        backlog = writer.backlog() if patient else None
        (writer.send_urgent if urgent else writer.send)(frame)
        writer.flush()  # a waiter gains nothing from batching
        try:
            return await self.confirm(pending, event, timeout=timeout, backlog=backlog)
        except CommandError as error:
            raise explained(error, fields) from None

    async def confirm(
        self,
        pending: PendingCommand,
        event: trio.Event,
        *,
        timeout: float,
        backlog: Callable[[], tuple[int, int]] | None = None,
    ) -> Message:
        """Wait for the ack that confirms a command.

        Args:
            pending: What to wait for; it was added to the session.
            event: Set when that has come.
            timeout: Seconds to wait.
            backlog: See `Writer.backlog`. With it the time runs only while this client reads and
                the server makes no progress with earlier publishes: an ack behind messages that a
                slow handler has not taken yet, or behind a backlog, is not the server's delay.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: The connection was lost first.
            TimedOut: No ack came within `timeout` seconds.
            SubscriptionFull: The ack comes after more messages than the client reads ahead; not
                with a `backlog`.
        """
        connection = self.connection
        try:
            while not event.is_set():
                before = None if backlog is None else backlog()
                with trio.move_on_after(timeout):
                    await self.waits.until(event, pending.what, may_fail=backlog is None)
                if backlog is None or connection is None:
                    break
                if backlog() == before and connection.is_reading:
                    break
        finally:
            self.session.pending.forget(pending.command_id)
        return self.answer(pending, timeout)

    def answer(self, pending: PendingCommand, timeout: float) -> Message:
        """The ack that has confirmed a command, after a wait of so many seconds.

        Raises:
            HAClientError: There is none; this says why.
        """
        if pending.error is not None:
            raise pending.error
        if pending.ack is None:
            is_reading = self.connection is None or self.connection.is_reading
            why = "; the client reads nothing until the messages of a full queue are taken"
            raise TimedOut(
                f"{pending.what}: the server did not answer within {timeout:g} s"
                f"{'' if is_reading else why}"
            )
        return pending.ack

    # -- over all connections -----------------------------------------------

    async def ready(self) -> None:
        """Wait until commands may be sent; a client that does not reconnect never waits.

        Raises:
            HAClientError: No connection will follow; this says why.
            SubscriptionFull: The recovery waits for an answer that comes after more messages than
                the client reads ahead.
        """
        while self.status.reconnects:
            if self.status.stop_reason is not None:
                raise self.status.stop_reason
            if self.status.is_live:
                return
            await self.wait_recovery()

    async def wait_recovery(self) -> None:
        """Wait until the recovery has made a step that others wait for, or has ended."""
        await self._recovery.park("a call that waits for the connection")

    def recovered(self) -> None:
        """Wake every call that waits for a step of the recovery, or for its end."""
        self._recovery.unpark_all()

    async def until_answered(
        self, command: Callable[[], Awaitable[_T]], late: str, timeout: float
    ) -> _T:
        """Run a command; a client that reconnects repeats it until a server has answered it.

        Args:
            command: Sends the command and waits for its answer.
            late: The message of `TimedOut`, without the time.
            timeout: Seconds to wait for an answer.

        Raises:
            TimedOut: No server has answered in time.
            DisconnectedError: The connection was lost, and no other one follows.
            HAClientError: A server refused it.
        """
        if not self.status.reconnects:
            return await command()
        lost: DisconnectedError | None = None
        with trio.move_on_after(timeout):
            while True:
                await self.ready()
                try:
                    return await command()
                except DisconnectedError as error:
                    if is_refusal(error):
                        raise
                    lost = error
        raise self.too_late(late, timeout, lost)

    def too_late(self, late: str, timeout: float, lost: DisconnectedError | None) -> TimedOut:
        """The error of a command that no server has answered in time.

        Args:
            late: Its message, without the time.
            timeout: The time, in seconds.
            lost: Why it was lost on the last connection that it was sent on, if it was.
        """
        if lost is None:
            return self.status.timed_out(f"{late} within {timeout:g} s")
        why = f"; the last connection that it was sent on: {lost}"
        error = TimedOut(f"{late} within {timeout:g} s{why}")
        error.__cause__ = lost
        return error


async def log_on(  # noqa: PLR0913  # who, where, how: each a part of one frame
    connection: Connection,
    commands: Commands,
    *,
    client_name: str,
    uri: Uri,
    authenticator: Authenticator,
    options: str,
    correlation_id: str,
    timeout: float,
) -> LoggedOn:
    """Log on, answering up to three requests for other credentials.

    Raises:
        AuthenticationError: The server refused user or password, or asked for others too often.
        NameInUse: The client name belongs to a connection of another user.
        DisconnectedError: Any other refusal, or the connection was lost.
        TimedOut: The server did not answer in time.
    """
    user, given = uri.user, uri.password
    password = await authenticator.authenticate(user, given)
    for _ in range(MAX_ROUNDS):
        fields = logon_fields(
            commands.session.next_command_id(),
            client_name,
            message_type=uri.message_type,
            user=user,
            password=password,
            options=",".join(filter(None, (options, "pretty" if uri.pretty else ""))),
            correlation_id=correlation_id,
        )
        ack = await _exchange(connection, commands, fields, timeout=timeout)
        if ack.status != "retry":
            server = read_logon_ack(ack)
            authenticator.completed(user, password, server.reason)
            return server
        user = ack.user_id or user
        given = ack.password or given  # without `pw` the authenticator gets what it had before
        password = await authenticator.retry(user, given)
    raise AuthenticationError(f"the server asked for other credentials {MAX_ROUNDS} times")


async def _exchange(
    connection: Connection, commands: Commands, fields: Fields, *, timeout: float
) -> Message:
    if commands.connection is not connection:  # lost while the authenticator took its time
        raise DisconnectedError("logon: the connection was lost before it was sent")
    event = trio.Event()
    frame = encode_frame(fields)
    pending = PendingCommand(str(fields["cid"]), "logon", awaited="processed", wake=event.set)
    try:
        commands.session.pending.add(pending)
        connection.writer.send_urgent(frame)
        connection.writer.flush()
        return await commands.confirm(pending, event, timeout=timeout)
    except TimedOut as error:
        raise TimedOut(f"{error}{connection.hint_if_silent}") from None
    except CommandError as error:  # the server's refusal
        raise refusal(error.reason, error.detail) from error


# Makes the server send its persisted ack now. The waiter watches the watermark, so no unique id is
# needed.
_FLUSH_PERSISTED: Final = encode_frame({"c": "flush", "cid": "flush", "a": "persisted"})

_UNCONFIRMED: Final = (TimedOut, DisconnectedError, CommandError)


class Flusher:
    """Waits for the server on behalf of one client, over all its connections.

    Args:
        commands: Sends the commands.
        publisher: Knows what is published, and what of it is persisted.
        queue_acks: Knows which acknowledgements of queue messages were sent.
    """

    def __init__(self, commands: Commands, publisher: Publisher, queue_acks: QueueAcks) -> None:
        self._commands = commands
        self._publisher = publisher
        self._queue_acks = queue_acks
        self.awaited_deletes: set[str] = set()  # command ids

    # -- what the application waits for ---------------------------------------------------------

    async def flush(self, *, timeout: float, ack: str) -> None:
        """Wait until a server has processed every command sent so far.

        Args:
            timeout: Seconds to wait.
            ack: `persisted` waits until it has persisted or refused every publish so far.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            CommandError: The server refused it; `AuthenticationError` if it names that reason.
            DisconnectedError: The connection was lost, and no other one follows; or publishes were
                lost with it.
        """
        await self._processed(timeout=timeout, ack=ack)
        self._publisher.publishes.check_none_lost("flush")

    async def _processed(self, *, timeout: float, ack: str = "processed") -> None:
        commands = self._commands

        async def flush() -> Message:
            fields: Fields = {"c": "flush", "cid": commands.session.next_command_id(), "a": ack}
            return await commands.send(fields, what="flush", awaited=ack, timeout=timeout)

        await commands.until_answered(flush, "flush: the server did not answer", timeout)

    async def acks(self, *, timeout: float) -> None:
        """Wait until the server has processed each acknowledgement so far.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost, and no other one follows; or some wait for
                the application to subscribe to a queue again.
        """
        acks, status = self._queue_acks, self._commands.status
        acks.send_pending()
        if status.is_logged_on and not status.reconnects and acks.unsent:
            raise DisconnectedError(
                f"flush_acks: {acks.unsent} acknowledgement(s) of messages of a lost connection "
                "are sent when you subscribe to a queue again"
            )
        if not acks.is_idle:  # a server processes commands in order
            await self._processed(timeout=timeout)

    async def persisted(self, *, timeout: float) -> None:
        """Wait until everything published so far is persisted.

        A `flush` that asks for `persisted` goes along, so that the server does not wait out its ack
        conflation.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimedOut: It took longer than `timeout` seconds; what is left stays in the store.
            DisconnectedError: The connection was lost, and no other one follows; or publishes were
                lost with it, since the last such error.
        """
        publishes = self._publisher.publishes
        publishes.check_none_lost("publish_flush")
        try:
            await self._all_persisted(timeout=timeout)
        except DisconnectedError:
            publishes.check_none_lost("publish_flush")  # it says how many
            raise
        publishes.check_none_lost("publish_flush")  # it has waited for one that was refused

    async def _all_persisted(self, *, timeout: float) -> None:
        publisher, commands = self._publisher, self._commands
        log = publisher.log
        target = log.last_sequence
        if not log.unpersisted_count:
            return
        if commands.connection is not None and commands.status.is_logged_on:
            commands.connection.writer.send(_FLUSH_PERSISTED)
        with trio.move_on_after(timeout):
            await publisher.wait_persisted(target, "publish_flush")
            return
        raise commands.status.timed_out(
            f"publish_flush: {log.unpersisted_count} publishes are not persisted after "
            f"{timeout:g} s; {publisher.publishes.what_remains()}"
        )

    async def wait_persisted(
        self,
        sequence: int,
        *,
        timeout: float,
        what: str = "wait_persisted",
        limit_s: float | None = None,
    ) -> None:
        """Wait until one publish, and all before it, is persisted.

        Args:
            sequence: The sequence of the publish.
            timeout: Seconds to wait.
            what: The call of the application, for errors.
            limit_s: The limit of that call, if it is not `timeout`.

        Raises:
            PublishFailed: The server refused it.
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost.
        """
        publisher = self._publisher
        # Whoever waits for many that are persisted must not hold the loop. Not within the limit:
        # with a timeout of 0 the result is still told.
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(timeout):
            await publisher.wait_persisted(sequence, what)
            publisher.publishes.check_not_refused(sequence, what)
            return
        late = f"{what}: {sequence} is not persisted after {limit_s or timeout:.3g} s"
        raise self._commands.status.timed_out(late)

    async def publish_persisted(
        self,
        topic: str,
        data: Payload,
        *,
        timeout: float,
        correlation_id: str = "",
        what: str = "publish_persisted",
    ) -> int:
        """Publish one message, and wait until it, and all before it, is persisted.

        Args:
            topic: A literal topic.
            data: The body.
            timeout: Seconds for the publish, which may wait for room, and for the wait.
            correlation_id: Its correlation id.
            what: The call of the application, for errors.

        Returns:
            Its sequence.

        Raises:
            PublishFailed: The server refused it.
            TimedOut: It took longer.
            DisconnectedError: The connection was lost.
        """
        sequence = None
        with trio.move_on_after(timeout) as scope:
            publish = self._publisher.publish_with
            sequence = await publish(topic, data, correlation_id=correlation_id)
        if sequence is None:
            late = f"{what}: no room to publish within {timeout:g} s"
            raise self._commands.status.timed_out(late)
        left_s = max(0.0, scope.deadline - trio.current_time())
        await self.wait_persisted(sequence, timeout=left_s, limit_s=timeout, what=what)
        return sequence

    async def sow_delete(self, fields: Fields, body: bytes, *, timeout: float) -> Message:
        """Publish a `sow_delete`, and wait for its `stats` ack.

        Returns:
            The `stats` ack. Its counts are missing if a server had executed the command and the
            connection was lost before it reported the number of records.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and the client will not reconnect; or it was
                lost, and there is no publish store to keep the command; otherwise see `TimedOut`.
            UsageError: The command has a sequence of its own.
            TimedOut: No answer arrived in time; if a publish store keeps the command, it is still
                sent.
        """
        if "s" in fields:
            raise UsageError(
                f"a sow_delete is numbered like a publish, found the sequence {fields['s']}: leave "
                "it out, or use publish_many with the command sow_delete"
            )
        commands, publisher = self._commands, self._publisher
        if not commands.status.expects_connection:
            commands.connected()
        with trio.move_on_after(timeout):
            await publisher.wait_for_capacity()
            while True:
                try:
                    return await self._store_and_wait(fields, body)
                except StoreFull as full:  # nothing was stored
                    await publisher.wait_after_full(full, "sow_delete")
        late = f"sow_delete: the server did not answer within {timeout:g} s"
        raise commands.status.timed_out(late)

    async def _store_and_wait(self, fields: Fields, body: bytes) -> Message:
        commands, publisher = self._commands, self._publisher
        # A stored command may be sent again by a later process: no later id may equal its own.
        command_id = f"sow_delete-{publisher.log.last_sequence + 1}"
        header = {**fields, "cid": command_id, "a": "processed,stats,persisted"}
        head = encode_header(header)[:-1] + b',"s":'
        table = commands.session.pending
        pending, answered = _pending(command_id)
        table.add(pending)
        self.awaited_deletes.add(command_id)
        try:
            sequence = publisher.append(head, body)
            await publisher.wait_synced()
            publisher.flush()
            await commands.waits.until(answered, "sow_delete")
            while pending.ack is None:
                lost = pending.error or DisconnectedError("the wait was ended")
                if isinstance(lost, CommandError):
                    raise explained(lost, fields)
                if not isinstance(lost, DisconnectedError):
                    raise lost
                if publisher.publishes.is_done(sequence, "sow_delete"):
                    publisher.publishes.check_not_refused(sequence, "sow_delete")
                    return Message(
                        kind="ack", ack_type="stats", status="success", sequence=sequence
                    )
                commands.status.check_expects_connection("sow_delete", lost)
                # The next connection repeats it, unless that server has it already. A server
                # answers before it sends "persisted": after that ack no answer follows.
                publisher.flush()
                table.forget(command_id)  # still pending if the watermark has released the wait
                pending, answered = _pending(command_id)
                table.add(pending)
                await publisher.watermark.wait_for(sequence, "sow_delete", answered)
        finally:
            self.awaited_deletes.discard(command_id)
            table.forget(command_id)
        return pending.ack

    # -- the end of a connection ----------------------------------------------------------------

    async def drain(self, *, limit_s: float) -> None:
        """Wait until a server that the client will leave has taken what was sent to it.

        What it has not persisted within the limit is sent to the next server. Messages whose
        acknowledgements it has not confirmed are redelivered.

        Args:
            limit_s: Seconds for the publishes, and for the acknowledgements.
        """
        for wait in (self._all_persisted, self.acks):
            if await _confirmed(wait, limit_s=limit_s):
                break

    async def finish(self, *, limit_s: float) -> list[str]:
        """Wait until the server has persisted all publishes and processed all acknowledgements.

        Args:
            limit_s: Seconds for both.

        Returns:
            What is left and why, in words; empty if nothing is.
        """
        if self._commands.status.is_logged_on:  # publishes that are not persisted take all the time
            self._queue_acks.send_pending()
        began = trio.current_time()
        unpersisted = await _confirmed(self._all_persisted, limit_s=limit_s)
        count = self._publisher.log.unpersisted_count
        if count and not unpersisted:
            unpersisted = f"{count} were published during the shutdown"
        try:
            self._publisher.publishes.check_none_lost("publish_flush")
        except DisconnectedError as lost:  # earlier, and not reported yet
            unpersisted = unpersisted or str(lost)
        left = [f"publishes not persisted: {unpersisted}"] if unpersisted else []
        status = self._commands.status
        if not self._queue_acks.is_idle and (status.is_logged_on or status.expects_connection):
            rest_s = max(0.0, limit_s - (trio.current_time() - began))
            if unprocessed := await _confirmed(self.acks, limit_s=rest_s):
                left.append(f"unacknowledged messages, which may be redelivered: {unprocessed}")
        return left


async def _confirmed(wait: Callable[..., Awaitable[None]], *, limit_s: float) -> str:
    """Wait within the limit; return why that failed, empty if it did not."""
    try:
        await wait(timeout=limit_s)
    except _UNCONFIRMED as error:
        return str(error)
    return ""


def _pending(command_id: str) -> tuple[PendingCommand, trio.Event]:
    event = trio.Event()
    return PendingCommand(command_id, "sow_delete", awaited="stats", wake=event.set), event
