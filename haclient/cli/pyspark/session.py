"""The PySpark session of a command, and the journals that it reads.

Nothing here imports PySpark before a command runs: help is there without the extra.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

import click

from haclient.errors import UsageError
from haclient.pyspark.environment import check_installation, check_packages
from haclient.pyspark.options import parse_timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

master_option = click.option(
    "--master",
    metavar="URL",
    help="Where to run: local[N], spark://host:7077, yarn ... Default: all processors of this "
    "machine.",
)


def parse_moment(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> datetime | None:
    """A time, read as the data sources read one."""
    if value is None:
        return None
    try:
        return datetime.fromtimestamp(parse_timestamp(value) / 1e6, UTC)
    except ValueError as error:
        wanted = "2026-01-31T09:30:00Z or 20260131T093000"
        raise click.BadParameter(f"{value!r} is not a time such as {wanted}") from error


@contextmanager
def session(master: str | None) -> Generator[SparkSession]:
    """A session with our data sources; it is stopped at the end.

    Args:
        master: Where to run.

    Raises:
        UsageError: The extra is missing, or its environment is not right.
        JobFailed: A job has failed.
    """
    check_installation()
    from haclient.pyspark.jobs.session import job_session

    with job_session(master) as spark:
        yield spark


def check_request(
    *journals: str,
    logs: Sequence[str] = (),
    topic: str | None = None,
    topic_pattern: str | None = None,
) -> None:
    """Check what can be checked without a session, which takes seconds to start.

    Args:
        journals: The journals that are read.
        logs: The audit logs that are read.
        topic: One topic.
        topic_pattern: Topics by a regular expression.

    Raises:
        UsageError: The extra is missing, or something that is read is not there or not a journal,
            or topics are chosen in two ways.
    """
    check_packages()
    _check_topics(topic, topic_pattern)
    for path in journals:
        if "://" not in path:
            _is_broker(path)
    for path in logs:
        if not Path(path).is_dir():
            raise UsageError(f"{path}: there is no such directory")


def check_broker_directory(path: str) -> None:
    """Check that a journal is the directory of a broker, before a session is started.

    Args:
        path: A directory of this machine.

    Raises:
        UsageError: The extra is missing, or it is an export, an address, or no journal.
    """
    check_packages()
    if "://" in path or not _is_broker(path):
        raise UsageError(f"{path}: an export has no removals: give the directory of a broker")


def _check_topics(topic: str | None, pattern: str | None) -> None:
    if topic is not None and pattern is not None:
        raise UsageError("give --topic or --topic-pattern, not both")


def _is_broker(path: str) -> bool:
    """Whether a directory of this machine is that of a broker, and not an export."""
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(f"{path}: there is no such directory")
    names = [each.name for each in folder.iterdir()]
    if any(name.startswith("journal.") for name in names):
        return True
    if any(name.startswith("date=") for name in names):
        return False
    raise UsageError(
        f"{path}: neither the directory of a broker (journal.00000001 ...) nor an export (date=...)"
    )


def read_journal(
    spark: SparkSession,
    path: str,
    *,
    columns: str = "",
    message_type: str | None = None,
    has_pushdown: bool = False,
) -> DataFrame:
    """The rows of a broker's directory, or of an export.

    Args:
        spark: The session.
        path: A directory on this machine, or an address such as `s3a://bucket/export`.
        columns: Names of the columns that are read from a broker's directory; all by default.
        message_type: The message type of the topics that are read; all by default.
        has_pushdown: Whether conditions on positions make it read less of a broker's directory; the
            session has to allow it.

    Raises:
        UsageError: There is no such directory, or it is neither, or an export has to tell message
            types.
    """
    from haclient.pyspark.jobs.history import read_export

    if "://" in path or not _is_broker(path):
        if message_type is not None:
            raise UsageError(
                f"{path}: an export does not tell message types: give the directory of a broker, "
                "or leave out --message-type"
            )
        return read_export(spark, path)
    chosen = {"columns": columns} if columns else {}
    if message_type is not None:
        chosen["messageType"] = message_type
    source = spark.read.format("amps-journal").option("journalPath", path)
    return source.options(**chosen, filterPushdown=has_pushdown).load()


def is_whole(path: str) -> bool | None:
    """Whether the directory of a broker still has the beginning of its log.

    Args:
        path: What `read_journal` reads.

    Returns:
        `None` for an export, of which only the rows are known.
    """
    from haclient.pyspark.journal.log import JournalLog

    if "://" in path or not _is_broker(path):
        return None
    log = JournalLog(Path(path), sealed=True)
    log.refresh()
    return log.first_position == 1


def check_still_whole(*journals: tuple[str, bool | None]) -> None:
    """Check that no journal has lost its beginning while it was read, in several passes.

    Args:
        journals: Each path with what `is_whole` has said of it before.

    Raises:
        DataLoss: One has.
    """
    from haclient.pyspark.rows import DataLoss

    for path, was_whole in journals:
        if was_whole and not is_whole(path):
            raise DataLoss(f"{path}: its oldest segments were removed while it was read: run again")


def check_target(journal: str, target: str) -> None:
    """Check that what is written is neither within what is read nor around it.

    Args:
        journal: The directory or address that is read.
        target: The directory or address that is written.

    Raises:
        UsageError: One of them is, or is in, the other one.
    """
    source, written = (_resolved(each) for each in (journal, target))
    if source == written or source in written.parents or written in source.parents:
        raise UsageError(
            f"{target}: it is, or is in, or has {journal}, which is read: "
            "give a directory beside it"
        )


def _resolved(path: str) -> PurePath:
    """A directory of this machine without links, or an address as it is."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return PurePosixPath(path) if "://" in path else Path(path).resolve()


def choose_topics(journal: DataFrame, topic: str | None, pattern: str | None) -> DataFrame:
    """The rows of one topic, or of topics that match a regular expression."""
    _check_topics(topic, pattern)
    if topic is not None:
        return journal.where(journal["topic"] == topic)
    return journal if pattern is None else journal.where(journal["topic"].rlike(pattern))


def topic_options(function: Callable[..., object]) -> Callable[..., object]:
    """The options that choose topics and times."""
    for option in (
        click.option(
            "--until",
            metavar="TIME",
            callback=parse_moment,
            help="The end of the range. Default: all.",
        ),
        click.option(
            "--since",
            metavar="TIME",
            callback=parse_moment,
            help="The first moment of the range. Default: all.",
        ),
        click.option("--topic-pattern", metavar="REGEX", help="Topics that match this anywhere."),
        click.option("-t", "--topic", help="One topic. Default: all of them."),
    ):
        function = option(function)
    return function
