"""A loss of every kind in every state of the recovery: what is tried next, when, and what survives.

The client is live with A and loses that link. Its next attempt, at A again, gets to one state of
the plan, and there A fails. After that everything has to be as if nothing had happened: publishes
replayed in order, subscriptions entered again from the right place, each message handed out once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import HAClient
from haclient.protocol.messages import Message
from haclient.session.recovery import Recovery
from haclient.transport.reconnector import MAX_RESUBSCRIBING
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import BookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.custom import DictBookmarkStore
from support.peer import Peer, Server, answering
from support.recovery import (
    CONNECT_TIMEOUT_S,
    HEARTBEAT_S,
    Recorder,
    World,
    drop,
    entered,
    live,
    lose,
    not_answering,
    quiet_client,
    running_tasks,
    until_stable,
)

pytestmark = in_virtual_time

COMMANDS = {
    Recovery.LOGGING_ON: "logon",
    Recovery.HEARTBEAT: "heartbeat",
    Recovery.REPLAYING: "publish",
    Recovery.RESUBSCRIBING: "subscribe",
}


# -- the ways to fail: what the server does with the client's next frame --------------------------


async def finish(peer: Peer) -> None:
    """FIN: everything was read, then the end."""
    await peer.hear()
    peer.link.close()


async def reset(peer: Peer) -> None:
    """RST: a socket that is closed with bytes unread."""
    await peer.link.wait_readable()
    peer.link.close()


async def fall_silent(peer: Peer) -> None:
    """It goes on reading and says nothing."""
    await peer.listen_until_end()


async def stand_still(_: Peer) -> None:
    """Half open: it neither reads nor speaks, and nobody is told."""


async def send_garbage(peer: Peer) -> None:
    await peer.hear()
    await peer.send(b"\xff" * 64)


async def send_no_frame(peer: Peer) -> None:
    await peer.hear()
    await peer.send(b"\0\0\0\x04abcd")


async def say_something_else(peer: Peer) -> None:
    """Acks that confirm nothing: of another kind, and for another command."""
    message = await peer.hear()
    await peer.ack(message, "received")
    await peer.ack(None, cid="of nobody")
    await peer.listen_until_end()


async def refuse(peer: Peer) -> None:
    await peer.refuse(await peer.hear(), "not today")
    await peer.listen_until_end()


Failing = Callable[[Peer], Awaitable[None]]
AT_ONCE: dict[str, Failing] = {
    "fin": finish,
    "rst": reset,
    "garbage": send_garbage,
    "no frame": send_no_frame,
}
MUTE: dict[str, Failing] = {
    "silence": fall_silent,
    "half open": stand_still,
    "another ack": say_something_else,
}
KINDS = {**AT_ONCE, **MUTE, "refused": refuse}
CASES = [
    (state, kind)
    for state in COMMANDS
    for kind in KINDS
    if (state, kind) != (Recovery.REPLAYING, "refused")  # then it is no loss: see PS6
]


@pytest.mark.row("HA3", "HA4", "HA5", "HA7", "HA22", "HA23", "HB10", "PS7", "SM11")
@pytest.mark.parametrize(("state", "kind"), CASES)
async def test_a_server_that_fails_in_any_state_is_left_for_the_next_one(
    server: Server, other: Server, state: Recovery, kind: str
) -> None:
    world, before = World(server.uri, other.uri), running_tasks()
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        world.seen.clear()
        await lose(peer)
        failing = await server.accept()
        started = trio.current_time()
        await world.up_to(failing, state)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(KINDS[kind], failing)
            good = await other.accept()
            await world.recover(good)
            nursery.cancel_scope.cancel()
        took = trio.current_time() - started
        # A server that refuses one subscription is waited for until it has answered the others.
        is_awaited = kind in MUTE or (state, kind) == (Recovery.RESUBSCRIBING, "refused")
        assert took == pytest.approx(CONNECT_TIMEOUT_S if is_awaited else 0, abs=0.01)
        reached = [] if state is Recovery.LOGGING_ON else ["success A"]
        assert [each.split(":")[0] for each in world.seen] == [
            *("uri A", "authenticator A", "delay 0.0", *reached, "failure A"),
            *("uri B", "authenticator B", "delay 0.0", "success B"),
        ]
        assert len(world.lost) == 2
    assert running_tasks() == before


@pytest.mark.row("HA7", "HA20", "HB10", "SM11")
@pytest.mark.parametrize("kind", ["fin", "rst", "garbage", "no frame", "silence", "half open"])
async def test_a_lost_live_link_is_made_again_with_the_same_server(
    server: Server, other: Server, kind: str
) -> None:
    world, before = World(server.uri, other.uri), running_tasks()
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        await until_stable(peer)
        started = trio.current_time()
        world.seen.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(KINDS[kind], peer)
            await wait_all_tasks_blocked()
            world.numbers.append(await world.client.publish("orders", b"new") or 0)
            good = await server.accept()
            await world.recover(good)
            nursery.cancel_scope.cancel()
        took = trio.current_time() - started
        assert took == pytest.approx(2 * HEARTBEAT_S if kind in MUTE else 0, abs=0.01)
        assert world.seen == ["uri A", "authenticator A", "delay 0.0", "success A"]
        assert len(world.lost) == 1
    assert running_tasks() == before


@pytest.mark.row("HA22", "HA23")
@pytest.mark.parametrize("ending", [b"", b"\xff" * 64, b"\0\0\0\x04abcd"])
async def test_a_loss_right_behind_the_answer_to_a_logon_is_a_loss(
    server: Server, other: Server, ending: bytes
) -> None:
    """Nobody waits for anything when the link ends: the recovery has to notice by itself."""
    world = World(server.uri, other.uri)
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        await lose(peer)
        failing = await server.accept()
        await failing.log_on(seen=world.numbers[0])
        await failing.send(ending)
        failing.link.close()
        await world.recover(await other.accept())


@pytest.mark.row("PS9", "HA23")
async def test_a_server_with_a_gap_is_left_in_the_midst_of_the_recovery(
    server: Server, other: Server
) -> None:
    world = World(server.uri, other.uri)
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        world.seen.clear()
        await lose(peer)
        forgetful = await server.accept()
        await forgetful.log_on(seen=0)
        await forgetful.expect_end()
        await world.recover(await other.accept())
        told = [each for each in world.seen if each.startswith(("failure", "success"))]
        assert told == ["success A", "failure A: PublishGap", "success B"]
        assert [type(each).__name__ for each in world.lost] == ["DisconnectedError", "PublishGap"]


@pytest.mark.row("HA4", "HA23")
async def test_a_server_that_is_gone_is_left_while_it_is_dialled(
    server: Server, other: Server
) -> None:
    world = World(server.uri, other.uri)
    async with entered(world.client, partial(world.first, server)) as peer:
        await world.work(peer)
        server.stop_listening()
        world.seen.clear()
        await lose(peer)
        await world.recover(await other.accept())
        assert [each.split(":")[0] for each in world.seen] == [
            *("uri A", "authenticator A", "delay 0.0", "failure A"),
            *("uri B", "authenticator B", "delay 0.0", "success B"),
        ]


@pytest.mark.row("HA4", "HA23", "AT6")
async def test_a_dial_that_nobody_answers_is_left_in_time(server: Server) -> None:
    seen: list[str] = []
    with not_answering() as uri:
        client = HAClient(
            "ha",
            server_chooser=Recorder({"mute": uri, "A": server.uri}, seen),
            heartbeat=None,
            connect_timeout=CONNECT_TIMEOUT_S,
        )
        started = trio.current_time()
        async with entered(client, partial(live, server)):
            assert trio.current_time() - started == pytest.approx(CONNECT_TIMEOUT_S, abs=0.01)
            assert "failure mute: TimedOut" in seen


@pytest.mark.row("HA22", "HA23")
async def test_fifty_losses_leave_no_task_and_lose_no_message(server: Server) -> None:
    got: list[bytes] = []

    def handle(message: Message) -> None:
        got.append(message.data)
        message.discard()

    store = MemoryPublishStore()
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=store,
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=HEARTBEAT_S,
        connect_timeout=CONNECT_TIMEOUT_S,
    )
    before, counts, sequences = running_tasks(), set[int](), list[int]()

    async def serve() -> Peer:
        peer = await server.accept()
        await peer.log_on(seen=sequences[-1] if sequences else 0)
        await peer.answer("heartbeat")
        return peer

    async with entered(client, serve) as first:
        peer = first
        async with answering(peer):
            await client.bookmark_subscribe("orders", sub_id="b", handler=handle)
        kinds = [finish, reset, send_garbage, fall_silent, stand_still]
        for number in range(1, 51):
            await wait_all_tasks_blocked()
            counts.add(len(running_tasks()))
            await peer.publish("b", b"%d" % number, bm=f"7|{number}|")
            await wait_all_tasks_blocked()
            await client.publish("orders", b"%d" % number)
            await kinds[number % len(kinds)](peer)
            peer = await server.accept()
            await peer.log_on(seen=sequences[-1] if sequences else 0)
            await peer.answer("heartbeat")
            published = await peer.expect("publish")
            assert published.data == b"%d" % number
            sequences.append(published.sequence or 0)
            await peer.answer("subscribe")
            await peer.persisted(sequences[-1])
        async with answering(peer):
            await client.publish_flush(timeout=1)
    assert got == [b"%d" % number for number in range(1, 51)]
    assert sequences == sorted(set(sequences))
    assert len(counts) == 1
    assert running_tasks() == before


@pytest.mark.row("BS9", "HA22")
@pytest.mark.parametrize("make", [MemoryBookmarkStore, DictBookmarkStore])
async def test_what_is_queued_when_a_link_is_lost_comes_again_in_full_and_nothing_else(
    server: Server, make: Callable[[], BookmarkStore]
) -> None:
    """Whatever the store; and what is taken again and discarded is finished for good."""
    client, taken = quiet_client(server, bookmark_store=make()), list[bytes]()
    async with entered(client, partial(live, server)) as first:
        peer, stream = first, client.bookmark_stream("orders", sub_id="s")
        async with answering(peer):
            await stream.open()
        await peer.publish("s", b"1", bm="7|1|")
        held = await anext(stream)  # and not discarded
        for _ in range(3):
            await peer.publish("s", b"1", bm="7|1|")
            for number in range(2, 5):  # in turn: whoever takes one has all that came with it
                await wait_all_tasks_blocked()
                await peer.publish("s", b"%d" % number, bm=f"7|{number}|")
            with await anext(stream) as message:
                taken.append(message.data)
            await lose(peer)
            peer = await live(server)
            assert (await peer.answer("subscribe")).bookmark == "0"
        held.discard()
        await peer.publish("s", b"1", b"2", b"3", b"4", b"5", bm="7|1|")
        assert (await anext(stream)).data == b"5"
    assert taken == [b"2", b"3", b"4"]


@pytest.mark.row("HA20")
async def test_when_it_is_live_again_it_is_so_for_everybody(server: Server) -> None:
    """A loss that comes before anybody looks must not leave a client that thinks it is live."""
    client = HAClient("ha", servers=[server.uri], heartbeat=None)

    async def serve() -> Peer:
        lost = await server.accept()
        await lost.log_on()
        lost.link.close()
        peer = await server.accept()
        await peer.log_on()
        return peer

    async with entered(client, serve) as peer, answering(peer):
        await client.flush(timeout=1)
        await client.subscribe("orders", handler=lambda _: None)


async def test_a_subscribe_that_was_cut_short_gets_its_messages_after_all(
    server: Server,
) -> None:
    """The queue of a subscription that has yet to be opened outlives the connection too."""
    got: list[bytes] = []
    client = HAClient("ha", servers=[server.uri], heartbeat=None)

    async def serve() -> Peer:
        peer = await server.accept()
        await peer.log_on()
        return peer

    async with entered(client, serve) as peer:

        async def cut_twice() -> None:
            await peer.expect("subscribe")
            peer.link.close()  # before the answer
            again = await serve()
            await again.answer("subscribe")
            await again.publish("s", b"too early")
            again.link.close()  # right behind the answer
            last = await serve()
            await last.answer("subscribe")
            await last.publish("s", b"1", b"2")
            async with answering(last):
                await client.flush(timeout=1)
                await wait_all_tasks_blocked()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cut_twice)
            await client.subscribe(
                "orders", sub_id="s", handler=lambda message: got.append(message.data)
            )
        assert got[-2:] == [b"1", b"2"]
        assert client.state.is_logged_on


@pytest.mark.row("HB7", "SM11")
async def test_a_slow_handler_does_not_make_a_recovery_fail(server: Server) -> None:
    """The answer to one re-entry stands behind what the handler of another has yet to take."""
    seen: list[str] = []
    slow_s = 20 * CONNECT_TIMEOUT_S

    async def handle(_: Message) -> None:
        await trio.sleep(slow_s)

    client = HAClient(
        "ha",
        server_chooser=Recorder({"A": server.uri}, seen),
        heartbeat=HEARTBEAT_S,
        connect_timeout=CONNECT_TIMEOUT_S,
        max_queued_bytes=1000,
    )

    async def serve() -> Peer:
        peer = await server.accept()
        await peer.log_on()
        await peer.answer("heartbeat")
        return peer

    async with entered(client, serve) as peer:
        async with answering(peer):
            await client.subscribe("orders", sub_id="slow", handler=handle)
            await client.subscribe("orders", sub_id="other", handler=lambda _: None)
        await lose(peer)
        seen.clear()
        again = await serve()
        await again.answer("subscribe")
        await again.publish("slow", b"first")
        await wait_all_tasks_blocked()
        await again.publish("slow", bytes(2000))
        await wait_all_tasks_blocked()
        await again.answer("subscribe")
        async with answering(again):
            await client.flush(timeout=2 * slow_s)
        assert [each for each in seen if each.startswith(("failure", "success"))] == ["success A"]
        await client.disconnect()


@pytest.mark.row("MS3")
@pytest.mark.parametrize("kind", ["refused", "fin"])
async def test_a_plain_stream_keeps_what_had_arrived_when_an_attempt_to_resubscribe_fails(
    server: Server, kind: str
) -> None:
    client = quiet_client(server)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            stream = await client.stream("prices", sub_id="p", resumes=True).open()
            await peer.publish("p", b"1", b"2")
            await wait_all_tasks_blocked()
        await drop(peer)
        failing = await live(server)
        await KINDS[kind](failing)
        again = await live(server)
        await again.answer("subscribe")
        await again.publish("p", b"4")
        found = [((await anext(stream)).data, stream.gaps > 0) for _ in range(3)]
        assert found == [(b"1", False), (b"2", False), (b"4", True)]


async def test_a_subscription_that_ends_while_others_are_sent_again_leaves_its_id_free(
    server: Server,
) -> None:
    client = quiet_client(server)
    last = f"p{MAX_RESUBSCRIBING}"
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for number in range(MAX_RESUBSCRIBING + 1):
                await client.subscribe("prices", sub_id=f"p{number}", handler=lambda _: None)
        await drop(peer)
        again = await live(server)
        sent = [await again.expect("subscribe") for _ in range(MAX_RESUBSCRIBING)]
        await client.unsubscribe(last)  # which waits for its turn
        for subscribe in sent:
            await again.ack(subscribe)
        async with answering(again):
            await client.subscribe("prices", sub_id=last, handler=lambda _: None)


@pytest.mark.parametrize("steps", range(12))
async def test_a_connection_that_is_lost_while_subscriptions_are_sent_again_leaves_none_active(
    server: Server, steps: int
) -> None:
    ids = [f"p{number}" for number in range(5)]
    client = quiet_client(server)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for each in ids:
                await client.subscribe("prices", sub_id=each, handler=lambda _: None)
        await drop(peer)
        failing = await server.accept()
        await failing.log_on()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await drop(failing)
        again = await live(server)
        assert [(await again.answer("subscribe")).sub_id for _ in ids] == ids
