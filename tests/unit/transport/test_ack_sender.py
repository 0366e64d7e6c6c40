"""When acknowledgements are sent, and from which thread, against a writer that notes them."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session import leases
from haclient.session.connection_state import ConnectionStatus, LoggedOn
from haclient.session.leases import QueueAcks, QueueLeases
from haclient.session.session import Session
from haclient.transport.ack_sender import AckSender, QueueLease
from haclient.transport.tasks import ClientThread, open_nursery
from haclient.transport.writer import Writer
from support.clock import in_virtual_time

pytestmark = in_virtual_time


class Noting(Writer):
    """A writer that decodes what it is given."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self._frames = FrameReader()
        self._decoder = MessageDecoder()

    @override
    def send(self, frame: bytes) -> None:
        self.sent.extend(self._decoder.decode(*self._frames.feed(frame)))

    def take(self) -> list[tuple[str, str]]:
        sent, self.sent = self.sent, []
        return [(message.bookmark, message.options) for message in sent]


class World:
    """The queues of one client, without the client."""

    def __init__(self) -> None:
        self.session = Session()
        status, thread = ConnectionStatus(), ClientThread()
        thread.bind()
        self.sender = AckSender(QueueAcks(status), self.session, thread, clock_us=lambda: 0)
        self.writer = Noting()
        self.sender.connected(self.writer)
        status.connected("here")
        status.logged_on(LoggedOn(seen=0, persisted=0, server_version="6", reason=""))
        self.leases: QueueLeases = self.sender.leases("work", is_queue=True)
        self.leases.granted("max_backlog=9")

    def receive(self, *numbers: int) -> list[Message]:
        messages = [Message(kind="p", topic="work", bookmark=f"7|{n}|") for n in numbers]
        self.leases.received(messages, trio.current_time())
        return messages


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    made = World()
    async with open_nursery() as nursery:
        nursery.start_soon(made.sender.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.row("QC5")
async def test_an_earlier_time_wakes_the_task(world: World) -> None:
    first, second = world.receive(1, 2)
    assert isinstance(first.lease, QueueLease)
    first.lease.give_back(first, failures=9)
    await wait_all_tasks_blocked()
    second.ack()
    await trio.sleep(1)
    assert world.writer.take() == [("7|2|", "")]
    await trio.sleep(50)
    assert world.writer.take() == [("7|1|", "cancel")]


@pytest.mark.row("QC14")
async def test_what_is_acknowledged_again_is_sent_at_its_time(world: World) -> None:
    for message in world.receive(1):
        message.ack()
    world.sender.acks.lost(9)
    world.sender.connected(world.writer)
    world.sender.acks.resume()
    (again,) = world.receive(1)
    assert again.lease is not None
    assert not again.lease.is_deliverable(again)
    assert world.writer.take() == [("7|1|", "")]
    await trio.sleep(1)
    assert world.writer.take() == [("7|1|", "")]


@pytest.mark.row("QC3")
async def test_another_thread_acknowledges_on_the_clients_thread(world: World) -> None:
    (message,) = world.receive(1)
    await trio.to_thread.run_sync(message.ack)
    await trio.sleep(1)
    assert world.writer.take() == [("7|1|", "")]


@pytest.mark.row("QC14")
async def test_a_refused_acknowledgement_is_logged_and_settled(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for message in world.receive(1, 2, 3):
        message.ack()
    (sent,) = world.writer.sent
    world.session.pending.on_ack(
        Message(
            kind="ack",
            ack_type="processed",
            status="failure",
            reason="not entitled",
            command_id=sent.command_id,
        )
    )
    assert "not entitled: the messages may be redelivered" in caplog.text
    assert world.sender.acks.is_idle


@pytest.mark.row("QC14")
async def test_of_a_server_that_never_answers_only_so_many_answers_are_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MAX_UNCONFIRMED", 2)
    for message in world.receive(1, 2, 3):
        message.ack(cancel=True)
    assert len(world.writer.sent) == 3
    assert len(world.session.pending) == 2
