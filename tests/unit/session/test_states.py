from __future__ import annotations

from haclient.session.states import ConnectionState


def test_states_read_as_words() -> None:
    assert [str(state) for state in ConnectionState] == [
        "disconnected",
        "reconnecting",
        "connected",
        "logged_on",
        "heartbeat_initiated",
        "publish_replayed",
        "resubscribed",
        "shutdown",
    ]
