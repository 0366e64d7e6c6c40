"""`haclient queue consume`."""

from __future__ import annotations

import json

import pytest

from support.queue_commands import QueueCommands

BACKLOG_1 = "haclient: warning: the queue"


def rows(count: int) -> list[str]:
    return [f'{{"id": {number}}}' for number in range(count)]


@pytest.mark.row("CLI1", "CLI9")
def test_what_is_printed_is_acknowledged(queue: QueueCommands) -> None:
    queue.publish("endless", *rows(8))
    assert queue("consume", "endless", "--timeout", "2") == (0, rows(8), "")
    found = queue.statistics("endless")
    assert (found["depth"], found["acknowledged"], found["redelivered"]) == (0, 8, 0)
    queue.publish("endless", "last")
    _, [line], _ = queue("consume", "endless", "-n", "1", "--json")
    assert json.loads(line)["data"] == "last"


@pytest.mark.row("CLI9")
def test_fewer_messages_than_asked_for_is_exit_code_3(queue: QueueCommands) -> None:
    queue.publish("few", "only")
    code, lines, err = queue("consume", "few", "-n", "2", "--timeout", "2")
    assert (code, lines) == (3, ["only"])
    assert err == "haclient: error: 1 of 2 messages came, then none for 2 s\n"
    assert queue.statistics("few")["depth"] == 0


@pytest.mark.row("CLI9")
def test_what_is_cancelled_or_left_is_there_again(queue: QueueCommands) -> None:
    for name, option, cancelled in (("kept", "--cancel", 3), ("left", "--no-ack", 0)):
        queue.publish(name, *rows(4))
        assert queue("consume", name, option, "-n", "3") == (0, rows(3), "")
        found = queue.statistics(name)
        assert (found["available"], found["cancelled"], found["delivered"]) == (4, cancelled, 3)


@pytest.mark.row("CLI9")
def test_a_message_has_one_end(queue: QueueCommands) -> None:
    code, lines, err = queue("consume", "kept", "--expire", "--cancel", "-n", "1")
    assert (code, lines) == (2, [])
    assert "--cancel and --expire exclude each other: choose one" in err


@pytest.mark.row("CLI9")
def test_messages_that_are_given_back_have_a_limit(queue: QueueCommands) -> None:
    queue.publish("limited", *rows(2))
    code, _, err = queue("consume", "limited", "--no-ack")
    assert (code, err.count("\n")) == (2, 1)
    assert "--no-ack needs -n" in err
    code, lines, err = queue("consume", "limited", "--no-ack", "-n", "4")
    assert (code, lines) == (2, [])
    assert err == (
        "haclient: error: -n 4: to keep messages until the end is possible for as many as one "
        "consumer may have; the server allows 3; try 'haclient queue consume --help'\n"
    )


@pytest.mark.row("CLI9")
def test_what_is_expired_leaves_the_queue_as_expired(queue: QueueCommands) -> None:
    queue.publish("spoiled", '{"id": 1}', '{"id": 2}', '{"id": 3}')
    found = queue("consume", "spoiled", "--expire", "--filter", "/id > 1", "-n", "2")
    assert found == (0, ['{"id": 2}', '{"id": 3}'], "")
    after = queue.statistics("spoiled")
    assert (after["depth"], after["expired"]["forced_expire"]) == (1, 2)


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("option", ["--cancel", "--no-ack", "--expire"])
def test_at_most_once_has_nothing_to_give_back(queue: QueueCommands, option: str) -> None:
    code, lines, err = queue("consume", "once", option, "-n", "1")
    assert (code, lines) == (1, [])
    assert err.startswith(f"haclient: error: {option}: 'once' delivers at most once")


@pytest.mark.row("QC2", "CLI9")
def test_only_who_asks_for_more_is_warned_of_a_backlog_of_1(queue: QueueCommands) -> None:
    queue.publish("source.two", *rows(2))
    assert queue("consume", "third", "-n", "1") == (0, rows(1), "")
    code, lines, err = queue("consume", "third", "--timeout", "2")
    assert (code, lines) == (0, rows(2)[1:])
    assert err.startswith(BACKLOG_1)
