"""Commands that wait for the server's answer, and what the answers mean. Pure.

A command is *pending* from the moment it is sent until its confirming ack arrives, a failure ack
arrives instead, or the connection is lost. Acks are matched by command id first; an ack that the
user did not request is dropped here, and a requested one also goes to the command's subscription.

Several commands that change active subscriptions may be on their way for one subscription. What is
in force afterwards follows from the order in which they were sent (`haclient.session.pauses`), so
it is noted as each answer arrives, and not when the task that waits for it runs. The answer counts
as well when nobody waits for it any more, since the server has carried the command out all the
same.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from haclient.errors import (
    AuthenticationError,
    BadFilter,
    BadSowKey,
    CommandError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    InvalidBookmark,
    InvalidOptions,
    InvalidOrderBy,
    InvalidTopic,
    NameInUse,
    ProtocolError,
    PublishFailed,
    SlowClient,
    UsageError,
)
from haclient.protocol.commands import command_error
from haclient.protocol.messages import Message
from haclient.session.pauses import PauseChange
from haclient.session.subscriptions import Router, SubscribeRequest, Subscription

_DISCONNECT_REASONS: Final[tuple[tuple[str, type[HAClientError], str], ...]] = (
    ("name in use", NameInUse, "another connection has taken this client name"),
    ("slow client", SlowClient, "it had more to send than this client has read"),
    ("heartbeat", HeartbeatLost, "it received nothing from this client for too long"),
    ("auth", AuthenticationError, "the user may not be connected any more"),
    ("entitlement", AuthenticationError, "the user's rights have changed"),
)


class Answer(enum.Enum):
    """What an ack means to the command that it names."""

    CONFIRMED = enum.auto()
    REFUSED = enum.auto()
    NOTHING = enum.auto()  # another ack will confirm it


ANSWERS: Final[Mapping[tuple[bool, bool], Answer]] = {
    (False, False): Answer.NOTHING,
    (False, True): Answer.CONFIRMED,
    (True, False): Answer.REFUSED,  # whichever ack the failure came with
    (True, True): Answer.REFUSED,
}
"""By whether the ack is a failure, and whether it is of the awaited type."""


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
        match ANSWERS[ack.status == "failure", ack.ack_type == pending.awaited]:
            case Answer.REFUSED:
                pending.error = command_error(pending.what, ack.reason, ack.detail)
            case Answer.CONFIRMED:
                pending.ack = ack
            case Answer.NOTHING:
                return None
        del self._by_id[ack.command_id]
        pending.wake()
        return None if pending.ack is None else pending.replaces

    def fail_all(self, reason: HAClientError) -> None:
        """Fail every pending command by an error of its own, because the connection is lost."""
        lost, self._by_id = self._by_id, {}
        for pending in lost.values():
            pending.error = DisconnectedError(f"{pending.what}: not confirmed: {reason}")
            pending.error.__cause__ = reason
            pending.wake()


# -- what an answer means --------------------------------------------------------------------------


def is_refusal(error: HAClientError) -> bool:
    """Whether a command's error is the server's answer; else the command was lost on its way.

    Some refusals are errors of the connection, since a logon may get them as well.
    """
    return isinstance(error, CommandError | AuthenticationError | NameInUse)


# -- what a refusal means ------------------------------------------------------------------------

_NO_FIELDS: Final[Mapping[str, str | int]] = MappingProxyType({})


def explained(error: CommandError, fields: Mapping[str, str | int]) -> CommandError:
    """Add a hint about what the command needs to a refusal, where that is known.

    Args:
        error: The refusal.
        fields: The header of the command, by wire name.

    Returns:
        An error of the same class, with the same attributes.
    """
    hint = _hint(error, fields)
    if not hint:
        return error
    return type(error)(f"{error}: {hint}", reason=error.reason, detail=error.detail)


def refused_publish(what: str, ack: Message) -> PublishFailed:
    """The error for a publish that the server has refused.

    Args:
        what: The publish, in words.
        ack: The failure ack; the number of the publish is its sequence.
    """
    error = command_error(what, ack.reason, ack.detail)
    if isinstance(error, CommandError):
        error = explained(error, _NO_FIELDS)
    sequence = ack.sequence or 0
    return PublishFailed(str(error), reason=ack.reason, detail=ack.detail, sequence=sequence)


def _hint(error: CommandError, fields: Mapping[str, str | int]) -> str:
    """The hint: what to write instead, or what the server needs; empty if unknown."""
    names = ("c", "t", "opts", "filter")
    command, topic, options, content_filter = (str(fields.get(name, "")) for name in names)
    why, example = "", ""
    match error:
        case BadFilter() if content_filter and "/" not in content_filter:
            why, example = "a field is written with a slash", "such as /px > 10"
        case InvalidOrderBy():
            why = "a field is written with a slash, and its direction follows"
            example = "such as /px DESC"
        # `--sow` does not create the broker's own topics. Other queries may be refused for other
        # reasons, such as that their topic is a queue.
        case InvalidTopic() if command == "sow" and not topic.startswith("/HACLIENT/"):
            why = (
                "a sow needs a topic with a state of the world, which the server has to be "
                "configured for"
            )
            example = "the reference broker makes one with --sow orders:/id"
        case InvalidBookmark() if command.startswith("sow"):
            why = "a query of the past needs a topic that keeps its history"
            example = "the reference broker keeps one with --sow prices:/symbol,history"
        case InvalidOptions() if "max_backlog=" in options and not fields.get("bm"):
            # The usual cause is a misspelt name: other topics have no such option.
            return f"is {topic!r} a queue of this server?"
        case InvalidOptions() if "conflation=" in options and "conflation_key=" not in options:
            why = "conflation of a topic without a state of the world needs a conflation_key"
            example = "such as /symbol"
        case BadSowKey():
            why = "the body needs a value in each field of the topic's key"
        case _ if "bad message" in error.reason:
            why = "the body has to be of the message type in the URI, such as JSON for /amps/json"
        case _:  # the reason is enough
            pass
    if error.detail:  # it already has the reason
        return example
    return f"{why} ({example})" if example else why


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


def loss(error: Exception, peer: str, reason: str) -> HAClientError:
    """The error for what has ended the connection to `peer`.

    Args:
        error: What has ended it.
        peer: The server.
        reason: The reason that the server has sent last; empty for none.

    Raises:
        HAClientError: It is an error of this client, such as one of a store.
    """
    if isinstance(error, ProtocolError | HeartbeatLost):
        return error
    if isinstance(error, HAClientError) and not isinstance(error, DisconnectedError):
        raise error
    if reason:
        lost = disconnect_error(peer, reason)
    elif isinstance(error, DisconnectedError):
        return error
    else:
        why = str(error) or type(error).__name__
        lost = DisconnectedError(f"the connection to {peer} was lost: {why}")
    lost.__cause__ = error
    return lost


# -- what the commands that change active subscriptions mean to these ------------------------------


class Change:
    """One command that changes active subscriptions.

    Args:
        subscriptions: The subscriptions that it changes.
        what: The command in words.
        pauses: Whether they are paused or resumed by it; `None` for neither.
        by_application: Whether the application has asked for it.
        replacement: The request that one subscription has from now on; `None` for no replacement.
        command_id: The id of a command that replaces another one.
        order: The number of a replacement, in the order of sending.
        on_replaced: Called as the consent to a replacement arrives, before the messages behind it.

    Attributes:
        subscriptions: As above.
        what: As above.
        by_application: As above.
        is_unanswered: Whether it was sent, and the server has not answered.
        is_accepted: Whether the server has accepted it.
    """

    __slots__ = (
        "_command_id",
        "_on_replaced",
        "_order",
        "_pauses",
        "_replacement",
        "_sent",
        "by_application",
        "is_accepted",
        "is_unanswered",
        "subscriptions",
        "what",
    )

    def __init__(  # noqa: PLR0913  # the parts of one command
        self,
        subscriptions: Sequence[Subscription],
        what: str,
        *,
        pauses: bool | None,
        by_application: bool = True,
        replacement: SubscribeRequest | None = None,
        command_id: str = "",
        order: int = 0,
        on_replaced: Callable[[], object] | None = None,
    ) -> None:
        self.subscriptions = subscriptions
        self.what = what
        self.by_application = by_application
        self._pauses = pauses
        self._replacement = replacement
        self._command_id = command_id
        self._order = order
        self._on_replaced = on_replaced
        self.is_unanswered = False
        self.is_accepted = False
        self._sent: list[tuple[Subscription, PauseChange]] = []

    @property
    def replaces(self) -> Subscription | None:
        """The subscription whose command it replaces."""
        return None if self._replacement is None else self.subscriptions[0]

    def sent(self, now: float) -> None:
        """Note that the command is being sent."""
        self.is_unanswered = True
        if self._pauses is None:
            return
        for one in self.subscriptions:
            change = one.pauses.sent(pauses=self._pauses, by_application=self.by_application)
            self._sent.append((one, change))
            one.note_held(now)

    def answered(self, pending: PendingCommand, router: Router, now: float) -> None:
        """Note the server's answer; does nothing if the wait has ended without one.

        Args:
            pending: The command, with its answer.
            router: The active subscriptions of the connection.
            now: The time, in seconds.
        """
        if pending.ack is None and not (pending.error and is_refusal(pending.error)):
            return  # a lost connection is no refusal
        self.is_unanswered, self.is_accepted = False, pending.ack is not None
        if pending.ack is not None and self._replacement is not None:
            self._replace(self._replacement, router, pending.ack.options)
        for one, change in self._sent:
            one.pauses.answered(change, is_accepted=self.is_accepted)
            one.note_held(now)
        for one in self.subscriptions:
            one.keep_paused()

    def _replace(self, request: SubscribeRequest, router: Router, granted: str) -> None:
        subscription = self.subscriptions[0]
        if subscription not in router:
            return  # ended meanwhile
        if self._order < subscription.replaced_by:
            return  # a later one, whose answer came first, is in force
        subscription.replaced_by = self._order
        router.name_command(subscription, self._command_id)
        subscription.request, position = request, subscription.position
        # What the replaced command has had held back may be missing until the next subscribe.
        position.server_holds_s = max(position.server_holds_s, request.server_holds_s)
        if self._on_replaced is not None:
            self._on_replaced()
        if subscription.leases is not None:
            subscription.leases.granted(granted)
