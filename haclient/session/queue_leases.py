"""What a queue subscription has: its grant, and the lease of each message. Pure.

**The grant.** The `processed` ack of a subscribe has the effective backlog in its options
(`max_backlog=10`). The reference broker adds the lease of the queues (`lease=30.0`, in seconds) if
it is the same for all; other servers do not send it. An ack without options does not show whether
the topic is a queue.

**The lease of a message** ends at the time in its header (`lp`), by the clock of the server. Two
machines' clocks differ, so only the *time left* at the receipt counts. If the server has granted
the length of the lease, that is the time left. Else the time left is `lp` minus this machine's time
of day. If that is not above 0, or longer than any lease, the clocks differ too much, and the end is
unknown.
Some peers send a duration (`30s`), which is the time left itself.

**A failed message** is held before it is given back. Without a delay, a message that no handler can
process would circulate between the server and its consumers without a pause. The delay doubles with
each failure of the same message, up to a limit. Failures are counted in this process; the server
counts cancels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from haclient.errors import UsageError
from haclient.protocol.messages import Message, MessageLease
from haclient.protocol.options import parse_interval
from haclient.session.queue_acks import (
    AckBatch,
    AckCommand,
    AckOption,
    QueueAcks,
    batch_limit,
    lease_extension,
)
from haclient_stores.bookmark import Timestamp
from haclient_stores.logs import SafeLogger

_NUMBER: Final = re.compile("[0-9]{1,9}")

LONGEST_LEASE_S: Final = 7 * 86_400.0
"""More time left than this shows that the clocks differ, and not a lease."""

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 30.0

MAX_COUNTED: Final = 10_000
"""Messages whose failures are counted; the one that failed longest ago is dropped first."""

MAX_EXTENDED: Final = 10_000
"""Extended leases that are recorded before the ended ones are removed."""

_USED_OF_LEASE: Final = 0.9  # a cancel after the end of its lease might meet the next one


class Grant(NamedTuple):
    """What the server has granted to a subscription.

    Attributes:
        backlog: How many messages may be unacknowledged; `None` if the server does not say.
        lease_s: The lease of its queues in seconds; `None` if the server does not say.
    """

    backlog: int | None = None
    lease_s: float | None = None


def parse_grant(options: str) -> Grant:
    """Read the options of a subscribe's ack; what cannot be read is as if it were not there.

    Args:
        options: The options, as the server wrote them.
    """
    backlog: int | None = None
    lease_s: float | None = None
    for item in options.split(","):
        name, _, value = (part.strip() for part in item.partition("="))
        if name == "max_backlog" and _NUMBER.fullmatch(value):
            backlog = int(value)
        elif name == "lease":
            lease_s = _interval(value)
    return Grant(backlog, lease_s)


def lease_left_s(lease_period: str, wall_us: int, lease_s: float | None) -> float | None:
    """The time left of a lease when its message was received.

    Args:
        lease_period: The header field.
        wall_us: This machine's time of the receipt, in microseconds since 1970.
        lease_s: The granted length of leases, `None` if it is unknown.

    Returns:
        Seconds; infinite if the message has no lease, `None` if the end is unknown.
    """
    if not lease_period:
        return math.inf
    if lease_s is not None:
        return lease_s
    duration_s = _interval(lease_period)
    if duration_s is not None:
        return duration_s
    try:
        # Some peers write the time with separators.
        ends_us = Timestamp.parse(re.sub("[-:]", "", lease_period)).microseconds
    except UsageError:
        return None
    left_s = (ends_us - wall_us) / 1_000_000
    return left_s if 0 < left_s <= LONGEST_LEASE_S else None


def _interval(text: str) -> float | None:
    """A duration within `LONGEST_LEASE_S`; `None` for anything else."""
    try:
        found = parse_interval(text)
    except UsageError:
        return None
    return found if 0 < found <= LONGEST_LEASE_S else None


def cancel_delay_s(failures: int) -> float:
    """Seconds to hold a message that has failed so often."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(failures - 1, 60))


class Receipt(NamedTuple):
    """How messages were received together.

    Attributes:
        link: The count of `QueueAcks.link`.
        at: When, on trio's clock.
        wall_us: The same by this machine's time of day, in microseconds since 1970.
    """

    link: int
    at: float
    wall_us: int


NewLease: TypeAlias = Callable[["QueueLeases", float], MessageLease]
"""Makes the lease of messages that a subscription has received at a time."""


