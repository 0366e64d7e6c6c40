"""How long a failed queue message is held before it is given back. Pure.

Without a delay, a message that no handler can process would circulate between the server and its
consumers without a pause. The delay doubles with each failure of the same message, up to a limit.
Failures are counted in this process; the server counts cancels.
"""

from __future__ import annotations

from typing import Final

FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 30.0
MAX_COUNTED: Final = 10_000
"""Messages whose failures are counted; the one that failed longest ago is dropped first."""


class CancelDelay:
    """The failures of the messages of one subscription.

    Attributes:
        counts: How often each has failed, by queue and bookmark.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def failed(self, topic: str, bookmark: str) -> int:
        """Count a failure.

        Args:
            topic: The queue.
            bookmark: The message.

        Returns:
            How often the message has failed.
        """
        name = (topic, bookmark)
        count = self.counts.pop(name, 0) + 1
        self.counts[name] = count  # the youngest
        if len(self.counts) > MAX_COUNTED:
            del self.counts[next(iter(self.counts))]
        return count

    def forget(self, topic: str, bookmark: str) -> None:
        """Drop the count of a message that has left the queue."""
        self.counts.pop((topic, bookmark), None)

    @staticmethod
    def delay_s(count: int) -> float:
        """Seconds to hold a message that has failed `count` times."""
        return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** min(count - 1, 60))
