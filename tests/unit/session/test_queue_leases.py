"""What a server says of backlogs and leases, and what a client does with leases and their ends."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from haclient.errors import DisconnectedError
from haclient.protocol.messages import Message
from haclient.session.leases import (
    FIRST_DELAY_S,
    LONGEST_DELAY_S,
    LONGEST_LEASE_S,
    MAX_COUNTED,
    MAX_EXTENDED,
    MAX_UNCONFIRMED,
    Grant,
    cancel_delay_s,
    lease_left_s,
    parse_grant,
)
from haclient_stores.bookmark import Timestamp
from support.lease_world import LeaseWorld, is_deliverable, receipt_of

NOON = "20240321T120000.000000Z"
NOON_US = Timestamp.parse(NOON).microseconds


@pytest.fixture
def world() -> LeaseWorld:
    made = LeaseWorld()
    made.connect()
    made.leases.granted("max_backlog=9")
    return made


def give_back(world: LeaseWorld, message: Message, *, failures: int) -> None:
    world.leases.cancel_later(receipt_of(message), message, failures, world.now)


@pytest.mark.row("QC1")
@pytest.mark.parametrize(
    ("options", "grant"),
    [
        ("max_backlog=10", Grant(10)),
        ("timestamp, max_backlog=3,lease=30.0", Grant(3, 30.0)),
        ("max_backlog=2,lease=500ms,unheard_of=[1,2]", Grant(2, 0.5)),
        ("", Grant()),
        ("max_backlog=0", Grant(0)),
        ("max_backlog=many,lease=soon", Grant()),
        ("max_backlog=" + "9" * 5000, Grant()),
        ("lease=-1", Grant()),
        ("lease=1e400", Grant()),
        ("lease=99999999", Grant()),
    ],
)
def test_the_grant_is_read_leniently(options: str, grant: Grant) -> None:
    assert parse_grant(options) == grant


@given(st.text())
def test_no_options_of_a_peer_are_an_error(options: str) -> None:
    backlog, lease_s, _ = parse_grant(options)
    assert backlog is None or backlog > 0
    assert lease_s is None or 0 < lease_s <= LONGEST_LEASE_S


@pytest.mark.row("QC12")
@pytest.mark.parametrize(
    ("lease_period", "left_s"),
    [
        ("", math.inf),
        ("20240321T120030.500000Z", 30.5),
        ("2024-03-21T12:00:30Z", 30.0),
        ("30s", 30.0),
        ("500ms", 0.5),
        ("30", 30.0),
        ("20240321T115959Z", None),  # over before it began
        (NOON, None),
        ("20240421T120000Z", None),  # longer than any lease
        ("0", None),
        ("soon", None),
        ("20241321T120000Z", None),
    ],
)
def test_the_time_left_is_told_in_every_form(lease_period: str, left_s: float | None) -> None:
    assert lease_left_s(lease_period, NOON_US, None) == left_s


@pytest.mark.row("QC12")
@pytest.mark.parametrize("skew_s", [-86_400, 0, 86_400])
def test_a_granted_length_needs_no_clock(skew_s: int) -> None:
    assert lease_left_s(NOON, NOON_US + skew_s * 1_000_000, 30.0) == 30.0
    assert lease_left_s("", NOON_US, 30.0) == math.inf


@given(st.text(), st.integers(0, 2**62))
def test_no_lease_period_of_a_peer_is_an_error(lease_period: str, wall_us: int) -> None:
    left_s = lease_left_s(lease_period, wall_us, None)
    assert left_s is None or left_s > 0


# -- leases and acknowledgements ----------------------------------------------------------


@pytest.mark.row("QC5")
def test_batches_are_sent_by_their_own_times(world: LeaseWorld) -> None:
    other = world.subscribe("other", is_queue=True)
    other.granted("max_backlog=90")
    for message in world.receive(1):
        message.ack()
    world.wait(0.06)
    message = Message(topic="other", bookmark="7|2|")
    other.received([message], world.now)
    message.ack()
    world.wait(0.05)
    assert world.take() == [("7|1|", "")]
    world.wait(0.06)
    assert world.take() == [("7|2|", "")]


@pytest.mark.row("QC5")
def test_what_is_due_first_is_sent_first(world: LeaseWorld) -> None:
    first, second = world.receive(1, 2, lp="")
    give_back(world, first, failures=9)
    second.ack()
    world.wait(1)
    assert world.take() == [("7|2|", "")]
    world.wait(30)
    assert world.take() == [("7|1|", "cancel")]


@pytest.mark.row("QC11")
def test_a_delayed_cancel_comes_before_its_lease_ends(world: LeaseWorld) -> None:
    (message,) = world.receive(1, lp="10s")
    give_back(world, message, failures=9)
    world.wait(9.1)
    assert world.take() == [("7|1|", "cancel")]


@pytest.mark.row("QC11", "QC14")
def test_a_client_that_was_left_keeps_no_message_that_failed(world: LeaseWorld) -> None:
    """A message is not seen by the garbage collector: a cycle through one would stay for ever."""
    (message,) = world.receive(1)
    receipt = receipt_of(message)
    world.lose()
    world.leases.cancel_later(receipt, message, 1, world.now)
    assert message.lease is None
    assert world.acks.due_at == math.inf


@pytest.mark.row("QC11")
def test_what_was_acknowledged_meanwhile_is_not_cancelled(world: LeaseWorld) -> None:
    (message,) = world.receive(1)
    give_back(world, message, failures=1)
    message.ack()
    world.wait(2)
    assert world.take() == [("7|1|", "")]


@pytest.mark.row("QC14")
def test_what_is_confirmed_is_not_sent_again(world: LeaseWorld) -> None:
    for message in world.receive(1, 2, 3, 4):
        message.ack()
    assert [each.bookmarks for each in world.sent.values()] == [("7|1|", "7|2|", "7|3|")]
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
    world.confirm()
    assert world.take() == [("7|4|", "")]
    assert world.acks.outstanding == 0
    assert world.acks.is_idle


@pytest.mark.row("QC14")
def test_what_was_processed_is_acknowledged_again_and_not_handed_out(world: LeaseWorld) -> None:
    first, second, third = world.receive(1, 2, 3)
    first.ack()
    world.lose()
    assert world.delivered() == []
    world.connect()
    world.acks.resume()
    copies = world.receive(1, 2, 3)
    second.ack()  # its handler was at work
    assert [m.bookmark for m in copies if is_deliverable(m)] == ["7|3|"]
    assert not is_deliverable(third), "of the lost link"
    world.confirm()
    assert world.delivered(2) == [], "it may have been on its way"
    world.acks.send_pending()
    world.confirm()
    world.lose()
    world.connect()
    assert world.delivered(1, 2, 3) == ["7|1|", "7|2|", "7|3|"], "confirmed: a queue begun again"


@pytest.mark.row("QC14")
def test_what_an_ended_subscription_had_is_acknowledged_again(world: LeaseWorld) -> None:
    (message,) = world.receive(1)
    world.leases.close()
    message.ack()  # its handler was at work
    world.acks.send_pending()
    assert world.take() == [("7|1|", "")]
    world.acks.lost(0)
    world.connect()
    world.acks.resume()
    assert world.take() == [("7|1|", "")]


@pytest.mark.row("QC14")
def test_another_queue_over_the_same_topic_has_messages_of_its_own(world: LeaseWorld) -> None:
    for message in world.receive(1):
        message.ack()
    world.lose()
    world.connect()
    other = Message(topic="other", bookmark="7|1|")
    world.leases.received([other], 0.0)
    assert is_deliverable(other)
    assert world.delivered(1) == []


@pytest.mark.row("QC14")
@pytest.mark.parametrize("option", ["cancel", "expire"])
def test_options_are_never_sent_on_another_link(world: LeaseWorld, option: str) -> None:
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
def test_a_late_acknowledgement_is_sent_at_once(world: LeaseWorld) -> None:
    (message,) = world.receive(1)
    world.lose()
    world.connect()
    world.acks.resume()
    message.ack()
    assert (world.take(), world.acks.dropped) == ([("7|1|", "")], 0)


@pytest.mark.row("QC5")
def test_no_acknowledgement_waits_for_others_until_its_lease_has_ended(world: LeaseWorld) -> None:
    world.acks.timeout_s = 60.0
    world.leases.granted("max_backlog=9,lease=10.0")
    world.receive(1)[0].ack()
    assert world.acks.due_at == world.now + 1.0
    world.leases.granted("max_backlog=9")
    assert world.leases.batch.timeout_s == 60.0


@pytest.mark.row("QC14")
def test_a_server_that_confirms_nothing_fills_no_memory(world: LeaseWorld) -> None:
    world.leases.granted("max_backlog=1")
    for number in range(MAX_UNCONFIRMED + 10):
        for message in world.receive(number):
            message.ack()
    assert len(world.sent) == MAX_UNCONFIRMED


@pytest.mark.row("QC13")
def test_extended_leases_that_are_over_are_forgotten(world: LeaseWorld) -> None:
    for number in range(MAX_EXTENDED):
        world.receive(number)[0].extend_lease(60)
    assert len(world.leases.extended) == MAX_EXTENDED
    world.wait(61)
    world.receive(MAX_EXTENDED)[0].extend_lease(60)
    assert len(world.leases.extended) == 1


@pytest.mark.row("QC12")
def test_the_time_of_day_counts_where_the_length_is_unknown(world: LeaseWorld) -> None:
    (message,) = world.receive(1, lp="19700112T134710Z")  # 30 s after the receipt
    assert message.lease_deadline == pytest.approx(world.now + 30)
    world.wall_us += 3_600_000_000
    assert message.lease_deadline == pytest.approx(world.now + 30), "of the receipt"


@pytest.mark.row("QC12")
def test_a_message_that_waits_longer_than_its_lease_is_not_handed_out(
    world: LeaseWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.leases.granted("max_backlog=9,lease=10.0")
    first, second, third = world.receive(1, 2, 3)
    (fourth,) = world.receive(4, lp="")
    world.wait(9)
    second.extend_lease(5)
    assert is_deliverable(first)
    world.wait(1)
    found = [m.bookmark for m in (first, second, third, fourth) if is_deliverable(m)]
    assert found == ["7|2|", "7|4|"]
    assert caplog.text.count("wait in this client until their leases end") == 1
    world.leases.granted("max_backlog=9")
    assert is_deliverable(first), "times of day may differ: nobody can tell"


def test_a_message_without_a_bookmark_has_no_lease(world: LeaseWorld) -> None:
    message = Message(topic="work", data=b"x")
    world.leases.received([message], 0.0)
    assert is_deliverable(message)
    message.ack()
    assert message.lease is None
    assert world.acks.is_idle


@pytest.mark.row("QC2")
def test_a_plain_topic_is_no_queue(caplog: pytest.LogCaptureFixture) -> None:
    world = LeaseWorld()
    plain = world.subscribe("orders", is_queue=False)
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
        self.world = LeaseWorld()
        self.backlog = backlog
        self.held: list[Message] = []
        self.acknowledged: set[str] = set()
        self.confirmed: set[str] = set()
        self.link_of: dict[str, int] = {}
        self.link = 0
        self.connect()
        self.world.leases.granted(f"max_backlog={backlog}")

    @property
    def is_connected(self) -> bool:
        return self.world.status.connection > 0

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
        for sent in self.world.sent.values():
            if sent.options:
                assert [self.link_of[name] for name in sent.bookmarks] == [self.link]
            else:
                self.confirmed.update(sent.bookmarks)
        self.world.sent.clear()

    def wait(self) -> None:
        self.world.acks.send_pending()

    def lose(self) -> None:
        if self.is_connected:
            self.world.lose()
            self.world.status.lost(DisconnectedError("lost"))
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

    walk = Walk(backlog)
    for step in (*steps, Walk.connect, Walk.wait, Walk.confirm):
        step(walk)
    assert walk.confirmed == walk.acknowledged
    assert walk.world.acks.is_idle
    assert walk.world.acks.dropped == 0


def test_a_consumer_that_cannot_go_on_is_told_why(
    world: LeaseWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.leases.granted("max_backlog=0")
    assert "grants the queue work a backlog of 0" in caplog.text
    for number in (1, 2):
        message = Message(kind="p", topic="work", data=b"%d" % number)
        world.leases.received([message], world.now)
        message.ack()
    assert caplog.text.count("have no bookmark, so they cannot be acknowledged") == 1


@pytest.mark.row("QC6")
def test_what_fills_a_smaller_backlog_is_sent_when_that_is_granted() -> None:
    world = LeaseWorld()
    world.connect()
    world.leases.granted("max_backlog=30")
    for message in world.receive(1, 2, 3):
        message.ack()
    assert world.take() == []
    world.leases.granted("max_backlog=3")
    assert world.take() == [("7|1|,7|2|,7|3|", "")]


@pytest.mark.row("QC3", "QC7", "QC13")
def test_after_its_first_acknowledgement_nothing_more_is_sent_for_a_message(
    world: LeaseWorld,
) -> None:
    processed, expired, lost = world.receive(1, 2, 3)
    lease = processed.lease
    processed.ack()
    expired.ack(expire=True)
    assert lease is not None
    for message in (processed, expired):
        for option in ("", "cancel"):
            lease.acknowledge(message, option)
        lease.extend(message, 5.0)
    world.wait(1)
    assert world.take() == [("7|1|", ""), ("7|2|", "expire")]
    world.lose()
    lost.extend_lease(5.0)
    world.connect()
    assert world.take() == []


# -- failures ----------------------------------------------------------------------------


@pytest.mark.row("QC11")
def test_the_delay_doubles_with_each_failure_up_to_a_limit() -> None:
    delays = [cancel_delay_s(count) for count in range(1, 12)]
    assert delays[:4] == [FIRST_DELAY_S * factor for factor in (1, 2, 4, 8)]
    assert delays == sorted(delays)
    assert delays[-1] == cancel_delay_s(10**9) == LONGEST_DELAY_S


@pytest.mark.row("QC11")
def test_each_message_is_counted_by_itself_until_it_leaves_its_queue(world: LeaseWorld) -> None:
    failed = world.leases.failed
    assert [failed("work", "7|1|") for _ in range(3)] == [1, 2, 3]
    assert failed("work", "7|2|") == 1
    assert failed("other", "7|1|") == 1, "another queue over the same topic"
    first, second = world.receive(1, 2)
    first.ack()
    second.ack(cancel=True)
    assert (failed("work", "7|1|"), failed("work", "7|2|")) == (1, 2)


@pytest.mark.row("QC11")
def test_the_count_of_failed_messages_is_limited(world: LeaseWorld) -> None:
    failed = world.leases.failed
    for number in range(MAX_COUNTED):
        failed("work", f"7|{number}|")
    failed("work", "7|0|")  # the youngest now
    failed("work", "7|new|")
    assert failed("work", "7|0|") == 3
    assert failed("work", "7|1|") == 1, "forgotten first"
