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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACE, "columns names 'x', which does not exist"),
        ("Traceback:\nValueError: needs the position\n", "needs the position"),
        ("[NOT_FOUND] No such path: x.\nJVM stack", "[NOT_FOUND] No such path: x."),
        ("", "a job has failed"),
    ],
)  # fmt: skip
def test_the_line_that_says_why_is_found(text: str, reason: str) -> None:
    assert reason_of(text) == reason
