"""Subscriptions with handlers as the server sees them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import (
    BadFilter,
    BadRegexTopic,
    HAClientError,
    InvalidTopic,
    NotEntitled,
    SubIdInUse,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.streams import MessageStream
from support.clock import in_virtual_time
from support.listening import on_unrouted
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time


def residue(client: Client) -> tuple[int, int]:
    """Receivers and waiting commands that are left."""
    session = client._core.session
    return len(session.router.all()), len(session.pending)


# -- handlers -----------------------------------------------------------------------------


@pytest.mark.row("CC11", "CC26", "CC27")
async def test_a_handler_gets_every_message_and_may_keep_it(client: Client, peer: Peer) -> None:
    kept: list[Message] = []

    async def subscribe() -> str:
        return await client.subscribe(
            "orders", handler=kept.append, filter="/px > 10", options=Options(send_keys=True)
        )

    sub_id, command = await together(subscribe, lambda: peer.answer("subscribe"))
    assert (command.topic, command.filter, command.ack_type) == ("orders", "/px > 10", "processed")
    assert command.options == "send_keys"
    assert command.sub_id == sub_id
    for number in range(3):
        await peer.publish(sub_id, b'{"n": %d}' % number)
        await wait_all_tasks_blocked()
    assert [message.json() for message in kept] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [(m.command, m.topic, m.sub_id, m.text) for m in kept[:1]] == [
        ("publish", "orders", sub_id, '{"n": 0}')
    ]


@pytest.mark.row("CC3")
async def test_the_error_of_a_handler_leaves_the_clients_block(server: Server) -> None:
    def handler(_: Message) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):  # noqa: PT012  # the block is what is tested
        async with Client("sub") as client:
            peer = await server.log_on(client)
            await together(
                lambda: client.subscribe("orders", handler=handler, sub_id="s"),
                lambda: peer.answer("subscribe"),
            )
            await peer.publish("s", b"a")
            await trio.sleep_forever()


@pytest.mark.row("CC17", "MS1")
@pytest.mark.parametrize(
    ("wanted", "ids", "left"),
    [("a", "a", [b"b", b"c"]), (["a", "c", "none"], "a,c", [b"b"]), ("all", "a,b,c", [])],
)
async def test_unsubscribe_from_one_several_or_all(
    client: Client, peer: Peer, wanted: str | list[str], ids: str, left: list[bytes]
) -> None:
    got: list[bytes] = []
    async with answering(peer):
        for sub_id in "abc":
            await client.subscribe("orders", handler=lambda m: got.append(m.data), sub_id=sub_id)
        await client.unsubscribe(wanted)
        assert (peer.heard[-1].command, peer.heard[-1].sub_id) == ("unsubscribe", ids)
        for sub_id in "abc":  # what was on its way is for nobody
            await peer.publish(sub_id, sub_id.encode())
        await wait_all_tasks_blocked()
    assert sorted(got) == left


async def test_unsubscribing_what_is_over_sends_nothing(client: Client, peer: Peer) -> None:
    await client.unsubscribe("gone")
    await client.unsubscribe()
    assert [message.command for message in peer.heard] == ["logon"]


@pytest.mark.parametrize("empty", ["", [], [""]])
async def test_an_empty_id_ends_nothing(client: Client, peer: Peer, empty: str | list[str]) -> None:
    async with answering(peer):
        await client.subscribe("orders", handler=print, sub_id="s")
        assert await client.execute_async(Command("publish", topic="orders", data=b"1")) == ""
        await client.unsubscribe(empty)
        await client.flush()
    assert [message.command for message in peer.heard][2:] == ["publish", "flush"]
    assert residue(client) == (1, 0)


@pytest.mark.row("CC37", "CC11")
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad filter", BadFilter),
        ("bad regex topic", BadRegexTopic),
        ("invalid topic", InvalidTopic),
        ("not entitled", NotEntitled),
    ],
)
async def test_a_refused_subscription_is_an_error_and_leaves_nothing(
    client: Client, peer: Peer, reason: str, kind: type[HAClientError]
) -> None:
    async def script() -> None:
        await peer.refuse(await peer.expect("subscribe"), reason)

    with pytest.raises(kind, match=f"subscribe on 'orders': {reason}"):
        await together(lambda: client.subscribe("orders", handler=print), script)
    assert residue(client) == (0, 0)


@pytest.mark.row("CC24")
async def test_a_subscription_that_is_not_answered_is_taken_back(
    client: Client, peer: Peer
) -> None:
    with pytest.raises(TimedOut, match="did not answer within 3 s"):
        await client.subscribe("orders", handler=print, sub_id="s", timeout=3)
    await peer.expect("subscribe")
    await peer.ack(await peer.expect("unsubscribe", sub_id="s"))
    await wait_all_tasks_blocked()
    assert residue(client) == (0, 0)


@pytest.mark.row("CC24")
@pytest.mark.parametrize(
    "name",
    ["sow", "sow_and_subscribe", "sow_and_delta_subscribe", "delta_subscribe", "subscribe"],
)
async def test_a_command_that_is_not_answered_is_taken_back(
    client: Client, peer: Peer, name: str
) -> None:
    command = Command(name, topic="orders", timeout=3)
    started = trio.current_time()
    with pytest.raises(TimedOut, match="did not answer within 3 s"):
        await client.execute(command)
    assert trio.current_time() - started == pytest.approx(3)
    await ended_at_the_server(client, peer, name)


OPENED: dict[str, Callable[[Client], MessageStream]] = {
    "sow": lambda client: client.sow("orders", timeout=3),
    "sow_and_subscribe": lambda client: client.sow_and_stream("orders", timeout=3),
    "sow_and_delta_subscribe": lambda client: client.sow_and_stream(
        "orders", delta=True, timeout=3
    ),
    "delta_subscribe": lambda client: client.stream("orders", delta=True, timeout=3),
    "bookmark": lambda client: client.bookmark_stream("orders", sub_id="s", timeout=3),
    "queue": lambda client: client.queue_stream("orders", timeout=3),
    "subscribe": lambda client: client.stream("orders", timeout=3),
}


@pytest.mark.row("CC24")
@pytest.mark.parametrize("name", OPENED)
async def test_each_stream_has_a_limit_for_the_servers_answer(
    client: Client, peer: Peer, name: str
) -> None:
    started = trio.current_time()
    with pytest.raises(TimedOut, match="did not answer within 3 s"):
        await OPENED[name](client).open()
    assert trio.current_time() - started == pytest.approx(3)
    await ended_at_the_server(client, peer, name)
    with pytest.raises(UsageError, match="timeout is a number of seconds"):
        client.stream("orders", timeout=-1)


async def ended_at_the_server(client: Client, peer: Peer, name: str) -> None:
    """The command of that name is followed by the unsubscribe that takes it back."""
    command = await peer.expect("subscribe" if name in {"bookmark", "queue"} else name)
    leaving = await peer.expect("unsubscribe")
    assert command.sub_id in leaving.sub_ids or command.query_id == leaving.query_id
    await peer.ack(leaving)
    await wait_all_tasks_blocked()
    assert residue(client) == (0, 0)


async def test_a_cancelled_subscribe_is_taken_back_and_a_late_ack_is_nobodys(
    client: Client, peer: Peer
) -> None:
    with trio.move_on_after(1):
        await client.subscribe("orders", handler=print, sub_id="s")
    command = await peer.expect("subscribe")
    leaving = await peer.expect("unsubscribe", sub_id="s")
    await peer.ack(command)
    await peer.ack(leaving)
    await wait_all_tasks_blocked()
    assert residue(client) == (0, 0)


async def test_a_cancelled_query_is_stopped_at_the_server(client: Client, peer: Peer) -> None:
    with trio.move_on_after(1):
        await client.sow("orders").open()
    query = await peer.expect("sow")
    await peer.ack(await peer.expect("unsubscribe", query_id=query.query_id))
    await wait_all_tasks_blocked()
    assert residue(client) == (0, 0)


async def test_a_cancelled_confirmation_leaves_nothing(client: Client, peer: Peer) -> None:
    with trio.move_on_after(1):
        await client.flush()
    await peer.expect("flush")
    assert residue(client) == (0, 0)


@pytest.mark.row("CC17")
async def test_an_id_that_is_active_is_refused_before_anything_is_sent(
    client: Client, peer: Peer
) -> None:
    await together(
        lambda: client.subscribe("orders", handler=print, sub_id="s"),
        lambda: peer.answer("subscribe"),
    )
    with pytest.raises(SubIdInUse):
        await client.subscribe("orders", handler=print, sub_id="s")
    assert len(peer.heard) == 2


@pytest.mark.row("CC28")
async def test_a_message_for_nobody_goes_to_the_last_chance(server: Server) -> None:
    last: list[bytes] = []
    async with Client("sub", on_event=on_unrouted(lambda m: last.append(m.data))) as client:
        peer = await server.log_on(client)
        await peer.publish("nobody", b"a")
        await wait_all_tasks_blocked()
    assert last == [b"a"]
