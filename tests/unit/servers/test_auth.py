from __future__ import annotations

from typing import Any

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, UsageError
from haclient.servers.auth import DefaultAuthenticator, TokenAuthenticator
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from support.clock import in_virtual_time
from support.listening import on_losses
from support.peer import Peer, listening, together
from support.recovery import entered

pytestmark = in_virtual_time


@pytest.mark.row("AT10")
async def test_by_default_the_password_of_the_address_is_sent_as_it_is() -> None:
    authenticator = DefaultAuthenticator()
    assert await authenticator.authenticate("me", "pw") == "pw"
    assert await authenticator.retry("me", "other") == "other"
    authenticator.completed("me", "pw", "")


class Tokens:
    """A token service."""

    def __init__(self) -> None:
        self.given = 0

    def plain(self) -> str:
        self.given += 1
        return f"token-{self.given}"

    async def waiting(self) -> str:
        await trio.sleep(1)
        return self.plain()


@pytest.mark.row("AT11")
@pytest.mark.parametrize("how", ["plain", "waiting"])
async def test_each_logon_has_a_token_of_its_own(how: str) -> None:
    authenticator = TokenAuthenticator(getattr(Tokens(), how))
    async with listening() as server, Client("c", authenticator=authenticator) as client:
        for number in (1, 2):
            peer = await server.log_on(client)
            assert (peer.heard[0].user_id, peer.heard[0].password) == ("user", f"token-{number}")
            await client.disconnect()


@pytest.mark.row("AT11")
async def test_a_server_that_refuses_a_token_gets_a_fresh_one() -> None:
    tokens = Tokens()
    authenticator = TokenAuthenticator(lambda: "kept", refresh=tokens.waiting)
    async with listening() as server, Client("c", authenticator=authenticator) as client:
        peer = await server.connect(client)

        async def script() -> None:
            await peer.ack(await peer.expect("logon", password="kept"), status="retry")  # noqa: S106  # a test's
            await peer.ack(await peer.expect("logon", password="token-1"), s=0)  # noqa: S106  # a test's

        await together(client.logon, script)


@pytest.mark.row("AT11", "AT12")
async def test_a_callback_that_fails_is_asked_again_after_the_delay() -> None:
    failures = iter([ValueError("secret"), OSError("secret")])

    def token() -> str:
        for failure in failures:
            raise failure
        return "good"

    reasons: list[str] = []
    async with listening() as server:
        chooser = DefaultServerChooser()
        chooser.add(server.uri, TokenAuthenticator(token))
        client = HAClient(
            "c",
            server_chooser=chooser,
            delay_strategy=FixedDelayStrategy(1.0),
            on_event=on_losses(lambda reason: reasons.append(str(reason))),
            heartbeat=None,
        )

        async def script() -> Peer:
            for _ in range(2):
                await (await server.accept()).expect_end()
            peer = await server.accept()
            await peer.ack(await peer.expect("logon", password="good"), s=0)  # noqa: S106  # a test's
            return peer

        async with entered(client, script):
            pass
        assert any("the callback raised OSError" in reason for reason in reasons)
        assert "secret" not in "".join(reasons)


@pytest.mark.row("AT11")
async def test_a_callback_that_fails_ends_the_logon_of_a_plain_client() -> None:
    def token() -> str:
        raise ValueError("secret")

    async with (
        listening() as server,
        Client("c", authenticator=TokenAuthenticator(token)) as client,
    ):
        await server.connect(client)
        with pytest.raises(DisconnectedError, match=r"the callback raised ValueError$"):
            await client.logon()


@pytest.mark.parametrize(
    ("wrong", "found"), [(None, "NoneType"), (b"t", "bytes"), ("", "an empty one")]
)
async def test_what_is_no_token_is_refused(wrong: Any, found: str) -> None:  # noqa: ANN401  # anything
    with pytest.raises(UsageError, match=f"returns a token as text, not {found}"):
        await TokenAuthenticator(lambda: wrong).authenticate("me", "")
