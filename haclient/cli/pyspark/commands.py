"""`haclient pyspark`: export, replay, state of the world, audit, comparison and fleet report.

Exit code 4 is a bad verdict: the job has run and found faults. Other failures have the same exit
codes as in the other commands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from haclient.cli.options import Count, FilePath, json_option, with_request
from haclient.cli.output import coloured, payload_field, print_report, print_result
from haclient.cli.pyspark.seal import seal
from haclient.cli.pyspark.session import (
    check_broker_directory,
    check_request,
    check_target,
    choose_topics,
    master_option,
    parse_moment,
    session,
    topic_options,
)
from haclient.cli.termination import ExitCode
from haclient.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import Row

    from haclient.pyspark.jobs.journals import AnyJournal
    from haclient.pyspark.jobs.verdict import Audit
    from haclient_fake_server.config import QueueTopic

_LINES_AT_A_TIME = 1000  # one write for so many
_SHOWN = 20  # violations that are printed; the report has more

journal_argument = click.argument("journal", metavar="JOURNAL")
limit_option = click.option(
    "--limit",
    type=Count(min=1),
    metavar="N",
    default=1000,
    show_default=True,
    help="How many violations of each kind are named.",
)
output_option = click.option(
    "--output",
    metavar="DIRECTORY",
    type=FilePath(path_type=Path, file_okay=False),
    help="Write report.html, verdict.json and Parquet tables there.",
)


@click.group("pyspark")
def pyspark_commands() -> None:
    """Export, replay and audit journals on Apache Spark.

    JOURNAL is the directory of a broker, or of an export.
    """


pyspark_commands.add_command(seal)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    journal: str
    topic: str | None
    topic_pattern: str | None
    since: datetime | None
    until: datetime | None
    master: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportedRange(_Range):
    directory: str
    mode: Literal["errorifexists", "append"]
    partitions: int | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replayed(_Range):
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    journal: str
    topic: str | None
    topic_pattern: str | None
    message_type: str | None
    at: datetime | None
    position: int | None
    output: str | None
    master: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audited(_Range):
    publisher_logs: tuple[str, ...]
    subscriber_logs: tuple[str, ...]
    subscriptions: tuple[tuple[str, str], ...]
    dense: tuple[str, ...]
    unlogged: tuple[str, ...]
    unlogged_pattern: str | None
    after: Path | None
    limit: int
    output: Path | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _AuditedQueues:
    journal: str
    queues: tuple[str, ...]
    limit: int
    output: Path | None
    master: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reconciled:
    left: str
    right: str
    live: bool
    allowed_lag: float | None
    no_content: bool
    limit: int
    output: Path | None
    master: str | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    files: tuple[str, ...]
    journal: str | None
    master: str | None
    as_json: bool


@pyspark_commands.command()
@journal_argument
@click.argument("directory", metavar="DIRECTORY")
@topic_options
@click.option(
    "--mode",
    type=click.Choice(["errorifexists", "append"]),
    default="errorifexists",
    show_default=True,
    help="What to do if the directory exists.",
)
@click.option("--partitions", type=Count(min=1), metavar="N", help="How many tasks write.")
@master_option
@json_option
@with_request(_ExportedRange)
def export(request: _ExportedRange) -> None:
    """Write a journal as Parquet, by date and topic."""
    target = request.directory
    check_target(request.journal, target)
    if request.mode == "errorifexists":
        _check_new(target, "give another directory, or --mode")
    _check_range(request)
    with session(request.master) as spark:
        from haclient.pyspark.jobs import history

        rows = _chosen(request)
        before = history.count_exported(spark, target) if request.mode == "append" else 0
        history.export(rows, target, partitions=request.partitions, mode=request.mode)
        count = history.count_exported(spark, target) - before
        values = {"directory": target, "messages": count}
        print_report(values, f"{target}: {count} messages", as_json=request.as_json)


@pyspark_commands.command()
@journal_argument
@topic_options
@master_option
@json_option
@with_request(_Replayed)
def replay(request: _Replayed) -> None:
    """Print the messages of a journal as they were logged.

    The lines are those that `haclient publish` reads, so that a range can be published again.
    """
    _check_range(request)
    with session(request.master):
        from haclient.pyspark.jobs.journals import Journal

        ordered = (
            Journal.of(_chosen(request)).rows.where("command <> 'sow_delete'").orderBy("position")
        )
        found = ordered.toLocalIterator(prefetchPartitions=True)
        if not request.as_json:
            found = map(_in_one_line, found)
        _print_messages(found, as_json=request.as_json)


def _in_one_line(row: Row) -> Row:
    """Check that a body is one line, since `haclient publish` makes a message of each line."""
    if b"\n" in row["data"]:
        raise UsageError(
            f"the body of {row['bookmark']} on {row['topic']!r} has several lines, each of which "
            "would be published as a message: use --json, or publish from PySpark"
        )
    return row


@pyspark_commands.command("sow-as-of")
@journal_argument
@click.option("-t", "--topic", help="One topic. Default: all of them.")
@click.option("--topic-pattern", metavar="REGEX", help="Topics that match this anywhere.")
@click.option(
    "--message-type",
    metavar="TYPE",
    help="Topics of this message type, such as json. Default: any; no name may have two.",
)
@click.option(
    "--at",
    metavar="TIME",
    callback=parse_moment,
    help="The moment, exclusive. Default: the end of the journal.",
)
@click.option("--position", type=Count(min=1), metavar="N", help="The last position to include.")
@click.option("--output", metavar="DIRECTORY", help="Write Parquet there. Default: print.")
@master_option
@json_option
@with_request(_State)
def sow_as_of(request: _State) -> None:
    """Print the newest message of each key as of a moment."""
    if request.output is not None:
        _check_new(request.output, "give another directory")
    check_request(request.journal, topic=request.topic, topic_pattern=request.topic_pattern)
    with session(request.master) as spark:
        from haclient.pyspark.jobs import history
        from haclient.pyspark.jobs.journals import Journal

        journal = Journal.of(request.journal, message_type=request.message_type)
        chosen = choose_topics(journal, request.topic, request.topic_pattern)
        state = history.sow_as_of(chosen, until=request.at, position=request.position)
        if request.output is not None:
            state.write.mode("errorifexists").parquet(request.output)
            count = spark.read.parquet(request.output).count()
            values = {"directory": request.output, "records": count}
            text = f"{request.output}: {count} records"
            print_report(values, text, as_json=request.as_json)
            return
        ordered = state.orderBy("topic", "sow_key")
        _print_messages(ordered.toLocalIterator(prefetchPartitions=True), as_json=request.as_json)


@pyspark_commands.command()
@journal_argument
@topic_options
@click.option(
    "--publisher-log",
    "publisher_logs",
    multiple=True,
    metavar="DIRECTORY",
    help="The audit log of a publisher. May be repeated.",
)
@click.option(
    "--subscriber-log",
    "subscriber_logs",
    multiple=True,
    metavar="DIRECTORY",
    help="The audit log of a subscriber. May be repeated.",
)
@click.option(
    "--subscription",
    "subscriptions",
    multiple=True,
    nargs=2,
    metavar="SUB_ID TOPIC",
    help="A subscription that gets every message of a topic. May be repeated.",
)
@click.option(
    "--dense",
    multiple=True,
    metavar="NAME",
    help="A publisher that numbers without gaps: its holes are violations. May be repeated.",
)
@click.option(
    "--unlogged",
    multiple=True,
    metavar="TOPIC",
    help="A topic that the server does not log: publishes to it are not lost. May be repeated.",
)
@click.option(
    "--unlogged-pattern", metavar="REGEX", help="Topics that match this anywhere are not logged."
)
@click.option(
    "--after",
    metavar="DIRECTORY",
    type=FilePath(path_type=Path, file_okay=False),
    help="The --output of an earlier audit of this journal: audit what was logged since.",
)
@limit_option
@output_option
@master_option
@json_option
@with_request(_Audited)
def audit(request: _Audited) -> int:
    """Check that each message was logged and delivered once.

    Deliveries and losses need the audit logs of clients. Exit code 4: there are violations, or
    something could not be compared. The first ones are printed with their bookmarks.
    """
    earlier = _check_audit(request)
    with session(request.master) as spark:
        from haclient.pyspark.jobs.audit import Subscription
        from haclient.pyspark.jobs.audit import audit as run_audit
        from haclient.pyspark.jobs.audit_logs import read_deliveries, read_publishes
        from haclient.pyspark.jobs.journals import HEADER_COLUMNS
        from haclient.pyspark.jobs.latency import add_latency

        journal = _chosen(request, HEADER_COLUMNS)
        sent, received = request.publisher_logs, request.subscriber_logs
        publishes = read_publishes(spark, sent).persist() if sent else None
        deliveries = read_deliveries(spark, received).persist() if received else None
        subscriptions = [Subscription(sub_id=name, topic=t) for name, t in request.subscriptions]
        result = run_audit(
            journal,
            publishes=publishes,
            deliveries=deliveries,
            subscriptions=subscriptions,
            dense=request.dense,
            unlogged_topics=request.unlogged,
            unlogged_pattern=request.unlogged_pattern,
            after=None if earlier is None else spark.read.parquet(f"file://{earlier}"),
            limit=request.limit,
        )
        if request.output is not None:
            add_latency(
                result,
                journal,
                publishes=publishes,
                deliveries=deliveries,
                subscriptions=subscriptions,
            )
        return _report(result, request.output, request.journal, as_json=request.as_json)


def _check_audit(request: _Audited) -> Path | None:
    """Check the options of an audit; where the table of the earlier one is that it continues."""
    chosen = (request.topic, request.topic_pattern, request.since, request.until)
    logs = (*request.publisher_logs, *request.subscriber_logs)
    if logs and any(chosen):
        raise UsageError(
            "the audit logs of clients are compared with the whole journal: leave out --topic, "
            "--topic-pattern, --since and --until"
        )
    if (request.unlogged or request.unlogged_pattern) and not request.publisher_logs:
        raise UsageError("--unlogged and --unlogged-pattern are for --publisher-log")
    _check_range(request, logs=logs)
    if request.after is None:
        return None
    if logs:
        raise UsageError(
            "the audit logs of clients are compared with the whole journal: leave out --after"
        )
    table = request.after.absolute() / "tables" / "publishers"
    if not table.is_dir():
        raise UsageError(f"{request.after}: no audit was written there with --output")
    return table


@pyspark_commands.command("audit-queues")
@journal_argument
@click.option(
    "--queue",
    "queues",
    multiple=True,
    required=True,
    metavar="NAME[:TOPIC]",
    help="A queue, as given to `haclient broker run --queue`, with or without its options. May be "
    "repeated.",
)
@limit_option
@output_option
@master_option
@json_option
@with_request(_AuditedQueues)
def audit_queues(request: _AuditedQueues) -> int:
    """Check that each message of a queue left it once.

    JOURNAL is the directory of a broker: exports have no removals. Leases and redeliveries are not
    in a journal. Exit code 4: there are violations, or a queue has no topic.
    """
    check_broker_directory(request.journal)
    configured = tuple(map(_parse_queue, request.queues))
    with session(request.master) as spark:
        from haclient.pyspark.jobs.queue_audit import AuditedQueue
        from haclient.pyspark.jobs.queue_audit import audit_queues as run_audit

        queues = [
            AuditedQueue(
                name=each.name,
                topics=each.topics,
                message_type=each.message_type,
                dead_letter=each.dead_letter,
                is_from_epoch=each.recovery_point == "epoch",
            )
            for each in configured
        ]
        result = run_audit(spark, request.journal, queues, limit=request.limit)
        if request.output is None and not request.as_json:
            for row in result.tables["queues"].collect():
                print_result(_queue_line(row.asDict()))
        return _report(result, request.output, request.journal, as_json=request.as_json)


def _parse_queue(text: str) -> QueueTopic:
    try:
        from haclient_fake_server.config import parse_queue
    except ImportError as error:  # the broker needs packages of its own
        raise UsageError(f"--queue needs the broker's packages: {error}") from error
    return parse_queue(text)


def _queue_line(values: dict[str, Any]) -> str:
    named = {"queue", "message_type", "oldest_queued"}
    counts = [f"{count} {name}" for name, count in values.items() if name not in named and count]
    return f"{values['queue']}: {', '.join(counts) or 'no message'}"


@pyspark_commands.command()
@click.argument("left", metavar="LEFT")
@click.argument("right", metavar="RIGHT")
@click.option(
    "--live", is_flag=True, help="The brokers are running: count the newest messages as behind."
)
@click.option(
    "--allowed-lag",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How much later one instance may log a message than the other. Default: 10.",
)
@click.option("--no-content", is_flag=True, help="Do not compare payloads.")
@limit_option
@output_option
@master_option
@json_option
@with_request(_Reconciled)
def reconcile(request: _Reconciled) -> int:
    """Compare the journals of instances that replicate each other.

    Exit code 4: they differ. The first differences are printed with their bookmarks.
    """
    check_request(request.left, request.right)
    with session(request.master):
        from haclient.pyspark.jobs.reconcile import ALLOWED_LAG_S
        from haclient.pyspark.jobs.reconcile import reconcile as compare

        lag_s = ALLOWED_LAG_S if request.allowed_lag is None else request.allowed_lag
        result = compare(
            request.left,
            request.right,
            names=("left", "right"),
            content=not request.no_content,
            is_live=request.live,
            allowed_lag_s=lag_s,
            limit=request.limit,
        )
        title = f"{request.left} and {request.right}"
        return _report(result, request.output, title, as_json=request.as_json)


@pyspark_commands.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--journal", metavar="JOURNAL", help="Report how old and how far behind each one is.")
@master_option
@json_option
@with_request(_Fleet)
def fleet(request: _Fleet) -> int:
    """Report on the stores of many clients, read-only.

    Exit code 1: one of them cannot be read. The others are reported nevertheless.
    """
    check_request(*filter(None, [request.journal]))
    with session(request.master) as spark:
        from haclient.pyspark.jobs.fleet import fleet as report

        rows = report(spark, request.files, journal=request.journal)
        worst = ExitCode.OK
        for row in rows.orderBy("path", "sub_id").collect():
            values = _known(row)
            print_report(values, _fleet_line(values), as_json=request.as_json)
            if "error" in values:
                worst = ExitCode.FAILURE
        return worst


def _known(row: Row) -> dict[str, Any]:
    """The values of a row without those that are null, and with the zone of its times."""
    values = {name: value for name, value in row.asDict().items() if value is not None}
    for name, value in values.items():
        if isinstance(value, datetime):  # PySpark hands out times of the local zone
            values[name] = value.astimezone(UTC)
    return values


def _fleet_line(values: dict[str, Any]) -> str:
    if "error" in values:
        return f"{values['path']}: error: {values['error']}"
    parts = [f"{values['kind']} store of {values['client'] or 'nobody yet'}"]
    if "sub_id" in values:
        parts.append(f"{values['sub_id']} at {values['recovery_point']}")
    parts.append(f"{values['undiscarded']} open")
    if "backlog" in values:
        since = f"{values['oldest_at']:%Y-%m-%dT%H:%M:%SZ}"
        parts.append(f"{values['backlog']} behind since {since}")
    if "problem" in values:
        parts.append(values["problem"])
    return f"{values['path']}: {', '.join(parts)}"


def _check_range(request: _Range, *, logs: Sequence[str] = ()) -> None:
    chosen = {"topic": request.topic, "topic_pattern": request.topic_pattern}
    check_request(request.journal, logs=logs, **chosen)


def _check_new(target: str, advice: str) -> None:
    if "://" not in target and Path(target).exists():
        raise UsageError(f"{target}: it exists; {advice}")


def _chosen(request: _Range, columns: Sequence[str] = ()) -> AnyJournal:
    """The journal, or the rows of it that a command is about."""
    from haclient.pyspark.jobs.history import between
    from haclient.pyspark.jobs.journals import Journal

    if not any((request.topic, request.topic_pattern, request.since, request.until)):
        return request.journal
    journal = Journal.of(request.journal, columns)
    chosen = choose_topics(journal, request.topic, request.topic_pattern)
    return chosen.chosen(between(chosen.rows, since=request.since, until=request.until))


def _print_messages(rows: Iterator[Row], *, as_json: bool) -> None:
    while chunk := list(itertools.islice(rows, _LINES_AT_A_TIME)):
        print_result(b"\n".join(_lines(chunk, as_json=as_json)))


def _lines(rows: Iterable[Row], *, as_json: bool) -> Iterator[bytes]:
    for row in rows:
        data = bytes(row["data"])
        if not as_json:
            yield data
            continue
        names = ("topic", "bookmark", "sow_key", "timestamp", "correlation_id")
        fields = {name: row[name] for name in names if row[name]}
        # PySpark hands out times of the local zone, without saying so.
        fields["timestamp"] = row["timestamp"].astimezone(UTC)
        yield msgspec.json.encode(fields | payload_field(data))


def _report(result: Audit, output: Path | None, title: str, *, as_json: bool) -> int:
    """Write and print a verdict, and return the exit code that it stands for."""
    from haclient.pyspark.jobs.reports import write_report

    verdict = result.verdict() if output is None else write_report(result, output, title=title)
    lines = [coloured(f"{verdict['verdict']}: ", is_good=result.is_good) + _counts_text(result)]
    lines += [
        " ".join(
            f"  {each.kind}: {each.bookmark} {each.topic or ''} {each.sub_id or ''} "
            f"{each.detail}".split()
        )
        for each in result.violations[:_SHOWN]
    ]
    lines += [f"not verified: {reason}" for reason in result.not_verified]
    if output is not None:
        lines.append(f"{output / 'report.html'}")
    print_report(verdict, "\n".join(lines), as_json=as_json)
    return ExitCode.OK if result.is_good else ExitCode.BAD_VERDICT


def _counts_text(result: Audit) -> str:
    found = [f"{count} {kind}" for kind, count in result.counts.items() if count]
    return ", ".join(found) or "no violation"
