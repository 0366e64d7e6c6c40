from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from haclient.session.resume import resume_bookmarks
from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.bookmark_stores.logged import LoggedBookmarkStore
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.bookmark_stores.ring import RingBookmarkStore
from haclient_stores.bookmark_stores.tracked_store import TrackedBookmarkStore
from haclient_stores.errors import UsageError
from haclient_stores.interfaces import SubscriptionLog

KINDS: dict[str, Callable[[Path], object]] = {
    "memory": lambda _: MemoryBookmarkStore(),
    "logged": lambda path: LoggedBookmarkStore(path / "s.bm"),
    "ring": lambda path: RingBookmarkStore(path / "s.bm"),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TrackedBookmarkStore]:
    made: TrackedBookmarkStore = KINDS[request.param](tmp_path)  # type: ignore[assignment]  # each is one
    yield made
    made.close()


def seeded(store: TrackedBookmarkStore, bookmark: str) -> str:
    store.seed([RecoveryPoint("s", bookmark)])
    return str(store.most_recent("s"))


@pytest.mark.row("RP2", "RP6")
def test_a_store_that_knows_nothing_begins_at_the_points_that_were_kept(
    store: TrackedBookmarkStore,
) -> None:
    assert seeded(store, "1|5|,2|7|") == "1|5|,2|7|"
    assert store.is_discarded("s", "1|5|")
    assert not store.is_discarded("s", "1|6|")
    number = store.log("s", "1|6|")
    store.discard("s", number)
    assert str(store.most_recent("s")) == "1|6|,2|7|"


