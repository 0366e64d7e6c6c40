"""What a client says of its connection."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from trio.testing import wait_all_tasks_blocked

from haclient import HAClient, aio, blocking
from haclient.client import Client
from haclient.protocol.identity import version_number
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


@pytest.mark.parametrize("kind", [HAClient, aio.HAClient, blocking.HAClient], ids=str)
@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_is_neither_copied_nor_pickled(
    kind: Callable[..., object], made: Callable[[object], object]
) -> None:
    client = kind("orders", servers=["tcp://h:1/amps/json"])
    with pytest.raises(TypeError, match="HAClient owns its connection: make another instead"):
        made(client)
