"""Publishing under sequences that the caller chooses, as a server sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import DisconnectedError, NameInUse, PublishFailed, TimedOut, UsageError
from haclient.protocol.commands import Command
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, Server, together

pytestmark = in_virtual_time


async def answer_flush(peer: Peer) -> None:
    await peer.ack(await peer.expect("flush", ack_type="persisted"), "persisted")


@pytest.mark.row("SK4")
async def test_a_publish_carries_the_sequence_and_asks_for_a_persisted_ack(server: Server) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client, seen=9, persisted=5)
        assert (client.connection_info["seen_sequence"], client.persisted_sequence) == ("9", 5)
        assert await client.publish("orders", b"a", sequence=6) == 6
        assert (
            await client.publish("orders", b"b", sequence=8, correlation_id="ab", delta=True) == 8
        )
        command = Command("publish", topic="orders", data=b"c", sequence=9)
        await client.execute_async(command)
        await peer.expect("publish", sequence=6, ack_type="persisted", data=b"a")
        await peer.expect("delta_publish", sequence=8, ack_type="persisted", correlation_id="ab")
        await peer.expect("publish", sequence=9, ack_type="persisted", data=b"c")
        with pytest.raises(UsageError, match="would drop 9 after 9"):
            await client.publish("orders", b"d", sequence=9)
        with pytest.raises(UsageError, match="would drop 2 after 9"):
            await client.execute_async(replace(command, sequence=2))
        await peer.persisted(8)
        await client.wait_persisted(8, timeout=1)
        assert client.persisted_sequence == 8
        with pytest.raises(TimedOut, match="9 is not persisted"):
            await client.wait_persisted(9, timeout=1)


async def test_before_a_logon_nothing_is_known_of_the_publisher() -> None:
    async with Client("c") as client:
        assert (client.connection_info["seen_sequence"], client.persisted_sequence) == ("", None)


@pytest.mark.row("SK4")
@pytest.mark.parametrize("delta", [False, True])
async def test_a_client_with_a_store_takes_no_sequence(server: Server, *, delta: bool) -> None:
    async with Client("c", publish_store=MemoryPublishStore()) as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match=r"the publish store numbers .* the sequence 7"):
            await client.publish("orders", b"a", sequence=7, delta=delta)
        with pytest.raises(UsageError, match=r"the publish store numbers .* the sequence 7"):
            await client.publish_many("orders", [b"a"], first_sequence=7)
        assert client.unpersisted_count == 0


async def test_without_a_connection_nothing_is_published() -> None:
    async with Client("c") as client:
        with pytest.raises(DisconnectedError, match="there is no publish store"):
            await client.publish("orders", b"a", sequence=7)


@pytest.mark.row("SK2")
async def test_a_refused_sequence_is_reported_and_ends_the_wait_for_it(server: Server) -> None:
    refused: list[tuple[int | None, str]] = []
    async with Client(
        "c", on_failed_write=lambda message, why: refused.append((message.sequence, why))
    ) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a", sequence=1)
        await client.publish("orders", b"b", sequence=2)
        await peer.persisted(1)
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=2)
        with pytest.raises(PublishFailed, match="the server refused publish 2: not entitled"):
            await client.wait_persisted(2, timeout=1)
        await client.wait_persisted(1, timeout=1)
        for _ in range(2):
            await peer.expect("publish")
        await together(lambda: client.flush(ack="persisted", timeout=1), lambda: answer_flush(peer))
    assert refused == [(2, "not entitled")]


async def test_a_flush_waits_for_one_of_two_acks() -> None:
    async with Client("c") as client:
        with pytest.raises(UsageError, match="ack is one of processed, persisted, not 'stats'"):
            await client.flush(ack="stats")  # type: ignore[arg-type]  # what is tested


@pytest.mark.row("SK4")
async def test_publish_flush_waits_for_the_persisted_ack_of_numbered_publishes(
    server: Server,
) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a", sequence=1)
        await peer.expect("publish")
        await peer.persisted(1)
        await client.publish_flush(timeout=1)
        await client.disconnect()
        await server.log_on(client)  # nothing was published on this connection
        await client.publish_flush(timeout=1)


@pytest.mark.row("SK4", "SK5")
async def test_publish_flush_tells_of_numbered_publishes_that_were_lost_before_it(
    server: Server,
) -> None:
    async with Client("c", exit_timeout=0) as client:
        await server.log_on(client)
        await client.publish("orders", b"a", sequence=1)
        await client.disconnect()
        with pytest.raises(DisconnectedError, match="1 publishes were not persisted and are lost"):
            await client.publish_flush(timeout=1)


@pytest.mark.row("SK4", "SK5")
async def test_a_lost_connection_ends_every_wait_with_its_reason(server: Server) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await client.publish("orders", b"a", sequence=1)

        async def be_displaced() -> None:
            await wait_all_tasks_blocked()
            await peer.ack(None, status="failure", reason="name in use")
            peer.link.close()

        with pytest.raises(DisconnectedError, match="publish 1 was lost") as caught:
            await together(lambda: client.wait_persisted(1, timeout=1), be_displaced)
        assert isinstance(caught.value.__cause__, NameInUse)
        with pytest.raises(DisconnectedError, match="name in use") as caught:
            await client.publish("orders", b"a", sequence=2)
        assert isinstance(caught.value.__cause__, NameInUse)
        await server.log_on(client)
        await client.publish("orders", b"a", sequence=1)  # again: it was never acknowledged


@pytest.mark.row("SK4")
async def test_a_batch_is_numbered_in_order(server: Server) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        last = await client.publish_many("orders", [b"a", "b"], first_sequence=5, expiration=60)
        assert last == 6
        assert await client.publish_many("orders", [], first_sequence=7) == 6
        await client.publish_many(
            ["one", "two"],
            [b"c", memoryview(b"d")],
            first_sequence=7,
            command="delta_publish",
            correlation_ids=["aa", "bb"],
        )
        await client.publish_many(["one", "two"], [b"e", b"f"], first_sequence=20)
        kind, acked = "publish", "persisted"
        await peer.expect(kind, sequence=5, data=b"a", ack_type=acked, expiration=60)
        await peer.expect(kind, sequence=6, data=b"b", ack_type=acked, topic="orders")
        kind = "delta_publish"
        await peer.expect(kind, sequence=7, data=b"c", topic="one", correlation_id="aa")
        await peer.expect(kind, sequence=8, data=b"d", topic="two", correlation_id="bb")
        await peer.expect("publish", sequence=20, data=b"e", topic="one", correlation_id="")
        await peer.expect("publish", sequence=21, data=b"f", topic="two")


@pytest.mark.row("SK7")
@pytest.mark.parametrize("ids", [(), ("aa", "bb", "")])
@pytest.mark.parametrize("topics", ["one", ["one", "two", "one"]])
async def test_each_message_of_a_batch_may_have_an_expiration_and_a_key_of_its_own(
    server: Server, ids: tuple[str, ...], topics: str | list[str]
) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await client.publish_many(
            topics,
            [b"a", b"b", b"c"],
            first_sequence=1,
            expiration=[60, None, 0],
            correlation_ids=ids,
            sow_keys=["k1", "", "k3"],
        )
        for number, expiration in enumerate((60, None, 0)):
            await peer.expect(
                "publish",
                sequence=number + 1,
                topic=topics if isinstance(topics, str) else topics[number],
                expiration=expiration,
                correlation_id=ids[number] if ids else "",
                sow_key=("k1", "", "k3")[number],
            )


async def test_the_lists_of_a_batch_have_one_length(server: Server) -> None:
    async with Client("c") as client:
        await server.log_on(client)
        with pytest.raises(UsageError, match="one topic for each message: 2 messages, 1 found"):
            await client.publish_many(["t"], [b"a", b"b"], first_sequence=1)
        with pytest.raises(UsageError, match="one sow_keys for each message"):
            await client.publish_many("t", [b"a"], first_sequence=1, sow_keys=["a", "b"])
        with pytest.raises(UsageError, match="one correlation_ids for each message"):
            await client.publish_many("t", [b"a"], first_sequence=1, correlation_ids=["a", "b"])
        for given in ([], [1, 2]):
            with pytest.raises(UsageError, match="one expiration for each message: 1 messages, "):
                await client.publish_many("t", [b"a"], first_sequence=1, expiration=given)
        with pytest.raises(UsageError, match="expiration is a whole number of at least 0, not -1"):
            await client.publish_many("t", [b"a"], first_sequence=1, expiration=[-1])
        with pytest.raises(UsageError, match="the command of a batch is one of publish, "):
            await client.publish_many("t", [b"a"], first_sequence=1, command="p")  # type: ignore[arg-type]  # what is tested
        with pytest.raises(UsageError, match="data is bytes, bytearray, memoryview or str"):
            await client.publish_many("t", [5], first_sequence=1)  # type: ignore[list-item]  # what is tested
        assert await client.publish("t", b"a", sequence=1) == 1  # nothing of them was sent


async def test_the_body_of_a_query_is_sent_with_it(server: Server) -> None:
    async with Client("c") as client:
        peer = await server.log_on(client)

        async def answer() -> None:
            query = await peer.expect("sow", topic="/HACLIENT/position", data=b'{"after": null}')
            await peer.ack(query)
            await peer.records(query, b"{}")
            await peer.ack(query, "completed")

        async def ask() -> None:
            async with client.sow("/HACLIENT/position", data='{"after": null}') as records:
                assert [each.data async for each in records] == [b"{}"]

        await together(ask, answer)


async def test_an_error_in_the_middle_of_a_numbered_batch_says_how_many_were_accepted(
    server: Server,
) -> None:
    async with Client("c", exit_timeout=0, max_unpersisted_bytes=1000) as client:
        peer = await server.log_on(client)

        async def lose() -> None:
            await wait_all_tasks_blocked()
            peer.link.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lose)
            with pytest.raises(DisconnectedError) as lost:
                await client.publish_many("orders", [b"a"] * 3000, first_sequence=5)
        assert lost.value.__notes__ == ["publish_many: 1024 of 3000 messages were accepted"]
        with pytest.raises(DisconnectedError) as lost:
            await client.publish_many("orders", [b"a"] * 3000, first_sequence=5)
        assert lost.value.__notes__ == ["publish_many: 0 of 3000 messages were accepted"]
