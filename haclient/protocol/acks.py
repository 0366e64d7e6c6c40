"""The words of acknowledgements (protocol 4).

A command asks for acks by a comma list and gets one ack message for each that it asked for, and no
others. Lists are read with patience: spaces, empty items and `none` mean nothing.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from haclient.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["AckType", "Status", "format_acks", "parse_acks"]


class AckType(enum.StrEnum):
    """How far a command has come."""

    RECEIVED = "received"
    PARSED = "parsed"
    PROCESSED = "processed"
    PERSISTED = "persisted"
    COMPLETED = "completed"
    STATS = "stats"


class Status(enum.StrEnum):
    """How it went."""

    SUCCESS = "success"
    FAILURE = "failure"
    RETRY = "retry"


def parse_acks(text: str) -> frozenset[AckType]:
    """The ack types of a list like `processed, completed`.

    Raises:
        UsageError: A word is no ack type; the message names it.
    """
    words = (word.strip() for word in text.split(","))
    return frozenset(_ack_type(word) for word in words if word not in {"", "none"})


def format_acks(acks: Iterable[AckType | str]) -> str:
    """The list on the wire, in the order of `AckType`, each type once.

    Raises:
        UsageError: A word is no ack type.
    """
    wanted = {_ack_type(ack) for ack in acks}
    return ",".join(ack for ack in AckType if ack in wanted)


def _ack_type(word: str) -> AckType:
    try:
        return AckType(word)
    except ValueError:
        known = ", ".join(AckType)
        raise UsageError(f"{word!r} is no ack type; there are {known}") from None
