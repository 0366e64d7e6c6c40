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
table `MEANINGS`; what becomes of a subscription that a server does not take back, from `REFUSALS`.

A *planned move* leaves a server that works for another one: the chooser's, or one that the
application names. `check_may_move` says when one may begin, and `MOVES` what becomes of it.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from haclient.errors import (
    AuthenticationError,
    CommandError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    ProtocolError,
    PublishGap,
    ReconnectGaveUp,
    SubscriptionStalled,
    TimedOut,
    UsageError,
)
from haclient.protocol.uri import Uri
from haclient.session.connection_state import ClosedByOwnError, ConnectionStatus

STABLE_AFTER_S: Final = 5.0
"""How long a connection has to be LIVE before it counts as a success, in seconds."""

EXPECTED: Final = (DisconnectedError, CommandError, ProtocolError, TimedOut, PublishGap)
"""What may fail on the way; anything else is a defect, which ends the client."""

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
    OWN = enum.auto()  # an error of this client, which leaves its block by itself
    FINAL = enum.auto()  # no attempt can help


class FailureAction(enum.Enum):
    """What the client does about a failure; it tries again unless it ends."""

    COUNT = enum.auto()  # as a failed attempt
    REPORT_ATTEMPT = enum.auto()  # log it, and report it to the listeners
    REPORT_LOSS = enum.auto()  # log it: the lost connection itself is reported by whoever had it
    BLAME_UNLESS_STABLE = enum.auto()  # report it to the chooser, unless stable
    BLAME = enum.auto()  # report it to the chooser
    END = enum.auto()


_REPORTS: Final = frozenset({FailureAction.REPORT_ATTEMPT, FailureAction.REPORT_LOSS})
_AT_SERVER: Final = frozenset(
    {FailureAction.COUNT, FailureAction.BLAME_UNLESS_STABLE, FailureAction.REPORT_ATTEMPT}
)
_BY_STATE: Final[Mapping[Recovery, frozenset[FailureAction]]] = {
    **dict.fromkeys(Recovery, _AT_SERVER),
    Recovery.CHOOSING: frozenset(),  # no server was tried: this ends the client, which raises it
    Recovery.WAITING: frozenset(),
    Recovery.LIVE: frozenset({FailureAction.BLAME_UNLESS_STABLE, FailureAction.REPORT_LOSS}),
}
_BY_FAILURE: Final[Mapping[Failure, frozenset[FailureAction]]] = {
    Failure.ORDINARY: frozenset(),
    Failure.STALLED: frozenset({FailureAction.BLAME}),
    Failure.OWN: frozenset(),
    Failure.FINAL: frozenset({FailureAction.END}),
}
MEANINGS: Final[Mapping[tuple[Recovery, Failure], frozenset[FailureAction]]] = {
    (state, failure): (_BY_STATE[state] | _BY_FAILURE[failure])
    - (_REPORTS if failure is Failure.OWN else frozenset())
    for state in Recovery
    for failure in Failure
}
"""What the client does, by the state and the kind of failure."""


class Refusal(enum.Enum):
    """What becomes of a subscription that a server does not take back."""

    NEXT_SERVER = enum.auto()  # it may take it
    DROP = enum.auto()  # the subscription ends, the connection stays
    END = enum.auto()  # the client ends


REFUSALS: Final[Mapping[tuple[bool, str], Refusal]] = {
    (False, "fail"): Refusal.NEXT_SERVER,
    (False, "retry"): Refusal.NEXT_SERVER,
    (False, "drop"): Refusal.NEXT_SERVER,
    (True, "fail"): Refusal.END,
    (True, "retry"): Refusal.NEXT_SERVER,
    (True, "drop"): Refusal.DROP,
}
"""By whether every server was asked, and by what the application says then."""

ResubscribePolicy: TypeAlias = str | Callable[[str, HAClientError], str]
"""One of the words of `REFUSALS`, or a function of the id and the error that returns one."""


