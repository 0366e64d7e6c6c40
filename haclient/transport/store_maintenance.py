"""Background maintenance of a bookmark store: adapters, warnings, prunes and syncs.

Stores are synchronous and have no clock, so the client maintains its store. It loads the recovery
points from an adapter, sends the adapter the points that have moved, and asks the store whether it
should be pruned. It runs slow calls (`prune`, `sync`) in a thread while messages keep flowing. A
store written by the user is not maintained.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from threading import Lock
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

import trio

from haclient.errors import StoreError, TimedOut, UsageError
from haclient.events import RecoveryPointMoved, StorePruned
from haclient.options import Settings
from haclient.session.auditing import Auditor
from haclient.subscription_manager import FileSubscriptionManager, SubscriptionManager
from haclient.transport.reporter import Reporter
from haclient.transport.tasks import own_threads
from haclient_stores.adapters.recovery_point import (
    PointFeed,
    RecoveryPoint,
    RecoveryPointAdapter,
    TimedAdapter,
)
from haclient_stores.audit_log import AuditLog
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedCount
from haclient_stores.interfaces import BookmarkStore, PublishStore
from haclient_stores.logs import logger_of
from haclient_stores.publish_stores.publish_log import PublishLog

_RUN_EVERY_S: Final = 0.1
_WATCH_EVERY_S: Final = 1.0  # it looks at every subscription, and its limits are minutes
_REPORT_EVERY_S: Final = 1.0  # recovery points move with each discard
_POINTS_AT_ONCE: Final = 100  # before other tasks run: a point takes some 30 us to compute
_COUNT_EVERY_S: Final = 60.0  # so long nobody has discarded the oldest message
_PRUNE_CHECK_EVERY_S: Final = 1.0
_AFTER_FAILED_PRUNE_S: Final = 60.0
_RECOVER_S: Final = 30.0  # for what an adapter has kept
_CLOSE_S: Final = 10.0  # for what an adapter has not written yet
_logger = logger_of(__name__)

# The clients of this process by the ids of their stores, which each of them refers to. A client
# that runs has claimed its stores; before that, the first one that was made with a store has it.
_users: Final = WeakValueDictionary[int, "StoreMaintenance"]()
_claiming: Final = Lock()  # clients of several threads may begin at the same time
os.register_at_fork(
    before=_claiming.acquire,
    after_in_parent=_claiming.release,
    after_in_child=_claiming.release,
)

Task: TypeAlias = Callable[[], Awaitable[None]]


Owned: TypeAlias = BookmarkStore | PublishStore | FileSubscriptionManager
"""An object that a client opens for itself when it is created, and closes at its end."""


def open_all(
    settings: Settings, manager: SubscriptionManager | None, auditor: Auditor | None
) -> list[Owned | AuditLog]:
    """Open the stores and the audit log for one client, all of them or none.

    After an error all are closed, which nobody else could do, except those that another client of
    this process uses.

    Args:
        settings: The settings of the client.
        manager: Remembers its subscriptions.
        auditor: Writes its audit log.

    Returns:
        Those that there are, the one that is to be closed last first.

    Raises:
        StoreLocked: One belongs to another client.
        UsageError: One is not a store, such as a path.
    """
    publish_store, bookmark_store = settings.publish_store, settings.bookmark_store
    given = (
        ("publish_store", publish_store, "store", "FilePublishStore"),
        ("bookmark_store", bookmark_store, "log", "LoggedBookmarkStore"),
    )
    stores: list[Owned] = [
        store for _, store, method, _ in given if store is not None and hasattr(store, method)
    ]
    if isinstance(manager, FileSubscriptionManager):
        stores.append(manager)
    all_stores = stores if auditor is None else [auditor.log, *stores]
    with ExitStack() as refused:
        for each in all_stores:
            if not is_in_use(each):
                refused.callback(each.close)
        for argument, store, method, example in given:
            if store is not None and not hasattr(store, method):
                found = type(store).__name__
                raise UsageError(f"{argument} is a store, such as {example}(path), not {found}")
        for each in stores:
            each.open_for(settings.name)
        if auditor is not None:
            auditor.open_for(settings.name)
        refused.pop_all()
    return list(all_stores)


def is_in_use(store: Owned | AuditLog) -> bool:
    """Whether a client of this process has taken a store and not closed it."""
    return id(store) in _users


class StoreMaintenance:
    """Maintains the bookmark store of one client.

    Args:
        store: The store; None and stores of other packages are not maintained.
        stores: All stores of the client, and its audit log, to be closed at the end; the last
            one first.
        reporter: Where log records and events go.

    Attributes:
        has_claimed: `claim` was called.
    """

    def __init__(
        self,
        store: BookmarkStore | None,
        stores: Sequence[Owned | AuditLog] = (),
        *,
        reporter: Reporter,
    ) -> None:
        self._store = store if isinstance(store, TrackedBookmarkStore) else None
        self._stores = stores
        for each in stores:
            _users.setdefault(id(each), self)
        self.has_claimed = False
        self._reporter = reporter
        self._watch_at = 0.0
        self._prune_again_at = 0.0
        self._feed: PointFeed | None = None
        if self._store is not None and self._store.adapter is not None:
            self._feed = PointFeed(self._store.adapter)

    def claim(self) -> None:
        """Take the stores for a client that begins to run, until `close`.

        Raises:
            UsageError: Another client that runs has one of them; all are left as they are.
        """
        with _claiming:
            for each in self._stores:
                user = _users.get(id(each))
                if user is not None and user is not self and user.has_claimed:
                    raise UsageError(
                        f"another client of this process uses the {type(each).__name__}: end that "
                        "client first, or give each client a name and stores of its own"
                    )
            self.has_claimed = True
            for each in self._stores:
                _users[id(each)] = self

    async def recover(self, client_name: str) -> None:
        """Hand the store what its adapter has kept; before the first subscribe.

        Raises:
            UsageError: The adapter cannot serve this client, or what it has is no recovery
                point.
            TimedOut: It gives no points; whatever is raised, the stores are closed.
        """
        store, feed = self._store, self._feed
        if store is None or store.adapter is None or feed is None:
            return
        try:
            points = await _kept(store.adapter, client_name)
            store.seed(points)
        except BaseException:
            self._feed = None  # what it has may be newer than what the store knows
            await self.close()
            raise
        feed.mark_sent(points)

    @property
    def tasks(self) -> list[Task]:
        """The tasks to run for as long as the client is open."""
        store = self._store
        tasks: list[Task] = [task for each in self._stores if (task := group_sync(each))]
        if store is None:
            return tasks
        if store.adapter is not None or store.watch is not None:
            tasks.append(self._run_repeatedly)
        if store.prunes:
            tasks.append(self._prune_when_due)
        tasks += [self._count_undiscarded, self._report_points]
        return tasks

    async def _run_repeatedly(self) -> None:
        while True:
            await self.run_due(trio.current_time())
            await trio.sleep(_RUN_EVERY_S)

    async def run_due(self, now: float) -> None:
        """Pass moved recovery points to the adapter; warn of messages that nobody discards."""
        store = self._store
        if store is None:
            return
        if self._feed is not None:
            for count, point in enumerate(store.moved_points(), 1):
                self._feed.send_moved((point,))
                if count % _POINTS_AT_ONCE == 0:  # all of them move when a connection is lost
                    await trio.lowlevel.checkpoint()
            if isinstance(store.adapter, TimedAdapter):
                store.adapter.poll(now)
        if store.watch is not None and now >= self._watch_at:
            self._watch_at = now + _WATCH_EVERY_S
            for sub_id, handle in store.subscriptions.items():
                store.watch.note(
                    sub_id,
                    oldest=handle.oldest_undiscarded,
                    undiscarded=handle.undiscarded_count,
                    now=now,
                )
            store.watch.forget_all_but(store.subscriptions.keys())

    def pass_on_points(self, now: float) -> None:
        """Send the adapter the present points, and have it write those that it holds back."""
        store = self._store
        if store is None or self._feed is None:
            return
        self._feed.send_moved(store.recovery_points(), last=True)
        if isinstance(store.adapter, TimedAdapter):
            store.adapter.poll(now)  # from now on they wait
            store.adapter.poll(inf)  # whatever its limits are, they are over

    async def _count_undiscarded(self) -> None:
        store, count = self._store, UndiscardedCount()
        while store is not None:
            for sub_id, handle in store.subscriptions.items():
                oldest, undiscarded = handle.oldest_undiscarded, handle.undiscarded_count
                count.note(sub_id, oldest=oldest, undiscarded=undiscarded)
            count.forget_all_but(store.subscriptions.keys())
            await trio.sleep(_COUNT_EVERY_S)

    async def _report_points(self) -> None:
        store, reported = self._store, dict[str, str]()
        taken: dict[str, tuple[int, int]] = {}
        while store is not None:
            await trio.sleep(_REPORT_EVERY_S)
            if not self._reporter.wants(RecoveryPointMoved):
                continue
            for count, point in enumerate(store.moved_points(taken), 1):
                if reported.get(point.sub_id, "") != point.bookmark:
                    reported[point.sub_id] = point.bookmark
                    self._reporter.emit(
                        RecoveryPointMoved, sub_id=point.sub_id, bookmark=point.bookmark
                    )
                if count % _POINTS_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
            for sub_id in taken.keys() - store.subscriptions.keys():  # what was purged
                del taken[sub_id]
                reported.pop(sub_id, None)

    async def _prune_when_due(self) -> None:
        store = self._store
        while store is not None:
            # At once, too: a process that never lives for a second would leave a request for ever.
            now = trio.current_time()
            if store.prune_requested or (now >= self._prune_again_at and store.prune_due(now)):
                await self._prune(store)
            await trio.sleep(_PRUNE_CHECK_EVERY_S)

    async def _prune(self, store: TrackedBookmarkStore) -> None:
        try:
            await trio.to_thread.run_sync(store.prune, limiter=own_threads("disk"))
        except StoreError as error:  # the old file continues; it may be possible later
            self._reporter.log.warning("not pruned: %s", error)
            self._prune_again_at = trio.current_time() + _AFTER_FAILED_PRUNE_S
            store.answer_prune(str(error))
        else:
            store.answer_prune()
            self._reporter.emit(StorePruned)

    async def close(self) -> None:
        """Pass the last recovery points to the adapter; close it and all stores."""
        with ExitStack() as closing:  # each of them, whatever happens to another
            for each in self._stores:
                closing.callback(self._release, each)
            if self._store is not None:
                await self._close(self._store)

    def _release(self, store: Owned | AuditLog) -> None:
        try:
            store.close()
        finally:
            if _users.get(id(store)) is self:
                del _users[id(store)]

    async def _close(self, store: TrackedBookmarkStore) -> None:
        try:
            if store.adapter is not None:
                try:
                    if self._feed is not None:
                        self._feed.send_moved(store.recovery_points(), last=True)
                finally:  # it may raise what went wrong before; what has gathered is written now
                    await self._close_adapter(store.adapter)
        finally:
            if store.prunes_on_close:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(store.close, limiter=own_threads("disk"))

    @staticmethod
    async def _close_adapter(adapter: RecoveryPointAdapter) -> None:
        with trio.move_on_after(_CLOSE_S, shield=True) as closing:
            await adapter.close()
        if closing.cancelled_caught:
            _logger.warning(
                "%s: the last recovery points were not written in %g s",
                type(adapter).__name__,
                _CLOSE_S,
            )


async def _kept(adapter: RecoveryPointAdapter, client_name: str) -> list[RecoveryPoint]:
    with trio.move_on_after(_RECOVER_S):
        return list(await adapter.recover(client_name))
    raise TimedOut(
        f"{type(adapter).__name__} gave no recovery points in {_RECOVER_S:g} s: see that its "
        "server or database answers, or begin without the adapter"
    )


_BOOKMARKS_EVERY_S: Final = 0.005


def group_sync(store: Owned | AuditLog) -> Callable[[], Awaitable[None]] | None:
    """The task that syncs a store again and again, if its durability asks for one.

    A discard is a call that returns at once, so `fsync` is for bookmark stores the same as `group`.
    """
    if isinstance(store, PublishLog) and store.durability == "group":
        return partial(_sync_in_groups, store, store.group_interval_s)
    if isinstance(store, TrackedBookmarkStore) and store.durability != "process":
        return partial(_sync_in_groups, store, _BOOKMARKS_EVERY_S)
    return None


async def _sync_in_groups(store: PublishLog | TrackedBookmarkStore, interval_s: float) -> None:
    """Write through what was stored since the last time; an error of the disk ends the client."""
    while True:
        await trio.sleep(interval_s)
        if store.needs_sync:
            await trio.to_thread.run_sync(store.sync, limiter=own_threads("disk"))
