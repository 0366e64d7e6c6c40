"""Why a job failed is one line."""

from __future__ import annotations

import pytest

from haclient.pyspark.jobs.session import reason_of

TRACE = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
Traceback (most recent call last):
  File "worker.py", line 1, in main
haclient.errors.UsageError: columns names 'x', which does not exist

	at org.apache.spark.api.python.BasePythonRunner
"""


JAVA = """An error occurred while calling o45.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x.
	at org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError
Caused by: java.io.IOException: the write has failed
	at java.base/java.io.FileOutputStream.open
Caused by: java.io.FileNotFoundException: /x/topic=ttt (File name too long)
	... 12 more
"""
MISSING = """An error occurred while calling o45.parquet.
: java.lang.RuntimeException: java.lang.ClassNotFoundException: Class a.b.S3AFileSystem not found
	at org.apache.hadoop.conf.Configuration.getClass
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (JAVA, "FileNotFoundException: /x/topic=ttt (File name too long)"),
        (
            MISSING,
            "RuntimeException: java.lang.ClassNotFoundException: Class a.b.S3AFileSystem not found",
        ),
        ("An error occurred while calling o1.x", "An error occurred while calling o1.x"),
        ("An error occurred while calling o1.x\n: a.b.Overflow\n", "Overflow"),
        (TRACE, "columns names 'x', which does not exist"),
        ("Traceback:\nValueError: needs the position\n", "needs the position"),
        ("[NOT_FOUND] No such path: x.\nJVM stack", "[NOT_FOUND] No such path: x."),
        ("", "a job has failed"),
    ],
)  # fmt: skip
def test_the_line_that_says_why_is_found(text: str, reason: str) -> None:
    assert reason_of(text) == reason