class Failures:
    """What has failed so far in one client, and what the next failure means.

    Args:
        raises_gaps: Whether a `PublishGap` ends the client.
        on_refusal: What happens to a subscription that no server takes back.

    Attributes:
        fatal: The error that ends the client; `None` while there is none.
    """

    __slots__ = (
        "_has_logged_on",
        "_logon_errors",
        "_on_refusal",
        "_raises_gaps",
        "_refusals",
        "_unanswered",
        "fatal",
    )

    def __init__(self, *, raises_gaps: bool, on_refusal: ResubscribePolicy = "fail") -> None:
        self._raises_gaps = raises_gaps
        self._on_refusal = on_refusal
        self._unanswered: set[str] = set()  # server addresses with a logon that was not answered
        self._refusals: set[tuple[str, str]] = set()  # (sub id, server), since the last LIVE
        self._has_logged_on = False
        self._logon_errors: dict[str, HAClientError] = {}  # by server, before any logon
        self.fatal: HAClientError | None = None

    def judge(
        self,
        state: Recovery,
        error: HAClientError,
        *,
        uri: str,
        is_stable: bool = False,
        is_moving: bool = False,
    ) -> frozenset[FailureAction]:
        """What a failure means.

        Args:
            state: The state in which it happened.
            error: The failure.
            uri: The server; empty if none was chosen.
            is_stable: Whether the connection was stable.
            is_moving: Whether the client has left another server for this one.

        Returns:
            The actions; `BLAME_UNLESS_STABLE` is decided.
        """
        if not self._has_logged_on and state in {Recovery.DIALLING, Recovery.LOGGING_ON}:
            self._logon_errors[uri] = error
        actions = MEANINGS[state, self._kind(state, error, uri=uri, is_moving=is_moving)]
        if FailureAction.BLAME_UNLESS_STABLE not in actions:
            return actions
        decided = actions - {FailureAction.BLAME_UNLESS_STABLE}
        return decided if is_stable else decided | {FailureAction.BLAME}

    def _kind(self, state: Recovery, error: HAClientError, *, uri: str, is_moving: bool) -> Failure:
        address = Uri.parse(uri).address if uri else ""
        match error:
            case _ if error is self.fatal or isinstance(error, ReconnectGaveUp):
                return Failure.FINAL
            case SubscriptionStalled():
                return Failure.STALLED
            case ClosedByOwnError():
                return Failure.OWN
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

    def refused(self, sub_id: str, uri: str, error: HAClientError) -> Refusal:
        """What becomes of a subscription that a server does not take back.

        Another server may take it, so each is asked once, in the chooser's order. When every server
        was asked, the application's policy decides.

        Raises:
            UsageError: The application does not answer with one of the words.
            HAClientError: What its function raises, which ends the client.
        """
        if (sub_id, uri) not in self._refusals:
            self._refusals.add((sub_id, uri))
            return Refusal.NEXT_SERVER
        try:
            refusal = REFUSALS[True, policy_word(self._on_refusal, sub_id, error)]
        except HAClientError as raised:  # of the application, such as the error itself
            self.fatal = raised
            raise
        if refusal is Refusal.END:
            self.fatal = error
        return refusal

    def logged_on(self) -> None:
        """A server has accepted the credentials."""
        self._has_logged_on = True
        self._logon_errors.clear()

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


def policy_word(policy: ResubscribePolicy, sub_id: str, error: HAClientError) -> str:
    """What the application says about a subscription that ended with an error.

    Raises:
        UsageError: The application answers with another word.
    """
    word = policy(sub_id, error) if callable(policy) else policy
    if (True, word) not in REFUSALS:
        raise UsageError(
            f"on_resubscribe_failure has to answer 'fail', 'retry' or 'drop', not {word!r}"
        )
    return word


def _may_be_read_late(error: HAClientError) -> bool:
    """Whether a server may still read a logon that failed with this error.

    Not after it has closed the connection. But this client may have given up waiting, or the
    network may have reset the connection while the logon was on its way.
    """
    return isinstance(error, TimedOut) or isinstance(error.__cause__, OSError)


def _is_refusal(error: HAClientError) -> bool:
    """Whether a server has refused the logon; else it had accepted it, and cut the connection."""
    return isinstance(error.__cause__, CommandError)


# -- planned moves ---------------------------------------------------------------------------------


class MoveState(enum.Enum):
    """How far a planned move is."""

    CHECKING = enum.auto()  # another connection logs on to the new server, under another name
    DRAINING = enum.auto()  # the server in use has to take what was sent to it
    LEFT = enum.auto()  # its connection was closed: one attempt at the new server
    ENDED = enum.auto()


class MoveEvent(enum.Enum):
    """What happens to a planned move."""

    CHECKED = enum.auto()  # the new server can be used
    GIVEN_UP = enum.auto()  # it cannot, or nobody waits for the move any more
    DRAINED = enum.auto()
    FAILED = enum.auto()  # the connection was lost, or the attempt at the new server failed
    LIVE = enum.auto()


