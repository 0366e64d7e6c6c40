"""Message queues: consuming one, and acknowledgements by bookmark or by filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import trio

from haclient.client.receiver import Receiver
from haclient.errors import TimedOut, UsageError
from haclient.options import TIMEOUT_S
from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.session.leases import MAX_BOOKMARKS, QueueLeases
from haclient.streams import MessageStream
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler
from haclient.workers.queue_handlers import QueueHandlerOptions, QueueHandling
from haclient_stores.checks import check_callable, check_texts


class Queues:
    """The consumers of queues of one client.

    Args:
        core: The client's.
        receiver: Sends the commands.
    """

    def __init__(self, core: Core, receiver: Receiver) -> None:
        self._core = core
        self._receiver = receiver

    async def subscribe(
        self, command: Command, handler: Handler, handling: QueueHandlerOptions
    ) -> str:
        """Consume a queue: the handler gets each message that the server leases to it.

        Args:
            command: The subscribe, without a backlog.
            handler: Called with each message.
            handling: The backlog, and what becomes of the messages.

        Returns:
            The subscription id.

        Raises:
            UsageError: An argument can never work.
            CommandError: The server refused it.
            TimedOut: The server did not answer in time.
        """
        check_callable("handler", handler, optional=False)
        chosen = QueueHandling(**handling)
        leases = self._leases(command, chosen.max_backlog)
        return await self._receiver.handle_queue(
            command, leases, handler, chosen, self._publish_dead_letter
        )

    def stream(self, command: Command, *, max_backlog: int, auto_ack: bool) -> MessageStream:
        """The stream form of `subscribe`."""
        leases = self._leases(command, max_backlog)
        return self._receiver.stream(command, resumes=True, leases=leases, auto_ack=auto_ack)

    def _leases(self, command: Command, backlog: int) -> QueueLeases:
        """Have a command ask for a backlog; the leases of its subscription."""
        given = Options.parse(str(command.options))
        if given.max_backlog is not None:
            raise UsageError(
                f"give the backlog of a queue as max_backlog={given.max_backlog}, not in the "
                "options"
            )
        command.options = dataclasses.replace(given, max_backlog=backlog)
        return self._core.ack_sender.leases(command.topic, is_queue=True, asked=backlog)

    async def ack(
        self, topic: str, bookmarks: str | Sequence[str], options: Options, *, timeout: float
    ) -> None:
        """Acknowledge messages by their bookmarks; see `BaseClient.ack`."""
        names = check_texts("bookmarks", bookmarks)
        for first in range(0, len(names), MAX_BOOKMARKS):
            part = ",".join(names[first : first + MAX_BOOKMARKS])
            command = Command("sow_delete", topic=topic, bookmark=part, options=str(options))
            command.validate()
            await self._receiver.acknowledge(command, timeout=timeout)

    async def ack_matching(
        self, topic: str, content_filter: str, options: Options, *, timeout: float
    ) -> int:
        """Acknowledge all messages that match a filter; see `BaseClient.ack_matching`."""
        if not content_filter:
            raise UsageError("ack_matching needs a filter; '1=1' matches every message")
        command = Command("sow_delete", topic=topic, filter=content_filter, options=str(options))
        command.validate()
        stats = await self._receiver.acknowledge(command, awaited="stats", timeout=timeout)
        return stats.records_deleted or 0

    async def _publish_dead_letter(self, topic: str, data: bytes, correlation_id: str) -> None:
        """Publish a copy of a message, and wait until it is persisted.

        Raises:
            HAClientError: It is not persisted.
        """
        await publish_persisted(self._core, topic, data, correlation_id)


async def publish_persisted(
    core: Core, topic: str, data: bytes, correlation_id: str, *, timeout: float = TIMEOUT_S
) -> None:
    """Publish one message, and wait until it is persisted, or refused.

    Args:
        core: The client's.
        topic: A literal topic.
        data: The body.
        correlation_id: Its correlation id.
        timeout: Seconds for the publish and for the wait.

    Raises:
        PublishFailed: The server refused it.
        TimedOut: It took longer.
        DisconnectedError: The connection was lost.
    """
    sequence = None
    with trio.move_on_after(timeout) as scope:
        sequence = await core.publisher.publish_with(topic, data, correlation_id=correlation_id)
    if sequence is None:
        raise TimedOut(f"the publish to {topic!r} waits for room since {timeout:g} s")
    left_s = max(0.0, scope.deadline - trio.current_time())
    await core.flusher.wait_persisted(
        sequence, timeout=left_s, limit_s=timeout, what=f"the publish to {topic!r}"
    )
