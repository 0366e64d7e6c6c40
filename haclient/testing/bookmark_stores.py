"""Whether a `BookmarkStore` keeps what the client relies on.

The last check is a seeded random run against a model of sets: entries in the order of their
arrival, and which of them are discarded. Everything that is required of a store follows from those
two.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

from haclient.testing.comparison import expect
from haclient_stores.errors import StoreLocked
from haclient_stores.interfaces import BookmarkStore

__all__ = ["check_bookmark_store"]


_STEPS: Final = 2000
_Store = TypeVar("_Store", bound=BookmarkStore)


def check_bookmark_store(
    make: Callable[[], _Store],
    *,
    reopen: Callable[[_Store], _Store] | None = None,
    knows_all_discards: bool = True,
) -> None:
    """Run the whole suite.

    Args:
        make: Returns a new, empty store at each call.
        reopen: Returns the store as the next process finds it; `None` for a store that does not
            outlive its process.
        knows_all_discards: Whether the next process also knows of discards out of order. Otherwise
            it has to know only of those with nothing undiscarded before them.

    Raises:
        AssertionError: A check failed; the text has the expected and the actual value.
    """
    for check in _CHECKS:
        store = make()
        check(store)
        store.close()
        store.close()
    if reopen is not None:
        store = make()
        _fill(store)
        store = reopen(store)
        _check_reopened(store, knows_all_discards=knows_all_discards)
        store.close()


def _check_an_unknown_subscription(store: BookmarkStore) -> None:
    expect(str(store.most_recent("s")), "0", "most_recent of a subscription that is not known")
    expect(store.oldest_undiscarded("s"), 0, "oldest_undiscarded of one that is not known")
    expect(store.is_discarded("s", "1|1|"), False, "is_discarded of one that is not known")


def _check_an_owner(store: BookmarkStore) -> None:
    expect(store.client_name, "", "client_name of a store that was never used")
    store.open_for("one")
    store.open_for("one")
    expect(store.client_name, "one", "client_name after open_for")
    try:
        store.open_for("two")
    except StoreLocked:
        return
    raise AssertionError("open_for: wanted StoreLocked for a client of another name")


def _check_discards_in_any_order(store: BookmarkStore) -> None:
    numbers = [store.log("s", f"1|{n}|") for n in (10, 20, 30)]
    expect(all(a < b for a, b in zip([0, *numbers], numbers, strict=False)), True, "rising numbers")
    expect(str(store.most_recent("s")), "0", "most_recent before anything is discarded")
    store.discard("s", numbers[1])
    expect(str(store.most_recent("s")), "0", "most_recent while the oldest is not discarded")
    expect(store.oldest_undiscarded("s"), numbers[0], "oldest_undiscarded")
    store.discard("s", numbers[0])
    expect(str(store.most_recent("s")), "1|20|", "most_recent after the first two were discarded")
    expect(store.oldest_undiscarded("s"), numbers[2], "oldest_undiscarded")
    for number in (0, -1, numbers[0], numbers[-1] + 1):
        store.discard("s", number)
    expect(str(store.most_recent("s")), "1|20|", "most_recent after discards of nothing")
    store.discard_up_to("s", numbers[2])
    expect(str(store.most_recent("s")), "1|30|", "most_recent after discard_up_to")
    expect(store.oldest_undiscarded("s"), 0, "oldest_undiscarded when all is discarded")


def _check_duplicates(store: BookmarkStore) -> None:
    for sequence in (1000, 1002):
        store.log("s", f"1|{sequence}|")
    for sequence in (999, 1000, 1001, 1002):
        what = f"is_discarded of sequence {sequence} of a publisher of whom 1002 was seen"
        expect(store.is_discarded("s", f"1|{sequence}|"), True, what)
    expect(store.is_discarded("s", "1|1003|"), False, "is_discarded of a higher sequence")
    expect(store.is_discarded("s", "2|5|"), False, "is_discarded of another publisher")


def _check_publishers(store: BookmarkStore) -> None:
    numbers = [store.log("s", bookmark) for bookmark in ("1|5|", "2|1|", "1|6|")]
    store.discard_up_to("s", numbers[1])
    expect(_items(store, "s"), {"1|5|", "2|1|"}, "one position for each publisher")
    store.discard("s", numbers[2])
    expect(_items(store, "s"), {"1|6|", "2|1|"}, "one position for each publisher")


def _check_subscriptions(store: BookmarkStore) -> None:
    first, second = store.log("a", "1|1|"), store.log("b", "1|1|")
    store.discard("a", first)
    expect(str(store.most_recent("a")), "1|1|", "most_recent of the one that was discarded from")
    expect(str(store.most_recent("b")), "0", "most_recent of the other")
    store.discard("b", second)
    store.purge("a")
    expect(str(store.most_recent("a")), "0", "most_recent of a purged subscription")
    expect(store.is_discarded("a", "1|1|"), False, "is_discarded of a purged subscription")
    expect(str(store.most_recent("b")), "1|1|", "most_recent of the other")
    store.purge()
    expect(str(store.most_recent("b")), "0", "most_recent after purge of all")


def _check_persisted(store: BookmarkStore) -> None:
    store.log("s", "1|1|")
    store.persisted("s", "1|9|")
    expect(str(store.most_recent("s")), "0", "most_recent, acknowledged but not discarded")


def _check_against_the_model(store: BookmarkStore) -> None:
    rng = random.Random(1)  # noqa: S311  # a seeded run, not a secret
    arrived: list[tuple[int, str]] = []
    done: set[int] = set()
    sequences = {1: 0, 2: 0, 3: 0}
    for _ in range(_STEPS):
        if rng.random() < 0.5:  # noqa: PLR2004  # half of the steps
            publisher = rng.choice(list(sequences))
            sequences[publisher] += rng.randint(1, 3)
            bookmark = f"{publisher}|{sequences[publisher]}|"
            expect(store.is_discarded("s", bookmark), False, f"is_discarded of the new {bookmark}")
            arrived.append((store.log("s", bookmark), bookmark))
        elif len(done) < len(arrived):
            number = rng.choice([n for n, _ in arrived[-40:] if n not in done] or [0])
            store.discard("s", number)
            done.add(number)
        if rng.random() < 0.01:  # noqa: PLR2004  # now and then
            store.prune()
        point: dict[str, str] = {}
        oldest = 0
        for number, bookmark in arrived:
            if number not in done:
                oldest = number
                break
            point[bookmark.partition("|")[0]] = bookmark
        expect(_items(store, "s"), set(point.values()), "most_recent in a random run")
        expect(store.oldest_undiscarded("s"), oldest, "oldest_undiscarded in a random run")


_CHECKS: Final = (
    _check_an_unknown_subscription,
    _check_an_owner,
    _check_discards_in_any_order,
    _check_duplicates,
    _check_publishers,
    _check_subscriptions,
    _check_persisted,
    _check_against_the_model,
)


def _fill(store: BookmarkStore) -> None:
    store.open_for("one")
    numbers = [store.log("s", f"1|{n}|") for n in range(1, 7)]
    for index in (0, 1, 3):
        store.discard("s", numbers[index])
    store.log("other", "1|1|")


def _check_reopened(store: BookmarkStore, *, knows_all_discards: bool) -> None:
    expect(store.client_name, "one", "client_name after reopening")
    expect(str(store.most_recent("s")), "1|2|", "most_recent after reopening")
    expect(str(store.most_recent("other")), "0", "most_recent of the other subscription")
    done = (1, 2, 4) if knows_all_discards else (1, 2)
    for sequence in done:
        what = f"is_discarded of 1|{sequence}|, discarded before reopening"
        expect(store.is_discarded("s", f"1|{sequence}|"), True, what)
    numbers: list[int] = []
    for sequence in (3, 5, 6):
        what = f"is_discarded of 1|{sequence}|, which was never discarded"
        expect(store.is_discarded("s", f"1|{sequence}|"), False, what)
        if sequence == 5 and not knows_all_discards:  # noqa: PLR2004  # 4 is redelivered, before it
            numbers.append(store.log("s", "1|4|"))
        numbers.append(store.log("s", f"1|{sequence}|"))
    expect(all(number > 0 for number in numbers), True, "numbers of redelivered messages")
    for number in numbers:
        store.discard("s", number)
    expect(str(store.most_recent("s")), "1|6|", "most_recent after all was discarded")


def _items(store: BookmarkStore, sub_id: str) -> set[str]:
    return {str(item) for item in store.most_recent(sub_id)}
