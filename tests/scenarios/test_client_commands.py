"""Deletes, commands as objects, and what can never work, as the server sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import (
    DisconnectedError,
    HAClientError,
    SubIdInUse,
    TimedOut,
    UsageError,
)
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.session import back_pressure
from haclient.streams import MessageStream
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.listening import on_losses
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time


async def bodies(stream: MessageStream) -> list[bytes]:
    return [message.data async for message in stream]


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
            assert command.sequence is not None
            assert "persisted" in command.ack_type
            await peer.ack(command, "stats", records_deleted=3)
            await peer.persisted(command.sequence)

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
async def test_what_a_delete_cannot_take_is_refused_in_one_line(client: Client) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"data": 5}, "data is bytes, bytearray, memoryview or str, not int"),
        ({"keys": "12"}, "keys is a list of SOW keys"),
    ]
    for arguments, wanted in refused:
        with pytest.raises(UsageError, match=wanted):
            await client.sow_delete("orders", **arguments)


@pytest.mark.row("CC16")
async def test_a_delete_takes_exactly_one_criterion(client: Client) -> None:
    for arguments in ({}, {"filter": "1=1", "data": "x"}):
        with pytest.raises(UsageError, match="exactly one"):
            await client.sow_delete("orders", **arguments)  # type: ignore[arg-type]  # from a table


# -- commands -----------------------------------------------------------------------------


@pytest.mark.row("CC18", "MS7")
async def test_a_command_runs_with_a_stream(client: Client, peer: Peer) -> None:
    command = Command("sow", topic="orders", batch_size=2, ack_type="stats")

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


@pytest.mark.row("CC18")
@pytest.mark.parametrize("with_store", [True, False])
async def test_a_publish_command_keeps_every_field(
    server: Server,
    with_store: bool,  # noqa: FBT001  # a parameter
) -> None:
    store = MemoryPublishStore() if with_store else None
    async with Client("c", publish_store=store, exit_timeout=0) as client:
        peer = await server.log_on(client)
        command = Command(
            "publish",
            topic="orders",
            data="a",
            sow_key="k",
            options="timestamp",
            command_id="mine",
            ack_type="processed",
            correlation_id="YQ==",
            sequence=None if with_store else 77,
        )
        assert await client.execute_async(command) == "mine"
        heard = await peer.expect(
            "publish",
            data=b"a",
            command_id="mine",
            options="timestamp",
            sow_key="k",
            correlation_id="YQ==",
            ack_type="processed,persisted",  # a sequence of its own asks for it, too
        )
        assert heard.sequence == (store.last_sequence if store is not None else 77)


@pytest.mark.row("CC18")
async def test_a_store_numbers_publishes_itself(server: Server) -> None:
    store = MemoryPublishStore()
    async with Client("c", publish_store=store) as client:
        await server.log_on(client)
        for command in (
            Command("publish", topic="t", data="a", sequence=5),
            Command("sow_delete", topic="t", filter="1=1", sequence=5),
        ):
            with pytest.raises(UsageError, match=r"number.* found the sequence 5"):
                await client.execute_async(command)
        assert store.unpersisted_count == 0


@pytest.mark.row("CC18")
async def test_the_acks_of_a_publish_command_have_no_handler(client: Client) -> None:
    command = Command("publish", topic="orders", data="a", ack_type="processed")
    with pytest.raises(UsageError, match="have no handler: use publish and wait_persisted"):
        await client.execute_async(command, print)
    assert client.unpersisted_count == 0


@pytest.mark.row("CC18")
async def test_a_publish_does_not_take_the_command_id_of_a_subscription(
    client: Client, peer: Peer
) -> None:
    async with answering(peer):
        sub_id = await client.subscribe("news", handler=lambda _: None)
    command = Command("publish", topic="orders", data="a", command_id=sub_id)
    with pytest.raises(UsageError, match="is that of a subscription"):
        await client.execute_async(command)


@pytest.mark.parametrize("command_id", ["flush", "sow_delete-8"])
@pytest.mark.parametrize("name", ["subscribe", "sow", "publish"])
async def test_command_ids_of_the_client_itself_are_refused(
    client: Client, name: str, command_id: str
) -> None:
    """A refusal of the client's own command would end a subscription of that id."""
    handler = None if name == "publish" else print
    with pytest.raises(UsageError, match=f"the command id '{command_id}' is one of the client"):
        await client.execute_async(Command(name, topic="t", command_id=command_id), handler)


