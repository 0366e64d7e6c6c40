"""Clients that keep an audit log, with the reference broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
import trio
import trio.testing

from haclient.client import Client, HAClient
from haclient.errors import UsageError
from haclient.protocol.commands import Command
from haclient.protocol.identity import publisher_id
from haclient_fake_server.config import BrokerConfig, SowTopic
from haclient_stores.audit_log import AuditLog, AuditLogReader
from haclient_stores.bookmark import EPOCH
from haclient_stores.bookmark_stores.memory import MemoryBookmarkStore
from haclient_stores.interfaces import PublishStore
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.memory import MemoryPublishStore
from support.broker import running_broker
from support.disks import WatchedDisk
from support.instances import instances
from support.peer import Server

LIMIT_S = 20.0
CONFIG = BrokerConfig(ack_interval_s=0.05, sow_topics=(SowTopic("prices", ("/id",)),))


@pytest.mark.row("AU2")
@pytest.mark.usefixtures("autojump_clock")
async def test_every_publish_of_a_client_with_a_store_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    async with (
        instances("east", config=CONFIG) as (east,),
        HAClient(
            "c",
            servers=[east.uri],
            publish_store=MemoryPublishStore(),
            audit_log=AuditLog(path),
        ) as client,
    ):
        body = '{"id": 1}'
        sequences = [
            await client.publish("orders", body),
            client.publish_nowait('with "quotes"', body),
            await client.publish("orders", body, correlation_id="ab"),
            await client.publish("prices", body, delta=True),
        ]
        await client.execute_async(Command("publish", topic="last", data=body))
        await client.sow_delete("prices", data=body)
        await client.publish_flush(timeout=5)
        first = sequences[0] or 0
        with pytest.raises(UsageError, match="belongs to one client at a time"):
            Client("d", audit_log=client._core.settings.audit_log)
    found = list(AuditLogReader(path).publishes())
    assert [each.sequence for each in found] == list(range(first, first + 6))
    topics = ["orders", 'with "quotes"', "orders", "prices", "last", "prices"]
    assert [each.topic for each in found] == topics
    assert {each.publisher_id for each in found} == {publisher_id(client.name)}
    assert all(each.published_us <= (each.acked_us or 0) for each in found)
    assert [each.is_delete for each in found] == [False] * 5 + [True]


@pytest.mark.row("AU2")
async def test_a_publish_is_recorded_before_the_wait_for_a_slow_disk(tmp_path: Path) -> None:
    """The server may persist it while this machine's disk is still busy."""
    path, disk, is_busy, go_on = tmp_path / "audit", WatchedDisk(), Event(), Event()

    def hold(action: str, _: str) -> None:
        if action == "sync" and is_busy.is_set():
            go_on.wait(LIMIT_S)

    async with (
        running_broker() as server,
        HAClient(
            "c",
            servers=[f"{server.uris[0]}/amps/json"],
            publish_store=FilePublishStore(tmp_path / "p", durability="fsync", disk=disk),
            audit_log=AuditLog(path),
        ) as client,
        trio.open_nursery() as nursery,
    ):
        disk.before = hold
        is_busy.set()
        nursery.start_soon(client.publish, "orders", "{}")
        try:
            await trio.testing.wait_all_tasks_blocked()
            await client.publish_flush(timeout=LIMIT_S)
        finally:
            is_busy.clear()
            go_on.set()
    (found,) = AuditLogReader(path).publishes()
    assert found.acked_us is not None


@pytest.mark.row("AU2")
@pytest.mark.usefixtures("autojump_clock")
async def test_what_a_store_has_kept_is_acknowledged_to_the_next_run(tmp_path: Path) -> None:
    stores: tuple[Callable[[], PublishStore], ...] = (
        lambda: FilePublishStore(tmp_path / "kept"),
        MemoryPublishStore,
    )
    for number, make in enumerate(stores):
        path = tmp_path / f"audit {number}"
        async with Client("c", publish_store=make(), audit_log=AuditLog(path)) as client:
            await client.publish("orders", "1")
            await client.publish("orders", "2")
        async with (
            instances("east", config=CONFIG) as (east,),
            HAClient(
                "c", servers=[east.uri], publish_store=make(), audit_log=AuditLog(path)
            ) as client,
        ):
            await client.publish("orders", "3")
            await client.publish_flush(timeout=5)
        acked = [each.acked_us is not None for each in AuditLogReader(path).publishes()]
        assert sorted(acked) == ([True] * 3, [False, False, True])[number]


