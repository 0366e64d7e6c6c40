"""`haclient queue` as processes that are killed: nothing is lost."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from haclient_fake_server.testing.processes import BrokerProcess
from support.process import SMALL_PIPE_BYTES, haclient, running_broker, start_haclient

BACKLOG = 20
OPTIONS = f"max_backlog={BACKLOG},lease=60"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("broker")
    names = ("killed", "stopped", "signalled", "from", "restarted", "once")
    queues = [word for name in names for word in ("--queue", f"{name},{OPTIONS}")]
    with running_broker(data / "log", *queues) as broker:
        yield broker


def publish(broker: BrokerProcess, topic: str, count: int, *, first: int = 0) -> list[str]:
    numbers = range(first, first + count)
    lines = [f'{{"id": {number}, "text": "{"x" * 80}"}}' for number in numbers]
    text = "".join(f"{line}\n" for line in lines).encode()
    result = haclient("publish", "--server", broker.uri, "--topic", topic, stdin=text)
    assert result.code == 0, result.err
    return lines


def statistics(broker: BrokerProcess, name: str) -> dict[str, int]:
    result = haclient("queue", "depth", name, "--server", broker.uri, "--json")
    assert result.code == 0, result.err
    found: dict[str, int] = json.loads(result.out)
    return found


def rest_of(broker: BrokerProcess, name: str) -> list[str]:
    """All that is left in a queue, which is empty then."""
    while (left := statistics(broker, name))["leased"]:
        pass  # the broker has not noticed yet that the last consumer has ended
    if not left["depth"]:
        return []
    count = str(left["depth"])
    result = haclient("queue", "consume", name, "--server", broker.uri, "-n", count)
    assert result.code == 0, result.err
    assert statistics(broker, name)["depth"] == 0
    return result.lines


@pytest.mark.row("CLI9")
def test_a_killed_consumer_loses_nothing_and_repeats_no_more_than_its_backlog(
    broker: BrokerProcess,
) -> None:
    published = publish(broker, "killed", 500)
    printed: list[str] = []
    for _ in range(3):
        with start_haclient(
            *("queue", "consume", "killed", "--server", broker.uri),
            *("--max-backlog", str(BACKLOG)),
            pipe_bytes=SMALL_PIPE_BYTES,
        ) as child:
            printed += [line.decode() for line in child.lines(60)]
            child.kill()
            printed += [line.decode() for line in child.rest() if line.endswith(b"}")]
    printed += rest_of(broker, "killed")
    assert set(printed) == set(published)
    assert len(printed) <= len(published) + 3 * BACKLOG


@pytest.mark.row("CLI9")
@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGTERM, 0, ""), (signal.SIGINT, 130, "haclient: error: interrupted after ")],
    ids=["term", "int"],
)
def test_a_signal_leaves_nothing_unacknowledged_that_was_printed(
    broker: BrokerProcess, number: int, code: int, message: str
) -> None:
    name = "stopped" if number == signal.SIGTERM else "signalled"
    published = publish(broker, name, 300)
    with start_haclient(
        *("queue", "consume", name, "--server", broker.uri),
        pipe_bytes=SMALL_PIPE_BYTES,
    ) as child:
        printed = [line.decode() for line in child.lines(50)]
        child.send(number)
        printed += [line.decode() for line in child.rest()]
        assert child.wait() == code
        assert child.err.startswith(message)
        assert bool(child.err) == bool(message)
    assert printed + rest_of(broker, name) == published


@pytest.mark.row("CLI9")
def test_a_reader_that_goes_away_ends_a_consumer_in_order(broker: BrokerProcess) -> None:
    publish(broker, "once", 200)
    with start_haclient(
        *("queue", "consume", "once", "--server", broker.uri), pipe_bytes=SMALL_PIPE_BYTES
    ) as child:
        child.lines(3)
        child.close_stdout()
        assert child.wait() == 0
        assert child.err == ""
    found = statistics(broker, "once")
    assert found["leased"] == 0
    assert found["depth"] + found["acknowledged"] == 200


@pytest.mark.row("CLI9")
def test_a_killed_move_loses_nothing(broker: BrokerProcess) -> None:
    published: list[str] = []
    words = ("queue", "move", "from", "to", "--server", broker.uri, "--max-backlog", "5")
    kills = 0
    with start_haclient(
        *("subscribe", "--topic", "to", "--bookmark", "epoch", "--server", broker.uri)
    ) as copies:
        while kills < 3:
            published += publish(broker, "from", 200, first=len(published))
            with start_haclient(*words) as child:
                copies.lines(100)
                child.kill()
                kills += child.wait() == -signal.SIGKILL  # else it had moved all of them before
        result = haclient(*words)
        assert result.code == 0, result.err
    left = statistics(broker, "from")
    assert (left["depth"], left["leased"]) == (0, 0)
    everything = haclient(
        *("subscribe", "--topic", "to", "--bookmark", "epoch", "--server", broker.uri, "--exit")
    ).lines
    counts = Counter(everything)
    assert set(counts) == set(published)
    # What a killed run had copied and not acknowledged is there twice, five for each kill.
    assert len(everything) - len(published) <= 3 * 5


@pytest.mark.row("CLI9")
def test_a_consumer_goes_on_when_the_broker_is_killed(broker: BrokerProcess) -> None:
    published = publish(broker, "restarted", 300)
    with start_haclient(
        *("queue", "consume", "restarted", "--server", broker.uri),
        pipe_bytes=SMALL_PIPE_BYTES,
    ) as child:
        printed = [line.decode() for line in child.lines(50)]
        broker.kill()
        broker.start()
        while set(printed) != set(published):
            found = child.lines(1)
            assert found, child.err
            printed += [line.decode() for line in found]
        assert child.stop() == 0
    assert statistics(broker, "restarted")["depth"] == 0
