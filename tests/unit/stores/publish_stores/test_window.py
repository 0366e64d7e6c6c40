from __future__ import annotations

import pytest

from haclient_stores.errors import PublishGap, StoreError
from haclient_stores.publish_stores.window import PublishWindow

CLOCK = 1_700_000_000_000_000


def window_of(*runs: tuple[int, int], persisted: int = 0, floor: int = 0) -> PublishWindow:
    return PublishWindow.recovered(runs, last_persisted=persisted, floor=floor, reconciled=True)


@pytest.mark.row("PS8")
@pytest.mark.parametrize(
    ("seen", "persisted", "clock", "last"),
    [(0, 0, CLOCK, CLOCK), (CLOCK + 5, 0, CLOCK, CLOCK + 5), (3, 9, 7, 9), (8, 8, 0, 8)],
)
def test_a_publisher_without_history_begins_above_all_that_is_known(
    seen: int, persisted: int, clock: int, last: int
) -> None:
    window = PublishWindow()
    window.reconcile(seen=seen, persisted=persisted, clock_us=clock)
    assert (window.last_sequence, window.count, window.lowest) == (last, 0, 0)
    assert window.reconciled


@pytest.mark.row("PS8")
def test_a_publisher_with_history_ignores_the_clock() -> None:
    window = window_of((5, 9))
    window.reconcile(seen=7, persisted=4, clock_us=CLOCK)
    assert (window.last_sequence, window.count, window.lowest) == (9, 5, 5)


@pytest.mark.row("PS8")
def test_numbers_go_on_above_what_a_server_has_seen() -> None:
    window = window_of((5, 9))
    window.reconcile(seen=100, persisted=6, clock_us=CLOCK)
    assert (window.last_sequence, window.count, window.lowest) == (100, 3, 7)
    window.last_sequence += 2
    assert (window.count, window.lowest) == (5, 7)


def test_numbers_that_were_skipped_are_not_used() -> None:
    window = PublishWindow()
    window.reconcile(seen=0, persisted=0, clock_us=CLOCK)
    assert window.last_used == 0
    window.last_sequence += 3
    assert window.last_used == CLOCK + 3
    window.skip_to(CLOCK + 100)
    assert window.last_used == CLOCK + 3
    window.skip_to(CLOCK + 200)
    assert window.last_used == CLOCK + 3
    window.last_sequence += 1
    assert window.last_used == CLOCK + 201


@pytest.mark.parametrize(("seen", "persisted"), [(12, 0), (0, 12), (12, 12), (12, 5)])
def test_what_a_server_knows_is_used_wherever_the_clock_is(seen: int, persisted: int) -> None:
    window = PublishWindow.recovered(
        [(5, 9)], last_persisted=4, floor=50, reconciled=True, numbers_uncertain=True
    )
    assert window.last_used == 9
    window.reconcile(seen=seen, persisted=persisted, clock_us=CLOCK)
    assert (window.last_sequence, window.last_used) == (CLOCK, 12)


@pytest.mark.parametrize(
    ("after", "seen", "missing"),
    [
        (0, 0, (1, 4)),
        (4, 0, (10, 19)),
        (4, 15, (16, 19)),
        (4, 19, None),
        (0, 19, None),
        (12, 0, (13, 19)),
        (19, 0, None),
        (30, 0, None),
    ],
)
def test_what_is_missing_is_below_something_that_is_stored(
    after: int, seen: int, missing: tuple[int, int] | None
) -> None:
    window = PublishWindow.recovered(
        [(5, 9), (20, 29)], last_persisted=0, floor=40, reconciled=True
    )
    window.reconcile(seen=seen, persisted=0, clock_us=CLOCK)
    assert window.missing_after(after) == missing


@pytest.mark.row("PS8")
@pytest.mark.parametrize(("seen", "refused"), [(0, False), (1, True), (3, True), (900, True)])
def test_numbers_that_a_server_has_seen_of_another_life_are_refused(
    seen: int, *, refused: bool
) -> None:
    window = PublishWindow()
    window.last_sequence += 3
    if refused:
        with pytest.raises(StoreError, match=r"stored as 1\.\.3 .* already seen"):
            window.reconcile(seen=seen, persisted=0, clock_us=CLOCK)
        assert (window.last_sequence, window.count, window.reconciled) == (3, 3, False)
    else:
        window.reconcile(seen=seen, persisted=0, clock_us=CLOCK)
        assert (window.last_sequence, window.count, window.reconciled) == (3, 3, True)


@pytest.mark.row("PS5")
@pytest.mark.parametrize("ack", range(25))
def test_an_ack_covers_every_number_up_to_its_own(ack: int) -> None:
    runs = [(3, 5), (8, 8), (12, 20)]
    window = window_of(*runs)
    window.persist(ack)
    left = [n for first, last in runs for n in range(first, last + 1) if n > ack]
    assert window.count == len(left)
    assert window.lowest == (left[0] if left else 0)
    assert window.last_persisted == ack
    assert window.last_sequence == max(20, ack)


@pytest.mark.row("PS5")
def test_an_older_ack_changes_nothing() -> None:
    window = window_of((1, 10))
    assert window.persist(6)
    assert not window.persist(6)
    assert not window.persist(2)
    assert (window.last_persisted, window.count) == (6, 4)


def test_skipping_backwards_does_nothing() -> None:
    window = window_of((1, 10))
    window.skip_to(4)
    assert (window.last_sequence, window.count) == (10, 10)


@pytest.mark.row("PS9")
def test_a_server_that_lags_behind_our_acks_leaves_a_gap() -> None:
    window = window_of((1, 10), persisted=6)
    assert window.gap(6) is None
    assert window.gap(7) is None
    gap = window.gap(5)
    assert isinstance(gap, PublishGap)
    assert (gap.acknowledged, gap.server) == (6, 5)


def test_a_recovered_window_has_the_runs_that_are_still_stored() -> None:
    window = window_of((4, 6), (9, 9), persisted=4, floor=15)
    assert (window.lowest, window.count, window.last_sequence) == (5, 3, 15)
    empty = window_of(floor=15, persisted=12)
    assert (empty.lowest, empty.count, empty.last_sequence, empty.last_persisted) == (0, 0, 15, 12)


def test_a_recovered_floor_below_the_stored_frames_does_not_count() -> None:
    assert window_of((4, 6), floor=5).last_sequence == 6


@pytest.mark.row("PS14")
def test_nothing_waits_before_the_first_number_and_after_the_last_ack() -> None:
    window = PublishWindow()
    assert (window.count, window.lowest) == (0, 0)
    window.last_sequence += 3
    assert (window.count, window.lowest) == (3, 1)
    window.persist(3)
    assert (window.count, window.lowest) == (0, 0)
