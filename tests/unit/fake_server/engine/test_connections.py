"""A connection and its subscriptions."""

from __future__ import annotations

import math

import pytest

from haclient_fake_server.engine.connections import (
    BookmarkSubscription,
    Connection,
    Phase,
    Selection,
    Style,
    Subscription,
)
from haclient_fake_server.engine.patterns import TopicMatcher


def test_a_new_connection_has_nothing_due() -> None:
    connection = Connection(1, peer="somewhere", now=5.0)
    assert connection.next_due == connection.silent_at == math.inf
    assert not connection.logged_on


@pytest.mark.row("AD9")
def test_it_is_silent_two_and_a_half_intervals_after_it_was_heard() -> None:
    connection = Connection(1, peer="", now=5.0)
    connection.beat_interval_s = 3.0
    assert connection.silent_at == 12.5
    connection.beat_due = 8.0
    assert connection.next_due == 8.0


def from_log(text: str = "orders") -> BookmarkSubscription:
    connection = Connection(1, peer="", now=0)
    return BookmarkSubscription(connection, "1", number=1, selection=Selection(TopicMatcher(text)))


def test_a_bookmark_subscription_wants_replay_while_it_replays_and_is_not_paused() -> None:
    item = from_log()
    assert item.wants_replay
    item.paused = True
    assert not item.wants_replay
    item.paused = False
    item.phase = Phase.LIVE
    assert not item.wants_replay
    assert not item.is_over
    item.phase = Phase.ENDED
    assert item.is_over


def test_a_bookmark_subscription_is_bounded_by_a_count_a_position_or_a_time() -> None:
    for name in ("remaining", "last_position", "last_us"):
        item = from_log()
        assert not item.bounded
        setattr(item, name, 1)
        assert item.bounded


def test_a_plain_subscription_gets_what_is_not_logged_too() -> None:
    connection = Connection(1, peer="", now=0)
    plain = Subscription(connection, "1", number=1, selection=Selection(TopicMatcher("^ord")))
    assert not plain.is_over
    assert not plain.reads_log
    assert from_log("^ord").reads_log


def test_a_bookmark_subscription_always_wants_bookmarks_whatever_it_selects() -> None:
    item = from_log()
    item.heads = {1: b"made for the old topic"}
    item.select(Selection(TopicMatcher("others"), style=Style.TIMESTAMP))
    assert item.style == Style.TIMESTAMP | Style.BOOKMARK
    assert item.heads is None
