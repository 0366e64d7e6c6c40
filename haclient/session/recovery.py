"""The recovery plan: how a lost connection becomes a live one.

Each state names one step that the caller carries out. A step that succeeds leads to the next state;
a loss in any state leads back to `CHOOSING`. There is one plan per client, in one state at a time:
however many errors arrive, there is a single recovery, and a loss during it restarts it.

==============  =============================================================
CHOOSING        ask the chooser for URI and authenticator; an empty URI ends it
WAITING         ask the delay strategy, sleep; a strategy that raises ends it
DIALLING        connect
LOGGING_ON      logon, with the authenticator of this server
RECONCILING     report the success to the chooser; trim and number the store
HEARTBEAT       start the heartbeat
REPLAYING       send again what is not persisted, before anything new
RESUBSCRIBING   send the subscriptions again, in their first order
LIVE            work, until the connection is lost
==============  =============================================================

A connection is *stable* once it has been LIVE for `STABLE_AFTER_S`. A stable connection that is
lost is not the server's failure: the same server is tried first, and the delay strategy was reset.
Everything lost before that counts as a failure of the server, so a server that accepts the logon
and immediately cuts the connection is abandoned for the next one, after growing waits.
"""

from __future__ import annotations

import enum
import re
from typing import Final

STABLE_AFTER_S: Final = 5.0
"""How long a connection has to be LIVE before it counts as a success, in seconds."""

_WARN_AGAIN_AFTER_S: Final = 10.0
_WARN_AT_LEAST_EVERY_S: Final = 600.0
_MAX_CAUSES: Final = 64  # causes of one outage; a server with ever new errors must not fill the log
_NUMBERS: Final = re.compile(r"\d+")


class Recovery(enum.StrEnum):
    """The states of the recovery."""

    CHOOSING = "choosing"
    WAITING = "waiting"
    DIALLING = "dialling"
    LOGGING_ON = "logging_on"
    RECONCILING = "reconciling"
    HEARTBEAT = "heartbeat"
    REPLAYING = "replaying"
    RESUBSCRIBING = "resubscribing"
    LIVE = "live"


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


class RecoveryPlan:
    """The state of one client's recovery.

    Attributes:
        state: The current state.
        attempts: Servers tried since the last stable connection.
        is_stable: Whether the current connection, or otherwise the last one, was LIVE for long
            enough.
    """

    __slots__ = ("attempts", "is_stable", "state")

    def __init__(self) -> None:
        self.state = Recovery.CHOOSING
        self.attempts = 0
        self.is_stable = False

    def done(self) -> None:
        """The step of this state succeeded."""
        if self.state is Recovery.WAITING:
            self.attempts += 1
        self.state = NEXT[self.state]
        self.is_stable = False

    def stable(self) -> None:
        """It has been LIVE for `STABLE_AFTER_S`."""
        self.is_stable = True
        self.attempts = 0

    def lost(self) -> bool:
        """The step failed or the connection was lost; return whether the server is to blame."""
        tried = self.state not in {Recovery.CHOOSING, Recovery.WAITING}
        self.state = Recovery.CHOOSING
        return tried and not self.is_stable


class FailureLog:
    """Which failed attempts of an outage are worth a warning.

    The first failure with a new cause is logged at once. Later warnings come at growing intervals;
    a new cause resets them.
    """

    __slots__ = ("_causes", "_interval_s", "_warn_at")

    def __init__(self) -> None:
        self._warn_at = 0.0
        self._interval_s = 0.0
        self._causes: set[str] = set()

    def is_due(self, now: float, cause: str) -> bool:
        """Whether to log a warning for a failed attempt.

        Args:
            now: When it failed, in seconds.
            cause: The server and what was wrong; numbers in it are ignored, since they may be
                ports or times.
        """
        kind = _NUMBERS.sub("", cause)
        is_new = kind not in self._causes and len(self._causes) < _MAX_CAUSES
        if is_new:
            self._causes.add(kind)
            self._interval_s = 0.0
        elif self._interval_s and now < self._warn_at:
            return False
        self._interval_s = min(
            max(2 * self._interval_s, _WARN_AGAIN_AFTER_S), _WARN_AT_LEAST_EVERY_S
        )
        self._warn_at = now + self._interval_s
        return True

    def reset(self) -> None:
        """A stable connection: the next failure is a first one again."""
        self._interval_s = 0.0
        self._causes.clear()
