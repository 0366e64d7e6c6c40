"""The sink with a real session and broker: every count is taken from the journal."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
import trio

from haclient.client import Client
from haclient_fake_server.testing.faults import Cut
from haclient_fake_server.testing.processes import BrokerProcess
from support.listening import on_losses
from support.proxy_thread import ProxyThread
from support.sink_world import LANES, ROWS, SinkWorld, bodies

LIMIT_S = 100.0


@pytest.mark.smoke
@pytest.mark.row("SK1", "SK2", "SK4")
def test_a_stream_is_once_in_the_log_and_in_order(world: SinkWorld) -> None:
    for number in range(2):
        world.add_batch(number)
    world.run()
    world.check_once(2)
    log = world.log
    assert len({row.publisher_id for row in log}) == LANES
    for key in range(17):  # a key is in one lane, whose rows are ordered
        numbers = [json.loads(row.data)["n"] for row in log if b'"k%d"' % key in row.data]
        assert numbers == sorted(numbers)


@pytest.mark.row("SK4")
def test_tasks_that_fail_half_way_continue_where_they_got_to_and_so_does_a_repeated_batch(
    world: SinkWorld, broker: BrokerProcess
) -> None:
    world.add_batch(0)
    with ProxyThread(broker.address) as proxy:
        for place in (9_000, 15_000, 20_000):
            proxy.apply(Cut(direction="up", at_byte=place))
        world.run(uri=f"{proxy.uri}")
        assert proxy.waiting == 0, "every cut has hit a task"
    world.check_once(1)
    world.forget(0, "commits")
    world.add_batch(1)
    world.run(partitions=5)
    world.check_once(2)


@pytest.mark.row("SK4")
def test_a_query_that_failed_half_way_continues_with_other_read_partitions(
    world: SinkWorld, broker: BrokerProcess
) -> None:
    world.add_batch(0)
    with ProxyThread(broker.address) as proxy:
        for _ in range(50):  # each connection is lost after some rows
            proxy.apply(Cut(direction="up", at_byte=4_000))
        with pytest.raises(Exception, match="connection"):
            world.run(uri=proxy.uri)
    assert 0 < len(world.log) < ROWS
    world.add_batch(1)
    world.run(partitions=4)
    world.check_once(2)


@pytest.mark.row("SK5")
def test_a_rolled_back_checkpoint_is_fenced(world: SinkWorld) -> None:
    for number in range(2):
        world.add_batch(number)
    world.run(options={"lanes": 1})
    world.forget(1, "commits", "offsets")
    world.forget(0, "commits")
    with pytest.raises(Exception, match="has published batch 1 already, and is to publish batch 0"):
        world.run(options={"lanes": 1})
    world.check_once(2)


@pytest.mark.row("SK4")
def test_changed_content_of_a_batch_is_refused_and_a_new_checkpoint_publishes_it(
    world: SinkWorld,
) -> None:
    world.add_batch(0)
    world.run(options={"lanes": 1})
    world.forget(0, "commits")
    world.add_batch(0, changed=True)
    with pytest.raises(Exception, match="batch 0 was published in part and has other rows now"):
        world.run(options={"lanes": 1})
    world.check_once(1)
    shutil.rmtree(world.checkpoint)
    world.add_batch(0)
    world.run(options={"lanes": 1})
    assert Counter(row.data for row in world.log) == Counter(bodies(1) * 2)


@pytest.mark.row("SK5", "SK6")
def test_lanes_cannot_change_and_a_task_whose_name_is_taken_publishes_in_its_next_attempt(
    world: SinkWorld,
) -> None:
    world.add_batch(0)
    world.run()
    world.add_batch(1)
    with pytest.raises(Exception, match="lanes is 3 and was 2 when this checkpoint began"):
        world.run(options={"lanes": LANES + 1})
    world.check_once(1)

    async def take_the_name() -> None:
        lost = trio.Event()
        name = f"spark-{world.query_id}-0"
        async with Client(name, on_event=on_losses(lambda _: lost.set())) as client:
            await client.connect(world.uri)
            await client.logon()
            with trio.fail_after(LIMIT_S):
                await lost.wait()  # until a task takes the name back

    query = world.start()
    trio.run(take_the_name)
    query.awaitTermination()
    world.check_once(2)


@pytest.mark.row("SK2", "SK8")
def test_a_refused_row_ends_the_query_for_good(world: SinkWorld) -> None:
    world.add_batch(0)
    # The second attempt finds what the first one has left: the server would drop the rows now.
    found = r"not in the server's log \(.*row 1: bad sow key.*haclient-sink-unlogged"
    with (
        BrokerProcess("--sow", f"{world.topic}:/id") as broker,
        pytest.raises(Exception, match=found),
    ):
        world.run(uri=broker.uri, options={"lanes": 1})
