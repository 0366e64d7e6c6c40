"""The common base of the bookmark stores: a handle for each subscription, and the adapter.

Memory, logged and ring stores add the notes of their subscriptions (see `subscription`). Stores
with a file also inherit the lock and the ownership of the file.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from typing_extensions import override

from haclient_stores.adapters.recovery_point import RecoveryPoint, RecoveryPointAdapter, positions
from haclient_stores.bookmark import LAST_MICROSECOND, Bookmark, BookmarkList
from haclient_stores.bookmark_stores.subscription import SubscriptionHandle
from haclient_stores.bookmark_stores.undiscarded_watch import UndiscardedWatch
from haclient_stores.checks import check_count, check_utf8
from haclient_stores.disk.durable_file import Durability, check_durability
from haclient_stores.disk.files import Disk, RealDisk
from haclient_stores.disk.ownership import Ownership, check_path
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import UsageError
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.tools.explain import Explanation, Survival, explain
from haclient_stores.tracker.entries import Publishers
from haclient_stores.tracker.server_order import NOWHERE, ServerOrder
from haclient_stores.tracker.tracker import SubscriptionTracker

__all__ = ["BookmarkFileStore", "TrackedBookmarkStore", "point_of", "server_order_of"]

_HIGHEST_GENERATION: Final = 2**63 - 1  # the files have 64 bits, and later ones are counted up


class TrackedBookmarkStore(BookmarkStore):
    """A bookmark store with a tracker for each subscription.

    Args:
        adapter: Keeps a copy of the recovery points somewhere else.
        watch: Warns of messages that stay undiscarded.

    Attributes:
        adapter: The same.
        watch: The same.
        durability: What the client waits for.

    Raises:
        UsageError: An argument is invalid.
    """

    _survival: Survival  # what the next process finds
    durability: Durability = "process"

    def __init__(
        self, adapter: RecoveryPointAdapter | None = None, watch: UndiscardedWatch | None = None
    ) -> None:
        self.adapter = adapter
        self.watch = watch
        self._publishers = Publishers()
        self._subscriptions: dict[str, SubscriptionHandle] = {}
        self._has_copies = adapter is not None  # of recovery points, somewhere else
        self._taken: dict[str, tuple[int, int]] = {}  # by the adapter, see `moved_points`
        self._client_name = ""
        self._thread = ThreadBinding(self._name)

    @property
    def _name(self) -> str:
        """The name of this store in errors."""
        return "a bookmark store in memory"

    @property
    @override
    def client_name(self) -> str:
        return self._client_name

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionHandle]:
        """All subscriptions by id, for those who look."""
        return self._subscriptions

    def subscription(self, sub_id: str) -> SubscriptionHandle:
        """The fast handle of one subscription; always the same object for the same id.

        Args:
            sub_id: The subscription; entered when it was never seen.

        Raises:
            StoreFull: There is no room for one more.
            UsageError: The store is closed, or another thread uses it.
        """
        self._thread.check()
        found = self._subscriptions.get(sub_id)
        if found is not None:
            return found
        check_utf8("sub_id", sub_id)
        return self._new_subscription(sub_id)

    @abstractmethod
    def _new_subscription(self, sub_id: str) -> SubscriptionHandle:
        """Enter a subscription that was never seen."""

    def release_thread(self) -> None:
        """Let another thread use the store from now on; this one does not use it any more."""
        self._thread.release()

    @override
    def purge(self, sub_id: str | None = None) -> None:
        self._thread.check()
        for name in list(self._subscriptions) if sub_id is None else [sub_id]:
            self.subscription(name).forget(has_copies=self._has_copies)

    # -- one call for each message --------------------------------------------------------------

    @override
    def log(self, sub_id: str, bookmark: str) -> int:
        return self.subscription(sub_id).log(bookmark)

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard(number)

    @override
    def discard_up_to(self, sub_id: str, number: int) -> None:
        self.subscription(sub_id).discard_up_to(number)

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return self.subscription(sub_id).is_discarded(bookmark)

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        self._thread.check()
        found = self._subscriptions.get(sub_id)
        return BookmarkList() if found is None else found.recovery_point()

    @override
    def persisted(self, sub_id: str, bookmark: str) -> None:
        self.subscription(sub_id).persisted(bookmark)

    @override
    def oldest_undiscarded(self, sub_id: str) -> int:
        return self.subscription(sub_id).oldest_undiscarded

    # -- what the client's shell asks --------------------------------------------------------------

    @property
    def prunes(self) -> bool:
        """Whether it is a log, which its owner prunes."""
        return False

    @property
    def prune_requested(self) -> bool:
        """Whether another process asks for a prune; to be asked about once a second."""
        return False

    def answer_prune(self, error: str = "") -> None:
        """Tell the process that asks that the store is pruned.

        Args:
            error: Why it is not; empty if it is.
        """

    @property
    def prunes_on_close(self) -> bool:
        """Whether `close` prunes first, which may take its time: by its policy, or when asked."""
        return False

    def prune_due(self, now: float) -> bool:  # noqa: ARG002  # for those that have a policy
        """Whether the policy wants a prune now.

        Args:
            now: The time in seconds, on a clock that never steps.
        """
        return False

    @property
    def needs_sync(self) -> bool:
        """Whether something was written since the last `sync` began."""
        return False

    def sync(self) -> None:
        """Write everything through to the disk, if there is one; may run in a thread.

        Raises:
            StoreError: The disk has failed: nothing is known of what was not synced before.
        """

    # -- looking and seeding ----------------------------------------------------------------------

    def explain(self, sub_id: str) -> Explanation:
        """Which messages would be redelivered, and which not, if the process died now.

        Args:
            sub_id: The id of the subscription.

        Returns:
            The recovery point and the message counts; `str()` gives a readable text.

        Raises:
            UsageError: The store knows no such subscription, or another thread uses it.
        """
        return explain(sub_id, self._known(sub_id), self._publishers, self._survival)

    def entries(self, sub_id: str) -> Iterator[tuple[int, Bookmark, bool]]:
        """The messages of a subscription that are not finished.

        Of many that were discarded after an undiscarded one, only the last of each publisher may
        be left.

        Args:
            sub_id: The id of the subscription.

        Returns:
            Number, bookmark, and whether it is discarded, of each in arrival order.

        Raises:
            UsageError: The store knows no such subscription, or another thread uses it.
        """
        tracker, ids = self._known(sub_id), self._publishers.ids
        point = positions(tracker.recovery_point())
        for number, publisher, sequence, discarded in tracker.entries():
            if not discarded or sequence > point.get(ids[publisher], 0):
                yield number, Bookmark(ids[publisher], sequence), discarded

    def _known(self, sub_id: str) -> SubscriptionTracker:
        self._thread.check()
        found = self._subscriptions.get(sub_id)
        if found is None:
            known = ", ".join(self._subscriptions) or "none"
            raise UsageError(f"no subscription {sub_id!r} in this store; it knows {known}")
        return found.tracker

    def seed(self, points: Iterable[RecoveryPoint]) -> None:
        """Take over recovery points that were kept elsewhere, where they are newer.

        A point of another generation is newer or older as a whole: between the two the subscription
        was started over. Within one generation the store's own knowledge is finer, since it also
        knows what was discarded after the point. So a point is only taken when it is ahead for
        every publisher: then the file was lost, or is from before the subscription went on at
        another host.

        Args:
            points: What an adapter has kept.

        Raises:
            UsageError: A point is not a list of bookmarks, or has an impossible value; nothing was
                taken over.
        """
        self._thread.check()
        self._has_copies = True
        for point, newest in [(point, self._positions(point)) for point in points]:
            handle = self._subscriptions.get(point.sub_id)
            if newest and (handle is None or self._is_newer(point, newest, handle.tracker)):
                self.subscription(point.sub_id).seed(
                    newest, server_order_of(point), max(point.generation, 1)
                )

    def _is_newer(
        self, point: RecoveryPoint, newest: dict[int, int], tracker: SubscriptionTracker
    ) -> bool:
        if point.generation and point.generation != tracker.generation:
            return point.generation > tracker.generation
        if newest == self._positions(point_of(point.sub_id, tracker)):
            return False  # which is the start, while nothing is finished
        own = tracker.applied()
        return newest != own and all(newest.get(each, 0) >= own[each] for each in own)

    def _positions(self, point: RecoveryPoint) -> dict[int, int]:
        try:
            for name in ("sub_id", "bookmark", "server"):
                check_utf8(name, getattr(point, name))
            check_count("generation", point.generation, 0, _HIGHEST_GENERATION)
            check_count("caught_up_us", point.caught_up_us, -sys.maxsize)  # as none if impossible
            found = positions(BookmarkList.parse(point.bookmark))
        except UsageError as error:
            raise UsageError(
                f"the recovery point of the subscription {point.sub_id!r} cannot be used: {error}; "
                "delete it where the adapter keeps it"
            ) from error
        return {self._publishers.index(each): sequence for each, sequence in found.items()}

    def moved_points(
        self, taken: dict[str, tuple[int, int]] | None = None
    ) -> Iterator[RecoveryPoint]:
        """The recovery points that may have moved since the reader took them last.

        Idle subscriptions cost next to nothing. A point counts as taken when the next one is asked
        for, so one whose reader raised is returned again.

        Args:
            taken: The movement that one reader has taken, by subscription id; updated here, and
                empty before the first call. Each reader has its own; `None` is the adapter's.
        """
        self._thread.check()
        self._has_copies = self._has_copies or taken is None
        taken = self._taken if taken is None else taken
        for sub_id, handle in list(self._subscriptions.items()):
            if taken.get(sub_id) != handle.movement:
                point = point_of(sub_id, handle.tracker)
                movement = handle.movement
                yield point
                taken[sub_id] = movement

    def recovery_points(self) -> Iterator[RecoveryPoint]:
        """The recovery point of each subscription, as adapters save it; some have no bookmark."""
        self._thread.check()
        self._has_copies = True
        for sub_id, handle in list(self._subscriptions.items()):
            yield point_of(sub_id, handle.tracker)


class BookmarkFileStore(TrackedBookmarkStore):
    """A bookmark store that has opened and locked its file; subclasses read it.

    Args:
        path: The file; created with its directory when it is missing.
        adapter: Keeps a copy of the recovery points somewhere else.
        watch: Warns of messages that stay undiscarded.
        durability: What the client waits for, as in `FilePublishStore`.
        disk: The file system; simulations pass their own.

    Raises:
        StoreLocked: Another process has the store open.
        UsageError: An argument is invalid.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        adapter: RecoveryPointAdapter | None,
        watch: UndiscardedWatch | None,
        durability: Durability,
        disk: Disk | None,
    ) -> None:
        check_durability(durability)
        self._path = check_path(path, "the file of the store")
        super().__init__(adapter, watch)
        self.durability: Durability = durability
        self._disk = disk or RealDisk()
        self._file_path = self._disk.resolve(self._path)  # which a prune replaces, and not a link
        self._disk.make_directory(self._file_path.parent)
        self._owner = Ownership(self._disk, self._file_path, store=self._path)

    @property
    @override
    def _name(self) -> str:
        return str(self._path)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    @override
    def client_name(self) -> str:
        return self._owner.client_name

    @override
    def open_for(self, client_name: str) -> None:
        self._thread.check_opening()
        if self._owner.check_client(client_name):
            self._write_owner(client_name)
            self._owner.client_name = client_name

    @abstractmethod
    def _write_owner(self, client_name: str) -> None:
        """Note in the header whose file it is from now on."""


def point_of(sub_id: str, tracker: SubscriptionTracker) -> RecoveryPoint:
    """The recovery point of one subscription, as adapters save it.

    One that was entered at NOW asked for nothing older than its entry, so that time is safe too.

    Args:
        sub_id: The id of the subscription.
        tracker: Its tracker.

    Returns:
        The point; without a bookmark while nothing is finished.
    """
    point = tracker.recovery_point()
    server_order = tracker.server_order
    tracker.update_discarded_until()
    in_order = server_order.server != NOWHERE and (not server_order.before or tracker.in_order)
    return RecoveryPoint(
        sub_id,
        str(point) if positions(point) else "",
        server_order.server if in_order else "",
        max(server_order.discarded_until_us, tracker.start.entered_us),
        tracker.generation,
    )


def server_order_of(point: RecoveryPoint) -> ServerOrder:
    """The server order of a subscription that begins at a saved recovery point.

    Args:
        point: The point; an impossible time counts as none.
    """
    caught_up_us = point.caught_up_us if 0 < point.caught_up_us <= LAST_MICROSECOND else 0
    return ServerOrder(
        point.server or NOWHERE, caught_up_us=caught_up_us, discarded_until_us=caught_up_us
    )
