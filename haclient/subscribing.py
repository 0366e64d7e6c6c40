"""Subscriptions and queries: from a command to a stream or a handler (rows CC11-CC18, MS1-MS8).

Both forms are the same queue: a stream is consumed by whoever iterates, a handler by a task of its
own. What the server is asked for beyond the user's command (`processed`, `completed`, `persisted`)
is decided in `haclient.transport.commander`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from inspect import isawaitable
from typing import Final

import trio

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    NameInUse,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import AckType, Command, CommandName, parse_acks
from haclient.session.subscriptions import Marker, Phase, Subscription
from haclient.streams import MessageStream
from haclient.transport.commander import Fields, drop_queued
from haclient.transport.core import Core
from haclient.transport.dispatch import Delivery
from haclient.transport.handling import Handler, HandlerErrorPolicy, serve
from haclient.transport.settings import TIMEOUT_S, seconds
from haclient_stores.bookmark import EPOCH, MOST_RECENT

__all__ = ["Subscriber"]

_LASTING: Final = frozenset(
    {
        CommandName.SUBSCRIBE,
        CommandName.DELTA_SUBSCRIBE,
        CommandName.SOW_AND_SUBSCRIBE,
        CommandName.SOW_AND_DELTA_SUBSCRIBE,
    }
)
_PUBLISHES: Final = frozenset({CommandName.PUBLISH, CommandName.DELTA_PUBLISH})
_logger = logging.getLogger(__name__)


class Subscriber:
    """The receiving half of a client's public API."""

    def __init__(self, core: Core, on_handler_error: HandlerErrorPolicy) -> None:
        self._core = core
        self._on_handler_error: HandlerErrorPolicy = on_handler_error
        self._served: list[str] = []  # ids whose handlers have yet to end

    def stream(
        self, command: Command, *, markers: bool = False, resumes: bool = False
    ) -> MessageStream:
        """A stream that sends `command` when it is opened.

        Args:
            command: What to send.
            markers: Whether `group_begin` and `group_end` are messages of the stream.
            resumes: Whether a client that reconnects enters it again (MS3).
        """
        delivery = Delivery(self._core.settings.max_queued_bytes)
        opened: list[Subscription] = []

        async def open_stream() -> str:
            self._core.running()
            opened.append(await self._open(command, delivery, markers=markers, lasts=resumes))
            return opened[0].sub_id

        async def close_stream() -> None:
            delivery.drop()
            delivery.end()
            closing, opened[:] = opened[:], []  # once: a later stream may have the same id
            for subscription in closing:
                self._core.closed(subscription)
                self._release(subscription, delivery.first_number)
            # Nobody needs the answer: it may be late, or stand behind what a full stream holds. A
            # later subscription with the same id waits for it before its command is sent.
            self._core.commander.leave([one for one in closing if self._is_active(one)])
            await trio.lowlevel.checkpoint()  # the writer sends it now

        return MessageStream(
            delivery,
            open_=open_stream,
            close=close_stream,
            check_thread=self._core.thread.check,
        )

    async def handle(
        self, command: Command, handler: Handler, *, auto_discard: bool = False
    ) -> str:
        """Send `command` and give its messages to `handler`, in order; the subscription id."""
        self._core.running()
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = await self._open(command, delivery, markers=True, lasts=True)
        self._serve(subscription, delivery, handler, auto_discard=auto_discard)
        return subscription.sub_id

    def _serve(
        self,
        subscription: Subscription,
        delivery: Delivery,
        handler: Handler,
        *,
        auto_discard: bool = False,
    ) -> None:
        """Start the task that gives the messages to `handler`."""

        async def serve_until_ended() -> None:
            try:
                await serve(delivery, handler, self._on_handler_error, discards=auto_discard)
            finally:
                self._served.remove(subscription.sub_id)
            self._release(subscription)
            refused = delivery.failed
            if refused is not None and not self._core.drops(subscription.sub_id, refused):
                raise refused  # nobody else would ever hear that it is over

        self._served.append(subscription.sub_id)
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
        if not awaited:
            raise UsageError(
                f"the handler of a {command.name} gets the acks processed and completed, which "
                "ack_type does not ask for; persisted acks do not name a command: use "
                "publish and wait_persisted"
            )
        # A stored publish may be sent again by a later process: no later id may equal its own.
        log = publisher.log
        own_id = session.next_command_id() if log is None else f"publish-{log.last_sequence + 1}"
        command_id = command.command_id or own_id
        delivery = Delivery(self._core.settings.max_queued_bytes, raises=False)
        subscription = Subscription(
            command_id, delivery, command_id=command_id, user_acks=awaited, ends_after=awaited
        )
        session.router.add(subscription)  # before it is sent, so that no ack is missed
        try:
            await publisher.publish_command(command, command_id)
        except BaseException:
            session.router.remove(subscription)
            raise
        self._serve(subscription, delivery, handler)
        return command_id

    async def execute(self, command: Command) -> MessageStream:
        """Send any command; its messages and the acks it asks for as an open stream (CC18)."""
        if command.name in _PUBLISHES:
            raise UsageError("a publish has no messages to stream: use execute_async or publish")
        if command.name is CommandName.SOW_DELETE and self._core.publisher.log is not None:
            raise UsageError(
                "with a publish store a sow_delete is kept like a publish and has nothing to "
                "stream: use execute_async or sow_delete"
            )
        return await self.stream(command, markers=True).open()

    async def execute_async(self, command: Command, handler: Handler | None) -> str:
        """Send any command; its messages and the acks it asks for go to `handler` (CC18)."""
        self._core.thread.check("execute_async")
        if command.name in _PUBLISHES:
            return await self._publish(command, handler)
        if command.name is CommandName.UNSUBSCRIBE:
            command.validate()
            ids = command.sub_id or command.query_id
            chosen = ids if ids == "all" else ids.split(",")
            await self.unsubscribe(chosen, timeout=_timeout(command))
            return ""
        if command.name is CommandName.SOW_DELETE and self._core.publisher.log is not None:
            command.validate()
            stats = await self._core.sow_delete(
                command.to_fields(), command.body, timeout=_timeout(command)
            )
            if handler is not None and isawaitable(result := handler(stats)):
                await result
            return ""
        if handler is None:
            raise UsageError(f"{command.name} needs a handler for its messages")
        return await self.handle(command, handler)

    async def unsubscribe(self, ids: str | Iterable[str], *, timeout: float | None) -> None:
        """End subscriptions by id, or all of them; unknown ids are over already (CC17)."""
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
        self, command: Command, delivery: Delivery, *, markers: bool, lasts: bool
    ) -> Subscription:
        """Send a command; a client that reconnects tries until a server has answered it."""
        if not self._core.status.reconnects:
            return await self._open_once(command, delivery, markers=markers, lasts=lasts)
        with trio.move_on_after(_timeout(command)):
            while True:
                await self._core.ready()
                try:
                    return await self._open_once(command, delivery, markers=markers, lasts=lasts)
                except (AuthenticationError, NameInUse):  # an answer, though not to a logon
                    raise
                except DisconnectedError:
                    continue
        raise TimedOut(f"{command.name}: no server accepted it within {_timeout(command):g} s")

    async def _open_once(
        self, command: Command, delivery: Delivery, *, markers: bool, lasts: bool
    ) -> Subscription:
        fields = _fields(command)
        options = fields.get("opts", "")
        subscription = await self._core.commander.open(
            fields, delivery, body=command.body, markers=markers, timeout=_timeout(command)
        )
        if subscription.phase is Phase.LOST:  # right behind the ack
            raise DisconnectedError(f"{command.name}: the connection was lost")
        subscription.phase = Phase.OPEN
        if lasts and command.name in _LASTING:
            self._core.opened(subscription, {**fields, "opts": options}, command.body)
        return subscription

    def _release(self, ended: Subscription, first_number: int = 0) -> None:
        """What is not discarded comes again, but for what others of the same id have in hand.

        There is another when the id was entered again, and when a slow handler has not yet done
        with what it got before its end.
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


def _timeout(command: Command) -> float:
    return TIMEOUT_S if command.timeout is None else command.timeout


def _fields(command: Command) -> Fields:
    """The command's header; `MOST_RECENT` stays for the commander to resolve.

    Raises:
        UsageError: No server could carry it out.
    """
    recent = str(command.bookmark) == str(MOST_RECENT)
    if recent:
        command = command.copy().set_bookmark(EPOCH)
    command.validate()
    fields = command.to_fields()
    if recent:
        fields["bm"] = str(MOST_RECENT)
    return fields
