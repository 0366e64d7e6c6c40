"""`haclient demo` as a command: its verdict is its exit code."""

from __future__ import annotations

import json
import signal

import pytest

from haclient.cli import demo
from haclient.cli.app import run
from haclient.cli.demo_trace import Mark, Step
from haclient.cli.demo_verdict import Measures, Verdict, judge
from haclient.cli.exits import Interrupted
from haclient.cli.progress import Progress

GOOD: list[Step] = [(mark, number) for number in range(3) for mark in Mark]


@pytest.fixture(
    params=[
        pytest.param(("good", GOOD, 0), id="good"),
        pytest.param(("lost", GOOD[:-3], 1), id="lost"),
        pytest.param(("duplicated", [*GOOD, GOOD[6]], 1), id="duplicated"),
        pytest.param(("out_of_order", [*GOOD[3:6], *GOOD[:3], *GOOD[6:]], 1), id="disorder"),
    ]
)
def traced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, list[Step], int]:
    """A trace in the place of a run: what is wrong with it, the trace, and the exit code."""
    name, trace, code = request.param

    async def conduct(messages: int, _progress: Progress) -> Verdict:
        assert messages == 1234
        return judge(3, [trace], Measures(failover_ms=[4.0, 6.0], restarts=1, seconds=1.0))

    monkeypatch.setattr(demo, "conduct", conduct)
    return name, trace, code


def test_the_exit_code_is_the_verdict(
    traced: tuple[str, list[Step], int], capfd: pytest.CaptureFixture[str]
) -> None:
    fault, _, code = traced
    assert run(["demo", "--messages", "1234", "--json"]) == code
    out, err = capfd.readouterr()
    [line] = out.splitlines()
    found = json.loads(line)
    wrong = [name for name in ("lost", "duplicated", "out_of_order") if found[name]]
    assert wrong == ([] if fault == "good" else [fault])
    assert (found["failovers"], found["failover_ms_p50"]) == (2, 5.0)
    assert err == ""


def test_the_verdict_is_told_in_words(
    traced: tuple[str, list[Step], int], capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, code = traced
    assert run(["demo", "--messages", "1234"]) == code
    assert capfd.readouterr().out.count("NOT GOOD") == code


@pytest.mark.parametrize("messages", ["0", "999", "-1", "many"])
def test_too_few_messages_are_a_mistake(messages: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--messages", messages]) == 2
    assert "--messages" in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_has_no_verdict(number: int) -> None:
    with pytest.raises(Interrupted, match="no verdict"):
        demo.stopped(number)
