"""Which subscriptions of an earlier process are sent again, and as which commands."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Final, Literal, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.messages import HEADERS
from haclient.protocol.options import Options
from haclient.subscription_manager import Entry, SubscriptionManager
from haclient_stores.bookmark import MOST_RECENT

__all__ = ["OnOthers", "restorable"]

OnOthers: TypeAlias = Literal["refuse", "keep", "drop"]
"""What happens to subscriptions without a handler."""

_ATTRIBUTES: Final = {header.wire: header.attribute for header in HEADERS}
_MADE_ANEW: Final = frozenset({"c", "cid", "a"})
_MAX_NAMED: Final = 5


def restorable(
    manager: SubscriptionManager,
    active: Container[str],
    handlers: Container[str],
    others: OnOthers,
    *,
    has_store: bool,
) -> list[Command]:
    """The commands of the subscriptions that have a handler and are not active, in order.

    Args:
        manager: Remembers the subscriptions; with `"drop"` those without a handler are removed.
        active: The ids of this process.
        handlers: The ids that have a handler.
        others: What happens to those without one.
        has_store: Whether a bookmark store knows where those with a bookmark resume.

    Raises:
        UsageError: One has no handler, or is of a queue; nothing was removed.
    """
    if others not in {"refuse", "keep", "drop"}:
        raise UsageError(f"others is 'refuse', 'keep' or 'drop', not {others!r}")
    entries = [entry for entry in manager.entries() if entry.sub_id not in active]
    without = [entry.sub_id for entry in entries if entry.sub_id not in handlers]
    if without and others == "refuse":
        more = "" if len(without) <= _MAX_NAMED else f" and {len(without) - _MAX_NAMED} more"
        raise UsageError(
            f"no handler for {', '.join(map(repr, without[:_MAX_NAMED]))}{more}: give each "
            "subscription of the earlier process one under its id, or say others='keep' or 'drop'"
        )
    wanted = [entry for entry in entries if entry.sub_id in handlers]
    commands = [_command(entry, has_store=has_store) for entry in wanted]
    if others == "drop":
        for sub_id in without:
            manager.remove(sub_id)
    return commands


def _command(entry: Entry, *, has_store: bool) -> Command:
    options = Options.parse(str(entry.fields.get("opts", "")))
    if options.max_backlog is not None:
        raise UsageError(
            f"subscription {entry.sub_id!r} consumes a queue: its messages were given back, so "
            "take it up with queue_subscribe"
        )
    given: dict[str, Any] = {
        _ATTRIBUTES[name]: value
        for name, value in entry.fields.items()
        if name not in _MADE_ANEW and name in _ATTRIBUTES
    }
    if given.get("bookmark") and has_store:
        given["bookmark"] = MOST_RECENT
    return Command(str(entry.fields["c"]), data=entry.body, **given)
