"""Exactly once on a cluster of two workers: executors, tasks, a commit and the driver are killed.

The other tests of the sink have one JVM, in which rows arrive at a task in the same order each
time. From two executors they arrive in another order with each attempt, and these fail apart from
each other.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio

from haclient.client import Client
from haclient.protocol.commands import Command
from haclient.protocol.identity import publisher_id
from haclient.pyspark import audit, read_journal
from haclient.pyspark.rows import signed
from haclient_fake_server.journal.format import segment_number
from haclient_fake_server.testing.processes import BrokerProcess
from support.journals import ModelRow, model_rows
from support.process import Child
from support.publishing_driver import COMMIT, GATE, MARKERS, PUBLISHED, READ, Job, Stream
from support.standalone_cluster import StandaloneCluster, kill_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(1800)  # 200 to 300 seconds

TOPIC = "orders"
WEAK = "weak"  # of a stream that is at-least-once
LANES = 4
BATCHES = 5
ROWS, FEW_ROWS = 80_000, 20_000  # of a batch, and of one of the short form
KEYS = 997
WEAK_ROWS = 1000  # of that stream
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def cluster(
    java: Mapping[str, str],  # noqa: ARG001 - it starts several JVMs
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Count(NamedTuple):
    """What a journal has of the rows that were to be published.

    Attributes:
        rows: How many different ones it has.
        lost: How many it lacks.
        repeated: How many it has once too often.
        disordered: How many follow a later one of their publisher.
    """

    rows: int
    lost: int
    repeated: int
    disordered: int


def count(rows: list[ModelRow], expected: int) -> Count:
    """Compare rows with the numbers from 0 on."""
    found: Counter[int] = Counter()
    disordered = 0
    last: dict[int, tuple[int, int]] = {}
    for row in rows:
        number: int = json.loads(row.data)["n"]
        found[number] += 1
        sequence_before, number_before = last.get(row.publisher_id, (0, -1))
        disordered += row.sequence < sequence_before or number < number_before
        last[row.publisher_id] = row.sequence, number
    return Count(
        rows=len(found),
        lost=len(set(range(expected)) - set(found)),
        repeated=found.total() - len(found),
        disordered=disordered,
    )


class Broker:
    """The broker that is published to. It seals its log, and removes what nobody needs.

    Args:
        journal: Its directory.
    """

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        options = ("--parquet", "--segment-bytes", "1000000", "--remove-after", "2")
        self._process = BrokerProcess(*options, data_dir=journal)

    def __enter__(self) -> Self:
        self._process.start()
        self.keep(after=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    @property
    def uri(self) -> str:
        return self._process.uri

    def keep(self, *, after: int) -> None:
        """Hold what follows a position: the sink asks the log for the rows of a batch."""
        trio.run(partial(self._ask, "guards", name="sink", after=after))

    def wait_for_rows(self, rows: int, driver: Child) -> None:
        """Return when it has so many rows in its log.

        Raises:
            AssertionError: It takes too long, or the driver has ended a query meanwhile.
        """
        logged = trio.run(self._wait, "last_position", rows, lambda: driver.has_output)
        said = driver.line() if driver.has_output else "nothing"
        assert logged >= rows, (
            f"of {rows} rows {logged} are logged; the driver has said {said}; the end of what it "
            f"has on stderr: {driver.err[-5000:]}"
        )

    def wait_removed(self, position: int) -> None:
        """Return when its oldest message has this position, or a later one."""
        assert trio.run(self._wait, "oldest_position", position, lambda: False) >= position

    async def _wait(self, name: str, value: int, gives_up: Callable[[], bool]) -> int:
        """Wait until a number of its status is so high; what it is at the end."""
        found = 0
        with trio.move_on_after(LIMIT_S):
            while found < value and not gives_up():
                found = int((await self._ask("status"))[name])
                await trio.sleep(0.5)
        return found

    async def _ask(self, topic: str, **parameters: object) -> dict[str, Any]:
        command = Command("sow", topic=f"/HACLIENT/{topic}", data=json.dumps(parameters))
        async with Client("watcher") as client:
            await client.connect(self.uri)
            await client.logon()
            async with await client.execute(command) as answers:
                (found,) = [each.data async for each in answers if each.kind == "sow"]
        answer: dict[str, Any] = json.loads(found)
        return answer

    def stop(self) -> None:
        """End it, so that its journal is complete."""
        self._process.stop()


class Snapshot(NamedTuple):
    """What one query has found in the log.

    Attributes:
        rows: How many rows.
        different: How many positions.
        first: The first one.
        last: The last one.
        oldest_segment: The oldest one that was left when the query had ended.
    """

    rows: int
    different: int
    first: int
    last: int
    oldest_segment: int


@contextmanager
def snapshots(spark: SparkSession, journal: Path) -> Generator[list[Snapshot]]:
    """Read a journal again and again while the block runs."""
    found: list[Snapshot] = []
    ends = threading.Event()
    numbers = "count(1)", "count(DISTINCT position)", "min(position)", "max(position)"

    def read() -> None:
        is_last = False
        while not is_last:
            is_last = ends.wait(1)  # the last one begins when the block has ended
            row = read_journal(spark, journal, columns=["position"]).selectExpr(*numbers).head()
            assert row is not None
            rows, different, first, last = (int(each or 0) for each in row)
            oldest = min(segments(journal))
            found.append(Snapshot(rows, different, first, last, oldest))

    with ThreadPoolExecutor(1) as pool:
        reads = pool.submit(read)
        try:
            yield found
        finally:
            ends.set()
        reads.result()


def segments(journal: Path) -> list[int]:
    """The numbers of the segments that are left."""
    names = (path.name for path in journal.iterdir())
    return sorted(number for name in names if (number := segment_number(name)) is not None)


def logged_rows(journal: Path) -> list[ModelRow]:
    """All rows, read without our readers; those of removed segments are left as Parquet."""
    oldest = min(segments(journal))
    rows: list[ModelRow] = []
    for path in sorted(journal.glob("parquet/journal.*.parquet")):
        if int(path.name.split(".")[1]) < oldest:
            table = pq.read_table(path, columns=[*ModelRow._fields])
            for row in table.drop_columns("timestamp").to_pylist():
                row |= {name: row[name] % 2**64 for name in ("publisher_id", "sequence")}
                rows.append(ModelRow(**row, timestamp=0))
    return rows + model_rows(journal)


class World:
    """Files, checkpoints and markers of one test, with a broker.

    Args:
        cluster: Where the drivers' executors run.
        folder: For everything.
        broker: That is published to.
        rows: Of a batch.
    """

    def __init__(self, cluster: StandaloneCluster, folder: Path, broker: Broker, rows: int) -> None:
        self.cluster = cluster
        self.broker = broker
        self.rows = rows
        self.markers = folder / MARKERS
        self.markers.mkdir()
        self._folder = folder

    def plan(self, *names: str) -> None:
        """Plan faults."""
        for name in names:
            (self.markers / name).touch()

    def files(self, topic: str) -> str:
        """The directory of what is published to a topic."""
        return str(self._folder / topic)

    def gates(self, stack: ExitStack, *batches: int) -> dict[int, IO[str]]:
        """By batch of `TOPIC`, a file: until it is closed, the batch is not committed.

        What is killed before is killed in mid-batch, however late this process hears of rows.
        """
        gates: dict[int, IO[str]] = {}
        for batch in batches:
            path = self.markers / GATE.format(topic=TOPIC, batch=batch)
            gates[batch] = stack.enter_context(path.open("w"))
            fcntl.flock(gates[batch], fcntl.LOCK_EX)
        return gates

    def stream(self, topic: str, reads: tuple[int, ...], *, is_exactly_once: bool = True) -> Stream:
        """A stream from the files of a topic, which a later one of the same topic continues."""
        return Stream(
            files=self.files(topic),
            checkpoint=str(self._checkpoint(topic)),
            topic=topic,
            reads=reads,
            is_exactly_once=is_exactly_once,
        )

    def write_batches(self, topic: str, batches: int, rows: int) -> None:
        """Write a file for each batch of a topic, with consecutive numbers."""
        folder = Path(self.files(topic))
        folder.mkdir()
        for batch in range(batches):
            numbers = range(batch * rows, (batch + 1) * rows)
            lines = [f'{{"key":"k{n % KEYS}","n":{n},"x":"{n:060}"}}\n' for n in numbers]
            file = folder / f"{batch:04d}.json"
            file.write_text("".join(lines))
            os.utime(file, (batch, batch))  # the source takes them by age

    def wait_in_batch(self, batch: int, driver: Child) -> None:
        """Wait until a good part of a batch is logged; what comes before it may be removed."""
        self.broker.wait_for_rows(batch * self.rows + self.rows // 8, driver)
        self.broker.keep(after=batch * self.rows)

    @contextmanager
    def driver(self, *streams: Stream) -> Generator[Child]:
        """A driver, killed with all of its processes at the end."""
        job = Job(
            master=self.cluster.master,
            uri=self.broker.uri,
            markers=str(self.markers),
            lanes=LANES,
            streams=streams,
        )
        command = [sys.executable, "-m", "support.publishing_driver", job.to_json()]
        environment = self.cluster.environment()
        with Child(command, environment=environment, before_exec=os.setsid) as child:
            try:
                yield child
            finally:
                kill_session(child.pid)

    def query_id(self, topic: str) -> str:
        """The id of the query that publishes to a topic."""
        file = self._checkpoint(topic) / "metadata"
        found: str = json.loads(file.read_text())["id"]
        return found

    def _checkpoint(self, topic: str) -> Path:
        return self._folder / f"checkpoint-{topic}"


def expected_publishes(spark: SparkSession, query_id: str, rows: int) -> DataFrame:
    """What each lane has to publish with which sequence, in the form of audit logs.

    It follows the documents and shares no code with the sink.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - an extra

    ids = [signed(publisher_id(f"spark-{query_id}-{lane}")) for lane in range(LANES)]
    keys = spark.range(KEYS).select("id", sf.concat(sf.lit("k"), "id").alias("key"))
    lane = sf.pmod(sf.xxhash64("key"), sf.lit(LANES)).cast("int")
    lanes = {row["id"]: row["lane"] for row in keys.select("id", lane.alias("lane")).collect()}
    publishers: list[int] = []
    sequences: list[int] = []
    for batch in range(BATCHES):
        last = [batch << 32] * LANES
        for number in range(batch * rows, (batch + 1) * rows):
            at = lanes[number % KEYS]
            last[at] += 1
            publishers.append(ids[at])
            sequences.append(last[at])
    made = spark.createDataFrame(pa.table({"publisher_id": publishers, "sequence": sequences}))
    now = sf.current_timestamp()
    return made.select(
        "*", sf.lit(TOPIC).alias("topic"), now.alias("published_at"), now.alias("acked_at")
    )


