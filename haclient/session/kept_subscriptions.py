"""The subscriptions of one client that survive a lost connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from haclient.session.subscriptions import Router, Subscription
from haclient.subscription_manager import Entry, SubscriptionManager


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
