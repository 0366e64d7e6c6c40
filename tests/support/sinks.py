"""Where messages of a subscription go in tests that deliver none."""

from __future__ import annotations

from typing_extensions import override

from haclient.protocol.messages import Message
from haclient.session.subscriptions import Marker, SubscriptionQueue

__all__ = ["NoQueue"]


class NoQueue(SubscriptionQueue):
    """Nothing may be handed over."""

    @override
    def put(self, batch: list[Message], size: int) -> None:
        raise AssertionError

    @override
    def mark(self, marker: Marker) -> None:
        raise AssertionError

    @override
    def fail(self, error: Exception) -> None:
        raise AssertionError

    @override
    def end(self, reason: Exception | None = None, *, raises: bool = False) -> None:
        raise AssertionError

    @override
    def drop(self, *, keep_replaced: bool = False) -> list[Message]:
        return []
