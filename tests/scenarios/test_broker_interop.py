"""The interop scripts that concern this broker, over real sockets where time does not matter."""

from __future__ import annotations

import pytest

from haclient.client import Client, HAClient
from haclient.errors import DisconnectedError, HAClientError
from haclient.protocol.identity import publisher_id
from haclient.servers.chooser import DefaultServerChooser
from haclient.servers.delay import FixedDelayStrategy
from haclient.transport.links.memory_network import network
from haclient_fake_server.config import BrokerConfig, SowTopic
from support.broker import RawClient, running_broker
from support.clock import in_virtual_time
from support.instances import instances
from support.peer import Peer

PUBBER = publisher_id("pubber")
QUICK = BrokerConfig(ack_interval_s=0.05)


@pytest.mark.row("ID8", "AK2", "ID2")
async def test_scripts_1_and_2_sequences_acks_and_duplicates() -> None:
    async with running_broker(QUICK) as server:
        async with RawClient.connect(server.uris[0]) as client:
            assert (await client.logon("pubber")).sequence == 0
            for number in (1, 2, 3):
                await client.send(b"%d" % number, c="p", t="orders", s=number, a="persisted")
            ack = await client.persisted(3)
            assert (ack.status, ack.command_id) == ("success", "")
        async with RawClient.connect(server.uris[0]) as client:
            logon = await client.logon("pubber")
            assert (logon.sequence, logon.bookmark) == (3, f"{PUBBER}|3|")
            for number in (2, 3, 4):
                await client.send(b"%d" % number, c="p", t="orders", s=number, a="persisted")
            await client.send(c="flush", cid="f", a="persisted")
            await client.persisted(4)
            await client.send(c="subscribe", cid="1", t="orders", bm="0")
            bodies = [message.data for message in await client.publishes(4)]
            assert bodies == [b"1", b"2", b"3", b"4"]


@pytest.mark.row("RB3", "RB9", "RB10", "RB16")
async def test_script_3_replay_completed_live_and_persisted() -> None:
    async with (
        running_broker(QUICK) as server,
        RawClient.connect(server.uris[0]) as writer,
        RawClient.connect(server.uris[0]) as reader,
    ):
        await writer.logon("pubber")
        for number in (1, 2):
            await writer.send(c="p", t="orders", s=number, a="persisted")
        await writer.persisted(2)
        await reader.logon("reader")
        acks = "processed,completed,persisted"
        await reader.send(c="subscribe", cid="1", sub_id="s", t="orders", bm="0", a=acks)
        await reader.ack("processed", "1")
        replayed = await reader.publishes(2)
        assert [message.bookmark for message in replayed] == [f"{PUBBER}|1|", f"{PUBBER}|2|"]
        completed = await reader.ack("completed", "1")
        assert (completed.bookmark, completed.sub_id) == (f"{PUBBER}|2|", "s")
        await writer.send(c="p", t="orders", s=3, a="persisted")
        (live,) = await reader.publishes(1)
        assert live.bookmark == f"{PUBBER}|3|"
        persisted = await reader.ack("persisted")
        assert (persisted.bookmark, persisted.sub_id) == (f"{PUBBER}|3|", "s")


@pytest.mark.row("RB5")
async def test_script_4_a_list_starts_at_its_earliest_position() -> None:
    a, b = publisher_id("A"), publisher_id("B")
    async with running_broker() as server:
        async with (
            RawClient.connect(server.uris[0]) as first,
            RawClient.connect(server.uris[0]) as second,
        ):
            await first.logon("A")
            await second.logon("B")
            for number in (1, 2):
                for client, name in ((first, b"A"), (second, b"B")):
                    await client.send(b"%b%d" % (name, number), c="p", t="orders", s=number)
                    await client.send(c="flush", cid="f", a="processed")
                    await client.ack("processed", "f")
        async with RawClient.connect(server.uris[0]) as reader:
            await reader.logon("reader")
            await reader.send(c="subscribe", cid="1", t="orders", bm=f"{a}|2|,{b}|1|")
            bodies = [message.data for message in await reader.publishes(2)]
            assert bodies == [b"A2", b"B2"]


