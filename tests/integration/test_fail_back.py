"""A primary that is killed and comes back: its clients return to it, and nothing is lost."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trio

from haclient.cli.demo.processes import reserved_ports
from haclient.client import HAClient
from haclient.errors import TimedOut
from haclient.protocol.messages import Message
from haclient.protocol.uri import Uri
from haclient.servers.chooser import PriorityServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient_fake_server.testing.processes import BrokerProcess
from haclient_stores.bookmark import EPOCH
from support.process import LIMIT_S, running_broker

KILLS = 2
PORTION = 300


def _client(name: str, brokers: list[BrokerProcess]) -> HAClient:
    uris = [broker.uri for broker in brokers]
    return HAClient.memory_backed(
        name,
        server_chooser=PriorityServerChooser(uris, healthy_for=1.0, check_every=0.1),
        delay_strategy=FixedDelayStrategy(0.05),
        heartbeat=1.0,
    )


async def _until_at(client: HAClient, broker: BrokerProcess) -> None:
    """Wait until a client is live with a broker."""
    wanted = Uri.parse(broker.uri).address
    with trio.move_on_after(LIMIT_S):
        for _ in range(int(10 * LIMIT_S)):
            if client.state.is_logged_on and client._core.status.address == wanted:
                await client.flush(timeout=LIMIT_S)
                return
            await trio.sleep(0.1)
    raise TimedOut(f"the client is not at {wanted}")


@pytest.mark.row("SC8")
async def test_clients_fail_over_and_back_while_the_primary_is_killed_and_lose_nothing(
    tmp_path: Path,
) -> None:
    got: list[int] = []
    has_all = trio.Event()

    def handle(message: Message) -> None:
        got.append(int(message.data))
        message.discard()
        if len(got) == 3 * KILLS * PORTION:
            has_all.set()

    with ExitStack() as stack:
        numbers = stack.enter_context(reserved_ports(2))
        ports = dict(zip(("east", "west"), numbers, strict=True))
        brokers = [
            stack.enter_context(
                running_broker(
                    tmp_path / name,
                    *("--name", name, "--replicate-to", f"tcp://127.0.0.1:{ports[other]}{mode}"),
                    port=ports[name],
                )
            )
            for name, other, mode in (("east", "west", ""), ("west", "east", ",async"))
        ]
        east, west = brokers
        async with _client("publisher", brokers) as publisher, _client("reader", brokers) as reader:
            await reader.bookmark_subscribe("orders", sub_id="s", bookmark=EPOCH, handler=handle)
            number = 0

            async def publish(count: int) -> None:
                nonlocal number
                for _ in range(count):
                    number += 1
                    await publisher.publish("orders", b"%d" % number)
                    if number % 20 == 0:
                        await trio.sleep(0.001)

            for _ in range(KILLS):
                await publish(PORTION)
                east.kill()
                await publish(PORTION)
                await _until_at(publisher, west)
                await _until_at(reader, west)
                async with trio.open_nursery() as nursery:  # while both go back
                    nursery.start_soon(publish, PORTION)
                    await trio.to_thread.run_sync(east.start)
                    for client in (publisher, reader):
                        nursery.start_soon(partial(_until_at, client, east))
            await publisher.publish_flush(timeout=LIMIT_S)
            with trio.fail_after(LIMIT_S):
                await has_all.wait()
    assert number == 3 * KILLS * PORTION
    assert sorted(got) == list(range(1, number + 1))
