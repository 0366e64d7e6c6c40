"""`haclient queue` that is killed, interrupted or not read any more: nothing is lost."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import BinaryIO

import pytest

from haclient.cli.app import run
from haclient_fake_server.testing.processes import BrokerProcess
from integration.conftest import BACKLOG
from support.process import SMALL_PIPE_BYTES, running_broker, start_haclient
from support.queue_commands import QueueCommands

KILLS = 2


@pytest.fixture
def queue(shared_broker: BrokerProcess, capfd: pytest.CaptureFixture[str]) -> QueueCommands:
    """The commands against the shared broker."""
    return QueueCommands(shared_broker, capfd)


def lines(count: int, *, first: int = 0) -> list[str]:
    numbers = range(first, first + count)
    return [f'{{"id": {number}, "text": "{"x" * 80}"}}' for number in numbers]


def rest_of(queue: QueueCommands, name: str) -> list[str]:
    """All that is left in a queue, which is empty then."""
    while (left := queue.statistics(name))["leased"]:
        pass  # the broker has not noticed yet that the last consumer has ended
    if not left["depth"]:
        return []
    code, found, err = queue("consume", name, "-n", str(left["depth"]))
    assert (code, err) == (0, "")
    assert queue.statistics(name)["depth"] == 0
    return found


@pytest.mark.row("CLI9")
def test_a_killed_consumer_loses_nothing_and_repeats_no_more_than_its_backlog(
    queue: QueueCommands,
) -> None:
    published, printed = lines(300), list[str]()
    queue.publish("killed", *published)
    words = ("queue", "consume", "killed", "--server", queue.uri, "--max-backlog", str(BACKLOG))
    for _ in range(KILLS):
        with start_haclient(*words, pipe_bytes=SMALL_PIPE_BYTES) as child:
            printed += [line.decode() for line in child.lines(60)]
            child.kill()
            printed += [line.decode() for line in child.rest() if line.endswith(b"}")]
    printed += rest_of(queue, "killed")
    assert set(printed) == set(published)
    assert len(printed) <= len(published) + KILLS * BACKLOG


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGTERM, 0, ""), (signal.SIGINT, 130, "haclient: note: interrupted after ")],
    ids=["term", "int"],
)
def test_a_signal_leaves_nothing_unacknowledged_that_was_printed(
    queue: QueueCommands, number: int, code: int, message: str
) -> None:
    name = "stopped" if number == signal.SIGTERM else "signalled"
    published, printed = lines(300), list[str]()
    queue.publish(name, *published)

    def read(pipe: BinaryIO) -> None:
        for line in pipe:
            printed.append(line.decode().rstrip("\n"))
            if len(printed) == 50:
                os.kill(os.getpid(), number)

    found, err = queue.read_by(read, "consume", name, pipe_bytes=SMALL_PIPE_BYTES)
    assert (found, err[: len(message)], bool(err)) == (code, message, bool(message))
    assert printed + rest_of(queue, name) == published


@pytest.mark.row("CLI9")
def test_a_reader_that_goes_away_ends_a_consumer_in_order(queue: QueueCommands) -> None:
    queue.publish("once", *lines(200))

    def read(pipe: BinaryIO) -> None:
        assert all(pipe.readline() for _ in range(3))

    assert queue.read_by(read, "consume", "once", pipe_bytes=SMALL_PIPE_BYTES) == (0, "")
    found = queue.statistics("once")
    assert found["leased"] == 0
    assert found["depth"] + found["acknowledged"] == 200


@pytest.mark.row("CLI9")
def test_a_killed_move_loses_nothing(
    queue: QueueCommands, capfd: pytest.CaptureFixture[str]
) -> None:
    published: list[str] = []
    words = ("queue", "move", "from", "to", "--server", queue.uri, "--max-backlog", "5")
    replay = ("subscribe", "--topic", "to", "--bookmark", "epoch", "--server", queue.uri)
    kills = 0
    with start_haclient(*replay) as copies:
        while kills < KILLS:
            published += (more := lines(200, first=len(published)))
            queue.publish("from", *more)
            with start_haclient(*words) as child:
                copies.lines(100)
                child.kill()
                kills += child.wait() == -signal.SIGKILL  # else it had moved all of them before
    assert queue("move", "from", "to", "--max-backlog", "5")[::2] == (0, "")
    left = queue.statistics("from")
    assert (left["depth"], left["leased"]) == (0, 0)
    assert run([*replay, "--exit"]) == 0
    everything = capfd.readouterr().out.splitlines()
    assert set(Counter(everything)) == set(published)
    # What a killed run had copied and not acknowledged is there twice, five for each kill.
    assert len(everything) - len(published) <= KILLS * 5


@pytest.mark.row("CLI9")
def test_a_consumer_goes_on_when_the_broker_is_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    published, printed = lines(200), list[str]()
    with running_broker(tmp_path, "--queue", f"jobs,max_backlog={BACKLOG},lease=60") as broker:
        queue = QueueCommands(broker, capfd)
        queue.publish("jobs", *published)

        def read(pipe: BinaryIO) -> None:
            while set(printed) != set(published):
                printed.append(pipe.readline().decode().rstrip("\n"))
                if len(printed) == 50:
                    broker.kill()
                    broker.start()
            os.kill(os.getpid(), signal.SIGTERM)
            pipe.read()

        code, err = queue.read_by(read, "consume", "jobs", pipe_bytes=SMALL_PIPE_BYTES)
        assert code == 0
        assert "lost its connection" in err
        assert queue.statistics("jobs")["depth"] == 0
