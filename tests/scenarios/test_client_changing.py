"""Subscriptions that are paused, resumed and replaced, as the server sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import BaseClient, Client, HAClient
from haclient.errors import BadFilter, CommandError, DisconnectedError, TimedOut, UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.protocol.options import Options
from haclient.subscription_manager import MemorySubscriptionManager
from haclient.transport.tasks import open_nursery
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from support.broker import running_broker
from support.clock import in_virtual_time
from support.peer import Peer, Server, answering, delivery, together
from support.recovery import entered, live, lose, quiet_client

virtual = in_virtual_time


async def subscribed(client: BaseClient, peer: Peer, *sub_ids: str) -> None:
    for sub_id in sub_ids:
        await together(
            partial(
                client.bookmark_subscribe,
                "^orders/.*$",
                sub_id=sub_id,
                handler=lambda _: None,
                bookmark=EPOCH,
                filter=f"/for = '{sub_id}'",
                options="timestamp,rate=1000",
            ),
            lambda: peer.answer("subscribe"),
        )


@asynccontextmanager
async def with_subscriptions(
    server: Server, *sub_ids: str
) -> AsyncGenerator[tuple[Client, Peer, MemoryBookmarkStore]]:
    """A client that is logged on and has these subscriptions."""
    store = MemoryBookmarkStore()
    async with Client("c", bookmark_store=store, exit_timeout=0) as client:
        peer = await server.log_on(client)
        await subscribed(client, peer, *sub_ids)
        yield client, peer, store


def check_sent_again(sent: list[Message], *paused: bool) -> None:
    """Each is the subscription that it was, apart from whether it is paused."""
    for each, is_paused in zip(sent, paused, strict=True):
        assert each.topic == "^orders/.*$"
        assert each.filter == f"/for = '{each.sub_id}'"
        options = Options.parse(each.options)
        assert (options.timestamp, options.rate, options.pause) == (True, "1000", is_paused)


# -- pause and resume -----------------------------------------------------------------------


@virtual
@pytest.mark.row("CC23", "BS10")
@pytest.mark.parametrize("as_command", [False, True])
async def test_one_command_pauses_several_subscriptions_and_one_resumes_them(
    server: Server,
    as_command: bool,  # noqa: FBT001  # a parameter
) -> None:
    async with with_subscriptions(server, "A", "B") as (client, peer, store):
        for word, paused in (("pause", True), ("resume", False)):

            async def ask(word: str = word) -> None:
                if as_command:
                    command = Command("subscribe", sub_id="A,B", options=word)
                    assert await client.execute_async(command) == "A,B"
                elif word == "pause":
                    await client.pause(["A", "B"])
                else:
                    await client.resume(["A", "B"])

            _, heard = await together(ask, lambda: peer.answer("subscribe"))
            assert (heard.sub_id, heard.options, heard.topic) == ("A,B", word, "")
            assert [store.subscription(each).paused for each in "AB"] == [paused, paused]


@virtual
@pytest.mark.row("BS10", "CC23")
async def test_a_persisted_ack_of_a_paused_subscription_is_no_recovery_point(
    server: Server,
) -> None:
    async with with_subscriptions(server, "s") as (client, peer, store):
        await peer.ack(None, "completed", sub_id="s", bm="7|1|")
        await together(lambda: client.pause("s"), lambda: peer.answer("subscribe"))
        await peer.ack(None, "persisted", sub_id="s", bm="7|5|")
        await wait_all_tasks_blocked()
        assert str(store.most_recent("s")) != "7|5|"
        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        await peer.ack(None, "persisted", sub_id="s", bm="7|9|")
        await wait_all_tasks_blocked()
        assert str(store.most_recent("s")) == "7|9|"


@virtual
@pytest.mark.row("BS10", "CC23")
async def test_after_a_pause_without_an_answer_no_ack_is_a_recovery_point(server: Server) -> None:
    async with with_subscriptions(server, "s") as (client, peer, store):
        await peer.ack(None, "completed", sub_id="s", bm="7|1|")
        with pytest.raises(TimedOut):
            await client.pause("s", timeout=1)
        await peer.expect("subscribe", sub_id="s")  # the server has paused it all the same
        await peer.ack(None, "persisted", sub_id="s", bm="7|50|")
        await wait_all_tasks_blocked()
        assert str(store.most_recent("s")) != "7|50|"


@virtual
@pytest.mark.row("CC23")
async def test_a_pause_that_is_refused_changes_nothing(server: Server) -> None:
    async with with_subscriptions(server, "s") as (client, peer, store):

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe"), "invalid subid")

        with pytest.raises(CommandError, match="pause of s: invalid subid"):
            await together(lambda: client.pause("s"), refuse)
        assert store.subscription("s").paused is False
        peer.link.close()
        with pytest.raises(DisconnectedError):
            await client.pause("s")


@virtual
@pytest.mark.row("CC23")
async def test_only_active_bookmark_subscriptions_can_be_paused(server: Server) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe("orders", handler=print, sub_id="plain"),
            lambda: peer.answer("subscribe"),
        )
        nothing: list[str] = []
        for ids in ("plain", "unknown", nothing):
            with pytest.raises(UsageError, match="subscription"):
                await client.pause(ids)
            with pytest.raises(UsageError, match="subscription"):
                await client.resume(ids)
        with pytest.raises(UsageError, match="use execute_async"):
            await client.execute(Command("subscribe", sub_id="plain,x", options="pause"))
        assert len(peer.heard) == 2


@virtual
@pytest.mark.row("CC22", "CC23")
async def test_the_option_live_excludes_a_pause_whichever_comes_first(server: Server) -> None:
    async with with_subscriptions(server, "s", "t") as (client, peer, _):
        await together(
            lambda: client.replace("s", options="live"), lambda: peer.answer("subscribe")
        )
        with pytest.raises(UsageError, match="'s' has the option live"):
            await client.pause("s")
        await together(lambda: client.pause("t"), lambda: peer.answer("subscribe"))
        with pytest.raises(UsageError, match="'t' is paused"):
            await client.replace("t", options="live")


@virtual
@pytest.mark.row("CC22")
async def test_a_replace_that_follows_another_one_at_once_keeps_what_that_has_changed(
    server: Server,
) -> None:
    async with with_subscriptions(server, "s") as (client, peer, _), open_nursery() as nursery:
        nursery.start_soon(partial(client.replace, "s", filter="/x = 1"))
        first = await peer.expect("subscribe")
        nursery.start_soon(partial(client.replace, "s", options="timestamp"))
        await wait_all_tasks_blocked()
        with pytest.raises(TimedOut, match="another replace has no answer yet"):
            await client.replace("s", filter="/x = 2", timeout=0.1)
        await peer.ack(first)
        second = await peer.expect("subscribe")
        assert (second.filter, second.options) == ("/x = 1", "replace,timestamp")
        await peer.ack(second)


@virtual
@pytest.mark.row("CC22", "CC23")
async def test_a_pause_on_the_way_with_the_option_live_is_in_force(server: Server) -> None:
    async with with_subscriptions(server, "s") as (client, peer, _), open_nursery() as nursery:
        nursery.start_soon(partial(client.replace, "s", options="live"))
        replacing = await peer.expect("subscribe")
        nursery.start_soon(client.pause, "s")
        pausing = await peer.expect("subscribe")
        await peer.ack(replacing)
        await peer.ack(pausing)
        await wait_all_tasks_blocked()
        (active,) = client._core.session.router.all()
        assert (active.is_paused, active.request.options) == (True, "pause")


@virtual
@pytest.mark.row("CC23", "SM5")
async def test_what_is_paused_is_entered_paused_after_a_lost_connection(server: Server) -> None:
    store, manager = MemoryBookmarkStore(), MemorySubscriptionManager()
    client = quiet_client(server, bookmark_store=store, subscription_manager=manager)
    async with entered(client, partial(live, server)) as peer:
        await subscribed(client, peer, "s")
        await together(lambda: client.pause("s"), lambda: peer.answer("subscribe"))
        await lose(peer)
        again = await live(server)
        heard = await again.answer("subscribe")
        assert Options.parse(heard.options).pause
        assert store.subscription("s").paused
        await together(lambda: client.resume("s"), lambda: again.answer("subscribe"))
        await lose(again)
        third = await live(server)
        assert not Options.parse((await third.answer("subscribe")).options).pause
        assert not store.subscription("s").paused


@virtual
@pytest.mark.row("SM6")
async def test_those_of_one_resume_are_entered_again_each_alone_as_it_is(server: Server) -> None:
    store = MemoryBookmarkStore()
    client = quiet_client(server, bookmark_store=store)
    async with entered(client, partial(live, server)) as peer:
        for sub_id in ("a", "b"):
            await subscribed(client, peer, sub_id)
        await together(lambda: client.pause(["a", "b"]), lambda: peer.answer("subscribe"))
        await together(lambda: client.resume(["a", "b"]), lambda: peer.answer("subscribe"))
        await together(lambda: client.pause("a"), lambda: peer.answer("subscribe"))
        await lose(peer)
        again = await live(server)
        sent = [await again.answer("subscribe") for _ in range(2)]
        assert [each.sub_id for each in sent] == ["a", "b"]
        check_sent_again(sent, True, False)
        await together(lambda: client.resume("a"), lambda: again.answer("subscribe"))


@virtual
@pytest.mark.row("CC22", "SM5")
async def test_what_was_queued_before_a_replace_is_delivered_after_a_lost_connection(
    server: Server,
) -> None:
    """The next connection has the new filter: it does not bring them again."""
    store = MemoryBookmarkStore()
    client = quiet_client(server, bookmark_store=store)
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        await together(stream.open, lambda: peer.answer("subscribe"))
        await peer.publish("s", b"1", b"2", bm="7|1|")
        await wait_all_tasks_blocked()
        await together(
            lambda: client.replace("s", filter="/a = 2"), lambda: peer.answer("subscribe")
        )
        await peer.publish("s", b"3", bm="7|3|")
        await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        assert (await again.answer("subscribe")).filter == "/a = 2"
        await again.publish("s", b"3", bm="7|3|")
        for body in (b"1", b"2", b"3"):
            message = await anext(stream)
            assert message.data == body
            message.discard()
        assert store.subscription("s").undiscarded_count == 0
        assert store.subscription("s").oldest_undiscarded == 0


@virtual
@pytest.mark.row("CC23")
async def test_a_pause_whose_connection_is_lost_is_sent_again_to_the_next(server: Server) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        heartbeat=None,
        bookmark_store=MemoryBookmarkStore(),
        exit_timeout=0,
    )
    async with entered(client, partial(live, server)) as peer:
        await subscribed(client, peer, "s")

        async def serve() -> None:
            await peer.expect("subscribe", options="pause")
            peer.link.close()
            again = await live(server)
            await again.answer("subscribe")
            await again.ack(await again.expect("subscribe", options="pause", sub_id="s"))

        await together(lambda: client.pause("s"), serve)


# -- replace ----------------------------------------------------------------------------------


@virtual
@pytest.mark.row("CC22", "SM5", "SM1")
async def test_the_later_form_of_a_subscription_is_entered_again(server: Server) -> None:
    manager, got = MemorySubscriptionManager(), list[bytes]()
    client = quiet_client(server, subscription_manager=manager)
    async with entered(client, partial(live, server)) as peer:
        await together(
            lambda: client.subscribe(
                "orders",
                handler=lambda m: got.append(m.data),
                sub_id="s",
                filter="/a = 1",
                options="timestamp",
            ),
            lambda: peer.answer("subscribe"),
        )
        _, heard = await together(
            lambda: client.replace("s", filter="/a = 2"), lambda: peer.answer("subscribe")
        )
        assert (heard.topic, heard.filter, heard.sub_id) == ("orders", "/a = 2", "s")
        assert set(heard.options.split(",")) == {"timestamp", "replace"}
        await peer.publish("s", b"x")
        await wait_all_tasks_blocked()
        (entry,) = manager.entries()
        assert (entry.fields["filter"], entry.fields["opts"]) == ("/a = 2", "timestamp")
        await lose(peer)
        again = await live(server)
        heard = await again.answer("subscribe")
        assert (heard.topic, heard.filter, heard.options) == ("orders", "/a = 2", "timestamp")
        await again.publish("s", b"y")
        await wait_all_tasks_blocked()
        assert got == [b"x", b"y"]


@virtual
@pytest.mark.row("CC22", "CC23", "SM5")
async def test_what_is_paused_stays_so_when_it_is_replaced(server: Server) -> None:
    store = MemoryBookmarkStore()
    client = quiet_client(server, bookmark_store=store)
    async with entered(client, partial(live, server)) as peer:
        await subscribed(client, peer, "s")
        await together(lambda: client.pause("s"), lambda: peer.answer("subscribe"))
        await together(
            lambda: client.replace("s", options="timestamp"), lambda: peer.answer("subscribe")
        )
        await lose(peer)
        again = await live(server)
        heard = Options.parse((await again.answer("subscribe")).options)
        assert (heard.pause, heard.timestamp) == (True, True)
        assert store.subscription("s").paused


@virtual
@pytest.mark.row("BS10", "CC22", "CC23")
@pytest.mark.parametrize("options", ["pause", "conflation=1s"])
async def test_a_persisted_ack_of_what_was_replaced_with_options_is_no_recovery_point(
    server: Server, options: str
) -> None:
    async with with_subscriptions(server, "s") as (client, peer, store):
        await peer.ack(None, "completed", sub_id="s", bm="7|1|")
        await together(
            lambda: client.replace("s", options=options), lambda: peer.answer("subscribe")
        )
        await peer.ack(None, "persisted", sub_id="s", bm="7|5|")
        await wait_all_tasks_blocked()
        assert str(store.most_recent("s")) != "7|5|"


@virtual
@pytest.mark.row("CC22", "CC23")
async def test_a_refused_replacement_with_pause_leaves_a_resumed_subscription_as_it_was(
    server: Server,
) -> None:
    async with with_subscriptions(server, "s") as (client, peer, store):
        await together(
            lambda: client.replace("s", options="pause"), lambda: peer.answer("subscribe")
        )

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe"), "bad filter")

        await together(lambda: client.resume("s"), lambda: peer.answer("subscribe"))
        with pytest.raises(BadFilter):
            await together(lambda: client.replace("s", options="pause"), refuse)
        assert not store.subscription("s").paused


@virtual
@pytest.mark.row("CC17", "CC22", "CC23")
@pytest.mark.parametrize("what", ["replace", "pause"])
async def test_what_was_ended_before_there_was_a_connection_is_not_changed_any_more(
    server: Server, what: str
) -> None:
    """A server would take the replace of an unknown id for a new subscription."""
    client = HAClient(
        "ha",
        servers=[server.uri],
        heartbeat=None,
        bookmark_store=MemoryBookmarkStore(),
        exit_timeout=0,
    )

    async def change() -> None:
        with pytest.raises(UsageError, match="active"):
            await (client.pause("s") if what == "pause" else client.replace("s", filter="/a"))

    async with entered(client, partial(live, server)) as peer:
        await subscribed(client, peer, "s")
        await lose(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await wait_all_tasks_blocked()
            await client.unsubscribe("s")
            again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)
        assert "subscribe" not in {each.command for each in again.heard}


@virtual
@pytest.mark.row("CC22")
async def test_a_subscribe_with_replace_gives_the_subscription_its_new_handler(
    server: Server,
) -> None:
    first, second = list[bytes](), list[bytes]()
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe(
                "orders", handler=lambda m: first.append(m.data), sub_id="s", filter="/a = 1"
            ),
            lambda: peer.answer("subscribe"),
        )
        await peer.publish("s", b"1")
        await wait_all_tasks_blocked()
        sub_id, heard = await together(
            lambda: client.subscribe(
                "orders.*",
                handler=lambda m: second.append(m.data),
                sub_id="s",
                options=Options(replace=True),
            ),
            lambda: peer.answer("subscribe"),
        )
        assert (sub_id, heard.topic, heard.filter, heard.options) == (
            "s",
            "orders.*",
            "",
            "replace",
        )
        await peer.publish("s", b"2")
        await wait_all_tasks_blocked()
        assert (first, second) == ([b"1"], [b"2"])


@virtual
@pytest.mark.row("CC22")
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("_", range(4))  # the tasks that the answer wakes run in any order
async def test_the_messages_right_after_a_replace_go_to_its_handler(
    server: Server, _: int, *, is_late: bool
) -> None:
    first, second = list[bytes](), list[bytes]()
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        await together(
            lambda: client.subscribe("orders", handler=lambda m: first.append(m.data), sub_id="s"),
            lambda: peer.answer("subscribe"),
        )
        command = Command(
            "subscribe", topic="orders", sub_id="s", filter="/b", options="replace", timeout=1.0
        )
        async with trio.open_nursery() as nursery:

            async def replace() -> None:
                with suppress(TimedOut):
                    await client.execute_async(command, lambda m: second.append(m.data))

            nursery.start_soon(replace)
            heard = await peer.expect("subscribe", filter="/b")
            if is_late:
                await trio.sleep(2.0)
            header = {"c": "ack", "a": "processed", "status": "success", "cid": heard.command_id}
            await peer.send(encode_frame(header) + delivery("s", b"2"))
        await wait_all_tasks_blocked()
        assert (first, second) == ([], [b"2"])


@virtual
@pytest.mark.row("CC22")
async def test_a_stream_goes_on_when_it_is_replaced_and_when_that_is_refused(
    server: Server,
) -> None:
    async with Client("c", exit_timeout=0) as client:
        peer = await server.log_on(client)
        stream = client.stream("orders", sub_id="s")
        _, first = await together(stream.open, lambda: peer.answer("subscribe"))

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe"), "bad filter")

        with pytest.raises(BadFilter):
            await together(lambda: client.replace("s", filter="/a >"), refuse)
        await peer.publish("s", b"1")
        assert (await anext(stream)).data == b"1"
        command = Command("subscribe", topic="orders", sub_id="s", filter="/b", options="replace")
        _, later = await together(
            lambda: client.execute_async(command), lambda: peer.answer("subscribe")
        )
        assert later.filter == "/b"
        await peer.publish("s", b"2")
        assert (await anext(stream)).data == b"2"
        # A failure for the first command says nothing of what has replaced it.
        await peer.ack(first, status="failure", reason="late")
        await peer.publish("s", b"3")
        assert (await anext(stream)).data == b"3"
        with pytest.raises(UsageError, match=r"is a stream: change it with client\.replace"):
            await client.subscribe("orders", handler=print, sub_id="s", options="replace")
        with pytest.raises(UsageError, match="use execute_async"):
            await client.stream("orders", sub_id="s", options="replace").open()
        with pytest.raises(UsageError, match="keeps its position"):
            await client.execute_async(replace(command, bookmark=EPOCH))
        with pytest.raises(UsageError, match="no active subscription 'gone'"):
            await client.replace("gone", filter="/a")


# -- against the reference broker --------------------------------------------------------------


@pytest.mark.row("CC22", "CC23")
async def test_the_reference_broker_pauses_resumes_and_replaces() -> None:
    async with (
        running_broker() as broker,
        Client("sub", bookmark_store=MemoryBookmarkStore()) as client,
        Client("pub") as publisher,
    ):
        for each in (client, publisher):
            await each.connect(f"{broker.uris[0]}/amps/json")
            await each.logon()
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH, filter="/n < 10")
        async with stream:
            await publisher.publish("orders", b'{"n":1}')
            assert (await anext(stream)).json() == {"n": 1}
            await client.pause("s")
            await publisher.publish("orders", b'{"n":2}')
            await publisher.flush()
            await client.flush()
            await client.resume("s")
            assert (await anext(stream)).json() == {"n": 2}
            await client.replace("s", filter="/n > 10")
            for number in (3, 30):
                await publisher.publish("orders", b'{"n":%d}' % number)
            assert (await anext(stream)).json() == {"n": 30}


@pytest.mark.row("SM6", "OP6")
async def test_those_of_one_resume_share_a_replay_in_the_order_of_the_log() -> None:
    topics = ("x", "y", "z")
    arrived: list[int] = []
    all_here = trio.Event()

    def note(direction: str, header: str) -> None:
        if direction == "<" and '"c":"p"' in header:
            arrived.append(topics.index(header.split('"sids":"')[1][0]))

    def count(message: Message) -> None:
        message.discard()
        if int(message.data) == 29:
            all_here.set()

    async with (
        running_broker() as broker,
        HAClient(
            "sub",
            servers=[f"{broker.uris[0]}/amps/json"],
            bookmark_store=MemoryBookmarkStore(),
            wire_tap=note,
        ) as client,
        Client("pub") as publisher,
    ):
        await publisher.connect(f"{broker.uris[0]}/amps/json")
        await publisher.logon()

        async def publish(numbers: range) -> None:
            for number in numbers:
                await publisher.publish(topics[number % 3], b"%d" % number)
            await publisher.flush()

        await publish(range(30))
        for topic in topics:
            await client.bookmark_subscribe(
                topic, sub_id=topic, bookmark=EPOCH, handler=count, options="pause"
            )
        core = client._core
        assert core.connection is not None
        core.connection.link.close()
        await core.wait_lost()
        await client.flush()
        await client.resume(topics)
        with trio.fail_after(60):
            await all_here.wait()
        assert arrived == [0, 1, 2] * 10
