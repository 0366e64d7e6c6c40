"""What a client says of its connection, and its listeners of commands."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import UsageError
from haclient.protocol.identity import version_number
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from support.clock import in_virtual_time
from support.peer import listening

pytestmark = in_virtual_time


@pytest.mark.row("CC31")
async def test_a_client_tells_of_its_connection_before_it_and_after_it() -> None:
    async with listening() as server, Client("c") as client:
        assert client.uri == ""
        assert client.connection_info == {
            "client_name": "c",
            "state": "disconnected",
            "uri": "",
            "user": "",
            "peer": "",
            "message_type": "",
            "server_version": "",
            "seen_sequence": "",
        }
        peer = await server.log_on(client)
        info = client.connection_info
        assert (info["uri"], info["state"]) == (client.uri, "logged_on")
        assert Uri.parse(client.uri).address == info["peer"]
        assert version_number(info["server_version"]) > 5_000_000
        assert info["seen_sequence"] == "0"
        peer.link.close()
        await wait_all_tasks_blocked()
        assert client.connection_info == {**info, "state": "disconnected", "peer": ""}


@pytest.mark.row("CC31", "AT12")
async def test_no_fact_of_a_connection_has_the_password() -> None:
    async with listening() as server, Client("c") as client:
        await server.connect(client)
        assert "secret" in server.uri
        assert "secret" not in repr(client.connection_info) + client.uri
        assert (client.connection_info["user"], "user@" in client.uri) == ("user", True)
        assert client.connection_info["message_type"] == "json"


@pytest.mark.row("CC28")
async def test_a_listener_of_a_command_sees_every_message_of_it_and_no_other() -> None:
    seen: list[str] = []

    async def beats(message: Message) -> None:
        seen.append(message.command)

    def publishes(message: Message) -> None:
        message.discard()  # a copy: it has no owner
        seen.append(f"{message.command} {message.text}")

    async with listening() as server, Client("c") as client:
        peer = await server.log_on(client)
        client.add_command_listener("p", publishes)
        client.add_command_listener("heartbeat", beats)
        with pytest.raises(UsageError, match="added already"):
            client.add_command_listener("publish", publishes)
        await peer.publish("nobody", b"a")
        await peer.say("heartbeat")
        await wait_all_tasks_blocked()
        client.remove_command_listener("publish", publishes)
        await peer.publish("nobody", b"b")
        await wait_all_tasks_blocked()
        assert seen == ["publish a", "heartbeat"]


@pytest.mark.row("CC28")
async def test_a_command_that_is_none_has_no_listeners() -> None:
    client = Client("c")
    with pytest.raises(UsageError, match="'no_such' is no command; there are ack, "):
        client.add_command_listener("no_such", print)
    with pytest.raises(UsageError, match="no such command ack listener"):
        client.remove_command_listener("ack", print)


async def test_messages_are_looked_at_only_while_a_command_has_a_listener() -> None:
    client = Client("c")
    client.add_event_listener(print)
    client.add_command_listener("ack", print)
    client.add_command_listener("publish", print)
    client.remove_command_listener("ack", print)
    assert client._core.session.tap is not None
    client.remove_command_listener("publish", print)
    assert client._core.session.tap is None
    client.add_command_listener("ack", print)
    assert client._core.session.tap is not None
