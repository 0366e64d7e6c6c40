"""One subscription."""

from __future__ import annotations

from haclient_fake_server.engine.connections import Connection
from haclient_fake_server.engine.subscriptions import Phase, Subscription
from haclient_fake_server.engine.topics import TopicMatcher


def test_a_subscription_wants_replay_while_it_replays_and_is_not_paused() -> None:
    connection = Connection(1, peer="", now=0)
    item = Subscription(connection, "1", number=1, matcher=TopicMatcher("^ord"))
    assert item.matches("orders")
    assert not item.wants_replay
    item.phase = Phase.REPLAY
    assert item.wants_replay
    item.paused = True
    assert not item.wants_replay


def test_a_subscription_is_bounded_by_a_count_a_position_or_a_time() -> None:
    connection = Connection(1, peer="", now=0)
    for name in ("remaining", "last_position", "last_us"):
        item = Subscription(connection, "1", number=1, matcher=TopicMatcher("orders"))
        assert not item.bounded
        setattr(item, name, 1)
        assert item.bounded
