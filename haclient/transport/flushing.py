"""Waits until a server has processed, acknowledged or persisted what was sent to it so far."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from haclient.errors import CommandError, DisconnectedError, StoreFull, TimedOut, UsageError
from haclient.protocol.codec import encode_frame, encode_header
from haclient.protocol.messages import Message
from haclient.session.acks import PendingCommand, explained
from haclient.session.leases import QueueAcks
from haclient.transport.commands import Commands, Fields
from haclient.transport.publisher import Publisher

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
        until_answered: Sends a command until a server has answered it: see `Core.until_answered`.
    """

    def __init__(
        self,
        commands: Commands,
        publisher: Publisher,
        queue_acks: QueueAcks,
        *,
        until_answered: Callable[
            [Callable[[], Awaitable[Message]], str, float], Awaitable[Message]
        ],
    ) -> None:
        self._commands = commands
        self._publisher = publisher
        self._queue_acks = queue_acks
        self._until_answered = until_answered
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

        await self._until_answered(flush, "flush: the server did not answer", timeout)

    async def acks(self, *, timeout: float) -> None:
        """Wait until the server has processed each acknowledgement so far.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost, and no other one follows.
        """
        self._queue_acks.send_pending()
        if not self._queue_acks.is_idle:  # a server processes commands in order
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
        with trio.move_on_after(timeout):
            await publisher.wait_persisted(sequence, what)
            if (refused := publisher.publishes.refusals.get(sequence)) is not None:
                raise copy.copy(refused)  # several tasks may ask
            return
        late = f"{what}: {sequence} is not persisted after {limit_s or timeout:.3g} s"
        raise self._commands.status.timed_out(late)

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
        """Before the client leaves a server that works: have it take what was sent to it.

        What it has not persisted within the limit, the next server gets; what it has not
        acknowledged comes again.

        Args:
            limit_s: Seconds for the publishes, and for the acknowledgements.
        """
        for wait in (self._all_persisted, self.acks):
            if await _confirmed(wait, limit_s=limit_s):
                break

    async def finish(self, *, limit_s: float) -> tuple[str, str]:
        """Wait until the server has persisted all publishes and processed all acknowledgements.

        Args:
            limit_s: Seconds for both.

        Returns:
            What is not persisted, and what is not acknowledged, and why; empty if everything is.
        """
        began = trio.current_time()
        unpersisted = await _confirmed(self._all_persisted, limit_s=limit_s)
        count = self._publisher.log.unpersisted_count
        if count and not unpersisted:
            unpersisted = f"{count} were published during the shutdown"
        try:
            self._publisher.publishes.check_none_lost("publish_flush")
        except DisconnectedError as lost:  # before, and nobody was told
            unpersisted = unpersisted or str(lost)
        if self._queue_acks.is_idle or not self._commands.status.is_logged_on:
            return unpersisted, ""
        rest_s = max(0.0, limit_s - (trio.current_time() - began))
        return unpersisted, await _confirmed(self.acks, limit_s=rest_s)


async def _confirmed(wait: Callable[..., Awaitable[None]], *, limit_s: float) -> str:
    """Wait within the limit; why it was in vain, empty if it was not."""
    try:
        await wait(timeout=limit_s)
    except _UNCONFIRMED as error:
        return str(error)
    return ""


def _pending(command_id: str) -> tuple[PendingCommand, trio.Event]:
    event = trio.Event()
    return PendingCommand(command_id, "sow_delete", awaited="stats", wake=event.set), event
