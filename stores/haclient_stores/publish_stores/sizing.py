"""How large a publish store has to be (PS19). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from haclient_stores.errors import UsageError
from haclient_stores.framing import SEAL_BYTES
from haclient_stores.publish_stores.file import DEFAULT_FILE_SEGMENT_BYTES

__all__ = ["StoreSize", "publish_store_size"]

# What a frame adds to a body: length, command, topic, sequence, ack; a seal when each is synced.
_HEADER_BYTES: Final = 96 + SEAL_BYTES
_SLACK: Final = 1.25  # a ring has room for new frames once all of a whole eighth are persisted
# The first segment is not yet wholly persisted, the last one not yet full, a third does not fit.
_PART_FILLED_BYTES: Final = 3 * DEFAULT_FILE_SEGMENT_BYTES


@dataclass(frozen=True, slots=True)
class StoreSize:
    """The size of a publish store.

    Attributes:
        messages: How many messages it has to hold.
        bytes: How many bytes that takes, headers and part-filled segments included: the `max_bytes`
            or `capacity_bytes` of a store.
    """

    messages: int
    bytes: int


def publish_store_size(
    messages_per_second: float,
    message_bytes: float,
    *,
    downgrade_age_s: float,
    check_period_s: float,
) -> StoreSize:
    """What a publisher has to keep while a sync destination of its server is down.

    The server withholds its acks until it downgrades the destination: when what it has not
    confirmed is older than `downgrade_age_s`, which the server looks at every `check_period_s`. A
    store that holds what is published in that time never fills up for that reason. 10 000 messages
    a second, 60 s and 15 s make 750 000 messages.

    Args:
        messages_per_second: The highest rate that lasts so long.
        message_bytes: The average body.
        downgrade_age_s: The server's limit, in seconds.
        check_period_s: How often the server looks, in seconds.

    Raises:
        UsageError: A rate, a size or a time is no number, negative or not finite, or the
            store would be larger than anything.
    """
    given = (messages_per_second, message_bytes, downgrade_age_s, check_period_s)
    if not all(_is_possible(value) for value in given):
        raise UsageError(f"rates, sizes and times are finite and not negative, not {given}")
    try:
        messages = math.ceil(messages_per_second * (downgrade_age_s + check_period_s))
        filled = math.ceil(messages * (message_bytes + _HEADER_BYTES) * _SLACK)
    except OverflowError:
        raise UsageError(f"no store is as large as {given} ask for") from None
    return StoreSize(messages, filled + _PART_FILLED_BYTES)


def _is_possible(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
