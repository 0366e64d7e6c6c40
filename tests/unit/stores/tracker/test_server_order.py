from __future__ import annotations

import pytest

from haclient_stores.tracker.server_order import Standing

pytestmark = pytest.mark.row("BS9")


def test_another_server_has_another_order_until_something_of_it_is_finished() -> None:
    standing = Standing()
    standing.entered("a", {})
    assert standing.orders({})
    assert standing.orders({7: 5})
    standing.entered("b", {7: 6, 8: 1})
    assert not standing.orders({})
    assert not standing.orders({7: 6, 8: 1})
    assert standing.orders({7: 7})
    assert standing.orders({7: 5, 9: 1})


def test_an_entry_at_the_same_server_keeps_what_is_known() -> None:
    standing = Standing()
    standing.entered("a", {})
    standing.heard(5)
    standing.entered("a", {7: 1})
    assert (standing.caught_up_us, standing.before) == (5, {})


def test_progress_of_nobody_knows_where_is_taken_for_that_of_the_first_server() -> None:
    standing = Standing()
    standing.entered("a", {7: 5})
    assert standing.orders({7: 5})


def test_a_time_is_settled_when_all_that_had_come_by_then_is_discarded() -> None:
    standing = Standing()
    standing.settle(0, 1)
    assert standing.settled_us == 0
    standing.heard(100)
    standing.settle(3, 6)  # 3, 4 and 5 came before, or at least not later than this is asked
    standing.heard(200)
    standing.settle(5, 9)
    assert standing.settled_us == 0
    standing.settle(6, 9)  # 6, 7 and 8 came before the time 200
    assert standing.settled_us == 100
    standing.settle(8, 12)
    assert standing.settled_us == 100
    standing.settle(9, 12)
    assert standing.settled_us == 200
    standing.heard(300)
    standing.settle(9, 12)
    standing.settle(0, 12)
    assert standing.settled_us == 300


def test_what_nobody_has_heard_is_never_settled() -> None:
    standing = Standing()
    for oldest in (0, 1, 2, 0):
        standing.settle(oldest, 3)
    assert standing.settled_us == 0


def test_a_copy_stays_as_it_is() -> None:
    standing = Standing("a", {7: 1}, caught_up_us=5, settled_us=4)
    copy = standing.copy()
    assert copy == standing
    standing.entered("b", {7: 2})
    assert copy == Standing("a", {7: 1}, caught_up_us=5, settled_us=4)
