"""Archive, compress and remove, by action, on a schedule and over the admin interface."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from typing_extensions import override

from haclient.errors import UsageError
from haclient_fake_server import hub, maintenance
from haclient_fake_server.admin import ACTIONS, ConflictError
from haclient_fake_server.config import BrokerConfig, QueueTopic, ReplicateTo, SowTopic
from haclient_fake_server.engine.sow.saved import SowChanges
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import segment_name
from haclient_fake_server.journal.sow_database import PreparedChanges, SowDatabase
from haclient_fake_server.server import BrokerServer
from haclient_stores.disk.files import RealDisk
from haclient_stores.errors import StoreError
from support.broker import RawClient, running_broker
from support.inbox import until

BODY = b'{"id": %d, "text": "' + 300 * b"x" + b'"}'


def config(root: Path) -> BrokerConfig:
    return BrokerConfig(data_dir=root / "log", archive_dir=root / "archive", segment_bytes=4096)


async def publish(client: RawClient, first: int, count: int, *, key: int | None = None) -> None:
    for number in range(first, first + count):
        await client.send(BODY % (number if key is None else key), c="p", t="orders", s=number)
        await client.send(c="flush", cid="f", a="persisted")  # so each is a block of its own
        await client.ack("persisted", "f")


@asynccontextmanager
async def filled(settings: BrokerConfig) -> AsyncIterator[tuple[BrokerServer, RawClient]]:
    async with running_broker(settings) as server, RawClient.connect(server.uris[0]) as client:
        await client.logon("pubber", opts="ack_conflation=0s")
        await publish(client, 1, 40)
        yield server, client


async def act(server: BrokerServer, action: str, number: int = 1) -> str:
    """Carry out an action as soon as its segment is sealed; the refusal, if there is one."""
    while True:
        try:
            await server.maintain_journal(action, number)  # type: ignore[arg-type]  # as in paths
        except UsageError as error:
            if "still written" not in str(error):
                return str(error)
            await trio.lowlevel.checkpoint()  # a thread is sealing it
        else:
            return ""


async def replayed(server: BrokerServer, count: int) -> list[int]:
    async with RawClient.connect(server.uris[0]) as reader:
        await reader.logon("reader")
        await reader.send(c="subscribe", cid="1", t="orders", bm="0")
        return [int(each.bookmark.split("|")[1]) for each in await reader.publishes(count)]


@pytest.mark.row("TL8", "TL9", "TL10")
async def test_a_replay_reads_what_was_archived_and_compressed(tmp_path: Path) -> None:
    async with filled(config(tmp_path)) as (server, _):
        assert [await act(server, "archive", number) for number in (1, 2)] == ["", ""]
        assert [await act(server, "compress", number) for number in (2, 3)] == ["", ""]
        assert await replayed(server, 40) == list(range(1, 41))
    async with running_broker(config(tmp_path)) as server:
        assert await replayed(server, 40) == list(range(1, 41))
        assert await act(server, "remove", 2) == (
            f"remove {segment_name(2)}: it would leave a gap: remove {segment_name(1)} first"
        )
        assert await act(server, "remove", 1) == ""
        first = int(server.rows("transaction_log")[0]["first_position"])
        assert await replayed(server, 41 - first) == list(range(first, 41))


async def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    async with filled(replace(config(tmp_path), archive_dir=None)) as (server, _):
        assert "no archive directory" in await act(server, "archive")
        assert await act(server, "compress") == ""
        assert "compressed already" in await act(server, "compress")
        assert "no such segment" in await act(server, "remove", 999)
        with pytest.raises(UsageError, match="wanted the number"):
            server.begin_journal_action("remove", "one")
        live = int(server.rows("transaction_log")[-1]["number"])
        with pytest.raises(ConflictError, match="still written"):
            await server.maintain_journal("remove", live)
    async with running_broker() as server:
        assert "no journal on disk" in await act(server, "remove")


@pytest.mark.row("TL11", "B17")
async def test_a_guard_holds_what_it_needs(tmp_path: Path) -> None:
    async with filled(config(tmp_path)) as (server, client):
        guard = {"c": "sow", "t": "/HACLIENT/guards", "cid": "g", "a": "completed"}
        await client.send(b'{"name": "nightly", "after": 0}', **guard)
        await client.ack("completed", "g")
        assert "guard 'nightly' needs position 1" in await act(server, "remove")


@pytest.mark.row("TL11")
async def test_a_paused_subscription_holds_what_it_needs(tmp_path: Path) -> None:
    async with filled(config(tmp_path)) as (server, client):
        await client.send(c="subscribe", cid="1", sub_id="s", t="orders", bm="0", opts="pause")
        await client.send(c="flush", cid="2", a="persisted")
        await client.ack("persisted", "2")
        reason = await act(server, "remove")
        assert reason.endswith("of client 'pubber' needs position 1")
        assert "paused subscription" in reason


@pytest.mark.row("TL11")
async def test_a_queue_and_a_destination_hold_what_they_need(tmp_path: Path) -> None:
    queue = QueueTopic(name="work", topics=("orders",))
    async with filled(replace(config(tmp_path), queues=(queue,))) as (server, _):
        assert "queue 'work' needs position 1" in await act(server, "remove")
    nobody = ReplicateTo("tcp://127.0.0.1:9", "async")
    other = replace(config(tmp_path / "other"), replicate_to=(nobody,))
    async with filled(other) as (server, _):
        reason = await act(server, "remove")
        assert "replication to tcp://127.0.0.1:9 has not acknowledged" in reason


@pytest.mark.row("TL11")
async def test_a_record_of_a_sow_is_not_lost_by_a_removal(tmp_path: Path) -> None:
    settings = replace(config(tmp_path), sow_topics=(SowTopic("orders", ("/id",)),))
    async with filled(settings) as (server, client):
        assert "of topic 'orders' is in it" in await act(server, "remove")
        await publish(client, 41, 40, key=1)
        for number in range(2, 41):
            await client.send(b'{"id": %d}' % number, c="p", t="orders", s=80 + number)
        await client.send(c="flush", cid="2", a="persisted")
        await client.ack("persisted", "2")
        assert await act(server, "remove") == ""
    async with running_broker(settings) as server:
        (row,) = server.rows("sow")
        assert row["records"] == 40


class _KeepingDisk(RealDisk):
    """A disk on which the first segment cannot be removed for a while."""

    keeps = False

    @override
    def remove(self, path: Path) -> None:
        if self.keeps and path.name == segment_name(1):
            raise StoreError(f"{path}: cannot remove: Permission denied")
        super().remove(path)


async def test_a_removal_that_has_failed_is_made_up_before_the_next_one(tmp_path: Path) -> None:
    disk, settings = _KeepingDisk(), config(tmp_path)
    async with (
        BrokerServer(settings, disk=disk) as server,
        RawClient.connect(server.uris[0]) as client,
    ):
        await client.logon("pubber", opts="ack_conflation=0s")
        await publish(client, 1, 40)
        assert await act(server, "archive") == ""
        disk.keeps = True
        for number in (1, 2):  # the second would leave a gap in the files
            with pytest.raises(StoreError, match="cannot remove"):
                await act(server, "remove", number)
        disk.keeps = False
        assert await act(server, "remove", 2) == ""
    async with running_broker(settings) as server:
        assert server.rows("transaction_log")[0]["number"] == 3


@pytest.mark.row("RE3", "TL10")
async def test_a_destination_that_lacks_what_was_removed_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(config(tmp_path)) as (server, _):
        assert await act(server, "remove") == ""
        first = int(server.rows("transaction_log")[0]["first_position"])
    async with running_broker(BrokerConfig(name="west")) as west:
        settings = replace(config(tmp_path), replicate_to=(ReplicateTo(west.uris[0], "async"),))
        for _ in range(2):
            async with running_broker(settings) as east:
                with trio.fail_after(20):
                    await until(lambda: east.destinations[0].is_connected)
                    await until(lambda: east.destinations[0].behind == 0)
        assert await replayed(west, 41 - first) == list(range(first, 41))
    reports = [each.message for each in caplog.records if "was removed" in each.message]
    wanted = f"what was before position {first} was removed: west lacks some of it, and is sent"
    assert reports == [f"broker: replication to {west.uris[0]}: {wanted} what follows"]


@pytest.mark.row("TL13")
async def test_segments_are_archived_compressed_and_removed_by_their_age(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(maintenance, "RETURN_S", 0.2)
    settings = replace(config(tmp_path), archive_after_s=0.001, compress_after_s=0.001)
    async with filled(settings) as (server, _):
        archive = tmp_path / "archive"
        with trio.fail_after(20):
            await until((archive / f"{segment_name(1)}.gz").exists)
        assert await replayed(server, 40) == list(range(1, 41))
    begun = trio.current_time()
    async with running_broker(replace(config(tmp_path), remove_after_s=0.001)) as server:
        with trio.fail_after(20):
            await until(lambda: server.rows("transaction_log")[0]["number"] != 1)
    assert trio.current_time() >= begun + 0.2  # those who need it can connect before


@pytest.mark.row("AD2", "TL10")
async def test_actions_are_begun_over_the_admin_interface(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with filled(config(tmp_path)) as (server, _):
        assert await act(server, "compress", 1) == ""
        ACTIONS["transaction_log", "archive"](server, "1")
        with pytest.raises(UsageError, match="compressed already"):
            ACTIONS["transaction_log", "compress"](server, "1")
        with trio.fail_after(20):
            await until(lambda: "archive journal.00000001: done" in caplog.text)
        ACTIONS["transaction_log", "remove"](server, "1")
        with trio.fail_after(20):
            await until(lambda: not (tmp_path / "archive" / f"{segment_name(1)}.gz").exists())


@pytest.mark.row("SW10", "TL11")
async def test_records_of_a_file_backed_topic_outlive_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topics = (SowTopic("orders", ("/id",), file_backed=True),)
    settings = replace(config(tmp_path), sow_topics=topics)
    async with filled(settings) as (server, _):
        wanted = "the records of file-backed topics are not written yet"
        assert wanted in await act(server, "remove")
    monkeypatch.setattr(hub, "SOW_INTERVAL_S", 0.01)
    async with running_broker(settings) as server:  # the last one has written them at its end
        assert await act(server, "remove") == ""
        first = int(server.rows("transaction_log")[0]["first_position"])
        assert first > 1
        async with RawClient.connect(server.uris[0]) as client:
            await client.logon("pubber", opts="ack_conflation=0s")
            await publish(client, 41, 20)
            while await act(server, "remove", 2):  # it is written meanwhile
                await trio.lowlevel.checkpoint()
    async with (
        running_broker(settings) as server,
        RawClient.connect(server.uris[0]) as reader,
    ):
        await reader.logon("reader")
        await reader.send(c="sow", cid="1", t="orders", a="stats")
        assert (await reader.ack("stats", "1")).topic_matches == 60
    assert "sow.db" not in caplog.text
    async with running_broker(replace(settings, sow_topics=())):
        assert "sow.db: not read, since no topic is file-backed" in caplog.text


async def test_records_that_are_written_while_the_broker_is_closed_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = (SowTopic("orders", ("/id",), file_backed=True),)
    settings = replace(config(tmp_path), sow_topics=topics)
    token, syncing, closing = trio.lowlevel.current_trio_token(), trio.Event(), threading.Event()
    prepare, sync = SowDatabase.prepare, JournalFiles.sync

    def prepare_and_hold(database: SowDatabase, changes: Iterator[SowChanges]) -> PreparedChanges:
        monkeypatch.setattr(JournalFiles, "sync", held_sync)
        monkeypatch.setattr(SowDatabase, "prepare", prepare)
        return prepare(database, changes)

    def held_sync(files: JournalFiles) -> None:
        if threading.current_thread() is not threading.main_thread() and not closing.is_set():
            token.run_sync_soon(syncing.set)
            closing.wait(60)
        sync(files)

    async def let_sync_end() -> None:
        await syncing.wait()
        await trio.testing.wait_all_tasks_blocked()  # the broker is being closed
        closing.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(let_sync_end)
        monkeypatch.setattr(hub, "SOW_INTERVAL_S", 0.01)
        async with filled(settings) as (_, client):
            monkeypatch.setattr(SowDatabase, "prepare", prepare_and_hold)
            await publish(client, 41, 1)
            await syncing.wait()
    async with (
        running_broker(settings) as server,
        RawClient.connect(server.uris[0]) as reader,
    ):
        await reader.logon("reader")
        await reader.send(c="sow", cid="1", t="orders", a="stats")
        assert (await reader.ack("stats", "1")).topic_matches == 41


async def test_records_are_kept_when_the_end_of_the_log_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = (SowTopic("orders", ("/id",), file_backed=True),)
    settings = replace(config(tmp_path), sow_topics=topics)
    failed = trio.Event()
    prepare = SowDatabase.prepare

    def fail_once(database: SowDatabase, changes: Iterator[SowChanges]) -> PreparedChanges:
        if not failed.is_set():
            failed.set()
            raise StoreError("journal.00000001: cannot read: Input/output error")
        return prepare(database, changes)

    monkeypatch.setattr(hub, "SOW_INTERVAL_S", 0.01)
    async with filled(settings) as (_, client):
        monkeypatch.setattr(SowDatabase, "prepare", fail_once)
        await publish(client, 41, 1)
        await failed.wait()
    async with (
        running_broker(settings) as server,
        RawClient.connect(server.uris[0]) as reader,
    ):
        await reader.logon("reader")
        await reader.send(c="sow", cid="1", t="orders", a="stats")
        assert (await reader.ack("stats", "1")).topic_matches == 41


async def test_nothing_is_done_with_an_archive_that_is_away(tmp_path: Path) -> None:
    archive, away = tmp_path / "archive", tmp_path / "away"
    async with filled(config(tmp_path)) as (server, _):
        assert [await act(server, "archive", number) for number in (1, 2, 3)] == ["", "", ""]
        archive.rename(away)
        archive.mkdir()  # where it was mounted
        for action, number in (("archive", 4), ("remove", 1)):
            with pytest.raises(StoreError, match="archive: is away"):
                await act(server, action, number)
        archive.rmdir()
        away.rename(archive)
        assert [await act(server, "remove", 2), await act(server, "archive", 4)] == ["", ""]
    async with running_broker(config(tmp_path)) as server:
        assert server.rows("transaction_log")[0]["number"] == 3
