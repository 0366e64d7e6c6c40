"""Where a subscription stands: in the order of which server's log, and since when. Pure.

What a subscription has received arrived in the order of the server that it was entered at. A list
of bookmarks is a safe place to go on there, and at another server only with a time beside it. So
with its progress a subscription remembers whose order it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NOWHERE", "Standing", "log_name"]

NOWHERE: Final = "?"
"""In place of an address, and no server's: the progress is in no order that is known."""


def log_name(server: str) -> str:
    """The part of a server's name that tells its log from others."""
    return server.partition(" ")[0]


@dataclass(slots=True)
class Standing:
    """What is remembered of it.

    Attributes:
        server: The address of the server that it was entered at last; empty when nobody knows.
        before: The highest sequence of each publisher, by its id, that came from other servers.
        caught_up_us: Everything that servers had at this time was received. In microseconds since
            1970; 0 when no server has sent all that it had so far.
        settled_us: The same of what has arrived and was discarded, too; see `settle`.
    """

    server: str = ""
    before: dict[int, int] = field(default_factory=dict[int, int])
    caught_up_us: int = 0
    settled_us: int = 0
    _waiting: tuple[int, int] | None = None  # a time, and a number that no earlier message has

    def entered(self, server: str, arrived: Mapping[int, int]) -> None:
        """A server has accepted it; `arrived` is how far each publisher was heard of until now.

        What stands behind a space in the name says how far the log has come: the log is the same.

        Progress of which nobody knows whose order it is was taken over from somewhere else; it is
        trusted to fit the server that it is used with first.
        """
        if log_name(server) != log_name(self.server):
            self.before = dict(arrived) if self.server else {}
        self.server = server

    def heard(self, until_us: int) -> None:
        """The server has sent all that it had at a time."""
        self.caught_up_us = until_us

    def orders(self, finished: Mapping[int, int]) -> bool:
        """Whether what is finished is a place in the order of this server's log.

        It is when something of it has arrived from this server, since all that is not finished
        came behind that, or has yet to come.
        """
        before = self.before
        return not before or any(finished[each] > before.get(each, 0) for each in finished)

    def settle(self, oldest: int, following: int) -> None:
        """Move `settled_us` on; to be called now and then.

        Whoever begins with nothing but what is finished has to fetch what was in hand again. So
        for him a time counts only when everything that had arrived by then is discarded.

        Args:
            oldest: The number of the oldest message that is not discarded; 0 when there is none.
            following: The number of the next message.
        """
        if not oldest:
            self.settled_us, self._waiting = self.caught_up_us, None
            return
        if self._waiting is not None and oldest >= self._waiting[1]:
            self.settled_us, self._waiting = self._waiting[0], None
        if self._waiting is None and self.caught_up_us > self.settled_us:
            self._waiting = self.caught_up_us, following

    def copy(self) -> Standing:
        """One that stays as it is."""
        return replace(self, before=dict(self.before))
