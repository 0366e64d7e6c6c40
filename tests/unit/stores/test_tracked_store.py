from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haclient_stores.adapters import RecoveryPoint
from haclient_stores.errors import UsageError
from haclient_stores.logged_bookmark import LoggedBookmarkStore
from haclient_stores.memory_bookmark import MemoryBookmarkStore
from haclient_stores.ring_bookmark import RingBookmarkStore
from haclient_stores.tracked_store import Tracked, TrackedBookmarkStore

KINDS: dict[str, Callable[[Path], object]] = {
    "memory": lambda _: MemoryBookmarkStore(),
    "logged": lambda path: LoggedBookmarkStore(path / "s.bm"),
    "ring": lambda path: RingBookmarkStore(path / "s.bm"),
}


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[TrackedBookmarkStore[Tracked]]:
    made: TrackedBookmarkStore[Tracked] = KINDS[request.param](tmp_path)  # type: ignore[assignment]  # each is one
    yield made
    made.close()


def seeded(store: TrackedBookmarkStore[Tracked], bookmark: str) -> str:
    store.seed([RecoveryPoint("s", bookmark)])
    return str(store.most_recent("s"))


@pytest.mark.row("RP2", "RP6")
def test_a_store_that_knows_nothing_begins_at_the_points_that_were_kept(
    store: TrackedBookmarkStore[Tracked],
) -> None:
    assert seeded(store, "1|5|,2|7|") == "1|5|,2|7|"
    assert store.is_discarded("s", "1|5|")
    assert not store.is_discarded("s", "1|6|")
    number = store.log("s", "1|6|")
    store.discard("s", number)
    assert str(store.most_recent("s")) == "1|6|,2|7|"


@pytest.mark.row("RP6")
def test_a_point_counts_only_where_it_is_ahead(
    store: TrackedBookmarkStore[Tracked],
) -> None:
    for bookmark in ("1|1|", "1|2|", "1|3|"):
        store.log("s", bookmark)
    store.discard("s", 1)
    store.discard("s", 3)
    assert seeded(store, "1|1|") == "1|1|"
    assert store.is_discarded("s", "1|3|"), "the store knows more than the point"
    assert seeded(store, "2|9|") == "1|1|"
    assert seeded(store, "1|9|,2|9|") == "1|9|,2|9|"
    assert store.is_discarded("s", "1|9|")
    assert store.oldest_undiscarded("s") == 0


@pytest.mark.row("RP6")
@pytest.mark.parametrize("bookmark", ["0|1|", "0", "20240131T120000Z"])
def test_what_names_no_message_seeds_nothing(
    store: TrackedBookmarkStore[Tracked], bookmark: str
) -> None:
    assert seeded(store, bookmark) == "0"


def test_a_subscription_that_is_not_known_is_named_with_those_that_are(
    store: TrackedBookmarkStore[Tracked],
) -> None:
    with pytest.raises(UsageError, match="knows none"):
        store.explain("x")
    store.log("s", "1|1|")
    with pytest.raises(UsageError, match="no subscription 'x' in this store; it knows s"):
        list(store.entries("x"))


def test_entries_are_what_is_not_finished(store: TrackedBookmarkStore[Tracked]) -> None:
    for sequence in range(1, 6):
        store.log("s", f"1|{sequence}|")
    for number in (1, 2, 4):
        store.discard("s", number)
    found = [(number, str(mark), done) for number, mark, done in store.entries("s")]
    assert found == [(3, "1|3|", False), (4, "1|4|", True), (5, "1|5|", False)]


def test_it_needs_no_upkeep_by_itself(store: TrackedBookmarkStore[Tracked]) -> None:
    assert not store.prunes
    assert not store.prune_due(1.0)
    store.sync()
    assert not store.needs_sync