@dataclass(frozen=True, slots=True)
class Published:
    """What is left when all drivers have ended.

    Attributes:
        journal: Of the broker.
        query_id: Of the stream to `TOPIC`.
        reads: How many partitions each start of that stream has read.
        not_happened: The faults that were planned, and have not happened.
        expected: How many rows were to be published to it.
        rows: By topic, what is in the journal, in its order.
        snapshots: What was read meanwhile.
    """

    journal: Path
    query_id: str
    reads: list[str]
    not_happened: list[str]
    expected: int
    rows: dict[str, list[ModelRow]]
    snapshots: list[Snapshot]


@pytest.fixture(scope="module")
def published(
    cluster: StandaloneCluster,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    *,
    full_length: bool,
) -> Published:
    """Publish all rows while executors, tasks, a commit and the driver fail, and read them."""
    folder = tmp_path_factory.mktemp("published")
    with Broker(folder / "journal") as broker:
        world = World(cluster, folder, broker, ROWS if full_length else FEW_ROWS)
        with snapshots(spark, broker.journal) as found:
            reads = publish_with_faults(world)
            last = BATCHES * world.rows
            broker.keep(after=last)
            broker.wait_removed(last - world.rows // 2)
        broker.stop()
    rows: defaultdict[str, list[ModelRow]] = defaultdict(list)
    for row in logged_rows(broker.journal):
        rows[row.topic].append(row)
    return Published(
        journal=broker.journal,
        query_id=world.query_id(TOPIC),
        reads=reads,
        not_happened=[each.name for each in world.markers.glob("[!g]*")],  # all but the gates
        expected=last,
        rows=rows,
        snapshots=found,
    )


def publish_with_faults(world: World) -> list[str]:
    """One stream with one fault after the other, then a short one that is at-least-once.

    Returns:
        How many partitions each start of the first one has read.
    """
    world.write_batches(TOPIC, BATCHES, world.rows)
    world.write_batches(WEAK, 1, WEAK_ROWS)
    commits = [COMMIT.format(topic=topic, batch=batch) for topic, batch in ((TOPIC, 3), (WEAK, 0))]
    world.plan(READ, PUBLISHED, *commits)
    with ExitStack() as stack:
        gates = world.gates(stack, 1, 2, 4)
        driver = stack.enter_context(world.driver(world.stream(TOPIC, reads=(3, 7))))
        reads = [driver.line(limit_s=LIMIT_S)]
        for batch, place in ((1, 0), (2, -1)):
            world.wait_in_batch(batch, driver)
            os.kill(world.cluster.executors()[place], signal.SIGKILL)
            gates[batch].close()
        assert driver.line(limit_s=LIMIT_S).startswith("failed ")  # in the commit of batch 3
        reads.append(driver.line(limit_s=LIMIT_S))
        world.wait_in_batch(4, driver)
        kill_session(driver.pid)  # its executors may publish the rest of the batch
    weak = world.stream(WEAK, reads=(1, 1), is_exactly_once=False)
    with world.driver(world.stream(TOPIC, reads=(2,)), weak) as driver:
        reads.append(driver.line(limit_s=LIMIT_S))
        assert driver.line(limit_s=LIMIT_S) == f"done {TOPIC}"
        said = [driver.line(limit_s=LIMIT_S).partition(" ")[0] for _ in range(4)]
        assert said == ["reads", "failed", "reads", "done"]
    return reads


def test_every_planned_fault_has_happened(published: Published) -> None:
    assert published.not_happened == []
    assert len(set(published.reads)) == 3, "each start reads another number of partitions"


@pytest.mark.row("SK4", "SK5")
def test_every_row_is_once_in_the_journal_and_each_lane_in_order(published: Published) -> None:
    rows = published.rows[TOPIC]
    assert len({row.publisher_id for row in rows}) == LANES
    wanted = published.expected
    assert count(rows, wanted) == Count(wanted, lost=0, repeated=0, disordered=0)


@pytest.mark.row("SK4")
def test_the_audit_finds_each_row_where_its_lane_has_to_have_it(
    published: Published, spark: SparkSession
) -> None:
    columns = ["topic", "publisher_id", "sequence", "position", "command", "timestamp"]
    journal = read_journal(spark, published.journal, columns=columns, topic=TOPIC)
    assert [*published.journal.glob("parquet/journal.*")]
    publishes = expected_publishes(
        spark, published.query_id, published.expected // BATCHES
    ).persist()  # read several times
    verdict = audit(journal, publishes=publishes)
    assert verdict.is_good, verdict.violations[:5]
    assert verdict.facts["messages"] == verdict.facts["acknowledged"] == published.expected


def test_each_row_is_once_in_what_is_read_while_the_broker_seals_and_removes(
    published: Published, spark: SparkSession
) -> None:
    found = published.snapshots
    assert all(
        each.rows == each.different == each.last - each.first + 1 for each in found if each.rows
    ), found
    assert {each.first for each in found} <= {0, 1}
    assert [each.last for each in found] == sorted(each.last for each in found)
    assert found[0].oldest_segment == 1 < found[-1].oldest_segment
    assert found[-1].last >= published.expected
    number = "CAST(get_json_object(CAST(data AS STRING), '$.n') AS BIGINT) AS n"
    rows = read_journal(spark, published.journal, columns=["data"], topic=TOPIC).selectExpr(number)
    row = rows.selectExpr("count(n)", "count(DISTINCT n)", "min(n)", "max(n)").head()
    assert row is not None
    assert tuple(row) == (published.expected, published.expected, 0, published.expected - 1)


def test_the_count_finds_what_a_stream_that_is_at_least_once_repeats(published: Published) -> None:
    found = count(published.rows[WEAK], WEAK_ROWS)
    # By the commit that has crashed, and by each query that was started again (`finish`).
    repeats = found.repeated // WEAK_ROWS
    assert repeats >= 1
    assert found == Count(WEAK_ROWS, lost=0, repeated=repeats * WEAK_ROWS, disordered=repeats)
