"""Clusters, and the brokers that they are made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from haclient.cli.broker import _BrokerRequest, _config, run_broker
from haclient.errors import ConnectionRefused, HAClientError, UsageError
from haclient.protocol.uri import Uri
from haclient.transport.links.dial import dial
from haclient.transport.links.memory_network import network
from haclient_fake_server.config import (
    BrokerConfig,
    FsyncPolicy,
    LogTopic,
    QueueTopic,
    ReplicateTo,
    SowTopic,
)
from haclient_fake_server.testing.cluster import Cluster, LocalBroker, ProcessBroker, arguments_of
from haclient_fake_server.testing.faults import (
    CLIENT,
    Cut,
    Fault,
    Heal,
    Kill,
    Partition,
    Refuse,
    Restart,
    Slow,
    from_json,
)
from support.broker import RawClient
from support.clock import in_virtual_time
from support.journey import Journey


async def test_a_broker_in_this_process_ends_and_comes_back(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        broker = LocalBroker(BrokerConfig(data_dir=tmp_path, segment_bytes=1 << 20), nursery)
        assert (broker.is_running, broker.destinations) == (False, ())
        await broker.kill()
        for sequence in (0, 1):
            await broker.start()
            await broker.start()
            address = broker.address
            async with RawClient.connect(address) as client:
                assert (await client.logon("p")).sequence == sequence
                await client.send(b"{}", c="p", t="orders", s=sequence + 1)
                await client.send(c="flush", cid="f", a="persisted")
                await client.ack("persisted", "f")
            await broker.kill()
            assert (broker.is_running, broker.address) == (False, address)


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "journal.00000001").write_bytes(b"not a journal")
    broker = ProcessBroker(BrokerConfig(data_dir=tmp_path))
    with pytest.raises(Exception, match="corrupt at byte 0"):
        await broker.start()
    assert not broker.is_running
    with pytest.raises(UsageError, match="brokers of this process only"):
        _ = broker.destinations


FULL = BrokerConfig(
    name="east",
    listen=("tcp://127.0.0.1:9",),
    log_topics=(LogTopic("^a"), LogTopic("b")),
    sow_topics=(SowTopic("prices", ("/id", "/side")), SowTopic("keyed")),
    queues=(QueueTopic(name="jobs", topics=("b",), lease_s=2.5, file_backed=True),),
    message_types=("ours",),
    replicate_to=(ReplicateTo("tcp://127.0.0.1:8"), ReplicateTo("tcp://127.0.0.1:7", "async")),
    fsync=FsyncPolicy.BATCH,
    segment_bytes=2**20,
)


@pytest.mark.parametrize("config", [FULL, BrokerConfig(name="plain", listen=FULL.listen)])
def test_a_configuration_becomes_arguments_and_these_the_same_configuration(
    config: BrokerConfig, tmp_path: Path
) -> None:
    arguments = ["--listen", config.listen[0], *arguments_of(config)]
    arguments += ["--data", str(tmp_path)]
    options = run_broker.make_context("run", [str(each) for each in arguments]).params
    assert _config(_BrokerRequest(**options)) == replace(config, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("config", "unsupported"),
    [
        (
            replace(FULL, flush_interval_s=1.0, ack_interval_s=0.1),
            "ack_interval_s, flush_interval_s",
        ),
        (replace(FULL, log_topics=(), queues=(), replicate_to=()), "log_topics"),
        (replace(FULL, queues=(QueueTopic(name="q", topics=("b", "a")),)), "queues"),
        (replace(FULL, log_topics=(LogTopic("a", "json"),), queues=()), "log_topics"),
        (replace(FULL, replicate_to=(ReplicateTo("tcp://h:1", heartbeat_s=1.0),)), "heartbeat_s"),
        (
            replace(
                FULL,
                version="9",
                replicate_to=(
                    ReplicateTo("tcp://h:1", "async", 5.0),
                    ReplicateTo("tcp://h:2", heartbeat_s=1.0),
                ),
            ),
            "version, downgrade_after_s, heartbeat_s",
        ),
    ],
)
def test_what_the_command_line_has_no_words_for_is_refused(
    config: BrokerConfig, unsupported: str
) -> None:
    with pytest.raises(UsageError, match=f"has no option for: {unsupported}$"):
        arguments_of(config)


@in_virtual_time
@pytest.mark.row("FI7")
async def test_a_single_broker_is_a_cluster_of_one() -> None:
    async with Cluster("broker", on="memory") as cluster:
        assert cluster.uris == [cluster.uri] == ["mem://broker:9007/amps/json"]
        async with Journey(cluster.uris) as journey:
            await journey.publish(10)
            await journey.arrive()


@in_virtual_time
@pytest.mark.row("FI1", "FI4", "FI7")
async def test_the_same_faults_as_on_sockets_in_no_time_at_all() -> None:
    async with Cluster("east", "west", on="memory") as cluster, Journey(cluster.uris) as journey:
        faults = [
            '{"fault":"cut","how":"silence","after_ack":"persisted"}',
            '{"fault":"cut","how":"end","direction":"up","in_frame":2}',
            '{"fault":"slow","latency_s":0.01,"piece_bytes":5,"source":""}',
            '{"fault":"kill","name":"east"}',
            '{"fault":"restart","name":"east"}',
        ]
        for fault in faults:
            await cluster.apply(from_json(fault))
            await journey.publish(6)
            await journey.delivered(len(journey.published))
        await journey.arrive()
        await cluster.apply(from_json('{"fault":"partition","a":"east","b":"west","dropped":true}'))
        await journey.publish(6)
        await journey.delivered(len(journey.published))
        await trio.sleep(5)
        assert journey.publisher.unpersisted_count == 6
        await cluster.apply(Heal())
        await journey.arrive()


@in_virtual_time
@pytest.mark.row("FI4", "RE3")
async def test_a_partition_holds_what_is_sent_one_way() -> None:
    async with Cluster("east", "west", on="memory") as cluster, Journey(cluster.uris) as journey:
        await cluster.apply(Partition("east", "west", one_way=True))
        assert cluster.wire("east", "west").blocked == {"up": False}
        assert cluster.wire("west", "east").blocked == {"down": False}
        await journey.publish(5)
        await journey.delivered(5)
        await trio.sleep(1)
        assert cluster.destination("east", "west").behind == 5
        assert journey.publisher.unpersisted_count == 5
        await cluster.apply(Heal("west", "east"))
        await journey.arrive()
        assert cluster.destination("east", "west").behind == 0


@in_virtual_time
async def test_brokers_are_killed_and_restarted_on_their_data(tmp_path: Path) -> None:
    async with (
        Cluster("east", "west", on="memory", data_dir=tmp_path) as cluster,
        Journey(cluster.uris[:1]) as journey,
    ):
        await journey.publish(5)
        await journey.arrive()
        await cluster.apply(Kill("east"))
        assert (cluster.is_running("east"), cluster.is_running("west")) == (False, True)
        with pytest.raises(ConnectionRefused):
            await dial(Uri.parse(cluster.uri), timeout=1)
        with pytest.raises(UsageError, match="'east' does not run"):
            cluster.destination("east", "west")
        await journey.publish(5)
        await cluster.apply(Restart("east"), Restart("east"))
        await journey.arrive()
    assert (tmp_path / "east" / "journal.00000001").exists()


@in_virtual_time
async def test_a_cut_falls_once_whichever_wire_it_is_reached_on() -> None:
    async with Cluster("a", "b", on="memory") as cluster:
        cut = Cut(at_byte=10)
        await cluster.apply(cut)
        assert all(cluster.wire(CLIENT, name).waiting == (cut,) for name in cluster.names)
        async with Journey(cluster.uris):
            pass
        assert all(cluster.wire(CLIENT, name).waiting == () for name in cluster.names)


@in_virtual_time
async def test_links_decide_who_replicates_to_whom() -> None:
    links = {"a": ["b"]}
    config = BrokerConfig(segment_bytes=1 << 20, log_topics=(LogTopic("orders"),))
    async with Cluster("a", "b", on="memory", links=links, mode="async", config=config) as cluster:
        assert cluster.destination("a", "b").mode == "async"
        with pytest.raises(UsageError, match="'b' does not run, or does not replicate to 'a'"):
            cluster.destination("b", "a")
        await cluster.apply(Partition("b", "a"), Refuse(source="a"), Heal("a"), Slow(target="b"))


@in_virtual_time
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Kill("nobody"), "no broker 'nobody' runs here; there are a, b"),
        (Kill("a", at="in_write"), "a kill at in_write takes a broker that is a process"),
        (Cut(source="b"), "no connections from 'b'"),
        (Slow(target="nobody"), "no connections"),
        (Partition("a", "a"), "wanted two names"),
        (Partition("a", "nobody"), "no connection between 'a' and 'nobody'"),
        (Heal("nobody"), "no connection between 'nobody'"),
    ],
)
async def test_a_fault_that_names_nobody_is_refused(fault: Fault, why: str) -> None:
    async with Cluster("a", "b", on="memory", links={"a": ["b"]}) as cluster:
        with pytest.raises(UsageError, match=why):
            await cluster.apply(fault)


@in_virtual_time
@pytest.mark.parametrize("found", ["kill", None, {"fault": "kill", "name": "a"}])
async def test_what_is_not_a_fault_is_refused_before_anything_goes_wrong(found: object) -> None:
    async with Cluster("a", on="memory") as cluster:
        with pytest.raises(UsageError, match=r"wanted a fault, one of Cut, .*, Restart$"):
            await cluster.apply(Kill("a"), cast("Any", found))
        assert cluster.is_running("a")


@in_virtual_time
async def test_questions_about_nobody_are_refused() -> None:
    async with Cluster("broker", on="memory") as cluster:
        with pytest.raises(UsageError, match="no connections from 'broker'"):
            cluster.wire("broker", CLIENT)
        with pytest.raises(UsageError, match="'broker' is not a process"):
            cluster.process("broker")


@pytest.mark.parametrize(
    ("names", "links"),
    [(("a", "a"), None), (("client",), None), (("a", "b"), {"a": ["c"]}), (("a",), {"b": []})],
)
def test_names_and_links_have_to_fit(
    names: tuple[str, ...], links: dict[str, list[str]] | None
) -> None:
    with pytest.raises(UsageError, match="wanted names that differ"):
        Cluster(*names, links=links)


@in_virtual_time
@pytest.mark.parametrize(
    ("cluster", "given"),
    [
        (Cluster("a", "b", on="process", heartbeat_s=1.0), "heartbeat_s"),
        (Cluster("a", "b", on="process", downgrade_after_s=1.0), "downgrade_after_s"),
    ],
)
async def test_what_processes_cannot_be_told_is_named_as_it_was_given(
    cluster: Cluster, given: str
) -> None:
    with pytest.raises(UsageError, match=f"has no option for: {given}$"):
        await cluster.__aenter__()


@pytest.mark.parametrize("on", ["udp", None, ["tcp"]])
def test_what_brokers_cannot_run_on_is_refused(on: object) -> None:
    with pytest.raises(UsageError, match=r"wanted one of 'tcp', 'memory', 'process'$"):
        Cluster("a", on=cast("Any", on))


@pytest.mark.parametrize("names", [(), ("",), (["a", "b"],), ("a", None)])
def test_brokers_have_names(names: tuple[object, ...]) -> None:
    with pytest.raises(UsageError, match=r"wanted names, as in Cluster\('east', 'west'\)$"):
        Cluster(*cast("Any", names))


@in_virtual_time
async def test_a_broker_that_does_not_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "journal.00000001").write_bytes(b"not a journal")
    with pytest.raises(HAClientError, match="corrupt"):
        await Cluster("a", "b", on="memory", data_dir=tmp_path).__aenter__()
    async with Cluster("a", on="memory", data_dir=tmp_path):
        pass


@in_virtual_time
async def test_a_cluster_that_has_ended_has_no_hand_in_the_next_one() -> None:
    before = network().admit, network().connected
    async with Cluster("broker", on="memory"):
        assert (network().admit, network().connected) != before
    assert (network().admit, network().connected) == before
