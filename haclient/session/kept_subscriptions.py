"""The subscriptions of one client that have not ended, and what a command means to them. Pure.

An application pauses, resumes and replaces subscriptions by methods, or by commands that name them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from haclient.errors import UsageError
from haclient.protocol.codec import check_text, check_topic
from haclient.protocol.commands import Command
from haclient.protocol.messages import WIRE_NAMES
from haclient.protocol.options import Options
from haclient.session.subscriptions import Router, Subscription
from haclient.subscription_manager import Entry, SubscriptionManager
from haclient_stores.bookmark import EPOCH, MOST_RECENT

_MOST_RECENT: Final = str(MOST_RECENT)


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
        self._manager.add(Entry(subscription.sub_id, dict(request.fields), request.body, acks))

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
        """Those of which the manager has the command, in its order, with that command."""
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
        for one_id in filter(None, ids):  # the query id of a subscription that is no query is empty
            known = [self._router.get(one_id), self._by_id.get(one_id)]
            if known == [None, None]:  # while there is no connection, only this knows query ids
                known = [self._by_query.get(one_id)]
            found.update((one, None) for one in known if one is not None)
        return list(found)

    def check_not_ended(self, subscriptions: Iterable[Subscription]) -> None:
        """Look again after a wait for a connection: an unknown id may mean a new one to a server.

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
            UsageError: One of them is not active, or has no bookmark; or there is no id.
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
