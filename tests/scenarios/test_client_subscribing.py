"""Subscriptions, queries and streams as the server sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import (
    BadFilter,
    BadRegexTopic,
    DisconnectedError,
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
from haclient_stores.memory_publish import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, listening, together

pytestmark = in_virtual_time


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    async with listening() as found:
        yield found


@pytest.fixture
async def client() -> AsyncGenerator[Client]:
    async with Client("sub") as found:
        yield found


@pytest.fixture
async def peer(server: Server, client: Client) -> Peer:
    return await server.log_on(client)


async def opened(stream: MessageStream, peer: Peer, command: str = "subscribe") -> Message:
    """Open a stream; the command that the server has accepted."""
    _, message = await together(stream.open, lambda: peer.answer(command))
    return message


async def bodies(stream: MessageStream) -> list[bytes]:
    return [message.data async for message in stream]


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


async def test_a_message_for_nobody_goes_to_the_last_chance(server: Server) -> None:
    last: list[bytes] = []
    async with Client("sub", on_last_chance=lambda m: last.append(m.data)) as client:
        peer = await server.log_on(client)
        await peer.publish("nobody", b"a")
        await wait_all_tasks_blocked()
    assert last == [b"a"]


# -- streams ------------------------------------------------------------------------------


@pytest.mark.row("MS1", "MS8", "CC11")
async def test_leaving_a_stream_unsubscribes(client: Client, peer: Peer) -> None:
    async with answering(peer):
        async with client.stream("orders", filter="/id = 1", sub_id="s") as stream:
            assert stream.sub_id == "s"
            await peer.publish("s", b"a", b"b")
            assert (await anext(stream)).data == b"a"
            assert not stream.ended
        assert stream.ended
        assert await bodies(stream) == []
        assert [(m.command, m.sub_id) for m in peer.heard[1:]] == [
            ("subscribe", "s"),
            ("unsubscribe", "s"),
        ]
        await stream.aclose()
        assert len(peer.heard) == 3


@pytest.mark.row("MS1", "CC17")
async def test_unsubscribing_ends_the_stream_of_another_task(client: Client, peer: Peer) -> None:
    async with answering(peer), client.stream("orders", sub_id="s") as stream:
        _, found = await together(lambda: client.unsubscribe("s"), lambda: bodies(stream))
    assert found == []
    assert stream.end_reason is None


@pytest.mark.row("MS1", "MS2")
async def test_a_stream_ends_with_its_connection_and_stays_ended(
    server: Server, client: Client, peer: Peer
) -> None:
    stream = client.stream("orders", sub_id="s")
    await opened(stream, peer)
    await peer.publish("s", b"a", b"b")
    peer.link.close()
    assert await bodies(stream) == [b"a", b"b"]
    assert isinstance(stream.end_reason, DisconnectedError)
    again = await server.log_on(client)
    await again.publish("s", b"late")
    await wait_all_tasks_blocked()
    assert await bodies(stream) == []
    assert [message.command for message in again.heard] == ["logon"]
    await stream.aclose()
    with pytest.raises(UsageError, match="make a new one"):
        await stream.open()


async def test_a_stream_is_used_while_the_client_lives(client: Client) -> None:
    with pytest.raises(UsageError, match="async with"):
        await Client("other").stream("orders").open()
    with pytest.raises(DisconnectedError, match="not connected"):
        await client.stream("orders").open()


# -- queries ------------------------------------------------------------------------------


@pytest.mark.row("CC15", "MS1", "MS7")
async def test_a_query_ends_with_its_result(client: Client, peer: Peer) -> None:
    stream = client.sow("orders", filter="/px > 10", order_by="/px", top_n=5)

    async def script() -> None:
        query = await peer.answer("sow")
        assert (query.filter, query.order_by, query.top_n) == ("/px > 10", "/px", 5)
        assert (query.batch_size, query.ack_type) == (10, "completed,processed")
        await peer.records(query, b"a", b"b")
        await peer.ack(query, "completed")

    await together(stream.open, script)
    found = [(message.data, message.sow_key, message.command) async for message in stream]
    assert found == [(b"a", "1", "sow"), (b"b", "2", "sow")]
    assert stream.caught_up
    await stream.aclose()
    assert residue(client) == (0, 0)


@pytest.mark.row("CC15")
async def test_a_query_without_a_result_is_empty(client: Client, peer: Peer) -> None:
    stream = client.sow("orders", order_by="/px", options=Options(top_n=5, skip_n=2))

    async def script() -> None:
        query = await peer.answer("sow")
        assert query.options == "top_n=5,skip_n=2"
        await peer.ack(query, "completed")
        await peer.records(query)

    await together(stream.open, script)
    assert await bodies(stream) == []


@pytest.mark.row("MS1", "CC15")
async def test_a_query_that_was_cut_off_is_an_error_and_not_a_short_result(
    client: Client, peer: Peer
) -> None:
    stream = client.sow("orders")

    async def script() -> None:
        query = await peer.answer("sow")
        await peer.say("group_begin", query_id=query.query_id)
        await peer.say("sow", b'{"k":"1","l":1}a', query_id=query.query_id, bs=1, t="orders")
        peer.link.close()

    await together(stream.open, script)
    assert (await anext(stream)).data == b"a"
    with pytest.raises(DisconnectedError):
        await anext(stream)


@pytest.mark.row("CC15", "MS7")
async def test_a_query_and_what_follows_it_come_in_one_stream(client: Client, peer: Peer) -> None:
    stream = client.sow_and_stream("orders", filter="/id > 0", sub_id="s", batch_size=50)

    async def script() -> None:
        query = await peer.answer("sow_and_subscribe")
        assert (query.sub_id, query.query_id, query.batch_size) == ("s", "s", 50)
        await peer.records(query, b"a", b"b")
        await peer.ack(query, "completed")
        await peer.publish("s", b"live")

    await together(stream.open, script)
    assert [(await anext(stream)).data for _ in range(2)] == [b"a", b"b"]
    assert not stream.caught_up
    assert (await anext(stream)).data == b"live"
    assert stream.caught_up
    await stream.wait_caught_up()
    await together(stream.aclose, lambda: peer.answer("unsubscribe"))


@pytest.mark.row("CC15")
async def test_the_handler_of_a_query_sees_its_groups(client: Client, peer: Peer) -> None:
    got: list[str] = []

    async def script() -> None:
        query = await peer.answer("sow_and_subscribe")
        await peer.records(query, b"a")
        await peer.publish(query.sub_id, b"b")

    def handler(message: Message) -> None:
        got.append(f"{message.command} {message.text}".strip())

    await together(lambda: client.sow_and_subscribe("orders", handler=handler), script)
    await wait_all_tasks_blocked()
    assert got == ["group_begin", "sow a", "group_end", "publish b"]


# -- deletes ------------------------------------------------------------------------------


@pytest.mark.row("CC16")
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"filter": "1=1"}, {"filter": "1=1", "data": b""}),
        ({"keys": ["1", "2"]}, {"sow_keys": "1,2", "data": b""}),
        ({"data": "{}"}, {"data": b"{}"}),
    ],
)
@pytest.mark.parametrize("with_store", [True, False])
async def test_a_delete_returns_its_statistics(
    server: Server,
    arguments: dict[str, str],
    wanted: dict[str, object],
    with_store: bool,  # noqa: FBT001  # a parameter
) -> None:
    store = MemoryPublishStore() if with_store else None
    async with Client("sub", publish_store=store) as client:
        peer = await server.log_on(client)

        async def script() -> None:
            command = await peer.answer("sow_delete")
            assert {name: getattr(command, name) for name in wanted} == wanted
            assert (command.sequence is not None) is with_store
            assert ("persisted" in command.ack_type) is with_store
            await peer.ack(command, "stats", records_deleted=3)
            if with_store:
                await peer.persisted(command.sequence or 0)

        stats, _ = await together(lambda: client.sow_delete("orders", **arguments), script)  # type: ignore[arg-type]  # drawn from a table
        assert stats.records_deleted == 3
        await wait_all_tasks_blocked()
        assert client.unpersisted_count == 0


@pytest.mark.row("PS3", "PS7")
async def test_a_delete_that_was_not_persisted_is_replayed(server: Server) -> None:
    async with Client("sub", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)

        async def script() -> None:
            await peer.expect("sow_delete")
            peer.link.close()

        with pytest.raises(DisconnectedError, match="sow_delete: not confirmed"):
            await together(lambda: client.sow_delete("orders", filter="1=1"), script)
        again = await server.log_on(client)
        await again.expect("sow_delete", filter="1=1", sequence=peer.heard[-1].sequence)


@pytest.mark.row("CC16")
async def test_a_delete_takes_exactly_one_criterion(client: Client) -> None:
    for arguments in ({}, {"filter": "1=1", "data": "x"}):
        with pytest.raises(UsageError, match="exactly one"):
            await client.sow_delete("orders", **arguments)  # type: ignore[arg-type]  # from a table


# -- commands -----------------------------------------------------------------------------


@pytest.mark.row("CC18", "MS7")
async def test_a_command_runs_with_a_stream(client: Client, peer: Peer) -> None:
    command = Command("sow").set_topic("orders").set_batch_size(2).add_ack_type("stats")

    async def script() -> None:
        query = await peer.answer("sow")
        assert query.ack_type == "completed,processed,stats"
        await peer.records(query, b"a")
        await peer.ack(query, "completed")
        await peer.ack(query, "stats", records_returned=1)

    stream, _ = await together(lambda: client.execute(command), script)
    found = [(message.command, message.ack_type) async for message in stream]
    assert found == [("group_begin", ""), ("sow", ""), ("group_end", ""), ("ack", "stats")]


@pytest.mark.row("CC18", "MS7")
async def test_a_command_of_acks_alone_ends_with_the_last_of_them(
    client: Client, peer: Peer
) -> None:
    async def script() -> None:
        flush = await peer.answer("flush")
        await peer.ack(flush, "persisted")

    command = Command("flush", ack_type="persisted")
    stream, _ = await together(lambda: client.execute(command), script)
    assert [message.ack_type async for message in stream] == ["persisted"]


@pytest.mark.row("CC18")
async def test_a_command_runs_with_a_handler(client: Client, peer: Peer) -> None:
    got: list[bytes] = []
    command = Command("subscribe", topic="orders", sub_id="s")
    sub_id, _ = await together(
        lambda: client.execute_async(command, lambda m: got.append(m.data)),
        lambda: peer.answer("subscribe"),
    )
    await peer.publish(sub_id, b"a")
    await wait_all_tasks_blocked()
    assert (sub_id, got) == ("s", [b"a"])
    with pytest.raises(UsageError, match="needs a handler"):
        await client.execute_async(command)


@pytest.mark.row("CC18", "CC6")
async def test_a_publish_command_goes_the_way_of_publish(server: Server) -> None:
    async with Client("sub", publish_store=MemoryPublishStore()) as client:
        peer = await server.log_on(client)
        await client.execute_async(Command("publish", topic="orders", data="a", expiration=3))
        await client.execute_async(Command("delta_publish", topic="orders", data=b"b"))
        await peer.expect("publish", data=b"a", expiration=3, ack_type="persisted")
        await peer.expect("delta_publish", data=b"b", ack_type="persisted")
        assert client.unpersisted_count == 2
        with pytest.raises(UsageError, match="no messages to stream"):
            await client.execute(Command("publish", topic="orders"))


@pytest.mark.row("CC18", "CC17")
async def test_an_unsubscribe_command_ends_the_subscription(client: Client, peer: Peer) -> None:
    async with answering(peer), client.stream("orders", sub_id="s") as stream:
        await client.execute_async(Command("unsubscribe", sub_id="s"))
        assert await bodies(stream) == []


# -- what can never work ------------------------------------------------------------------


@pytest.mark.row("MS5")
async def test_a_handler_that_waits_behind_its_own_messages_is_told_so(server: Server) -> None:
    errors: list[HAClientError] = []
    async with Client("sub", max_queued_bytes=1000) as client:
        peer = await server.log_on(client)

        async def handler(message: Message) -> None:
            if message.data[:1] == b"0":
                await trio.sleep(1)  # until the queue is full
                try:
                    await client.flush(timeout=None)
                except UsageError as error:
                    errors.append(error)

        async with answering(peer):
            await client.subscribe("orders", handler=handler, sub_id="s")
            for number in range(10):
                await peer.publish("s", b"%d" % number + bytes(400))
                await wait_all_tasks_blocked()
            await trio.sleep(2)
            await client.flush()
    assert [str(error).partition(" stands")[0] for error in errors] == [
        "flush waits for an ack that"
    ]


@pytest.mark.row("MS5", "PS15")
@pytest.mark.parametrize("full_before", [True, False])
async def test_so_is_one_that_waits_for_its_publishes(
    server: Server,
    full_before: bool,  # noqa: FBT001  # a parameter
) -> None:
    errors: list[HAClientError] = []
    go_on = trio.Event()
    store = MemoryPublishStore()
    async with Client("sub", max_queued_bytes=1000, publish_store=store) as client:
        peer = await server.log_on(client)

        async def handler(message: Message) -> None:
            if message.data[:1] == b"0":
                await client.publish("answers", b"x")
                if full_before:
                    await go_on.wait()
                try:
                    await client.publish_flush(timeout=None)
                except UsageError as error:
                    errors.append(error)

        await together(
            lambda: client.subscribe("orders", handler=handler, sub_id="s"),
            lambda: peer.answer("subscribe"),
        )
        for number in range(10):
            await peer.publish("s", b"%d" % number + bytes(400))
            await wait_all_tasks_blocked()
        go_on.set()
        await wait_all_tasks_blocked()
        assert len(errors) == 1
        assert "publish_flush waits for an ack" in str(errors[0])
        await peer.persisted(store.last_sequence)
        await client.wait_empty()
