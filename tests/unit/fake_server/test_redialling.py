"""A destination is dialled again and again, and a link that works starts the waits anew."""

from __future__ import annotations

import logging

import pytest
import trio

from haclient.errors import ConnectionRefused
from haclient.transport.link import Link
from haclient.transport.memory import MemoryLink, link_pair
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.redialling import dial_destination
from haclient_fake_server.server import BrokerServer

WEST = ReplicateTo("tcp://west:1", heartbeat_s=4.0)
EAST = BrokerConfig(
    name="east", listen=(), replicate_to=(WEST,), redial_s=1.0, redial_max_s=4.0, ack_interval_s=0.0
)


class Network:
    """Where `west` can be reached, or not; it notes when somebody tried."""

    def __init__(self) -> None:
        self.target: BrokerServer | None = None
        self.dialled: list[float] = []
        self.links: list[MemoryLink] = []

    async def dial(self, to: ReplicateTo, timeout_s: float) -> Link:
        assert (to.address, timeout_s) == ("tcp://west:1", 5.0)
        self.dialled.append(trio.current_time())
        if self.target is None:
            raise ConnectionRefused("nobody is there")
        here, there = link_pair()
        self.links.append(here)
        self.target.attach(there)
        return here


@pytest.mark.row("RE3")
@pytest.mark.usefixtures("autojump_clock")
async def test_the_waits_grow_to_a_limit_and_start_anew(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    caplog.set_level(logging.DEBUG, logger="haclient_fake_server")
    begun = trio.current_time()
    async with BrokerServer(EAST, dial=network.dial) as east:
        await trio.sleep(12.0)
        assert [round(each - begun) for each in network.dialled] == [0, 1, 3, 7, 11]
        async with BrokerServer(BrokerConfig(name="west", listen=())) as west:
            network.target = west
            await trio.sleep(30.0)
            assert east.destinations[0].is_connected
            assert len(network.dialled) == 6
            network.links[-1].reset()
            await trio.sleep(1.5)
            assert (len(network.dialled), east.destinations[0].links) == (7, 2)
    told = [each for each in caplog.records if "nobody is there" in each.message]
    assert [each.levelname for each in told] == ["WARNING", *["DEBUG"] * 4]


@pytest.mark.row("RE3")
@pytest.mark.usefixtures("autojump_clock")
async def test_a_link_that_goes_silent_is_dialled_again() -> None:
    network = Network()
    async with (
        BrokerServer(BrokerConfig(name="west", listen=())) as west,
        BrokerServer(EAST, dial=network.dial) as east,
    ):
        network.target = west
        await trio.sleep(20.0)
        link = network.links[-1]
        link.sending.silent = link.receiving.silent = True
        await trio.sleep(20.0)
        assert (east.destinations[0].links, east.destinations[0].is_connected) == (2, True)


async def test_the_real_dial_says_who_did_not_answer() -> None:
    with pytest.raises(ConnectionRefused, match=r"127\.0\.0\.1:1"):
        await dial_destination(ReplicateTo("tcp://127.0.0.1:1"), 5.0)
