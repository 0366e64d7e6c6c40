"""A wire tap sees every frame of a connection, and no secret."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from support.clock import in_virtual_time
from support.listening import on_exceptions
from support.peer import listening

pytestmark = in_virtual_time


@pytest.mark.row("AT13", "AT12")
async def test_a_tap_sees_the_header_of_each_frame_both_ways_without_the_password() -> None:
    seen: list[tuple[str, str]] = []

    def tap(direction: str, header: str) -> None:
        seen.append((direction, header))

    async with listening() as server, Client("c", wire_tap=tap) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a body")
        await peer.expect("publish")
        await peer.publish("s", b"another body")
        await wait_all_tasks_blocked()
        kinds = [(direction, header[:10]) for direction, header in seen]
        assert kinds == [
            (">", '{"c":"logo'),
            ("<", '{"c":"ack"'),
            (">", '{"c":"p","'),
            ("<", '{"c":"p","'),
        ]
        shown = str(seen)
        assert '"pw":"***"' in shown
        assert not any(word in shown for word in ("secret", "body"))


@pytest.mark.row("AT13", "OB7")
@pytest.mark.parametrize("error", [OSError("disk full"), trio.ClosedResourceError("closed")])
async def test_a_tap_that_raises_is_called_no_more_and_the_connection_lasts(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    reported: list[Exception] = []

    def tap(direction: str, _: str) -> None:
        calls.append(direction)
        raise error

    with caplog.at_level(logging.WARNING, "haclient"):
        async with (
            listening() as server,
            Client("c", wire_tap=tap, on_event=on_exceptions(reported.append)) as client,
        ):
            peer = await server.log_on(client)
            await client.publish("orders", b"a")
            await peer.expect("publish")
            await wait_all_tasks_blocked()
            assert client.state == "logged_on"
    assert (calls, reported) == ([">"], [error])
    assert f"the wire tap raised {type(error).__name__}" in caplog.text
