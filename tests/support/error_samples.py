"""Errors with constructors of their own, as the program raises them.

A module of its own, which a process pool imports in no time.
"""

from __future__ import annotations

from collections.abc import Callable

from haclient.errors import (
    DecodeError,
    HAClientError,
    PublishFailed,
    PublishGap,
    ReconnectGaveUp,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    SubscriptionFull,
    SubscriptionStalled,
)

MADE: dict[type[HAClientError], Callable[[], HAClientError]] = {
    DecodeError: lambda: DecodeError(
        "Object missing field", codec="json", position="$.id", topic="orders"
    ),
    PublishFailed: lambda: PublishFailed(
        "refused", reason="bad message", detail="not JSON", sequence=7
    ),
    PublishGap: lambda: PublishGap(9, 5),
    ReconnectGaveUp: lambda: ReconnectGaveUp(3, "no server"),
    StoreCorrupt: lambda: StoreCorrupt("orders.bm", 48, "bad checksum"),
    StoreFull: lambda: StoreFull("no room", wait=True),
    StoreLocked: lambda: StoreLocked("orders.pub", "a", "open already", in_this_process=True),
    SubscriptionFull: lambda: SubscriptionFull("it is full", sub_id="s1", topic="orders"),
    SubscriptionStalled: lambda: SubscriptionStalled("nothing came", sub_id="s1"),
}


def fail_with(name: str) -> None:
    """Raise the error of this name, in a worker process."""
    raise next(make() for kind, make in MADE.items() if kind.__name__ == name)
