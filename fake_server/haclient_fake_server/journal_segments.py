"""What the journal's shell knows of its segments, and what every segment repeats."""

from __future__ import annotations

from dataclasses import dataclass, field

from haclient_fake_server.engine.journal import Block, BlockIndex
from haclient_fake_server.journal_format import (
    Manifest,
    Record,
    RecordCommand,
    RecordFlag,
    encode_block,
    encode_record,
)
from haclient_stores.files import File

__all__ = ["Knowledge", "Segment", "summarise"]


@dataclass(slots=True)
class Segment:
    """One file of the journal and what is known of it."""

    manifest: Manifest
    file: File
    index: BlockIndex
    capacity_bytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte that was not written."""
        return self.manifest.data_bytes


@dataclass(slots=True)
class Knowledge:
    """What every segment repeats: definitions, and marks as `(highest sequence, flags)`."""

    topics: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    marks: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def take(self, record: Record) -> None:
        """Learn from a record that was read back."""
        if record.command == RecordCommand.TOPIC:
            names = (_text(record.key), _text(record.payload))
            self.topics.setdefault(record.topic_id, names)
        else:
            known = self.marks.get(record.publisher_id, (0, 0))[0]
            flags = record.flags & RecordFlag.ASSIGNED
            self.marks[record.publisher_id] = (max(known, record.sequence), flags)

    def take_block(self, block: Block) -> None:
        """Learn from a block that is written now."""
        for publisher_id, (_, high) in block.publishers.items():
            flags = RecordFlag.ASSIGNED if publisher_id in block.assigned else 0
            self.marks[publisher_id] = (high, flags)
        for publisher_id, sequence in block.marks:
            self.marks[publisher_id] = (sequence, 0)
        for topic_id, message_type, topic in block.definitions:
            self.topics[topic_id] = (message_type, topic)

    def encode(self, *, position: int, now_us: int) -> bytes:
        """The block that begins a segment; empty when there is nothing to repeat."""
        records = [
            Record(
                0,
                0,
                0,
                now_us,
                topic_id,
                RecordCommand.TOPIC,
                key=_bytes(message_type),
                payload=_bytes(topic),
            )
            for topic_id, (message_type, topic) in self.topics.items()
        ]
        records += [
            Record(0, publisher_id, sequence, now_us, 0, RecordCommand.MARK, flags)
            for publisher_id, (sequence, flags) in self.marks.items()
        ]
        if not records:
            return b""
        data = b"".join(map(encode_record, records))
        return encode_block(data, count=len(records), first_position=position)


def summarise(manifest: Manifest, records: list[Record]) -> Block:
    """What the index wants to know of a block that was read back."""
    publishers: dict[int, tuple[int, int]] = {}
    first_position = next_position = manifest.next_position
    for record in records:
        if record.position:
            next_position = record.position + 1
            low, _ = publishers.get(record.publisher_id, (record.sequence, 0))
            publishers[record.publisher_id] = (low, record.sequence)
    return Block(
        b"",
        first_position,
        next_position,
        records[0].timestamp_us,
        records[-1].timestamp_us,
        publishers,
        tuple(
            (record.topic_id, _text(record.key), _text(record.payload))
            for record in records
            if record.command == RecordCommand.TOPIC
        ),
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
