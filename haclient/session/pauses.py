"""Whether a subscription is paused, at the server and as the application wants it. Pure.

Two parties pause a subscription: the application, and the client itself while the queue of that
subscription is full (`haclient.transport.subscription_control`). The server knows one state, which
is that of the last command that it has accepted, whoever sent it. It carries out the commands of a
connection in the order in which they were sent; several may be unanswered at a time, and the tasks
that wait for the answers run in any order. So whether the server holds a subscription
back, and whether the application wants that, is answered from the order of sending: a command is
noted when it is sent, and its answer when that arrives.

A command without an answer may have been carried out or not. Until its answer is known, or that to
a later one which overrules it, both are possible, and the client takes the cautious view: no ack is
a recovery point, and nothing newer counts as received. Of the commands that are never answered only
the last ones are remembered; of older ones it is known that there were some.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_UNANSWERED: Final = 64
"""How many commands of one subscription are remembered until they are answered or overruled."""


class PauseChange:
    """One command that pauses or resumes a subscription.

    Attributes:
        pauses: Whether it pauses; else it resumes.
        by_application: Whether the application has asked for it.
        is_accepted: What the server has answered; `None` while it has not.
    """

    __slots__ = ("by_application", "is_accepted", "pauses")

    def __init__(self, *, pauses: bool, by_application: bool) -> None:
        self.pauses = pauses
        self.by_application = by_application
        self.is_accepted: bool | None = None


class PauseState:
    """The pauses of one subscription on one connection."""

    __slots__ = (
        "_begun_by_application",
        "_begun_paused",
        "_changes",
        "_has_dropped_command",
        "_has_dropped_pause",
    )

    def __init__(self) -> None:
        # In the order of sending, none of them refused or overruled.
        self._changes: list[PauseChange] = []
        self._begun_paused = False
        self._begun_by_application = False
        self._has_dropped_command = False  # a command of the application without an answer
        self._has_dropped_pause = False  # likewise, one that pauses

    def begin(self, *, is_paused: bool) -> None:
        """Note that the subscribe is about to be sent, on this connection or a new one.

        Args:
            is_paused: Whether the application wants it to begin paused.
        """
        self._changes.clear()
        self._begun_paused = self._begun_by_application = is_paused
        self._has_dropped_command = self._has_dropped_pause = False

    def sent(self, *, pauses: bool, by_application: bool) -> PauseChange:
        """Note that a command was sent; pass the result to `answered` with the answer."""
        change = PauseChange(pauses=pauses, by_application=by_application)
        self._changes.append(change)
        if len(self._changes) > MAX_UNANSWERED:  # the server does not answer
            self._drop_oldest()
        return change

    def _drop_oldest(self) -> None:
        """Drop the oldest command, which has no answer: it may be in force."""
        first = self._changes.pop(0)
        self._begun_paused |= first.pauses
        if first.by_application:
            self._has_dropped_command = True
            self._has_dropped_pause |= first.pauses
        self._apply_answered()

    def answered(self, change: PauseChange, *, is_accepted: bool) -> None:
        """Note the answer to a command; one of an earlier connection has no effect."""
        change.is_accepted = is_accepted
        changes = self._changes
        if change in changes:
            at = changes.index(change)
            if not is_accepted:
                del changes[at]
            elif change.by_application:  # what was sent before it is overruled, answered or not
                del changes[:at]
                self._has_dropped_command = self._has_dropped_pause = False
            else:  # so it is, but for what the application wants
                changes[:at] = [each for each in changes[:at] if each.by_application]
        self._apply_answered()

    def _apply_answered(self) -> None:
        changes = self._changes
        while changes and changes[0].is_accepted:  # nothing that is unanswered comes before it
            first = changes.pop(0)
            self._begun_paused = first.pauses
            if first.by_application:
                self._begun_by_application = first.pauses

    @property
    def may_be_paused(self) -> bool:
        """Whether the server may be holding messages back."""
        return _possibly(self._begun_paused, self._changes)

    @property
    def may_be_paused_by_application(self) -> bool:
        """Whether the application has paused it, or has asked for that without an answer so far."""
        begun = self._begun_by_application or self._has_dropped_pause
        return _possibly(begun, self._of_application())

    @property
    def is_paused_by_application(self) -> bool:
        """Whether the application wants it to be paused, as far as the server has agreed."""
        is_paused = self._begun_by_application
        for change in self._of_application():
            if change.is_accepted:
                is_paused = change.pauses
        return is_paused

    @property
    def has_unanswered(self) -> bool:
        """Whether a command of the application has no answer yet, and none has overruled it."""
        return self._has_dropped_command or any(
            change.is_accepted is None for change in self._of_application()
        )

    def _of_application(self) -> list[PauseChange]:
        return [change for change in self._changes if change.by_application]


def _possibly(is_paused: bool, changes: Iterable[PauseChange]) -> bool:  # noqa: FBT001  # the first state
    for change in changes:
        is_paused = change.pauses if change.is_accepted else is_paused or change.pauses
    return is_paused
