"""The sequence numbers of one publisher, as its server reports them and as its caller chooses them.

With a publish store the store numbers the publishes. Without one, the caller may choose the
numbers: a sink that derives them from its input publishes the same message under the same number
after a crash, and the server drops what it has. Three rules make that safe; the first two are
checked here:

1. On one connection the numbers rise. The server drops a message whose number is not above the last
   one as a duplicate, and acknowledges it: a number out of order would be a silent loss.
2. A number at or below what the server has persisted at the logon is refused for the same reason.
   Between `persisted` and `seen` lies what the server has, but has not promised to keep: that may
   be published again, and is de-duplicated.
3. A lost connection ends the chain. What was in flight may be missing, and the cumulative ack of a
   later message would hide that, so a client that reconnects by itself takes no explicit numbers.

The object is pure; `haclient.transport.publisher` calls it.
"""

from __future__ import annotations

from haclient.errors import UsageError
from haclient.session.logon import MAX_SEEN_SEQUENCE, LoggedOn
from haclient_stores.checks import check_count


class PublisherSequences:
    """What a server has of a publisher, and the explicit numbers of the current connection.

    Attributes:
        seen: The highest sequence that the server had seen at the last logon; `None` before the
            first logon and for a server that does not report it.
        persisted: The highest sequence that the server has reported as persisted, at the last logon
            or in an ack since; `None` as for `seen`.
        last_published: The highest explicit sequence of the current connection, 0 for none.
    """

    __slots__ = ("_begins_above", "last_published", "persisted", "seen")

    def __init__(self) -> None:
        self.seen: int | None = None
        self.persisted: int | None = None
        self.last_published = 0
        self._begins_above = 0

    def logged_on(self, server: LoggedOn) -> None:
        """A connection begins: take what its server has of this publisher."""
        self.seen = server.seen
        self.persisted = server.persisted
        self.last_published = 0
        self._begins_above = server.persisted or 0

    def acknowledged(self, sequence: int) -> None:
        """The server has persisted everything up to `sequence`."""
        if sequence > (self.persisted or 0):
            self.persisted = sequence

    def check(self, first: int, last: int | None = None) -> None:
        """Check that messages can be published under explicit numbers.

        Args:
            first: The number of the first message.
            last: The number of the last one; by default there is one message.

        Raises:
            UsageError: The server would drop one of them as a duplicate, or the number cannot be
                sent.
        """
        highest = first if last is None else last
        for number in (first, highest):
            check_sequence(number)
        if first <= self.last_published:
            raise UsageError(
                f"the sequences of one connection rise: the server would drop {first} after "
                f"{self.last_published} as a duplicate; connect again to repeat what is not "
                "persisted"
            )
        if first <= self._begins_above:
            raise UsageError(
                f"the server has persisted this publisher up to {self._begins_above} and would "
                f"drop {first} as a duplicate: publish what is above client.persisted_sequence"
            )


def check_sequence(number: object) -> None:
    """Check that a value can be sent as a sequence, and named by a later logon ack.

    Raises:
        UsageError: It is something else.
    """
    check_count("a sequence", number, 1, MAX_SEEN_SEQUENCE)
