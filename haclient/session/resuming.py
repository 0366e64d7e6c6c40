"""What a subscription that resumes says to the server (protocol 7.3, design 5). Pure.

Terms. A message is *owed* when it was never received, or was received and forgotten unread. A place
to begin is *safe* on a server when everything owed stands behind it in that server's log. A server
begins at the earliest item of a list that it has, and it has every time.

**What a list covers.** All that is owed of a publisher whom the list names is behind that name, on
every server, since a publisher's messages keep their order. Of others it covers what the order of
the log covers: a list of what is finished is safe on a server when some of it has arrived from that
server, since everything owed came behind that, or is still to come (`Standing.orders`).

**Elsewhere** a publisher who is not named may stand earlier. What a server had until it was heard
last has arrived, if it has sent everything older (`completed`). So a list with that time, minus an
overlap for clocks that differ and for replication, is safe. While nothing was ever complete, there
is no such time, and only the start is safe. A time that was safe stays so, whatever is received
later: an entry that was lost before it was complete changes nothing.

**On the same server** before anything new of it is finished the last bookmark that it has sent goes
with the list: the entry began at a safe place, and from there to this bookmark everything has come.
Without one, what was asked for before is asked for again. That its replay was complete does not
make the list safe: the server may get what the list names later than something else.

**Taken over** from an adapter that does not know in whose order a list is, progress stands nowhere:
every server is another one. From a store of the application's own it is trusted.

What was received and is owed again (`again` in the tracker) of a publisher who is not named may be
anywhere where the order does not cover it; the store then answers with the start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.identity import version_number
from haclient.protocol.options import Options
from haclient.session.hearing import catching_up
from haclient_stores.bookmark import Bookmark, parse_bookmark
from haclient_stores.interfaces import SubscriptionLog

__all__ = ["Refusals", "Whereabouts", "forms", "resuming_options"]

_KNOWS_BOOKMARK_NOT_FOUND: Final = 5_030_500  # servers from 5.3.5 on (protocol 7.3)


def resuming_options(options: str, *, bookmark: str, version: str, again: bool) -> str:
    """The options of a subscribe that goes on where a store says.

    A server that knows none of the bookmarks would begin at the end of its log, which is a silent
    gap; where it can be told so it begins at the start, and the store filters what is known.

    Args:
        options: As the application gave them.
        bookmark: What is asked for; empty for a subscription without one.
        version: The server's, as it writes it.
        again: Whether it was entered before; on a new connection there is nothing to replace.
    """
    parsed = Options.parse(options)
    knows = version_number(version) >= _KNOWS_BOOKMARK_NOT_FOUND
    not_found = parsed.bookmark_not_found or ("epoch" if bookmark and knows else None)
    return str(replace(parsed, replace=parsed.replace and not again, bookmark_not_found=not_found))


class Whereabouts:
    """How far one subscription has got on one link; times are seconds on the caller's clock.

    Attributes:
        complete: Whether the server has sent all that it had when the subscription was entered.
        last: The last bookmark that it has sent, on this link or an earlier one; empty if none, or
            if messages do not come in the order of the log.
    """

    __slots__ = ("_behind_s", "_complete_at", "_entered_at", "_told", "complete", "last")

    def __init__(self) -> None:
        self.complete = False
        self.last = ""
        self._entered_at = 0.0
        self._complete_at: float | None = None
        self._behind_s = 0.0
        self._told: str | None = None

    def entering(self, now: float) -> None:
        """The command is about to be sent."""
        self.complete = False
        self._entered_at = now
        self._complete_at = None
        self._told = None

    def heard_at(self, link_heard_at: float, now: float) -> float | None:
        """Up to when the server was heard about this subscription; None while that says nothing.

        What was published during a replay comes behind it: the server is behind by as much.
        """
        if not self.complete:
            return None
        if self._complete_at is None:
            self._complete_at = now
            self._behind_s = now - self._entered_at
        return link_heard_at - catching_up(self._behind_s, now - self._complete_at)

    @property
    def moved(self) -> bool:
        """Whether anything has come since this was asked last."""
        told, self._told = self._told, self.last
        return told != self.last


def forms(log: SubscriptionLog, server: str, *, last: str, overlap_us: int) -> tuple[str, ...]:
    """What to ask a server for, the best form first.

    Args:
        log: The bookmark store's memory of the subscription.
        server: Its address.
        last: The last bookmark that the server of the last entry has sent; empty if unknown.
        overlap_us: How long before the time that servers were heard last to begin.
    """
    standing = log.standing
    if not standing.server:  # somebody else has remembered it
        return log.resume_elsewhere(0)
    if server == standing.server:
        if log.in_order:
            return (log.resume(),)
        if _is_position(last):
            return log.resume_elsewhere(0, last)
    if not standing.heard_us:
        return (log.resume_from_start(),)
    return log.resume_elsewhere(max(1, standing.heard_us - overlap_us))


def _is_position(bookmark: str) -> bool:
    """Whether a server's bookmark names a message, so that it can be asked for."""
    try:
        found = parse_bookmark(bookmark) if bookmark else None
    except UsageError:
        return False
    return isinstance(found, Bookmark)


class Refusals:
    """Which servers have refused which subscriptions since the client was live last (SM8)."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def add(self, sub_id: str, uri: str) -> bool:
        """A server refused it; whether the same one has refused it before, so all were asked."""
        again = (sub_id, uri) in self._seen
        self._seen.add((sub_id, uri))
        return again

    def clear(self) -> None:
        """Live: the next loss begins anew."""
        self._seen.clear()
