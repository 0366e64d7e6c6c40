"""Questions about the log that are answered by reading it, a limited part at a time.

A query is a generator. Each step reads about `STEP_BYTES` of the log and yields, so that the broker
serves other clients in between; the last step returns the answer. The log may grow meanwhile. An
answer is about the log as it was when the first step ran.

`count_messages` finds the position at which a reader is after a number of messages.
`find_last_message` finds the last message of a publisher, and `count_of_publisher` counts what the
log has of a range of its sequences.

**Covered by a vector.** A vector has a highest sequence for each of some publishers. It covers the
messages of these publishers up to that sequence, and none of other publishers. The sequences of a
publisher rise in every log, whereas the messages of different publishers are in another order on
each instance. So a vector selects the same messages on every instance, and on each of them there is
a position below which it covers everything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias, TypeVar

from haclient_fake_server.engine.filters import Document
from haclient_fake_server.engine.journal import JournalReader, Segment, records_of
from haclient_fake_server.engine.patterns import TopicMatcher
from haclient_fake_server.engine.routes import Route
from haclient_fake_server.journal.format import (
    RECORD_HEADER_BYTES,
    Record,
    RecordCommand,
    Stride,
    headers,
)

STEP_BYTES: Final = 128 * 1024
"""What one step reads of the log, about a millisecond's worth."""

STEP_ENTRIES: Final = 10_000
"""Entries of the sparse index that one step looks at: as expensive as `STEP_BYTES`."""

MAX_SCANNED_BYTES: Final = 256 * 2**20
"""What one query reads of the log at most, some seconds of the broker's only thread."""

_ENTRY_BYTES: Final = STEP_BYTES // STEP_ENTRIES

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


class Selected(NamedTuple):
    """The messages that a reader of the log receives.

    Attributes:
        matcher: Their topics.
        message_type: Their message type.
        filter: Their content filter, if there is one.
        vector: By publisher id, the sequence up to which messages are covered; `None` where the
            reader begins at a position alone.
    """

    matcher: TopicMatcher
    message_type: str
    filter: Callable[[Document], bool] | None = None
    vector: Mapping[int, int] | None = None


class Limits(NamedTuple):
    """Where counting ends, at the latest.

    Attributes:
        end: The first position that is not counted.
        messages: The highest number of messages, `None` for any.
        payload_bytes: The most bytes of their payloads, but for a single message that is larger;
            `None` for any.
    """

    end: int
    messages: int | None = None
    payload_bytes: int | None = None


@dataclass(slots=True)
class Tally:
    """The messages up to a position.

    Attributes:
        position: The last position that was counted.
        messages: Their number.
        payload_bytes: The size of their payloads.
        publishers: By publisher id, the sequence of its last message among them.
        timestamp_us: The time of the last one, 0 when there is none.
        begins: The position of the first one, `position + 1` when there is none.
        first: Publisher and sequence of the first one.
        last: Publisher and sequence of the last one.
        ended_by: What ended counting: `messages`, `bytes`, `end`, or `scanned` for
            `MAX_SCANNED_BYTES`.
    """

    position: int
    messages: int = 0
    payload_bytes: int = 0
    publishers: dict[int, int] = field(default_factory=dict[int, int])
    timestamp_us: int = 0
    begins: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    ended_by: str = ""


class _Topics(dict[int, bool]):
    """Whether a topic is selected, by its number in the log; each is matched once."""

    def __init__(self, selected: Selected, topics: Mapping[int, Route]) -> None:
        super().__init__()
        self._selected = selected
        self._topics = topics

    def __missing__(self, topic_id: int) -> bool:
        route, selected = self._topics[topic_id], self._selected
        wanted = self[topic_id] = (
            route.message_type == selected.message_type and selected.matcher.matches(route.topic)
        )
        return wanted


