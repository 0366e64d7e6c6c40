"""What the engine remembers of a connection."""

from __future__ import annotations

import math

import pytest

from haclient_fake_server.engine.connections import Connection


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
