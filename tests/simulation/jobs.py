"""What is in the messages of queues. It follows from their numbers, so that checkers know it."""

from __future__ import annotations

from typing import Final

from simulation.history import MessageId

__all__ = [
    "BARRIER",
    "DEAD_TOPIC",
    "PRIORITY",
    "fields_of",
    "is_barrier",
    "is_poison",
    "priority_of",
]

DEAD_TOPIC: Final = "dead"
"""What queues copy to it has expired."""

PRIORITY: Final = "/priority"
"""The expression of queues with priorities."""

BARRIER: Final = "/barrier = 1"
"""The filter of queues with barriers."""


def priority_of(message: MessageId) -> int:
    """The higher, the sooner."""
    return message.number * 7 % 3


def is_barrier(message: MessageId) -> bool:
    """Whether it is one, where the queue has any."""
    return message.number % 10 == 7


def is_poison(message: MessageId) -> bool:
    """Whether no handler can ever process it."""
    return message.number % 13 == 6


def fields_of(message: MessageId) -> bytes:
    """The fields of its body that queues look at; all are equally long."""
    return b'"priority":%d,"barrier":%d,' % (priority_of(message), is_barrier(message))
