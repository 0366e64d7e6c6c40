"""A session for one job, for programs that have none: the commands `haclient pyspark ...`.

The session is quiet: a job that fails is one line, the line that says why. The traces that PySpark
adds, of Python and of Java, are kept as the cause.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from haclient.errors import HAClientError
from haclient.pyspark.environment import job_errors, register

_SETTINGS: Final[dict[str, bool | float | str | None]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",  # what fails is in the exception as well
}


_JAVA_ERROR: Final = "An error occurred while calling "
"""Begins the text of an exception of Java that PySpark does not translate."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_DEFAULT_PARTITIONS: Final = "200"


class JobFailed(HAClientError):
    """A job on Apache Spark has failed; the message is the line that says why."""


@contextmanager
def job_session(master: str | None = None) -> Generator[SparkSession]:
    """A session with our data sources, which is stopped at the end.

    A session that this program has already is used and left running.

    Args:
        master: Where to run, such as `local[2]` or `spark://host:7077`; by default what
            spark-submit says, else all processors of this machine.

    Raises:
        JobFailed: A job has failed within.
        UsageError: Something is missing on a worker.
    """
    running = SparkSession.getActiveSession()
    spark = running or _start(master)
    try:
        register(spark)
        yield spark
    except job_errors() as error:
        raise JobFailed(reason_of(str(error))) from error
    finally:
        if running is None:
            spark.stop()


def _start(master: str | None) -> SparkSession:
    builder = SparkSession.builder.appName("haclient").config(map=_SETTINGS)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    is_local = str(spark.conf.get("spark.master", "")).startswith("local")
    if is_local and spark.conf.get(_PARTITIONS) == _DEFAULT_PARTITIONS:
        # Each costs some 60 ms: 200 of them are a minute for each pass over a few summaries.
        spark.conf.set(_PARTITIONS, str(2 * (os.cpu_count() or 1)))
    return spark


def reason_of(text: str) -> str:
    """The line of an exception's text that says why a job failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # The last line of a Python trace has the error that was raised; ours say what to do.
    raised = [line for line in lines if line.startswith(("haclient.", "haclient_", "ValueError: "))]
    if raised:
        return raised[0].partition(": ")[2] or raised[0]
    if text.startswith(_JAVA_ERROR):
        # The innermost cause: what is around it says only that a job, stage or task has failed.
        causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
        if causes:
            kind, _, message = causes[-1].partition(": ")[2].partition(": ")
            name = kind.rpartition(".")[2]
            return f"{name}: {message}" if message else name
    return (lines or ["a job has failed"])[0]
