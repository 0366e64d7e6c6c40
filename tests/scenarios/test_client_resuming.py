"""Bookmark subscriptions: logged before the handler, resumed from the recovery point."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client
from haclient.errors import BadFilter, InvalidTopic, ProtocolError, StoreFull
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.streams import MessageStream
from haclient_stores.bookmark import EPOCH, MOST_RECENT, NOW, Bookmark, StartPoint
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.listening import on_duplicates, on_losses
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time


@pytest.fixture(params=[MemoryBookmarkStore, DictBookmarkStore], ids=["memory", "custom"])
def store(request: pytest.FixtureRequest) -> BookmarkStore:
    made: BookmarkStore = request.param()
    return made


async def opened(stream: MessageStream, peer: Peer) -> Message:
    """Open a stream; the command that the server has accepted."""
    _, command = await together(stream.open, lambda: peer.answer("subscribe"))
    return command


async def lose(peer: Peer) -> None:
    peer.link.close()
    await wait_all_tasks_blocked()


@pytest.mark.row("BS8", "CC13")
async def test_most_recent_of_an_unknown_subscription_is_the_beginning(
    server: Server, store: BookmarkStore
) -> None:
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        command = await opened(client.bookmark_stream("orders", sub_id="s"), peer)
        assert (command.bookmark, command.sub_id) == ("0", "s")
        assert command.ack_type == "completed,persisted,processed"


@pytest.mark.row("BS8")
async def test_without_a_store_most_recent_is_the_beginning_too(server: Server) -> None:
    async with Client("sub") as client:
        peer = await server.log_on(client)
        command = await opened(client.bookmark_stream("orders", sub_id="s"), peer)
        assert (command.bookmark, command.ack_type) == ("0", "completed,processed")


@pytest.mark.row("CC13", "CC14")
@pytest.mark.parametrize(
    ("start", "wire"), [(EPOCH, "0"), (NOW, "0|1|"), (Bookmark(7, 3), "7|3|"), ("7|3|", "7|3|")]
)
async def test_any_other_start_is_sent_as_it_is(
    server: Server, start: Bookmark | str, wire: str
) -> None:
    async with Client("sub", bookmark_store=MemoryBookmarkStore()) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=start, filter="/a = 1")
        command = await opened(stream, peer)
        assert (command.bookmark, command.filter) == (wire, "/a = 1")


@pytest.mark.row("CC14", "BS7", "BS8")
async def test_a_bookmark_on_a_command_is_all_it_takes(server: Server) -> None:
    store = MemoryBookmarkStore()
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        command = Command("subscribe", topic="orders", bookmark=MOST_RECENT)
        stream, heard = await together(
            lambda: client.execute(command), lambda: peer.answer("subscribe")
        )
        assert heard.bookmark == "0"
        assert heard.sub_id  # none was given, so one was made
        await peer.publish(heard.sub_id, b"a", bm="7|1|")
        assert (await anext(stream)).number == 1
        assert list(store.subscriptions) == [heard.sub_id]


@pytest.mark.row("BS2")
async def test_a_message_is_logged_and_numbered_before_its_handler_runs(
    server: Server, store: BookmarkStore
) -> None:
    seen: list[tuple[int, int]] = []

    def handler(message: Message) -> None:
        seen.append((message.number, store.oldest_undiscarded("s")))
        message.discard()

    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=handler)
            await peer.publish("s", b"a", b"b", bm="7|1|")
            await wait_all_tasks_blocked()
    assert seen == [(1, 1), (2, 2)]
    assert store.oldest_undiscarded("s") == 0


@pytest.mark.row("BS9", "BS4", "BS3", "MS2")
async def test_after_a_lost_link_the_subscription_resumes_at_the_oldest_undiscarded(
    server: Server, store: BookmarkStore
) -> None:
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        await opened(stream, peer)
        await peer.publish("s", b"1", b"2", b"3", b"4", bm="7|1|")
        messages = [await anext(stream) for _ in range(4)]
        for index in (0, 2):
            messages[index].discard()
        await peer.ack(None, "persisted", sub_id="s", bm="7|4|")
        await lose(peer)
        await stream.aclose()
        again = await server.log_on(client)
        second = client.bookmark_stream("orders", sub_id="s")
        assert (await opened(second, again)).bookmark == "7|1|"
        await again.publish("s", b"2", b"3", b"4", b"5", bm="7|2|")
        assert [(await anext(second)).data for _ in range(3)] == [b"2", b"4", b"5"]


@pytest.mark.row("BS9", "BS7")
async def test_what_was_queued_and_never_taken_comes_again(
    server: Server, store: BookmarkStore
) -> None:
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            for _ in range(2):
                async with client.bookmark_stream("orders", sub_id="s") as stream:
                    await peer.publish("s", b"1", b"2", bm="7|1|")
                    assert (await anext(stream)).data == b"1"


@pytest.mark.row("BS9")
async def test_closing_an_old_stream_again_does_not_touch_the_new_one(
    server: Server, store: BookmarkStore
) -> None:
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            old = client.bookmark_stream("orders", sub_id="s")
            await old.open()
            await old.aclose()
            async with client.bookmark_stream("orders", sub_id="s") as new:
                await peer.publish("s", b"1", bm="7|1|")
                assert (await anext(new)).data == b"1"
                await old.aclose()
                await peer.publish("s", b"1", bm="7|1|")  # in hand: a duplicate
                await peer.publish("s", b"2", bm="7|2|")
                assert (await anext(new)).data == b"2"


@pytest.mark.row("BS5", "BS7", "BS13")
async def test_another_id_starts_anew_and_the_same_one_resumes(server: Server) -> None:
    store = MemoryBookmarkStore()
    for sub_id, wire in (("s", "0"), ("s", "7|1|"), ("other", "0"), ("s", "7|1|")):
        async with Client("sub", bookmark_store=store) as client:
            peer = await server.log_on(client)
            stream = client.bookmark_stream("orders", sub_id=sub_id)
            async with answering(peer), stream:
                assert peer.heard[-1].bookmark == wire
                if sub_id == "s":
                    await peer.publish("s", b"1", b"2", bm="7|1|")
                    await peer.ack(None, "persisted", sub_id="s", bm="7|2|")
                    message = await anext(stream)
                    if message.data == b"1":
                        message.discard()


@pytest.mark.row("BS12", "BS11")
async def test_a_duplicate_goes_to_the_duplicate_handler_only(
    server: Server, store: BookmarkStore
) -> None:
    duplicates: list[bytes] = []
    async with Client(
        "sub", bookmark_store=store, on_event=on_duplicates(lambda m: duplicates.append(m.data))
    ) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s")
        await opened(stream, peer)
        for sequence, body in ((1, b"a"), (2, b"b"), (1, b"a again"), (3, b"c")):
            await peer.publish("s", body, bm=f"7|{sequence}|")
        assert [(await anext(stream)).data for _ in range(3)] == [b"a", b"b", b"c"]
        await wait_all_tasks_blocked()
        assert duplicates == [b"a again"]


@pytest.mark.row("MS7", "BS9")
async def test_the_end_of_the_replay_is_an_event_and_a_recovery_point(server: Server) -> None:
    store = MemoryBookmarkStore()
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=NOW)
        command = await opened(stream, peer)
        assert not stream.caught_up
        await peer.ack(command, "completed", bm="9|77|")
        with trio.move_on_after(1):
            await anext(stream)
        assert stream.caught_up
        await lose(peer)
        again = await server.log_on(client)
        resumed = client.bookmark_stream("orders", sub_id="s")
        assert (await opened(resumed, again)).bookmark == "9|77|"


@pytest.mark.row("BS10")
async def test_a_query_with_a_bookmark_never_waits_for_acks_that_do_not_exist(
    server: Server,
) -> None:
    store = MemoryBookmarkStore()
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        command = Command("sow_and_subscribe", topic="orders", sub_id="s", bookmark=NOW)
        stream, heard = await together(
            lambda: client.execute(command), lambda: peer.answer("sow_and_subscribe")
        )
        assert heard.ack_type == "completed,processed"
        await peer.publish("s", b"a", bm="7|1|")
        (await anext(stream)).discard()
        assert str(store.most_recent("s")) == "7|1|"


@pytest.mark.row("CC13", "CC37")
async def test_a_topic_that_is_not_recorded_is_an_error(server: Server) -> None:
    async with Client("sub", bookmark_store=MemoryBookmarkStore()) as client:
        peer = await server.log_on(client)

        async def script() -> None:
            await peer.refuse(await peer.expect("subscribe"), "invalid topic")

        with pytest.raises(InvalidTopic):
            await together(client.bookmark_stream("orders", sub_id="s").open, script)


@pytest.mark.row("BS2")
async def test_a_store_that_is_full_is_an_error_of_the_client(server: Server) -> None:
    class Full(DictBookmarkStore):
        @override
        def log(self, sub_id: str, bookmark: str) -> int:
            raise StoreFull(f"no room for {bookmark} of {sub_id}")

    with pytest.raises(StoreFull, match="no room"):  # noqa: PT012  # the block is what is tested
        async with Client("sub", bookmark_store=Full()) as client:
            peer = await server.log_on(client)
            await opened(client.bookmark_stream("orders", sub_id="s"), peer)
            await peer.publish("s", b"a", bm="7|1|")
            await trio.sleep_forever()


@pytest.mark.row("AT14")
async def test_a_malformed_frame_ends_the_connection_and_the_client_goes_on(
    server: Server,
) -> None:
    told: list[Exception] = []
    async with Client("sub", on_event=on_losses(told.append)) as client:
        peer = await server.log_on(client)
        await peer.send(b"\xff\xff\xff\xffjunk")
        await wait_all_tasks_blocked()
        assert [type(error) for error in told] == [ProtocolError]
        await server.log_on(client)


@pytest.mark.row("BS3", "BS4")
async def test_a_refused_start_forgets_nothing(server: Server) -> None:
    store = MemoryBookmarkStore()
    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            async with client.bookmark_stream("orders", sub_id="s") as stream:
                await peer.publish("s", b"1", b"2", bm="7|1|")
                for _ in range(2):
                    (await anext(stream)).discard()
                await peer.ack(None, "persisted", sub_id="s", bm="7|2|")
                await wait_all_tasks_blocked()
            await wait_all_tasks_blocked()  # until the unsubscribe is answered
        refused = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH, filter="/a >")

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe"), "bad filter")

        with pytest.raises(BadFilter):
            await together(refused.open, refuse)
        command = await opened(client.bookmark_stream("orders", sub_id="s"), peer)
        assert command.bookmark == "7|2|"


async def test_a_slow_handler_of_an_old_link_does_not_release_what_the_new_one_holds(
    server: Server, store: BookmarkStore
) -> None:
    go_on = trio.Event()

    async def slow(_: Message) -> None:
        await go_on.wait()

    async with Client("sub", bookmark_store=store) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="s", handler=slow)
            await peer.publish("s", b"1", bm="7|1|")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await server.log_on(client)
        async with answering(again):
            stream = client.bookmark_stream("orders", sub_id="s")
            await stream.open()
            await again.publish("s", b"2", bm="7|2|")
            assert (await anext(stream)).data == b"2"
            go_on.set()
            await wait_all_tasks_blocked()
            await again.publish("s", b"2", bm="7|2|")  # still in hand: a duplicate
            await again.publish("s", b"3", bm="7|3|")
            assert (await anext(stream)).data == b"3"
            await stream.aclose()


@pytest.mark.row("BS8")
@pytest.mark.parametrize(("bookmark", "warnings"), [(MOST_RECENT, 1), (EPOCH, 0), (NOW, 0)])
async def test_most_recent_without_a_bookmark_store_is_epoch_and_warns_once(
    server: Server, caplog: pytest.LogCaptureFixture, bookmark: StartPoint, warnings: int
) -> None:
    async with Client("sub", exit_timeout=0) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            for _ in range(2):
                async with client.bookmark_stream("orders", sub_id="s", bookmark=bookmark):
                    pass
                await wait_all_tasks_blocked()
    wire = {str(MOST_RECENT): "0"}.get(str(bookmark), str(bookmark))
    assert [m.bookmark for m in peer.heard if m.command == "subscribe"] == [wire, wire]
    found = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert ["s on orders: without a bookmark store" in text for text in found] == [True] * warnings


@pytest.mark.row("BS8")
async def test_subscriptions_that_come_and_go_are_warned_of_once_for_each_topic(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is remembered of each of them, which have an id of their own each time."""
    async with Client("sub", exit_timeout=0) as client:
        peer = await server.log_on(client)
        async with answering(peer):
            for topic in ("orders", "orders", "trades", "orders"):
                command = Command("subscribe", topic=topic, bookmark=MOST_RECENT)
                await (await client.execute(command)).aclose()
    found = [each.args for each in caplog.records if each.levelname == "WARNING"]
    assert [args[1] for args in found if isinstance(args, tuple)] == ["orders", "trades"]
