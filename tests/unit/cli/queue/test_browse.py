"""`haclient queue browse`."""

from __future__ import annotations

import json

import pytest

from support.queue_commands import QueueCommands


@pytest.mark.row("QC18", "CLI9")
def test_messages_are_printed_and_stay_where_they_are(queue: QueueCommands) -> None:
    rows = [f'{{"id": {number}}}' for number in range(5)]
    queue.publish("desk.browsed", *rows)
    assert queue("browse", "desk.browsed") == (0, rows, "")
    assert queue("browse", "desk.browsed", "-n", "2") == (0, rows[:2], "")
    assert queue("browse", "desk.browsed", "--filter", "/id > 3") == (0, rows[4:], "")
    _, lines, _ = queue("browse", "desk.browsed", "--json", "-n", "1")
    [found] = map(json.loads, lines)
    assert (found["topic"], found["data"]) == ("desk.browsed", rows[0])
    assert found["bookmark"]
    found = queue.statistics("desk.browsed")
    assert (found["depth"], found["available"], found["delivered"]) == (5, 5, 0)


@pytest.mark.row("CLI9")
def test_a_malformed_filter_and_a_short_time_are_one_line(queue: QueueCommands) -> None:
    code, _, err = queue("browse", "desk.browsed", "--filter", "/id >")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("haclient: error: sow on 'desk.browsed': bad filter: character 5: ")
    code, _, err = queue("browse", "desk.browsed", "--timeout", "0.000001")
    assert (code, err.count("\n")) == (3, 1)
