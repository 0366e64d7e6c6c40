"""What the commands read, and how they choose."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from haclient.cli.pyspark.session import choose_topics, parse_moment
from haclient.errors import UsageError
from haclient.pyspark.jobs.journals import Journal
from support.journals import JournalWriter, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def moment(text: str) -> datetime | None:
    option = click.Option(["--at"])
    return parse_moment(click.Context(click.Command("audit")), option, text)


@pytest.mark.parametrize(
    "text", ["2026-01-31T09:30:00Z", "20260131T093000", "2026-01-31T10:30:00+01:00"]
)
def test_a_moment_is_read_as_the_sources_read_it(text: str) -> None:
    assert moment(text) == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


def test_a_text_that_is_no_moment_is_a_usage_error() -> None:
    with pytest.raises(click.BadParameter, match="'noon' is not a time such as 2026-01-31T09:30"):
        moment("noon")


def test_topics_are_chosen_by_name_or_by_pattern(spark: SparkSession) -> None:
    names = [("orders",), ("orders/new",), ("prices",)]
    rows = Journal(spark.createDataFrame(names, "topic STRING"))
    assert choose_topics(rows, None, None).rows.count() == 3
    assert choose_topics(rows, "orders", None).rows.count() == 1
    assert choose_topics(rows, None, "^orders").rows.count() == 2
    with pytest.raises(UsageError, match="--topic or --topic-pattern, not both"):
        choose_topics(rows, "orders", "^orders")


def test_a_directory_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such directory"):
        Journal.of(tmp_path / "none")
    with pytest.raises(UsageError, match=r"neither the directory of a broker .* nor an export"):
        Journal.of(tmp_path)


@pytest.mark.usefixtures("spark")
def test_a_journal_is_read_by_message_type(tmp_path: Path) -> None:
    JournalWriter(tmp_path).append([message(), message()])
    found = [Journal.of(tmp_path, message_type=each).rows.count() for each in (None, "json", "fix")]
    assert found == [2, 2, 0]


def test_an_export_does_not_tell_message_types(tmp_path: Path) -> None:
    (tmp_path / "date=2026-01-31").mkdir()
    with pytest.raises(UsageError, match="leave out --message-type"):
        Journal.of(tmp_path, message_type="json")
