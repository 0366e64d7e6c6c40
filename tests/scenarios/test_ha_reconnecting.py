"""HAClient against scripted servers: the order of a reconnect, and what survives it."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.client import Client, HAClient
from haclient.errors import (
    AuthenticationError,
    DisconnectedError,
    HAClientError,
    NameInUse,
    NotEntitled,
    ReconnectGaveUp,
    StoreError,
    SubscriptionStalled,
    UsageError,
)
from haclient.events import Event, SubscriptionEnded, SubscriptionSilent
from haclient.options import OnResubscribeFailure
from haclient.protocol.commands import Command
from haclient.protocol.messages import Message
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient.streams import MessageStream
from haclient.subscription_manager import Entry, MemorySubscriptionManager
from haclient_stores.bookmark import EPOCH, Timestamp
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.listening import both, on_losses, on_states
from support.peer import Peer, Server, answering, together
from support.recovery import (
    RecordedDelay,
    Recorder,
    drop,
    entered,
    live,
    lose,
    quiet_client,
    until_stable,
)

pytestmark = in_virtual_time


@pytest.mark.row("HA3", "HA20", "HB6", "PS7", "SC2", "SC3", "DS1", "SM2")
async def test_the_order_of_a_reconnect_event_by_event(server: Server) -> None:
    seen: list[str] = []
    states: list[ConnectionState] = []
    store = MemoryPublishStore()
    client = HAClient(
        "ha",
        server_chooser=Recorder({"A": server.uri}, seen),
        delay_strategy=RecordedDelay(seen),
        publish_store=store,
        heartbeat=5.0,
        on_event=on_states(states.append),
    )

    async def serve_first() -> Peer:
        peer = await live(server)
        await peer.answer("heartbeat")
        return peer

    async with entered(client, serve_first) as peer:
        async with answering(peer):
            await client.subscribe("orders", handler=lambda _: None, sub_id="s")
        await wait_all_tasks_blocked()
        expected = ["uri A", "authenticator A", "delay 0.0", "success A"]
        reached = ["connected", "logged_on", "heartbeat_initiated", "publish_replayed"]
        reached.append("resubscribed")
        assert (seen, states) == (expected, reached)
        seen.clear()
        states.clear()
        await lose(peer)
        stored = await client.publish("orders", b"while away")
        again = await server.accept()
        await again.log_on()
        await again.answer("heartbeat")
        published = await again.expect("publish")
        assert (published.data, published.sequence) == (b"while away", stored)
        assert (await again.answer("subscribe")).sub_id == "s"
        await wait_all_tasks_blocked()
        assert (seen, states) == (expected, ["disconnected", "reconnecting", *reached])
        async with answering(again):
            await again.persisted(published.sequence or 0)
            await client.flush(timeout=1)


@pytest.mark.row("HA2", "HA4", "HA5", "HA7", "DS4")
async def test_failures_go_to_the_next_server_and_a_lost_live_link_to_the_same_one(
    server: Server, other: Server
) -> None:
    seen: list[str] = []
    dead = "unix://localhost:0/amps/json?path=/nonexistent/amps"
    uris = {"dead": dead, "A": server.uri, "B": other.uri}
    client = HAClient("ha", server_chooser=Recorder(uris, seen), heartbeat=None)

    async def serve() -> Peer:
        refused = await server.accept()
        logon = await refused.expect("logon")
        await refused.refuse(logon, "auth failure")
        return await live(other)

    async with entered(client, serve) as peer:
        told = [each for each in seen if each.startswith(("failure", "success"))]
        assert told == [
            "failure dead: ConnectionRefused",
            "failure A: AuthenticationError",
            "success B",
        ]
        seen.clear()
        await lose(peer)
        await live(other)
        await wait_all_tasks_blocked()
        assert seen == ["uri B", "authenticator B", "success B"]
        await client.disconnect()


@pytest.mark.row("HA6", "SC4")
async def test_an_empty_uri_ends_it_with_the_words_of_the_chooser() -> None:
    with pytest.raises(ReconnectGaveUp, match="no servers configured"):
        async with HAClient("ha", server_chooser=DefaultServerChooser()):
            pytest.fail("never entered")


@pytest.mark.row("HA14", "DS5")
async def test_a_strategy_that_has_had_enough_ends_it() -> None:
    started = trio.current_time()
    strategy = FixedDelayStrategy(1.0, give_up_after=5.0)
    with pytest.raises(ReconnectGaveUp, match="Connection refused") as gave_up:
        async with HAClient("ha", servers=["tcp://127.0.0.1:9/amps/json"], delay_strategy=strategy):
            pytest.fail("never entered")
    assert gave_up.value.attempts == 6
    assert trio.current_time() - started == pytest.approx(5.0, abs=0.1)


@pytest.mark.row("HA14", "CC37")
async def test_who_waits_for_acks_when_it_ends_adds_no_second_error(server: Server) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        publish_store=MemoryPublishStore(),
        delay_strategy=FixedDelayStrategy(1.0, give_up_after=2.0),
        heartbeat=None,
    )
    with pytest.raises(ReconnectGaveUp):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            await client.publish("orders", b"x")
            await peer.expect("publish")
            server.stop_listening()
            await lose(peer)
            await client.publish_flush(timeout=None)


@pytest.mark.row("HA27")
async def test_a_name_that_somebody_else_has_is_not_fought_for(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    with pytest.raises(NameInUse):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server)) as peer:
            await until_stable(peer)
            await peer.ack(None, status="failure", reason="name in use")
            await drop(peer)
            await trio.sleep_forever()


@pytest.mark.row("HA28")
async def test_who_publishes_under_a_name_of_which_more_was_seen_than_it_sent_ends(
    server: Server,
) -> None:
    store = MemoryPublishStore()
    client = HAClient("ha", servers=[server.uri], publish_store=store, heartbeat=None)
    with pytest.raises(NameInUse, match="not persisted: 1;"):  # noqa: PT012  # the error leaves the block itself
        async with entered(client, partial(live, server, seen=7)) as peer:
            number = await client.publish("orders", b"mine")
            assert number is not None
            await lose(peer)
            await live(server, seen=number + 5)  # closed without a word, and used by another
            await trio.sleep_forever()
    assert store.unpersisted_count == 1  # not trimmed to what the other one has published


@pytest.mark.row("HA28")
async def test_what_a_server_has_seen_of_an_earlier_process_is_nobody_elses(
    server: Server, other: Server
) -> None:
    store = MemoryPublishStore()
    servers = [server.uri, other.uri]
    client = HAClient("ha", servers=servers, publish_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        number = await client.publish("orders", b"1")
        assert number is not None
        server.stop_listening()
        await lose(peer)
        again = await live(other, seen=number + 1000)
        await wait_all_tasks_blocked()
        assert client.state is ConnectionState.RESUBSCRIBED
        async with answering(again):
            await client.publish("orders", b"2")
            await client.publish_flush(timeout=1)


@pytest.mark.row("HA28")
async def test_connections_that_are_closed_soon_after_each_other_raise_a_suspicion(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        for _ in range(5):
            await lose(peer)
            peer = await live(server)  # noqa: PLW2901  # the next connection
            await wait_all_tasks_blocked()
    said = [each.getMessage() for each in caplog.records if "same name" in each.getMessage()]
    assert len(said) == 1


@pytest.mark.row("HA17", "PS7")
async def test_what_was_not_persisted_is_replayed_before_anything_new(server: Server) -> None:
    store = MemoryPublishStore()
    client = HAClient("ha", servers=[server.uri], publish_store=store, heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        numbers = [await client.publish("orders", b"%d" % n) for n in range(4)]
        first = numbers[0]
        assert first is not None
        for _ in range(4):
            await peer.expect("publish")
        await lose(peer)
        await client.publish("orders", b"new")
        again = await live(server, seen=first + 2, persisted=first)
        heard = [(await again.expect("publish")).data for _ in range(4)]
        assert heard == [b"1", b"2", b"3", b"new"]
        async with answering(again):
            await again.persisted(store.last_sequence)
            await client.publish_flush(timeout=1)
            await client.flush(timeout=1)


@pytest.mark.row("HA17", "HA18")
async def test_without_a_store_a_publish_while_disconnected_is_an_error(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        with pytest.raises(DisconnectedError):
            await client.publish("orders", b"x")
        assert not client.state.is_logged_on


@pytest.mark.row("CC9", "CC10")
async def test_without_a_store_what_is_lost_with_its_connection_is_reported_once(
    server: Server,
) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as first:
        peer = first
        for wait in (client.publish_flush, client.flush):
            persisted = await client.publish("orders", b"1")
            lost = [await client.publish("orders", b"2") for _ in range(2)]
            await peer.persisted(persisted)
            await wait_all_tasks_blocked()
            await lose(peer)
            peer = await live(server)
            async with answering(peer):
                with pytest.raises(
                    DisconnectedError, match="flush: 2 publishes were not persisted"
                ):
                    await wait(timeout=1)
                await wait(timeout=1)
                await client.wait_persisted(persisted, timeout=1)
                for sequence in lost:
                    with pytest.raises(DisconnectedError, match=f"publish {sequence} was lost"):
                        await client.wait_persisted(sequence, timeout=1)
            assert [message.command for message in peer.heard].count("publish") == 0
        await client.disconnect()


@pytest.mark.row("CC9")
async def test_without_a_store_a_flush_that_waits_ends_with_its_connection(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None, exit_timeout=0)
    async with entered(client, partial(live, server)) as peer:
        await client.publish("orders", b"1")

        async def cut() -> None:
            await peer.expect("publish")
            await peer.expect("flush")
            await lose(peer)

        with pytest.raises(DisconnectedError, match="publish_flush: 1 publishes were not persis"):
            await together(lambda: client.publish_flush(timeout=60), cut)
        await client.publish_flush(timeout=1)  # nothing has been published since
        await live(server)
        await client.disconnect()


@pytest.mark.row("SM1", "SM2", "SM11")
async def test_each_subscription_is_entered_again_with_all_that_it_was_submitted_with(
    server: Server,
) -> None:
    manager = MemorySubscriptionManager()
    client = quiet_client(server, subscription_manager=manager)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.subscribe(
                "orders", filter="/px > 10", options="conflation=1s", handler=print, sub_id="f"
            )
            await client.sow_and_subscribe(
                "prices", filter="/px < 9", batch_size=7, handler=print, sub_id="q"
            )
            await peer.publish("f", b"data that nobody remembers")
            await wait_all_tasks_blocked()
        first = [message for message in peer.heard if message.command != "logon"]
        kept = [(entry.sub_id, entry.fields["filter"], entry.body) for entry in manager.entries()]
        assert kept == [("f", "/px > 10", b""), ("q", "/px < 9", b"")]
        assert "nobody remembers" not in str(list(manager.entries()))
        await lose(peer)
        again = await live(server)
        for message in first:
            repeated = await again.answer(message.command)
            for name in ("topic", "filter", "options", "sub_id", "query_id", "batch_size"):
                assert getattr(repeated, name) == getattr(message, name), name


@pytest.mark.row("CC4", "HA16")
async def test_every_logon_has_the_options_and_the_correlation_id(server: Server) -> None:
    client = HAClient(
        "ha", servers=[server.uri], heartbeat=None, logon_correlation_id="abc", exit_timeout=0
    )
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        await live(server)
    for each in server.peers:
        logon = each.heard[0]
        assert (logon.options, logon.correlation_id) == ("ack_conflation=100ms", "abc")


@pytest.mark.row("MS3", "SM4", "BS9")
async def test_a_bookmark_stream_continues_and_shows_nothing_twice(server: Server) -> None:
    client = HAClient(
        "ha", servers=[server.uri], bookmark_store=MemoryBookmarkStore(), heartbeat=None
    )
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
        async with answering(peer):
            await stream.open()
            await peer.publish("s", b"1", b"2", bm="7|1|")
            finished, in_hand = [await anext(stream) for _ in range(2)]
            finished.discard()
            await peer.publish("s", b"3", bm="7|3|")  # queued, and never taken
            await peer.ack(None, "persisted", sub_id="s", bm="7|1|")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        async with answering(again):
            await wait_all_tasks_blocked()
            await again.publish("s", b"2", b"3", b"4", bm="7|2|")
            assert [(await anext(stream)).data for _ in range(2)] == [b"3", b"4"]
            assert stream.gaps == 0
            in_hand.discard()
            await stream.aclose()
            await client.flush(timeout=1)


async def with_one_discarded(client: HAClient, peer: Peer) -> MessageStream:
    """The stream `s` from the start; its first message is discarded and persisted."""
    stream = client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH)
    async with answering(peer):
        await stream.open()
        await peer.ack(None, "completed", sub_id="s")
        await peer.publish("s", b"1", bm="7|1|")
        (await anext(stream)).discard()
        await peer.ack(None, "persisted", sub_id="s", bm="7|1|")
        await wait_all_tasks_blocked()
    return stream


@pytest.mark.row("SM2", "SM4", "BS9")
async def test_on_another_server_the_replay_begins_a_little_before_the_loss(
    server: Server, other: Server
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri, other.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        connect_timeout=1.0,
    )
    async with entered(client, partial(live, server)) as peer:
        stream = await with_one_discarded(client, peer)
        await lose(peer)
        same = await live(server)
        resumed = await same.expect("subscribe")
        assert resumed.bookmark == "7|1|"
        assert resumed.options == "bookmark_not_found=epoch"
        await drop(same)  # before it answered: that is a failure of this server
        moved = await live(other)
        command = await moved.expect("subscribe")
        recovery_point, anchor = command.bookmark.split(",")
        assert recovery_point == "7|1|"
        assert anchor.startswith("20")
        await moved.refuse(command, "invalid bookmark")  # a server that takes no mixture
        assert (await moved.answer("subscribe")).bookmark == "7|1|"
        async with answering(moved):
            await moved.publish("s", b"1", b"2", bm="7|1|")
            assert (await anext(stream)).data == b"2"
            await stream.aclose()
            await client.flush(timeout=1)


@pytest.mark.row("SM7", "SM11")
async def test_subscriptions_are_entered_again_in_order_but_for_those_that_were_ended(
    server: Server,
) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            for sub_id in ("c", "a", "b"):
                await client.subscribe("orders", sub_id=sub_id, handler=lambda _: None)
            await client.unsubscribe("a")
        await lose(peer)
        await client.unsubscribe("b")  # while there is no connection
        again = await live(server)
        assert (await again.answer("subscribe")).sub_id == "c"
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("SM3")
async def test_a_query_with_a_subscription_runs_again_as_a_whole(server: Server) -> None:
    got: list[str] = []

    def remember(message: Message) -> None:
        got.append(message.command)

    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.sow_and_subscribe(
                "orders", handler=remember, sub_id="q", options="replace"
            )
        await lose(peer)
        again = await live(server)
        command = await again.answer("sow_and_subscribe")
        assert (command.query_id, command.options) == ("q", "")
        await again.records(command, b"1")
        await wait_all_tasks_blocked()
        assert got == ["group_begin", "sow", "group_end"]
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("MS2")
async def test_a_plain_stream_raises_when_its_connection_is_lost(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        stream = client.stream("orders", sub_id="s")
        async with answering(peer):
            await stream.open()
            await peer.publish("s", b"a")
            await wait_all_tasks_blocked()
        await lose(peer)
        assert (await anext(stream)).data == b"a"
        with pytest.raises(DisconnectedError, match="open it again, open it with resumes=True"):
            await anext(stream)
        assert isinstance(stream.end_reason, DisconnectedError)
        again = await live(server)
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("CC19")
@pytest.mark.parametrize("kind", ["subscribe", "delta_subscribe", "sow_and_subscribe"])
async def test_a_command_that_does_not_resubscribe_ends_with_its_connection(
    server: Server, kind: str
) -> None:
    got: list[bytes] = []
    client = HAClient("ha", servers=[server.uri], heartbeat=None)

    def served() -> list[str]:
        return sorted(client._subscriber.logs._served)

    async with entered(client, partial(live, server)) as peer:
        once = Command(kind, topic="orders", sub_id="once")
        lasting = Command(kind, topic="orders", sub_id="lasting")
        async with answering(peer):
            await client.execute_async(
                once, lambda message: got.append(message.data), resubscribes=False
            )
            await client.execute_async(lasting, lambda _: None)
            await peer.publish("once", b"a")
            await wait_all_tasks_blocked()
        await lose(peer)
        again = await live(server)
        assert (await again.answer(kind)).sub_id == "lasting"
        await again.publish("once", b"nobody asked")
        await wait_all_tasks_blocked()
        assert [body for body in got if body] == [b"a"]
        assert served() == ["lasting"]  # the other handler's task has ended
        async with answering(again):  # and nothing else was sent again: its id is free
            await client.execute_async(once, lambda _: None)
        assert served() == ["lasting", "once"]


@pytest.mark.row("MS3", "SM2")
async def test_a_plain_stream_that_resumes_goes_on_and_marks_the_gap(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        stream = client.stream("orders", sub_id="s", filter="/a > 1", resumes=True)
        async with answering(peer):
            await stream.open()
            await peer.publish("s", b"a", b"b")
            await wait_all_tasks_blocked()
        await lose(peer)

        async def serve() -> None:
            again = await live(server)
            await again.ack(await again.expect("subscribe", sub_id="s", filter="/a > 1"))
            await again.publish("s", b"c")

        found: list[tuple[bytes, int]] = []

        async def read() -> None:
            while len(found) < 3:
                found.append(((await anext(stream)).data, stream.gaps))

        await together(read, serve)
        assert found == [(b"a", 0), (b"b", 0), (b"c", 1)]


@pytest.mark.row("MS3", "SM3")
async def test_a_query_that_resumes_comes_as_a_whole_again(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)

    async def serve(peer: Peer, *bodies: bytes) -> None:
        await peer.records(await peer.answer("sow_and_subscribe"), *bodies)

    async with entered(client, partial(live, server)) as peer:
        stream = client.sow_and_stream("orders", sub_id="s", resumes=True)
        await together(stream.open, lambda: serve(peer, b"1", b"2"))
        first = await anext(stream)
        await wait_all_tasks_blocked()
        await lose(peer)
        await serve(await live(server), b"1", b"3")
        rest = [(await anext(stream)).data for _ in range(2)]
        assert (first.data, rest, stream.gaps) == (b"1", [b"1", b"3"], 1)


async def test_resuming_needs_a_client_that_reconnects() -> None:
    for stream in (Client("c").stream, Client("c").sow_and_stream):
        with pytest.raises(UsageError, match="resumes=True needs an HAClient"):
            stream("orders", resumes=True)


@pytest.mark.row("SM8", "CC37", "OB1")
@pytest.mark.parametrize("policy", ["fail", "drop"])
async def test_a_handlers_subscription_that_the_server_ends_is_not_entered_again(
    server: Server, policy: OnResubscribeFailure, caplog: pytest.LogCaptureFixture
) -> None:
    client = HAClient(
        "ha", servers=[server.uri], heartbeat=None, on_resubscribe_failure=policy, exit_timeout=0
    )
    events: list[Event] = []
    client.add_event_listener(events.append)

    async def run() -> None:
        async with entered(client, partial(live, server)) as peer:
            _, sent = await together(
                lambda: client.subscribe("orders", handler=print, sub_id="s"),
                lambda: peer.answer("subscribe"),
            )
            await peer.ack(sent, status="failure", reason="not entitled")
            await wait_all_tasks_blocked()
            await lose(peer)
            again = await live(server)
            async with answering(again):
                await client.flush()
            assert [message.command for message in again.heard] == ["logon", "flush"]

    if policy == "fail":
        with pytest.raises(NotEntitled):
            await run()
    else:
        await run()
    assert "the server has ended subscription 's': not entitled" in caplog.text
    ends = [each for each in events if isinstance(each, SubscriptionEnded)]
    assert [(each.sub_id, type(each.error)) for each in ends] == [("s", NotEntitled)]


async def test_a_command_waits_until_there_is_a_connection(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)

        async def serve() -> Peer:
            lost = await live(server)
            await lost.expect("subscribe")
            lost.link.close()  # and once more, in the middle of the command
            found = await live(server)
            await found.answer("subscribe")
            return found

        sub_id, again = await together(
            lambda: client.subscribe("orders", handler=lambda _: None, sub_id="s"), serve
        )
        assert sub_id == "s"
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("HA8")
async def test_disconnect_stops_a_recovery_at_once(server: Server) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        delay_strategy=FixedDelayStrategy(1000.0),
        heartbeat=None,
    )
    async with entered(client, partial(live, server)) as peer:
        await lose(peer)
        refused = await server.accept()
        await lose(refused)
        started = trio.current_time()
        await client.disconnect()
        with pytest.raises(DisconnectedError, match="on purpose"):
            await client.flush(timeout=5)
        assert trio.current_time() == started


@pytest.mark.row("CC11")
async def test_a_refusal_in_the_words_of_a_logon_is_an_answer_all_the_same(server: Server) -> None:
    client = HAClient("ha", servers=[server.uri], heartbeat=None)
    async with entered(client, partial(live, server)) as peer:

        async def refuse() -> None:
            await peer.refuse(await peer.expect("subscribe"), "auth failure")

        with pytest.raises(AuthenticationError):
            await together(lambda: client.subscribe("orders", handler=lambda _: None), refuse)


@pytest.mark.row("HA9")
def test_what_it_does_by_itself_is_not_among_its_methods() -> None:
    assert not {"connect", "logon", "set_heartbeat"} & set(dir(HAClient))


@pytest.mark.row("HA12")
def test_servers_or_a_chooser_and_known_words() -> None:
    with pytest.raises(UsageError, match="either servers"):
        HAClient("ha")
    with pytest.raises(UsageError, match="either servers"):
        HAClient("ha", servers=["tcp://a:1/amps"], server_chooser=DefaultServerChooser())
    with pytest.raises(UsageError, match="on_publish_gap"):
        HAClient("ha", servers=["tcp://a:1/amps"], on_publish_gap="maybe")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.row("HA20", "HB10")
async def test_a_half_open_link_is_noticed_and_left_within_the_heartbeat_bound(
    server: Server,
) -> None:
    lost: list[HAClientError] = []
    states: list[ConnectionState] = []
    client = HAClient(
        "ha",
        servers=[server.uri],
        heartbeat=2.0,
        on_event=both(on_losses(lost.append), on_states(states.append)),
    )

    async def serve() -> Peer:
        peer = await live(server)
        await peer.answer("heartbeat")
        return peer

    async with entered(client, serve) as peer:
        await until_stable(peer)
        started = trio.current_time()
        again = await serve()
        assert trio.current_time() - started == pytest.approx(4.0, abs=0.01)
        assert "silent for 4 s" in str(lost[0])
        async with answering(again):
            await client.flush(timeout=1)


@pytest.mark.row("BS9", "HB10")
async def test_the_replay_elsewhere_begins_before_the_silence_that_ended_the_link(
    server: Server, other: Server
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri, other.uri],
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=30.0,
        failover_overlap=5.0,
    )

    async def serve() -> Peer:
        peer = await live(server)
        await peer.answer("heartbeat")
        return peer

    async with entered(client, serve) as peer:
        stream = await with_one_discarded(client, peer)
        await lose(await live(server))  # after a minute of silence; it fails at once
        moved = await live(other)
        await moved.answer("heartbeat")
        _, anchor = (await moved.answer("subscribe")).bookmark.split(",")
        now_us = client._core.settings.clock_us()
        assert Timestamp.parse(anchor).microseconds <= now_us - 65_000_000
        async with answering(moved):
            await stream.aclose()
            await client.flush(timeout=1)


@pytest.mark.row("SM12")
async def test_a_subscription_that_the_server_has_forgotten_is_entered_again_elsewhere(
    server: Server, other: Server
) -> None:
    seen: list[str] = []
    events: list[Event] = []
    client = HAClient(
        "ha",
        server_chooser=Recorder({"A": server.uri, "B": other.uri}, seen),
        bookmark_store=MemoryBookmarkStore(),
        heartbeat=None,
        progress_timeout=60.0,
        on_event=events.append,
    )
    async with entered(client, partial(live, server)) as peer:
        stream = client.bookmark_stream(
            "^orders/.*$", sub_id="s", bookmark=EPOCH, filter="/px > 1", options="timestamp"
        )
        async with answering(peer):
            await stream.open()
            await peer.publish("s", b"1", bm="7|1|")
            (await anext(stream)).discard()
            began = trio.current_time()
            moved = await live(other)  # the first one answers what comes, and sends no message
        assert 60.0 <= trio.current_time() - began <= 80.0
        again = await moved.answer("subscribe")
        assert (again.topic, again.filter, again.sub_id) == ("^orders/.*$", "/px > 1", "s")
        assert again.options == "bookmark_not_found=epoch,timestamp"
        assert seen.count("failure A: SubscriptionStalled") == 1
        stalled = next(each for each in events if isinstance(each, SubscriptionSilent))
        assert (stalled.sub_id, type(stalled.error)) == ("s", SubscriptionStalled)
        async with answering(moved):
            await moved.publish("s", b"1", b"2", bm="7|1|")
            assert (await anext(stream)).data == b"2"
            await stream.aclose()


@pytest.mark.row("SM12")
@pytest.mark.parametrize("has_store", [True, False])
async def test_messages_are_progress_with_a_bookmark_store_or_without(
    server: Server,
    has_store: bool,  # noqa: FBT001  # a parameter
) -> None:
    client = HAClient(
        "ha",
        servers=[server.uri],
        bookmark_store=MemoryBookmarkStore() if has_store else None,
        heartbeat=None,
        progress_timeout=60.0,
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            await client.bookmark_subscribe(
                "orders", sub_id="s", bookmark=EPOCH, handler=lambda message: message.discard()
            )
            for number in range(1, 11):
                await trio.sleep(30.0)
                await peer.publish("s", b"x", bm=f"7|{number}|")
                await wait_all_tasks_blocked()
        assert client.metrics.connections == 1


@pytest.mark.row("SM12")
@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_progress_timeout_that_can_never_work_is_refused(timeout: float) -> None:
    with pytest.raises(UsageError, match="progress_timeout"):
        HAClient("ha", servers=["tcp://a:1/amps/json"], progress_timeout=timeout)


class FullManager(MemorySubscriptionManager):
    """One whose disk is full."""

    @override
    def add(self, entry: Entry) -> None:
        raise StoreError("no room for the subscription")


@pytest.mark.row("SM10")
async def test_a_subscription_that_cannot_be_kept_is_ended_before_the_call_raises(
    server: Server,
) -> None:
    client = HAClient(
        "ha", servers=[server.uri], heartbeat=None, subscription_manager=FullManager()
    )
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            with pytest.raises(StoreError, match="no room"):
                await client.subscribe("orders", sub_id="s", handler=print)
            await client.flush(timeout=1)
        assert [each.command for each in peer.heard[1:]] == ["subscribe", "unsubscribe", "flush"]
        assert client.metrics.subscriptions == ()


class OnceFull(MemorySubscriptionManager):
    """One whose disk is full for the first removal."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True

    @override
    def remove(self, sub_id: str) -> None:
        if self.is_full:
            self.is_full = False
            raise StoreError("no room for the removal")
        super().remove(sub_id)


