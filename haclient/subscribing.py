"""Subscriptions and queries: from a command to a stream or a handler.

Both forms use the same queue: the application's iteration consumes a stream, and a task of its own
runs a handler. `haclient.transport.commands` decides which acks are requested in addition to the
user's (`processed`, `completed`, `persisted`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import Final

import trio

from haclient.changing import Changer, timeout_of
from haclient.errors import (
    DisconnectedError,
    TimedOut,
    UsageError,
)
from haclient.protocol.codec import as_bytes
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.historical import is_historical
from haclient.session.queue_leases import QueueLeases
from haclient.session.subscriptions import (
    LASTING,
    QUERIES,
    Marker,
    Phase,
    SubscribeRequest,
    Subscription,
)
from haclient.streams import MessageStream, QueueStream
from haclient.transport.commands import header_fields
from haclient.transport.core import Core
from haclient.transport.message_queue import Delivery, Handler, HandlerErrorPolicy
from haclient.transport.query_delivery import QueryDelivery
from haclient.transport.settings import TIMEOUT_S, seconds
from haclient.workers.message_runner import FailedMessages, MessageRunner, PublishDeadLetter
from haclient.workers.queue_handlers import QueueHandling, serve_queue
from haclient_stores.bookmark import MOST_RECENT
from haclient_stores.checks import check_callable, check_texts
from haclient_stores.interfaces import SubscriptionLog

_OF_QUEUES: Final = frozenset({CommandName.SUBSCRIBE, CommandName.DELTA_SUBSCRIBE})
_PUBLISHES: Final = frozenset({CommandName.PUBLISH, CommandName.DELTA_PUBLISH})


@dataclasses.dataclass(slots=True, eq=False)
class _Opening:
    """A command whose opener waits for a server's answer, or for the connection to send it on.

    Attributes:
        sub_id: The id that it will have.
        scope: Cancelled when the application ends it before it was sent.
    """

    sub_id: str
    scope: trio.CancelScope = dataclasses.field(default_factory=trio.CancelScope)


class Subscriber:
    """The receiving half of a client's public API."""

    def __init__(self, core: Core, on_handler_error: HandlerErrorPolicy) -> None:
        self._core = core
        self.changer = Changer(core)
        self._on_handler_error: HandlerErrorPolicy = on_handler_error
        self._served: dict[str, set[Subscription]] = {}  # by id; their handlers have yet to end
        self._opening: dict[_Opening, None] = {}
        self._queues: set[str] = set()  # topics that a server has accepted as queues
        self._warned_of_replay: set[str] = set()  # topics
        self._warned_of_recent: set[str] = set()  # topics: ids may be new ones each time

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
        delivery = self._delivery_for(command, raises=True)
        delivery.error_policy = self._on_handler_error if leases is None else "continue"
        delivery.carries_deltas = "delta_subscribe" in command.name
        delivery.is_historical = is_historical(command.name, command.start)
        opened: list[Subscription] = []
        is_closed = False

        async def open_stream() -> str:
            self._core.running(f"a stream of {command.name}")
            subscription = await self._open(
                command, delivery, markers=markers, lasts=resumes, leases=leases
            )
            opened.append(subscription)
            self._limit_silence(subscription, delivery, timeout_of(command))
            self._core.consumers.add(subscription, delivery)
            if is_closed:  # by another task, before the server's answer came
                await close_stream()
            return subscription.sub_id

        async def close_stream() -> None:
            nonlocal is_closed
            is_closed = True
            delivery.drop()
            delivery.end()
            self._core.consumers.remove(delivery)
            for subscription in opened:
                self._core.closed(subscription)
            closing, opened[:] = opened[:], []  # once: a later stream may have the same id
            for subscription in closing:
                self._release(subscription, delivery.first_number)
            # Nobody needs the answer: it may be late, or queued behind what a full stream holds. A
            # later subscription with the same id waits for it before its command is sent.
            self._core.commander.leave([one for one in closing if self._is_active(one)])
            await trio.lowlevel.checkpoint()  # the writer sends it now

        check_thread = self._core.thread.check_caller
        kind = MessageStream if leases is None else partial(QueueStream, auto_ack=auto_ack)
        return kind(delivery, open_=open_stream, close=close_stream, check_thread=check_thread)

    @property
    def reconnects(self) -> bool:
        """Whether the client reconnects by itself."""
        return self._core.status.reconnects

    def start_task(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a function beside the handlers; it is cancelled when the client is left."""
        self._core.running("records").start_soon(function)

    def checked(self, *, resumes: bool) -> bool:
        """Return `resumes` after checking that this client supports it.

        Raises:
            UsageError: `resumes` is set, and this client does not reconnect by itself.
        """
        if resumes and not self.reconnects:
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
        self._core.running(command.name)
        check_callable("handler", handler, optional=False)
        if (active := self.changer.replaces(command)) is not None:
            is_served = active in self._served.get(active.sub_id, ())
            if not is_served or not isinstance(active.sink, Delivery):
                raise UsageError(
                    f"the subscription {active.sub_id!r} is a stream: change it with "
                    "client.replace, and go on reading it"
                )
            replace_handler = partial(setattr, active.sink, "handler", handler)
            await self.changer.replace_with(active, command, replace_handler)
            return active.sub_id
        delivery = self._delivery_for(command, raises=False)
        subscription = await self._open(
            command, delivery, markers=True, lasts=resubscribes, first_bookmark=first_bookmark
        )
        self._limit_silence(subscription, delivery, timeout_of(command))
        runner = self._runner(delivery, handler, auto_discard=auto_discard)
        self._serve(subscription, delivery, runner.serve)
        return subscription.sub_id

    async def handle_queue(
        self,
        command: Command,
        leases: QueueLeases,
        handler: Handler,
        handling: QueueHandling,
        publish: PublishDeadLetter,
    ) -> str:
        """Subscribe to a queue and give its messages to a handler.

        Args:
            command: What to send.
            leases: The leases of the subscription.
            handler: Called with each message.
            handling: How.
            publish: Publishes dead letters.

        Returns:
            The subscription id.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
        """
        self._core.running("queue_subscribe")
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = await self._open(command, delivery, markers=False, lasts=True, leases=leases)
        serving = partial(
            serve_queue,
            delivery,
            handler,
            handling,
            leases=leases,
            publish=publish,
            reporter=self._core.reporter,
        )
        self._serve(subscription, delivery, serving)
        return subscription.sub_id

    def _runner(
        self, queue: Delivery, handler: Handler, *, auto_discard: bool = False
    ) -> MessageRunner:
        """What calls a plain handler."""
        queue.handler = handler
        failed_messages = FailedMessages(self._on_handler_error, reporter=self._core.reporter)
        return MessageRunner(queue, failed_messages, discards=auto_discard)

    def _delivery_for(self, command: Command, *, raises: bool) -> Delivery:
        kind = QueryDelivery if command.name in QUERIES else Delivery
        return kind(self._core.settings.max_queued_bytes, raises=raises)

    def _limit_silence(self, one: Subscription, delivery: Delivery, limit_s: float) -> None:
        """End a query with `TimedOut` when its server sends neither records nor their end."""
        if not isinstance(delivery, QueryDelivery):
            return

        def overdue() -> TimedOut | None:
            connection, request = self._core.connection, one.request
            if not one.is_query and one.is_query_answered:
                delivery.lift_limit()
                return None
            is_held = one.pauses.may_be_paused or not self._is_active(one)
            if connection is None or not connection.is_reading or is_held:
                return None
            self._core.closed(one)
            self._core.commander.leave([one])
            missing = " and ".join(sorted(one.ends_after)) or "group_end"
            what = str(one.sub_id) if request is None else request.what
            return TimedOut(
                f"{what}: the server has sent nothing for {limit_s:g} s, and not yet {missing}: "
                "the result may be incomplete"
            )

        delivery.limit(limit_s, overdue, is_lasting=not one.is_query)

    def _serve(
        self,
        subscription: Subscription,
        delivery: Delivery,
        serving: Callable[[], Awaitable[None]],
    ) -> None:
        """Start the task that gives the messages to a handler."""

        async def serve_until_ended() -> None:
            try:
                await serving()
            except DisconnectedError as error:
                if self._core.entered:
                    raise
                # As with other callbacks, a call to a client that is being left is no failure.
                self._core.reporter.log.warning(
                    "the handler of subscription %s used its client when that was left: %s",
                    subscription.sub_id,
                    error,
                    extra={"sub_id": subscription.sub_id},
                )
                return
            finally:
                of_id = self._served[subscription.sub_id]
                of_id.remove(subscription)
                if not of_id:
                    del self._served[subscription.sub_id]
                self._core.consumers.remove(delivery)
            self._release(subscription)
            refused = delivery.failed
            if refused is not None and not self._core.drops(subscription.sub_id, refused):
                raise refused  # no other task would report that it has ended

        self._served.setdefault(subscription.sub_id, set()).add(subscription)
        delivery.is_served = True
        self._core.consumers.add(subscription, delivery)
        self._core.running("a handler").start_soon(serve_until_ended)

    async def _publish(self, command: Command, handler: Handler | None) -> str:
        command.validate()
        if handler is not None:
            raise UsageError(
                f"the acks of a {command.name} have no handler: use publish and wait_persisted, "
                "and on_failed_write for what the server refuses"
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
        if command.name in _PUBLISHES:
            raise UsageError("a publish has no messages to stream: use execute_async or publish")
        if self.changer.pauses(command) is not None:
            raise _has_receiver(command)
        if _deletes(command):
            raise UsageError(
                "a sow_delete is published, and has nothing to stream: use execute_async or "
                "sow_delete"
            )
        return await self.stream(command, markers=True).open()

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
        if command.name in _PUBLISHES:
            return await self._publish(command, handler)
        if (paused := self.changer.pauses(command)) is not None:
            await self.changer.pause(
                _split_ids(command.sub_id), paused=paused, timeout=timeout_of(command)
            )
            return command.sub_id
        if command.name is CommandName.UNSUBSCRIBE:
            command.validate()
            ids = _split_ids(f"{command.sub_id},{command.query_id}")
            chosen = "all" if ids == ["all"] else ids
            await self.unsubscribe(chosen, timeout=timeout_of(command))
            return ""
        if _deletes(command) or (_acknowledges(command) and handler is None):
            await self._delete(command, handler)
            return ""
        active = self.changer.replaces(command)
        if active is not None and handler is None:
            await self.changer.replace_with(active, command)
            return active.sub_id
        if handler is None:
            raise UsageError(f"{command.name} needs a handler for its messages")
        return await self.handle(command, handler, resubscribes=resubscribes)

    async def _delete(self, command: Command, handler: Handler | None) -> None:
        """Carry out a `sow_delete` of records, or one that acknowledges messages of a queue."""
        command.validate()
        if not _deletes(command):
            await self.acknowledge(command, timeout=timeout_of(command))
            return
        stats = await self._core.flusher.sow_delete(
            command.to_fields(), as_bytes(command.body), timeout=timeout_of(command)
        )
        if handler is not None and isawaitable(result := handler(stats)):
            await result

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
            return await self._core.commander.command(
                header, what=what, awaited=awaited, timeout=timeout
            )

        if _acknowledges(command):  # the same messages, however often it is sent
            late = f"{what}: no server accepted it"
            return await self._core.until_answered(send, late, timeout)
        with trio.move_on_after(timeout):
            await self._core.ready()
            return await send()
        late = f"{what}: the server did not answer within {timeout:g} s"
        raise self._core.status.timed_out(late)

    # -- ending what is active ---------------------------------------------------

    async def unsubscribe(self, ids: str | Iterable[str], *, timeout: float | None) -> None:
        """End subscriptions.

        Args:
            ids: One id, several, or `all`; an unknown one is no error, and so is an empty one.
            timeout: Seconds to wait for the server's answer; `None` for no limit.
        """
        self._core.thread.check("unsubscribe")
        wanted = check_texts("sub_ids", ids)
        chosen = self._core.subscriptions() if ids == "all" else self._named(wanted)
        sent = {one.sub_id for one in chosen}
        for opening in self._opening:  # those that wait for the next connection are no ones yet
            if opening.sub_id not in sent and (ids == "all" or opening.sub_id in wanted):
                opening.scope.cancel()
        for one in chosen:  # all of them first: if that fails, the call can be made again
            self._core.closed(one)
        for one in chosen:
            one.drop_queued()
            one.sink.mark(Marker.ENDED)
        await self._leave(chosen, timeout=timeout)

    def _named(self, ids: Iterable[str]) -> list[Subscription]:
        """The subscriptions that have not ended and have one of these ids, or query ids."""
        router, resumable = self._core.session.router, self._core.resumable
        found: dict[Subscription, None] = {}
        for one_id in filter(None, ids):  # the query id of a subscription that is no query is empty
            known = [one for one in (router.get(one_id), resumable.get(one_id)) if one is not None]
            if not known:  # while there is no connection, nothing has a table of query ids
                known = [one for one in resumable.values() if one.query_id == one_id]
            found.update(dict.fromkeys(known))
        return list(found)

    def undo(self) -> Callable[[str], Awaitable[None]]:
        """Remember what is active before a call, whose caller may never get its result.

        Returns:
            A coroutine function that takes the result of the call, and ends the subscription or
            query that the call has begun. What was active before stays: the call has paused,
            resumed or replaced it. So does a publish, which cannot be taken back.
        """
        before = frozenset(self._core.subscriptions())

        async def undo(result: str) -> None:
            for one in self._core.subscriptions():
                if one.sub_id == result and one.request is not None and one not in before:
                    await self.unsubscribe(result, timeout=TIMEOUT_S)

        return undo

    async def _open(
        self,
        command: Command,
        delivery: Delivery,
        *,
        markers: bool,
        lasts: bool,
        leases: QueueLeases | None = None,
        first_bookmark: str = "",
    ) -> Subscription:
        """Send a command; a client that reconnects tries until a server has answered it."""
        if leases is None and command.name in _OF_QUEUES and not str(command.bookmark):
            leases = self._core.ack_sender.leases(command.topic, is_queue=False)
        opening = _Opening(command.sub_id or command.query_id)
        self._opening[opening] = None
        attempt = partial(
            self._open_once, command, delivery, opening, markers=markers, leases=leases
        )
        try:
            with opening.scope:
                late = f"{command.name}: no server accepted it"
                subscription = await self._core.until_answered(attempt, late, timeout_of(command))
                # It may have been ended before its ack was looked at: by the application, or the
                # server.
                if lasts and self._is_active(subscription):
                    self._remember(subscription, first_bookmark)
                return subscription
            raise UsageError(
                f"{opening.sub_id!r} was unsubscribed before a server had accepted its command"
            )
        finally:
            del self._opening[opening]

    async def _open_once(
        self,
        command: Command,
        delivery: Delivery,
        opening: _Opening,
        *,
        markers: bool,
        leases: QueueLeases | None,
    ) -> Subscription:
        if self.changer.replaces(command) is not None:
            raise _has_receiver(command)
        commander = self._core.commander
        command_id = command.command_id or self._core.session.next_command_id()
        fields, is_tracked = header_fields(command), commander.bookmark_store is not None
        if is_tracked and command.name in LASTING and "bm" in fields and not _is_named(command):
            # The numbers of commands are the same in each process, and stores remember ids: an
            # earlier process may have used this number for another subscription.
            fields["sub_id"] = commander.generate_id(command_id)
        request = SubscribeRequest.complete(
            fields, command.body, command_id=command_id, has_store=is_tracked
        )
        self._check_remembered(command, request)
        opening.sub_id = request.sub_id
        self._warn_of_recent(command, request)
        self._warn_of_replay(command, request)
        try:
            subscription = await commander.open(
                request,
                delivery,
                command_id=command_id,
                markers=markers,
                timeout=timeout_of(command),
                leases=leases,
                on_entering=partial(self._release_processed, request),
            )
        except BaseException:  # meanwhile an earlier handler may have ended, without a release
            if _is_named(command):
                self._release_log(commander.log_of(request), request.sub_id)
            raise
        if subscription.phase is Phase.LOST:  # right after the ack
            reason = self._core.status.lost_reason  # none if there is another one already
            raise DisconnectedError(f"{command.name}: the connection was lost") from reason
        subscription.phase = Phase.OPEN
        if subscription.is_of_queue:
            self._queues.add(command.topic)
            self._core.queue_acks.resume()  # what an earlier connection has not confirmed
        return subscription

    def _remember(self, subscription: Subscription, first_bookmark: str) -> None:
        """Register a subscription to be resubscribed; end it if that fails.

        A command that ends by itself is not registered.

        Args:
            subscription: The subscription.
            first_bookmark: As for `handle`.

        Raises:
            StoreError: The subscription manager cannot write it; the subscription is ended.
        """
        request = subscription.request
        if request is None or request.command not in LASTING:
            return
        if first_bookmark:  # before it is written: a kill must not leave another one there
            subscription.request = request.changed({"bm": first_bookmark})
        try:
            self._core.opened(subscription)
        except BaseException:  # the caller has no handle to end the subscription with
            self._core.resumable.pop(subscription.sub_id, None)
            self._core.commander.leave([subscription])
            subscription.drop_queued()
            raise

    def _check_remembered(self, command: Command, request: SubscribeRequest) -> None:
        """Check that a query at `MOST_RECENT` has an id of the application.

        Raises:
            UsageError: It has none: a generated id would differ from run to run.
        """
        named = command.sub_id or command.query_id
        recent = request.bookmark == str(MOST_RECENT)
        if recent and request.query_id and not named:
            raise UsageError(
                f"{command.name} with MOST_RECENT needs a sub_id: the bookmark store remembers "
                "under it where the subscription was, so it is the same in every run"
            )

    def _warn_of_recent(self, command: Command, request: SubscribeRequest) -> None:
        """Say once what `MOST_RECENT` means when nothing is remembered."""
        tracked = self._core.commander.bookmark_store is not None
        recent = command.start == str(MOST_RECENT)
        if recent and not tracked and command.topic not in self._warned_of_recent:
            self._warned_of_recent.add(command.topic)
            self._core.reporter.log.warning(
                "subscription %s on %s: without a bookmark store MOST_RECENT begins at the start "
                "of the log each time, and discard() does nothing: give the client a "
                "bookmark_store, or bookmark=EPOCH if that is what you want",
                request.sub_id,
                command.topic,
                extra={"sub_id": request.sub_id},
            )

    def _warn_of_replay(self, command: Command, request: SubscribeRequest) -> None:
        """Say once that a bookmark subscription to a queue is none of its consumers.

        The server does not say so. It can be known where this client has consumed the queue, or
        where a backlog is asked for.
        """
        if not request.bookmark or command.topic in self._warned_of_replay:
            return
        asks_for_backlog = Options.parse(request.options).max_backlog is not None
        if command.topic in self._queues or asks_for_backlog:
            self._warned_of_replay.add(command.topic)
            self._core.reporter.log.warning(
                "subscription %s on %s has a bookmark, so it replays the log and consumes no "
                "queue: messages have no leases, and ack() does nothing; use queue_subscribe to "
                "consume a queue",
                request.sub_id,
                command.topic,
                extra={"sub_id": request.sub_id},
            )

    def _release(self, ended: Subscription, first_number: int = 0) -> None:
        self._release_log(ended.log, ended.sub_id, first_number, ended)

    def _release_log(
        self,
        log: SubscriptionLog | None,
        sub_id: str,
        first_number: int = 0,
        ended: Subscription | None = None,
    ) -> None:
        """Have undiscarded messages redelivered, unless the id is still in use.

        It is in use when it was subscribed again with a bookmark, or while a slow handler still
        processes messages that were delivered before the end of its subscription.
        """
        others = [one for one in self._named((sub_id,)) if one is not ended]
        if log is None or any(one.log is not None for one in others):
            return
        if all(one.log is None for one in self._served.get(sub_id, ())):
            log.ended()
            if sub_id not in self._core.resumable:  # else a later process may restore it
                self._core.commander.purge_generated(sub_id)
        elif first_number:
            log.link_lost(first_number)

    def _release_processed(self, request: SubscribeRequest) -> None:
        """Have undiscarded messages of an id redelivered to the subscription that enters it now.

        Earlier handlers that are still at work keep what they have yet to process.
        """
        log, named = self._core.commander.log_of(request), self._named((request.sub_id,))
        if log is None or any(one.log is not None for one in named):
            return
        served = self._served.get(request.sub_id, ())
        sinks = [one.sink for one in served if one.log is not None]
        if sinks:
            taken = [one.unprocessed() for one in sinks if isinstance(one, Delivery)]
            log.ended_except({message.number for messages in taken for message in messages})

    async def _leave(
        self, subscriptions: list[Subscription], *, timeout: float | None = TIMEOUT_S
    ) -> None:
        active = [one for one in subscriptions if self._is_active(one)]
        if active:
            await self._core.commander.unsubscribe(active, timeout=seconds(timeout))

    def _is_active(self, subscription: Subscription) -> bool:
        return self._core.session.router.get(subscription.sub_id) is subscription


def _check_command(command: object) -> None:
    if not isinstance(command, Command):
        raise UsageError(f"command is a Command, such as Command('flush'), not {command!r:.60}")


def _split_ids(text: str) -> list[str]:
    """The ids in a list of a command, which may contain blanks."""
    return [each.strip() for each in text.split(",") if each.strip()]


def _has_receiver(command: Command) -> UsageError:
    return UsageError(
        f"{command.sub_id!r} is active and has its stream or handler already: use execute_async, "
        "or pause, resume and replace of the client"
    )


def _deletes(command: Command) -> bool:
    """Whether it deletes records, which is published."""
    return command.name is CommandName.SOW_DELETE and not _acknowledges(command)


def _acknowledges(command: Command) -> bool:
    """Whether it acknowledges messages of a queue by their bookmarks."""
    return command.name is CommandName.SOW_DELETE and bool(str(command.bookmark))


def _is_named(command: Command) -> bool:
    """Whether the application has chosen an id for the subscription of a command."""
    return bool(command.sub_id or command.query_id or command.command_id)
