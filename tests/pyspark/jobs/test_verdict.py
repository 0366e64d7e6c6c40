"""Violations are counted, and the first ones are named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from haclient.pyspark.jobs.audit import audit
from haclient.pyspark.jobs.verdict import FindingKind
from support.audit_rows import (
    healthy,
    journal_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_violations_are_counted_beyond_those_that_are_named(spark: SparkSession) -> None:
    messages = healthy()
    result = audit(journal_of(spark, [*messages, *messages[:30]]), limit=10)
    assert result.counts[FindingKind.DUPLICATE] == 30
    assert [each.position for each in result.violations] == list(range(201, 211))
