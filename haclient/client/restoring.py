"""Which subscriptions of an earlier process are sent again, and how."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.messages import HEADERS
from haclient.protocol.options import Options
from haclient.session.subscriptions import QUERIES
from haclient.subscription_manager import Entry, SubscriptionManager
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from haclient_stores.bookmark_stores.subscription import SubscriptionHandle
from haclient_stores.checks import check_word
from haclient_stores.interfaces import BookmarkStore

__all__ = ["OnOthers", "Restored", "restorable"]

OnOthers: TypeAlias = Literal["refuse", "keep", "drop"]
"""What happens to subscriptions without a handler."""


_ATTRIBUTES: Final = {header.wire: header.attribute for header in HEADERS}
_SET_ANEW: Final = frozenset({"c", "cid", "a"})
_MAX_NAMED: Final = 5


class Restored(NamedTuple):
    """A subscription of an earlier process.

    Attributes:
        command: The command to send; without the backlog of a queue.
        start: The bookmark at which it began at first, in wire form; empty without one.
        backlog: Of a queue; `None` if it consumes none.
    """

    command: Command
    start: str
    backlog: int | None


def restorable(
    manager: SubscriptionManager,
    active: Container[str],
    handlers: Container[str],
    others: OnOthers,
    *,
    queues: Container[str],
    store: BookmarkStore | None,
) -> list[Restored]:
    """The subscriptions that have a handler and are not active, in order.

    Args:
        manager: Remembers the subscriptions; with `"drop"` those without a handler are removed.
        active: The ids that are active in this process.
        handlers: The ids that have a handler.
        others: What happens to subscriptions without a handler.
        queues: The ids whose messages are acknowledged for the handler.
        store: Knows where subscriptions with a bookmark resume.

    Raises:
        UsageError: A subscription has no handler, or consumes a queue and is not in `queues`, or
            the other way round; nothing was removed.
    """
    check_word("others", others, ("refuse", "keep", "drop"))
    entries = [entry for entry in manager.entries() if entry.sub_id not in active]
    without = [entry.sub_id for entry in entries if entry.sub_id not in handlers]
    if without and others == "refuse":
        more = "" if len(without) <= _MAX_NAMED else f" and {len(without) - _MAX_NAMED} more"
        raise UsageError(
            f"no handler for {', '.join(map(repr, without[:_MAX_NAMED]))}{more}: give each "
            "subscription of the earlier process a handler under its id, or pass others='keep' or "
            "'drop'"
        )
    wanted = [entry for entry in entries if entry.sub_id in handlers]
    restored = [_restored(entry, queues, store) for entry in wanted]
    if others == "drop":
        for sub_id in without:
            manager.remove(sub_id)
    return restored


def _first_bookmark(entry: Entry, store: BookmarkStore | None) -> str:
    """The bookmark to begin at in this process.

    A store of the application may forget at which bookmark a subscription began, so it is trusted
    to know each: what it does not know is replayed from the start of the log rather than missed.
    """
    start = str(entry.fields.get("bm", ""))
    if not start or store is None:
        return start
    if start == str(NOW) and entry.fields["c"] in QUERIES:
        return start  # its records are all that was missed
    own = getattr(store, "subscription", None)
    log = None if own is None else own(entry.sub_id)
    if isinstance(log, SubscriptionHandle):
        if log.resume() == str(EPOCH) and not log.oldest_undiscarded:
            return start
        log.keep_range(start)
    return str(MOST_RECENT)


def _restored(entry: Entry, queues: Container[str], store: BookmarkStore | None) -> Restored:
    given: dict[str, Any] = {
        _ATTRIBUTES[name]: value
        for name, value in entry.fields.items()
        if name not in _SET_ANEW and name in _ATTRIBUTES
    }
    given["bookmark"] = _first_bookmark(entry, store)
    given["ack_type"] = entry.acks
    command = Command(str(entry.fields["c"]), data=entry.body, **given)
    options = Options.parse(str(command.options))
    backlog = options.max_backlog
    command.options = replace(options, max_backlog=None)
    # Never assumed: a handler that acknowledges later would lose messages.
    if backlog is not None and entry.sub_id not in queues:
        raise UsageError(
            f"subscription {entry.sub_id!r} consumes a queue: with "
            f"queues={{{entry.sub_id!r}: {{}}}} each message is acknowledged when its handler has "
            "returned"
        )
    if backlog is None and entry.sub_id in queues:
        raise UsageError(f"subscription {entry.sub_id!r} of `queues` consumes no queue")
    return Restored(command, str(entry.fields.get("bm", "")), backlog)
