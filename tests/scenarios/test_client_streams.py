"""Streams and queries as the server sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import (
    DisconnectedError,
    NotEntitled,
    StoreFull,
    TimedOut,
    UsageError,
)
from haclient.events import Event, SubscriptionEnded
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.streams import MessageStream
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.instances import durable, instances
from support.peer import Peer, Server, answering, listening, together

pytestmark = in_virtual_time


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
        await wait_all_tasks_blocked()
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


@pytest.mark.row("MS1", "MS7")
async def test_a_query_ends_with_its_records_though_no_completed_comes(
    client: Client, peer: Peer
) -> None:
    stream = client.sow("orders")

    async def script() -> None:
        await peer.records(await peer.answer("sow"), b"a")

    await together(stream.open, script)
    with trio.fail_after(60):
        assert [each.data async for each in stream] == [b"a"]


@pytest.mark.row("MS1", "MS7")
@pytest.mark.parametrize("position", ["", "1|1|"])
async def test_a_query_that_a_server_answers_by_completed_alone_is_empty(
    client: Client, peer: Peer, position: str
) -> None:
    stream = client.sow("orders", timeout=3)

    async def script(command: str = "sow") -> None:
        await peer.ack(await peer.answer(command), "completed", bm=position)

    await together(stream.open, script)
    began = trio.current_time()
    assert [each async for each in stream] == []
    assert trio.current_time() == began, "at once"
    records = client.records("orders", timeout=3)
    await together(records.open, partial(script, "sow_and_subscribe"))
    assert (len(records), records.caught_up) == (0, True)
    lasting = client.sow_and_stream("orders", timeout=3)
    await together(lasting.open, partial(script, "sow_and_subscribe"))
    with trio.move_on_after(60):  # goes on, since what is published comes later
        await anext(lasting)
    assert trio.current_time() - began == pytest.approx(60)
    await peer.say("p", b"a", sids=lasting.sub_id, t="orders")
    assert (await anext(lasting)).data == b"a"


@pytest.mark.row("CC24", "MS7")
@pytest.mark.parametrize("sent", ["", "group_begin", "group_begin completed"])
async def test_a_query_whose_records_do_not_come_is_ended_at_the_server_and_says_so(
    client: Client, peer: Peer, sent: str
) -> None:
    streams: list[tuple[str, Callable[[], MessageStream]]] = [
        ("sow", partial(client.sow, "orders", timeout=3)),
        ("sow_and_subscribe", partial(client.sow_and_stream, "orders", timeout=3)),
        (
            "sow_and_delta_subscribe",
            partial(client.sow_and_stream, "orders", delta=True, timeout=3),
        ),
    ]
    for command, make in streams:
        if command != "sow" and "completed" in sent:
            continue  # which says that nothing older follows
        stream = make()

        async def script(command: str = command) -> None:
            query = await peer.answer(command)
            if sent:
                await peer.say("group_begin", query_id=query.query_id)
            if "completed" in sent:
                await peer.ack(query, "completed")

        await together(stream.open, script)
        began = trio.current_time()
        with pytest.raises(
            TimedOut, match=f"{command} on 'orders': .* 3 s, and not yet group_end:"
        ):
            await anext(stream)
        assert trio.current_time() - began < 4
        assert (await peer.answer("unsubscribe")).query_id == stream.sub_id
        await stream.aclose()


@pytest.mark.row("CC24")
async def test_the_handler_of_a_query_whose_records_do_not_come_ends_alone(
    client: Client, peer: Peer
) -> None:
    ended: list[SubscriptionEnded] = []

    def note(event: Event) -> None:
        if isinstance(event, SubscriptionEnded):
            ended.append(event)

    client.add_event_listener(note)
    call = partial(client.sow_and_subscribe, "orders", handler=print, timeout=3)
    await together(call, partial(peer.answer, "sow_and_subscribe"))
    await trio.sleep(60)
    assert "and not yet group_end" in str(ended[0].error)
    assert isinstance(ended[0].error, TimedOut)
    async with answering(peer):
        await client.flush(timeout=1)


@pytest.mark.row("CC24")
async def test_a_query_with_a_slow_reader_or_without_a_limit_is_waited_for(
    client: Client, peer: Peer
) -> None:
    slow, patient = client.sow("orders", timeout=3), client.sow("orders", timeout=None)
    queries = [await opened(stream, peer, "sow") for stream in (slow, patient)]
    await trio.sleep(3600)
    await peer.records(queries[0], b"a")
    assert [each.data async for each in slow] == [b"a"]
    with trio.move_on_after(3600):
        await anext(patient)
    await peer.records(queries[1], b"b")
    assert [each.data async for each in patient] == [b"b"]


@pytest.mark.row("MS7")
async def test_a_late_completed_is_not_that_of_the_next_query_with_the_same_id(
    client: Client, peer: Peer
) -> None:
    command = Command("sow", topic="orders", query_id="q")
    first, query = await together(lambda: client.execute(command), lambda: peer.answer("sow"))
    await peer.records(query)
    assert [each.kind async for each in first] == ["group_begin", "group_end"]
    command.ack_type = "completed"
    later, again = await together(lambda: client.execute(command), lambda: peer.answer("sow"))
    await peer.ack(query, "completed", query_id="q")
    await peer.records(again, b"b")
    await peer.ack(again, "completed")
    kinds = [each.kind async for each in later]
    assert kinds == ["group_begin", "sow", "group_end", "ack"]


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


@pytest.mark.row("MS8")
async def test_a_stream_is_closed_although_another_that_is_full_hides_the_answer() -> None:
    async with (
        listening() as server,
        trio.open_nursery() as nursery,
        Client("c", max_queued_bytes=2_000) as client,
    ):
        peer = await server.log_on(client)
        has_answered = trio.Event()

        async def script() -> None:
            full, _ = [await peer.answer("subscribe") for _ in range(2)]
            await peer.publish(full.sub_id, *[bytes(500)] * 20)
            await peer.answer("unsubscribe")
            await peer.expect("unsubscribe")
            has_answered.set()

        nursery.start_soon(script)
        async with client.stream("never taken"):
            async with client.stream("orders"):
                await trio.sleep(1)
            assert trio.current_time() < 2
        await has_answered.wait()  # or the client may be gone before the first answer


@pytest.mark.row("MS8")
async def test_closing_a_stream_does_not_wait_for_a_server_that_is_mute(
    client: Client, peer: Peer
) -> None:
    stream = client.stream("orders", sub_id="s")
    await opened(stream, peer)
    began = trio.current_time()
    await stream.aclose()
    assert trio.current_time() == began
    left = await peer.expect("unsubscribe", sub_id="s")
    # Only the next subscription with this id waits for the answer.
    again = client.stream("orders", sub_id="s")

    async def script() -> None:
        await trio.sleep(3)
        await peer.publish("s", b"of the old one")
        await peer.ack(left)
        await peer.answer("subscribe")
        await peer.publish("s", b"of the new one")

    await together(again.open, script)
    assert (await anext(again)).data == b"of the new one"


@pytest.mark.row("CC37", "MS1")
@pytest.mark.parametrize("kind", ["completed", "processed", "stats"])
@pytest.mark.parametrize("command", ["sow", "subscribe"])
async def test_a_failure_that_comes_late_ends_a_stream_with_the_error(
    client: Client, peer: Peer, command: str, kind: str
) -> None:
    stream = client.sow("orders") if command == "sow" else client.stream("orders", sub_id="s")
    sent = await opened(stream, peer, command)
    ids = {"query_id": sent.query_id} if command == "sow" else {"sids": "s"}
    await peer.say("sow" if command == "sow" else "p", b"a", t="orders", **ids)
    await peer.ack(sent, kind, status="failure", reason="not entitled")
    assert (await anext(stream)).data == b"a"
    with pytest.raises(NotEntitled, match="not entitled"):
        await anext(stream)
    assert residue(client) == (0, 0)
    await stream.aclose()


@pytest.mark.row("CC37")
async def test_a_failure_that_comes_late_for_a_handler_leaves_the_block(server: Server) -> None:
    with pytest.raises(NotEntitled):  # noqa: PT012  # the block is what is tested
        async with Client("c") as client:
            peer = await server.log_on(client)
            _, sent = await together(
                lambda: client.subscribe("orders", handler=print, sub_id="s"),
                lambda: peer.answer("subscribe"),
            )
            await peer.ack(sent, status="failure", reason="not entitled", sub_id="s")
            await trio.sleep_forever()


async def test_a_refused_command_about_a_subscription_does_not_end_it(
    client: Client, peer: Peer
) -> None:
    stream = client.stream("orders", sub_id="s")
    await opened(stream, peer)
    await peer.ack(None, status="failure", reason="because", cid="unknown", sub_id="s")
    await peer.publish("s", b"a")
    assert (await anext(stream)).data == b"a"


@pytest.mark.parametrize("make", [MemoryBookmarkStore, DictBookmarkStore])
async def test_a_closed_stream_leaves_a_slow_handler_of_its_id_what_that_has(
    tmp_path: Path, make: type[MemoryBookmarkStore | DictBookmarkStore]
) -> None:
    works, go = trio.Event(), trio.Event()
    late = list[bytes]()

    async def slow(message: Message) -> None:
        if message.data == b"0":
            raise ValueError("it stays undiscarded")
        works.set()
        await go.wait()
        message.discard()

    def next_one(message: Message) -> None:
        late.append(message.data)

    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        Client("c", bookmark_store=make(), on_handler_error="continue") as client,
    ):
        await client.connect(east.uri)
        await client.logon()
        await client.publish_many("orders", [b"0", b"1", b"2"])
        await client.publish_flush()
        await client.bookmark_subscribe("orders", sub_id="s", handler=slow, bookmark=EPOCH)
        await works.wait()
        await client.unsubscribe("s")
        async with client.bookmark_stream("orders", sub_id="s") as messages:
            assert (await anext(messages)).data == b"0"
        await client.bookmark_subscribe("orders", sub_id="s", handler=next_one)
        await wait_all_tasks_blocked()
        go.set()
        await wait_all_tasks_blocked()
    assert late == [b"0"]


@pytest.mark.parametrize("make", [MemoryBookmarkStore, DictBookmarkStore])
@pytest.mark.parametrize("end", ["unsubscribe", "disconnect"])
async def test_what_a_stream_that_was_not_closed_has_left_comes_to_the_next_one_of_its_id(
    tmp_path: Path, end: str, make: type[MemoryBookmarkStore | DictBookmarkStore]
) -> None:
    async with (
        instances("east", config=durable(tmp_path)) as (east,),
        Client("c", bookmark_store=make()) as client,
    ):
        await client.connect(east.uri)
        await client.logon()
        await client.publish_many("orders", [b"0", b"1", b"2", b"3"])
        await client.publish_flush()
        before = await client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH).open()
        for _ in range(3):
            if (message := await anext(before)).data != b"1":
                message.discard()
        if end == "unsubscribe":
            await client.unsubscribe("s")
        else:
            await client.disconnect()
            await client.connect(east.uri)
            await client.logon()
        async with client.bookmark_stream("orders", sub_id="s") as messages:
            assert await bodies(before) == []
            await before.aclose()
            assert [(await anext(messages)).data for _ in range(2)] == [b"1", b"3"]


async def test_what_a_bookmark_store_cannot_remember_leaves_the_block_as_itself() -> None:
    class Full(DictBookmarkStore):
        @override
        def log(self, sub_id: str, bookmark: str) -> int:
            raise StoreFull("no room for bookmarks")

    async with listening() as server, trio.open_nursery() as nursery:
        with pytest.raises(StoreFull, match="no room for bookmarks"):  # noqa: PT012  # the block is it
            async with Client("c", bookmark_store=Full()) as client:
                peer = await server.log_on(client)

                async def script() -> None:
                    await peer.answer("subscribe")
                    await trio.sleep(1)
                    await peer.publish("s", b"a", bm="1|1|")

                nursery.start_soon(script)
                await client.bookmark_subscribe("orders", sub_id="s", handler=print)
                await client.flush()  # who waits is told, and that is no second error
