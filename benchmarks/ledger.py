"""The books of a fail-over run: what came, in which order, and when the first of it came.

Pure: times are handed in. Every message carries its number, so that what is lost, doubled or out of
order is seen at once, and ends the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.blast import payload

__all__ = ["STEPS", "Ledger", "Timeline", "body_of", "number_in"]

_DIGITS: Final = 12
_HEAD: Final = b'{"n": '
STEPS: Final = (
    *("disconnected", "connected", "logged_on", "heartbeat_initiated", "publish_replayed"),
    *("resubscribed", "first message"),
)
"""What happens between a kill and the first message, in order."""


def body_of(number: int, size: int = 100) -> bytes:
    """A JSON object of `size` bytes that begins with its number."""
    rest = payload(size - len(_HEAD) - _DIGITS - 1)
    return b"%b%*d, %b" % (_HEAD, _DIGITS, number, rest[1:])


def number_in(body: bytes) -> int:
    """The number of a body."""
    return int(body[len(_HEAD) : len(_HEAD) + _DIGITS])


@dataclass(slots=True)
class Ledger:
    """The numbers of one publisher as a subscriber takes them: 1, 2, 3 and nothing else.

    Attributes:
        taken: How many were taken; the last number, as long as all is well.
    """

    taken: int = 0

    def take(self, number: int) -> None:
        """The next message.

        Raises:
            AssertionError: It is not the one that follows the last.
        """
        expected = self.taken + 1
        if number != expected:
            word = "given twice or out of order" if number < expected else "missing"
            raise AssertionError(
                f"message {min(number, expected)} is {word}: expected {expected}, got {number}, "
                f"after {self.taken} in order"
            )
        self.taken = number


@dataclass(slots=True)
class Timeline:
    """When each step of one fail-over was first reached, in seconds on some clock.

    A message counts as the first one only after the logon at the other server: by then everything
    of the lost connection has been handed out or forgotten.
    """

    killed_at: float
    at: dict[str, float] = field(default_factory=dict[str, float])

    def reached(self, step: str, now: float) -> None:
        """A step was reached; only the first time after the kill counts."""
        if step != "disconnected" and "disconnected" not in self.at:
            return
        self.at.setdefault(step, now)

    def message(self, now: float) -> bool:
        """A message was taken; whether it is the first from the other server."""
        if "logged_on" not in self.at or "first message" in self.at:
            return False
        self.at["first message"] = now
        return True

    def rows(self, name: str, steps: Mapping[str, str]) -> dict[str, float]:
        """Milliseconds from the kill to steps, as rows; `steps` says how the rows call them."""
        return {
            f"{name}, {label}": (self.at[step] - self.killed_at) * 1e3
            for step, label in steps.items()
        }
