"""The subscriptions of one client that have not ended, and what a command means to them. Pure.

An application pauses, resumes and replaces subscriptions by methods, or by commands that name them.
Those of an earlier process are kept in a file, and restored with handlers (`restorable`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.codec import check_text, check_topic
from haclient.protocol.commands import Command
from haclient.protocol.messages import HEADERS, WIRE_NAMES
from haclient.protocol.options import Options
from haclient.session.subscriptions import QUERIES, Router, Subscription
from haclient.subscription_manager import Entry, SubscriptionManager
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW
from haclient_stores.bookmark_stores.subscription import SubscriptionHandle
from haclient_stores.checks import check_word
from haclient_stores.interfaces import BookmarkStore

_MOST_RECENT: Final = str(MOST_RECENT)

OnOthers: TypeAlias = Literal["refuse", "keep", "drop"]
"""What happens to subscriptions without a handler."""

_ATTRIBUTES: Final = {header.wire: header.attribute for header in HEADERS}
_SET_ANEW: Final = frozenset({"c", "cid", "a"})
_MAX_NAMED: Final = 5


class KeptSubscriptions:
    """The subscriptions that are sent again on the next connection, by id.

    Args:
        manager: Remembers their commands; `None` for a client that does not reconnect: then none is
            kept.
        router: The active subscriptions of the current connection.
    """

    def __init__(self, manager: SubscriptionManager | None, router: Router) -> None:
        self._manager = manager
        self._router = router
        self._by_id: dict[str, Subscription] = {}
        self._by_query: dict[str, Subscription] = {}

    def __iter__(self) -> Iterator[Subscription]:
        return iter(list(self._by_id.values()))

    def __contains__(self, subscription: Subscription) -> bool:
        return self._by_id.get(subscription.sub_id) is subscription

    def ids(self) -> frozenset[str]:
        """The ids of all of them."""
        return frozenset(self._by_id)

    def has_id(self, sub_id: str) -> bool:
        """Whether one of them has this id."""
        return sub_id in self._by_id

    def keep(self, subscription: Subscription) -> None:
        """Keep a subscription that was accepted, or note its current command."""
        request = subscription.request
        if self._manager is None:
            return
        self._by_id[subscription.sub_id] = subscription
        self._by_query[subscription.query_id] = subscription
        acks = ",".join(sorted(request.user_acks))
        sub_id, is_stream = subscription.sub_id, subscription.queue.is_stream
        self._manager.add(Entry(sub_id, dict(request.fields), request.body, acks, is_stream))

    def changed(self, subscription: Subscription) -> None:
        """Note the later command of a subscription, unless it has ended."""
        if subscription in self:
            self.keep(subscription)

    def drop(self, subscription: Subscription) -> None:
        """Drop a subscription that was ended on purpose, or by the server."""
        if self._manager is not None and subscription in self:
            self._manager.remove(subscription.sub_id)  # first: if it fails, it can be tried again
            self.forget(subscription)

    def forget(self, subscription: Subscription) -> None:
        """Drop a subscription whose command the manager may still have."""
        self._by_id.pop(subscription.sub_id, None)
        if self._by_query.get(subscription.query_id) is subscription:
            del self._by_query[subscription.query_id]

    def to_resubscribe(self) -> Iterator[Subscription]:
        """Those whose command the manager has, in its order, with that command."""
        for entry in () if self._manager is None else self._manager.entries():
            subscription = self._by_id.get(entry.sub_id)
            if subscription is not None:
                subscription.request = subscription.request.changed(entry.fields)
                yield subscription

    # -- active or kept -------------------------------------------------------------------------

    def all(self) -> list[Subscription]:
        """Every subscription that has not ended."""
        return list(dict.fromkeys((*self._router.all(), *self._by_id.values())))

    def find(self, sub_id: str) -> Subscription | None:
        """The subscription with this id that has not ended and lasts until `unsubscribe`."""
        for one in (self._router.get(sub_id), self._by_id.get(sub_id)):
            if one is not None and one.sub_id == sub_id and not one.is_query:
                return one
        return None

    def named(self, ids: Iterable[str]) -> list[Subscription]:
        """The subscriptions that have not ended and have one of these ids, or query ids."""
        found: dict[Subscription, None] = {}
        for one_id in filter(None, ids):  # the query id is empty for all but queries
            known = [self._router.get(one_id), self._by_id.get(one_id)]
            if known == [None, None]:  # while there is no connection, only this knows query ids
                known = [self._by_query.get(one_id)]
            found.update((one, None) for one in known if one is not None)
        return list(found)

    def check_not_ended(self, subscriptions: Iterable[Subscription]) -> None:
        """Check again after a wait: a server may take an unknown id for a new subscription.

        Raises:
            UsageError: One of them has ended meanwhile.
        """
        for one in subscriptions:
            if self.find(one.sub_id) is not one:
                raise UsageError(f"the subscription {one.sub_id!r} is not active any more")

    # -- what a command is about ------------------------------------------------------------------

    def with_bookmarks(self, ids: Sequence[str], word: str) -> list[Subscription]:
        """The active bookmark subscriptions with these ids.

        Args:
            ids: Their ids.
            word: What is to be done with them, for errors.

        Raises:
            UsageError: One of them is not active, has no bookmark, or cannot be paused; or there is
                no id.
        """
        if not ids:
            raise UsageError(f"{word} needs the id of a subscription, or several")
        chosen: list[Subscription] = []
        for sub_id in dict.fromkeys(map(str.strip, ids)):
            active = self.find(sub_id)
            if active is None or not active.request.bookmark:
                raise UsageError(
                    f"{word} takes active bookmark subscriptions, and {sub_id!r} is none: "
                    "subscribe with a bookmark first"
                )
            if word == "pause" and active.request.parsed.live:
                raise UsageError(f"{sub_id!r} has the option live, and cannot be paused")
            chosen.append(active)
        return chosen

    def to_replace(self, sub_id: str, fields: Mapping[str, str | int]) -> Subscription:
        """The active subscription that gets new values for some fields.

        Raises:
            UsageError: It is not active, or cannot have one of them.
        """
        active = self.find(sub_id)
        if active is None:
            raise UsageError(f"there is no active subscription {sub_id!r} to replace")
        options = Options.parse(str(fields.get("opts", "")))
        if options.resume:  # no server would take the later form
            raise UsageError("the option resume is none of a replacement: use resume")
        if options.oof and active.request.bookmark and not active.query_id:
            raise UsageError("a bookmark subscription cannot have the option oof")
        if active.is_paused and options.live:
            raise UsageError(f"{sub_id!r} is paused, and cannot get the option live: resume it")
        if fields.get("orderby") and not active.request.query_id:
            raise UsageError(f"the subscription {sub_id!r} has no query that could have an order")
        return active


def changed_fields(changes: Mapping[str, object]) -> dict[str, str | int]:
    """New values by the names of `Command` as fields of a header; `None` leaves one as it was.

    Raises:
        UsageError: A value can never work.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if "options" in given:
        given["options"] = str(Options.parse(str(given["options"])))
    for name, value in given.items():
        check_text(name, value)
    check_topic(given.get("topic", ""))
    return {WIRE_NAMES[name]: str(value) for name, value in given.items()}


