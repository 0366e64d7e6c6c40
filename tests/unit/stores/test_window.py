from __future__ import annotations

import pytest

from haclient_stores.errors import StoreError
from haclient_stores.window import PublishWindow


@pytest.mark.row("PS8")
def test_a_publisher_without_history_starts_at_the_clock() -> None:
    window = PublishWindow()
    window.reconcile(seen=7, persisted=0, clock_us=1_000_000)
    assert window.last_sequence == 1_000_000
    assert window.count == 0
    assert window.lowest == 0


@pytest.mark.row("PS8")
def test_a_server_that_has_seen_more_than_the_clock_wins() -> None:
    window = PublishWindow()
    window.reconcile(seen=5_000_000, persisted=0, clock_us=1_000_000)
    assert window.last_sequence == 5_000_000


@pytest.mark.row("PS8")
def test_a_store_with_history_numbers_above_what_the_server_has_seen() -> None:
    window = PublishWindow()
    window.reconcile(seen=0, persisted=0, clock_us=10)
    window.last_sequence += 2
    window.reconcile(seen=20, persisted=11, clock_us=10**15)
    assert window.last_sequence == 20
    assert (window.lowest, window.count) == (12, 1)


@pytest.mark.row("PS9")
def test_a_server_behind_what_was_acknowledged_is_a_gap() -> None:
    window = PublishWindow(last_persisted=100, reconciled=True)
    gap = window.gap(99)
    assert gap is not None
    assert (gap.acknowledged, gap.server) == (100, 99)
    assert window.gap(100) is None


def test_messages_numbered_before_any_logon_are_not_given_to_a_server_that_would_drop_them() -> (
    None
):
    window = PublishWindow()
    window.last_sequence = 3
    with pytest.raises(StoreError, match="log on before the first publish"):
        window.reconcile(seen=2, persisted=0, clock_us=10)
    assert not window.reconciled
    window.reconcile(seen=0, persisted=0, clock_us=10)
    assert window.count == 3


@pytest.mark.row("PS5")
def test_an_ack_beyond_the_last_number_moves_the_numbering() -> None:
    window = PublishWindow()
    window.last_sequence = 3
    assert window.persist(10)
    assert not window.persist(9)
    assert (window.count, window.last_sequence) == (0, 10)


def test_a_window_is_recovered_from_runs_with_gaps() -> None:
    window = PublishWindow.recovered(
        [(5, 6), (10, 12), (20, 19)], last_persisted=5, floor=30, reconciled=True
    )
    assert (window.lowest, window.count) == (6, 4)
    assert window.last_sequence == 30
    assert window.persist(10)
    assert (window.lowest, window.count) == (11, 2)
