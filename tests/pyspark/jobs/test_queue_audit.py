"""Each message of a queue has left it once or is still in it; what is not so is named."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from haclient import HAClient, Message
from haclient.errors import UsageError
from haclient.protocol.identity import publisher_id
from haclient.pyspark.jobs.queue_audit import AuditedQueue, audit_queues
from haclient.pyspark.jobs.verdict import Audit, FindingKind
from haclient_fake_server.config import BrokerConfig, QueueTopic
from haclient_fake_server.journal.format import (
    Record,
    RecordCommand,
    RemovalReason,
    read_removals,
    segment_name,
)
from haclient_fake_server.server import BrokerServer
from support.journals import JournalWriter, message, model_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.row("AU4")

QUEUES = (
    AuditedQueue(name="orders"),
    AuditedQueue(name="all", topics=("^(orders|prices)$",)),
    AuditedQueue(name="late", topics=("prices",), is_from_epoch=False),
    AuditedQueue(name="two", topics=("orders", "other")),
)
FED = {
    "orders": {"orders"},
    "all": {"orders", "prices"},
    "late": {"prices"},
    "two": {"orders", "other"},
}
Key = tuple[int, int]  # publisher, sequence


def table(result: Audit, name: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in result.tables[name].collect()]


def found(result: Audit) -> Counter[tuple[FindingKind, str, str]]:
    """Kind, bookmark and queue of each violation."""
    return Counter((v.kind, v.bookmark, v.detail.split("'")[1]) for v in result.violations)


# --- a model --------------------------------------------------------------------------------------


@dataclass
class Model:
    """What a plain walk over the records says of one queue."""

    states: dict[Key, str] = field(default_factory=dict)  # of messages in the journal
    entered_us: dict[Key, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    unknown: dict[Key, int] = field(default_factory=dict)
    twice: set[Key] = field(default_factory=set)
    before: set[Key] = field(default_factory=set)  # removed, and logged only then


def remove(model: Model, key: Key, reason: int, at_us: int) -> None:
    state = model.states.get(key)
    if key in model.unknown or state not in {None, "queued"}:
        model.twice.add(key)
    elif state is None:
        model.unknown[key] = reason
    else:
        model.states[key] = RemovalReason(reason).name.lower()
        model.seconds.append((at_us - model.entered_us[key]) / 1e6)


def enter(model: Model, key: Key, at_us: int) -> None:
    model.entered_us[key] = at_us
    reason = model.unknown.pop(key, None)
    if reason is None:
        model.states[key] = "queued"
    else:
        model.states[key] = RemovalReason(reason).name.lower()
        model.before.add(key)


def walk(folder: Path) -> dict[str, Model]:
    """The model of every queue, record by record."""
    models = {name: Model() for name in FED}
    topics: dict[int, str] = {}
    for record in model_records(folder):
        if record.command == RecordCommand.TOPIC:
            topics[record.topic_id] = record.payload.decode()
        elif record.command == RecordCommand.PUBLISH:
            for name, fed in FED.items():
                if topics[record.topic_id] in fed:
                    key = (record.publisher_id, record.sequence)
                    enter(models[name], key, record.timestamp_us)
        elif record.command == RecordCommand.QUEUE_REMOVE:
            removals = read_removals(record)
            for publisher, sequence, reason in removals.entries:
                name = removals.queue.decode()
                remove(models[name], (publisher, sequence), reason, record.timestamp_us)
    # Of a queue that did not begin with the log, what is before the first removal is undecided.
    late = models["late"].states
    begun = False
    for key, state in late.items():
        begun = begun or state != "queued"
        if not begun:
            late[key] = "undecided"
    return models


def expected(folder: Path) -> tuple[Counter[tuple[FindingKind, str, str]], int]:
    """The violations that the model names, and how many removals cannot be judged."""
    firsts: dict[int, int] = {}
    is_whole = False
    for record in model_records(folder):
        if record.command in {RecordCommand.PUBLISH, RecordCommand.SOW_DELETE}:
            firsts.setdefault(record.publisher_id, record.sequence)
            is_whole = is_whole or record.position == 1
    wanted: Counter[tuple[FindingKind, str, str]] = Counter()
    unjudged = 0
    for name, model in walk(folder).items():
        never = set(model.before)
        for publisher, sequence in model.unknown:
            if is_whole or sequence >= firsts.get(publisher, sequence + 1):
                never.add((publisher, sequence))
            else:
                unjudged += 1
        lost = {key for key, state in model.states.items() if state == "lost"}
        for kind, keys in (
            (FindingKind.REMOVED_TWICE, model.twice),
            (FindingKind.NEVER_QUEUED, never),
            (FindingKind.LOST_FROM_QUEUE, lost),
        ):
            wanted.update((kind, f"{publisher}|{sequence}|", name) for publisher, sequence in keys)
    return wanted, unjudged


def check(spark: SparkSession, folder: Path) -> Audit:
    """Audit a journal, and compare the result with that of the model."""
    result = audit_queues(spark, folder, QUEUES)
    wanted, unjudged = expected(folder)
    assert found(result) == wanted
    assert result.facts["not_compared"] == unjudged
    models = walk(folder)
    for row in table(result, "queues"):
        model = models[row["queue"]]
        states = Counter(model.states.values())
        assert row["messages"] == len(model.states)
        assert row["removed_unknown"] == len(model.unknown)
        names = [reason.name.lower() for reason in RemovalReason]
        for name in (*names, "queued", "undecided"):
            assert row[name] == states[name], (row, name)
    for name, model in models.items():
        times = [row for row in table(result, "queue_times") if row["queue"] == name]
        if not model.before:
            assert sum(row["messages"] for row in times) == len(model.seconds)
            longest = max((row["max"] for row in times), default=0)
            assert longest == pytest.approx(max(model.seconds, default=0))
    return result


# --- random histories -----------------------------------------------------------------------------


def random_history(folder: Path, seed: int, *, faults: int) -> None:
    """Several segments of publishes and removals of four queues; some removals are wrong."""
    rng = random.Random(seed)
    writer = JournalWriter(folder, segment_bytes=16 * 1024)
    queued: dict[str, list[Key]] = {name: [] for name in FED}
    left: list[tuple[str, Key]] = []
    for _ in range(120):
        writer.now_us += rng.randrange(2_000_000)
        batch = [random_message(rng) for _ in range(rng.randrange(1, 6))]
        for topic, record in batch:
            sequence = writer.sequences.get(record.publisher_id, 0) + 1
            writer.sequences[record.publisher_id] = sequence
            for name, fed in FED.items():
                if topic in fed:
                    queued[name].append((record.publisher_id, sequence))
            writer.append([(topic, record._replace(sequence=sequence))])
        name = rng.choice([*FED])
        some = [queued[name].pop(rng.randrange(len(queued[name]))) for _ in queued[name][:3]]
        reasons = [rng.randrange(1, 7) for _ in some]
        if some:
            writer.remove_from_queue(
                [(*key, reason) for key, reason in zip(some, reasons, strict=True)], queue=name
            )
            left += [(name, key) for key in some]
    for number in range(faults):
        name, key = rng.choice(left)
        writer.remove_from_queue([(*key, 1)], queue=name)
        writer.remove_from_queue([(9, 10**6 + number, 2)], queue=name)
        if queued[name]:
            writer.remove_from_queue([(*queued[name].pop(), RemovalReason.LOST)], queue=name)
    if faults:  # removed first, logged then
        writer.remove_from_queue([(12, 50, 1)], queue="orders")
        topic, record = message(b"late", publisher_id=12)
        writer.append([(topic, record._replace(sequence=50))])
    writer.seal()
    writer.close()


def random_message(rng: random.Random) -> tuple[str, Record]:
    topic = rng.choice(["orders", "prices", "other", "unrelated"])
    return message(
        b"x" * rng.randrange(200), topic=topic, publisher_id=rng.choice([7, 8, 2**64 - 1])
    )


def test_a_history_without_faults_is_good_and_is_what_a_plain_walk_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    random_history(tmp_path, 1, faults=0)
    assert len([*tmp_path.glob("journal.*[0-9]")]) > 2
    result = check(spark, tmp_path)
    assert result.is_good
    assert result.counts == dict.fromkeys(
        (FindingKind.REMOVED_TWICE, FindingKind.NEVER_QUEUED, FindingKind.LOST_FROM_QUEUE), 0
    )


def test_every_fault_is_named_also_where_segments_were_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    random_history(tmp_path, 2, faults=3)
    result = check(spark, tmp_path)
    assert all(result.counts.values())
    # Messages of the first segment are unknown now, which is no fault.
    for path in tmp_path.glob(f"{segment_name(1)}*"):
        path.unlink()
    result = check(spark, tmp_path)
    assert result.facts["not_compared"] > 0
    assert all(result.counts.values())


# --- a real broker --------------------------------------------------------------------------------


REAL = (
    AuditedQueue(name="jobs", dead_letter="failed"),
    AuditedQueue(name="copy", topics=("^jo.s$",)),
    AuditedQueue(name="failed"),
)


@pytest.fixture(scope="module")
def broker_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's files: two jobs done, one cancelled twice and expired, one expired, one left."""
    folder = tmp_path_factory.mktemp("queue-broker")

    async def work() -> None:
        config = BrokerConfig(
            name="east",
            data_dir=folder,
            queues=(
                QueueTopic(
                    name="jobs",
                    max_per_subscription_backlog=10,
                    dead_letter="failed",
                    max_cancels=1,
                ),
                QueueTopic(name="copy", topics=("^jo.s$",)),
                QueueTopic(name="failed"),
            ),
        )
        async with (
            BrokerServer(config) as server,
            HAClient("shop", servers=[f"{server.uris[0]}/amps/json"]) as client,
        ):
            for number in range(5):
                await client.publish("jobs", b"%d" % number)
            async with client.queue_stream("jobs", max_backlog=4) as messages:
                await take(client, messages)

    trio.run(work)
    return folder


