"""Rates of the data pipeline: `python -m benchmarks.pyspark_rates --rows N --rounds 3`.

One broker is filled through the sink; its log is then read by each source and audited. Everything
runs on this machine: a session of PySpark with two threads, its Python workers, and the broker.

A rate says more about the machine than about the code, so most are paired with one that PySpark
reaches when our part costs nothing: `constant source` is a data source that yields one record
batch again and again, `nothing` is a `mapInArrow` function that only counts. Each round measures
every row once, after one that is not kept, and the medians are reported.

CPU time is that of the JVM, of its Python workers and of the broker, apart. Memory is the highest
resident size of any Python worker, without what it has after the first batch of a session.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from typing_extensions import override

from benchmarks.machine import describe
from haclient import EPOCH, Client
from haclient.pyspark import (
    audit,
    export,
    publish_frame,
    read_journal,
    reconcile,
    register,
    sow_as_of,
)
from haclient.pyspark.journal.log import JournalLog
from haclient.pyspark.journal.sealing import seal_journal
from haclient.pyspark.journal.source import JournalRangeReader, JournalSettings
from haclient.pyspark.rows import COLUMNS, schema_ddl
from haclient_fake_server.testing.processes import BrokerProcess

__all__ = ["main"]

TOPIC = "orders"
KEYS = 1000
TIMEOUT_MS = 600_000
SINK = "sink, exactly-once"
SEALING = "sealing"
AUDITED = ("publisher_id", "sequence", "position")
_TICKS = os.sysconf("SC_CLK_TCK")
_TOUCHED = (
    "count(1) AS n",
    "sum(length(data))",
    "max(position)",
    "max(bookmark)",
    "min(timestamp)",
    "count(topic)",
    "max(sequence)",
    "max(publisher_id)",
)
"""Aggregates that read every column that a message of this log has."""


class _ConstantReader(DataSourceReader):
    """Yields the first batch of a journal until there are so many rows."""

    def __init__(self, path: str, rows: int, parts: int, columns: str) -> None:
        self._path, self._rows, self._parts, self._columns = path, rows, parts, columns

    @override
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._parts)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        settings = {"journalPath": self._path, "columns": self._columns}
        reader = JournalRangeReader(JournalSettings(settings))
        batch = next(iter(reader.read(reader.partitions()[0])))
        for _ in range(self._rows // self._parts // batch.num_rows):
            yield batch


class ConstantSource(DataSource):
    """`format("constant")`: rows that cost Python nothing."""

    @classmethod
    @override
    def name(cls) -> str:
        return "constant"

    @override
    def schema(self) -> str:
        return schema_ddl(self._columns.split(","))

    @property
    def _columns(self) -> str:
        return self.options["columns"]

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        given = self.options
        return _ConstantReader(
            given["path"], int(given["rows"]), int(given["parts"]), self._columns
        )


def _only_count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": [sum(batch.num_rows for batch in batches)]})


@dataclass(slots=True)
class _Process:
    """What the system says of one process."""

    parent: int
    cpu_s: float


def _processes() -> dict[int, _Process]:
    found: dict[int, _Process] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                values = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            found[int(entry.name)] = _Process(int(values[1]), sum(map(int, values[11:15])) / _TICKS)
    return found


def _descendants(processes: dict[int, _Process], top: int) -> list[int]:
    found: list[int] = []
    for number in processes:
        each = number
        while each in processes and each != top:
            each = processes[each].parent
        if each == top and number != top:
            found.append(number)
    return found


@dataclass(slots=True)
class Figure:
    """One row of the report: a sample of each round."""

    rows: int
    seconds: list[float] = field(default_factory=list[float])
    jvm_s: list[float] = field(default_factory=list[float])
    python_s: list[float] = field(default_factory=list[float])
    broker_s: list[float] = field(default_factory=list[float])

    @property
    def rate(self) -> float:
        """Rows a second, by the median."""
        return self.rows / statistics.median(self.seconds)

    def line(self, name: str) -> str:
        """The row for people."""
        costs = "  ".join(
            f"{what} {statistics.median(values) / self.rows * 1e6:5.2f}"
            for what, values in (
                ("JVM", self.jvm_s),
                ("Python", self.python_s),
                ("broker", self.broker_s),
            )
        )
        spread = f"{self.rows / max(self.seconds):,.0f} .. {self.rows / min(self.seconds):,.0f}"
        return f"{name:<34} {self.rate:>12,.0f} rows/s  ({spread})   us CPU a row: {costs}"


class Rates:
    """Measures queries of one session.

    Args:
        spark: The session.
    """

    def __init__(self, spark: SparkSession) -> None:
        # PySpark has no public way to the JVM that it started, whose CPU time is measured.
        self._jvm: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # noqa: SLF001
        self.figures: dict[str, Figure] = {}

    @contextmanager
    def measure(self, name: str, rows: int, broker: BrokerProcess) -> Generator[None]:
        """Measure the block as one sample; the first one of each name is not kept."""
        before, start = self._cpu(broker), time.perf_counter()
        yield
        if name not in self.figures:
            self.figures[name] = Figure(rows)
            return
        figure = self.figures[name]
        figure.seconds.append(time.perf_counter() - start)
        for values, now, then in zip(
            (figure.jvm_s, figure.python_s, figure.broker_s), self._cpu(broker), before, strict=True
        ):
            values.append(now - then)
        print(f"{name}: {rows / figure.seconds[-1]:,.0f} rows/s", file=sys.stderr, flush=True)

    def _cpu(self, broker: BrokerProcess) -> tuple[float, float, float]:
        processes = _processes()
        workers = sum(processes[each].cpu_s for each in _descendants(processes, self._jvm))
        return processes[self._jvm].cpu_s, workers, processes[broker.pid].cpu_s

    def workers(self) -> list[int]:
        """The Python workers of the session."""
        return _descendants(_processes(), self._jvm)


def _peak(pids: list[int]) -> int:
    """The highest resident size of some processes so far, in bytes."""
    peaks = [0]
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        peaks += [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
    return max(peaks)


def _forget_peaks(pids: list[int]) -> None:
    for pid in pids:
        try:
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        except OSError:  # it has ended, or the system does not allow it
            continue


def _touch(rows: DataFrame) -> int:
    found = rows.selectExpr(*_TOUCHED).head()
    assert found is not None
    return int(found.n)


def _touch_three(rows: DataFrame) -> None:
    rows.selectExpr("max(publisher_id)", "max(sequence)", "max(position)").head()


def _write_nowhere(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


async def _receive(uri: str, count: int) -> None:
    async with Client("plain") as client:
        await client.connect(uri)
        await client.logon()
        left = count
        async with client.bookmark_stream(TOPIC, sub_id="plain", bookmark=EPOCH) as messages:
            async for message in messages:
                message.discard()
                left -= 1
                if not left:
                    return


def _seal_again(journal: Path) -> None:
    shutil.rmtree(journal / "parquet")
    seal_journal(journal)


def _sealed_rows(journal: Path) -> int:
    manifests = JournalLog(journal).manifests
    return sum(each.next_position - each.first_position for each in manifests if each.sealed)


def _prepare(spark: SparkSession, rows: int, scratch: Path) -> DataFrame:
    """The rows that are published, in files, so that making them is not measured."""
    path = str(scratch / f"input-{rows}")
    made = spark.range(rows).select(
        "id",
        (sf.col("id") % KEYS).alias("customer"),
        sf.concat(
            sf.lit('{"id":'),
            sf.col("id").cast("STRING"),
            sf.lit(',"px":'),
            sf.rand(7).cast("STRING"),
            sf.lit(',"text":"'),
            sf.sha2(sf.col("id").cast("STRING"), 512),  # as little to compress as real text
            sf.lit('"}'),
        ).alias("data"),
    )
    made.write.parquet(path)
    return spark.read.parquet(path)


def _publish(frame: DataFrame, uri: str, *, lanes: int, **options: str) -> None:
    publish_frame(
        frame,
        uri=uri,
        topic=TOPIC,
        key="customer",
        order_by="id",
        lanes=lanes,
        flushTimeoutMs=TIMEOUT_MS,
        **options,
    ).save()


def _queries(
    spark: SparkSession, uri: str, journal: Path, rows: int, scratch: Path
) -> dict[str, Callable[[], object]]:
    """What is measured in each round, by name."""

    def files(**options: str) -> DataFrame:
        read = spark.read.format("amps-journal").option("journalPath", str(journal))
        return read.options(**options).load()

    parts = files().rdd.getNumPartitions()

    # A reader keeps each option that it is given, so each query makes its own.
    def constant(*columns: str) -> DataFrame:
        read = spark.read.format("constant").options(path=str(journal), rows=rows, parts=parts)
        return read.option("columns", ",".join(columns)).load()

    def served(parts: int) -> DataFrame:
        read = spark.read.format("amps").options(uri=uri, topic=TOPIC)
        return read.option("minPartitions", parts).load()

    exported = str(scratch / f"export-{rows}")
    files().write.mode("overwrite").option("compression", "zstd").parquet(exported)
    parquet = spark.read.parquet(exported)
    chosen = parquet.select(*AUDITED)
    # The topic has no SOW, and so no keys: a thousand messages are of the same one.
    keyed = parquet.withColumn("sow_key", (sf.col("position") % (rows // 1000)).cast("STRING"))
    sealed = shutil.copytree(journal, scratch / f"sealed-{rows}")
    seal_journal(sealed)
    dated, numbers = str(scratch / f"dated-{rows}"), count()
    return {
        SEALING: lambda: _seal_again(sealed),
        "constant source": lambda: _touch(constant(*COLUMNS)),
        "constant source, 3 columns": lambda: _touch_three(constant(*AUDITED)),
        "journal source": lambda: _touch(files()),
        "journal source, 3 columns": lambda: _touch_three(files(columns=",".join(AUDITED))),
        "read_journal, sealed": lambda: _touch(read_journal(spark, sealed)),
        "read_journal, sealed, 3 columns": lambda: _touch_three(read_journal(spark, sealed)),
        "nothing, from Parquet": lambda: chosen.mapInArrow(_only_count, "n BIGINT").collect(),
        "audit, from Parquet": lambda: audit(parquet),
        "audit, from the journal": lambda: audit(files(columns=",".join(("topic", *AUDITED)))),
        "audit of the directory": lambda: audit(journal),
        "audit of the directory, sealed": lambda: audit(sealed),
        "all columns, from Parquet": lambda: _touch(parquet),
        "3 columns, from Parquet": lambda: _touch_three(parquet),
        "reconcile, from Parquet": lambda: reconcile(parquet, parquet),
        "sow_as_of, from Parquet": lambda: _write_nowhere(sow_as_of(keyed)),
        "export, from the journal": lambda: export(files(), f"{dated}-{next(numbers)}"),
        "plain client": lambda: trio.run(_receive, uri, rows),
        "network source": lambda: _touch(served(1)),
        "network source, 2 parts": lambda: _touch(served(2)),
        "network source, 8 parts": lambda: _touch(served(8)),
    }


def _memory(spark: SparkSession, rates: Rates, journal: Path) -> dict[str, float]:
    """The highest memory of a worker, by the size of a split, in MiB."""
    found: dict[str, float] = {}
    for size in ("8m", "32m", "128m", "512m"):
        rows = spark.read.format("amps-journal").option("journalPath", str(journal))
        _forget_peaks(rates.workers())
        _touch(rows.option("maxPartitionBytes", size).load())
        found[f"splits of {size}"] = _peak(rates.workers()) / 2**20
    return found


def _session() -> SparkSession:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "2g",
    }
    builder = SparkSession.builder.master("local[2]").appName("rates")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    spark.dataSource.register(ConstantSource)
    return spark


def _fill(
    rates: Rates,
    rows: DataFrame,
    given: argparse.Namespace,
    names: tuple[str, ...],
    journal: Path,
) -> None:
    """Publish all rows in each way, always into a new log; the last log stays."""
    writes: dict[str, Callable[[str], object]] = {
        f"{SINK}, 4 lanes, verified": partial(_publish, rows, lanes=4, verifyResume="true"),
        f"{SINK}, 4 lanes, not verified": partial(_publish, rows, lanes=4, verifyResume="false"),
        SINK: partial(_publish, rows, lanes=given.lanes),
    }
    for number in range(given.rounds + 1):
        for name, write in writes.items():
            # Without the sink's own row, one run fills the log.
            if name.startswith(names) or (name == SINK and number == given.rounds):
                shutil.rmtree(journal, ignore_errors=True)
                with (
                    BrokerProcess(data_dir=journal) as broker,
                    rates.measure(name, given.rows, broker),
                ):
                    write(broker.uri)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pyspark_rates")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=8, help="publishers of the log")
    parser.add_argument("--only", action="append", default=[], help="names begin with this")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args()
    spark = _session()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        rates = Rates(spark)
        rows = _prepare(spark, given.rows, scratch)
        journal = scratch / "journal"
        names = tuple(given.only) or ("",)
        _fill(rates, rows, given, names, journal)
        with BrokerProcess(data_dir=journal) as broker:
            queries = _queries(spark, broker.uri, journal, given.rows, scratch)
            for _ in range(given.rounds + 1):
                for name, query in queries.items():
                    # So few rows may be in one segment that none is sealed.
                    size = _sealed_rows(journal) if name == SEALING else given.rows
                    if size and name.startswith(names):
                        with rates.measure(name, size, broker):
                            query()
            memory = _memory(spark, rates, journal)
    spark.stop()
    print(describe())
    for name, figure in rates.figures.items():
        if figure.seconds:
            print(figure.line(name))
    for name, size in memory.items():
        print(f"{name:<34} {size:>12,.0f} MiB of a worker at most")
    if given.json is not None:
        report = {
            "machine": describe(),
            "rates": {name: each.rate for name, each in rates.figures.items() if each.seconds},
            "memory_mib": memory,
        }
        given.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
