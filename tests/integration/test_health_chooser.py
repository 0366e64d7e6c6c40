"""A subscriber does not fail over to a replica that its server had downgraded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from haclient.cli.demo.processes import reserved_ports
from haclient.client import HAClient
from haclient.errors import ReconnectGaveUp
from haclient.servers.delay import FixedDelayStrategy
from haclient.servers.health import HealthAwareServerChooser
from haclient_fake_server.config import BrokerConfig, ReplicateTo
from haclient_fake_server.server import BrokerServer
from support.listening import on_losses
from support.process import LIMIT_S


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """The ports of both servers, which must know each other before they run."""
    with reserved_ports(2) as numbers:
        yield dict(zip(("east", "west"), numbers, strict=True))


@pytest.mark.row("SC12")
@pytest.mark.parametrize("downgraded", [False, True])
async def test_a_client_goes_to_the_replica_of_a_lost_server_unless_that_was_downgraded(
    ports: dict[str, int], *, downgraded: bool
) -> None:
    address = {name: f"tcp://127.0.0.1:{port}" for name, port in ports.items()}
    west = BrokerConfig(name="west", listen=(address["west"],), admin="127.0.0.1:0")
    east = BrokerConfig(
        name="east",
        listen=(address["east"],),
        admin="127.0.0.1:0",
        replicate_to=(ReplicateTo(address["west"]),),
    )
    uris = {name: f"{each}/amps/json" for name, each in address.items()}

    async def run_eastern(
        scope: trio.CancelScope, *, task_status: trio.TaskStatus[BrokerServer]
    ) -> None:
        with scope:
            async with BrokerServer(east) as server:
                task_status.started(server)
                await trio.sleep_forever()

    kill_east, lost = trio.CancelScope(), trio.Event()
    with trio.fail_after(LIMIT_S):
        async with BrokerServer(west) as western, trio.open_nursery() as nursery:
            eastern: BrokerServer = await nursery.start(run_eastern, kill_east)
            if downgraded:
                eastern.downgrade(address["west"])
            chooser = HealthAwareServerChooser(
                {uris["east"]: eastern.admin_uri, uris["west"]: western.admin_uri},
                patience=0.3,
                check_every=0.1,
            )
            client = HAClient.memory_backed(
                "reader",
                server_chooser=chooser,
                delay_strategy=FixedDelayStrategy(0.05, give_up_after=3.0 if downgraded else None),
                on_event=on_losses(lambda _: lost.set()),
                exit_timeout=0,
            )
            if not downgraded:
                async with client:
                    kill_east.cancel()
                    with trio.fail_after(LIMIT_S):
                        await lost.wait()
                    await client.flush(timeout=LIMIT_S)
                    assert client._core.status.address == f"127.0.0.1:{ports['west']}"
            else:
                with pytest.raises(ReconnectGaveUp, match="no server could be reached"):  # noqa: PT012  # it leaves the block
                    async with client:
                        kill_east.cancel()
                        await trio.sleep_forever()
                reason = chooser._health.refusal_reason(f"127.0.0.1:{ports['west']}")
                assert reason is not None
                assert reason.startswith("east has downgraded it")