async def take(client: HAClient, messages: AsyncIterator[Message]) -> None:
    seen = 0
    async for each in messages:
        finish(each)
        seen += 1
        await client.flush_acks()
        if seen == 6:  # 0, 1, 2 twice, 3, 4
            return


def finish(each: Message) -> None:
    if each.data in {b"0", b"1"}:
        each.ack()
    elif each.data == b"2":
        each.ack(cancel=True)
    elif each.data == b"3":
        each.ack(expire=True)


def first_job(folder: Path) -> Key:
    """The bookmark of the first job; the others follow it."""
    jobs = (each for each in model_records(folder) if each.command == RecordCommand.PUBLISH)
    first = next(each for each in jobs if each.payload == b"0")
    return first.publisher_id, first.sequence


@pytest.fixture
def faulty_journal(broker_journal: Path, tmp_path: Path) -> Path:
    """A copy of the files of the broker, which a faulty one has continued."""
    for path in broker_journal.glob("journal.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shop, first = first_job(tmp_path)
    writer = JournalWriter(tmp_path, instance_id=publisher_id("east"), start_id=78)
    writer.now_us = max(r.timestamp_us for r in model_records(tmp_path)) + 1
    writer.remove_from_queue([(shop, first, 1), (shop, first + 99, 1)], queue="jobs")
    writer.remove_from_queue([(shop, first + 4, RemovalReason.LOST)], queue="copy")
    writer.close()
    return tmp_path


def test_the_files_of_a_broker_say_how_each_message_ended(
    spark: SparkSession, broker_journal: Path
) -> None:
    result = audit_queues(spark, broker_journal, REAL)
    assert result.is_good, result.violations
    rows = {row["queue"]: row for row in table(result, "queues")}
    wanted = {"messages": 5, "acknowledged": 2, "forced_expire": 1, "max_cancels": 1, "queued": 1}
    assert {name: rows["jobs"][name] for name in wanted} == wanted
    assert (rows["copy"]["messages"], rows["copy"]["queued"]) == (5, 5)
    assert (rows["failed"]["messages"], rows["failed"]["queued"]) == (2, 2)
    times = {row["reason"]: row for row in table(result, "queue_times")}
    assert times["acknowledged"]["messages"] == 2
    assert 0 <= times["acknowledged"]["p50"] <= times["acknowledged"]["max"]
    copies = {row["reason"]: row["cancels"] for row in table(result, "queue_dead_letters")}
    assert copies == {"max_cancels": 2, "forced_expire": 0}


def test_faults_in_the_files_of_a_broker_are_named(
    spark: SparkSession, faulty_journal: Path
) -> None:
    result = audit_queues(spark, faulty_journal, REAL)
    shop, first = first_job(faulty_journal)
    assert found(result) == Counter(
        {
            (FindingKind.REMOVED_TWICE, f"{shop}|{first}|", "jobs"): 1,
            (FindingKind.NEVER_QUEUED, f"{shop}|{first + 99}|", "jobs"): 1,
            (FindingKind.LOST_FROM_QUEUE, f"{shop}|{first + 4}|", "copy"): 1,
        }
    )
    assert json.loads(json.dumps(result.verdict()))["verdict"] == "bad"


def test_queues_that_were_not_asked_for_are_told_and_one_without_a_topic_is_not_verified(
    spark: SparkSession, broker_journal: Path
) -> None:
    result = audit_queues(spark, broker_journal, [AuditedQueue(name="wrong")])
    assert result.judgement == "not verified"
    assert result.not_verified == ["the journal has no topic that feeds the queue 'wrong'"]
    assert result.facts["other_queues"] == "jobs"


def wrong_queues() -> Iterator[tuple[list[AuditedQueue], str]]:
    yield [], "wanted at least one queue"
    yield [AuditedQueue(name="jobs")] * 2, "the queue 'jobs' is given twice"
    yield [AuditedQueue(name="jobs", topics=("jo(",))], "queue 'jobs': wanted topics or regular"


@pytest.mark.parametrize(("queues", "text"), [*wrong_queues()])
def test_wrong_queues_are_refused(
    spark: SparkSession, broker_journal: Path, queues: list[AuditedQueue], text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        audit_queues(spark, broker_journal, queues)
