"""`haclient ping`."""

from __future__ import annotations

import json

import pytest

from support.command_line import CommandLine


@pytest.mark.row("CLI1")
def test_a_server_answers_with_version_and_times(haclient: CommandLine) -> None:
    code, [line], err = haclient("ping", "--json")
    assert (code, err) == (0, "")
    answer = json.loads(line)
    assert answer["version"]
    assert answer["logon_ms"] > 0
    assert answer["round_trip_ms"] > 0
    code, [line], _ = haclient("ping")
    assert "round trip" in line


@pytest.mark.row("CLI1")
def test_all_servers_are_asked_and_the_worst_answer_is_the_exit_code(
    haclient: CommandLine,
) -> None:
    code, lines, err = haclient("ping", "--server", "tcp://127.0.0.1:1/amps/json")
    assert (code, lines) == (1, [])
    assert err.splitlines()[-1].startswith("haclient: error: ")
