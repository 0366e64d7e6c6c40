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

What a failure means (`Failures.judge`) follows from the state and from the kind of failure, in the
table `MEANINGS`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from haclient.errors import (
    AuthenticationError,
    CommandError,
    HAClientError,
    NameInUse,
    PublishGap,
    ReconnectGaveUp,
    SubscriptionStalled,
    TimedOut,
)

STABLE_AFTER_S: Final = 5.0
"""How long a connection has to be LIVE before it counts as a success, in seconds."""

_WARN_AGAIN_AFTER_S: Final = 10.0
_WARN_AT_LEAST_EVERY_S: Final = 600.0
_MAX_CAUSES: Final = 64  # causes of one outage; a server with ever new errors must not fill the log
_NUMBERS: Final = re.compile(r"\d+")


class Recovery(enum.StrEnum):
    """The states of the recovery, in the order of its steps."""

    CHOOSING = "choosing"
    WAITING = "waiting"
    DIALLING = "dialling"
    LOGGING_ON = "logging_on"
    RECONCILING = "reconciling"
    HEARTBEAT = "heartbeat"
    REPLAYING = "replaying"
    RESUBSCRIBING = "resubscribing"
    LIVE = "live"


class StepOutcome(enum.Enum):
    """How the step of a state has ended."""

    DONE = enum.auto()
    FAILED = enum.auto()  # or the connection was lost
    MOVED = enum.auto()  # the client leaves a server that works


NEXT: Final[Mapping[tuple[Recovery, StepOutcome], Recovery]] = {
    **{(state, StepOutcome.DONE): following for state, following in pairwise(Recovery)},
    **{(state, StepOutcome.FAILED): Recovery.CHOOSING for state in Recovery},
    (Recovery.LIVE, StepOutcome.MOVED): Recovery.CHOOSING,
}
"""What follows; LIVE itself never ends well."""


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

    def next(self, event: StepOutcome) -> Recovery:
        """Leave the current state; return the next one."""
        state, self.state = self.state, NEXT[self.state, event]
        if event is StepOutcome.DONE:
            self.attempts += state is Recovery.WAITING
            self.is_stable = False
        elif event is StepOutcome.MOVED:  # this connection did not fail, however young it was
            self.stable()
        return self.state

    def stable(self) -> None:
        """It has been LIVE for `STABLE_AFTER_S`."""
        self.is_stable = True
        self.attempts = 0


# -- what a failure means --------------------------------------------------------------------------


class Failure(enum.Enum):
    """The kinds of failures."""

    ORDINARY = enum.auto()  # the next attempt may succeed
    STALLED = enum.auto()  # a live server has forgotten a subscription
    FINAL = enum.auto()  # no attempt can help


class FailureAction(enum.Enum):
    """What the client does about a failure; it tries again unless it ends."""

    COUNT = enum.auto()  # as a failed attempt
    BLAME_UNLESS_STABLE = enum.auto()  # tell the chooser, if the connection was not stable
    BLAME = enum.auto()  # tell the chooser
    END = enum.auto()


_AT_SERVER: Final = frozenset({FailureAction.COUNT, FailureAction.BLAME_UNLESS_STABLE})
_BY_STATE: Final[Mapping[Recovery, frozenset[FailureAction]]] = {
    Recovery.CHOOSING: frozenset(),  # no server was tried
    Recovery.WAITING: frozenset(),
    Recovery.DIALLING: _AT_SERVER,
    Recovery.LOGGING_ON: _AT_SERVER,
    Recovery.RECONCILING: _AT_SERVER,
    Recovery.HEARTBEAT: _AT_SERVER,
    Recovery.REPLAYING: _AT_SERVER,
    Recovery.RESUBSCRIBING: _AT_SERVER,
    Recovery.LIVE: frozenset({FailureAction.BLAME_UNLESS_STABLE}),
}
_BY_FAILURE: Final[Mapping[Failure, frozenset[FailureAction]]] = {
    Failure.ORDINARY: frozenset(),
    Failure.STALLED: frozenset({FailureAction.BLAME}),
    Failure.FINAL: frozenset({FailureAction.END}),
}
MEANINGS: Final[Mapping[tuple[Recovery, Failure], frozenset[FailureAction]]] = {
    (state, failure): _BY_STATE[state] | _BY_FAILURE[failure]
    for state in Recovery
    for failure in Failure
}
"""What the client does, by the state and the kind of failure."""


