"""Faults in the files of a real broker are found, and named with their bookmarks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import trio

from haclient import Client, Command, HAClient
from haclient.cli.app import run
from haclient.pyspark.jobs.reconcile import reconcile
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.sealing import seal_journal
from haclient.pyspark.journal.source import JournalRangeReader, JournalSettings
from haclient.stores import AuditLog, AuditLogReader, MemoryBookmarkStore, MemoryPublishStore
from haclient_fake_server.journal.format import Record
from haclient_fake_server.testing.processes import BrokerProcess
from support.journals import model_rows, rewrite_journal

LIMIT_S = 100.0
COUNT = 60
PUBLISHERS = ("gateway", "feed")
TOPICS = ("orders", "prices")

Messages = list[tuple[str, Record]]


async def trade(uri: str, folder: Path) -> None:
    """Two publishers and a subscriber, which keep audit logs."""
    with trio.fail_after(LIMIT_S):
        async with (
            HAClient(
                "desk",
                servers=[uri],
                bookmark_store=MemoryBookmarkStore(),
                audit_log=AuditLog(folder / "desk"),
            ) as desk,
            desk.bookmark_stream("orders", sub_id="orders-desk") as stream,
        ):
            for name, topic in zip(PUBLISHERS, TOPICS, strict=True):
                await publish(uri, name, topic, folder)
            for _ in range(COUNT):
                (await anext(stream)).discard()


async def publish(uri: str, name: str, topic: str, folder: Path) -> None:
    async with HAClient(
        name,
        servers=[uri],
        publish_store=MemoryPublishStore(),
        audit_log=AuditLog(folder / name),
    ) as client:
        for number in range(COUNT):
            await client.publish(topic, b'{"id": %d}' % number)
        await client.publish_flush(timeout=LIMIT_S)


@pytest.fixture(scope="module")
def traded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the run leaves: the journal in `east`, and the audit logs of the three clients."""
    folder = tmp_path_factory.mktemp("traded")
    with BrokerProcess(data_dir=folder / "east") as broker:
        trio.run(trade, broker.uri, folder)
    return folder


async def refused_first(uri: str) -> None:
    async with Client("gateway") as client:
        await client.connect(uri)
        await client.logon()
        await client.execute_async(Command("publish", topic="/HACLIENT/status", sequence=1))
        await client.flush(timeout=LIMIT_S)  # in one read with the next, it gets no record
        await client.publish("orders", b"{}", sequence=2)
        await client.flush(timeout=LIMIT_S, ack="persisted")


def test_a_journal_whose_first_message_was_refused_has_its_beginning(tmp_path: Path) -> None:
    with BrokerProcess(data_dir=tmp_path / "east") as broker:
        trio.run(refused_first, broker.uri)
    settings = JournalSettings({"journalPath": str(tmp_path / "east"), "columns": "position"})
    reader = JournalRangeReader(settings)
    rows = [row for part in reader.partitions() for row in reader.read(part)]
    assert rows[0].column(0).to_pylist() == [2]
    assert JournalLog(tmp_path / "east", sealed=True).first_position == 1


def with_faults(messages: Messages) -> Messages:
    """Of the gateway a message is lost and one is repeated; two of the feed change places."""
    orders = [each for each in messages if each[0] == "orders"]
    prices = [each for each in messages if each[0] == "prices"]
    prices[20], prices[21] = prices[21], prices[20]
    return [*orders[:10], *orders[11:40], orders[30], *orders[40:], *prices]


def bookmarks(journal: Path, topic: str) -> list[str]:
    return [row.bookmark for row in model_rows(journal) if row.topic == topic]


def audit_words(traded: Path, journal: Path) -> list[str]:
    """The command that compares a journal with the audit logs of the run."""
    logs = [word for name in PUBLISHERS for word in ("--publisher-log", str(traded / name))]
    subscriber = ["--subscriber-log", str(traded / "desk")]
    words = [*logs, *subscriber, "--subscription", "orders-desk", "orders"]
    return ["pyspark", "audit", str(journal), *words]


@pytest.mark.row("AU1")
@pytest.mark.usefixtures("spark")
def test_what_a_broker_has_logged_and_delivered_is_good(
    traded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*audit_words(traded, traded / "east"), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["verdict"] == "good"
    looked_for = {"duplicate", "order break", "lost", "undelivered", "received twice"}
    assert looked_for <= set(verdict["violations"])
    facts = {"messages": 2 * COUNT, "published": 2 * COUNT, "received": COUNT, "in_flight": 0}
    assert facts.items() <= verdict["facts"].items()
    # The journal has what the clients' logs say, message by message.
    for name, topic in zip(PUBLISHERS, TOPICS, strict=True):
        sent = [
            f"{each.publisher_id}|{each.sequence}|"
            for each in AuditLogReader(traded / name).publishes()
        ]
        assert sent == bookmarks(traded / "east", topic)


@pytest.mark.row("AU1", "AU2")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_sealed", [False, True])
def test_each_fault_that_is_planted_in_the_files_is_named_with_its_bookmark(
    *, traded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_sealed: bool
) -> None:
    orders, prices = (bookmarks(traded / "east", topic) for topic in TOPICS)
    rewrite_journal(traded / "east", tmp_path / "bad", with_faults, segment_bytes=4096)
    if is_sealed:
        assert len(seal_journal(tmp_path / "bad")) > 1
    capsys.readouterr()
    assert run(audit_words(traded, tmp_path / "bad")) == 4
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "bad: 1 duplicate, 1 order break, 1 lost, 1 not logged"
    found = {line.partition(": ")[0]: line.partition(": ")[2].split() for line in lines}
    assert found["duplicate"][:2] == [orders[30], "orders"]
    assert found["duplicate"][-1] == "30"  # the position that it had before, one message missing
    assert found["order break"][:2] == [prices[20], "prices"]
    assert found["lost"][:2] == [orders[10], "orders"]
    # The desk has received what the journal has lost.
    assert found["not logged"][:2] == [orders[10], "orders-desk"]


def other_content(messages: Messages) -> Messages:
    """The first 20 messages, of which one has another payload; all publishers in another order."""
    changed = [
        (topic, record._replace(payload=b"other")) if number == 5 else (topic, record)
        for number, (topic, record) in enumerate(messages)
        if number != 7
    ]
    return sorted(changed, key=lambda each: each[0], reverse=True)


@pytest.mark.row("AU3")
@pytest.mark.usefixtures("spark")
def test_a_replica_that_has_diverged_is_named_message_by_message(
    traded: Path, tmp_path: Path
) -> None:
    orders = bookmarks(traded / "east", "orders")
    shutil.copytree(traded / "east", tmp_path / "same")
    rewrite_journal(traded / "east", tmp_path / "other", other_content, segment_bytes=4096)
    assert seal_journal(tmp_path / "other")

    def found(result: Audit) -> list[tuple[FindingKind, str]]:
        return sorted((each.kind, each.bookmark) for each in result.violations)

    assert reconcile(traded / "east", tmp_path / "same").is_good
    result = reconcile(traded / "east", tmp_path / "other", names=("east", "west"))
    assert found(result) == [
        (FindingKind.MISSING_IN_REPLICA, orders[7]),
        (FindingKind.CONTENT, orders[5]),
    ]
    assert {each.detail for each in result.violations} == {
        "missing in west",
        "east and west hold different messages under this bookmark",
    }
