"""`haclient ping`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haclient.cli.app import run
from haclient.cli.demo.processes import reserved_ports
from haclient_fake_server.testing.processes import BrokerProcess
from support.command_line import CommandLine
from support.process import running_broker, start_haclient


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
def test_a_server_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with reserved_ports(1) as [port]:
        uri = f"tcp://127.0.0.1:{port}/amps/json"
        with start_haclient("ping", "--server", uri, "--wait", "60", "-vv") as waiting:
            while " disconnected" not in waiting.err:
                assert waiting.is_running
            with running_broker(tmp_path / "log", port=port):
                assert waiting.wait() == 0
                assert uri in waiting.line()
                assert run(["ping", "--server", uri, "--wait", "60"]) == 0
    assert ": ok, logon " in capfd.readouterr().out


@pytest.mark.row("CLI9")
def test_a_server_that_does_not_come_is_waited_for_no_longer_than_was_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(["ping", "-s", "tcp://me:secret@127.0.0.1:1/amps/json", "--wait", "1"]) == 3
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "tcp://me@127.0.0.1:1/amps/json has not answered within 1 s: cannot connect" in err


@pytest.mark.row("CLI1")
def test_all_servers_are_asked_and_the_worst_answer_is_the_exit_code(
    haclient: CommandLine,
) -> None:
    code, lines, err = haclient("ping", "--server", "tcp://127.0.0.1:1/amps/json")
    assert (code, lines) == (1, [])
    assert err.splitlines()[-1].startswith("haclient: error: ")


@pytest.mark.row("CLI1")
def test_a_server_that_refuses_the_logon_has_answered(
    haclient: CommandLine, broker: BrokerProcess
) -> None:
    uri = f"{broker.uri.partition('/amps')[0]}/amps/nosuch"
    code, lines, err = haclient("ping", "--server", uri, "--wait", "300")
    assert (code, lines) == (1, [])
    assert "invalid message type: 'nosuch' is none of" in err