class Failures:
    """What has failed so far in one client, and what the next failure means.

    Args:
        raises_gaps: Whether a `PublishGap` ends the client.

    Attributes:
        fatal: The error that ends the client; `None` while there is none.
    """

    __slots__ = ("_logon_errors", "_raises_gaps", "_refusals", "_unanswered", "fatal")

    def __init__(self, *, raises_gaps: bool) -> None:
        self._raises_gaps = raises_gaps
        self._unanswered: set[str] = set()  # server addresses with a logon that was not answered
        self._refusals: set[tuple[str, str]] = set()  # (sub id, server), since the last LIVE
        self._logon_errors: dict[str, HAClientError] = {}  # by server, before any logon
        self.fatal: HAClientError | None = None

    def judge(
        self, state: Recovery, error: HAClientError, *, address: str, is_moving: bool
    ) -> frozenset[FailureAction]:
        """What a failure means.

        Args:
            state: The state in which it happened.
            error: The failure.
            address: The address of the server.
            is_moving: Whether the client has left another server for this one.
        """
        return MEANINGS[state, self._kind(state, error, address=address, is_moving=is_moving)]

    def _kind(
        self, state: Recovery, error: HAClientError, *, address: str, is_moving: bool
    ) -> Failure:
        match error:
            case _ if error is self.fatal:
                return Failure.FINAL
            case ReconnectGaveUp():
                return Failure.FINAL
            case SubscriptionStalled():
                return Failure.STALLED
            case PublishGap():  # no reason to end if another server worked just now
                ends = self._raises_gaps and not is_moving
                return Failure.FINAL if ends else Failure.ORDINARY
            case NameInUse() if _is_refusal(error) or address not in self._unanswered:
                return Failure.FINAL  # a client does not fight for a name
            case NameInUse():
                # A logon that got no answer may reach its server late and displace the connection
                # that was made since: the client reconnects once, however many it has abandoned.
                self._unanswered.remove(address)
            case _ if state is Recovery.LOGGING_ON and _may_be_read_late(error):
                self._unanswered.add(address)
            case _:
                pass
        return Failure.ORDINARY

    def note_live(self) -> None:
        """The client is live: each server may be asked again for what it has refused."""
        self._refusals.clear()

    def note_refusal(self, sub_id: str, uri: str) -> bool:
        """Note that a server does not take a subscription back.

        Another server may, so each is asked once, in the chooser's order.

        Returns:
            Whether every server was asked: then the application's word counts.
        """
        is_repeated = (sub_id, uri) in self._refusals
        self._refusals.add((sub_id, uri))
        return is_repeated

    def note_logon(self, uri: str, error: HAClientError | None) -> None:
        """Note how an attempt at a server has ended, before the first logon of this client."""
        if error is None:
            self._logon_errors.clear()
        else:
            self._logon_errors[uri] = error

    def refused_credentials(self, uri: str) -> AuthenticationError | None:
        """The error that ends the client at the end of a sweep of all servers.

        Only before the first logon: later the credentials were right, and may be right again.

        Args:
            uri: The server that comes next; the sweep is over if it was tried already.

        Returns:
            The error if each of them refused the credentials.
        """
        if uri not in self._logon_errors:
            return None
        errors = list(self._logon_errors.values())
        self._logon_errors.clear()
        if not all(isinstance(error, AuthenticationError) for error in errors):
            return None
        self.fatal = error = AuthenticationError(
            f"user or password was refused by every server: {errors[-1]}"
        )
        return error


def _may_be_read_late(error: HAClientError) -> bool:
    """Whether a server may still read a logon that failed with this error.

    Not after it has closed the connection. But this client may have given up waiting, or the
    network may have reset the connection while the logon was on its way.
    """
    return isinstance(error, TimedOut) or isinstance(error.__cause__, OSError)


def _is_refusal(error: HAClientError) -> bool:
    """Whether a server has refused the logon; else it had accepted it, and cut the connection."""
    return isinstance(error.__cause__, CommandError)


# -- what is logged --------------------------------------------------------------------------------


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
