"""Where a reader of a log is, as offsets of a stream that a checkpoint keeps as JSON.

**A place** is a position in the log of one instance, with the start of the log under which it was
written: each time that a broker opens its log, it adds a random number to it and the position from
which on it writes. A place is in a log that has this start and in which no later start begins at or
below the position. Anything else is another log, or one whose end was lost, and its positions mean
other messages.

**A vector** has the last sequence of each publisher. It selects the same messages on every replica,
since a publisher's messages are in the same order everywhere: those of each publisher up to its
sequence, and none of the publishers that it lacks.

An offset in mode `position` has one place. An offset in mode `vector` has a vector, which decides,
and the places of the instances that were asked: everything up to them is covered by the vector, so
that a reader need not begin at the start of the log there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, cast

from haclient.errors import UsageError

FORMAT_VERSION: Final = 1
POSITION: Final = "position"
VECTOR: Final = "vector"


class OffsetPlace(NamedTuple):
    """A position in the log of one instance.

    Attributes:
        instance: The name of the instance.
        start: The last start of its log at or before the position, as hexadecimal number.
        position: Everything up to this position was read.
    """

    instance: str
    start: str
    position: int


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Which log it is, and from where to where it goes.

    Attributes:
        instance: The name of its instance.
        starts: Its last starts, the oldest first: a hexadecimal number and the first position.
        oldest_position: The oldest position that is still there.
        last_position: The last position, `oldest_position - 1` when the log is empty.
    """

    instance: str
    starts: tuple[tuple[str, int], ...]
    oldest_position: int
    last_position: int

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> LogInfo:
        """Take it from an answer of the broker."""
        starts = tuple((str(start), int(first)) for start, first in answer["starts"])
        return cls(
            answer["instance"], starts, int(answer["oldest_position"]), int(answer["last_position"])
        )

    def place(self, position: int) -> OffsetPlace:
        """The place of a position of this log."""
        before = [start for start, first in self.starts if first <= position]
        return OffsetPlace(self.instance, before[-1] if before else self.starts[0][0], position)

    def has(self, place: OffsetPlace) -> bool:
        """Whether a place is one of this log."""
        names = [start for start, _ in self.starts]
        if place.instance != self.instance or place.start not in names:
            return False
        later = self.starts[names.index(place.start) + 1 :]
        # Nothing was read under the start of an empty log: its place may be that of the next start.
        return all(first > place.position for _, first in later)


@dataclass(frozen=True, slots=True)
class Offset:
    """Where a stream is.

    Attributes:
        places: By instance: one in mode `position`, any number in mode `vector`.
        vector: By publisher id, the last sequence; `None` in mode `position`.
        messages: How many messages the stream has read since it began.
    """

    places: Mapping[str, OffsetPlace] = field(default_factory=dict[str, OffsetPlace])
    vector: Mapping[int, int] | None = None
    messages: int = 0

    @property
    def place(self) -> OffsetPlace | None:
        """The only place, if there is one."""
        return next(iter(self.places.values())) if len(self.places) == 1 else None

    def advanced(self, place: OffsetPlace, publishers: Mapping[int, int], messages: int) -> Offset:
        """The offset after some more messages."""
        total = self.messages + messages
        if self.vector is None:
            return Offset({place.instance: place}, None, total)
        places = {**self.places, place.instance: place}
        return replace(self, places=places, vector=merged(self.vector, publishers), messages=total)

    def to_json(self) -> dict[str, Any]:
        """The offset for a checkpoint; numbers of 64 bits are texts."""
        result: dict[str, Any] = {
            "version": FORMAT_VERSION,
            "messages": self.messages,
            "places": {
                name: {"start": place.start, "position": place.position}
                for name, place in sorted(self.places.items())
            },
        }
        if self.vector is not None:
            result["vector"] = {str(each): self.vector[each] for each in sorted(self.vector)}
        return result

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, mode: str) -> Offset:
        """Read an offset back.

        Raises:
            UsageError: It is none, of a newer version, or of another mode.
        """
        try:
            if int(found["version"]) > FORMAT_VERSION:
                raise UsageError(
                    f"amps: the checkpoint has offsets of version {found['version']}, but this "
                    f"version of haclient reads up to {FORMAT_VERSION}: use the newer one"
                )
            places = {
                name: OffsetPlace(name, place["start"], int(place["position"]))
                for name, place in cast("dict[str, Any]", found["places"]).items()
            }
            raw = cast("dict[str, int] | None", found.get("vector"))
            vector = None if raw is None else {int(each): int(raw[each]) for each in raw}
            messages = int(found["messages"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"amps: the checkpoint has no offset of this source: {found}"
            ) from error
        if (vector is None) != (mode == POSITION):
            other = VECTOR if mode == POSITION else POSITION
            raise UsageError(
                f"amps: the checkpoint was made with offsetMode={other}, found {mode}: keep the "
                "mode, or begin with a new checkpoint"
            )
        return cls(places, vector, messages)


def merged(vector: Mapping[int, int], publishers: Mapping[int, int]) -> dict[int, int]:
    """A vector that covers what either of two covers."""
    result = dict(vector)
    for each, sequence in publishers.items():
        result[each] = max(sequence, result.get(each, 0))
    return result


def bookmarks_of(vector: Mapping[int, int]) -> str:
    """A vector as a list of bookmarks; `0` where it covers nothing."""
    return ",".join(f"{each}|{sequence}|" for each, sequence in vector.items()) or "0"


def ends_between(start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """By publisher id, the last sequence of those that have messages between two vectors."""
    return {each: sequence for each, sequence in end.items() if sequence > start.get(each, 0)}


class Membership:
    """Which messages belong to a range, while they arrive from any replica, in its order.

    Args:
        covered: By publisher id, the sequence up to which messages come before the range.
        ends: By publisher id, the last sequence in the range; other publishers have nothing in it.

    Attributes:
        reached: By publisher id, the last sequence that was taken or comes before the range.
    """

    def __init__(self, covered: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self.reached = dict(covered)
        self._ends = ends
        self._open = ends_between(covered, ends)
        self.taken = 0

    @property
    def is_complete(self) -> bool:
        """Whether the end of the range was passed for each publisher that is not given up."""
        return not self._open

    def take(self, publisher_id: int, sequence: int) -> bool:
        """Whether a message belongs to the range and comes for the first time."""
        end = self._ends.get(publisher_id, 0)
        if sequence >= end:
            self._open.pop(publisher_id, None)
        if sequence > end or sequence <= self.reached.get(publisher_id, 0):
            return False
        self.reached[publisher_id] = sequence
        self.taken += 1
        return True

    @property
    def missing(self) -> dict[int, int]:
        """By publisher id, the end of the range of those that have not reached it."""
        return dict(self._open)

    def give_up(self, publishers: Iterable[int]) -> None:
        """Expect nothing more of some publishers."""
        for each in publishers:
            self._open.pop(each, None)

    def describe_missing(self) -> str:
        """What has not arrived, for an error message."""
        publisher_id, sequence = next(iter(self._open.items()))
        more = f" and {len(self._open) - 1} more publishers" if len(self._open) > 1 else ""
        reached = self.reached.get(publisher_id, 0)
        return f"what follows {publisher_id}|{reached}| up to {publisher_id}|{sequence}|{more}"
