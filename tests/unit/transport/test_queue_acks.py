"""Collected, sent, kept and sent again, against a writer that notes what it is given."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked
from typing_extensions import override

from haclient.protocol.codec import MessageDecoder
from haclient.protocol.framing import FrameReader
from haclient.protocol.messages import Message
from haclient.session.connection_state import ConnectionStatus
from haclient.session.logon import LoggedOn
from haclient.session.session import Session
from haclient.session.subscriptions import Subscription
from haclient.transport.client_thread import ClientThread
from haclient.transport.nursery import open_nursery
from haclient.transport.queue_acks import (
    MAX_EXTENDED,
    MAX_UNCONFIRMED,
    AckPolicy,
    OnLostLease,
    QueueAcks,
    QueueConsumer,
)
from haclient.transport.writer import Writer
from support.clock import in_virtual_time
from support.sinks import NoSink

pytestmark = in_virtual_time


def is_deliverable(message: Message) -> bool:
    return message.lease is None or message.lease.is_deliverable(message)


class World:
    """The acknowledgements of one client, without the client.

    Attributes:
        sent: What was sent, in order.
    """

    def __init__(self, on_lost_lease: OnLostLease = "send") -> None:
        self.session = Session()
        self.status = ConnectionStatus()
        self.thread = ClientThread()
        self.thread.bind()
        self.wall_us = 1_000_000_000_000
        self.acks = QueueAcks(
            self.session,
            self.status,
            self.thread,
            clock_us=lambda: self.wall_us,
            policy=AckPolicy(on_lost_lease=on_lost_lease),
        )
        self.sent: list[Message] = []
        self.consumer = QueueConsumer(self.acks, "work", is_queue=True, asked=5)
        self.subscription = Subscription("s", NoSink(), queue=self.consumer)

    def connect(self) -> None:
        self.acks.connected(Noting(self.sent))
        self.status.connected("here")
        self.status.logged_on(LoggedOn(seen=0, persisted=0, server_version="6", reason=""))

    def lose(self) -> None:
        self.acks.lost([self.subscription])

    def receive(self, *numbers: int, lp: str = "30s") -> list[Message]:
        messages = [
            Message(kind="p", topic="work", bookmark=f"7|{n}|", lease_period=lp) for n in numbers
        ]
        self.consumer.received(messages, trio.current_time())
        return messages

    def hand_out(self, *numbers: int) -> list[str]:
        return [m.bookmark for m in self.receive(*numbers) if is_deliverable(m)]

    def take(self) -> list[tuple[str, str]]:
        sent, self.sent[:] = list(self.sent), []
        return [(message.bookmark, message.options) for message in sent]

    def confirm(self) -> None:
        """Answer everything that was sent."""
        for message in self.sent:
            self.session.pending.on_ack(
                Message(
                    kind="ack",
                    ack_type="processed",
                    status="success",
                    command_id=message.command_id,
                )
            )


class Noting(Writer):
    """A writer that decodes what it is given."""

    def __init__(self, sent: list[Message]) -> None:
        self._sent = sent
        self._frames = FrameReader()
        self._decoder = MessageDecoder()

    @override
    def send(self, frame: bytes) -> None:
        self._sent.extend(self._decoder.decode(*self._frames.feed(frame)))


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    made = World()
    made.connect()
    made.consumer.granted("max_backlog=9")
    async with open_nursery() as nursery:
        nursery.start_soon(made.acks.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


@pytest.mark.row("QC5")
async def test_batches_are_sent_by_their_own_times(world: World) -> None:
    other = QueueConsumer(world.acks, "other", is_queue=True)
    other.granted("max_backlog=90")
    for message in world.receive(1):
        message.ack()
    await trio.sleep(0.06)
    message = Message(topic="other", bookmark="7|2|")
    other.received([message], 0.0)
    message.ack()
    await trio.sleep(0.05)
    assert world.take() == [("7|1|", "")]
    await trio.sleep(0.06)
    assert world.take() == [("7|2|", "")]


@pytest.mark.row("QC5")
async def test_an_earlier_time_wakes_the_task(world: World) -> None:
    first, second = world.receive(1, 2, lp="")
    assert first.lease is not None
    world.acks.schedule_ack(first.lease, first, "cancel", 50.0)  # type: ignore[arg-type]  # ours
    await wait_all_tasks_blocked()
    second.ack()
    await trio.sleep(1)
    assert world.take() == [("7|2|", "")]
    await trio.sleep(50)
    assert world.take() == [("7|1|", "cancel")]


@pytest.mark.row("QC11")
async def test_a_delayed_cancel_comes_before_its_lease_ends(world: World) -> None:
    (message,) = world.receive(1, lp="10s")
    assert message.lease is not None
    world.acks.schedule_ack(message.lease, message, "cancel", 30.0)  # type: ignore[arg-type]  # ours
    await trio.sleep(9.1)
    assert world.take() == [("7|1|", "cancel")]


@pytest.mark.row("QC11", "QC14")
async def test_a_client_that_was_left_keeps_no_message_that_failed(world: World) -> None:
    """A message is not seen by the garbage collector: a cycle through one would stay for ever."""
    (message,) = world.receive(1)
    assert message.lease is not None
    world.lose()
    world.acks.schedule_ack(message.lease, message, "cancel", 1.0)  # type: ignore[arg-type]  # ours
    assert message.lease is None
    assert world.acks._delayed == []


@pytest.mark.row("QC11")
async def test_what_was_acknowledged_meanwhile_is_not_cancelled(world: World) -> None:
    (message,) = world.receive(1)
    assert message.lease is not None
    world.acks.schedule_ack(message.lease, message, "cancel", 1.0)  # type: ignore[arg-type]  # ours
    message.ack()
    await trio.sleep(2)
    assert world.take() == [("7|1|", "")]


@pytest.mark.row("QC14")
async def test_what_is_confirmed_is_not_sent_again(world: World) -> None:
    for message in world.receive(1, 2, 3, 4):
        message.ack()
    assert [each.bookmark for each in world.sent] == ["7|1|,7|2|,7|3|"]
    assert world.acks.outstanding == 4
    world.confirm()
    assert world.acks.outstanding == 1
    world.take()
    world.lose()
    assert list(world.acks.retained) == [("work", "7|4|")]
    assert world.acks.outstanding == 1
    world.connect()
    world.acks.resume()
    assert world.acks.outstanding == 1
    assert world.take() == [("7|4|", "")]
    world.lose()  # before it was confirmed
    world.connect()
    world.acks.resume()
    assert [(m.bookmark, m.options) for m in world.sent] == [("7|4|", "")]
    world.confirm()
    assert world.acks.outstanding == 0
    assert world.acks.is_idle


@pytest.mark.row("QC14")
async def test_what_was_processed_is_acknowledged_again_and_not_handed_out(world: World) -> None:
    first, second, third = world.receive(1, 2, 3)
    first.ack()
    world.lose()
    assert world.hand_out() == []
    world.connect()
    world.acks.resume()
    copies = world.receive(1, 2, 3)
    second.ack()  # its handler was at work
    assert [m.bookmark for m in copies if is_deliverable(m)] == ["7|3|"]
    assert not is_deliverable(third), "of the lost link"
    world.confirm()
    assert world.hand_out(2) == [], "it may have been on its way"
    world.acks.send_pending()
    world.confirm()
    world.lose()
    world.connect()
    assert world.hand_out(1, 2, 3) == ["7|1|", "7|2|", "7|3|"], "confirmed: a queue begun again"


@pytest.mark.row("QC14")
async def test_what_an_ended_subscription_had_is_acknowledged_again(world: World) -> None:
    (message,) = world.receive(1)
    world.consumer.close()
    message.ack()  # its handler was at work
    world.acks.send_pending()
    assert world.take() == [("7|1|", "")]
    world.acks.lost([])
    world.connect()
    world.acks.resume()
    assert world.take() == [("7|1|", "")]


@pytest.mark.row("QC14")
async def test_another_queue_over_the_same_topic_has_messages_of_its_own(world: World) -> None:
    for message in world.receive(1):
        message.ack()
    world.lose()
    world.connect()
    other = Message(topic="other", bookmark="7|1|")
    world.consumer.received([other], 0.0)
    assert is_deliverable(other)
    assert world.hand_out(1) == []


@pytest.mark.row("QC14")
@pytest.mark.parametrize("option", ["cancel", "expire"])
async def test_options_are_never_sent_on_another_link(world: World, option: str) -> None:
    first, second = world.receive(1, 2)
    first.ack(cancel=option == "cancel", expire=option == "expire")
    world.take()
    world.lose()
    second.ack(cancel=option == "cancel", expire=option == "expire")
    world.connect()
    world.acks.resume()
    assert world.take() == []
    assert world.acks.is_idle


@pytest.mark.row("QC14")
async def test_a_late_acknowledgement_is_sent_at_once_or_dropped() -> None:
    for policy, sent, dropped in (("send", [("7|1|", "")], 0), ("drop", [], 1)):
        world = World(policy)  # type: ignore[arg-type]  # one of the two
        world.connect()
        (message,) = world.receive(1)
        world.lose()
        world.connect()
        world.acks.resume()
        message.ack()
        assert (world.take(), world.acks.dropped) == (sent, dropped)


@pytest.mark.row("QC14")
async def test_a_server_that_confirms_nothing_fills_no_memory(world: World) -> None:
    world.consumer.granted("max_backlog=1")
    for number in range(MAX_UNCONFIRMED + 10):
        for message in world.receive(number):
            message.ack()
    assert len(world.session.pending) == MAX_UNCONFIRMED


@pytest.mark.row("QC13")
async def test_extended_leases_that_are_over_are_forgotten(world: World) -> None:
    for number in range(MAX_EXTENDED):
        world.receive(number)[0].extend_lease(60)
    assert len(world.consumer.extended) == MAX_EXTENDED
    await trio.sleep(61)
    world.receive(MAX_EXTENDED)[0].extend_lease(60)
    assert len(world.consumer.extended) == 1


@pytest.mark.row("QC12")
async def test_the_time_of_day_counts_where_the_length_is_unknown(world: World) -> None:
    (message,) = world.receive(1, lp="19700112T134710Z")  # 30 s after the receipt
    assert message.lease_deadline == pytest.approx(trio.current_time() + 30)
    world.wall_us += 3_600_000_000
    assert message.lease_deadline == pytest.approx(trio.current_time() + 30), "of the receipt"


@pytest.mark.row("QC12")
async def test_a_message_that_waits_longer_than_its_lease_is_not_handed_out(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.consumer.granted("max_backlog=9,lease=10.0")
    first, second, third = world.receive(1, 2, 3)
    (fourth,) = world.receive(4, lp="")
    await trio.sleep(9)
    second.extend_lease(5)
    assert is_deliverable(first)
    await trio.sleep(1)
    found = [m.bookmark for m in (first, second, third, fourth) if is_deliverable(m)]
    assert found == ["7|2|", "7|4|"]
    assert caplog.text.count("wait in this client until their leases end") == 1
    world.consumer.granted("max_backlog=9")
    assert is_deliverable(first), "times of day may differ: nobody can tell"


async def test_a_message_without_a_bookmark_has_no_lease(world: World) -> None:
    message = Message(topic="work", data=b"x")
    world.consumer.received([message], 0.0)
    assert is_deliverable(message)
    message.ack()
    assert message.lease is None
    assert world.acks.is_idle


@pytest.mark.row("QC2")
async def test_a_plain_topic_is_no_queue(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    plain = QueueConsumer(world.acks, "orders", is_queue=False)
    plain.granted("")
    assert not plain.is_queue
    plain.granted("max_backlog=1")
    assert plain.is_queue
    with caplog.at_level(logging.WARNING):
        plain.granted("max_backlog=1")
    assert caplog.text.count("the queue orders sends one message at a time") == 1


class Walk:
    """A client that receives and acknowledges, and a server that confirms, while links are lost."""

    def __init__(self, backlog: int) -> None:
        self.world = World()
        self.backlog = backlog
        self.held: list[Message] = []
        self.acknowledged: set[str] = set()
        self.confirmed: set[str] = set()
        self.link_of: dict[str, int] = {}
        self.link = 0
        self.connect()
        self.world.consumer.granted(f"max_backlog={backlog}")

    @property
    def is_connected(self) -> bool:
        return self.world.acks.writer is not None

    def receive(self) -> None:
        """Take a message; those of earlier links, still at work, do not count."""
        held = sum(self.link_of[message.bookmark] == self.link for message in self.held)
        if self.is_connected and held < self.backlog:
            number = len(self.link_of) + 1
            self.held += self.world.receive(number)
            self.link_of[f"7|{number}|"] = self.link

    def ack(self) -> None:
        if self.held:
            message = self.held.pop(0)
            self.acknowledged.add(message.bookmark)
            message.ack()

    def cancel(self) -> None:
        if self.held:
            self.held.pop(0).ack(cancel=True)

    def confirm(self) -> None:
        """The server carries out what it was sent on this link."""
        self.world.confirm()
        for sent in self.world.sent:
            names = sent.bookmark.split(",")
            if sent.options:
                assert [self.link_of[name] for name in names] == [self.link]
            else:
                self.confirmed.update(names)
        self.world.sent.clear()

    def wait(self) -> None:
        self.world.acks.send_pending()

    def lose(self) -> None:
        if self.is_connected:
            self.world.lose()
            self.world.sent.clear()
            self.link += 1

    def connect(self) -> None:
        if not self.is_connected:
            self.world.connect()
            self.world.acks.resume()


LATE_BESIDE_THE_BACKLOG = [
    *(Walk.receive, Walk.lose, Walk.connect, Walk.receive),
    *(Walk.ack, Walk.ack, Walk.lose),  # the first message is of the link before
]
STEPS = st.sampled_from([Walk.receive, Walk.ack, Walk.cancel, Walk.confirm, Walk.wait])
LINK = st.sampled_from([Walk.lose, Walk.connect])


@pytest.mark.row("QC14")
@given(steps=st.lists(STEPS | STEPS | LINK, max_size=60), backlog=st.integers(1, 12))
@example(steps=LATE_BESIDE_THE_BACKLOG, backlog=1)
def test_every_plain_acknowledgement_is_confirmed_or_sent_again(
    steps: list[Callable[[Walk], None]], backlog: int
) -> None:
    """Whatever happens in between; and no option is sent on another link than its message's."""

    async def run() -> None:
        walk = Walk(backlog)
        for step in (*steps, Walk.connect, Walk.wait, Walk.confirm):
            step(walk)
        assert walk.confirmed == walk.acknowledged
        assert walk.world.acks.is_idle
        assert walk.world.acks.dropped == 0

    trio.run(run)


async def test_a_consumer_that_cannot_go_on_is_told_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.consumer.granted("max_backlog=0")
    assert "grants the queue work a backlog of 0" in caplog.text
    for number in (1, 2):
        message = Message(kind="p", topic="work", data=b"%d" % number)
        world.consumer.received([message], trio.current_time())
        message.ack()
    assert caplog.text.count("have no bookmark, so they cannot be acknowledged") == 1


@pytest.mark.row("QC6")
async def test_what_fills_a_smaller_backlog_is_sent_when_that_is_granted() -> None:
    world = World()
    world.connect()
    world.consumer.granted("max_backlog=30")
    for message in world.receive(1, 2, 3):
        message.ack()
    assert world.take() == []
    world.consumer.granted("max_backlog=3")
    assert world.take() == [("7|1|,7|2|,7|3|", "")]
