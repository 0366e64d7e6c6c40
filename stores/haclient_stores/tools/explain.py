"""Which messages would be redelivered, and which would not, if the process died now.

The answer follows from the tracker and from how much of it the next process finds (`Survival`): a
log keeps everything, a ring keeps the recovery point and the position up to which everything was
discarded, and memory keeps nothing. Counts are of messages that this store has seen. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final

from typing_extensions import override

from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["Explanation", "Survival", "explain"]

_SHOWN: Final = 10


class Survival(enum.Enum):
    """How much of a subscription's state the next process finds."""

    ALL = "every discard"
    VECTORS = "the recovery point and how far everything was discarded"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a process that starts now and subscribes with MOST_RECENT would see.

    Attributes:
        sub_id: The subscription.
        resume: The wire bookmark that it would subscribe with; `0` is the start of the log.
        redelivered: Undiscarded messages, which are delivered again.
        repeated: Discarded messages that are delivered again nevertheless; one that was delivered
            twice may count twice.
        skipped: Discarded messages that the server sends again and the store filters out; a lower
            bound if a prune has dropped some of them.
        waiting: How many of those are sent again only because no persisted ack covers them yet; a
            lower bound after many of them were condensed.
        oldest: The bookmarks of the oldest undiscarded messages, ten at most.
        survives: What the next process finds of this store.
    """

    sub_id: str
    resume: str
    redelivered: int
    repeated: int
    skipped: int
    waiting: int
    oldest: tuple[str, ...]
    survives: str

    def as_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return asdict(self)

    @override
    def __str__(self) -> str:
        lines = [
            f"subscription {self.sub_id}: the next process finds {self.survives}",
            f"  resumes at    {self.resume}",
            f"  redelivered   {self.redelivered} undiscarded",
        ]
        if self.oldest:
            more = ", ..." if self.redelivered > len(self.oldest) else ""
            lines[-1] += f": {', '.join(self.oldest)}{more}"
        lines.append(f"  skipped       {self.skipped} discarded")
        if self.waiting:
            lines[-1] += f", {self.waiting} of them waiting for a persisted ack"
        lines.append(f"  repeated      {self.repeated} discarded")
        return "\n".join(lines)


def explain(
    sub_id: str, tracker: SubscriptionTracker, publishers: Publishers, survival: Survival
) -> Explanation:
    """Which messages would be redelivered, and which not, if the process died now.

    Args:
        sub_id: The id of the subscription.
        tracker: Its tracker.
        publishers: What the tracker's publisher indexes mean.
        survival: What the next process finds of the store.

    Returns:
        The recovery point and the message counts.
    """
    ids = publishers.ids
    waiting = sum(len(chunk.numbers) for chunk in tracker.finished.waiting)
    discarded_ahead = tracker.discarded_above.count
    in_front = _discarded_in_front(tracker, ids)
    filtered = {
        Survival.ALL: waiting + in_front + discarded_ahead,
        Survival.VECTORS: waiting + in_front,
        Survival.NOTHING: 0,
    }[survival]
    repeated = waiting + in_front + discarded_ahead - filtered
    nothing = survival is Survival.NOTHING
    if nothing:  # it starts over, so all that was ever discarded is redelivered
        repeated = tracker.next_number - tracker.first_number - tracker.undiscarded_count
    oldest = (str(Bookmark(ids[p], q)) for p, q in _undiscarded(tracker))
    return Explanation(
        sub_id=sub_id,
        resume=str(BookmarkList()) if nothing else tracker.resume(),
        redelivered=tracker.undiscarded_count,
        repeated=repeated,
        skipped=filtered,
        waiting=0 if nothing else waiting,
        oldest=tuple(islice(oldest, _SHOWN)),
        survives=survival.value,
    )


def _undiscarded(tracker: SubscriptionTracker) -> Iterator[tuple[int, int]]:
    for _, publisher, sequence, discarded in tracker.entries():
        if not discarded:
            yield publisher, sequence


def _discarded_in_front(tracker: SubscriptionTracker, ids: list[int]) -> int:
    """Entries at the front of the oldest chunk that the recovery point does not cover yet."""
    chunk, count = tracker.front()
    if chunk is None:
        return 0
    point = {
        b.publisher_id: b.sequence for b in tracker.recovery_point() if isinstance(b, Bookmark)
    }
    part = chunk.part(0, count)
    return sum(sequence > point.get(ids[p], 0) for _, p, sequence in part.entries())
