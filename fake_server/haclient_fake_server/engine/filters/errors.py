"""What is wrong with a filter."""

from __future__ import annotations

from typing import Final

from haclient.errors import HAClientError

__all__ = ["FilterError"]


class FilterError(HAClientError):
    """A filter, path or order cannot be understood.

    Attributes:
        reason: What a failure ack says; an order that fails is `invalid orderby` to the broker.
        position: Where in the text, in characters from 0.
        expected: What would have been right there.
        found: What is there instead.
    """

    reason: Final = "bad filter"

    def __init__(self, position: int, *, expected: str, found: str) -> None:
        super().__init__(f"bad filter at character {position}: expected {expected}, found {found}")
        self.position = position
        self.expected = expected
        self.found = found