def count_messages(
    journal: JournalReader,
    topics: Mapping[int, Route],
    selected: Selected,
    *,
    start: int,
    limits: Limits,
) -> Steps[Tally]:
    """Count messages from a position on.

    Args:
        journal: The log.
        topics: The topics by their numbers in the log.
        selected: What is counted.
        start: The first position that is counted.
        limits: Where counting ends.
    """
    tally = Tally(start - 1)
    wanted = _Topics(selected, topics)
    scanned = unyielded = 0
    for part in _parts(journal, selected.vector, start=start, end=limits.end):
        if part.chunk:
            _count_chunk(part.chunk, selected, wanted, tally, limits)
        else:
            tally.position = max(tally.position, part.last_position)
        scanned += part.cost_bytes
        unyielded += part.cost_bytes
        if tally.ended_by:
            break
        if scanned >= MAX_SCANNED_BYTES:
            tally.ended_by = "scanned"
            break
        if unyielded >= STEP_BYTES // 2:
            unyielded = 0
            yield
    if not tally.ended_by:
        # Only deletes, marks and skipped strides may follow, which are passed as well.
        tally.position, tally.ended_by = max(tally.position, limits.end - 1), "end"
    tally.begins = tally.begins or tally.position + 1
    return tally


class _Part(NamedTuple):
    """A part of the log.

    Attributes:
        chunk: Its blocks; empty where the vector covers all of it.
        cost_bytes: What it cost to look at, as bytes read.
        last_position: Its last position, where it has no blocks.
    """

    chunk: bytes
    cost_bytes: int
    last_position: int = 0


def _parts(
    journal: JournalReader, vector: Mapping[int, int] | None, *, start: int, end: int
) -> Iterator[_Part]:
    """The parts of the log between two positions; what the vector covers is not read."""
    for segment, number in journal.strides_from(start):
        strides = segment.index.strides
        if strides[number].position >= end:
            return
        if vector is not None and _covers(vector, strides[number]):
            after = strides[number + 1].position if number + 1 < len(strides) else end
            cost = _ENTRY_BYTES * len(strides[number].publishers)
            last_position = min(after, segment.manifest.next_position, end) - 1
            yield _Part(b"", cost, last_position)
            continue
        for chunk in journal.read_stride(segment, number, STEP_BYTES):
            yield _Part(chunk, len(chunk))


def _covers(vector: Mapping[int, int], stride: Stride) -> bool:
    """Whether a vector covers every message of a stride."""
    return all(high <= vector.get(each, 0) for each, (_, high) in stride.publishers.items())


def _count_chunk(
    chunk: bytes, selected: Selected, wanted: Mapping[int, bool], tally: Tally, limits: Limits
) -> None:
    """Count the messages of some blocks; sets `tally.ended_by` where a limit is reached."""
    publish = int(RecordCommand.PUBLISH)
    filter_, message_type = selected.filter, selected.message_type
    vector, passed, end_position = selected.vector or {}, tally.position, limits.end
    most = sys.maxsize if limits.messages is None else limits.messages
    most_bytes = sys.maxsize if limits.payload_bytes is None else limits.payload_bytes
    # Locals, since the attributes of a tally would double the cost of a record.
    messages, total_bytes, publishers = tally.messages, tally.payload_bytes, tally.publishers
    last_position, last_us, last, ended_by = passed, tally.timestamp_us, tally.last, ""
    for at, fields in headers(chunk):
        size, _, command, skip, position, publisher, sequence, time_us, topic, key, x = fields
        if position >= end_position:
            last_position, ended_by = max(passed, end_position - 1), "end"
            break
        if (
            position > passed
            and command == publish
            and wanted[topic]
            and sequence > vector.get(publisher, 0)
        ):
            body_at = at + RECORD_HEADER_BYTES + skip + key + x
            if filter_ is None or filter_(Document(chunk[body_at : at + size], message_type)):
                payload_bytes = total_bytes + at + size - body_at
                if payload_bytes > most_bytes and messages:
                    last_position, ended_by = position - 1, "bytes"
                    break
                if not messages:
                    tally.begins, tally.first = position, (publisher, sequence)
                messages += 1
                total_bytes = payload_bytes
                publishers[publisher] = sequence
                last_us, last = time_us, (publisher, sequence)
                if messages == most:
                    last_position, ended_by = position, "messages"
                    break
        last_position = position or last_position  # that of a start or a topic has none
    tally.position, tally.ended_by = max(passed, last_position), ended_by
    tally.messages, tally.payload_bytes = messages, total_bytes
    tally.timestamp_us, tally.last = last_us, last