@pytest.mark.row("CC10")
@pytest.mark.parametrize("kind", ["processed", "completed", "persisted"])
async def test_a_flush_may_ask_for_each_kind_of_ack(client: Client, peer: Peer, kind: str) -> None:
    async def script() -> None:
        flush = await peer.expect("flush")
        assert kind in flush.ack_type.split(",")
        await peer.ack(flush)
        if kind != "processed":
            await peer.ack(flush, kind)

    stream, _ = await together(lambda: client.execute(Command("flush", ack_type=kind)), script)
    assert [message.ack_type async for message in stream] == [kind]


@pytest.mark.row("CC18", "CC17")
async def test_an_unsubscribe_command_ends_the_subscription(client: Client, peer: Peer) -> None:
    async with answering(peer), client.stream("orders", sub_id="s") as stream:
        await client.execute_async(Command("unsubscribe", sub_id="s"))
        assert await bodies(stream) == []


@pytest.mark.row("CC18", "CC17", "CC23")
async def test_the_ids_of_a_command_may_have_blanks_between_them(
    client: Client, peer: Peer
) -> None:
    async with (
        answering(peer),
        client.bookmark_stream("orders", sub_id="a") as first,
        client.bookmark_stream("orders", sub_id="b") as second,
        client.sow_and_stream("orders", sub_id="c") as third,
    ):
        await client.execute_async(Command("subscribe", sub_id="a, b,", options="pause"))
        await client.execute_async(Command("unsubscribe", sub_id="a, b", query_id="c"))
        assert [stream.ended for stream in (first, second, third)] == [True, True, True]


# -- what can never work ------------------------------------------------------------------


@pytest.mark.row("MS5")
async def test_a_timeout_while_nothing_is_read_for_a_full_queue_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_pressure, "IN_FLIGHT_BYTES", 0)
    taken = trio.Event()

    async def handler(_: Message) -> None:
        await taken.wait()

    async with Client("sub", max_queued_bytes=1000) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.subscribe("orders", handler=handler, sub_id="s")
            await client.subscribe("trades", handler=print, sub_id="t")
            for _ in range(5):
                await peer.publish("s", bytes(400))
                await wait_all_tasks_blocked()
            hint = "the client reads nothing until the messages of a full queue are taken"
            with pytest.raises(TimedOut, match=f"^flush: .* within 0.5 s; {hint}$"):
                await client.flush(timeout=0.5)
            with pytest.raises(TimedOut, match=f"^unsubscribe: .* within 0.1 s; {hint}$"):
                await client.unsubscribe("t", timeout=0.1)
            taken.set()
            await client.flush()


async def test_a_query_with_a_handler_ends_quietly_with_its_connection(server: Server) -> None:
    lost: list[HAClientError] = []
    async with Client("c", on_event=on_losses(lost.append)) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.execute_async(Command("sow", topic="orders"), lambda _: None),
            lambda: peer.answer("sow"),
        )
        peer.link.close()
        await wait_all_tasks_blocked()
        assert len(lost) == 1  # that is how the application hears of it: nobody could catch more


async def test_of_two_connects_at_once_one_is_refused(server: Server) -> None:
    refused: list[UsageError] = []
    twice = Client("c")

    async def connect() -> None:
        try:
            await twice.connect(server.uri)
        except UsageError as error:
            refused.append(error)

    async with twice:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            nursery.start_soon(connect)
            await server.accept()
        assert ["connect is under way" in str(error) for error in refused] == [True]


@pytest.mark.row("PS3", "CC18")
async def test_a_delete_command_with_a_store_goes_the_way_of_sow_delete(server: Server) -> None:
    store, told = MemoryPublishStore(), list[Message]()
    async with Client("c", publish_store=store) as client:
        peer = await server.log_on(client)
        command = Command("sow_delete", topic="orders", filter="1=1")
        with pytest.raises(UsageError, match="nothing to stream"):
            await client.execute(command)

        async def serve() -> None:
            heard = await peer.expect("sow_delete")
            assert heard.sequence == store.last_sequence
            await peer.ack(heard)
            await peer.ack(heard, "stats", records_deleted=3)
            await peer.persisted(store.last_sequence)

        await together(lambda: client.execute_async(command, told.append), serve)
        assert [each.records_deleted for each in told] == [3]


@pytest.mark.row("CC18")
async def test_a_command_id_of_the_application_is_not_given_to_another(
    client: Client, peer: Peer
) -> None:
    async def serve() -> list[str]:
        mine = await peer.expect("flush")
        other = await peer.expect("flush")
        await peer.ack(other)
        await peer.ack(mine)
        return [mine.command_id, other.command_id]

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            taken = Command("flush", ack_type="processed", command_id="3")
            nursery.start_soon(client.execute_async, taken, lambda _: None)
            await wait_all_tasks_blocked()
            with pytest.raises(SubIdInUse):
                await client.execute_async(replace(taken), lambda _: None)
            await client.flush(timeout=1)

    _, ids = await together(ask, serve)
    assert len(set(ids)) == 2