class QueueLeases:
    """The leases of one subscription, and what it does for the messages of its queues.

    Every subscription without a bookmark has one, since only the server's answer shows whether its
    topic is a queue.

    Args:
        acks: The acknowledgements of the client.
        topic: The topic.
        new_lease: Makes the lease of messages that were received together, so that no object is
            created per message.
        is_queue: Whether the topic is known to be a queue; else the server's answer shows it.
        asked: The backlog that is asked for.
        log: Logs the warnings, with the fields of the client.

    Attributes:
        backlog: What the server has granted; `None` if it does not say.
        lease_s: The length of leases, if the server says it.
        batch: Acknowledgements that are not sent yet.
        extended: The later end of each lease that was extended, by queue and bookmark.
        is_closed: Whether the subscription has ended, and each lease with it.
    """

    def __init__(
        self,
        acks: QueueAcks,
        topic: str,
        *,
        new_lease: NewLease,
        is_queue: bool,
        asked: int = 1,
        log: SafeLogger,
    ) -> None:
        self.acks = acks
        self.log = log
        self.is_queue = is_queue
        self.backlog: int | None = None
        self.lease_s: float | None = None
        self.batch = AckBatch(timeout_s=acks.timeout_s)
        self.extended: dict[tuple[str, str], float] = {}
        self.is_closed = False
        self._topic = topic
        self._new_lease = new_lease
        self._asked = asked
        self._warned: set[str] = set()
        self._failures: dict[tuple[str, str], int] = {}  # by queue and bookmark, the oldest first

    # -- receiving ------------------------------------------------------------

    @property
    def most_unacknowledged(self) -> int:
        """How many messages the server sends before it waits for an acknowledgement."""
        return self._asked if self.backlog is None else self.backlog

    def granted(self, options: str) -> None:
        """The server has accepted the command, or a later one that replaces it.

        Args:
            options: The options of the `processed` ack.
        """
        grant = parse_grant(options)
        if grant.backlog is None and not self.is_queue:
            return
        self.is_queue = True
        self.backlog, self.lease_s = grant.backlog or None, grant.lease_s
        if grant.backlog == 0:
            self.warn_once(
                "nothing",
                "the server grants the queue %s a backlog of 0, so it may send no message: allow a "
                "backlog at the server",
            )
        self.batch.limit = batch_limit(self.acks.batch_size, grant.backlog, self.batch.timeout_s)
        if self.batch.count >= self.batch.limit:  # the server may send nothing before it has these
            self.acks.send_batch(self.batch)
        if grant.backlog == 1:
            self.warn_once(
                "backlog",
                "the queue %s sends one message at a time (backlog 1): its consumer waits for the "
                "server after each one; ask for max_backlog=2 or more, and allow it at the server",
            )

    def warn_once(self, about: str, text: str) -> None:
        """Log a warning about this subscription, unless the same was logged before."""
        if about not in self._warned:
            self._warned.add(about)
            self.log.warning(text, self._topic)

    def received(self, messages: list[Message], now: float) -> None:
        """Attach the lease to messages of one chunk.

        Args:
            messages: The messages, in order.
            now: The time, in seconds.
        """
        if self.extended:  # a redelivered message has a new lease
            for message in messages:
                self.extended.pop((message.topic, message.bookmark), None)
        lease = self._new_lease(self, now)
        for message in messages:
            if message.bookmark:  # else nothing names it in an acknowledgement
                message.lease = lease
            elif self.is_queue:
                self.warn_once(
                    "bookmark",
                    "messages of the queue %s have no bookmark, so they cannot be acknowledged: "
                    "the server will stop sending when the backlog is full",
                )

    # -- one lease --------------------------------------------------------------

    def holds(self, receipt: Receipt) -> bool:
        """Whether the connection of these messages and the subscription still exist."""
        return receipt.link == self.acks.link and not self.is_closed

    def is_deliverable(self, receipt: Receipt, message: Message, now: float) -> bool:
        """Whether a message has yet to be processed; see `MessageLease.is_deliverable`."""
        acks = self.acks
        if receipt.link != acks.link or self.is_closed:
            return False
        processed = acks.processed
        if processed and (message.topic, message.bookmark) in processed:
            if self.acknowledge(receipt, message):  # its work was done on an earlier link
                self.begin_batch(now)
            return False
        if self.lease_s is None or now < receipt.at + self.lease_s or not message.lease_period:
            return True
        # It has waited in this client for longer than its lease.
        if self.extended.get((message.topic, message.bookmark), 0.0) > now:
            return True
        self.warn_once(
            "lapsed",
            "messages of the queue %s wait in this client until their leases end, and are skipped: "
            "ask for a smaller max_backlog, or use more workers",
        )
        return False

    def deadline(self, receipt: Receipt, message: Message) -> float | None:
        """When the lease of a message ends; see `MessageLease.deadline`."""
        if self.extended:
            extended = self.extended.get((message.topic, message.bookmark))
            if extended is not None:
                return extended
        left_s = lease_left_s(message.lease_period, receipt.wall_us, self.lease_s)
        if left_s is None:
            self.warn_once(
                "clock",
                "the leases of the queue %s end at times that cannot be right: compare the clocks "
                "of this machine and of the server; lease deadlines are not enforced",
            )
        return None if left_s is None or left_s == math.inf else receipt.at + left_s

    def extend(self, receipt: Receipt, message: Message, seconds: float, now: float) -> None:
        """Extend the lease of a message; see `MessageLease.extend`."""
        option = lease_extension(seconds)
        if message.lease is None or not self.holds(receipt):
            return
        if message.lease_period:  # else it has no end that could move
            if len(self.extended) >= MAX_EXTENDED:  # of messages that nobody acknowledges
                self.extended = {name: end for name, end in self.extended.items() if end > now}
            later = max(self.deadline(receipt, message) or 0.0, now + seconds)
            self.extended[message.topic, message.bookmark] = later
        self.acks.send_after(self.batch, AckCommand(message.topic, (message.bookmark,), option))

    # -- acknowledging ------------------------------------------------------------

    def acknowledge(self, receipt: Receipt, message: Message) -> bool:
        """Acknowledge a processed message; see `MessageLease.acknowledge`.

        Returns:
            Whether it is the first in its batch: then call `begin_batch`.
        """
        if message.lease is None:  # acknowledged before
            return False
        message.lease = None
        topic, bookmark = message.topic, message.bookmark
        self._forget(topic, bookmark)
        if receipt.link != self.acks.link:
            self.acks.acknowledge_late(topic, bookmark)
            return False
        batch = self.batch
        is_first = not batch.count
        if batch.add(topic, bookmark):
            self.acks.send_batch(batch)
            return False
        return is_first

    def begin_batch(self, now: float) -> None:
        """Note when the first acknowledgement of a batch was given."""
        self.acks.collecting(self.batch, self.batch.begin(now))

    def return_message(self, receipt: Receipt, message: Message, option: str, now: float) -> None:
        """Cancel or expire a message; see `MessageLease.acknowledge`."""
        if message.lease is None:  # acknowledged before
            return
        ends_at = self.deadline(receipt, message)
        message.lease = None
        topic, bookmark = message.topic, message.bookmark
        if option == AckOption.CANCEL:
            # After the end of its lease, a cancel would end the lease that followed.
            has_ended = ends_at is not None and ends_at <= now
            self.extended.pop((topic, bookmark), None)
        else:
            has_ended = False
            self._forget(topic, bookmark)
        if self.holds(receipt) and not has_ended:
            self.acks.send_after(self.batch, AckCommand(topic, (bookmark,), option))

    def _forget(self, topic: str, bookmark: str) -> None:
        """A message leaves its queue."""
        if self.extended:
            self.extended.pop((topic, bookmark), None)
        if self._failures:
            self._failures.pop((topic, bookmark), None)

    def failed(self, topic: str, bookmark: str) -> int:
        """Count a failure of a message; return how often it has failed in this subscription."""
        name = (topic, bookmark)
        count = self._failures.pop(name, 0) + 1
        self._failures[name] = count  # the youngest
        if len(self._failures) > MAX_COUNTED:
            del self._failures[next(iter(self._failures))]
        return count

    def cancel_later(self, receipt: Receipt, message: Message, failures: int, now: float) -> None:
        """Give a message back after a delay, within its lease."""
        if not self.holds(receipt):
            # Returned already. A message is not seen by the garbage collector: it must not refer
            # to this subscription for ever.
            message.lease = None
            return
        delay_s = cancel_delay_s(failures)
        ends_at = self.deadline(receipt, message)
        if ends_at is not None:
            delay_s = min(delay_s, max(0.0, ends_at - now) * _USED_OF_LEASE)
        self.acks.cancel_at(now + delay_s, message)

    def close(self) -> None:
        """The subscription ends, and the server returns its leases: send what was collected."""
        self.acks.send_batch(self.batch)
        self.is_closed = True
