"""Commands and their confirmation.

Every command except a publish requests a `processed` ack and waits for it; a refusal is raised as
the error that its reason names. A client that reconnects repeats a command until a server has
answered it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

import trio

from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand, explained, is_refusal
from haclient.session.connection_state import ConnectionStatus
from haclient.session.session import Session
from haclient.session.subscriptions import Subscription
from haclient.transport.ack_waits import AckLot, AckWaits
from haclient.transport.connection import Connection
from haclient_stores.bookmark import EPOCH, MOST_RECENT

Fields: TypeAlias = dict[str, str | int]
"""A command's header by wire name."""

_T = TypeVar("_T")
_MOST_RECENT: Final = str(MOST_RECENT)


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
        self.status.check_logged_on()
        assert self.connection is not None  # noqa: S101  # as the status says
        return self.connection

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


def lost_error(pending: PendingCommand | None, reason: HAClientError) -> HAClientError:
    """The error for one command that was waiting when the connection was lost."""
    if pending is None:
        return reason
    error = DisconnectedError(f"{pending.what}: not confirmed: {reason}")
    error.__cause__ = reason
    return error


def header_fields(command: Command) -> Fields:
    """The command's header; `MOST_RECENT` is resolved when it is sent.

    Raises:
        UsageError: No server could carry it out.
    """
    recent = command.start == _MOST_RECENT
    if recent:
        command = dataclasses.replace(command, bookmark=EPOCH)
    command.validate()
    fields = command.to_fields()
    if recent:
        fields["bm"] = _MOST_RECENT
    return fields
