"""State listeners: what is told, in which order, and that a listener may use its client."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, ReconnectGaveUp, UsageError
from haclient.protocol.messages import Message
from haclient.servers.delay import FixedDelayStrategy
from haclient.session.connection_state import ConnectionState
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.clock import in_virtual_time
from support.instances import instances
from support.listening import on_states

pytestmark = in_virtual_time

S = ConnectionState
LIVE = [S.CONNECTED, S.LOGGED_ON, S.HEARTBEAT_INITIATED, S.PUBLISH_REPLAYED, S.RESUBSCRIBED]


@pytest.mark.row("HA19", "HA20")
async def test_a_life_from_the_first_connection_to_the_shutdown() -> None:
    told: list[ConnectionState] = []
    async with instances("east") as (east,):
        client = HAClient("c", servers=[east.uri], on_event=on_states(told.append))
        assert (client.state, client.state.is_logged_on) == (S.DISCONNECTED, False)
        async with client:
            await wait_all_tasks_blocked()
            assert (told, client.state.is_logged_on) == (LIVE, True)
            await east.stop()
            assert told[len(LIVE) :] == [S.DISCONNECTED, S.RECONNECTING]
            assert (client.state, client.state.is_logged_on) == (S.RECONNECTING, False)
            await east.start()
            await client.flush(timeout=60)
            await wait_all_tasks_blocked()
            assert told[len(LIVE) + 2 :] == LIVE
            told.clear()
    assert told == [S.DISCONNECTED, S.SHUTDOWN]
    assert (client.state, client.state.is_logged_on) == (S.SHUTDOWN, False)


@pytest.mark.row("HA20", "HA1")
async def test_a_client_that_does_not_reconnect_tells_its_steps_too() -> None:
    told: list[ConnectionState] = []
    async with instances("east") as (east,), Client("c", on_event=on_states(told.append)) as client:
        await client.connect(east.uri)
        await client.logon()
        await east.cut()
        await wait_all_tasks_blocked()
        assert told == [S.CONNECTED, S.LOGGED_ON, S.DISCONNECTED]
        assert client.state is S.DISCONNECTED
    assert told[3:] == [S.SHUTDOWN]


@pytest.mark.row("HA20")
async def test_listeners_come_and_go_and_may_be_plain_or_async() -> None:
    told: list[tuple[str, ConnectionState]] = []

    def plain(state: ConnectionState) -> None:
        told.append(("plain", state))

    async def waiting(state: ConnectionState) -> None:
        await trio.sleep(0.1)
        told.append(("waiting", state))

    async with instances("east") as (east,):
        async with HAClient("c", servers=[east.uri]) as client:
            listeners = [on_states(waiting), on_states(plain)]
            for listener in listeners:
                client.add_event_listener(listener)
            await east.cut()
            await trio.sleep(60)
            again = [S.DISCONNECTED, S.RECONNECTING, *LIVE]
            assert told == [(who, each) for each in again for who in ("waiting", "plain")]
            with pytest.raises(UsageError, match="added already"):
                client.add_event_listener(listeners[1])
            client.remove_event_listener(listeners[0])
            with pytest.raises(UsageError, match="no such event listener"):
                client.remove_event_listener(listeners[0])
            told.clear()
        assert told == [("plain", S.DISCONNECTED), ("plain", S.SHUTDOWN)]


async def test_a_removed_listener_is_not_told_what_was_on_its_way() -> None:
    told: list[ConnectionState] = []
    async with instances("east") as (east,), HAClient("c", servers=[east.uri]) as client:

        def only_once(state: ConnectionState) -> None:
            told.append(state)
            client.remove_event_listener(listener)

        listener = on_states(only_once)
        client.add_event_listener(listener)
        await east.cut()
        await trio.sleep(60)
        assert told == [S.DISCONNECTED]


@pytest.mark.row("HA21")
async def test_a_listener_may_use_its_client_in_any_state() -> None:
    """Each command waits for the connection where it has to, and holds up nothing."""
    got: list[bytes] = []
    done: list[ConnectionState] = []

    def take(message: Message) -> None:
        got.append(message.data)

    async with instances("east") as (east,):
        client = HAClient.memory_backed("c", servers=[east.uri])

        async def use(state: ConnectionState) -> None:
            await client.publish("orders", state.value)
            client.publish_nowait("orders", b"more")
            await client.unsubscribe(await client.subscribe("orders", handler=take))
            await client.publish_flush()
            await client.flush()
            await client.bookmark_subscribe("orders", sub_id=f"s{len(done)}", handler=take)
            done.append(state)

        listener = on_states(use)
        client.add_event_listener(listener)
        async with client:
            await trio.sleep(60)
            assert done == LIVE
            await east.cut()
            await trio.sleep(60)
            assert done == [*LIVE, S.DISCONNECTED, S.RECONNECTING, *LIVE]
            client.remove_event_listener(listener)
            client.add_event_listener(on_states(lambda _: None))
        assert len(got) >= 2 * len(done)


@pytest.mark.row("HA21")
async def test_a_listener_that_wants_something_of_a_client_that_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It cannot know whether a connection will follow; its client fails it, not the block."""
    told: list[ConnectionState] = []
    async with instances("east") as (east,):
        client = HAClient.memory_backed("c", servers=[east.uri], exit_timeout=0)

        async def use(state: ConnectionState) -> None:
            told.append(state)
            if state in {S.DISCONNECTED, S.SHUTDOWN}:
                await client.publish("orders", b"x")
                await client.publish_flush()

        async with client:
            await wait_all_tasks_blocked()
            client.add_event_listener(on_states(use))
            began = trio.current_time()
        assert trio.current_time() == began
        assert told == [S.DISCONNECTED, S.SHUTDOWN]
        assert caplog.text.count("used its client when that was left") == 2


