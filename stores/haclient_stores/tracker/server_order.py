"""In which server's log order a recovery point is valid, and the caught-up times. Pure.

A subscription receives messages in the log order of the server that has accepted it. Its list of
bookmarks is a safe position to resume on that server; on another one it is safe only together with
a time. So a subscription records with its progress which server's order that is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

NOWHERE: Final = "?"
"""In place of a server's address: the order of the progress is unknown."""


def log_name(server: str) -> str:
    """The part of a server's name that identifies its log.

    Args:
        server: An address or another name of the log; what follows a space says how far the log has
            come.
    """
    return server.partition(" ")[0]


@dataclass(slots=True)
class ServerOrder:
    """Server order and caught-up times of one subscription.

    Attributes:
        server: The address of the server that accepted it last; empty when unknown.
        before: The highest sequence of each publisher, by its id, that came from other servers.
        caught_up_us: Everything that the servers had at this time has been received. In
            microseconds since 1970; 0 while no server has sent all that it had.
        discarded_until_us: The same with everything received until then discarded as well. See
            `update_discarded_until`.
    """

    server: str = ""
    before: dict[int, int] = field(default_factory=dict[int, int])
    caught_up_us: int = 0
    discarded_until_us: int = 0
    _waiting: tuple[int, int] | None = None  # a time, and a number that no earlier message has

    def entered(self, server: str, arrived: Mapping[int, int]) -> None:
        """Note the server that has accepted the subscription.

        Progress in an unknown order was taken over from elsewhere. It is trusted to fit the first
        server that it is used with.

        Args:
            server: The name of its log. What follows a space in it says how far that log has come,
                and the log is still the same.
            arrived: The highest sequence received so far of each publisher, by its id.
        """
        if log_name(server) != log_name(self.server):
            self.before = dict(arrived) if self.server else {}
        self.server = server

    def caught_up(self, until_us: int) -> None:
        """Note that everything that the server had at a time has been received.

        Args:
            until_us: The caught-up time, in microseconds since 1970.
        """
        self.caught_up_us = until_us

    def orders(self, finished: Mapping[int, int]) -> bool:
        """Whether a list of finished sequences is a position in the order of this server's log.

        It is if some of it arrived from this server: everything unfinished came after that, or is
        still to come.

        Args:
            finished: The sequences by publisher id.
        """
        before = self.before
        return not before or any(finished[each] > before.get(each, 0) for each in finished)

    def update_discarded_until(self, oldest: int, following: int) -> None:
        """Move `discarded_until_us` on, as far as messages have been discarded.

        A process that starts with a recovery point alone has to fetch delivered, undiscarded
        messages again. So for it a time counts only when everything that arrived by then is
        discarded. Call it regularly: a time is noted at one call and reached at a later one.

        Args:
            oldest: The number of the oldest undiscarded message; 0 when there is none.
            following: The number of the next message.
        """
        if not oldest:
            self.discarded_until_us, self._waiting = self.caught_up_us, None
            return
        if self._waiting is not None and oldest >= self._waiting[1]:
            self.discarded_until_us, self._waiting = self._waiting[0], None
        if self._waiting is None and self.caught_up_us > self.discarded_until_us:
            self._waiting = self.caught_up_us, following

    def copy(self) -> ServerOrder:
        """An independent copy."""
        return replace(self, before=dict(self.before))
