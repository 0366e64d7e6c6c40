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
    from pyspark.sql import SparkSession

    from haclient.pyspark.jobs.journals import Journal

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
    from haclient.pyspark.journal.log import is_broker_directory

    for path in journals:
        is_broker_directory(path)
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
    from haclient.pyspark.journal.log import is_broker_directory

    if not is_broker_directory(path):
        raise UsageError(f"{path}: an export has no removals: give the directory of a broker")


def _check_topics(topic: str | None, pattern: str | None) -> None:
    if topic is not None and pattern is not None:
        raise UsageError("give --topic or --topic-pattern, not both")


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
            f"{target}: it overlaps {journal}, which is read: give a directory beside it"
        )


def _resolved(path: str) -> PurePath:
    """A directory of this machine without links, or an address as it is."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return PurePosixPath(path) if "://" in path else Path(path).resolve()


def choose_topics(journal: Journal, topic: str | None, pattern: str | None) -> Journal:
    """The rows of one topic, or of topics that match a regular expression."""
    _check_topics(topic, pattern)
    rows = journal.rows
    if topic is not None:
        return journal.chosen(rows.where(rows["topic"] == topic))
    return journal if pattern is None else journal.chosen(rows.where(rows["topic"].rlike(pattern)))


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
