"""Where bookmark subscriptions are entered, and how far they were heard (BS9, HA17, design 5).

The rules are in `session/resuming.py`; this carries them out. Each entry is asked for in the best
form first; a server that refuses a list with a time gets the list alone, and a warning says so.
When a server has accepted one, its store notes whose log it follows from here on; while messages
come it notes about once a second up to when the server was heard. The times are this machine's;
`session/unstepped.py` says why steps of its clock do no harm.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

from haclient.errors import InvalidBookmark
from haclient.session.resuming import forms
from haclient.session.subscriptions import Subscription
from haclient.session.unstepped import Unstepped
from haclient_stores.interfaces import SubscriptionLog

__all__ = ["OVERLAP_S", "Places", "best_first"]

OVERLAP_S: Final = 5.0
"""How long before a server was heard last the replay on another begins, in seconds."""

_logger = logging.getLogger(__name__)


class Places:
    """The subscriptions of one client and the servers that they are entered at.

    Args:
        clock_us: Tells microseconds since 1970, by a clock that may step.

    Attributes:
        server: The address of the server in use.
        overlap_us: How long before a server was heard last the replay on another begins.
    """

    def __init__(self, clock_us: Callable[[], int]) -> None:
        self.server = ""
        self.overlap_us = int(OVERLAP_S * 1_000_000)
        self._clock_us = clock_us
        self._unstepped: Unstepped | None = None

    def now_us(self) -> int:
        """The time; called once when the client starts, and from then on steps do no harm."""
        wall_us, now = self._clock_us(), trio.current_time()
        if self._unstepped is None:
            self._unstepped = Unstepped(wall_us, now)
        return self._unstepped.earliest_us(wall_us, now)

    def forms(self, log: SubscriptionLog, last: str = "") -> tuple[str, ...]:
        """What to ask this server for, the best form first."""
        return forms(log, self.server, last=last, overlap_us=self.overlap_us)

    def entering(self, subscription: Subscription) -> None:
        """Its command is about to be sent; from the server's word on its store follows its log."""
        log, server, first = subscription.log, self.server, subscription.accepted
        subscription.whereabouts.entering(trio.current_time())
        if log is None:
            return

        def accepted() -> None:
            if first is not None:
                first()
            if log.standing.server != server:
                subscription.whereabouts.last = ""
            log.entered(server)

        subscription.accepted = accepted

    def heard(self, subscriptions: Iterable[Subscription], until: float, *, last: bool) -> None:
        """The server was heard up to a time; `last` when it is not heard any more."""
        now = trio.current_time()
        for one in subscriptions:
            log, whereabouts = one.log, one.whereabouts
            heard_at = None if log is None else whereabouts.heard_at(until, now)
            if log is not None and heard_at is not None and (whereabouts.moved or last):
                ago_us = int((now - heard_at) * 1_000_000)
                log.heard(max(1, self.now_us() - ago_us))


async def best_first(
    bookmarks: tuple[str, ...], enter: Callable[[str], Awaitable[None]], where: str
) -> None:
    """Ask for the first of these forms that the server understands.

    Args:
        bookmarks: The forms.
        enter: Enters the subscription with one of them.
        where: Who is asked, for people to read.

    Raises:
        InvalidBookmark: It refuses the last one, too.
    """
    *better, last = bookmarks
    for bookmark in better:
        try:
            await enter(bookmark)
        except InvalidBookmark:
            _logger.warning("%s refuses bookmarks with a time anchor", where)
        else:
            return
    await enter(last)
