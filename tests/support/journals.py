"""Journals for tests: written by the broker's own writer, read back record by record as a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from haclient_fake_server.engine.journal import Block
from haclient_fake_server.journal.files import JournalFiles
from haclient_fake_server.journal.format import (
    SEGMENT_HEADER_BYTES,
    Record,
    RecordCommand,
    encode_record,
    encode_removals,
    read_blocks,
    read_records,
    segment_name,
    segment_number,
)
from haclient_stores.disk.files import RealDisk

INSTANCE = "east"
FIRST_US = 1_769_851_800_000_000
"""2026-01-31 09:30:00 UTC"""


class ModelRow(NamedTuple):
    """A row as a slow reader sees it: publisher and sequence unsigned, times in microseconds."""

    topic: str
    bookmark: str
    publisher_id: int
    sequence: int
    position: int
    timestamp: int
    command: str
    sow_key: str | None
    correlation_id: str | None
    data: bytes


class JournalWriter:
    """Appends blocks of messages to a journal, as a broker does.

    Args:
        directory: Where the journal is.
        instance_id: Of the broker instance.
        segment_bytes: Size of a segment.
        start_id: Of this start of the log.
    """

    def __init__(
        self,
        directory: Path,
        *,
        instance_id: int = 1,
        segment_bytes: int = 64 * 2**20,
        start_id: int = 77,
    ) -> None:
        self.files = JournalFiles(
            directory,
            RealDisk(),
            segment_bytes=segment_bytes,
            instance_id=instance_id,
            start_id=start_id,
        )
        self.topics: dict[str, int] = {}
        self.sequences: dict[int, int] = {}
        self.now_us = FIRST_US

    def append(self, messages: Iterable[tuple[str, Record]]) -> None:
        """Append a block of messages with their topics, as `message` gives them.

        Positions and topic ids are filled in, and sequences and times where a record has none.
        """
        position = first = self.files.next_position
        records: list[bytes] = []
        definitions: list[tuple[int, str, str]] = []
        publishers: dict[int, tuple[int, int]] = {}
        first_us = 0
        for topic, record in messages:
            topic_id = self.topics.get(topic)
            self.now_us += 1
            if topic_id is None:
                topic_id = self.topics[topic] = len(self.topics) + 1
                definitions.append((topic_id, "json", topic))
                name = topic.encode()
                records.append(
                    encode_record(
                        Record(
                            *(0, 0, 0, self.now_us, topic_id, RecordCommand.TOPIC),
                            key=b"json",
                            payload=name,
                        )
                    )
                )
            sequence = record.sequence or self.sequences.get(record.publisher_id, 0) + 1
            self.sequences[record.publisher_id] = sequence
            low, _ = publishers.get(record.publisher_id, (sequence, sequence))
            publishers[record.publisher_id] = (low, sequence)
            records.append(
                encode_record(
                    record._replace(
                        position=position,
                        sequence=sequence,
                        timestamp_us=record.timestamp_us or self.now_us,
                        topic_id=topic_id,
                    )
                )
            )
            first_us = first_us or self.now_us
            position += 1
        self.files.append(
            Block(
                b"".join(records),
                len(records),
                first,
                position,
                first_us,
                self.now_us,
                publishers,
                tuple(definitions),
            )
        )

    def remove_from_queue(
        self, entries: Sequence[tuple[int, int, int]], *, queue: str = "work"
    ) -> None:
        """Append a block of nothing but removals: publisher id, sequence and reason of each."""
        position, now_us = self.files.next_position, self.now_us
        data = encode_removals(queue.encode(), b"json", entries, now_us=now_us)
        self.files.append(Block(data, 1, position, position, now_us, now_us))

    def seal(self) -> None:
        """Seal all segments that are full."""
        while self.files.has_unsealed:
            self.files.seal()

    def close(self) -> None:
        """Close the journal."""
        self.files.close()


def message(
    data: bytes = b"{}",
    *,
    topic: str = "orders",
    publisher_id: int = 9,
    key: bytes = b"",
    correlation_id: bytes = b"",
    expiration_s: int | None = None,
) -> tuple[str, Record]:
    """A message and its topic."""
    record = Record(
        *(0, publisher_id, 0, 0, 0),
        key=key,
        correlation_id=correlation_id,
        expiration_s=expiration_s,
        payload=data,
    )
    return topic, record


def deletion(keys: bytes, *, topic: str = "orders") -> tuple[str, Record]:
    """A delete of records by their keys, and its topic."""
    return topic, Record(0, 9, 0, 0, 0, RecordCommand.SOW_DELETE, payload=keys)


def rewrite_journal(
    source: Path,
    target: Path,
    change: Callable[[list[tuple[str, Record]]], list[tuple[str, Record]]],
    *,
    segment_bytes: int = 64 * 2**20,
) -> None:
    """Write the journal that a faulty broker would have: messages lost, repeated, out of order.

    Args:
        source: A journal.
        target: The directory of the new one.
        change: Gets all messages with their topics, and returns what the new journal has; positions
            are given anew.
        segment_bytes: Size of its segments; all but the last one are sealed.
    """
    topics: dict[int, str] = {}
    messages = [
        (topics[record.topic_id], record)
        for record in model_records(source)
        if _take_topic(record, topics) and record.is_data
    ]
    writer = JournalWriter(target, segment_bytes=segment_bytes)
    changed = change(messages)
    for first in range(0, len(changed), 10):
        writer.append(changed[first : first + 10])
    writer.seal()
    writer.close()


def model_rows(directory: Path) -> list[ModelRow]:
    """All rows of a journal, record by record."""
    topics: dict[int, str] = {}
    return [
        _row(record, topics)
        for record in model_records(directory)
        if _take_topic(record, topics) and record.is_data
    ]


def model_records(directory: Path) -> Iterator[Record]:
    """All records of a journal in order, also those without a position."""
    numbers = sorted(
        number for path in directory.iterdir() if (number := segment_number(path.name)) is not None
    )
    for number in numbers:
        data = (directory / segment_name(number)).read_bytes()
        for block in read_blocks(data, SEGMENT_HEADER_BYTES, segment=number):
            yield from read_records(data, block.start, block.end)


def _take_topic(record: Record, topics: dict[int, str]) -> bool:
    if record.command == RecordCommand.TOPIC:
        topics[record.topic_id] = record.payload.decode()
    return True


def _row(record: Record, topics: dict[int, str]) -> ModelRow:
    return ModelRow(
        topics[record.topic_id],
        record.bookmark,
        record.publisher_id,
        record.sequence,
        record.position,
        record.timestamp_us,
        RecordCommand(record.command).name.lower(),
        record.key.decode() or None,
        record.correlation_id.decode() or None,
        record.payload,
    )
