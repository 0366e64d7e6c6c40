"""Guards: how much of the log its consumers still need.

A consumer that reads the log now and then, such as a streaming query between two batches, must find
what follows its last position when it comes back. It sets a guard: a name, and the last position
that it does *not* need any more. What follows the lowest of these positions must not be removed.
Elasticsearch calls this a retention lease, PostgreSQL a replication slot.

A guard ends when its consumer drops it, or when it was not renewed for the time that the consumer
has chosen: a consumer that is gone for good must not keep the log for ever. A guard belongs to one
instance, since positions do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from haclient_fake_server.engine.acks import Reason, Refused

DEFAULT_TTL_S: Final = 7 * 86400.0
"""A consumer that is down over a weekend finds its messages."""

MAX_TTL_S: Final = 100 * 365 * 86400.0
"""So that every end of a guard is a time that can be written."""

MAX_GUARDS: Final = 1000
"""Guards at a time: a consumer that takes another name each time is refused more."""

MAX_NAME_CHARACTERS: Final = 255


class Guard(NamedTuple):
    """What one consumer needs.

    Attributes:
        name: The consumer.
        after: The last position that it does not need any more.
        set_us: When it was set or renewed, in microseconds since 1970.
        expires_us: When it ends unless it is renewed.
    """

    name: str
    after: int
    set_us: int
    expires_us: int


class Guards:
    """The guards of one instance, by name.

    Args:
        known: Those of the previous engine on this journal.
    """

    def __init__(self, known: Iterable[Guard] = ()) -> None:
        self._known = {guard.name: guard for guard in known}
        self._changed_by: dict[int, None] = {}

    def current(self, now_us: int) -> tuple[Guard, ...]:
        """Those that have not ended, ordered by what they need, the oldest first."""
        found = [each for each in self._known.values() if each.expires_us > now_us]
        return tuple(sorted(found, key=lambda guard: (guard.after, guard.name)))

    def oldest_needed(self, now_us: int) -> int | None:
        """The lowest position that any consumer needs; `None` without guards."""
        return min((each.after + 1 for each in self.current(now_us)), default=None)

    def set(
        self, name: str, after: int, *, ttl_s: float, now_us: int, first: int, last: int
    ) -> None:
        """Set or renew a guard.

        Args:
            name: The consumer.
            after: The last position that it does not need.
            ttl_s: When it ends, in seconds from now.
            now_us: The wall clock in microseconds.
            first: The oldest position of the log.
            last: The last position of the log.

        Raises:
            Refused: The log has lost some of what the consumer needs, has never had it, or there
                are too many guards.
        """
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            detail = f"the name of a guard has 1 to {MAX_NAME_CHARACTERS} characters"
            raise Refused(Reason.INVALID_OPTIONS, detail)
        if after + 1 < first:
            detail = (
                f"guard {name!r} after {after}: the log begins at {first}, the rest was removed"
            )
            raise Refused(Reason.BOOKMARK_NOT_FOUND, detail)
        if after > last:
            detail = f"guard {name!r} after {after}: the log ends at {last}"
            raise Refused(Reason.INVALID_BOOKMARK, detail)
        self._drop_expired(now_us)
        if name not in self._known and len(self._known) >= MAX_GUARDS:
            detail = f"guard {name!r}: there are {MAX_GUARDS} already"
            raise Refused(Reason.TOO_MANY_GUARDS, detail)
        self._known[name] = Guard(name, after, now_us, now_us + int(ttl_s * 1e6))

    def move_back(self, last: int) -> tuple[Guard, ...]:
        """The log ends at `last`: what guards were not to need behind it will be other messages.

        Returns:
            The guards that were behind the end, as they were.
        """
        behind = tuple(each for each in self._known.values() if each.after > last)
        self._known.update((each.name, each._replace(after=last)) for each in behind)
        return behind

    def note_change(self, connection_id: int) -> None:
        """A connection has changed them: they are written with this batch, before its answer."""
        self._changed_by[connection_id] = None

    def take_changes(self, now_us: int) -> tuple[tuple[Guard, ...] | None, tuple[int, ...]]:
        """All guards, `None` if this batch has changed none; and the connections that have."""
        if not self._changed_by:
            return None, ()
        changed_by, self._changed_by = tuple(self._changed_by), {}
        return self.current(now_us), changed_by

    def drop(self, name: str, *, now_us: int) -> None:
        """End a guard; an unknown one has ended already."""
        self._known.pop(name, None)
        self._drop_expired(now_us)

    def _drop_expired(self, now_us: int) -> None:
        self._known = {each.name: each for each in self.current(now_us)}
