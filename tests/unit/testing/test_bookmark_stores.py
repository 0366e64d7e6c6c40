from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from typing_extensions import override

from haclient.testing import check_bookmark_store
from haclient.testing.comparison import expect
from haclient_stores.bookmark import Bookmark, BookmarkList
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore, NullBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.custom import DictBookmarkStore


def test_a_difference_says_what_was_wanted_and_what_was_found() -> None:
    expect(1, 1, "one")
    with pytest.raises(AssertionError, match=r"^the number: wanted 2, found 1$"):
        expect(1, 2, "the number")


pytestmark = pytest.mark.row("BS22")


def test_our_memory_store_passes() -> None:
    check_bookmark_store(MemoryBookmarkStore)


def test_our_logged_store_passes(tmp_path: Path) -> None:
    numbers = count()

    def reopen(store: LoggedBookmarkStore) -> LoggedBookmarkStore:
        """As a killed process would have left it."""
        copy = store.path.with_suffix(".copy")
        shutil.copyfile(store.path, copy)
        return LoggedBookmarkStore(copy)

    check_bookmark_store(
        lambda: LoggedBookmarkStore(tmp_path / f"{next(numbers)}.bm"), reopen=reopen
    )


def test_our_ring_store_passes_but_for_what_it_does_not_promise(tmp_path: Path) -> None:
    numbers = count()

    def reopen(store: RingBookmarkStore) -> RingBookmarkStore:
        copy = store.path.with_suffix(".copy")
        shutil.copyfile(store.path, copy)
        return RingBookmarkStore(copy)

    def make() -> RingBookmarkStore:
        return RingBookmarkStore(tmp_path / f"{next(numbers)}.ring")

    check_bookmark_store(make, reopen=reopen, knows_all_discards=False)
    with pytest.raises(AssertionError, match="discarded before reopening"):
        check_bookmark_store(make, reopen=reopen)


class HighestSeen(MemoryBookmarkStore):
    """Takes the highest sequence for the recovery point."""

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        found = self._subscriptions.get(sub_id)
        seen = {} if found is None else found.tracker.seen
        ids = self._publishers.ids
        return BookmarkList(tuple(Bookmark(ids[p], q) for p, q in seen.items()))


class DiscardsAllBefore(MemoryBookmarkStore):
    """Has a high-water mark in place of discards."""

    @override
    def discard(self, sub_id: str, number: int) -> None:
        self.discard_up_to(sub_id, number)


class DeliversTwice(MemoryBookmarkStore):
    """Filters nothing."""

    @override
    def is_discarded(self, sub_id: str, bookmark: str) -> bool:
        return False


class OneForAll(MemoryBookmarkStore):
    """Takes all subscriptions for one."""

    @override
    def most_recent(self, sub_id: str) -> BookmarkList:
        return super().most_recent(next(iter(self._subscriptions), ""))


class AnybodysStore(MemoryBookmarkStore):
    """Belongs to whoever asks."""

    @override
    def open_for(self, client_name: str) -> None:
        self._client_name = client_name


class ForgetsPurge(MemoryBookmarkStore):
    """Purges nothing."""

    @override
    def purge(self, sub_id: str | None = None) -> None:
        return


@pytest.mark.parametrize(
    "wrong",
    [
        HighestSeen,
        DiscardsAllBefore,
        DeliversTwice,
        OneForAll,
        AnybodysStore,
        ForgetsPurge,
        NullBookmarkStore,
        DictBookmarkStore,
    ],
)
def test_a_store_with_a_defect_fails(wrong: Callable[[], BookmarkStore]) -> None:
    with pytest.raises(AssertionError, match="wanted"):
        check_bookmark_store(wrong)


def test_a_store_that_forgets_is_found_by_reopening_it() -> None:
    with pytest.raises(AssertionError, match="after reopening"):
        check_bookmark_store(MemoryBookmarkStore, reopen=lambda _: MemoryBookmarkStore())
