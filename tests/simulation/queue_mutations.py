"""Bugs of queues to plant, in the broker and in the client; `mutations` has all others."""

from __future__ import annotations

import contextlib
import heapq
import math
from typing import Final
from weakref import WeakKeyDictionary

from haclient.session import leases
from haclient.workers import message_runner
from haclient_fake_server.engine.queues import dispatcher, queue, selector
from simulation import queue_planning
from simulation.planting import Mutation, Ours, Registering, replace_attribute

__all__ = ["QUEUE_MUTATIONS"]

QUEUE_MUTATIONS: Final[dict[str, Mutation]] = {}
_mutation = Registering(QUEUE_MUTATIONS)


@_mutation(
    "the leases of a consumer that has gone are not returned", queue_planning.returned_in_order
)
def _leases_outlive_their_link(stack: contextlib.ExitStack) -> None:
    def unsubscribe(self: Ours, consumer: Ours, *values: Ours) -> None:
        kept, self._held[consumer.number] = self._held[consumer.number], {}
        unsubscribed(self, consumer, *values)
        self._held[consumer.number] = kept

    unsubscribed = replace_attribute(stack, queue.Queue, "unsubscribe", unsubscribe)


@_mutation("a lease that was extended never ends", queue_planning.extended)
def _extended_leases_never_end(stack: contextlib.ExitStack) -> None:
    def extend(self: Ours, positions: Ours, _: Ours, until_us: int) -> None:
        for position in positions:
            lease = self._by_position.get(position)
            if lease is not None and lease.due_us is not None:
                lease.due_us = max(lease.due_us, until_us)  # and no deadline for it

    replace_attribute(stack, queue.Queue, "extend", extend)


@_mutation(
    "the end of a former lease of a message ends the one that it has now", queue_planning.extended
)
def _former_leases_end_later_ones(stack: contextlib.ExitStack) -> None:
    def tick(self: Ours, now_us: int, limit: int) -> None:
        for _, position in self._lease_ends.take_due(now_us, limit):
            if (lease := self._by_position.get(position)) is not None:
                lease.due_us = now_us
                self._lease_ends.add(now_us, position)
        ticked(self, now_us, limit)

    ticked = replace_attribute(stack, queue.Queue, "tick", tick)


@_mutation(
    "a strict queue lets everybody acknowledge what another consumer has", queue_planning.overdue
)
def _strict_queues_are_sublet(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, queue.Queue, "_may_end", lambda *_: True)


@_mutation("what was acknowledged leaves the queue, and the journal does not know")
def _removals_are_not_recorded(stack: contextlib.ExitStack) -> None:
    replace_attribute(
        stack,
        dispatcher.QueueDispatcher,
        "_record_removals",
        lambda _self, queue: queue.removals.clear(),
    )


@_mutation(
    "a queue that delivers at most once records a delivery when it is acknowledged",
    queue_planning.interrupted,
)
def _deliveries_are_recorded_later(stack: contextlib.ExitStack) -> None:
    sent: WeakKeyDictionary[queue.Queue, dict[int, Ours]] = WeakKeyDictionary()

    def hand_out(self: Ours, delivery: Ours, **values: Ours) -> Ours:
        handed = handed_out(self, delivery, **values)
        if self.is_at_most_once:
            for lease, _ in reversed(handed):
                sent.setdefault(self, {})[lease.row.position] = self.removals.pop()
        return handed

    def forget(self: Ours, leases: Ours) -> None:
        forgot(self, leases)
        for lease in leases:
            if (removal := sent.get(self, {}).pop(lease.row.position, None)) is not None:
                self.removals.append(removal)

    handed_out = replace_attribute(stack, queue.Queue, "hand_out", hand_out)
    forgot = replace_attribute(stack, queue.Queue, "_forget", forget)


@_mutation("a cancel does not count", queue_planning.poisoned)
def _cancels_are_not_counted(stack: contextlib.ExitStack) -> None:
    def cancel(self: Ours, positions: Ours, *values: Ours) -> None:
        for position in positions:
            if (lease := self._by_position.get(position)) is not None:
                lease.cancels -= 1
        cancelled(self, positions, *values)

    cancelled = replace_attribute(stack, queue.Queue, "cancel", cancel)


@_mutation(
    "a barrier does not wait for an older message that was returned",
    queue_planning.barrier_and_return,
)
def _barriers_pass_what_was_returned(stack: contextlib.ExitStack) -> None:
    def next_delivery(self: Ours, *values: Ours) -> Ours:
        barrier = self._next_barrier()
        if barrier is not None and self._attempts and not self._by_position:
            return self._delivery_of_barrier(barrier) or chosen(self, *values)
        return chosen(self, *values)

    chosen = replace_attribute(stack, queue.Queue, "next_delivery", next_delivery)


@_mutation(
    "a message that is returned has the opposite of its priority", queue_planning.returned_in_order
)
def _priority_is_inverted_on_return(stack: contextlib.ExitStack) -> None:
    def returned(self: Ours, position: int, bodies: Ours) -> None:
        if not self._by_priority:
            was_returned(self, position, bodies)
        elif position < self._examined:
            heapq.heappush(self._heap, (-self._key(position)[0], position))

    was_returned = replace_attribute(stack, selector.Selector, "returned", returned)


@_mutation("what was acknowledged still counts against the backlog")
def _backlog_is_not_freed(stack: contextlib.ExitStack) -> None:
    def forget(self: Ours, leases: Ours) -> None:
        for lease in leases:
            lease.consumer.leased += 1
        forgot(self, leases)

    forgot = replace_attribute(stack, queue.Queue, "_forget", forget)


@_mutation("a message expires without the copy of it", queue_planning.poisoned)
def _expired_without_a_copy(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, dispatcher.QueueDispatcher, "_copy_expired", lambda *_: None)


@_mutation("the client acknowledges a message before its handler has returned")
def _ack_before_the_handler(stack: contextlib.ExitStack) -> None:
    async def run(self: Ours, messages: Ours, *values: Ours) -> None:
        for message in messages:
            if self._acks:
                message.ack()
            await ran(self, (message,), *values)

    ran = replace_attribute(stack, message_runner.MessageRunner, "run", run)


@_mutation("the client acknowledges a message although its handler has failed")
def _ack_of_a_failure(stack: contextlib.ExitStack) -> None:
    async def failed(_self: Ours, message: Ours, _error: Exception) -> None:
        message.ack()

    replace_attribute(stack, message_runner.MessageRunner, "failed", failed)


@_mutation(
    "acknowledgements that were not confirmed when the link was lost are forgotten",
    queue_planning.lost_links,
)
def _unsent_acks_are_lost(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, leases.QueueAcks, "_retain", lambda *_: None)


@_mutation("acknowledgements go to the topic of a message, and not to its queue")
def _acks_go_to_the_topic(stack: contextlib.ExitStack) -> None:
    def commands(_queue: str, *values: Ours) -> Ours:
        return made("jobs", *values)

    made = replace_attribute(stack, leases, "ack_commands", commands)


@_mutation(
    "what was acknowledged, or whose lease has ended, is handed out nevertheless",
    queue_planning.lost_links,
)
def _lost_leases_are_handed_out(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, leases.QueueLeases, "is_deliverable", lambda *_: True)


@_mutation(
    "a handler that is to be cut off goes on when its lease has ended", queue_planning.overlong
)
def _handlers_outlive_their_lease(stack: contextlib.ExitStack) -> None:
    replace_attribute(stack, message_runner.LeaseWatch, "_end_of", lambda *_: math.inf)
