from __future__ import annotations

import pytest

from haclient.auth import DefaultAuthenticator


@pytest.mark.row("AT10")
async def test_by_default_the_password_of_the_address_is_sent_as_it_is() -> None:
    authenticator = DefaultAuthenticator()
    assert await authenticator.authenticate("me", "pw") == "pw"
    assert await authenticator.retry("me", "other") == "other"
    authenticator.completed("me", "pw", "")
