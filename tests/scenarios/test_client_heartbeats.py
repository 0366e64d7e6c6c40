"""Heartbeats of a whole client, exact to the microsecond."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from haclient.client import Client
from haclient.errors import HAClientError, HeartbeatLost, UsageError
from haclient.protocol.codec import encode_frame
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionState, Heartbeat
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.listening import on_losses
from support.peer import Peer, Server, answering, together

pytestmark = in_virtual_time


async def log_on(server: Server, client: Client) -> Peer:
    """Log on with a heartbeat."""
    peer = await server.connect(client)

    async def script() -> None:
        await peer.log_on()
        await peer.answer("heartbeat")

    await together(client.logon, script)
    return peer


@pytest.mark.row("HB1", "HB5")
async def test_the_server_is_told_the_interval_at_logon(server: Server) -> None:
    async with Client("c", heartbeat=2.5) as client:
        peer = await log_on(server, client)
        assert peer.heard[1].options == "start,2.5"
        assert peer.heard[1].ack_type == "processed"


@pytest.mark.row("HB1", "PS7")
async def test_the_heartbeat_starts_before_the_replay(server: Server) -> None:
    store = MemoryPublishStore()
    async with Client("c", publish_store=store, heartbeat=2.0) as client:
        await client.publish("orders", b"kept")
        peer = await log_on(server, client)
        await peer.expect("publish", data=b"kept")


@pytest.mark.row("HB2", "HB10")
async def test_a_half_open_link_is_noticed_after_two_intervals(server: Server) -> None:
    told: list[tuple[float, HAClientError]] = []

    def on_disconnect(error: HAClientError) -> None:
        told.append((trio.current_time(), error))

    async with Client("c", heartbeat=0.3, on_event=on_losses(on_disconnect)) as client:
        peer = await log_on(server, client)
        await trio.sleep(0.5)
        await peer.say("heartbeat")
        last = trio.current_time()
        await trio.sleep(5)
        ((when, error),) = told
        assert when - last == pytest.approx(0.6)
        assert isinstance(error, HeartbeatLost)
        assert client.state is ConnectionState.DISCONNECTED
        await peer.expect_end()


@pytest.mark.row("HB3")
async def test_another_idle_limit(server: Server) -> None:
    async with Client("c", heartbeat=Heartbeat(1.0, idle_limit=7.25)) as client:
        await log_on(server, client)
        await trio.sleep(7.24)
        states = [client.state]
        await trio.sleep(0.02)
        assert [*states, client.state] == [ConnectionState.LOGGED_ON, ConnectionState.DISCONNECTED]


@pytest.mark.row("HB6")
async def test_every_new_connection_starts_it_again(server: Server) -> None:
    async with Client("c", heartbeat=1.0) as client:
        for _ in range(3):
            peer = await log_on(server, client)
            await trio.sleep(0.9)
            peer.link.close()
            await wait_all_tasks_blocked()
        assert [peer.heard[1].command for peer in server.peers] == ["heartbeat"] * 3


@pytest.mark.row("HB5")
async def test_a_client_may_set_it_before_or_after_the_logon(server: Server) -> None:
    async with Client("c") as client:
        await client.set_heartbeat(4.0)
        peer = await log_on(server, client)
        assert peer.heard[1].options == "start,4"
        async with answering(peer):
            await client.set_heartbeat(Heartbeat(0.5, idle_limit=60))
            await trio.sleep(10.1)
            assert len(peer.beats) == 20
            await client.set_heartbeat(None)
            await trio.sleep(10)
            assert len(peer.beats) == 20
        assert [each.options for each in peer.heard[2:]] == ["start,0.5", "stop"]
        with pytest.raises(
            UsageError, match=r"heartbeat is a finite number of seconds, .* or above, not"
        ):
            await client.set_heartbeat(0)


async def test_of_two_changes_at_once_the_later_one_is_in_force(server: Server) -> None:
    async with Client("c") as client:
        peer = await server.log_on(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.set_heartbeat, 1.0)
            start = await peer.expect("heartbeat", options="start,1")
            await client.set_heartbeat(None)
            await peer.ack(start)
        await peer.expect("heartbeat", options="stop")
        await trio.sleep(60.0)
        assert client.state is ConnectionState.LOGGED_ON


@pytest.mark.row("HB1")
async def test_a_start_does_not_overtake_the_stop_before_it(server: Server) -> None:
    async with Client("c", heartbeat=2.0, exit_timeout=0) as client:
        peer = await log_on(server, client)

        async def change() -> None:
            client.publish_nowait("orders", b"a")  # a stop behind it would come after the start
            await client.set_heartbeat(None)
            await client.set_heartbeat(2.0)

        async def script() -> None:
            assert (await peer.expect("heartbeat")).options == "stop"
            assert (await peer.answer("heartbeat")).options == "start,2"

        await together(change, script)


@pytest.mark.row("HB7")
async def test_a_slow_handler_does_not_starve_the_heartbeat(server: Server) -> None:
    handled: list[bytes] = []

    async def slow(message: Message) -> None:
        await trio.sleep(30)
        handled.append(message.data)

    async with Client("c", heartbeat=1.0) as client:
        peer = await log_on(server, client)
        async with answering(peer):
            await client.subscribe("orders", handler=slow, sub_id="s")
            await peer.publish("s", b"a", b"b")
            for _ in range(62):
                await peer.say("heartbeat")
                await trio.sleep(1)
            assert client.state is ConnectionState.LOGGED_ON
        assert handled == [b"a", b"b"]
        gaps = [b - a for a, b in zip(peer.beats, peer.beats[1:], strict=False)]
        assert max(gaps) <= 1.001


@pytest.mark.row("HB7", "MS5")
async def test_a_full_queue_stops_reading_while_beats_go_on_and_then_reading_resumes(
    server: Server,
) -> None:
    async with Client("c", heartbeat=1.0, max_queued_bytes=50_000) as client:
        peer = await log_on(server, client)
        async with answering(peer):
            stream = client.stream("orders", sub_id="s")
            await stream.open()

            async def flood() -> None:
                for number in range(200):
                    await peer.publish("s", b"%5d" % number + bytes(5000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(flood)
                await trio.sleep(20.5)
                assert client._core.connection is not None
                assert stream._queue.queued_bytes < 400_000
                assert len(peer.beats) >= 20
                assert client.state is ConnectionState.LOGGED_ON
                found = [int((await anext(stream)).data[:5]) for _ in range(200)]
            assert found == list(range(200))
            await stream.aclose()


@pytest.mark.row("HB7", "MS5")
async def test_a_heartbeat_that_is_set_while_reading_has_stopped_waits_for_the_reader(
    server: Server,
) -> None:
    """The ack stands in the same chunk as the messages that fill the queue."""
    async with Client("c", max_queued_bytes=50_000, exit_timeout=0) as client:
        peer = await server.log_on(client)
        stream = client.stream("orders", sub_id="s")
        await together(stream.open, lambda: peer.answer("subscribe"))

        async def fill() -> None:
            heartbeat = await peer.expect("heartbeat")
            await peer.send(
                encode_frame({"c": "ack", "a": "processed", "cid": heartbeat.command_id})
                + encode_frame({"c": "p", "t": "orders", "sids": "s"}, bytes(200_000))
            )

        await together(lambda: client.set_heartbeat(1.0), fill)
        await trio.sleep(20.5)
        assert client.state is ConnectionState.LOGGED_ON
        await anext(stream)
        await trio.sleep(1.9)
        assert client._core.connection is not None
        await trio.sleep(0.2)
        assert client._core.connection is None


@pytest.mark.row("HB2", "HB7")
async def test_who_stood_still_hears_what_came_meanwhile_before_giving_up(
    server: Server, autojump_clock: MockClock
) -> None:
    async with Client("c", heartbeat=1.0) as client:
        for _ in range(20):  # trio wakes the two tasks in either order
            peer = await log_on(server, client)
            peer.link.try_send(encode_frame({"c": "heartbeat"}))
            autojump_clock.jump(5)
            await wait_all_tasks_blocked()
            assert client.state is ConnectionState.LOGGED_ON
            await client.disconnect()


@pytest.mark.row("HB7")
async def test_a_loop_that_was_held_for_longer_than_the_heartbeat_allows_is_warned_of(
    server: Server, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client("c", heartbeat=1.0) as client:
        peer = await log_on(server, client)
        await trio.sleep(0.5)
        autojump_clock.jump(1.4)  # nine tenths late: the server has not cut us for that
        await peer.say("heartbeat")
        await trio.sleep(0.1)
        assert "was held" not in caplog.text
        autojump_clock.jump(4.0)
        await peer.say("heartbeat")
        await wait_all_tasks_blocked()
        assert "the event loop was held for" in caplog.text
        assert "trio.to_thread.run_sync" in caplog.text
        (record,) = (each for each in caplog.records if "was held" in each.getMessage())
        fields = vars(record)
        assert (record.name, fields["client"]) == ("haclient.client", "c")
        assert fields["uri"] == client.uri != ""


@pytest.mark.row("HB5")
async def test_a_change_of_the_interval_that_is_given_up_is_in_force_where_the_server_has_it(
    server: Server,
) -> None:
    """It closes a connection without heartbeats from then on."""
    async with Client("c") as client:
        peer = await server.log_on(client)
        with trio.move_on_after(1.0):
            await client.set_heartbeat(Heartbeat(0.5, idle_limit=60))
        assert (await peer.expect("heartbeat")).options == "start,0.5"
        async with answering(peer):
            await trio.sleep(10.1)
        assert len(peer.beats) == 20
