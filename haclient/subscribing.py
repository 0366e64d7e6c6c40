"""Subscriptions and queries: from a command to a stream or a handler.

Both forms use the same queue: the application's iteration consumes a stream, and a task of its own
runs a handler. `haclient.transport.commands` decides which acks are requested in addition to the
user's (`processed`, `completed`, `persisted`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Final, TypeVar

import trio

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    InvalidOptions,
    NameInUse,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import AckType, Command, CommandName, parse_acks
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.session.subscriptions import LASTING, Marker, Phase, SubscribeRequest, Subscription
from haclient.streams import MessageStream, QueueStream
from haclient.transport.commands import Fields, drop_queued
from haclient.transport.core import Core
from haclient.transport.message_queue import Delivery, Handler, HandlerErrorPolicy, serve
from haclient.transport.queue_acks import QueueConsumer
from haclient.transport.queue_handlers import PublishDeadLetter, QueueHandling, serve_queue
from haclient.transport.settings import TIMEOUT_S, seconds
from haclient_stores.bookmark import EPOCH, MOST_RECENT

_OF_QUEUES: Final = frozenset({CommandName.SUBSCRIBE, CommandName.DELTA_SUBSCRIBE})
_PUBLISHES: Final = frozenset({CommandName.PUBLISH, CommandName.DELTA_PUBLISH})
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


class Subscriber:
    """The receiving half of a client's public API."""

    def __init__(self, core: Core, on_handler_error: HandlerErrorPolicy) -> None:
        self._core = core
        self._on_handler_error: HandlerErrorPolicy = on_handler_error
        self._served: list[str] = []  # ids whose handlers have yet to end
        self._warned: set[str] = set()
        self._queues: set[str] = set()  # topics that a server has accepted as queues
        self._warned_of_replay: set[str] = set()

    def stream(
        self,
        command: Command,
        *,
        markers: bool = False,
        resumes: bool = False,
        queue: QueueConsumer | None = None,
        auto_ack: bool = False,
    ) -> MessageStream:
        """A stream that sends `command` when it is opened.

        Args:
            command: What to send.
            markers: Whether `group_begin` and `group_end` are messages of the stream.
            resumes: Whether a client that reconnects sends it again.
            queue: The acknowledgements, if its topic is a queue.
            auto_ack: Whether a queue message is acknowledged when the next one is asked for.

        Returns:
            The stream; entering it sends the command.
        """
        delivery = Delivery(self._core.settings.max_queued_bytes)
        delivery.error_policy = self._on_handler_error if queue is None else "continue"
        delivery.is_of_deltas = "delta_subscribe" in command.name
        opened: list[Subscription] = []
        is_closed = False

        async def open_stream() -> str:
            self._core.running()
            subscription = await self._open(
                command, delivery, markers=markers, lasts=resumes, queue=queue
            )
            opened.append(subscription)
            self._core.intake.opened(subscription, delivery)
            if is_closed:  # by another task, before the server's answer came
                await close_stream()
            return subscription.sub_id

        async def close_stream() -> None:
            nonlocal is_closed
            is_closed = True
            delivery.drop()
            delivery.end()
            self._core.intake.left(delivery)
            closing, opened[:] = opened[:], []  # once: a later stream may have the same id
            for subscription in closing:
                self._core.closed(subscription)
                self._release(subscription, delivery.first_number)
            # Nobody needs the answer: it may be late, or queued behind what a full stream holds. A
            # later subscription with the same id waits for it before its command is sent.
            self._core.commander.leave([one for one in closing if self._is_active(one)])
            await trio.lowlevel.checkpoint()  # the writer sends it now

        check_thread = self._core.thread.check
        kind = MessageStream if queue is None else partial(QueueStream, auto_ack=auto_ack)
        return kind(delivery, open_=open_stream, close=close_stream, check_thread=check_thread)

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
    ) -> str:
        """Send a command and give its messages to a handler, in order.

        Args:
            command: What to send.
            handler: Called with each message, one at a time.
            auto_discard: Whether a message is discarded when the handler has returned.
            resubscribes: Whether a client that reconnects sends it again.

        Returns:
            The subscription id.

        Raises:
            CommandError: The server refused it.
            DisconnectedError: There is no connection, and none will follow.
            TimedOut: The server did not answer in time.
            UsageError: It replaces a subscription that is a stream.
        """
        self._core.running()
        handler = self._core.exceptions.watched(handler)
        if (active := self._replaces(command)) is not None:
            if active.sub_id not in self._served or not isinstance(active.sink, Delivery):
                raise UsageError(
                    f"the subscription {active.sub_id!r} is a stream: change it with "
                    "client.replace, and go on reading it"
                )
            await self._replace_with(active, command)
            active.sink.handler = handler
            return active.sub_id
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = await self._open(command, delivery, markers=True, lasts=resubscribes)
        policy = self._on_handler_error
        serving = partial(serve, delivery, handler, policy, discards=auto_discard)
        self._serve(subscription, delivery, serving)
        return subscription.sub_id

    async def handle_queue(
        self,
        command: Command,
        queue: QueueConsumer,
        handler: Handler,
        handling: QueueHandling,
        publish: PublishDeadLetter,
    ) -> str:
        """Subscribe to a queue and give its messages to a handler.

        Args:
            command: What to send.
            queue: The acknowledgements of the subscription.
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
        self._core.running()
        handler = self._core.exceptions.watched(handler)
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = await self._open(command, delivery, markers=False, lasts=True, queue=queue)
        serving = partial(serve_queue, delivery, handler, handling, consumer=queue, publish=publish)
        self._serve(subscription, delivery, serving)
        return subscription.sub_id

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
            finally:
                self._served.remove(subscription.sub_id)
                self._core.intake.left(delivery)
            self._release(subscription)
            refused = delivery.failed
            if refused is not None and not self._core.drops(subscription.sub_id, refused):
                raise refused  # no other task would report that it has ended

        self._served.append(subscription.sub_id)
        delivery.is_served = True
        self._core.intake.opened(subscription, delivery)
        self._core.running().start_soon(serve_until_ended)

    async def _publish(self, command: Command, handler: Handler | None) -> str:
        """Publish a command; `handler` gets the acks that name it."""
        command.validate()
        awaited = parse_acks(command.ack_type) - {AckType.PERSISTED}
        publisher, session = self._core.publisher, self._core.session
        if handler is None:
            await publisher.publish_command(command, command.command_id)
            return command.command_id
        self._core.running()
        handler = self._core.exceptions.watched(handler)
        if not awaited:
            raise UsageError(
                f"the handler of a {command.name} gets the acks processed and completed, which "
                "ack_type does not ask for; persisted acks do not name a command: use "
                "publish and wait_persisted"
            )
        log, own_id = publisher.log, session.next_command_id()
        if log is not None:
            # A later process may send a stored publish again: it draws from a higher sequence, so
            # no id of its own equals this one. Two tasks that publish now differ in `own_id`.
            own_id = f"publish-{log.last_sequence + 1}-{own_id}"
        command_id = command.command_id or own_id
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = Subscription(
            command_id, delivery, command_id=command_id, user_acks=awaited, ends_after=awaited
        )
        subscription.phase = Phase.OPEN  # never sent again: its wait ends with the connection
        session.router.add(subscription)  # before it is sent, so that no ack is missed
        try:
            await publisher.publish_command(command, command_id)
        except BaseException:  # refused or cancelled: no ack will come
            session.router.remove(subscription)
            raise
        self._serve(
            subscription, delivery, partial(serve, delivery, handler, self._on_handler_error)
        )
        return command_id

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
        if command.name in _PUBLISHES:
            raise UsageError("a publish has no messages to stream: use execute_async or publish")
        if self._pauses(command) is not None:
            raise _has_receiver(command)
        if self._is_stored(command):
            raise UsageError(
                "with a publish store a sow_delete is kept like a publish and has nothing to "
                "stream: use execute_async or sow_delete"
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
        if command.name in _PUBLISHES:
            return await self._publish(command, handler)
        if (paused := self._pauses(command)) is not None:
            await self.pause(command.sub_id.split(","), paused=paused, timeout=_timeout(command))
            return command.sub_id
        if command.name is CommandName.UNSUBSCRIBE:
            command.validate()
            ids = command.sub_id or command.query_id
            chosen = ids if ids == "all" else ids.split(",")
            await self.unsubscribe(chosen, timeout=_timeout(command))
            return ""
        if self._is_stored(command) or (_acknowledges(command) and handler is None):
            await self._delete(command, handler)
            return ""
        active = self._replaces(command)
        if active is not None and handler is None:
            await self._replace_with(active, command)
            return active.sub_id
        if handler is None:
            raise UsageError(f"{command.name} needs a handler for its messages")
        return await self.handle(command, handler, resubscribes=resubscribes)

    async def _delete(self, command: Command, handler: Handler | None) -> None:
        """Carry out a `sow_delete` that is stored, or that acknowledges messages of a queue."""
        command.validate()
        if not self._is_stored(command):
            await self.acknowledge(command, timeout=_timeout(command))
            return
        stats = await self._core.sow_delete(
            command.to_fields(), command.body, timeout=_timeout(command)
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
        self._core.running()
        what = f"the acknowledgement on {command.topic!r}"
        acks = "processed" if awaited == "processed" else f"processed,{awaited}"
        fields = {**command.to_fields(), "a": acks}

        async def send() -> Message:
            header = {**fields, "cid": self._core.session.next_command_id()}
            return await self._core.commander.command(
                header, what=what, awaited=awaited, timeout=timeout
            )

        if _acknowledges(command):  # the same messages, however often it is sent
            return await self._until_answered(send, what, timeout)
        with trio.move_on_after(timeout):
            await self._core.ready()
            return await send()
        raise TimedOut(f"{what}: the server did not answer within {timeout:g} s")

    def _is_stored(self, command: Command) -> bool:
        """Whether the publish store keeps this command until it is persisted."""
        has_store = self._core.publisher.log is not None
        return has_store and command.name is CommandName.SOW_DELETE and not _acknowledges(command)

    # -- changing what is active ----------------------------------------------

    def _active(self, sub_id: str) -> Subscription | None:
        """The subscription with this id that lasts until `unsubscribe`."""
        for one in self._core.subscriptions():
            if one.sub_id == sub_id and one.request is not None and not one.finite:
                return one
        return None

    def _pauses(self, command: Command) -> bool | None:
        """Whether a command pauses active subscriptions; `False` if it resumes them."""
        if command.name is not CommandName.SUBSCRIBE:
            return None
        options = Options.parse(str(command.options))
        ids = [each.strip() for each in command.sub_id.split(",") if each.strip()]
        if options.resume:
            return False
        known = bool(ids) and all(self._active(each) is not None for each in ids)
        return True if options.pause and not options.replace and (known or len(ids) > 1) else None

    def _replaces(self, command: Command) -> Subscription | None:
        """The active subscription that a command with the option `replace` is about."""
        if command.name not in LASTING or not Options.parse(str(command.options)).replace:
            return None
        return self._active(command.sub_id)

    async def pause(self, sub_ids: str | Iterable[str], *, paused: bool, timeout: float) -> None:
        """Pause bookmark subscriptions, or resume them, with one command.

        Args:
            sub_ids: One id, or several.
            paused: Whether to pause; else they are resumed.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: One of them is not active, or has no bookmark.
        """
        self._core.running()
        word = "pause" if paused else "resume"
        ids = [sub_ids] if isinstance(sub_ids, str) else list(sub_ids)
        if not ids:
            raise UsageError(f"{word} needs the id of a subscription, or several")
        chosen: list[Subscription] = []
        for sub_id in dict.fromkeys(map(str.strip, ids)):
            active = self._active(sub_id)
            if active is None or active.request is None or not active.request.bookmark:
                raise UsageError(
                    f"{word} takes active bookmark subscriptions, and {sub_id!r} is none: "
                    "subscribe with a bookmark first"
                )
            chosen.append(active)

        async def command() -> None:
            self._check_not_ended(chosen)
            await self._core.commander.pause(chosen, paused=paused, timeout=timeout)

        await self._until_answered(command, f"{word} of {','.join(ids)}", timeout)
        self._remember_changed(chosen)

    async def replace(
        self, sub_id: str, fields: Mapping[str, str | int], *, timeout: float
    ) -> None:
        """Replace some fields of an active subscription; its handler or stream continues.

        Args:
            sub_id: Its id.
            fields: The new values by wire name; the others stay.
            timeout: Seconds to wait for a server's answer.

        Raises:
            UsageError: It is not active.
        """
        self._core.running()
        active = self._active(sub_id)
        if active is None or active.request is None:
            raise UsageError(f"there is no active subscription {sub_id!r} to replace")
        request = active.request.changed(fields)

        async def command() -> None:
            self._check_not_ended([active])
            await self._core.commander.replace(active, request, timeout=timeout)

        await self._until_answered(command, f"replace of {sub_id}", timeout)
        self._remember_changed([active])

    def _check_not_ended(self, subscriptions: Iterable[Subscription]) -> None:
        """Look again after a wait for a connection: an unknown id may mean a new one to a server.

        Raises:
            UsageError: One of them has ended meanwhile.
        """
        for one in subscriptions:
            if self._active(one.sub_id) is not one:
                raise UsageError(f"the subscription {one.sub_id!r} is not active any more")

    async def _replace_with(self, active: Subscription, command: Command) -> None:
        """Replace a subscription by a whole command; what it does not say is as it was."""
        if str(command.bookmark):
            raise UsageError(
                f"the subscription {active.sub_id!r} keeps its position when it is replaced: leave "
                "the bookmark out, or unsubscribe first to begin elsewhere"
            )
        options = dataclasses.replace(Options.parse(str(command.options)), replace=False)
        plain = command.copy().set_options(options)
        fields: dict[str, str | int] = {"filter": "", "opts": "", **_fields(plain)}
        await self.replace(active.sub_id, fields, timeout=_timeout(command))

    async def _until_answered(
        self, command: Callable[[], Awaitable[_T]], what: str, timeout: float
    ) -> _T:
        """Run a command; where another connection will come, until a server has answered it."""
        if not self._core.status.reconnects:
            return await command()
        with trio.move_on_after(timeout):
            while True:
                await self._core.ready()
                try:
                    return await command()
                except (AuthenticationError, NameInUse):  # an answer, though not to a logon
                    raise
                except DisconnectedError:
                    continue
        raise TimedOut(f"{what}: no server accepted it within {timeout:g} s")

    def _remember_changed(self, subscriptions: Iterable[Subscription]) -> None:
        """Have the later form sent again after a lost connection."""
        for one in subscriptions:
            if self._core.resumable.get(one.sub_id) is one:
                self._core.opened(one)

    async def unsubscribe(self, ids: str | Iterable[str], *, timeout: float | None) -> None:
        """End subscriptions.

        Args:
            ids: One id, several, or `all`; an unknown one is no error.
            timeout: Seconds to wait for the server's answer; `None` for no limit.
        """
        self._core.thread.check("unsubscribe")
        wanted = {ids} if isinstance(ids, str) else set(ids)
        chosen = [
            one
            for one in self._core.subscriptions()
            if ids == "all" or wanted & {one.sub_id, one.query_id}
        ]
        for one in chosen:
            self._core.closed(one)
            drop_queued(one)
            one.sink.mark(Marker.ENDED)
        await self._leave(chosen, timeout=timeout)

    async def _open(
        self,
        command: Command,
        delivery: Delivery,
        *,
        markers: bool,
        lasts: bool,
        queue: QueueConsumer | None = None,
    ) -> Subscription:
        """Send a command; a client that reconnects tries until a server has answered it."""
        asks_for_backlog = queue is not None
        if queue is None and command.name in _OF_QUEUES and not str(command.bookmark):
            queue = QueueConsumer(self._core.queue_acks, command.topic, is_queue=False)
        attempt = partial(
            self._open_once, command, delivery, markers=markers, lasts=lasts, queue=queue
        )
        try:
            return await self._until_answered(attempt, str(command.name), _timeout(command))
        except InvalidOptions as error:
            if not asks_for_backlog:
                raise
            # The usual cause is a misspelt name: other topics have no option `max_backlog`.
            raise InvalidOptions(
                f"{error}: is {command.topic!r} a queue of this server?", reason=error.reason
            ) from error

    async def _open_once(
        self,
        command: Command,
        delivery: Delivery,
        *,
        markers: bool,
        lasts: bool,
        queue: QueueConsumer | None,
    ) -> Subscription:
        if self._replaces(command) is not None:
            raise _has_receiver(command)
        commander = self._core.commander
        command_id = command.command_id or self._core.session.next_command_id()
        request = SubscribeRequest.complete(
            _fields(command),
            command.body,
            command_id=command_id,
            has_store=commander.bookmark_store is not None,
        )
        self._warn_of_recent(command, request)
        self._warn_of_replay(command, request)
        subscription = await commander.open(
            request,
            delivery,
            command_id=command_id,
            markers=markers,
            timeout=_timeout(command),
            queue=queue,
        )
        if subscription.phase is Phase.LOST:  # right after the ack
            raise DisconnectedError(f"{command.name}: the connection was lost")
        subscription.phase = Phase.OPEN
        if subscription.is_of_queue:
            self._queues.add(command.topic)
            self._core.queue_acks.resume()  # what an earlier connection has not confirmed
        # It may have been ended before its ack was looked at: by the application, or the server.
        if lasts and request.command in LASTING and self._is_active(subscription):
            self._core.opened(subscription)
        return subscription

    def _warn_of_recent(self, command: Command, request: SubscribeRequest) -> None:
        """Say once what `MOST_RECENT` means when nothing is remembered."""
        recent = command.start == str(MOST_RECENT)
        if not recent or self._core.commander.bookmark_store is not None:
            return
        if request.sub_id not in self._warned:
            self._warned.add(request.sub_id)
            _logger.warning(
                "subscription %s on %s: without a bookmark store MOST_RECENT begins at the start "
                "of the log each time, and discard() does nothing: give the client a "
                "bookmark_store, or bookmark=EPOCH if that is what you want",
                request.sub_id,
                command.topic,
            )

    def _warn_of_replay(self, command: Command, request: SubscribeRequest) -> None:
        """Say once that a bookmark subscription to a queue is none of its consumers.

        The server does not say so. It can be known where this client has consumed the queue, or
        where a backlog is asked for.
        """
        if not request.bookmark or command.topic in self._warned_of_replay:
            return
        if command.topic in self._queues or "max_backlog" in request.options:
            self._warned_of_replay.add(command.topic)
            _logger.warning(
                "subscription %s on %s has a bookmark, so it replays the log and consumes no "
                "queue: messages have no leases, and ack() does nothing; use queue_subscribe to "
                "consume a queue",
                request.sub_id,
                command.topic,
            )

    def _release(self, ended: Subscription, first_number: int = 0) -> None:
        """Have the undiscarded messages redelivered, unless the id is still in use.

        It is in use when it was subscribed again, or while a slow handler still processes messages
        that were delivered before the end of its subscription.
        """
        if ended.log is None or any(
            one.sub_id == ended.sub_id and one is not ended for one in self._core.subscriptions()
        ):
            return
        if ended.sub_id not in self._served:
            ended.log.ended()
        elif first_number:
            ended.log.link_lost(first_number)

    async def _leave(
        self, subscriptions: list[Subscription], *, timeout: float | None = TIMEOUT_S
    ) -> None:
        active = [one for one in subscriptions if self._is_active(one)]
        if active:
            await self._core.commander.unsubscribe(active, timeout=seconds(timeout))

    def _is_active(self, subscription: Subscription) -> bool:
        return self._core.session.router.get(subscription.sub_id) is subscription


def _has_receiver(command: Command) -> UsageError:
    return UsageError(
        f"{command.sub_id!r} is active and has its stream or handler already: use execute_async, "
        "or pause, resume and replace of the client"
    )


def _acknowledges(command: Command) -> bool:
    """Whether it acknowledges messages of a queue by their bookmarks."""
    return command.name is CommandName.SOW_DELETE and bool(str(command.bookmark))


def _timeout(command: Command) -> float:
    return TIMEOUT_S if command.timeout is None else command.timeout


def _fields(command: Command) -> Fields:
    """The command's header; `MOST_RECENT` stays for the commander to resolve.

    Raises:
        UsageError: No server could carry it out.
    """
    recent = command.start == str(MOST_RECENT)
    if recent:
        command = command.copy().set_bookmark(EPOCH)
    command.validate()
    fields = command.to_fields()
    if recent:
        fields["bm"] = str(MOST_RECENT)
    return fields
