"""Which sequence numbers of a publisher still wait for a persisted ack.

Numbers rise, but not always by one: after a logon the next number must be above every number that
the server has ever *seen* of this publisher, or the server would treat new messages as duplicates.
So the numbers in use are *runs*, and the window keeps those that are not persisted yet: closed runs
in front, one open run at the end that grows with each `last_sequence`.

* `last_sequence`: the highest number that was used or skipped. The next is one more.
* `last_persisted`: the highest number acknowledged to us; it never goes back.
* `last_used`: the highest number that a message is known to have. Numbers that were skipped above
  it say nothing about how much was published.
* A store that never numbered anything starts at the clock in microseconds, so that neither a
  restart with an empty store nor a lagging replica causes a number to be reused.

Pure: no clock, no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from haclient_stores.errors import PublishGap, StoreError

MAX_PEER_SEQUENCE: Final = 2**63 - 1
"""The highest number that is taken from a server or a clock. Half of the 64-bit numbers stay free
above it, so that no later number of ours can overflow. A microsecond clock is below 2^51."""


class PublishWindow:
    """The unpersisted numbers of one publisher.

    Attributes:
        last_sequence: The highest number in use. The segment log adds one for each append.
        last_persisted: The highest number that was acknowledged; 0 when none was.
        reconciled: Whether a server has been asked what it has seen of this publisher.
        numbers_uncertain: Whether higher numbers may have been used of which no record is left.
    """

    def __init__(self) -> None:
        self.last_sequence = 0
        self.last_persisted = 0
        self.reconciled = False
        self.numbers_uncertain = False
        self._open_from = 1
        self._closed: deque[tuple[int, int]] = deque()
        self._closed_count = 0
        self._seen = 0  # the highest number that a server has said it knows, in this process
        self._skipped_to = 0  # the last number that was skipped
        self._used_before_skip = 0

    @classmethod
    def recovered(
        cls,
        runs: Iterable[tuple[int, int]],
        *,
        last_persisted: int,
        floor: int,
        reconciled: bool,
        numbers_uncertain: bool = False,
    ) -> PublishWindow:
        """The window of a store that was read back.

        Args:
            runs: First and last number of each stretch that is still stored, ascending.
            last_persisted: The highest number known to be acknowledged.
            floor: Numbers up to here are taken even if nothing of them is stored.
            reconciled: Whether a server was asked before.
            numbers_uncertain: Whether higher numbers may have been used that nothing shows.
        """
        window = cls()
        window.reconciled = reconciled
        window.numbers_uncertain = numbers_uncertain
        for first, last in runs:
            window.skip_to(first - 1)
            window.last_sequence = last
        window.skip_to(floor)
        window.persist(last_persisted)
        return window

    def begin_above(self, sequence: int) -> bool:
        """Number above `sequence` if nothing says how far an earlier run came.

        The client gives the time in microseconds. No run has got further: it began at the time, and
        takes more than a microsecond for a message.

        Returns:
            Whether the numbering has changed.

        Raises:
            StoreError: No publisher reaches this number; nothing has changed.
        """
        if self.last_sequence and not self.numbers_uncertain:
            return False
        self.check_peer_sequence(sequence)
        self.skip_to(sequence)
        self.numbers_uncertain = False
        return True

    @property
    def count(self) -> int:
        """How many numbers wait for their ack."""
        return self._closed_count + self.last_sequence - self._open_from + 1

    @property
    def lowest(self) -> int:
        """The lowest number that waits; 0 when none does."""
        if self._closed:
            return self._closed[0][0]
        return self._open_from if self._open_from <= self.last_sequence else 0

    @property
    def last_used(self) -> int:
        """The highest number of a message that is stored, or that a server knows; 0 for none.

        After a loss of power, messages with higher numbers may be lost both here and there.
        """
        if self.last_sequence > self._skipped_to:
            return self.last_sequence
        return self._used_before_skip

    def missing_after(self, sequence: int) -> tuple[int, int] | None:
        """The first stretch of numbers that no message is known for, below one that is stored.

        Args:
            sequence: What is not above it is not asked about. After the start of the machine a jump
                of the numbering leaves such a stretch, too: give the last number before the first
                message since.

        Returns:
            First and last number that neither is stored nor has been seen by a server that was
            asked in this process; None when there is no such stretch.
        """
        known = max(sequence, self.last_persisted, self._seen)
        for first, last in (*self._closed, (self._open_from, self.last_sequence)):
            if known + 1 < first <= last:
                return known + 1, first - 1
            known = max(known, last)
        return None

    def check_peer_sequence(self, *sequences: int) -> None:
        """Refuse numbers that no publisher has reached, before anything is changed.

        Raises:
            StoreError: One is above `MAX_PEER_SEQUENCE` and was never used here.
        """
        for sequence in sequences:
            if sequence > max(MAX_PEER_SEQUENCE, self.last_sequence):
                raise StoreError(
                    f"sequence {sequence} is above {MAX_PEER_SEQUENCE}; no publisher gets there: "
                    "the server's log is damaged, or is written by something else under this "
                    "client name; nothing was changed in the store"
                )

    def skip_to(self, sequence: int) -> None:
        """Number above `sequence`; nothing changes when that is so already."""
        if sequence <= self.last_sequence:
            return
        if self._open_from <= self.last_sequence:
            self._closed.append((self._open_from, self.last_sequence))
            self._closed_count += self.last_sequence - self._open_from + 1
        self._used_before_skip = self.last_used
        self.last_sequence = self._skipped_to = sequence
        self._open_from = sequence + 1

    def _note_used(self, sequence: int) -> None:
        """A server knows the message of this number, which is not above `last_sequence`."""
        self._used_before_skip = max(self._used_before_skip, sequence)

    def persist(self, sequence: int) -> bool:
        """Take over an ack of everything up to `sequence`; False when that was known."""
        if sequence <= self.last_persisted:
            return False
        self.last_persisted = sequence
        closed = self._closed
        while closed and closed[0][0] <= sequence:
            first, last = closed.popleft()
            self._closed_count -= min(last, sequence) - first + 1
            if last > sequence:
                closed.appendleft((sequence + 1, last))
        self._open_from = max(self._open_from, min(sequence, self.last_sequence) + 1)
        self.skip_to(sequence)
        self._note_used(sequence)
        return True

    def gap(self, persisted: int) -> PublishGap | None:
        """The gap of a server that has persisted only so much; None when it has all we know."""
        return (
            PublishGap(self.last_persisted, persisted) if persisted < self.last_persisted else None
        )

    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over what the logon ack says: trim, and number above what the server has seen.

        Args:
            seen: The highest sequence that the server has seen of this publisher.
            persisted: The highest that is persisted there and on all its sync destinations.
            clock_us: Microseconds since 1970: see `begin_above`.

        Raises:
            StoreError: Messages were stored before any server was asked, under numbers that this
                server has seen already: it would drop them as duplicates. Or one of the numbers is
                higher than any publisher reaches. Nothing is changed.
        """
        self.check_peer_sequence(seen, persisted, clock_us)
        if not self.reconciled and 0 < self.lowest <= seen:
            raise StoreError(
                f"messages were stored as {self.lowest}..{self.last_sequence} before the first "
                f"logon, but the server has already seen {seen} of this publisher and would drop "
                "them: log on before the first publish of a new store, or use a new client name"
            )
        self.reconciled = True
        self.begin_above(clock_us)
        self.skip_to(seen)
        self._note_used(seen)
        self._seen = max(self._seen, seen)
        self.persist(persisted)
