"""The group `haclient queue`."""

from __future__ import annotations

import pytest

from haclient.cli.app import run
from haclient.cli.queue.commands import queue as group
from support.queue_commands import QUEUES, QueueCommands


@pytest.mark.row("CLI1")
def test_the_group_has_its_commands() -> None:
    assert sorted(group.commands) == ["browse", "consume", "depth", "move"]


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("consume",), "Missing argument 'QUEUE'"),
        (("browse",), "Missing argument 'QUEUE'"),
        (("move", "a"), "Missing argument 'TO'"),
        (("depth", "a"), "no server"),
        (("peek", "a"), "No such command 'peek'"),
        (("consume", "a", "--max-backlog", "0"), "--max-backlog"),
        (("consume", "a", "-n", "0"), "-n"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: tuple[str, ...], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["queue", *words]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert told in err


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    "words", [("depth",), ("browse", "a"), ("consume", "a"), ("move", "a", "b")]
)
def test_no_server_is_one_line(words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["queue", *words, "--server", "tcp://127.0.0.1:1/amps/json"]) == 1
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "cannot connect to tcp://127.0.0.1:1" in err


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    "words",
    [("depth", "people"), ("browse", "people"), ("consume", "people"), ("move", "people", "b")],
)
def test_a_topic_that_is_no_queue_is_named(queue: QueueCommands, words: tuple[str, ...]) -> None:
    code, lines, err = queue(*words)
    assert (code, lines) == (1, [])
    assert err.startswith("haclient: error: 'people' is no queue: the server has 'desk.browsed', ")
    assert err.endswith(f" and {len(QUEUES) - 10} more\n")
