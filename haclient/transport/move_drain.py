"""Drains a working connection before the client moves to another server.

With a publish store the client leaves after a time limit at the latest: what is not persisted by
then is sent again to the next server. Without one, publishes are held, and the client stays unless
the old server confirms everything that was sent. Some publishes pass the hold (`publish_hold`), and
have to be confirmed as well: the flush is repeated until none has passed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from haclient.errors import CommandError, DisconnectedError, TimedOut
from haclient.transport.core import Core


class MoveDrain:
    """Drains the connections of one client.

    Args:
        core: The client.
        limit_s: Seconds to wait for the server.
    """

    def __init__(self, core: Core, *, limit_s: float) -> None:
        self._core = core
        self._limit_s = limit_s

    async def can_leave(self, is_wanted: Callable[[], bool]) -> bool:
        """Drain the connection; return whether the client can leave it, and still wants to.

        Publishes that no store keeps are held meanwhile, so that none is lost. If the client can
        leave, they are held until it is live with another server, or fails.
        """
        hold = self._core.publisher.move_hold
        hold.add()
        leaves = False
        try:
            leaves = await self._drained() and is_wanted()
        finally:
            if leaves:
                hold.confirmed()
            else:
                hold.release()
        return leaves

    def why_unconfirmed(self, passed: int) -> str:
        """Why the server has not confirmed in time.

        Args:
            passed: How many publishes had passed the hold before the wait.
        """
        connection, hold = self._core.connection, self._core.publisher.move_hold
        is_stopped = connection is not None and connection.reading_stopped_by is not None
        if is_stopped or passed != hold.passed:
            return (
                "whose confirmation comes after messages that a full queue has no room for: try "
                "again when its handler or stream has taken them"
            )
        return "which did not confirm what was sent to it: try again when it answers"

    async def _drained(self) -> bool:
        """Wait until the server has what was sent; return whether the client can leave now."""
        core, limit_s = self._core, self._limit_s
        if core.connection is None:
            return False  # just lost, which is found out in a moment
        try:
            if core.publisher.log is None:
                await self._confirmed(limit_s)
            else:
                await core.flusher.persisted(timeout=limit_s)
                await core.flusher.acks(timeout=limit_s)
        except (TimedOut, DisconnectedError, CommandError) as error:
            if core.publisher.log is None:  # what was sent is kept nowhere else
                core.reporter.log.warning("client %s does not move: %s", core.name, error)
                return False
        return True

    async def _confirmed(self, limit_s: float) -> None:
        """Wait until the server has persisted or refused what no store keeps, and has the acks.

        Raises:
            TimedOut: It took longer than `limit_s` seconds.
            DisconnectedError: The connection was lost.
        """
        hold, passed = self._core.publisher.move_hold, -1
        with trio.move_on_after(limit_s):
            while passed != hold.passed:  # what has passed a hold meanwhile counts as well
                passed = hold.passed
                await self._core.flusher.processed(timeout=limit_s, ack="persisted")
                await self._core.flusher.acks(timeout=limit_s)
            return
        raise TimedOut(f"flush: the server did not answer within {limit_s:g} s")
