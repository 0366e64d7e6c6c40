"""Publishers: ids, duplicates, and identities for messages that have none.

* A publisher's id is a checksum of its client name, so it is the same on every instance and after
  every restart.
* A message whose sequence is at or below the highest *seen* of its publisher is a duplicate: it is
  dropped, but acknowledged. A refused message counts as seen.
* A message without a sequence gets an identity of this instance: the checksum of client name and
  instance name, and a sequence that this instance counts, `<seconds of its start> * 10^9 + n`.

All of it is rebuilt from the journal: `restore` is called for each publisher found there, before
the first message.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Final

from haclient.protocol.identity import instance_publisher_id, publisher_id

_ASSIGNED_PER_SECOND = 10**9

MAX_RUNS: Final = 1024
"""Runs of consecutive sequences that are remembered of a publisher; one is the usual number."""


class KnownPublisher:
    """One publisher id and the sequences of its messages.

    Attributes:
        id: The id in bookmarks.
        prefix: `<id>|` as bytes, the constant part of its bookmarks.
        seen: The highest sequence seen.
        noted: The highest sequence that the journal records.
        logged: The highest sequence that a record of this run of the broker carries, -1 when there
            is none.
        batch_low: The first sequence of it in the batch being built, 0 when there is none.
        before_batch: What `noted` was before the last batch that has a record of it.
        connections: How many connections it belongs to.
    """

    __slots__ = (
        "_run_ends",
        "_run_starts",
        "batch_low",
        "before_batch",
        "connections",
        "id",
        "logged",
        "noted",
        "prefix",
        "seen",
    )

    def __init__(self, number: int) -> None:
        self.id = number
        self.prefix = b"%d|" % number
        self.seen = 0
        self.noted = 0
        self.logged = -1
        self.batch_low = 0
        self.before_batch = 0
        self.connections = 0
        self._run_starts: list[int] = []
        self._run_ends: list[int] = []

    def begin_run(self, sequence: int) -> None:
        """Begin a run: the next record does not continue the sequence."""
        if sequence == self.logged:
            return  # a delete over several topics is several records
        if self._run_starts:
            self._run_ends.append(self.logged)
        if len(self._run_starts) >= MAX_RUNS:
            del self._run_starts[: MAX_RUNS // 2], self._run_ends[: MAX_RUNS // 2]
        self._run_starts.append(sequence)

    def holds(self, sequence: int) -> bool | None:
        """Whether the log has a message; `None` if the message is older than the known runs."""
        number = bisect.bisect_right(self._run_starts, sequence) - 1
        if number < 0:
            return None
        ends = self._run_ends
        return sequence <= (ends[number] if number < len(ends) else self.logged)

    def bookmark(self, sequence: int) -> str:
        """The bookmark of one of its messages."""
        return f"{self.id}|{sequence}|"


class KnownPublishers:
    """All publishers that this instance knows, by id."""

    def __init__(self, instance_name: str, *, started_s: int) -> None:
        self._instance_name = instance_name
        self._known: dict[int, KnownPublisher] = {}
        self._last_assigned = started_s * _ASSIGNED_PER_SECOND

    def __iter__(self) -> Iterator[KnownPublisher]:
        """All of them."""
        return iter(self._known.values())

    def of_client(self, client_name: str) -> KnownPublisher:
        """The publisher behind a client name, for a connection that releases it at its end."""
        return self._hold(publisher_id(client_name))

    def of_origin(self, client_name: str) -> KnownPublisher:
        """The publisher of what this client publishes without a sequence; likewise."""
        return self._hold(instance_publisher_id(client_name, self._instance_name))

    def release(self, publisher: KnownPublisher) -> None:
        """A connection has ended. Most clients only read: what never published is forgotten."""
        publisher.connections -= 1
        has_records = publisher.seen or publisher.noted or publisher.logged >= 0
        if not publisher.connections and not has_records:
            del self._known[publisher.id]

    def of_id(self, number: int) -> KnownPublisher:
        """The publisher with this id, new or known."""
        publisher = self._known.get(number)
        if publisher is None:
            publisher = self._known[number] = KnownPublisher(number)
        return publisher

    def _hold(self, number: int) -> KnownPublisher:
        publisher = self.of_id(number)
        publisher.connections += 1
        return publisher

    def get(self, number: int) -> KnownPublisher | None:
        """The publisher with this id, if it is known."""
        return self._known.get(number)

    def assign(self) -> int:
        """The next sequence that this instance assigns; it rises across restarts, too."""
        self._last_assigned += 1
        return self._last_assigned

    def restore(self, number: int, sequence: int, *, assigned: bool) -> None:
        """Restore from the journal: `sequence` was seen; `assigned` if this instance gave it."""
        publisher = self.of_id(number)
        publisher.seen = publisher.noted = max(publisher.seen, sequence)
        if assigned:
            self._last_assigned = max(self._last_assigned, sequence)
