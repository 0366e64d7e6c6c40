"""Commands that wait for the server's answer.

A command is *pending* from the moment it is sent until its confirming ack arrives, a failure ack
arrives instead, or the connection is lost. Acks are matched by command id first; an ack that the
user did not request is dropped here, and a requested one also goes to the command's subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    NameInUse,
    SlowClient,
    UsageError,
    command_error,
)
from haclient.protocol.messages import Message
from haclient.session.subscriptions import Subscription

_DISCONNECT_REASONS: Final[tuple[tuple[str, type[HAClientError], str], ...]] = (
    ("name in use", NameInUse, "another connection has taken this client name"),
    ("slow client", SlowClient, "it had more to send than this client has read"),
    ("heartbeat", HeartbeatLost, "it received nothing from this client for too long"),
    ("auth", AuthenticationError, "the user may not be connected any more"),
    ("entitlement", AuthenticationError, "the user's rights have changed"),
)


class PendingCommand:
    """One command in flight; either `ack` or `error` is set when `wake` is called.

    Attributes:
        what: The command in words, for error messages.
        awaited: The ack type that confirms the command.
        replaces: The subscription whose command it replaces: what arrives before its ack belongs to
            the replaced one.
    """

    __slots__ = ("ack", "awaited", "command_id", "error", "replaces", "wake", "what")

    def __init__(
        self,
        command_id: str,
        what: str,
        *,
        awaited: str,
        wake: Callable[[], None],
        replaces: Subscription | None = None,
    ) -> None:
        self.command_id = command_id
        self.what = what
        self.awaited = awaited
        self.wake = wake
        self.replaces = replaces
        self.ack: Message | None = None
        self.error: HAClientError | None = None


class PendingCommands:
    """Every pending command of one connection, by command id."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, PendingCommand] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, pending: PendingCommand) -> None:
        """Add a command that is about to be sent.

        Raises:
            UsageError: Another command of this id waits for its ack.
        """
        if pending.command_id in self._by_id:
            raise UsageError(
                f"the command id {pending.command_id!r} waits for its ack: leave command ids to "
                "the client, or choose others than it does"
            )
        self._by_id[pending.command_id] = pending

    def __contains__(self, command_id: str) -> bool:
        return command_id in self._by_id

    def forget(self, command_id: str) -> None:
        """Remove a command whose caller no longer waits; a late ack is dropped."""
        self._by_id.pop(command_id, None)

    def on_ack(self, ack: Message) -> Subscription | None:
        """Confirm or refuse the command that this ack belongs to, if one waits for it.

        Returns:
            The subscription whose command has been replaced with this ack.
        """
        pending = self._by_id.get(ack.command_id)
        if pending is None:
            return None
        if ack.status == "failure":
            pending.error = command_error(pending.what, ack.reason)
        elif ack.ack_type == pending.awaited:
            pending.ack = ack
        else:
            return None
        del self._by_id[ack.command_id]
        pending.wake()
        return None if pending.ack is None else pending.replaces

    def fail_all(self, error: Callable[[PendingCommand], HAClientError]) -> None:
        """Fail every pending command, because the connection is lost."""
        lost, self._by_id = self._by_id, {}
        for pending in lost.values():
            pending.error = error(pending)
            pending.wake()


def disconnect_error(peer: str, reason: str) -> HAClientError:
    """The error for a connection that `peer` has closed for this reason.

    A server sends the reason as its last frame, in a failure ack that belongs to no command. The
    reason is free text. Known reasons have their own classes, so that an application can
    distinguish a second client of the same name from a slow client without parsing text.
    """
    text = f"{peer} closed the connection: {reason}"
    lowered = reason.lower()
    for key, kind, meaning in _DISCONNECT_REASONS:
        if key in lowered:
            return kind(f"{text}: {meaning}")
    return DisconnectedError(text)
