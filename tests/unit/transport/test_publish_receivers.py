"""A handler gets the acks of its publish also when the connection is lost before they come."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Server
from support.recovery import entered, live, lose

pytestmark = [in_virtual_time, pytest.mark.row("CC18", "PS3")]


class Publishing:
    """A client, and the acks that its handler has got."""

    def __init__(self, server: Server) -> None:
        self.acks: list[Message] = []
        self.client = HAClient(
            "ha",
            servers=[server.uri],
            publish_store=MemoryPublishStore(),
            heartbeat=None,
            exit_timeout=0,
        )

    async def publish(self) -> None:
        command = Command("publish", topic="orders", data="x", ack_type="processed")
        await self.client.execute_async(command, self.acks.append)


async def test_the_next_server_answers_what_is_sent_again(server: Server) -> None:
    made = Publishing(server)
    async with entered(made.client, partial(live, server)) as peer:
        await made.publish()
        first = await peer.expect("publish")
        await lose(peer)
        second = await live(server)
        await second.expect("publish", command_id=first.command_id)
        await lose(second)
        third = await live(server)
        again = await third.expect("publish", command_id=first.command_id)
        assert made.acks == []
        await third.ack(again)
        await third.persisted(again.sequence or 0)
        await wait_all_tasks_blocked()
        assert [each.ack_type for each in made.acks] == ["processed"]
        await lose(third)
        await live(server, seen=again.sequence or 0)
        await wait_all_tasks_blocked()
        assert len(made.acks) == 1
        await made.client.disconnect()


async def test_what_the_next_server_has_already_is_reported_as_processed(server: Server) -> None:
    made = Publishing(server)
    async with entered(made.client, partial(live, server)) as peer:
        await made.publish()
        first = await peer.expect("publish")
        await lose(peer)
        await live(server, seen=first.sequence or 0)
        await wait_all_tasks_blocked()
        (ack,) = made.acks
        found = (ack.ack_type, ack.status, ack.command_id, ack.sequence)
        assert found == ("processed", "success", first.command_id, first.sequence)
        await made.client.disconnect()


async def test_one_that_is_published_without_a_connection_is_answered_too(server: Server) -> None:
    made = Publishing(server)
    async with entered(made.client, partial(live, server)) as peer:
        await lose(peer)
        await made.publish()
        second = await live(server)
        await second.expect("publish")
        await lose(second)
        third = await live(server)
        await third.ack(await third.expect("publish"))
        await wait_all_tasks_blocked()
        assert [each.ack_type for each in made.acks] == ["processed"]
        await made.client.disconnect()


async def test_it_ends_with_the_client(server: Server) -> None:
    made = Publishing(server)
    async with entered(made.client, partial(live, server)) as peer:
        await made.publish()
        await peer.expect("publish")
        await lose(peer)
        await made.client.disconnect()
        with trio.fail_after(1):
            await wait_all_tasks_blocked()
        assert not made.client._subscriber._served
        assert made.acks == []
