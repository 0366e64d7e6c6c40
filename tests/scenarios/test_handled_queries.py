"""Queries by handler that get no complete result: each ends alone, and is reported."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.errors import DisconnectedError, HAClientError, TimedOut
from haclient.events import Event, SubscriptionEnded
from haclient.protocol.commands import Command
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, together
from support.recovery import entered, live, lose

pytestmark = in_virtual_time


@pytest.mark.row("CC15")
@pytest.mark.parametrize(
    ("kind", "error"),
    [("lost", DisconnectedError), ("silent", TimedOut)],
)
@pytest.mark.parametrize("name", ["sow", "sow_and_subscribe"])
async def test_a_query_that_is_cut_ends_alone_and_is_reported(
    server: Server, name: str, kind: str, error: type[HAClientError]
) -> None:
    ended: list[SubscriptionEnded] = []

    def note(event: Event) -> None:
        if isinstance(event, SubscriptionEnded):
            ended.append(event)

    client = HAClient("ha", servers=[server.uri], heartbeat=None, on_event=note)
    async with entered(client, partial(live, server)) as first:
        peer: Peer = first
        command = Command(name, topic="prices", query_id="q", timeout=10)
        run = partial(client.execute_async, command, lambda _: None, resubscribes=False)
        await together(run, lambda: peer.answer(name))
        if kind == "lost":
            await lose(peer)
            peer = await live(server)
        else:
            await trio.sleep(11)
            assert (await peer.expect("unsubscribe")).query_id == "q"
        async with answering(peer):
            await client.flush(timeout=1)  # the client goes on
        await wait_all_tasks_blocked()
        reported = [(each.sub_id, type(each.error)) for each in ended]
        if (name, kind) == ("sow_and_subscribe", "lost"):
            assert reported == [], "its stream of messages has no result that is incomplete"
        else:
            assert reported == [("q", error)]
        assert client.metrics.subscriptions == ()
        await client.disconnect()