MOVES: Final[Mapping[tuple[MoveState, MoveEvent], MoveState]] = {
    (MoveState.CHECKING, MoveEvent.CHECKED): MoveState.DRAINING,
    (MoveState.CHECKING, MoveEvent.GIVEN_UP): MoveState.ENDED,
    (MoveState.DRAINING, MoveEvent.GIVEN_UP): MoveState.ENDED,
    (MoveState.DRAINING, MoveEvent.DRAINED): MoveState.LEFT,
    (MoveState.DRAINING, MoveEvent.FAILED): MoveState.ENDED,
    (MoveState.LEFT, MoveEvent.FAILED): MoveState.ENDED,
    (MoveState.LEFT, MoveEvent.LIVE): MoveState.ENDED,
}
"""What becomes of it; what is not listed changes nothing.

A loss during the check does, since the check finds out by itself; and a move whose connection was
closed cannot be called off.
"""


@dataclass(slots=True, eq=False)
class Move:
    """A planned move.

    Attributes:
        uri: Where to; empty for the server that the chooser says.
        state: How far it is.
        error: Why the client is not there, for whoever waits for it.
    """

    uri: str
    state: MoveState
    error: HAClientError | None = None

    def next(self, event: MoveEvent, error: HAClientError | None = None) -> bool:
        """Note an event, with its error if it has one; return whether it has ended the move."""
        before, self.state = self.state, MOVES.get((self.state, event), self.state)
        has_ended = self.state is MoveState.ENDED and before is not MoveState.ENDED
        if has_ended and error is not None:
            self.error = DisconnectedError(
                f"move_to: the client is not at {self.target} but reconnects: {error}"
            )
            self.error.__cause__ = error
        return has_ended

    @property
    def target(self) -> str:
        """Where to, in words and without a password."""
        return Uri.parse(self.uri).safe if self.uri else "a server of higher priority"


def check_may_move(status: ConnectionStatus, uri: str, current: Move) -> bool:
    """Check that a client may begin to move to a server.

    Args:
        status: The connection.
        uri: The connection string of the server.
        current: The last planned move.

    Returns:
        Whether it has to: not if it is there.

    Raises:
        UsageError: Another move is under way, or the URI is wrong.
        HAClientError: There is no connection that it could leave.
    """
    address = Uri.parse(uri).address
    if current.state is not MoveState.ENDED:
        raise UsageError(f"a move to {current.target} is under way: wait for its end")
    if status.stop_reason is not None:
        raise status.stop_reason
    if not status.is_live:
        raise DisconnectedError(
            "move_to: the client is reconnecting, and goes to the server that its chooser says: "
            "wait until it is connected, or add the server to the chooser"
        )
    return address != status.address


# -- what is logged --------------------------------------------------------------------------------


class FailureRecord(NamedTuple):
    """A log record of a failure.

    Attributes:
        level: Its level.
        text: Its text; the time of the next attempt may follow.
        attempt: The number of the attempt; 0 for a lost connection.
        error: The failure.
    """

    level: int
    text: str
    attempt: int
    error: HAClientError


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

    def record(  # what is known of one failure
        self,
        actions: frozenset[FailureAction],
        plan: RecoveryPlan,
        error: HAClientError,
        *,
        client: str,
        server: str,
        now: float,
    ) -> FailureRecord | None:
        """What to log of a failure; `None` if that is nothing.

        Args:
            actions: What the failure means.
            plan: The state in which it happened, and the number of the attempt.
            error: The failure.
            client: The client name.
            server: The URI of the server without its password.
            now: The time, in seconds.
        """
        if FailureAction.REPORT_LOSS in actions:
            text = f"client {client} lost its connection to {server}: {error}"
            return FailureRecord(logging.WARNING, text, 0, error)
        if FailureAction.REPORT_ATTEMPT not in actions:
            return None
        attempt, state = plan.attempts, plan.state
        is_due = self.is_due(now, f"{server} {state} {type(error).__name__} {error}")
        text = f"client {client}: attempt {attempt} at {server} failed ({state}): {error}"
        return FailureRecord(logging.WARNING if is_due else logging.INFO, text, attempt, error)

    def reset(self) -> None:
        """A stable connection: the next failure is a first one again."""
        self._interval_s = 0.0
        self._causes.clear()
