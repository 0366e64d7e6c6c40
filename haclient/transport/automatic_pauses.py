"""Pauses bookmark subscriptions at the server while their queues are full.

A connection has one socket. If the client stops reading for one slow consumer, every other
subscription waits too, and so do the acks of publishes and commands. The server, however, keeps the
position of a bookmark subscription and can hold back that one alone. The client pauses it once its
queue is over the cap, and resumes it when half of the cap is free. Messages in flight meanwhile are
still accepted, up to a limit for all subscriptions together, at which reading stops after all.

A query of the past that a replay follows is paused once its records have arrived: then it is a
bookmark subscription like any other. A server may refuse to pause it all the same, so each command
counts for itself: that refusal says nothing about plain bookmark subscriptions.

Plain subscriptions cannot be paused: messages published during a pause would never arrive. Queues
need no pause, since their backlog bounds the messages in flight. For both the client stops reading,
as it does at a server that refuses to pause.
"""

from __future__ import annotations

import trio
from typing_extensions import override

from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut
from haclient.events import SubscriptionPaused, SubscriptionResumed
from haclient.options import TIMEOUT_S
from haclient.session.subscriptions import Subscription
from haclient.transport.back_pressure import BackPressure, queue_of
from haclient.transport.commands import Commands
from haclient.transport.nursery import open_nursery
from haclient.transport.reporter import Reporter
from haclient.transport.subscription_changes import SubscriptionChanges


class AutomaticPauses(BackPressure):
    """The subscriptions of one connection that are paused because their queues are full.

    Args:
        commands: Knows what is active, and where.
        changes: Pauses and resumes them.
        reporter: Receives the events and log records.
    """

    def __init__(
        self, commands: Commands, changes: SubscriptionChanges, reporter: Reporter
    ) -> None:
        super().__init__(commands.waits, reporter.calls)
        self._status = commands.status
        self._router = commands.session.router
        self._changes = changes
        self._reporter = reporter
        self._nursery: trio.Nursery | None = None
        self._paused: set[Subscription] = set()
        self._failed = trio.Event()
        self._failures: list[Exception] = []

    @override
    async def run(self) -> None:
        try:
            async with open_nursery() as self._nursery:
                await self._failed.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
        raise self._failures[0]  # several tasks may fail at once: the first one counts

    @override
    def pause_for_back_pressure(self, subscription: Subscription, /) -> bool:
        if subscription not in self._paused:
            if self._nursery is None or not self._can_pause(subscription):
                return False
            self._paused.add(subscription)
            self._nursery.start_soon(self._pause_until_drained, subscription)
        return True

    def _can_pause(self, subscription: Subscription) -> bool:
        request = subscription.request
        if subscription.is_of_queue or request.parsed.live:
            return False
        if (self._status.address, request.command) in self._changes.cannot_pause:
            return False
        return subscription.can_be_paused

    async def _pause_until_drained(self, subscription: Subscription) -> None:
        queue = queue_of(subscription)
        try:
            if await self._pause(subscription):
                await queue.drained()
                await self._resume(subscription)
        except (HAClientError, OSError, trio.ClosedResourceError) as error:
            self._failures.append(error)
            self._failed.set()
        finally:
            self._paused.remove(subscription)

    async def _pause(self, subscription: Subscription) -> bool:
        """Pause a subscription; return whether it has to be resumed."""
        try:
            await self._changes.pause_for_back_pressure(subscription, timeout=TIMEOUT_S)
        except CommandError as error:
            if subscription in self._router:
                self._give_up(subscription, error)
            return False
        except TimedOut:  # the server may have paused it nevertheless
            self._reporter.log.warning(
                "the queue of subscription %s is full, and the server has not answered its pause "
                "within %g s",
                subscription.sub_id,
                TIMEOUT_S,
                extra={"sub_id": subscription.sub_id},
            )
        self._reporter.emit(SubscriptionPaused, sub_id=subscription.sub_id)
        return True

    async def _resume(self, subscription: Subscription) -> None:
        try:
            if await self._changes.resume_after_drain(subscription, timeout=TIMEOUT_S):
                self._reporter.emit(SubscriptionResumed, sub_id=subscription.sub_id)
        except (CommandError, TimedOut) as error:
            if subscription not in self._router:
                return
            # It would stay silent for ever. A new connection begins without a pause.
            self._give_up(subscription, error)
            raise DisconnectedError(
                f"subscription {subscription.sub_id} was paused while its queue was full, and the "
                f"server does not resume it ({error}): the client has to reconnect"
            ) from error

    def _give_up(self, subscription: Subscription, error: Exception) -> None:
        """Pause no more subscriptions of this command at this server."""
        command = subscription.request.command
        refusal = self._status.address, command
        if refusal in self._changes.cannot_pause:
            return
        self._changes.cannot_pause.add(refusal)
        self._reporter.log.warning(
            "the server does not pause a subscription with a full queue (%s): from now on the "
            "client stops reading the whole connection for a slow consumer of a %s",
            error,
            command,
        )
