"""Where a subscription stands: in the order of which server's log, and since when. Pure.

What a subscription has received arrived in the order of the server that it was entered at. A list
of bookmarks is a safe place to go on there, and at another server only with a time beside it. So
with its progress a subscription remembers whose order it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Standing"]


@dataclass(slots=True)
class Standing:
    """What is remembered of it.

    Attributes:
        server: The address of the server that it was entered at last; empty when nobody knows.
        before: The highest sequence of each publisher, by its id, that came from other servers.
        complete: Whether that server has sent all that it had, so that nothing older is missing.
        heard_us: What servers had at this time has arrived, in microseconds since 1970; 0 when no
            server has sent all that it had so far.
    """

    server: str = ""
    before: dict[int, int] = field(default_factory=dict[int, int])
    complete: bool = False
    heard_us: int = 0

    def entered(self, server: str, arrived: Mapping[int, int]) -> None:
        """A server has accepted it; `arrived` is how far each publisher was heard of until now.

        Progress of which nobody knows whose order it is was taken over from somewhere else; it is
        trusted to fit the server that it is used with first.
        """
        if server != self.server:
            self.before = dict(arrived) if self.server else {}
            self.server = server
        self.complete = False

    def heard(self, until_us: int) -> None:
        """The server has sent all that it had at a time."""
        self.complete = True
        self.heard_us = until_us

    def orders(self, finished: Mapping[int, int]) -> bool:
        """Whether what is finished is a place in the order of this server's log.

        It is when something of it has arrived from this server, since all that is not finished
        came behind that, or has yet to come.
        """
        before = self.before
        return not before or any(finished[each] > before.get(each, 0) for each in finished)

    def copy(self) -> Standing:
        """One that stays as it is."""
        return Standing(self.server, dict(self.before), self.complete, self.heard_us)
