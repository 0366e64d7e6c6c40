"""The guide to high availability, continued: servers, delays, choosers and heartbeats.

See `test_ha_guide.py`.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import trio
from typing_extensions import override

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, HeartbeatLost, ReconnectGaveUp
from haclient.protocol.messages import Message
from haclient.servers.auth import Authenticator, DefaultAuthenticator
from haclient.servers.chooser import (
    ConnectionInfo,
    DefaultServerChooser,
    FailureCountServerChooser,
    ServerChooser,
)
from haclient.servers.delay import DelayStrategy, ExponentialDelayStrategy, FixedDelayStrategy
from haclient.session.connection_state import Heartbeat
from haclient.transport.links.memory_network import network
from haclient_fake_server.config import BrokerConfig
from support.clock import in_virtual_time
from support.instances import NOWHERE, address, durable, instances
from support.listening import on_losses

pytestmark = in_virtual_time


class Attempts(DefaultServerChooser):
    """Notes when each attempt failed."""

    def __init__(self, uri: str) -> None:
        super().__init__([uri])
        self.times: list[float] = []

    @property
    def waits(self) -> list[float]:
        """The times between the attempts."""
        return [after - before for before, after in pairwise(self.times)]

    @override
    def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
        self.times.append(trio.current_time())
        super().report_failure(error, info)


# -- servers ---------------------------------------------------------------------------------------


@pytest.mark.row("HA4", "HA7", "SC6")
async def test_the_next_server_is_used_when_the_primary_cannot_be_connected_to() -> None:
    chooser = DefaultServerChooser()
    chooser.add(address("primary") + "/amps/json")
    chooser.add(address("secondary") + "/amps/json")
    names = ("primary", "secondary")
    async with instances(*names, replicate=True) as (primary, secondary):
        await primary.stop()
        async with HAClient.memory_backed("c", server_chooser=chooser) as client:
            await client.publish("orders", b"1")
            assert client.uri == secondary.uri
            await primary.start()
            await trio.sleep(10)
            await secondary.cut()  # a lost connection: the same server first
            await client.flush(timeout=60)
            assert client.uri == secondary.uri
            await secondary.stop()
            await client.flush(timeout=60)
            assert client.uri == primary.uri


@pytest.mark.row("HA2", "HA8")
@pytest.mark.parametrize("server", ["is there", "is away"])
async def test_it_stays_connected_until_it_is_disconnected_also_between_two_attempts(
    server: str,
) -> None:
    async with instances("east") as (east,):
        chooser = Attempts(east.uri)
        async with HAClient(
            "c", server_chooser=chooser, delay_strategy=FixedDelayStrategy(600.0)
        ) as client:
            await trio.sleep(3600)
            await east.cut()
            await client.flush(timeout=60)
            assert client.state.is_logged_on
            if server == "is away":
                await trio.sleep(10)
                await east.stop()
                await trio.sleep(900)
                assert len(chooser.times) == 2  # the next attempt is due in five minutes
            failed = len(chooser.times)
            began = trio.current_time()
            await client.disconnect()
            assert trio.current_time() == began
            if server == "is away":
                await east.start()
            await trio.sleep(3600)
            assert not client.state.is_logged_on
            assert len(chooser.times) == failed
            with pytest.raises(DisconnectedError, match="on purpose"):
                await client.flush(timeout=60)


# -- delays ----------------------------------------------------------------------------------------


@pytest.mark.row("DS2", "DS4", "HA15")
async def test_a_fixed_delay_is_the_same_before_each_attempt() -> None:
    chooser = Attempts(NOWHERE)
    strategy = FixedDelayStrategy(7.0, give_up_after=70.0)
    began = trio.current_time()
    with pytest.raises(ReconnectGaveUp, match="the limit is 70 s"):
        async with HAClient("c", server_chooser=chooser, delay_strategy=strategy):
            pytest.fail("never entered")
    assert chooser.times[0] == began
    assert chooser.waits == [7.0] * 10


@pytest.mark.row("DS3", "DS5", "HA14")
async def test_the_time_between_attempts_grows_up_to_a_limit_and_ends_after_another() -> None:
    chooser = Attempts(NOWHERE)
    strategy = ExponentialDelayStrategy(
        initial=0.2, factor=1.5, maximum=5.0, jitter=0.0, give_up_after=60.0
    )
    began = trio.current_time()
    with pytest.raises(ReconnectGaveUp, match="the limit is 60 s"):
        async with HAClient("c", server_chooser=chooser, delay_strategy=strategy):
            pytest.fail("never entered")
    assert chooser.waits[:4] == pytest.approx([0.2, 0.3, 0.45, 0.675])
    assert chooser.waits[-3:-1] == [5.0, 5.0]
    assert chooser.times[0] == began
    assert chooser.times[-1] - began == 60.0  # the last attempt


@pytest.mark.row("DS1", "DS3", "HA14")
@pytest.mark.parametrize("strategy", [ExponentialDelayStrategy(), FixedDelayStrategy(5.0)])
async def test_without_a_limit_of_time_it_keeps_trying(strategy: DelayStrategy) -> None:
    async with instances("east") as (east,):
        chooser = Attempts(east.uri)
        async with HAClient("c", server_chooser=chooser, delay_strategy=strategy) as client:
            await trio.sleep(10)
            await east.stop()
            await trio.sleep(1800)
            assert len(chooser.times) > 80
            assert max(chooser.waits) <= 20.2  # the longest wait, and what chance adds
            await east.start()
            await client.flush(timeout=60)


# -- choosers --------------------------------------------------------------------------------------


@pytest.mark.row("SC2", "SC4", "SC5", "AT9")
async def test_a_chooser_of_ones_own_gives_address_and_credentials_of_each_attempt() -> None:
    class Tokens(DefaultAuthenticator):
        def __init__(self, token: str) -> None:
            self.token = token

        @override
        async def authenticate(self, user: str, password: str) -> str:
            return self.token

    class OnCall(ServerChooser):
        """Has a new token for each attempt, and no server for a third one."""

        def __init__(self, *uris: str) -> None:
            self.uris = [*uris, ""]
            self.reported: list[str] = []

        @override
        def current_uri(self) -> str:
            return self.uris[len(self.reported)]

        @override
        def current_authenticator(self) -> Authenticator:
            return Tokens(f"token {len(self.reported)}")

        @override
        def report_success(self, info: ConnectionInfo) -> None:
            self.reported.append("success")

        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            self.reported.append("failure")

        @override
        def error(self) -> str:
            return "the desk is closed"

    config = BrokerConfig(users={"desk": "token 1"})
    async with instances("east", config=config) as (east,):
        chooser = OnCall(NOWHERE, east.uri.replace("://", "://desk@"))
        async with HAClient("c", server_chooser=chooser):
            assert chooser.reported == ["failure", "success"]
        with pytest.raises(ReconnectGaveUp, match="the desk is closed"):
            async with HAClient("c", server_chooser=chooser):
                pytest.fail("never entered")


@pytest.mark.row("SC7")
async def test_a_server_that_failed_more_than_five_times_in_a_row_is_skipped_until_all_have() -> (
    None
):
    tried: list[str] = []

    class Noted(FailureCountServerChooser):
        """Writes down each attempt: b! for one that led to a logon."""

        @override
        def report_success(self, info: ConnectionInfo) -> None:
            tried.append(info["uri"].partition("://")[2][0] + "!")
            super().report_success(info)

        @override
        def report_failure(self, error: Exception, info: ConnectionInfo) -> None:
            tried.append(info["uri"].partition("://")[2][0])
            super().report_failure(error, info)

    async with instances("b") as (b,):
        chooser = Noted([f"{address('a')}/amps/json", b.uri])
        with pytest.raises(ReconnectGaveUp):  # noqa: PT012  # the block raises it
            async with HAClient(
                "c",
                server_chooser=chooser,
                delay_strategy=FixedDelayStrategy(1.0, give_up_after=15.0),
            ) as client:
                for _ in range(8):  # b fails once, and is there again for the attempt after that
                    await trio.sleep(10)
                    await b.stop()
                    await trio.sleep(0.5)
                    await b.start()
                    await client.flush(timeout=60)
                await trio.sleep(10)
                await b.stop()
                await trio.sleep_forever()
    assert tried[:2] == ["a", "b!"]
    assert tried[2:17] == ["b", "a", "b!"] * 5  # a fails for the second to the sixth time
    assert tried[17:23] == ["b", "b!"] * 3  # a is skipped; b has never failed twice in a row
    assert tried[23:29] == ["b"] * 6  # until it has failed six times in a row, too
    assert tried[29:35] == ["a", "b"] * 3  # then none is skipped


# -- heartbeats ------------------------------------------------------------------------------------


def silence(*, of: str) -> None:
    """From now on what one side sends is lost, without an error: `server` or `client`."""
    for connection in network().connections:
        getattr(connection, of).sending.silent = True


@pytest.mark.row("HB1", "HB2", "HB3", "HA9")
@pytest.mark.parametrize(("idle_limit", "limit"), [(None, 6.0), (20.0, 20.0)])
async def test_a_server_that_falls_silent_is_left_after_two_intervals_or_another_limit(
    idle_limit: float | None, limit: float, tmp_path: Path
) -> None:
    lost: list[tuple[float, Exception]] = []
    async with instances("east", config=durable(tmp_path)) as (east,):
        client = HAClient.memory_backed(
            "importantStuff",
            servers=[east.uri],
            on_event=on_losses(lambda error: lost.append((trio.current_time(), error))),
            heartbeat=Heartbeat(3.0, idle_limit=idle_limit),
        )
        async with client:
            await trio.sleep(60)
            assert not lost  # regular beats keep it
            began = trio.current_time()
            silence(of="server")
            await trio.sleep(60)
            ((when, error),) = lost
            assert isinstance(error, HeartbeatLost)
            assert limit - 3.0 <= when - began <= limit  # it begins with the last beat
            await client.flush(timeout=60)  # it is back, on another connection


@pytest.mark.row("HB3", "HB4")
@pytest.mark.parametrize("idle_limit", [None, 5.0, 100.0])
async def test_the_server_cuts_a_silent_client_whatever_limit_that_has_for_the_server(
    idle_limit: float | None,
) -> None:
    lost: list[float] = []

    async with (
        instances("east") as (east,),
        HAClient(
            "c",
            servers=[east.uri],
            heartbeat=Heartbeat(3.0, idle_limit=idle_limit),
            on_event=on_losses(lambda _: lost.append(trio.current_time())),
        ) as client,
    ):
        await trio.sleep(60)
        began = trio.current_time()
        silence(of="client")
        await trio.sleep(30)
        assert len(lost) == 1
        # Two intervals after the last beat, and half a one more for a beat that comes late.
        assert 4.5 <= lost[0] - began <= 7.5
        await client.flush(timeout=60)


@pytest.mark.row("HB5")
async def test_a_client_takes_its_heartbeat_at_any_time() -> None:
    lost: list[Exception] = []
    async with instances("east") as (east,):
        for when in ("before", "after"):
            async with Client("c", on_event=on_losses(lost.append)) as client:
                if when == "before":
                    await client.set_heartbeat(1.0)
                await client.connect(east.uri)
                await client.logon()
                if when == "after":
                    await client.set_heartbeat(1.0)
                await trio.sleep(30)
                assert not lost
                silence(of="server")
                await trio.sleep(2)
                assert isinstance(lost.pop(), HeartbeatLost)
            lost.clear()


@pytest.mark.row("HB7")
async def test_a_handler_that_takes_long_does_not_starve_the_heartbeat() -> None:
    lost: list[Exception] = []
    handled: list[bytes] = []

    async def slow(message: Message) -> None:
        await trio.sleep(60)
        handled.append(message.data)

    async with (
        instances("east") as (east,),
        HAClient.memory_backed(
            "c", servers=[east.uri], heartbeat=1.0, on_event=on_losses(lost.append)
        ) as client,
    ):
        await client.subscribe("orders", handler=slow)
        for body in (b"1", b"2", b"3"):
            await client.publish("orders", body)
        await trio.sleep(200)
        assert handled == [b"1", b"2", b"3"]
        assert not lost