@pytest.mark.row("AU2")
async def test_deliveries_and_discards_are_recorded_in_the_order_of_receipt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit"
    async with running_broker(CONFIG) as broker:
        uri = f"{broker.uris[0]}/amps/json"
        async with Client("pub", audit_log=AuditLog(tmp_path / "pub")) as client:
            await client.connect(uri)
            await client.logon()
            await client.publish_many("orders", [b"a", b"b", b"c"], first_sequence=1)
            await client.publish_many(
                ["x", "y"], [b"d", b"e"], first_sequence=9, correlation_ids=["aa", "bb"]
            )
            await client.flush(ack="persisted")
        async with Client(
            "sub", bookmark_store=MemoryBookmarkStore(), audit_log=AuditLog(path)
        ) as client:
            await client.connect(uri)
            await client.logon()
            async with client.bookmark_stream("orders", sub_id="s", bookmark=EPOCH) as stream:
                messages = [await anext(stream) for _ in range(3)]
                messages[2].discard()
                await trio.to_thread.run_sync(messages[0].discard)
    sent = list(AuditLogReader(tmp_path / "pub").publishes())
    assert [(each.sequence, each.topic) for each in sent] == [
        (1, "orders"), (2, "orders"), (3, "orders"), (9, "x"), (10, "y")
    ]  # fmt: skip
    assert all(each.acked_us for each in sent)
    found = sorted(AuditLogReader(path).deliveries(), key=lambda each: each.ordinal)
    assert [(each.sub_id, each.sequence) for each in found] == [("s", 1), ("s", 2), ("s", 3)]
    assert [each.discarded_us is not None for each in found] == [True, False, True]
    assert all(each.received_us <= (each.discarded_us or each.received_us) for each in found)


@pytest.mark.usefixtures("autojump_clock")
async def test_a_refusal_and_the_sequence_of_a_logon_ack_are_recorded(
    server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "audit"
    async with Client("c", audit_log=AuditLog(path), exit_timeout=0) as client:
        peer = await server.log_on(client)
        for sequence in (1, 2, 3):
            await client.publish("t", b"x", sequence=sequence)
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=2)
        await trio.testing.wait_all_tasks_blocked()
        await client.disconnect()
        await server.log_on(client, seen=3, persisted=3)
        await client.publish("t", b"x", sequence=4)
    found = {each.sequence: each for each in AuditLogReader(path).publishes()}
    assert [found[n].acked_us is not None for n in (1, 2, 3, 4)] == [True, False, True, False]
    assert [found[n].refused_us is not None for n in (1, 2, 3, 4)] == [False, True, False, False]


@pytest.mark.usefixtures("autojump_clock")
@pytest.mark.parametrize("first", [None, 10], ids=["ours", "the caller's, which fall"])
async def test_a_publish_that_was_lost_with_its_connection_is_acknowledged_by_no_later_ack(
    server: Server, tmp_path: Path, first: int | None
) -> None:
    path, last = tmp_path / "audit", None if first is None else 5
    async with Client("c", audit_log=AuditLog(path), exit_timeout=0) as client:
        await server.log_on(client)
        lost = await client.publish_many("t", [b"a", b"b", b"c"], first_sequence=first)
        await client.disconnect()
        peer = await server.log_on(client, seen=0, persisted=0)
        sequence = await client.publish("t", b"d", sequence=last)
        await peer.expect("publish", sequence=sequence)
        await peer.persisted(sequence)
        await client.wait_persisted(sequence, timeout=1)
    found = {each.sequence: each.acked_us is not None for each in AuditLogReader(path).publishes()}
    assert found == dict.fromkeys(range(lost - 2, lost + 1), False) | {sequence: True}


def test_a_client_that_cannot_be_made_closes_its_audit_log(tmp_path: Path) -> None:
    store = MemoryPublishStore()
    store.open_for("someone else")
    with pytest.raises(Exception, match="someone else"):
        Client("c", publish_store=store, audit_log=AuditLog(tmp_path))
    AuditLog(tmp_path).close()
