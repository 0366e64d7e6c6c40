"""The recovery plan: how a lost connection becomes a live one (design 5, rows HA3-HA8, HA22, HA23).

One table. Each state names one step of the shell. A step that succeeds leads to the next state; a
loss in any of them leads back to `CHOOSING`, and so to the same server first, unless the chooser
was told of a failure. There is one plan per client and it is in one state: however many errors
arrive there is one recovery (HA22), and one that is lost begins anew (HA23).

==============  =============================================================
CHOOSING        ask the chooser for URI and authenticator; an empty URI ends it
WAITING         ask the delay strategy, sleep; a strategy that raises ends it
DIALLING        connect
LOGGING_ON      logon, with the authenticator of this server
RECONCILING     tell the chooser of the success; trim and number the store
HEARTBEAT       start the beats
REPLAYING       send again what is not persisted, before anything new
RESUBSCRIBING   enter the subscriptions again, in the order of their entry
LIVE            work, until the connection is lost
STOPPED         nothing follows: disconnected on purpose, or given up
==============  =============================================================
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["NEXT", "Recovery", "RecoveryPlan"]


class Recovery(enum.StrEnum):
    """Where the recovery stands."""

    CHOOSING = "choosing"
    WAITING = "waiting"
    DIALLING = "dialling"
    LOGGING_ON = "logging_on"
    RECONCILING = "reconciling"
    HEARTBEAT = "heartbeat"
    REPLAYING = "replaying"
    RESUBSCRIBING = "resubscribing"
    LIVE = "live"
    STOPPED = "stopped"


NEXT: Final = {
    Recovery.CHOOSING: Recovery.WAITING,
    Recovery.WAITING: Recovery.DIALLING,
    Recovery.DIALLING: Recovery.LOGGING_ON,
    Recovery.LOGGING_ON: Recovery.RECONCILING,
    Recovery.RECONCILING: Recovery.HEARTBEAT,
    Recovery.HEARTBEAT: Recovery.REPLAYING,
    Recovery.REPLAYING: Recovery.RESUBSCRIBING,
    Recovery.RESUBSCRIBING: Recovery.LIVE,
}
"""What follows a step that succeeded."""

_BLAMES_SERVER: Final = frozenset(NEXT) - {Recovery.CHOOSING, Recovery.WAITING}


class RecoveryPlan:
    """The state of one client's recovery.

    Attributes:
        state: Where it stands.
        attempts: Servers tried since the last time it was live.
    """

    __slots__ = ("attempts", "state")

    def __init__(self) -> None:
        self.state = Recovery.CHOOSING
        self.attempts = 0

    def done(self) -> None:
        """The step of this state succeeded; once stopped, that changes nothing."""
        if self.state is Recovery.STOPPED:
            return
        if self.state is Recovery.WAITING:
            self.attempts += 1
        self.state = NEXT[self.state]
        if self.state is Recovery.LIVE:
            self.attempts = 0

    def lost(self) -> bool:
        """The step failed, or the connection was lost; whether the chooser is to hear of it.

        A connection that was live is not the server's failure: it is tried again first (HA7).
        """
        blame = self.state in _BLAMES_SERVER
        if self.state is not Recovery.STOPPED:
            self.state = Recovery.CHOOSING
        return blame

    def stop(self) -> None:
        """Nothing follows."""
        self.state = Recovery.STOPPED
