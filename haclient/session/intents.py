"""What a command of the application asks its client for.

The same command can begin a subscription or change one, and a `sow_delete` deletes records or
acknowledges messages. `execute` and `execute_async` carry out what is decided here.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.commands import Command, CommandName
from haclient.protocol.options import Options
from haclient.session.kept_subscriptions import KeptSubscriptions
from haclient.session.subscriptions import LASTING, Subscription


class Intent(enum.Enum):
    """What is to be done."""

    PUBLISH = enum.auto()
    DELETE = enum.auto()  # records, which is published
    ACKNOWLEDGE = enum.auto()  # messages of a queue, by their bookmarks
    PAUSE = enum.auto()  # active subscriptions
    RESUME = enum.auto()
    UNSUBSCRIBE = enum.auto()
    SEND = enum.auto()  # everything else: what comes back are messages and acks


# A failure that a server names for one of these would end a subscription of the same id.
_OWN_COMMAND_IDS: Final = re.compile("flush$|sow_delete-")
_HAS_RECEIVER: Final = (
    "{!r} is active and has its stream or handler already: use execute_async, or pause, resume and "
    "replace of the client"
)
_NOTHING_TO_STREAM: Final[Mapping[Intent, str]] = MappingProxyType(
    {
        Intent.PUBLISH: "a publish has no messages to stream: use execute_async or publish",
        Intent.DELETE: (
            "a sow_delete is published, and has nothing to stream: use execute_async or sow_delete"
        ),
        Intent.PAUSE: _HAS_RECEIVER,
        Intent.RESUME: _HAS_RECEIVER,
    }
)


def intent_of(command: Command, kept: KeptSubscriptions) -> Intent:
    """What a command asks for.

    Args:
        command: The command.
        kept: Knows the active subscriptions.

    Raises:
        UsageError: Its command id is one of those that the client gives to commands of its own.
    """
    if _OWN_COMMAND_IDS.match(str(command.command_id)):
        raise UsageError(
            f"the command id {command.command_id!r} is one of the client, which flushes and "
            "deletes under such ids: leave it out, or choose another one"
        )
    match command.name:
        case CommandName.PUBLISH | CommandName.DELTA_PUBLISH:
            return Intent.PUBLISH
        case CommandName.SOW_DELETE:
            return Intent.ACKNOWLEDGE if str(command.bookmark) else Intent.DELETE
        case CommandName.UNSUBSCRIBE:
            return Intent.UNSUBSCRIBE
        case CommandName.SUBSCRIBE:
            ids = split_ids(command.sub_id)
            are_active = all(kept.find(each) is not None for each in ids)
            return _of_subscribe(Options.parse(str(command.options)), ids, are_active=are_active)
        case _:
            return Intent.SEND


def _of_subscribe(options: Options, sub_ids: Sequence[str], *, are_active: bool) -> Intent:
    """With one unknown id it begins a subscription, paused or not."""
    if options.resume:
        return Intent.RESUME
    if options.pause and not options.replace and (len(sub_ids) > 1 or (sub_ids and are_active)):
        return Intent.PAUSE
    return Intent.SEND


def why_not_streamed(command: Command, intent: Intent) -> str | None:
    """Why a command has no messages of its own to stream; `None` if it has."""
    text = _NOTHING_TO_STREAM.get(intent)
    return None if text is None else text.format(command.sub_id)


def replaced_by(command: Command, kept: KeptSubscriptions) -> Subscription | None:
    """The active subscription that a command with the option `replace` is about."""
    text = str(command.options)
    if "replace" not in text.lower() or not Options.parse(text).replace:
        return None
    return kept.find(command.sub_id) if command.name in LASTING else None


def has_receiver(sub_id: str) -> str:
    """Why no stream or handler can be opened for an active subscription."""
    return _HAS_RECEIVER.format(sub_id)


def split_ids(text: str) -> list[str]:
    """The ids in a list of a command, which may contain blanks."""
    return [each.strip() for each in text.split(",") if each.strip()]
