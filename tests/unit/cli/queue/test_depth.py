"""`haclient queue depth`."""

from __future__ import annotations

import json

import pytest

from haclient.cli.queue.depth import as_text
from haclient.cli.queue.statistics import QueueStatistics
from support.queue_commands import QUEUES, QueueCommands


def statistics(**changes: object) -> QueueStatistics:
    values: dict[str, object] = {
        "name": "work",
        "topics": ("work",),
        "semantics": "at-least-once",
        "depth": 0,
        "available": 0,
        "leased": 0,
        "consumers": 0,
        "oldest_bookmark": "",
        "oldest_us": 0,
        "delivered": 0,
        "redelivered": 0,
        "acknowledged": 0,
        "cancelled": 0,
        "expired": {"time_limit": 0, "max_deliveries": 0},
        "lease_s": None,
        "max_per_subscription_backlog": 1,
    }
    return QueueStatistics(**{**values, **changes})  # type: ignore[arg-type]  # the names say which


def test_an_empty_queue_is_told_without_an_oldest_message() -> None:
    assert as_text(statistics()) == (
        "work: 0 messages, 0 available, 0 leased, 0 consumers\n"
        "  0 delivered, 0 redelivered, 0 acknowledged, 0 cancelled, 0 expired"
    )


def test_numbers_and_reasons_are_told_in_words() -> None:
    found = as_text(
        statistics(
            depth=1,
            leased=1,
            consumers=1,
            oldest_us=1711059052535075,
            expired={"time_limit": 2, "max_deliveries": 1, "max_cancels": 0},
        )
    )
    assert found == (
        "work: 1 message, 0 available, 1 leased, 1 consumer, the oldest of "
        "20240321T221052.535075Z\n"
        "  0 delivered, 0 redelivered, 0 acknowledged, 0 cancelled, "
        "3 expired (2 time_limit, 1 max_deliveries)"
    )


@pytest.mark.row("CLI1", "CLI9")
def test_all_queues_or_one_are_told(queue: QueueCommands) -> None:
    code, lines, err = queue("depth")
    assert (code, err) == (0, "")
    assert len(lines) == 2 * len(QUEUES)
    code, lines, _ = queue("depth", "third")
    assert lines[0].startswith("third: 0 messages, 0 available")
    code, lines, _ = queue("depth", "--json")
    names = [json.loads(line)["name"] for line in lines]
    assert names == [each.partition(",")[0].partition(":")[0] for each in QUEUES]


@pytest.mark.row("CLI9")
def test_a_query_that_takes_too_long_is_exit_code_3(queue: QueueCommands) -> None:
    code, _, err = queue("depth", "--timeout", "0.000001")
    assert code == 3
    assert err.count("\n") == 1