@pytest.mark.row("SW1", "SW2")
async def test_scripts_5_and_6_queries_and_out_of_focus() -> None:
    config = BrokerConfig(sow_topics=(SowTopic("orders", ("/id",)),))
    async with running_broker(config) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        for number in range(25):
            await client.send(b'{"id":%d,"px":%d}' % (number, number), c="p", t="orders")
        await client.send(c="sow", cid="q", t="orders", bs=10, a="processed,completed,stats")
        await client.until(lambda message: message.kind == "group_begin")
        sizes = [(await client.until(lambda m: m.kind == "sow")).batch_size for _ in range(25)]
        assert sizes == [10] * 20 + [5] * 5
        await client.until(lambda message: message.kind == "group_end")
        assert (await client.ack("stats", "q")).records_returned == 25
        await client.send(
            c="sow_and_subscribe", cid="s", t="orders", filter="/px < 5", opts="oof", bs=10
        )
        await client.until(lambda message: message.kind == "group_end")
        await client.send(b'{"id":1,"px":50}', c="p", t="orders")
        match = await client.until(lambda message: message.kind == "oof")
        assert (match.reason, match.data) == ("match", b'{"id":1,"px":50}')
        await client.send(c="sow_delete", t="orders", filter="/id = 2")
        deleted = await client.until(lambda message: message.kind == "oof")
        assert (deleted.reason, deleted.data) == ("deleted", b'{"id":2,"px":2}')


@in_virtual_time  # in real time a machine that stands still for a moment misses a beat
@pytest.mark.row("AD9")
async def test_script_8_heartbeats() -> None:
    async with instances("east"):
        client = Peer(await network().connect("east:1"))
        await client.say("logon", client_name="pubber", a="processed")
        await client.say("heartbeat", cid="1", a="processed", opts="start,0.05")
        assert [(await client.hear()).kind for _ in range(2)] == ["ack", "ack"]
        for _ in range(4):
            assert (await client.hear()).kind == "heartbeat"
            await client.say("heartbeat", opts="beat")
        await client.listen_until_end()  # it sends no more beats
        *beats, last = client.heard[6:]
        assert {message.kind for message in beats} == {"heartbeat"}
        assert (last.kind, last.status, last.reason) == ("ack", "failure", "heartbeat")


@pytest.mark.row("ID4", "ID5", "ID6", "ID7")
async def test_script_9_one_connection_per_name() -> None:
    async with (
        running_broker() as server,
        RawClient.connect(server.uris[0]) as first,
        RawClient.connect(server.uris[0]) as second,
        RawClient.connect(server.uris[0]) as third,
    ):
        await first.logon("pubber", user_id="ann")
        await second.logon("pubber", user_id="ann")
        assert (await first.ack("processed")).reason == "name in use"
        await first.closed()
        refused = await third.logon("pubber", user_id="bob")
        assert (refused.status, refused.reason) == ("failure", "name in use")
        await third.closed()
        await second.send(c="flush", cid="f", a="processed")
        await second.ack("processed", "f")


async def test_script_10_replace_changes_the_filter_without_loss() -> None:
    async with running_broker() as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber")
        await client.send(c="subscribe", cid="1", sub_id="s", t="orders", filter="/n < 10")
        await client.send(b'{"n":1}', c="p", t="orders")
        await client.send(
            c="subscribe", cid="2", sub_id="s", t="orders", filter="/n > 10", opts="replace"
        )
        await client.send(b'{"n":2}', c="p", t="orders")
        await client.send(b'{"n":30}', c="p", t="orders")
        bodies = [message.data for message in await client.publishes(2)]
        assert bodies == [b'{"n":1}', b'{"n":30}']


@in_virtual_time
async def test_a_client_says_which_message_type_its_server_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = BrokerConfig(listen=("mem://unknown-type:1",))
    async with running_broker(config):
        uri = "mem://unknown-type:1/amps/jsno"
        async with Client("plain") as client:
            await client.connect(uri)
            with pytest.raises(DisconnectedError, match="invalid message type: 'jsno' is none of"):
                await client.logon()
        chooser = DefaultServerChooser([uri])
        delays = FixedDelayStrategy(1, give_up_after=10)
        ha = HAClient("ha", server_chooser=chooser, delay_strategy=delays)
        with pytest.raises(HAClientError, match="'jsno' is none of"):
            async with ha:
                pass
    warnings = [each.message for each in caplog.records if each.name.startswith("haclient.")]
    assert any("invalid message type: 'jsno' is none of" in text for text in warnings)
