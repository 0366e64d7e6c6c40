"""What a crash may take of what a store was given: the tables of stores/README.md, as functions.

Pure. What these functions do not name has to survive, and the checkers look whether it has.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from simulation.history import MessageId
from simulation.plans import PublisherPlan, SubscriberPlan

__all__ = [
    "BOOKMARK_GROUP_S",
    "EVERYTHING",
    "GROUP_S",
    "HYBRID_MEMORY_BYTES",
    "Waiting",
    "deliveries_at_risk",
    "discards_at_risk",
    "survives_up_to",
    "synced_up_to",
    "unsynced",
]

EVERYTHING: Final = 2**63
GROUP_S: Final = 0.1
"""How often a publish store is synced at durability `group`, in virtual seconds."""

BOOKMARK_GROUP_S: Final = 0.1
"""The same for a bookmark store: more seldom than by itself, or a run would be made of syncs."""

HYBRID_MEMORY_BYTES: Final = 2 * 32 * 1024
_GROUPS: Final = 2  # what was stored while a sync ran is in the next one


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that was accepted and, as far as its store knows, is not persisted.

    Attributes:
        at: When it was accepted.
        size: At least so many bytes of the store.
    """

    message: MessageId
    at: float
    size: int


def synced_up_to(
    plan: PublisherPlan, waiting: Mapping[int, Waiting], *, synced: int, since: float, now: float
) -> int:
    """The highest sequence that a loss of power has to leave, with all below it.

    Args:
        plan: Whose store.
        waiting: What it holds, by sequence.
        synced: What the store says is synced, or has said before.
        since: When the process began, and with it its syncs.
        now: The crash.
    """
    if plan.forgets:
        return 0
    if plan.durability == "fsync":
        return EVERYTHING
    if plan.durability == "process":
        return synced
    last = now - _GROUPS * GROUP_S
    return max(synced, *(s for s, each in waiting.items() if max(each.at, since) < last), 0)


def survives_up_to(
    plan: PublisherPlan,
    waiting: Mapping[int, Waiting],
    *,
    power: bool,
    synced: int,
    found: int,
) -> int:
    """The highest sequence that a crash has to leave, with all below it.

    Args:
        plan: Whose store.
        waiting: What it holds, by sequence.
        power: Whether the machine has lost its power; else the process was killed.
        synced: What is synced.
        found: What the process has found in files.
    """
    if power or plan.forgets:
        return synced
    if plan.store != "hybrid":
        return EVERYTHING
    return max(synced, found, _moved_out(waiting))


def _moved_out(waiting: Mapping[int, Waiting]) -> int:
    """What the memory of a hybrid store has no room for is in files."""
    newer_bytes = 0
    for sequence, each in sorted(waiting.items(), reverse=True):
        newer_bytes += each.size
        if newer_bytes > HYBRID_MEMORY_BYTES:
            return sequence
    return 0


def unsynced(
    plan: SubscriberPlan,
    discarded: Mapping[MessageId, float],
    *,
    needs_sync: bool,
    since: float,
    now: float,
) -> dict[MessageId, float]:
    """The discards that may be in memory only: the kernel's, or that of the process.

    Args:
        plan: Whose store.
        discarded: Discards that may not have been synced so far, and when they were.
        needs_sync: Whether the store says that something is not synced.
        since: When the process began, and with it its syncs.
        now: When it ends.
    """
    if plan.store in {"memory", "adapter"}:
        return dict(discarded)
    if not needs_sync:
        return {}
    last = 0.0 if plan.durability == "process" else now - _GROUPS * BOOKMARK_GROUP_S
    return {message: at for message, at in discarded.items() if max(at, since) >= last}


def deliveries_at_risk(
    plan: SubscriberPlan,
    undiscarded: Mapping[MessageId, float],
    *,
    power: bool,
    needs_sync: bool,
    since: float,
    now: float,
) -> frozenset[MessageId]:
    """The undiscarded messages that the next process may not know to have been delivered.

    Args:
        plan: Whose store.
        undiscarded: What was delivered and is not discarded, and when it was delivered.
        power: Whether the machine has lost its power; else the process was killed.
        needs_sync: Whether the store says that something is not synced.
        since: When the process began, and with it its syncs.
        now: The crash.
    """
    if plan.store != "logged":  # a ring keeps positions only
        return frozenset(undiscarded)
    if not power:
        return frozenset()
    return frozenset(unsynced(plan, undiscarded, needs_sync=needs_sync, since=since, now=now))


def discards_at_risk(
    plan: SubscriberPlan,
    discarded: Collection[MessageId],
    *,
    behind: Collection[MessageId],
    power: bool,
) -> frozenset[MessageId]:
    """The discards that a crash may take.

    What an adapter keeps is known when the next process asks for it; until then, none is.

    Args:
        plan: Whose store.
        discarded: What is unsynced.
        behind: What is discarded behind an undiscarded message.
        power: Whether the machine has lost its power; else the process was killed.
    """
    if plan.store == "adapter":
        return frozenset()
    lost = set(behind) if plan.store == "ring" else set[MessageId]()
    if power or plan.store == "memory":
        lost.update(discarded)
    return frozenset(lost)
