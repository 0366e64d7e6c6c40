from __future__ import annotations

import pytest

from haclient_stores.tracker.server_order import ServerOrder

pytestmark = pytest.mark.row("BS9")


def test_another_server_has_another_order_until_something_of_it_is_finished() -> None:
    server_order = ServerOrder()
    server_order.entered("a", {})
    assert server_order.orders({})
    assert server_order.orders({7: 5})
    server_order.entered("b", {7: 6, 8: 1})
    assert not server_order.orders({})
    assert not server_order.orders({7: 6, 8: 1})
    assert server_order.orders({7: 7})
    assert server_order.orders({7: 5, 9: 1})


def test_an_entry_at_the_same_server_keeps_what_is_known() -> None:
    server_order = ServerOrder()
    server_order.entered("a", {})
    server_order.caught_up(5)
    server_order.entered("a", {7: 1})
    assert (server_order.caught_up_us, server_order.before) == (5, {})


def test_progress_of_nobody_knows_where_is_taken_for_that_of_the_first_server() -> None:
    server_order = ServerOrder()
    server_order.entered("a", {7: 5})
    assert server_order.orders({7: 5})


def test_a_time_counts_as_discarded_when_all_that_had_come_by_then_is() -> None:
    server_order = ServerOrder()
    server_order.update_discarded_until(0, 1)
    assert server_order.discarded_until_us == 0
    server_order.caught_up(100)
    server_order.update_discarded_until(
        3, 6
    )  # 3, 4 and 5 came before, or at least not later than this is asked
    server_order.caught_up(200)
    server_order.update_discarded_until(5, 9)
    assert server_order.discarded_until_us == 0
    server_order.update_discarded_until(6, 9)  # 6, 7 and 8 came before the time 200
    assert server_order.discarded_until_us == 100
    server_order.update_discarded_until(8, 12)
    assert server_order.discarded_until_us == 100
    server_order.update_discarded_until(9, 12)
    assert server_order.discarded_until_us == 200
    server_order.caught_up(300)
    server_order.update_discarded_until(9, 12)
    server_order.update_discarded_until(0, 12)
    assert server_order.discarded_until_us == 300


def test_without_a_caught_up_time_none_counts_as_discarded() -> None:
    server_order = ServerOrder()
    for oldest in (0, 1, 2, 0):
        server_order.update_discarded_until(oldest, 3)
    assert server_order.discarded_until_us == 0


def test_a_copy_stays_as_it_is() -> None:
    server_order = ServerOrder("a", {7: 1}, caught_up_us=5, discarded_until_us=4)
    copy = server_order.copy()
    assert copy == server_order
    server_order.entered("b", {7: 2})
    assert copy == ServerOrder("a", {7: 1}, caught_up_us=5, discarded_until_us=4)
