"""What a server grants to a queue subscription, and the lease of each message. Pure.

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
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from haclient.errors import UsageError
from haclient.protocol.options import parse_interval
from haclient_stores.bookmark import Timestamp

_NUMBER: Final = re.compile("[0-9]{1,9}")

LONGEST_LEASE_S: Final = 7 * 86_400.0
"""More time left than this shows that the clocks differ, and not a lease."""


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
