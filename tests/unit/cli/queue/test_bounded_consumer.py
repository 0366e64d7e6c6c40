"""No more messages of a queue are consumed than are wanted."""

from __future__ import annotations

import pytest

from haclient import Client
from haclient.cli.queue.bounded_consumer import BoundedConsumer, granted_backlog
from haclient.errors import HAClientError
from haclient.protocol.messages import Message
from support.peer import listening, together
from support.queue_commands import QueueCommands


def consumer(*, count: int | None, keeps: bool = False) -> BoundedConsumer:
    return BoundedConsumer(
        name="work",
        filter="",
        count=count,
        max_backlog=10,
        idle_s=1.0,
        acknowledge=Message.ack,
        keeps=keeps,
    )


@pytest.mark.parametrize(
    ("count", "keeps", "asked"),
    [(None, False, 10), (3, False, 3), (30, False, 10), (30, True, 30)],
)
def test_the_backlog_is_no_larger_than_what_is_wanted(
    count: int | None, *, keeps: bool, asked: int
) -> None:
    assert consumer(count=count, keeps=keeps).asked_backlog == asked


def test_a_message_without_a_queue_has_no_backlog() -> None:
    assert granted_backlog(Message(kind="p")) is None


async def test_a_plain_topic_is_no_queue_even_if_the_server_tells_no_queues() -> None:
    taken: list[Message] = []

    async def take(batch: list[Message]) -> None:
        taken.extend(batch)

    async with listening() as server, Client("takes") as client:
        peer = await server.log_on(client)

        async def deliver() -> None:
            subscribe = await peer.answer("subscribe", opts="")
            await peer.publish(subscribe.sub_id, b"1", topic="work")

        async def run() -> None:
            with pytest.raises(HAClientError, match=r"'work' is no queue: .* granted no backlog"):
                await consumer(count=None).consume(client, take)

        await together(run, deliver)
    assert taken == []


@pytest.mark.row("CLI9")
@pytest.mark.parametrize("name", ["counted", "once"])
def test_a_counted_run_takes_exactly_so_many(queue: QueueCommands, name: str) -> None:
    rows = [f'{{"id": {number}}}' for number in range(12)]
    queue.publish(name, *rows)
    code, lines, err = queue("consume", name, "-n", "7", "--timeout", "10")
    assert (code, lines, err) == (0, rows[:7], "")
    found = queue.statistics(name)
    assert (found["delivered"], found["depth"], found["redelivered"]) == (7, 5, 0)
    code, lines, _ = queue("consume", name, "-n", "5", "--timeout", "10")
    assert (code, lines) == (0, rows[7:])
    assert queue.statistics(name)["delivered"] == 12


@pytest.mark.row("CLI9")
def test_acknowledgements_are_not_held_until_their_leases_end(queue: QueueCommands) -> None:
    """The tenth message does not come for longer than the lease of the nine."""
    rows = [f'{{"id": {number}}}' for number in range(9)]
    queue.publish("short", *rows)
    code, lines, _ = queue("consume", "short", "-n", "10", "--timeout", "2.5")
    assert (code, lines) == (3, rows)
    found = queue.statistics("short")
    assert (found["depth"], found["redelivered"]) == (0, 0)