@pytest.mark.row("HA21")
async def test_a_listener_that_disconnects_ends_it() -> None:
    async with instances("east") as (east,), HAClient("c", servers=[east.uri]) as client:

        async def leave(state: ConnectionState) -> None:
            if state is S.RECONNECTING:
                await client.disconnect()

        client.add_event_listener(on_states(leave))
        await east.stop()
        await trio.sleep(1)
        assert client.state is S.DISCONNECTED
        with pytest.raises(DisconnectedError, match="on purpose"):
            await client.flush()


@pytest.mark.row("HA20", "HA21")
@pytest.mark.parametrize("when", [S.LOGGED_ON, S.DISCONNECTED, S.SHUTDOWN])
async def test_what_a_listener_raises_does_not_end_the_client(when: ConnectionState) -> None:
    told: list[ConnectionState] = []

    def fail(state: ConnectionState) -> None:
        told.append(state)
        if state is when:
            raise ZeroDivisionError

    async with instances("east") as (east,):
        async with HAClient("c", servers=[east.uri], on_event=on_states(fail)) as client:
            await wait_all_tasks_blocked()
            if when is S.DISCONNECTED:
                await east.stop()
                await east.start()
            await client.flush(timeout=60)
        assert told[-1] is S.SHUTDOWN
        assert when in told


async def test_a_listener_that_still_waits_is_cancelled_and_then_told_the_rest() -> None:
    told: list[ConnectionState] = []

    async def slow(state: ConnectionState) -> None:
        if state is S.LOGGED_ON:
            await trio.sleep_forever()
        told.append(state)

    async with (
        instances("east") as (east,),
        HAClient("c", servers=[east.uri], on_event=on_states(slow)),
    ):
        await wait_all_tasks_blocked()
        assert told == [S.CONNECTED]
    assert told == [S.CONNECTED, *LIVE[2:], S.DISCONNECTED, S.SHUTDOWN]


async def test_a_listener_that_hangs_does_not_keep_the_block_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def hang(state: ConnectionState) -> None:
        if state is S.SHUTDOWN:
            await trio.sleep_forever()

    async with instances("east") as (east,):
        async with HAClient("c", servers=[east.uri], on_event=on_states(hang)):
            started = trio.current_time()
        assert trio.current_time() - started == 5.0
    assert "callbacks" in caplog.text


@pytest.mark.row("HA20")
async def test_giving_up_is_the_end_of_reconnecting() -> None:
    told: list[ConnectionState] = []
    delay = FixedDelayStrategy(1.0, give_up_after=3.0)
    async with instances("east") as (east,):
        with pytest.raises(ReconnectGaveUp):  # noqa: PT012  # the block is what is tested
            async with HAClient("c", servers=[east.uri], delay_strategy=delay) as client:
                client.add_event_listener(on_states(told.append))
                await east.stop()
                await trio.sleep_forever()
    assert told == [S.DISCONNECTED, S.RECONNECTING, S.DISCONNECTED, S.SHUTDOWN]


@pytest.mark.row("HA8")
async def test_disconnecting_while_reconnecting_releases_whoever_waits() -> None:
    """Waits for acks and streams that would go on with the next connection: there is none."""
    async with instances("east") as (east,):
        client = HAClient("c", servers=[east.uri], publish_store=MemoryPublishStore())
        async with client, trio.open_nursery() as nursery:
            stream = client.bookmark_stream("orders", sub_id="s")
            await stream.open()
            await east.stop()
            await client.publish("orders", b"x")

            async def flush() -> None:
                with pytest.raises(DisconnectedError, match="not persisted"):
                    await client.publish_flush()

            async def read() -> None:
                assert [message async for message in stream] == []
                assert isinstance(stream.end_reason, DisconnectedError)

            nursery.start_soon(flush)
            nursery.start_soon(read)
            await trio.sleep(1)
            await client.disconnect()
