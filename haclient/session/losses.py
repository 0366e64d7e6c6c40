"""What becomes of a subscription when its link is lost. Pure.

It follows from the kind of the subscription, and from whether another connection is expected.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from haclient.session.subscriptions import Phase, Subscription


class Kind(enum.Enum):
    """The kinds of subscriptions that lose their link in different ways."""

    OPENING = enum.auto()  # its opener waits for the server's answer
    TRACKED = enum.auto()  # a bookmark store knows where it resumes
    QUEUE = enum.auto()  # the server redelivers what is not acknowledged
    REPEATED_QUERY = enum.auto()  # its query is sent again
    PLAIN = enum.auto()  # it is sent again, and misses what is published meanwhile
    UNKEPT = enum.auto()  # it would go on, but nothing sends it again
    UNKEPT_QUEUE = enum.auto()
    QUERY = enum.auto()  # it ends by itself, and its result is incomplete


class LossAction(enum.Enum):
    """What is done with it."""

    DROP_QUEUED = enum.auto()  # but for what a replaced command has brought: that does not return
    DROP_ALL = enum.auto()  # undelivered messages
    SEND_AGAIN = enum.auto()  # by its opener
    MARK_REPLAY = enum.auto()  # what is missing is redelivered
    MARK_GAP = enum.auto()  # messages may be missing
    FAIL = enum.auto()  # its stream raises
    END = enum.auto()  # what has arrived is still delivered


_ENDS: Final = (LossAction.END,)
_QUEUE_ENDS: Final = (LossAction.DROP_ALL, LossAction.END)  # its messages are back in the queue
LOST: Final[Mapping[tuple[Kind, bool], tuple[LossAction, ...]]] = {
    (Kind.OPENING, True): (LossAction.DROP_QUEUED, LossAction.SEND_AGAIN),
    (Kind.TRACKED, True): (LossAction.DROP_QUEUED, LossAction.MARK_REPLAY),
    (Kind.QUEUE, True): (LossAction.DROP_ALL, LossAction.MARK_REPLAY),
    (Kind.REPEATED_QUERY, True): (LossAction.DROP_QUEUED, LossAction.MARK_GAP),
    (Kind.PLAIN, True): (LossAction.MARK_GAP,),
    (Kind.UNKEPT, True): (LossAction.FAIL,),
    (Kind.UNKEPT_QUEUE, True): (LossAction.DROP_ALL, LossAction.FAIL),
    (Kind.QUERY, True): _ENDS,
    (Kind.OPENING, False): _ENDS,
    (Kind.TRACKED, False): _ENDS,
    (Kind.QUEUE, False): _QUEUE_ENDS,
    (Kind.REPEATED_QUERY, False): _ENDS,
    (Kind.PLAIN, False): _ENDS,
    (Kind.UNKEPT, False): _ENDS,
    (Kind.UNKEPT_QUEUE, False): _QUEUE_ENDS,
    (Kind.QUERY, False): _ENDS,
}
"""What is done, by the kind and by whether another connection is expected."""


def kind_of(subscription: Subscription, *, is_kept: bool) -> Kind:
    """The kind of a subscription.

    Args:
        subscription: The subscription.
        is_kept: Whether it is sent again on another connection.
    """
    if subscription.phase is Phase.OPENING:
        return Kind.OPENING
    if subscription.is_query:
        return Kind.QUERY
    if subscription.is_of_queue:
        return Kind.QUEUE if is_kept else Kind.UNKEPT_QUEUE
    if not is_kept:
        return Kind.UNKEPT
    if subscription.log is not None:
        return Kind.TRACKED
    return Kind.REPEATED_QUERY if subscription.query_id else Kind.PLAIN
