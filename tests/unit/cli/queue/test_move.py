"""`haclient queue move`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from haclient.cli.queue.bounded_consumer import BoundedConsumer
from haclient.cli.queue.move import move_messages
from haclient.client import Client
from haclient.errors import HAClientError, PublishFailed
from haclient.protocol.identity import publisher_id
from haclient.protocol.messages import Message
from haclient.session.dead_letter import DeadLetter
from haclient.stores import MemoryPublishStore
from support.clock import in_virtual_time
from support.peer import Peer, listening, together
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
        (("source", ""), 2, "'TO': it is empty"),
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
    assert "to 'people': bad sow key; 2 messages were moved" in err
    assert queue("browse", "refused")[1] == ['{"name": "no key"}']


@pytest.mark.row("CLI9")
def test_dead_letters_are_moved_back_to_their_queue(queue: QueueCommands) -> None:
    queue.publish("doomed", *rows(3))
    assert queue("consume", "doomed", "--expire", "-n", "3")[:2] == (0, rows(3))
    code, _, err = queue("move", "dead", "doomed")
    assert (code, err) == (0, "")
    assert queue("browse", "doomed") == (0, rows(3), "")
    assert queue.statistics("dead")["depth"] == 0


# -- against a server that has no statistics of its queues -----------------------------------


def consumer() -> BoundedConsumer:
    return BoundedConsumer(
        name="work", filter="", count=None, max_backlog=10, idle_s=1.0, acknowledge=Message.ack
    )


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Client, Peer]]:
    store = MemoryPublishStore()
    async with (
        listening() as server,
        Client("moves", publish_store=store, exit_timeout=0) as client,
    ):
        yield client, await server.log_on(client)


async def deliver(peer: Peer, granted: str, *bodies: bytes, correlation_id: str = "") -> str:
    """Refuse the query of the queues, accept the subscription and deliver to it; return its id."""
    await peer.refuse(await peer.expect("sow", topic="/HACLIENT/queues"), "invalid topic")
    subscribe = await peer.expect("subscribe", topic="work", options="max_backlog=10")
    await peer.ack(subscribe, opts=granted)
    for number, body in enumerate(bodies, 1):
        fields = {"t": "work", "sids": subscribe.sub_id, "bm": f"7|{number}|"}
        await peer.say("p", body, **fields, x=correlation_id or f"of{number}")
    return subscribe.sub_id


@pytest.mark.row("CLI9")
@in_virtual_time
async def test_without_statistics_a_message_is_acknowledged_when_its_copy_is_persisted() -> None:
    mover = consumer()
    acked: list[str] = []
    copies: list[tuple[str, bytes, str]] = []

    async def script(peer: Peer) -> None:
        await deliver(peer, "max_backlog=2", b"one", b"two")
        while (message := await peer.hear_or_end()) is not None:
            match message.command:
                case "publish":
                    copies.append((message.topic, message.data, message.correlation_id))
                    assert acked == []
                    if len(copies) == 2:
                        await peer.persisted(message.sequence or 0)
                case "sow_delete":
                    acked.append(message.bookmark)
                    await peer.ack(message)
                case "unsubscribe":
                    return
                case _:
                    await peer.ack(message)

    async with connected() as (client, peer):
        await together(lambda: move_messages(client, mover, "copies"), lambda: script(peer))
    assert copies == [("copies", b"one", "of1"), ("copies", b"two", "of2")]
    assert ",".join(acked) == "7|1|,7|2|"
    assert mover.consumed == 2


@pytest.mark.row("CLI9")
@in_virtual_time
async def test_a_message_with_a_correlation_id_that_is_none_is_moved_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(peer: Peer) -> None:
        await deliver(peer, "max_backlog=2", b"one", correlation_id="a b")
        copy = await peer.expect("publish", topic="copies", data=b"one", correlation_id="")
        await peer.persisted(copy.sequence or 0)
        while (message := await peer.hear()).command != "unsubscribe":
            await peer.ack(message)

    mover = consumer()
    async with connected() as (client, peer):
        await together(lambda: move_messages(client, mover, "copies"), lambda: script(peer))
    assert mover.consumed == 1
    assert "the copy of 7|1| has no correlation id" in caplog.text


@pytest.mark.row("CLI9")
@in_virtual_time
@pytest.mark.parametrize(("queue", "is_back"), [("copies", True), ("other", False)])
async def test_a_dead_letter_that_returns_to_its_queue_has_its_own_correlation_id(
    queue: str, *, is_back: bool
) -> None:
    failed = Message(kind="p", topic=queue, bookmark="7|1|", correlation_id="order4711")
    letter = DeadLetter("work").correlation_id(failed, ValueError("no"), 1)

    async def script(peer: Peer) -> None:
        await deliver(peer, "max_backlog=2", b"one", correlation_id=letter)
        copy = await peer.expect("publish", topic="copies", data=b"one")
        assert copy.correlation_id == ("order4711" if is_back else letter)
        await peer.persisted(copy.sequence or 0)
        while (message := await peer.hear()).command != "unsubscribe":
            await peer.ack(message)

    mover = consumer()
    async with connected() as (client, peer):
        await together(lambda: move_messages(client, mover, "copies"), lambda: script(peer))
    assert mover.consumed == 1


@pytest.mark.row("CLI9")
@in_virtual_time
@pytest.mark.parametrize(("publisher", "moved"), [("moves", 1), ("other", 2)])
async def test_a_message_whose_copy_comes_back_as_a_dead_letter_is_not_moved_again(
    publisher: str, moved: int, caplog: pytest.LogCaptureFixture
) -> None:
    acked: list[str] = []

    async def script(peer: Peer) -> None:
        subscription = await deliver(peer, "max_backlog=2", b"one")
        copy = await peer.expect("publish", topic="copies", data=b"one")
        await peer.persisted(copy.sequence or 0)
        bookmark = f"{publisher_id(publisher)}|{copy.sequence}|"
        failed = Message(kind="p", topic="copies", bookmark=bookmark)
        letter = DeadLetter("work").correlation_id(failed, ValueError("no"), 1)
        while (message := await peer.hear()).command != "unsubscribe":
            if message.command == "publish":
                await peer.persisted(message.sequence or 0)
                continue
            await peer.ack(message)
            if message.bookmark == "7|1|":
                await peer.say("p", b"one", t="work", sids=subscription, bm="7|2|", x=letter)
            acked.extend(filter(None, [message.bookmark]))

    mover = consumer()
    async with connected() as (client, peer):
        await together(lambda: move_messages(client, mover, "copies"), lambda: script(peer))
    assert acked == ["7|1|", "7|2|"][:moved]
    assert mover.consumed == moved
    assert caplog.text.count("have come back as dead letters, and stay in work") == 2 - moved


@pytest.mark.row("CLI9")
@in_virtual_time
async def test_without_statistics_a_topic_that_is_no_queue_shows_by_its_first_message() -> None:
    async def refused(client: Client) -> None:
        with pytest.raises(HAClientError, match="'work' is no queue"):
            await move_messages(client, consumer(), "copies")

    async with connected() as (client, peer):
        await together(lambda: refused(client), lambda: deliver(peer, "", b"one"))
        sent = [message.command for message in peer.heard]
    assert "publish" not in sent
    assert "sow_delete" not in sent


@pytest.mark.row("CLI9")
@in_virtual_time
async def test_without_statistics_a_refused_copy_leaves_its_message_unacknowledged() -> None:
    async def script(peer: Peer) -> None:
        await deliver(peer, "max_backlog=2", b"one")
        copy = await peer.expect("publish", topic="copies")
        sequence = copy.sequence or 0
        await peer.ack(None, "persisted", status="failure", reason="not entitled", s=sequence)

    async def refused(client: Client) -> None:
        with pytest.raises(PublishFailed, match="to 'copies': not entitled; 0 messages were moved"):
            await move_messages(client, consumer(), "copies")

    async with connected() as (client, peer):
        await together(lambda: refused(client), lambda: script(peer))
        assert "sow_delete" not in [message.command for message in peer.heard]
