"""Stream from a broker into Parquet and back through Apache Spark, and audit what happened.

    python examples/spark_pipeline.py [--messages COUNT] [--directory DIRECTORY] [--json]

It needs `pip install '.[pyspark]'` in the checkout and Java 17, and starts all the rest itself: a
broker, and a session of PySpark with two threads.

1. A client publishes orders, with an audit log.
2. A stream writes the topic `orders` as Parquet.
3. A second stream publishes the rows of that Parquet as the topic `copies`, each exactly once.
4. A client receives the copies, with an audit log.
5. The audit compares the broker's journal with both audit logs, and the copies with the orders.

The exit code is the verdict: 0 when nothing was lost, repeated or out of order, else 4. With
`--directory`, which must not exist, everything is kept: the journal, the Parquet, the report.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import trio
from pyspark.sql import SparkSession

from haclient import HAClient
from haclient.pyspark import (
    Subscription,
    add_latency,
    audit,
    publish_stream,
    read_deliveries,
    read_journal,
    read_publishes,
    register,
    write_report,
)
from haclient.stores import AuditLog, MemoryBookmarkStore, MemoryPublishStore
from haclient_fake_server.testing.processes import BrokerProcess

BEGUN_AT = time.perf_counter()
LIMIT_S = 300.0
CUSTOMERS = 50
BAD_VERDICT = 4


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at the end."""

    orders: int
    copies: int
    differing: int
    violations: dict[str, int]

    @property
    def is_good(self) -> bool:
        """Whether every order was copied and delivered once, in order."""
        return not self.differing and not any(self.violations.values())


async def publish_orders(uri: str, count: int, folder: Path) -> None:
    """Publish orders; each is in the broker's log when this returns."""
    with trio.fail_after(LIMIT_S):
        async with HAClient(
            "gateway",
            servers=[uri],
            publish_store=MemoryPublishStore(),
            audit_log=AuditLog(folder / "gateway"),
        ) as client:
            for number in range(count):
                order = {"id": number, "customer": f"c{number % CUSTOMERS}"}
                await client.publish("orders", json.dumps(order))
            await client.publish_flush(timeout=LIMIT_S)


async def receive_copies(uri: str, count: int, folder: Path) -> None:
    """Receive the copies from the first one on."""
    with trio.fail_after(LIMIT_S):
        async with (
            HAClient(
                "desk",
                servers=[uri],
                bookmark_store=MemoryBookmarkStore(),
                audit_log=AuditLog(folder / "desk"),
            ) as client,
            client.bookmark_stream("copies", sub_id="copies") as stream,
        ):
            for _ in range(count):
                (await anext(stream)).discard()


def write_parquet(spark: SparkSession, folder: Path) -> None:
    """Stream the topic `orders` into Parquet, up to the present end of the log."""
    orders = (
        spark.readStream.format("amps-journal")
        .option("journalPath", str(folder / "broker"))
        .option("topic", "orders")
        .option("startingBookmark", "EPOCH")
        .load()
    )
    query = (
        orders.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints/parquet"))
        .trigger(availableNow=True)
        .start(str(folder / "orders"))
    )
    query.awaitTermination()


def publish_copies(spark: SparkSession, uri: str, folder: Path) -> None:
    """Stream the Parquet back to the broker; the orders of one customer keep their order."""
    written = spark.read.parquet(str(folder / "orders"))
    rows = spark.readStream.schema(written.schema).parquet(str(folder / "orders"))
    query = (
        publish_stream(
            rows.selectExpr(
                "data",
                "get_json_object(CAST(data AS STRING), '$.customer') AS customer",
                "position",
            ),
            uri=uri,
            topic="copies",
            key="customer",
            order_by="position",
            lanes=2,
        )
        .option("checkpointLocation", str(folder / "checkpoints/copies"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def judge(spark: SparkSession, folder: Path) -> Verdict:
    """Audit the journal, and write the report."""
    broker = folder / "broker"
    logs: dict[str, Any] = {
        "publishes": read_publishes(spark, [folder / "gateway"]).persist(),
        "deliveries": read_deliveries(spark, [folder / "desk"]).persist(),
        "subscriptions": [Subscription(sub_id="copies", topic="copies", complete=True)],
    }
    result = audit(broker, dense=["gateway"], **logs)
    add_latency(result, broker, **logs)
    write_report(result, folder / "audit", title="A stream to Parquet and back")
    orders, copies = (
        read_journal(spark, broker, columns=["data"], topic=topic).persist()
        for topic in ("orders", "copies")
    )
    differing = orders.exceptAll(copies).count() + copies.exceptAll(orders).count()
    violations = {str(kind): count for kind, count in result.counts.items()}
    return Verdict(orders.count(), copies.count(), differing, violations)


def start_session() -> SparkSession:
    """A session of PySpark on this machine."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # For some thousand rows: to compile a plan, and to plan its stages again while it runs,
        # takes several times as long as to run it. For millions, leave these out.
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("pipeline")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def run_pipeline(folder: Path, count: int) -> Verdict:
    """Run all steps in a directory; each is announced on standard error."""
    with ExitStack() as stack:
        report_step("six steps, in one to two minutes on two quiet processors")
        report_step("1/6 start a broker, and publish", f"{count} orders")
        broker = stack.enter_context(BrokerProcess(data_dir=folder / "broker"))
        trio.run(publish_orders, broker.uri, count, folder)
        report_step("2/6 start Apache Spark")
        spark = start_session()
        stack.callback(spark.stop)
        register(spark)
        report_step("3/6 stream the orders from the journal into Parquet")
        write_parquet(spark, folder)
        report_step("4/6 stream the Parquet to the topic copies, each row exactly once")
        publish_copies(spark, broker.uri, folder)
        report_step("5/6 receive the copies")
        trio.run(receive_copies, broker.uri, count, folder)
        report_step("6/6 audit the journal")
        return judge(spark, folder)


def report_step(*words: str) -> None:
    """Print the next step and its time to standard error: standard output has only the verdict."""
    print(f"{time.perf_counter() - BEGUN_AT:5.1f} s", *words, file=sys.stderr, flush=True)


def main() -> int:
    """Run the example; returns the exit code."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--directory", type=Path, help="keep everything there")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    arguments = parser.parse_args()
    if arguments.directory and arguments.directory.exists():
        parser.error(f"--directory: {arguments.directory} exists: give a new one")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.directory or Path(temporary, "pipeline")
        folder.mkdir(parents=True)
        verdict = run_pipeline(folder, arguments.messages)
    if arguments.json:
        print(json.dumps(asdict(verdict)))
    else:
        print(f"{verdict.orders} orders, {verdict.copies} copies, {verdict.differing} differ")
        print(f"violations: {sum(verdict.violations.values())}")
        print("good" if verdict.is_good else "bad")
        if arguments.directory:
            print(folder / "audit" / "report.html")
    return 0 if verdict.is_good else BAD_VERDICT


if __name__ == "__main__":
    sys.exit(main())
