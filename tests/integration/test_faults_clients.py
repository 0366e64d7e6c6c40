"""A publisher and a subscriber that lose their connections in every way there is (row FI1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal

import pytest
import trio

from haclient_fake_server.pytest_plugin import ClusterFactory
from haclient_fake_server.testing.cluster import Cluster
from haclient_fake_server.testing.faults import (
    Acks,
    Cut,
    Direction,
    Heal,
    How,
    Kill,
    Partition,
    Refuse,
    Restart,
    Slow,
)
from support.journey import Journey
from support.process import LIMIT_S

pytestmark = pytest.mark.in_parts

HOWS: tuple[How, ...] = ("reset", "end", "silence")


async def until(happened: Callable[[], bool]) -> None:
    """Wait for something that a broker or a proxy does soon."""
    with trio.fail_after(LIMIT_S):
        while not happened():  # noqa: ASYNC110 - it happens in several places, some of them processes
            await trio.sleep(0.005)


@pytest.mark.row("FI1", "HA3", "HA17")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_connection_is_lost_at_a_chosen_byte(
    amps_broker: Cluster, direction: Direction, how: How, seed: int
) -> None:
    places = random.Random(f"{seed} {direction} {how}")
    # The first cut falls into the logons and the subscribe, the others into the messages.
    cuts = [
        Cut(how=how, direction=direction, at_byte=places.randrange(upper)) for upper in (200, 5000)
    ]
    await amps_broker.apply(cuts[0])
    async with Journey([amps_broker.uri]) as journey:
        await amps_broker.apply(cuts[1])
        while True:
            await journey.publish(150)
            await journey.arrive()
            # A stalled machine loses connections by itself, and each counts its bytes anew.
            if not amps_broker.wire("client", "broker").waiting:
                break


@pytest.mark.row("FI1")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("kind", ["processed", "persisted"])
async def test_a_connection_is_lost_before_and_after_an_ack(
    amps_broker: Cluster, kind: str, how: How
) -> None:
    cuts = [Cut(how=how, before_ack=kind), Cut(how=how, after_ack=kind)]
    async with Journey([amps_broker.uri]) as journey:
        for cut in cuts:
            await amps_broker.apply(cut)
            if kind == "processed":  # comes with the logon and the subscribe of the next connection
                await amps_broker.apply(Cut())
            await journey.publish(50)
            await journey.arrive()
            await until(lambda: not amps_broker.wire("client", "broker").waiting)


@pytest.mark.row("FI1")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_connection_is_lost_in_the_middle_of_a_frame(
    amps_broker: Cluster, direction: Direction, how: How
) -> None:
    async with Journey([amps_broker.uri]) as journey:
        for frame in (1, 7):
            await amps_broker.apply(Cut(how=how, direction=direction, in_frame=frame))
            await journey.publish(20)
            await journey.arrive()


@pytest.mark.row("FI1", "HB6")
async def test_half_open_connections_are_found_by_their_silence(amps_broker: Cluster) -> None:
    async with Journey([amps_broker.uri]) as journey:
        await journey.publish(10)
        await journey.arrive()
        await amps_broker.apply(Cut(how="silence"))
        await journey.publish(10)
        await journey.arrive()
        wire = amps_broker.wire("client", "broker")
        await until(lambda: wire.connections == 2)  # the broker has let go of the silent ones, too


@pytest.mark.row("FI1")
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("a", ["client", "broker"])
async def test_clients_are_cut_off_in_one_direction(
    amps_broker: Cluster, a: str, *, dropped: bool
) -> None:
    b = "broker" if a == "client" else "client"
    async with Journey([amps_broker.uri]) as journey:
        await journey.publish(10)
        await journey.arrive()
        await amps_broker.apply(Partition(a, b, one_way=True, dropped=dropped))
        await journey.publish(10)
        await until(
            lambda: (
                not journey.publisher.state.is_logged_on
                and not journey.subscriber.state.is_logged_on
            )
        )
        await amps_broker.apply(Heal())
        await journey.arrive()


@pytest.mark.row("AK8")
@pytest.mark.parametrize("how", ["drop", "reorder"])
async def test_acks_get_lost_or_arrive_in_another_order(
    amps_broker: Cluster, how: Literal["drop", "reorder"]
) -> None:
    async with Journey([amps_broker.uri]) as journey:
        await amps_broker.apply(Acks(how=how, ack="persisted"))
        for _ in range(20):
            await journey.publish(5)
            await trio.sleep(0.005)
        await amps_broker.apply(Heal())
        await journey.publish(5)  # its ack counts for all before it
        await journey.arrive()


async def test_a_slow_line_and_refused_connections(amps_broker: Cluster) -> None:
    async with Journey([amps_broker.uri]) as journey:
        await amps_broker.apply(Slow(latency_s=0.005, piece_bytes=7))
        await journey.publish(20)
        await journey.arrive()
        await amps_broker.apply(Refuse(), Cut())
        await journey.publish(20)
        await until(lambda: not journey.publisher.state.is_logged_on)
        await amps_broker.apply(Heal())
        await journey.arrive()


@pytest.mark.row("FI1", "HA17")
async def test_a_broker_is_killed_paused_and_started_again(amps_cluster: ClusterFactory) -> None:
    cluster = await amps_cluster("east", "west", on="process")
    async with Journey(cluster.uris) as journey:
        for victim in ("east", "west"):
            await journey.publish(300)
            await cluster.apply(Kill(victim))
            assert not cluster.is_running(victim)
            await journey.publish(300)
            await journey.delivered(len(journey.published))  # by the other one
            await cluster.apply(Restart(victim))
            await journey.arrive()
        cluster.process("west").pause()
        await journey.publish(100)
        await journey.delivered(len(journey.published))
        cluster.process("west").resume()
        await journey.arrive()


async def test_no_task_is_left() -> None:
    before = trio.lowlevel.current_statistics().tasks_living
    async with Cluster("east", "west") as cluster, Journey(cluster.uris) as journey:
        for how in HOWS:
            await cluster.apply(Cut(how=how))
            await journey.publish(10)
            await journey.arrive()
    assert trio.lowlevel.current_statistics().tasks_living == before
