"""Waits until a server has processed, acknowledged or persisted what was sent to it so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.session.queue_acks import QueueAcks
from haclient.transport.commands import Commander, Fields
from haclient.transport.publisher import Publisher, what_remains

# Makes the server send its persisted ack now. The waiter watches the watermark, so no unique id is
# needed.
_FLUSH_PERSISTED: Final = encode_frame({"c": "flush", "cid": "flush", "a": "persisted"})


class Flusher:
    """Waits for the server on behalf of one client, over all its connections.

    Args:
        commander: Sends the commands.
        publisher: Knows what is published, and what of it is persisted.
        queue_acks: Knows which acknowledgements of queue messages were sent.
        until_answered: Sends a command until a server has answered it: see `Core.until_answered`.
    """

    def __init__(
        self,
        commander: Commander,
        publisher: Publisher,
        queue_acks: QueueAcks,
        *,
        until_answered: Callable[
            [Callable[[], Awaitable[Message]], str, float], Awaitable[Message]
        ],
    ) -> None:
        self._commander = commander
        self._publisher = publisher
        self._queue_acks = queue_acks
        self._until_answered = until_answered

    async def processed(self, *, timeout: float, ack: str = "processed") -> None:
        """Wait until a server has processed every command sent so far.

        Args:
            timeout: Seconds to wait.
            ack: `persisted` waits until it has persisted or refused every publish so far.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            CommandError: The server refused it; `AuthenticationError` if it names that reason.
            DisconnectedError: The connection was lost, and no other one follows.
        """
        commander = self._commander

        async def flush() -> Message:
            fields: Fields = {"c": "flush", "cid": commander.session.next_command_id(), "a": ack}
            return await commander.command(fields, what="flush", awaited=ack, timeout=timeout)

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
            await self.processed(timeout=timeout)

    async def persisted(self, *, timeout: float) -> None:
        """Wait until everything published so far is persisted.

        Without a store, wait until the server has processed it, or persisted it where the caller
        numbers the publishes. With one, a `flush` that asks for `persisted` goes along, so that the
        server does not wait out its ack conflation.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimedOut: It took longer than `timeout` seconds; what is left stays in the store.
            DisconnectedError: There is no connection, or it was lost.
        """
        publisher, commander = self._publisher, self._commander
        log = publisher.log
        if log is None:
            numbered, sent = publisher.sequences.last_published > 0, publisher.sent_unstored
            await self.processed(timeout=timeout, ack="persisted" if numbered else "processed")
            publisher.confirmed_unstored = max(publisher.confirmed_unstored, sent)
            return
        target = log.last_sequence
        if not log.unpersisted_count:
            return
        if commander.connection is not None and commander.status.is_logged_on:
            commander.connection.writer.send(_FLUSH_PERSISTED)
        with trio.move_on_after(timeout):
            await publisher.wait_persisted(target, "publish_flush")
            return
        raise commander.status.timed_out(
            f"publish_flush: {log.unpersisted_count} publishes are not persisted after "
            f"{timeout:g} s; {what_remains(log)}"
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
            if (refused := publisher.refusals.get(sequence)) is not None:
                raise copy.copy(refused)  # several tasks may ask
            return
        late = f"{what}: {sequence} is not persisted after {limit_s or timeout:.3g} s"
        raise self._commander.status.timed_out(late)

    async def wait_empty(self, *, timeout: float) -> None:
        """Wait until nothing is unpersisted.

        Args:
            timeout: Seconds to wait.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: The connection was lost.
        """
        log = self._publisher.log
        with trio.move_on_after(timeout):
            while log is not None and log.unpersisted_count:
                await self.persisted(timeout=math.inf)
            return
        late = f"wait_empty: not everything is persisted after {timeout:g} s"
        raise self._commander.status.timed_out(late)
