"""Asking a server about its log."""

from __future__ import annotations

import pytest
import trio.testing

from haclient.client import Client
from haclient.errors import HAClientError, UsageError
from haclient.pyspark.rows import DataLoss
from haclient.pyspark.server.log_server import (
    ANSWER_TIMEOUT_S,
    ask,
    connected,
    count,
    known_position,
    log_info,
    set_guard,
)
from haclient.pyspark.server.offsets import LogInfo, OffsetPlace
from haclient_fake_server.config import BrokerConfig, LogTopic
from haclient_fake_server.engine import log_query
from support.broker import RawClient, running_broker
from support.peer import listening, together

LOG = LogInfo("east", (("aa", 1),), 51, 300)


async def publish(uri: str, count: int, *, size: int = 10) -> None:
    async with RawClient.connect(uri) as client:
        await client.logon("pubber")
        for number in range(1, count + 1):
            await client.send(b"x" * size, c="p", t="orders", s=number)
        await client.send(c="flush", cid="f", a="processed")
        await client.ack("processed", "f")


def test_a_place_says_where_to_begin() -> None:
    place = OffsetPlace("east", "aa", 60)
    assert known_position(LOG, {"east": place}, is_pinned=True, fails_on_loss=True) == 60
    other = {"west": place._replace(instance="west")}
    whole = LogInfo("east", (("aa", 1),), 1, 300)
    assert known_position(whole, other, is_pinned=False, fails_on_loss=True) is None
    assert known_position(LOG, other, is_pinned=False, fails_on_loss=False) is None
    with pytest.raises(DataLoss, match="begins at position 51: what it has removed"):
        known_position(LOG, other, is_pinned=False, fails_on_loss=True)
    with pytest.raises(DataLoss, match="position 60 is one of the log of 'west'"):
        known_position(LOG, other, is_pinned=True, fails_on_loss=True)
    replaced = {"east": place._replace(start="bb")}
    assert known_position(whole, replaced, is_pinned=False, fails_on_loss=True) is None


@pytest.mark.row("SB9", "SS9")
def test_positions_that_were_removed_are_data_loss_unless_that_is_accepted() -> None:
    places = {"east": OffsetPlace("east", "aa", 49)}
    with pytest.raises(DataLoss, match="positions 50 to 50 of the log of 'east' were removed"):
        known_position(LOG, places, is_pinned=True, fails_on_loss=True)
    assert known_position(LOG, places, is_pinned=True, fails_on_loss=False) == 49
    places = {"east": OffsetPlace("east", "aa", 50)}
    assert known_position(LOG, places, is_pinned=True, fails_on_loss=True) == 50


async def test_the_first_server_that_can_be_reached_is_used() -> None:
    async with running_broker(BrokerConfig(name="east")) as server:
        uris = ["tcp://127.0.0.1:1/amps/json", f"{server.uris[0]}/amps/json"]
        async with connected(uris, "reader") as client:
            assert (await log_info(client)).instance == "east"
    with pytest.raises(HAClientError, match=r"no server can be reached: .*:1.*; .*:2"):
        async with connected([uris[0], "tcp://127.0.0.1:2/amps/json"], "reader"):
            pass


async def test_a_count_goes_on_where_the_broker_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_query, "MAX_SCANNED_BYTES", 512 * 1024)
    async with running_broker() as server:
        await publish(server.uris[0], 200, size=10_000)
        async with connected([f"{server.uris[0]}/amps/json"], "reader") as client:
            whole = await count(client, topic="orders")
            assert (whole.messages, whole.bytes, whole.position) == (200, 2_000_000, 200)
            assert (whole.begins, whole.first.partition("|")[2]) == (1, "1|")
            assert list(whole.publishers.values()) == [200]
            some = await count(client, topic="orders", after=20, messages=100)
            assert (some.position, some.messages) == (120, 100)
            some = await count(client, topic="orders", payload_bytes=1_005_000)
            assert (some.position, some.messages) == (100, 100)
            some = await count(client, topic="orders", until=150)
            assert (some.position, some.messages) == (150, 150)
            bounded = f"(0:{whole.first.partition('|')[0]}|150|]"
            some = await count(client, topic="orders", bookmark=bounded)
            assert (some.position, some.messages) == (150, 150)


async def test_a_topic_without_a_log_and_a_wrong_filter_are_named_in_one_line() -> None:
    async with (
        running_broker(BrokerConfig(log_topics=(LogTopic("orders"),))) as server,
        connected([f"{server.uris[0]}/amps/json"], "reader") as client,
    ):
        with pytest.raises(UsageError, match="keeps no log of the topic 'trades'") as found:
            await count(client, topic="trades")
        assert len(str(found.value).splitlines()) == 1
        with pytest.raises(UsageError, match=r'refused the query \{"topic": "orders"'):
            await count(client, topic="orders", filter="/a ==== 1")


async def test_a_server_that_is_not_the_reference_broker_is_named_in_one_line() -> None:
    async with listening() as server, Client("reader") as client:
        peer = await server.log_on(client)

        async def refuse() -> None:
            await peer.refuse(await peer.hear(), "invalid topic")
            await peer.refuse(await peer.hear(), "invalid topic")

        async def ask_for_a_position() -> str:
            with pytest.raises(UsageError, match="can be read with command=sow only") as found:
                await count(client, topic="orders")
            return str(found.value)

        text, _ = await together(ask_for_a_position, refuse)
        assert "/HACLIENT/status" in text
        assert len(text.splitlines()) == 1


async def test_a_server_that_accepts_a_question_and_is_silent_then_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with listening() as server, Client("reader") as client:
        peer = await server.log_on(client)

        async def ask_for_the_status() -> None:
            with pytest.raises(HAClientError, match="does not answer /HACLIENT/status within"):
                await log_info(client)

        begin = autojump_clock.current_time()
        await together(ask_for_the_status, lambda: peer.answer("sow"))
        assert autojump_clock.current_time() - begin == pytest.approx(ANSWER_TIMEOUT_S)


async def test_a_guard_keeps_what_follows_a_position() -> None:
    async with (
        running_broker() as server,
        connected([f"{server.uris[0]}/amps/json"], "reader") as client,
    ):
        await publish(server.uris[0], 10)
        await set_guard(client, "reports", 5)
        await set_guard(client, "reports", 7)
        answer = await ask(client, "/HACLIENT/guards", {})
    assert [(each["name"], each["after"]) for each in answer["guards"]] == [("reports", 7)]
