"""Clients behind a proxy of HTTP, with a broker in a process of its own."""

from __future__ import annotations

import pytest
import trio

from haclient.client import Client, HAClient
from haclient.errors import ConnectionRefused
from haclient.protocol.uri import Uri
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.testing.processes import BrokerProcess
from support.http_proxy import http_proxy
from support.journey import Journey
from support.process import LIMIT_S

pytestmark = pytest.mark.row("AT8")


def port_of(broker: BrokerProcess) -> int:
    return Uri.parse(broker.uri).port


@pytest.mark.parametrize("options", ["", "&compression=zlib"], ids=["plain", "zlib"])
async def test_nothing_is_lost_behind_a_proxy_while_the_broker_is_killed(
    amps_broker_process: BrokerProcess, options: str
) -> None:
    broker = amps_broker_process
    async with http_proxy(port_of(broker)) as proxy:
        uri = f"tcp://127.0.0.1:{proxy.port}/amps/json?http_preflight=true{options}"
        async with Journey([uri]) as journey:
            for _ in range(2):
                await journey.publish(300, padding=200)
                broker.kill()
                await journey.publish(300)
                with trio.fail_after(LIMIT_S):
                    while b"502" not in proxy.answers:  # noqa: ASYNC110 - another task of it
                        await trio.sleep(0.01)
                await trio.to_thread.run_sync(broker.start)
                proxy.answers.remove(b"502")
            await journey.arrive()
            assert len(journey.finished) == 1200
    assert b"101" in proxy.answers


async def test_a_header_that_the_proxy_wants_is_sent_with_each_connection(
    amps_broker_process: BrokerProcess,
) -> None:
    header = {"Proxy-Authorization": "Basic c2VjcmV0"}
    async with http_proxy(port_of(amps_broker_process), b"Proxy-Authorization: Basic") as proxy:
        uri = f"tcp://127.0.0.1:{proxy.port}/amps/json"
        delays = FixedDelayStrategy(0.01)
        async with HAClient(
            "one", servers=[uri], preflight_headers=header, delay_strategy=delays
        ) as client:
            await client.publish("orders", b"1")
            await client.flush(timeout=LIMIT_S)
        async with Client("two") as other:
            with pytest.raises(ConnectionRefused, match="407 Proxy Authentication Required"):
                await other.connect(f"{uri}?http_preflight=true", timeout=LIMIT_S)
    assert proxy.answers == [b"101", b"407"]
    assert b"c2VjcmV0" not in repr(client).encode()
