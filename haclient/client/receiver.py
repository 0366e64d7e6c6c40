"""Subscriptions and queries: from a command to a stream or a handler.

Both forms use the same queue: the application's iteration consumes a stream, and a task of its own
runs a handler. Which acks are requested in addition to the user's (`processed`, `completed`,
`persisted`) is decided by `SubscribeRequest.complete` in `haclient.session.subscriptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from inspect import isawaitable

import trio

from haclient.errors import HAClientError, SubscriptionFull, TimedOut, UsageError
from haclient.options import TIMEOUT_S
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.historical import is_historical
from haclient.session.intents import Intent, intent_of, replaced_by, split_ids, why_not_streamed
from haclient.session.leases import MAX_BOOKMARKS, QueueLeases
from haclient.session.subscriptions import (
    QUERIES,
    Subscription,
)
from haclient.streams import MessageStream, QueueStream
from haclient.transport.core import Core
from haclient.transport.message_queue import Handler, HandlerErrorPolicy, MessageQueue, QueryQueue
from haclient.transport.subscriber import Subscriber
from haclient.transport.subscription_control import timeout_of
from haclient.workers.message_runner import MessageRunner
from haclient.workers.queue_handlers import QueueHandlerOptions, QueueHandling, serve_queue
from haclient_stores.checks import check_callable, check_texts


class Receiver:
    """The receiving half of a client's public API.

    Args:
        core: The client.
        subscriber: Opens and ends subscriptions.
    """

    def __init__(self, core: Core, subscriber: Subscriber) -> None:
        self._core = core
        self._subscriber = subscriber
        self._on_handler_error: HandlerErrorPolicy = core.settings.on_handler_error

    def stream(
        self,
        command: Command,
        *,
        markers: bool = False,
        resumes: bool = False,
        leases: QueueLeases | None = None,
        auto_ack: bool = False,
    ) -> MessageStream:
        """A stream that sends `command` when it is opened.

        Args:
            command: What to send.
            markers: Whether `group_begin` and `group_end` are messages of the stream.
            resumes: Whether a client that reconnects sends it again.
            leases: Its leases, if its topic is a queue.
            auto_ack: Whether a queue message is acknowledged when the next one is asked for.

        Returns:
            The stream; entering it sends the command.
        """
        queue = self._queue_for(command, raises=True)
        queue.error_policy = self._on_handler_error if leases is None else "continue"
        queue.carries_deltas = "delta_subscribe" in command.name
        queue.is_historical = is_historical(command.name, command.start)
        opened: list[Subscription] = []
        is_closed = False

        async def open_stream() -> str:
            subscription = await self._subscriber.open(
                command, queue, markers=markers, lasts=resumes, leases=leases
            )
            opened.append(subscription)
            self._subscriber.logs.read(subscription)
            self._limit_silence(subscription, queue, timeout_of(command))
            self._core.consumers.add(subscription, queue)
            if is_closed:  # by another task, before the server's answer came
                await close_stream()
            return subscription.sub_id

        async def close_stream() -> None:
            nonlocal is_closed
            is_closed = True
            queue.drop()
            queue.end()
            self._core.consumers.remove(queue)
            self._close(opened)
            await trio.lowlevel.checkpoint()  # the writer sends it now

        check_thread = self._core.thread.check_caller
        kind = MessageStream if leases is None else partial(QueueStream, auto_ack=auto_ack)
        return kind(queue, open_=open_stream, close=close_stream, check_thread=check_thread)

    def _close(self, opened: list[Subscription]) -> None:
        """End what a stream has opened, once: a later stream may have the same id."""
        # Nothing is left to end where the client was left, which has closed its stores.
        closing = opened[:] if self._core.thread.is_bound else []
        for subscription in closing:
            self._core.kept.drop(subscription)
        opened.clear()
        for subscription in closing:
            self._subscriber.logs.release(subscription)
        # Nobody needs the answer: it may be late, or queued behind what a full stream holds. A
        # later subscription with the same id waits for it before its command is sent.
        self._subscriber.unsubscribe_nowait(closing)

    def checked(self, *, resumes: bool) -> bool:
        """Return `resumes` after checking that this client supports it.

        Raises:
            UsageError: `resumes` is set, and this client does not reconnect by itself.
        """
        if resumes and not self._core.status.reconnects:
            raise UsageError(
                "resumes=True needs an HAClient: a Client does not reconnect by itself"
            )
        return resumes

    async def handle(
        self,
        command: Command,
        handler: Handler,
        *,
        auto_discard: bool = False,
        resubscribes: bool = True,
        first_bookmark: str = "",
    ) -> str:
        """Send a command and give its messages to a handler, in order.

        Args:
            command: What to send.
            handler: Called with each message, one at a time.
            auto_discard: Whether a message is discarded when the handler has returned.
            resubscribes: Whether a client that reconnects sends it again.
            first_bookmark: The bookmark at which it began in an earlier process, for the
                subscription manager; empty for where it begins now.

        Returns:
            The subscription id.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
            UsageError: It replaces a subscription that is a stream.
        """
        check_callable("handler", handler, optional=False)
        if (active := replaced_by(command, self._core.kept)) is not None:
            is_served = self._subscriber.logs.is_served(active)
            if not is_served or not isinstance(active.queue, MessageQueue):
                raise UsageError(
                    f"the subscription {active.sub_id!r} is a stream: change it with "
                    "client.replace, and go on reading it"
                )
            replace_handler = partial(setattr, active.queue, "handler", handler)
            await self._core.changes.replace_with(active, command, replace_handler)
            return active.sub_id
        queue = self._queue_for(command, raises=False)
        subscription = await self._subscriber.open(
            command, queue, markers=True, lasts=resubscribes, first_bookmark=first_bookmark
        )
        queue.handler = handler
        self._limit_silence(subscription, queue, timeout_of(command))
        runner = MessageRunner(
            queue, self._on_handler_error, discards=auto_discard, reporter=self._core.reporter
        )
        self._start_handler(subscription, queue, runner.serve)
        return subscription.sub_id

    async def handle_queue(
        self, command: Command, handler: Handler, options: QueueHandlerOptions
    ) -> str:
        """Consume a queue: the handler gets each message that the server leases to it.

        Args:
            command: The subscribe, without a backlog.
            handler: Called with each message.
            options: The backlog, and what becomes of the messages.

        Returns:
            The subscription id.

        Raises:
            UsageError: An argument can never work.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
        """
        check_callable("handler", handler, optional=False)
        handling = QueueHandling(**options)
        leases = self._leases(command, handling.max_backlog)
        self._core.running("queue_subscribe")
        queue = self._queue_for(command, raises=False)
        subscription = await self._subscriber.open(
            command, queue, markers=False, lasts=True, leases=leases
        )
        serving = partial(
            serve_queue,
            queue,
            handler,
            handling,
            leases=leases,
            publish=self._publish_dead_letter,
            reporter=self._core.reporter,
        )
        self._start_handler(subscription, queue, serving)
        return subscription.sub_id

    def queue_stream(self, command: Command, *, max_backlog: int, auto_ack: bool) -> MessageStream:
        """The stream form of `handle_queue`."""
        leases = self._leases(command, max_backlog)
        return self.stream(command, resumes=True, leases=leases, auto_ack=auto_ack)

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

    async def _publish_dead_letter(self, topic: str, data: bytes, correlation_id: str) -> None:
        await self._core.flusher.publish_persisted(
            topic,
            data,
            correlation_id=correlation_id,
            timeout=TIMEOUT_S,
            what=f"the publish to {topic!r}",
        )

    def _queue_for(self, command: Command, *, raises: bool) -> MessageQueue:
        kind = QueryQueue if command.name in QUERIES else MessageQueue
        queue = kind(self._core.settings.max_queued_bytes, raises=raises)
        queue.status = self._core.status
        return queue

    def _limit_silence(self, one: Subscription, queue: MessageQueue, limit_s: float) -> None:
        """End a query with `TimedOut` when its server sends neither records nor their end."""
        if not isinstance(queue, QueryQueue):
            return

        def overdue(full: SubscriptionFull | None) -> HAClientError | None:
            connection = self._core.connection
            if not one.is_query and one.is_query_answered:
                queue.lift_limit()
                return None
            is_held = one.pauses.may_be_paused or one not in self._core.session.router
            if full is None and (connection is None or not connection.is_reading or is_held):
                return None  # the server is not at fault
            self._core.kept.drop(one)
            self._subscriber.unsubscribe_nowait([one])
            if full is not None:
                return full
            missing = " and ".join(sorted(one.ends_after)) or "group_end"
            what = one.request.what
            return TimedOut(
                f"{what}: the server has sent nothing for {limit_s:g} s, and not yet {missing}: "
                "the result may be incomplete"
            )

        what = f"the records of {one.request.what}"
        # A lasting subscription that a handler has must not end for another one's slow consumer.
        ends = one.is_query or queue.handler is None
        reading = partial(self._core.commands.waits.reading, what, may_fail=ends)
        queue.limit(limit_s, overdue, is_lasting=not one.is_query, reading=reading)

    def _start_handler(
        self,
        subscription: Subscription,
        queue: MessageQueue,
        serving: Callable[[], Awaitable[None]],
    ) -> None:
        """Start the task that gives the messages to a handler."""

        async def serve_until_ended() -> None:
            try:
                await serving()
            finally:
                self._subscriber.logs.served(subscription)
                self._core.consumers.remove(queue)
            self._subscriber.logs.release(subscription)
            refused = queue.failed
            if refused is not None and not self._core.settings.drops(subscription.sub_id, refused):
                raise refused  # no other task would report that it has ended
            cut = queue.end_reason
            is_incomplete = subscription.is_query or isinstance(cut, TimedOut)
            if cut is not None and cut is not refused and is_incomplete and self._core.entered:
                self._report_cut(subscription, cut)  # the client has no part in it

        self._subscriber.logs.serve(subscription)
        queue.is_served = True
        self._core.consumers.add(subscription, queue)
        self._core.running("a handler").start_soon(serve_until_ended)

    def _report_cut(self, subscription: Subscription, error: HAClientError) -> None:
        """Report a query whose result is incomplete, since its handler cannot be told."""
        sub_id = subscription.sub_id
        text = f": the query of subscription {sub_id} has ended early: {error}"
        self._core.reporter.subscription_ended(sub_id, error, text=text)

    async def _publish(self, command: Command, handler: Handler | None) -> str:
        command.validate()
        if handler is not None:
            raise UsageError(
                f"the acks of a {command.name} have no handler: use publish and wait_persisted, "
                "and on_failed_write for what the server refuses"
            )
        command_id, session = command.command_id, self._core.session
        if command_id in session.pending or session.router.of_ack(command_id, command_id, ""):
            raise UsageError(
                f"the command id {command_id!r} of this {command.name} is that of a subscription, "
                "which would get its acks: leave it out, or choose one with a letter"
            )
        await self._core.publisher.publish_command(command, command.command_id)
        return command.command_id

    async def execute(self, command: Command) -> MessageStream:
        """Send any command; its messages and the acks it asks for come as an open stream.

        Args:
            command: What to send.

        Returns:
            The stream, which the server has accepted.

        Raises:
            UsageError: The command has no messages of its own; the message says what to use.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
        """
        _check_command(command)
        why_not = why_not_streamed(command, intent_of(command, self._core.kept))
        if why_not is not None:
            raise UsageError(why_not)
        stream = await self.stream(command, markers=True).open()
        active = self._core.session.router.get(stream.sub_id)
        return QueueStream.of(stream) if active is not None and active.is_of_queue else stream

    async def execute_async(
        self, command: Command, handler: Handler | None, *, resubscribes: bool = True
    ) -> str:
        """Send any command; its messages and the acks it asks for go to a handler.

        Args:
            command: What to send.
            handler: Called with each message and ack; `None` where none is asked for.
            resubscribes: Whether a client that reconnects sends a subscription again.

        Returns:
            The subscription id, or the id of a publish; empty for a command that has none.

        Raises:
            UsageError: The command needs a handler, or cannot be carried out as it is.
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
        """
        self._core.thread.check("execute_async")
        _check_command(command)
        timeout = timeout_of(command)
        match intent_of(command, self._core.kept):
            case Intent.PUBLISH:
                return await self._publish(command, handler)
            case Intent.PAUSE | Intent.RESUME as intent:
                ids, paused = split_ids(command.sub_id), intent is Intent.PAUSE
                await self._core.changes.pause(ids, paused=paused, timeout=timeout)
                return command.sub_id
            case Intent.UNSUBSCRIBE:
                command.validate()
                ids = split_ids(f"{command.sub_id},{command.query_id}")
                chosen = "all" if ids == ["all"] else ids
                await self._subscriber.unsubscribe(chosen, timeout=timeout)
                return ""
            case Intent.DELETE:
                await self._delete(command, handler, timeout=timeout)
                return ""
            case Intent.ACKNOWLEDGE if handler is None:
                command.validate()
                await self.acknowledge(command, timeout=timeout)
                return ""
            case _:
                return await self._send(command, handler, resubscribes=resubscribes)

    async def _send(self, command: Command, handler: Handler | None, *, resubscribes: bool) -> str:
        active = replaced_by(command, self._core.kept)
        if active is not None and handler is None:
            await self._core.changes.replace_with(active, command)
            return active.sub_id
        if handler is None:
            raise UsageError(f"{command.name} needs a handler for its messages")
        return await self.handle(command, handler, resubscribes=resubscribes)

    async def _delete(self, command: Command, handler: Handler | None, *, timeout: float) -> None:
        command.validate()
        stats = await self._core.flusher.sow_delete(
            command.to_fields(), command.body, timeout=timeout
        )
        if handler is not None and isawaitable(result := handler(stats)):
            await result

    async def ack(
        self, topic: str, bookmarks: str | Sequence[str], options: Options, *, timeout: float
    ) -> None:
        """Acknowledge messages by their bookmarks; see `BaseClient.ack`."""
        names = check_texts("bookmarks", bookmarks)
        for first in range(0, len(names), MAX_BOOKMARKS):
            part = ",".join(names[first : first + MAX_BOOKMARKS])
            command = Command("sow_delete", topic=topic, bookmark=part, options=str(options))
            command.validate()
            await self.acknowledge(command, timeout=timeout)

    async def ack_matching(
        self, topic: str, content_filter: str, options: Options, *, timeout: float
    ) -> int:
        """Acknowledge all messages that match a filter; see `BaseClient.ack_matching`."""
        if not content_filter:
            raise UsageError("ack_matching needs a filter; '1=1' matches every message")
        command = Command("sow_delete", topic=topic, filter=content_filter, options=str(options))
        command.validate()
        stats = await self.acknowledge(command, awaited="stats", timeout=timeout)
        return stats.records_deleted or 0

    async def acknowledge(
        self, command: Command, *, awaited: str = "processed", timeout: float
    ) -> Message:
        """Send a `sow_delete` for messages of a queue; it is never stored.

        Args:
            command: The command.
            awaited: The ack to wait for.
            timeout: Seconds to wait for a server's answer.

        Returns:
            That ack.

        Raises:
            CommandError: The server refused it.
        """
        self._core.running("ack")
        what = f"the acknowledgement on {command.topic!r}"
        acks = "processed" if awaited == "processed" else f"processed,{awaited}"
        fields = {**command.to_fields(), "a": acks}

        async def send() -> Message:
            header = {**fields, "cid": self._core.session.next_command_id()}
            return await self._core.commands.send(
                header, what=what, awaited=awaited, timeout=timeout
            )

        if str(command.bookmark):  # the same messages, however often it is sent
            late = f"{what}: no server accepted it"
            return await self._core.commands.until_answered(send, late, timeout)
        with trio.move_on_after(timeout):
            await self._core.commands.ready()
            return await send()
        late = f"{what}: the server did not answer within {timeout:g} s"
        raise self._core.status.timed_out(late)


def _check_command(command: object) -> None:
    if not isinstance(command, Command):
        raise UsageError(f"command is a Command, such as Command('flush'), not {command!r:.60}")