def replacing_fields(sub_id: str, command: Command) -> dict[str, str | int]:
    """The fields that a whole command replaces: what it does not say is empty.

    Raises:
        UsageError: It has a bookmark, or no server could carry it out.
    """
    if str(command.bookmark):
        raise UsageError(
            f"the subscription {sub_id!r} keeps its position when it is replaced: leave the "
            "bookmark out, or unsubscribe first to begin elsewhere"
        )
    options = dataclasses.replace(Options.parse(str(command.options)), replace=False)
    plain = dataclasses.replace(command, options=options)
    return {"filter": "", "orderby": "", "opts": "", **header_fields(plain)}


def header_fields(command: Command) -> dict[str, str | int]:
    """The command's header; `MOST_RECENT` is resolved when it is sent.

    Raises:
        UsageError: No server could carry it out.
    """
    recent = command.start == _MOST_RECENT
    if recent:
        command = dataclasses.replace(command, bookmark=EPOCH)
    command.validate()
    fields = command.to_fields()
    if recent:
        fields["bm"] = _MOST_RECENT
    return fields


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
    streams = [each.sub_id for each in entries if each.is_stream and each.sub_id not in handlers]
    entries = [each for each in entries if not each.is_stream or each.sub_id in handlers]
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
    dropped = without if others == "drop" else []
    for sub_id in (*dropped, *streams):  # those of a process that was killed
        manager.remove(sub_id)
    return restored


def first_bookmark(entry: Entry, store: BookmarkStore | None) -> str:
    """The bookmark at which a subscription of an earlier client begins now.

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
        # Messages may have arrived, and be discarded, before any of them is a recovery point.
        if log.resume() == str(EPOCH) and log.tracker.nothing_arrived:
            return start
        log.keep_range(start)
    return _MOST_RECENT


def _restored(entry: Entry, queues: Container[str], store: BookmarkStore | None) -> Restored:
    given: dict[str, Any] = {
        _ATTRIBUTES[name]: value
        for name, value in entry.fields.items()
        if name not in _SET_ANEW and name in _ATTRIBUTES
    }
    given["bookmark"] = first_bookmark(entry, store)
    given["ack_type"] = entry.acks
    command = Command(str(entry.fields["c"]), data=entry.body, **given)
    options = Options.parse(str(command.options))
    backlog = options.max_backlog
    command.options = dataclasses.replace(options, max_backlog=None)
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
