from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from typing_extensions import override

import haclient.aio
import haclient.blocking
from haclient import HAClient, Message, SOWRecoveryPointAdapter
from haclient.errors import HAClientError, StoreFull, UsageError
from haclient.protocol.codec import Payload
from haclient.recovery_points import sow as sow_adapter
from haclient.stores import (
    ConflatingRecoveryPointAdapter,
    LoggedBookmarkStore,
    MemoryBookmarkStore,
    MemoryPublishStore,
)
from haclient.testing import check_recovery_point_adapter
from haclient.transport.open_clients import OpenClients
from haclient_fake_server.config import BrokerConfig
from haclient_fake_server.engine.settings import SowTopic
from haclient_fake_server.server import BrokerServer
from haclient_stores.adapters.recovery_point import RecoveryPoint
from haclient_stores.publish_stores.ring import RingPublishStore, WhenFull
from support.broker import running_broker
from support.inbox import until

TOPIC = "/ADMIN/bookmark_store"
LIMIT_S = 300.0  # of a test that hangs


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer than an application waits for the last points."""
    monkeypatch.setattr(sow_adapter, "_CLOSE_S", LIMIT_S)


@pytest.fixture
async def broker() -> AsyncGenerator[BrokerServer]:
    topics = (
        SowTopic(TOPIC, ("/clientName", "/subId")),
        SowTopic("points", ("/who", "/what")),
    )
    async with running_broker(BrokerConfig(sow_topics=topics)) as server:
        yield server


def servers(broker: BrokerServer) -> list[str]:
    return [f"{uri}/amps/json" for uri in broker.uris]


def points_client(broker: BrokerServer, name: str = "points") -> HAClient:
    return HAClient(name, servers=servers(broker), publish_store=MemoryPublishStore())


@pytest.mark.row("RP1", "RP3")
async def test_it_passes_the_conformance_suite(broker: BrokerServer) -> None:
    async with points_client(broker) as client:
        await check_recovery_point_adapter(lambda: SOWRecoveryPointAdapter(client))


@pytest.mark.row("RP1", "HA24")
async def test_at_the_end_of_a_program_it_has_the_last_points(broker: BrokerServer) -> None:
    clients = OpenClients()
    async with points_client(broker) as points:
        adapter = ConflatingRecoveryPointAdapter(SOWRecoveryPointAdapter(points), max_age_s=LIMIT_S)
        store = MemoryBookmarkStore(adapter=adapter)
        async with HAClient("tracked", servers=servers(broker), bookmark_store=store) as client:
            clients.entered(points._core)
            clients.entered(client._core)
            await client.bookmark_subscribe(
                "orders", sub_id="s1", handler=lambda _: None, auto_discard=True
            )
            await points.publish("orders", b"{}")
            await until(lambda: str(store.most_recent("s1")).endswith("|"))
            await clients.drain()  # then `main` is cancelled, and with it the client of the points
            kept = await SOWRecoveryPointAdapter(points).recover("tracked")
    assert [each.bookmark for each in kept] == [str(store.most_recent("s1"))]


@pytest.mark.row("RP2")
@pytest.mark.parametrize(
    "kind", [haclient.aio.HAClient, haclient.blocking.HAClient], ids=["aio", "blocking"]
)
def test_a_client_of_another_facade_is_refused_where_the_adapter_is_made(
    kind: Callable[..., Any],
) -> None:
    with pytest.raises(UsageError, match=f"not one of {kind.__module__}"):
        SOWRecoveryPointAdapter(kind("points", servers=["tcp://127.0.0.1:1/amps/json"]))


@pytest.mark.row("RP4")
async def test_topic_and_fields_can_be_others(broker: BrokerServer) -> None:
    async with points_client(broker) as client:
        adapter = SOWRecoveryPointAdapter(
            client,
            topic="points",
            client_name_field="who",
            sub_id_field="what",
            bookmark_field="where",
        )
        assert list(await adapter.recover("it's me")) == []
        adapter.update(RecoveryPoint("s", "7|1|"))
        await adapter.close()
        async with client.sow("points") as records:
            found = [record.json() async for record in records]
        wanted: dict[str, object] = {"who": "it's me", "what": "s", "where": "7|1|", "server": ""}
        wanted |= {"caughtUpUs": 0, "generation": 0}
        assert found == [wanted]
        assert list(await adapter.recover("it's me")) == [RecoveryPoint("s", "7|1|")]
        assert adapter.decode(b"no json") is None
        assert adapter.decode(b'{"who": 1}') is None


@pytest.mark.parametrize("name", ["it's me", "back\\slash", "\\\\", "per%cent", 'quo"te'])
async def test_points_are_found_whatever_the_client_is_called(
    broker: BrokerServer, name: str
) -> None:
    async with points_client(broker) as client:
        adapter = SOWRecoveryPointAdapter(client)
        assert list(await adapter.recover(name)) == []
        adapter.update(RecoveryPoint("s", "7|1|"))
        await adapter.close()
        assert list(await SOWRecoveryPointAdapter(client).recover(name)) == [
            RecoveryPoint("s", "7|1|")
        ]


async def consume(
    broker: BrokerServer, store: LoggedBookmarkStore | MemoryBookmarkStore, count: int
) -> list[str]:
    """A run of the tracked client: so many messages, each discarded."""
    texts: list[str] = []
    message = Message()
    async with (
        HAClient("tracked", servers=servers(broker), bookmark_store=store) as client,
        client.bookmark_stream("orders", sub_id="s") as messages,
    ):
        async for message in messages:
            texts.append(message.text)
            message.discard()
            if len(texts) == count:
                break
        # Until a persisted ack covers the last one, which nothing but the store can tell.
        while str(store.most_recent("s")) < message.bookmark:  # noqa: ASYNC110  # nothing to wait on
            await trio.sleep(0.01)
    return texts


@pytest.mark.row("RP6")
async def test_the_lost_file_and_the_other_host_begin_at_the_recovery_point(
    broker: BrokerServer, tmp_path: Path
) -> None:
    async with points_client(broker) as client:
        for number in range(30):
            await client.publish("orders", str(number))
        await client.publish_flush()
        adapter = SOWRecoveryPointAdapter(client)
        store = LoggedBookmarkStore(tmp_path / "s.bm", adapter=adapter)
        with trio.fail_after(LIMIT_S):
            assert await consume(broker, store, 10) == [str(n) for n in range(10)]
            elsewhere = LoggedBookmarkStore(tmp_path / "lost.bm", adapter=adapter)
            assert await consume(broker, elsewhere, 10) == [str(n) for n in range(10, 20)]
            nowhere = MemoryBookmarkStore(adapter)
            assert await consume(broker, nowhere, 10) == [str(n) for n in range(20, 30)]


@pytest.mark.row("RP5")
async def test_the_tracked_client_cannot_keep_its_own_points(
    broker: BrokerServer, tmp_path: Path
) -> None:
    path = tmp_path / "s.bm"
    async with points_client(broker, "tracked") as client:
        store = LoggedBookmarkStore(path, adapter=SOWRecoveryPointAdapter(client))
        with pytest.raises(UsageError, match="give it a client of its own"):
            await consume(broker, store, 1)
        LoggedBookmarkStore(path).close()  # the store was let go


@pytest.mark.row("RP8")
async def test_a_point_that_cannot_be_sent_is_reported_once_and_sent_later(
    broker: BrokerServer,
) -> None:
    reported: list[HAClientError] = []
    async with HAClient("points", servers=servers(broker)) as client:
        adapter = SOWRecoveryPointAdapter(client, on_error=reported.append)
        with pytest.raises(UsageError, match="after `recover`"):
            adapter.update(RecoveryPoint("s", "7|1|"))
        await adapter.recover("tracked")
        await client.disconnect()
        adapter.update(RecoveryPoint("s", "7|1|"))
        adapter.update(RecoveryPoint("s", "7|2|"))
        adapter.poll(0.0)
        assert len(reported) == 1
        await adapter.close()
    assert len(reported) == 2
    async with points_client(broker) as client:
        assert list(await SOWRecoveryPointAdapter(client).recover("tracked")) == []


@pytest.mark.row("RP8")
async def test_what_on_error_raises_is_logged(
    broker: BrokerServer, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(error: HAClientError) -> None:
        raise ConnectionError("cannot tell of it") from error

    async with HAClient("points", servers=servers(broker)) as client:
        adapter = SOWRecoveryPointAdapter(client, on_error=refuse)
        await adapter.recover("tracked")
        await client.disconnect()
        adapter.update(RecoveryPoint("s", "7|1|"))
        await adapter.close()
    assert caplog.text.count("ConnectionError: cannot tell of it") == 2


@pytest.mark.row("RP1", "RP8")
@pytest.mark.parametrize("when_full", ["wait", "raise"])
async def test_what_the_publish_store_had_no_room_for_is_published_at_the_end(
    broker: BrokerServer, when_full: WhenFull
) -> None:
    reported: list[HAClientError] = []
    names = {f"s{number}" for number in range(1000)}
    store = RingPublishStore(None, 65536, when_full)
    async with HAClient("points", servers=servers(broker), publish_store=store) as client:
        adapter = SOWRecoveryPointAdapter(client, on_error=reported.append)
        await adapter.recover("tracked")
        for name in sorted(names):
            adapter.update(RecoveryPoint(name, "7|1|"))
        assert len(reported) == 1, "there was no room"
        with trio.fail_after(LIMIT_S):
            await adapter.close()
        assert len(reported) == 1, "then there was"
        kept = await SOWRecoveryPointAdapter(client).recover("tracked")
    assert {point.sub_id for point in kept} == names


@pytest.mark.row("RP8")
async def test_points_that_never_find_room_are_reported_with_their_number(
    broker: BrokerServer,
) -> None:
    """And the others do not wait for them."""
    reported: list[HAClientError] = []
    async with points_client(broker) as client:
        publish = client.publish_nowait

        def refuse_one(topic: str, data: Payload) -> int:
            if b'"s"' in bytes(data):  # type: ignore[arg-type]  # the adapter's are bytes
                raise StoreFull("no room for this one")
            return publish(topic, data)

        client.publish_nowait = refuse_one  # type: ignore[method-assign]  # a store that is full
        adapter = SOWRecoveryPointAdapter(client, on_error=reported.append)
        await adapter.recover("tracked")
        adapter.update(RecoveryPoint("s", "7|1|"))
        adapter.update(RecoveryPoint("t", "7|1|"))
        with trio.fail_after(LIMIT_S):
            await adapter.close()
        assert "recovery points were not published: 1" in str(reported[-1])
        kept = await SOWRecoveryPointAdapter(client).recover("tracked")
    assert [point.sub_id for point in kept] == ["t"]


@pytest.mark.row("RP4", "RP6")
async def test_records_of_other_programs_are_points_without_a_server(
    broker: BrokerServer,
) -> None:
    async with points_client(broker) as client:
        adapter = SOWRecoveryPointAdapter(client)
        point = RecoveryPoint("s", "7|1|", "east:9007", 12)
        assert adapter.decode(adapter.encode("me", point)) == ("me", point)
        assert b'"server":"east:9007","caughtUpUs":12' in adapter.encode("me", point)
        base = b'{"clientName":"me","subId":"s","bookmark":"7|1|"'
        bare = "me", RecoveryPoint("s", "7|1|")
        assert adapter.decode(base + b"}") == bare
        assert adapter.decode(base + b',"server":5,"caughtUpUs":"x"}') == bare
        assert adapter.decode(base + b',"caughtUpUs":true,"generation":"x"}') == bare
        later = RecoveryPoint("s", "7|1|", "east:9007", 12, 3)
        assert adapter.decode(adapter.encode("me", later)) == ("me", later)


class NvfixAdapter(SOWRecoveryPointAdapter):
    """Points as name=value pairs."""

    @override
    def encode(self, client_name: str, point: RecoveryPoint) -> bytes:
        values = {"who": client_name, "what": point.sub_id, "where": point.bookmark}
        return "\x01".join(f"{name}={value}" for name, value in values.items()).encode()

    @override
    def decode(self, data: bytes) -> tuple[str, RecoveryPoint] | None:
        found = dict(pair.split("=", 1) for pair in data.decode().split("\x01") if pair)
        return found["who"], RecoveryPoint(found["what"], found["where"])


class NvfixTopic:
    """A client of a server that keeps name=value records by their first two values."""

    name = "points"

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.refuses = False

    def publish_nowait(self, topic: str, data: bytes) -> None:
        assert topic == "points"
        if self.refuses:
            raise StoreFull("no room")
        self.records[data.rpartition(b"\x01")[0]] = data

    async def publish_flush(self) -> None:
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def sow(self, topic: str, *, filter: str) -> AsyncGenerator[AsyncIterator[Message]]:  # noqa: A002  # the client's name for it
        assert (topic, filter) == ("points", "/who = 'me'")
        yield self._found()

    async def _found(self) -> AsyncGenerator[Message]:
        for data in self.records.values():
            await trio.lowlevel.checkpoint()
            record = Message()
            record.data = data
            yield record

    async def sow_delete(self, topic: str, *, filter: str) -> None:  # noqa: A002  # likewise
        assert (topic, filter) == ("points", "/who = 'me' AND /where = '0'")
        await trio.lowlevel.checkpoint()
        kept = {key: data for key, data in self.records.items() if not data.endswith(b"where=0")}
        self.records = kept


@pytest.mark.row("RP4", "RP6")
async def test_the_records_can_be_of_another_message_type() -> None:
    """Overridden `encode` and `decode` are all that it takes."""
    topic = NvfixTopic()

    def adapter() -> NvfixAdapter:
        return NvfixAdapter(
            cast("HAClient", topic),
            topic="points",
            client_name_field="who",
            sub_id_field="what",
            bookmark_field="where",
        )

    first = adapter()
    assert list(await first.recover("me")) == []
    for number in range(1, 4):
        first.update(RecoveryPoint("s", f"7|{number}|"))
    first.update(RecoveryPoint("t", "7|9|"))
    await first.close()
    assert b"who=me\x01what=s\x01where=7|3|" in topic.records.values()
    second = adapter()
    kept = {point.sub_id: point for point in await second.recover("me")}
    assert kept == {"s": RecoveryPoint("s", "7|3|"), "t": RecoveryPoint("t", "7|9|")}
    second.purge("t")
    await second.close()
    assert list(await adapter().recover("me")) == [RecoveryPoint("s", "7|3|")]
    assert len(topic.records) == 2
    await second.prune()
    assert len(topic.records) == 1


async def seconds_to_publish(count: int) -> float:
    """Points that were refused at first, each of another subscription."""
    topic = NvfixTopic()
    topic.refuses = True
    adapter = NvfixAdapter(
        cast("HAClient", topic), topic="points", client_name_field="who", on_error=lambda _: None
    )
    await adapter.recover("me")
    start = time.process_time()
    for index in range(count):
        adapter.update(RecoveryPoint(f"s{index}", "7|1|"))
    topic.refuses = False
    adapter.poll(0.0)
    assert len(topic.records) == count
    return time.process_time() - start


async def test_a_point_costs_no_more_when_many_were_refused() -> None:
    few = min([sum([await seconds_to_publish(1_000) for _ in range(10)]) for _ in range(3)])
    many = min([await seconds_to_publish(10_000) for _ in range(3)])
    assert many < 4 * few
