"""Pauses bookmark subscriptions at the server while their queues are full.

A connection has one socket. Where reading stops for one slow consumer, every other subscription
waits with it, and so do the acks of publishes and commands. The server keeps the position of a
bookmark subscription, though, so it can hold that one back alone: once its queue is over the cap it
is paused, and when half of the cap is free it is resumed. What is on the way meanwhile is taken in,
up to a limit at which reading stops after all.

Plain subscriptions cannot be paused: what is published during a pause would never arrive. Queues
need none, since their backlog bounds what is on the way. Both stop the reading, and so does a
server that refuses to pause.
"""

from __future__ import annotations

from typing import Final

import trio
from typing_extensions import override

from haclient.errors import CommandError, DisconnectedError, HAClientError, TimedOut
from haclient.protocol.options import Options
from haclient.session.subscriptions import Subscription
from haclient.transport.commands import Commander
from haclient.transport.connection import FlowControl
from haclient.transport.message_queue import Delivery
from haclient.transport.nursery import open_nursery
from haclient.transport.settings import TIMEOUT_S

IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
"""How much a paused subscription may hold above its cap before reading stops after all.

It is what may be on the way when the pause is sent: in the buffers of both machines and of the
server. They belong to the connection, so all its subscriptions share this much.
"""


class AutomaticPauses(FlowControl):
    """The subscriptions of one connection that are paused because their queues are full.

    Args:
        commander: Sends the commands.
    """

    def __init__(self, commander: Commander) -> None:
        self._commander = commander
        self._reporter = commander.reporter
        self._nursery: trio.Nursery | None = None
        self._held: set[Subscription] = set()
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
        raise self._failures[0]  # several may fail at once, and one is the reason

    @override
    def holds_back(self, subscription: Subscription, queue: Delivery) -> bool:
        if subscription not in self._held:
            if self._nursery is None or not self._can_pause(subscription):
                return False
            self._held.add(subscription)
            self._nursery.start_soon(self._hold, subscription, queue)
        return queue.held_bytes <= queue.cap_bytes + IN_FLIGHT_BYTES

    def _can_pause(self, subscription: Subscription) -> bool:
        request = subscription.request
        return (
            self._commander.can_hold_back
            and request is not None
            and request.command == "subscribe"
            and bool(request.bookmark)
            and not subscription.is_of_queue
            and not Options.parse(request.options).live
        )

    async def _hold(self, subscription: Subscription, queue: Delivery) -> None:
        try:
            if await self._pause(subscription):
                await queue.drained()
                await self._resume(subscription)
        except (HAClientError, OSError, trio.ClosedResourceError) as error:
            self._failures.append(error)
            self._failed.set()
        finally:
            self._held.discard(subscription)

    async def _pause(self, subscription: Subscription) -> bool:
        """Pause it; return whether it has to be resumed."""
        try:
            await self._commander.hold_back(subscription, timeout=TIMEOUT_S)
        except CommandError as error:
            if self._commander.is_active(subscription):
                self._cannot(error)
            return False
        except TimedOut:  # it may have paused it all the same
            self._reporter.log.warning(
                "subscription %s is full, and the server has not answered within %g s to its pause",
                subscription.sub_id,
                TIMEOUT_S,
                extra={"sub_id": subscription.sub_id},
            )
        self._reporter.event("subscription_paused", sub_id=subscription.sub_id)
        return True

    async def _resume(self, subscription: Subscription) -> None:
        try:
            if await self._commander.resume_held_back(subscription, timeout=TIMEOUT_S):
                self._reporter.event("subscription_resumed", sub_id=subscription.sub_id)
        except (CommandError, TimedOut) as error:
            if not self._commander.is_active(subscription):
                return
            # It would stay silent for ever. A new connection begins without a pause.
            self._cannot(error)
            raise DisconnectedError(
                f"subscription {subscription.sub_id} was paused while its queue was full, and the "
                f"server does not resume it ({error}): this connection is of no more use"
            ) from error

    def _cannot(self, error: Exception) -> None:
        """Pause nothing more."""
        if not self._commander.can_hold_back:
            return
        self._commander.can_hold_back = False
        self._reporter.log.warning(
            "the server does not pause a full subscription (%s): from now on a slow consumer stops "
            "the reading of the whole connection",
            error,
        )
