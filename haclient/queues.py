"""The methods of a client for message queues: subscribe, stream and acknowledge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import trio
from typing_extensions import Unpack

from haclient.errors import TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient.protocol.options import Options
from haclient.publishing import PublishingClient
from haclient.session.queue_acks import MAX_BOOKMARKS
from haclient.streams import MessageStream
from haclient.subscribing import Subscriber
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler
from haclient.transport.queue_acks import QueueConsumer
from haclient.transport.queue_handlers import (
    DEFAULT_MAX_BACKLOG,
    QueueHandlerOptions,
    QueueHandling,
)
from haclient.transport.settings import TIMEOUT_S, seconds
from haclient_stores.checks import check_callable, check_texts

__all__ = ["QueueClient", "QueueHandlerOptions"]


class QueueClient(PublishingClient):
    """The methods of a client for queues, a base of `haclient.client.Client`."""

    _subscriber: Subscriber

    async def queue_subscribe(
        self,
        topic: str,
        *,
        handler: Handler,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        timeout: float | None = TIMEOUT_S,
        **handling: Unpack[QueueHandlerOptions],
    ) -> str:
        """Consume a queue: `handler` gets each message that the server leases to this consumer.

        A message is acknowledged when its handler has returned. When the handler raises, the
        message is never acknowledged; `on_handler_error` says what happens to it:

        * `"cancel"` gives it back, after a delay that doubles with each failure of this message
          in this subscription, from 0.1 to 30 seconds; during the delay it counts towards the
          backlog;
        * `"expire"` removes it as expired;
        * `DeadLetter(topic)` publishes a copy, and acknowledges the message once that is persisted;
        * a callable gets message and error, and may acknowledge, cancel or expire the message,
          which is given back otherwise;
        * `"raise"` lets the error leave the client's block; the message is redelivered.

        `"continue"` is `"cancel"` here, and `"discard"` is `"expire"`.

        After a lost connection an `HAClient` subscribes again. Messages that wait for the handler
        are dropped, since the server redelivers them. A message that the handler is processing is
        redelivered too, unless its acknowledgement is sent first.

        Args:
            topic: A queue, or a regular expression for several.
            handler: A coroutine function or plain function that takes a `Message`.
            filter: Content filter: messages that do not match are left to other consumers.
            options: Further options of the subscription.
            sub_id: The subscription id; empty to have one chosen.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.
            **handling: Backlog, workers, error policy, leases; see `QueueHandlerOptions`.

        Returns:
            The subscription id, for `unsubscribe`.

        Raises:
            UsageError: An argument can never work.
            CommandError: The server refused it: `InvalidTopic`, `NotEntitled`, ... The reference
                broker answers with `InvalidOptions` if the topic is no queue.
            SubIdInUse: The id is active on this connection.
            TimedOut: The server did not answer within `timeout` seconds.
        """
        check_callable("handler", handler, optional=False)
        chosen = QueueHandling(**handling)
        command = _subscribe(topic, chosen.max_backlog, filter, options, sub_id)
        command.timeout = seconds(timeout)
        return await self._consume(command, handler, chosen)

    def queue_stream(  # noqa: PLR0913  # the parts of one command
        self,
        topic: str,
        *,
        max_backlog: int = DEFAULT_MAX_BACKLOG,
        filter: str = "",  # noqa: A002  # the protocol's word
        options: str | Options = "",
        sub_id: str = "",
        auto_ack: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> MessageStream:
        """The stream form of `queue_subscribe`; call `message.ack()` on processed messages.

        `with message:` acknowledges a message at the end of the block, unless the block raises.
        With `auto_ack` a message is acknowledged when the next one is requested, so the last one
        is not. On an `HAClient` the stream continues after a lost connection.

        Args:
            topic: A queue, or a regular expression for several.
            max_backlog: How many messages may be with this consumer unacknowledged; the server may
                grant less.
            filter: Content filter: messages that do not match are left to other consumers.
            options: Further options of the subscription.
            sub_id: The subscription id; empty to have one chosen.
            auto_ack: Whether a message is acknowledged when the next one is requested.
            timeout: Seconds to wait for the server's answer when the stream is opened; `None` waits
                for as long as it takes.

        Returns:
            The stream. Enter it with `async with`; that sends the command and raises what
            `queue_subscribe` does.
        """
        command = _subscribe(topic, max_backlog, filter, options, sub_id)
        command.timeout = seconds(timeout)
        consumer = QueueConsumer(self._core.queue_acks, topic, is_queue=True, asked=max_backlog)
        return self._subscriber.stream(command, resumes=True, queue=consumer, auto_ack=auto_ack)

    async def ack(
        self,
        topic: str,
        bookmarks: str | Sequence[str],
        *,
        cancel: bool = False,
        expire: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> None:
        """Acknowledge messages of a queue by their bookmarks, no matter which consumer has them.

        The server skips without an error messages that have left the queue, and with `strict`
        leasing those that another consumer has. The call waits for the server's answer; for
        messages that this client has received, `message.ack()` is faster.

        Args:
            topic: The queue.
            bookmarks: One bookmark, or several.
            cancel: Give the messages back.
            expire: Remove the messages as expired.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Raises:
            UsageError: A bookmark does not name a message, or `cancel` and `expire` were given.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
            TimedOut: The server did not answer in time.
        """
        names = check_texts("bookmarks", bookmarks)
        if not names:
            return
        options = str(Options(cancel=cancel, expire=expire))
        for first in range(0, len(names), MAX_BOOKMARKS):
            part = ",".join(names[first : first + MAX_BOOKMARKS])
            command = Command("sow_delete", topic=topic, bookmark=part, options=options)
            command.validate()
            await self._subscriber.acknowledge(command, timeout=seconds(timeout))

    async def ack_matching(
        self,
        topic: str,
        filter: str,  # noqa: A002  # the protocol's word
        *,
        cancel: bool = False,
        expire: bool = False,
        timeout: float | None = TIMEOUT_S,
    ) -> int:
        """Acknowledge all messages of a queue that match a filter, leased or not.

        Args:
            topic: The queue.
            filter: Content filter; `1=1` matches every message.
            cancel: Give the messages back.
            expire: Remove the messages as expired.
            timeout: Seconds to wait for the server's answer; `None` waits for as long as it takes.

        Returns:
            The number of acknowledged messages, as the server reports it.

        Raises:
            UsageError: The filter is empty, or `cancel` and `expire` were given.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, or it was lost before the answer. It is not
                sent again, since it would also acknowledge what was published meanwhile.
            TimedOut: The server did not answer in time.
        """
        if not filter:
            raise UsageError("ack_matching needs a filter; '1=1' matches every message")
        options = str(Options(cancel=cancel, expire=expire))
        command = Command("sow_delete", topic=topic, filter=filter, options=options)
        command.validate()
        stats = await self._subscriber.acknowledge(
            command, awaited="stats", timeout=seconds(timeout)
        )
        return stats.records_deleted or 0

    async def flush_acks(self, *, timeout: float | None = TIMEOUT_S) -> None:
        """Wait until the server has answered every acknowledgement of a message so far.

        One that it refuses is logged as an error, and its message may be redelivered.

        Args:
            timeout: Seconds to wait; `None` waits for as long as it takes.

        Raises:
            TimedOut: It took longer than `timeout` seconds.
            DisconnectedError: There is no connection, or it was lost; an `HAClient` waits instead.
        """
        self._core.thread.check("flush_acks")
        await self._core.flusher.acks(timeout=seconds(timeout))

    @property
    def dropped_acks(self) -> int:
        """How many acknowledgements were dropped because a lost connection had ended their leases.

        With `on_lost_lease="send"` it is 0, unless more were unconfirmed than the servers had
        granted.
        """
        return self._core.queue_acks.dropped

    async def _consume(self, command: Command, handler: Handler, handling: QueueHandling) -> str:
        """Send the command that consumes a queue, with the backlog of `handling`."""
        options = Options.parse(str(command.options))
        backlog = handling.max_backlog
        command.options = dataclasses.replace(options, max_backlog=backlog)
        consumer = QueueConsumer(self._core.queue_acks, command.topic, is_queue=True, asked=backlog)
        return await self._subscriber.handle_queue(
            command, consumer, handler, handling, self._publish_dead_letter
        )

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
    if core.publisher.log is not None:
        with trio.move_on_after(timeout):
            sequence = await core.publisher.publish_with(topic, data, correlation_id=correlation_id)
            await core.flusher.wait_persisted(sequence or 0, timeout=timeout)
            return
        raise TimedOut(f"the publish to {topic!r} waits for room since {timeout:g} s")
    command = Command("publish", topic=topic, data=data, correlation_id=correlation_id)
    fields = {
        **command.to_fields(),
        "cid": core.session.next_command_id(),
        "a": "processed",
    }
    # Without a store a refusal names the command, and nothing else does.
    await core.commander.command(fields, data, what=f"publish to {topic!r}", timeout=timeout)
    # On this connection: another one would know nothing of the publish.
    await core.commander.command(
        core.fields("flush", a="persisted"), what="flush", awaited="persisted", timeout=timeout
    )


def _subscribe(
    topic: str, max_backlog: int, content_filter: str, options: str | Options, sub_id: str
) -> Command:
    """The command that begins to consume a queue.

    Raises:
        UsageError: An option can never work.
    """
    given = Options.parse(str(options))
    if given.max_backlog is not None:
        raise UsageError(
            f"give the backlog of a queue as max_backlog={given.max_backlog}, not in the options"
        )
    return Command(
        "subscribe",
        topic=topic,
        filter=content_filter,
        options=dataclasses.replace(given, max_backlog=max_backlog),
        sub_id=sub_id,
    )