class PublisherTally(NamedTuple):
    """What the log has of a range of a publisher's sequences.

    Attributes:
        messages: Messages and deletes; what was refused has a sequence, but is not in the log.
        counted_to: The last sequence of the range that was looked for: the end of the range, or
            less when `MAX_SCANNED_BYTES` were read.
    """

    messages: int
    counted_to: int


def count_of_publisher(
    journal: JournalReader, publisher_id: int, *, first: int, last: int, end: int
) -> Steps[PublisherTally]:
    """Count the messages and deletes of a publisher in a range of its sequences.

    Args:
        journal: The log.
        publisher_id: The publisher.
        first: The first sequence of the range.
        last: The last one.
        end: The first position that is not searched.
    """
    count = scanned = 0
    passed = first - 1
    for segment, number in (yield from _strides_of(journal, publisher_id, first=first, last=last)):
        for chunk in journal.read_stride(segment, number, STEP_BYTES):
            scanned += len(chunk)
            if publisher_id.to_bytes(8, "little") in chunk:
                for record in records_of(chunk):
                    if record.position >= end:
                        break
                    # Sequences rise in the log; a delete over several topics is several records.
                    if (
                        record.is_data
                        and record.publisher_id == publisher_id
                        and passed < record.sequence <= last
                    ):
                        passed, count = record.sequence, count + 1
            yield
        if scanned >= MAX_SCANNED_BYTES:
            high = segment.index.strides[number].publishers[publisher_id][1]
            return PublisherTally(count, min(high, last))
    return PublisherTally(count, last)


def _strides_of(
    journal: JournalReader, publisher_id: int, *, first: int, last: int
) -> Steps[list[tuple[Segment, int]]]:
    """The strides that may hold sequences of a range, the oldest first; only the index is read."""
    found: list[tuple[Segment, int]] = []
    entries = 0
    for number in sorted(journal.segments, reverse=True):
        segment = journal.segments[number]
        for at in reversed(range(len(segment.index.strides))):
            entries += 1
            if entries % STEP_ENTRIES == 0:
                yield
            low, high = segment.index.strides[at].publishers.get(publisher_id, (last + 1, last))
            if high < first:  # and so is everything before it
                return found[::-1]
            if low <= last:
                found.append((segment, at))
    return found[::-1]


def find_last_message(
    journal: JournalReader, publisher_id: int, *, end: int, identified_from: int | None = None
) -> Steps[Record | None]:
    """Find the last message or delete of a publisher.

    Args:
        journal: The log.
        publisher_id: The publisher.
        end: The first position that is not searched.
        identified_from: Find the last one that has a correlation id, and this sequence or a higher
            one.

    Returns:
        Its record; `None` when the log has none any more, or none within `MAX_SCANNED_BYTES` of
        records where the index says that there may be one.
    """
    first = identified_from or 0
    scanned = entries = 0
    for number in sorted(journal.segments, reverse=True):
        segment = journal.segments[number]
        for at in reversed(range(len(segment.index.strides))):
            entries += 1
            if entries % STEP_ENTRIES == 0:
                yield
            sequences = segment.index.strides[at].publishers.get(publisher_id)
            if sequences is None:
                continue
            if sequences[1] < first:
                return None
            found: Record | None = None
            for chunk in journal.read_stride(segment, at, STEP_BYTES):
                for record in _records_of(chunk, publisher_id, end):
                    if first <= record.sequence and (record.correlation_id or not first):
                        found = record
                scanned += len(chunk)
                yield
            if found is not None or scanned >= MAX_SCANNED_BYTES:
                return found
    return None


def _records_of(chunk: bytes, publisher_id: int, end: int) -> Iterator[Record]:
    """The messages and deletes of a publisher in some blocks."""
    if publisher_id.to_bytes(8, "little") in chunk:
        for record in records_of(chunk):
            if record.is_data and record.publisher_id == publisher_id and record.position < end:
                yield record