@pytest.mark.row("RP6")
def test_a_point_counts_only_where_it_is_ahead(
    store: TrackedBookmarkStore,
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


@pytest.mark.row("RP6", "BS4")
@pytest.mark.parametrize(("start", "end"), [("7|3|", ""), ("0|1|", "7|3|")])
def test_the_start_that_an_adapter_was_told_is_not_ahead(
    tmp_path: Path, start: str, end: str
) -> None:
    """While nothing is finished the point is the start, and the file knows more."""
    store = made("logged", tmp_path)
    log = store.subscription("s")
    log.begin(acked=False, start=start)
    log.completed(end)
    _, second = log.log_batch(["7|4|", "7|5|"])
    log.discard(second)
    told = list(store.recovery_points())
    assert [point.bookmark for point in told] == ["7|3|"]
    store.close()
    store = made("logged", tmp_path)
    store.seed(told)
    assert [store.is_discarded("s", f"7|{n}|") for n in (4, 5)] == [False, True]
    assert seeded(store, "7|9|") == "7|9|", "the subscription went on elsewhere"
    store.close()


@pytest.mark.row("RP6")
@pytest.mark.parametrize("bookmark", ["0|1|", "0", "20240131T120000Z"])
def test_what_names_no_message_seeds_nothing(store: TrackedBookmarkStore, bookmark: str) -> None:
    assert seeded(store, bookmark) == "0"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.row("RP2", "RP6", "BS9")
@pytest.mark.parametrize(
    ("point", "elsewhere"),
    [
        (RecoveryPoint("s", "1|5|", "east:9007", 20_000_000, 3), "1|5|,19700101T000015Z"),
        (RecoveryPoint("s", "1|5|", "east:9007", generation=1), "0"),
    ],
)
def test_what_was_kept_is_safe_on_its_server_and_carries_its_time_elsewhere(
    tmp_path: Path, kind: str, point: RecoveryPoint, elsewhere: str
) -> None:
    store = made(kind, tmp_path)
    store.seed([point])
    for _ in range(2):
        log = store.subscription("s")
        assert asked(log, "east:9007") == "1|5|"
        assert asked(log, "west:9007") == elsewhere
        assert list(store.recovery_points()) == [point]
        if kind != "memory":
            store.close()
            store = made(kind, tmp_path)
    store.close()


@pytest.mark.row("RP6", "BS9")
@pytest.mark.parametrize("caught_up_us", [-1, 0, 2**63])
def test_a_point_that_says_nothing_of_it_is_safe_nowhere(
    tmp_path: Path, kind: str, caught_up_us: int
) -> None:
    """As one has it that another program has kept: the start of the log, and what is known."""
    store = made(kind, tmp_path)
    store.seed([RecoveryPoint("s", "1|5|", caught_up_us=caught_up_us)])
    for _ in range(2):
        log = store.subscription("s")
        assert asked(log, "east:9007") == "0"
        assert list(store.recovery_points()) == [RecoveryPoint("s", "1|5|", generation=1)]
        if kind != "memory":
            store.close()
            store = made(kind, tmp_path)
    log = store.subscription("s")
    log.entered("east:9007")
    assert asked(log, "east:9007") == "0"
    log.discard(log.log("1|6|"))
    assert asked(log, "east:9007") == "1|6|"
    store.close()


@pytest.mark.row("RP6")
def test_a_point_that_is_no_list_is_refused_and_nothing_is_taken_over(
    store: TrackedBookmarkStore,
) -> None:
    points = [RecoveryPoint("s", "1|5|"), RecoveryPoint("t", "five")]
    with pytest.raises(UsageError, match=r"'t' cannot be used: 'five' is no bookmark.*delete it"):
        store.seed(points)
    assert str(store.most_recent("s")) == "0"


@pytest.mark.row("RP6")
@pytest.mark.parametrize(
    "values",
    [
        {"sub_id": 7},
        {"sub_id": "\ud800"},
        {"bookmark": None},
        {"server": None},
        {"caught_up_us": "20240131"},
        {"caught_up_us": 1.5},
        {"generation": 2**64},
        {"generation": -1},
        {"generation": "2"},
        {"generation": None},
    ],
    ids=str,
)
def test_a_point_with_a_value_that_cannot_be_is_refused_and_nothing_is_taken_over(
    store: TrackedBookmarkStore, values: dict[str, Any]
) -> None:
    damaged = RecoveryPoint(**{"sub_id": "t", "bookmark": "1|5|", **values})
    name, wanted = next(iter(values)), r"cannot be used: {} is .*; delete it where"
    with pytest.raises(UsageError, match=wanted.format(name)):
        store.seed([RecoveryPoint("s", "1|5|"), damaged])
    assert str(store.most_recent("s")) == "0"


def made(kind: str, folder: Path) -> TrackedBookmarkStore:
    return KINDS[kind](folder)  # type: ignore[return-value]  # each is one


def asked(log: SubscriptionLog, server: str) -> str:
    """What a client asks a server for that was heard last five seconds ago or more."""
    return resume_bookmarks(log, server, last="", overlap_us=5_000_000)[0]


def test_a_subscription_that_is_not_known_is_named_with_those_that_are(
    store: TrackedBookmarkStore,
) -> None:
    with pytest.raises(UsageError, match="knows none"):
        store.explain("x")
    store.log("s", "1|1|")
    with pytest.raises(UsageError, match="no subscription 'x' in this store; it knows s"):
        list(store.entries("x"))


def test_entries_are_what_is_not_finished(store: TrackedBookmarkStore) -> None:
    for sequence in range(1, 6):
        store.log("s", f"1|{sequence}|")
    for number in (1, 2, 4):
        store.discard("s", number)
    found = [(number, str(mark), done) for number, mark, done in store.entries("s")]
    assert found == [(3, "1|3|", False), (4, "1|4|", True), (5, "1|5|", False)]


def test_it_needs_no_upkeep_by_itself(store: TrackedBookmarkStore) -> None:
    assert not store.prune_requested
    assert not store.prunes_on_close
    store.answer_prune()  # nobody has asked
    assert not store.prune_due(1.0)
    store.sync()
    assert not store.needs_sync


@pytest.mark.row("RP6", "BS9")
@pytest.mark.parametrize("kind", ["logged", "ring"])
@pytest.mark.parametrize("purged", [False, True])
def test_a_point_of_before_an_explicit_start_is_older_than_the_start(
    tmp_path: Path, kind: str, *, purged: bool
) -> None:
    """The process is killed before the adapter has heard of the new start."""
    store = made(kind, tmp_path)
    log = store.subscription("s")
    log.begin(acked=False, start=None)
    log.discard(log.log("7|5|"))
    told = list(store.recovery_points())
    assert [(point.bookmark, point.generation) for point in told] == [("7|5|", 1)]
    if purged:
        store.purge("s")
    else:
        log.begin(acked=False, start="7|2|")
    for _ in range(2):
        store.close()
        store = made(kind, tmp_path)
        store.seed(told)
        assert str(store.subscription("s").resume()) == ("0" if purged else "7|2|")
        if kind == "logged":
            store.prune()
    store.close()
    newer = RecoveryPoint("s", "7|1|", generation=9)  # it was begun anew at another host since
    store = made(kind, tmp_path)
    store.seed([newer])
    assert str(store.most_recent("s")) == "7|1|"
    assert [point.generation for point in store.recovery_points()] == [9]
    store.close()


def test_subscriptions_that_are_idle_are_looked_at_no_more() -> None:
    store = MemoryBookmarkStore()
    for name in ("a", "b", "c"):
        store.log(name, "1|1|")
    assert {point.sub_id for point in store.moved_points()} == {"a", "b", "c"}
    assert not list(store.moved_points())
    store.discard("b", 1)
    assert [(point.sub_id, point.bookmark) for point in store.moved_points()] == [("b", "1|1|")]
    assert not list(store.moved_points())
    taken: dict[str, tuple[int, int]] = {}  # another reader has taken nothing yet
    assert {point.sub_id for point in store.moved_points(taken)} == {"a", "b", "c"}
    assert not list(store.moved_points(taken))
    store.discard("c", 1)
    for _ in range(2):
        for _point in store.moved_points(taken):
            break  # it did not get to the next one, so it has not taken this one
    assert [point.sub_id for point in store.moved_points(taken)] == ["c"]
    assert [point.sub_id for point in store.moved_points()] == ["c"]