@pytest.mark.row("SM10")
@pytest.mark.parametrize("form", ["handler", "stream"])
async def test_an_end_that_cannot_be_kept_can_be_asked_for_again(server: Server, form: str) -> None:
    manager = OnceFull()
    client = HAClient("ha", servers=[server.uri], heartbeat=None, subscription_manager=manager)
    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            stream = client.stream("orders", sub_id="s", resumes=True)
            if form == "stream":
                await stream.open()
            else:
                await client.subscribe("orders", sub_id="s", handler=print)

            async def end() -> None:
                await (stream.aclose() if form == "stream" else client.unsubscribe("s"))

            with pytest.raises(StoreError, match="no room"):
                await end()
            assert [each.sub_id for each in client.metrics.subscriptions] == ["s"]
            await end()
            await client.flush(timeout=1)
        assert not list(manager.entries())
        assert [each.command for each in peer.heard[1:]] == ["subscribe", "unsubscribe", "flush"]


@pytest.mark.row("SM10")
async def test_no_chosen_id_is_one_that_the_application_or_an_earlier_process_uses(
    server: Server,
) -> None:
    manager = MemorySubscriptionManager()
    for sub_id in ("3", "4"):
        manager.add(Entry(sub_id, {"c": "subscribe", "t": "earlier", "sub_id": sub_id}))
    client = HAClient("ha", servers=[server.uri], heartbeat=None, subscription_manager=manager)
    async with entered(client, partial(live, server)) as peer, answering(peer):
        for sub_id in ("7", "", "6", "", ""):
            await client.subscribe("orders", sub_id=sub_id, handler=print)
        assert await client.restore_subscriptions({"3": print, "4": print}) == ["3", "4"]
        assert len(client.metrics.subscriptions) == 7


@pytest.mark.row("SM10")
async def test_of_restored_subscriptions_some_may_be_discarded_when_they_are_handled(
    server: Server,
) -> None:
    manager, store = MemorySubscriptionManager(), MemoryBookmarkStore()
    for sub_id in ("a", "b"):
        fields = {"c": "subscribe", "t": "orders", "bm": "0", "sub_id": sub_id, "a": "processed"}
        manager.add(Entry(sub_id, dict(fields)))
    client = quiet_client(server, bookmark_store=store, subscription_manager=manager)
    got: list[bytes] = []

    def note(message: Message) -> None:
        got.append(message.data)

    async with entered(client, partial(live, server)) as peer:
        async with answering(peer):
            with pytest.raises(UsageError, match="auto_discard"):
                await client.restore_subscriptions({"a": note, "b": note}, auto_discard="a")
            assert await client.restore_subscriptions(
                {"a": note, "b": note}, auto_discard=["a"]
            ) == ["a", "b"]
            await peer.publish("a,b", b"1", bm="7|1|")
            await wait_all_tasks_blocked()
        assert got == [b"1", b"1"]
        assert [store.subscription(each).undiscarded_count for each in "ab"] == [0, 1]
