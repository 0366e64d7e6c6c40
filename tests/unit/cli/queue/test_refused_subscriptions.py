"""A subscription that acknowledges nothing is refused for a queue, and takes nothing from it."""

from __future__ import annotations

import pytest

from haclient.cli.app import run
from haclient.cli.queue.statistics import check_no_lease
from haclient.client import HAClient
from haclient.errors import HAClientError
from haclient_fake_server.testing.processes import BrokerProcess
from support.queue_commands import QueueCommands

pytestmark = pytest.mark.row("CLI9")


def subscribe(
    queue: QueueCommands, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, list[str], str]:
    code = run([*words, "--server", queue.uri])
    out, err = capfd.readouterr()
    return code, out.splitlines(), err


@pytest.mark.parametrize(
    "words",
    [
        ("subscribe", "touchless"),
        ("subscribe", "touchless", "--delta"),
        ("sow-and-subscribe", "touchless"),
        ("subscribe", "alone"),
    ],
    ids=" ".join,
)
def test_a_queue_is_refused_before_anything_is_delivered(
    queue: QueueCommands, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    name = words[1]
    queue.publish(name, '{"id": 1}')
    before = queue.statistics(name)
    code, lines, err = subscribe(queue, capfd, *words, "--timeout", "2")
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert f"haclient: error: '{name}' is a queue" in err
    for way in (f"haclient queue consume {name}", f"haclient queue browse {name}"):
        assert way in err
    assert "--bookmark epoch" in err
    assert queue.statistics(name) == before


def test_what_a_pattern_gets_from_a_queue_is_not_printed_and_goes_back(
    queue: QueueCommands, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.publish("matched", '{"id": 1}')
    code, lines, err = subscribe(queue, capfd, "subscribe", "matche.", "--timeout", "60")
    assert (code, lines) == (1, [])
    assert "'matched' is a queue" in err.splitlines()[-1]
    assert queue.statistics("matched")["depth"] == 1


def test_all_that_was_published_to_a_queue_is_replayed(
    queue: QueueCommands, capfd: pytest.CaptureFixture[str]
) -> None:
    queue.publish("replayed", '{"id": 1}', '{"id": 2}')
    words = ("subscribe", "replayed", "--bookmark", "epoch", "--exit")
    assert subscribe(queue, capfd, *words) == (0, ['{"id": 1}', '{"id": 2}'], "")
    assert queue.statistics("replayed")["delivered"] == 0


async def test_a_server_without_statistics_is_noticed_by_the_lease(broker: BrokerProcess) -> None:
    async with (
        HAClient("reader", servers=[broker.uri]) as client,
        client.stream("leased") as messages,
    ):
        await client.publish("leased", '{"id": 1}')
        batch = [await anext(messages)]
        with pytest.raises(HAClientError, match="'leased' is a queue"):
            check_no_lease(batch)
    check_no_lease([])


def test_why_a_queue_gave_a_message_up_can_be_read(queue: QueueCommands) -> None:
    queue.publish("expired", '{"id":1}')
    assert queue("consume", "expired", "--expire", "-n", "1")[0] == 0
    code, [line], _ = queue("browse", "why", "--format", "{dead_letter} {data}")
    assert code == 0
    assert line.startswith('{"queue":"expired","reason":"forced_expire",')
    assert line.endswith('} {"id":1}')
    code, lines, _ = queue("consume", "why", "-n", "1", "--pretty")
    assert (code, lines) == (0, ["{", '  "id": 1', "}"])
