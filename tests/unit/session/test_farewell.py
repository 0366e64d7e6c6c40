from __future__ import annotations

import pytest

from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    HeartbeatLost,
    NameInUse,
    SlowClient,
)
from haclient.session.farewell import cut


@pytest.mark.row("HA26")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("name in use", NameInUse),
        ("Slow Client", SlowClient),
        ("heartbeat", HeartbeatLost),
        ("auth failure", AuthenticationError),
        ("entitlement reset", AuthenticationError),
        ("transport disabled", DisconnectedError),
    ],
)
def test_the_class_says_why_and_the_text_has_the_servers_words(
    reason: str, kind: type[HAClientError]
) -> None:
    error = cut("server:9007", reason)
    assert type(error) is kind
    assert f"server:9007 closed the connection: {reason}" in str(error)
