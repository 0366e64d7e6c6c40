"""`haclient queue move`."""

from __future__ import annotations

import json

import pytest

from support.queue_commands import QueueCommands


def rows(count: int) -> list[str]:
    return [f'{{"id": {number}}}' for number in range(count)]


@pytest.mark.row("CLI1", "CLI9")
def test_messages_are_moved_in_their_order(queue: QueueCommands) -> None:
    queue.publish("source", *rows(25))
    code, [line], err = queue("move", "source", "copies", "--json")
    assert (code, err) == (0, "")
    summary = json.loads(line)
    assert list(summary) == ["source", "target", "moved", "seconds"]
    assert summary["moved"] == 25
    assert queue.statistics("source")["depth"] == 0
    assert queue("browse", "copies") == (0, rows(25), "")


@pytest.mark.row("CLI9")
def test_some_messages_are_moved(queue: QueueCommands) -> None:
    queue.publish("partly", *rows(6))
    code, [told], _ = queue("move", "partly", "elsewhere", "-n", "2", "--filter", "/id > 1")
    assert code == 0
    assert told.startswith("moved 2 messages from partly to elsewhere in ")
    assert queue("browse", "partly")[1] == [*rows(2), *rows(6)[4:]]
    code, [told], err = queue("move", "partly", "elsewhere", "-n", "9")
    assert code == 3
    assert told.startswith("moved 4 messages")
    assert err == "haclient: error: 4 of 9 messages were in the queue\n"


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("source", "source"), 2, "'source' is both the source and the target"),
        (("other", "source.two"), 1, "returns to 'other'"),
        (("other", "third"), 1, "'third', a queue over 'source.two', returns to 'other'"),
        (("once", "copies"), 1, "'once' delivers at most once"),
        (("source", "unlogged"), 1, "does not log 'unlogged'"),
    ],
)
def test_a_move_that_would_lose_messages_or_never_end_is_refused(
    queue: QueueCommands, words: tuple[str, str], code: int, told: str
) -> None:
    found, lines, err = queue("move", *words)
    assert (found, lines, err.count("\n")) == (code, [], 1)
    assert told in err


@pytest.mark.row("CLI9")
def test_a_refused_copy_leaves_its_message_in_the_queue(queue: QueueCommands) -> None:
    queue.publish("refused", '{"id": 1}', '{"name": "no key"}', '{"id": 2}')
    code, lines, err = queue("move", "refused", "people")
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert "to 'people': bad sow key; 1 messages were moved" in err
    assert queue("browse", "refused")[1] == ['{"name": "no key"}', '{"id": 2}']
