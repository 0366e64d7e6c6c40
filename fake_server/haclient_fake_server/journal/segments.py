"""What the journal's shell knows of its segments, and what every segment repeats."""

from __future__ import annotations

from dataclasses import dataclass, field

from haclient_fake_server.engine.journal import Block, BlockIndex
from haclient_fake_server.engine.scanning import Scan
from haclient_fake_server.journal.format import (
    Manifest,
    Record,
    RecordCommand,
    RecordFlag,
    encode_block,
    encode_record,
)
from haclient_stores.disk.files import File

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

    def take(self, block: Block) -> None:
        """Learn from a block that is written now, or was read back."""
        for publisher_id, (_, high) in block.publishers.items():
            flags = RecordFlag.ASSIGNED if publisher_id in block.assigned else 0
            self._mark(publisher_id, high, flags)
        for publisher_id, sequence, flags in block.marks:
            self._mark(publisher_id, sequence, flags)
        for topic_id, message_type, topic in block.definitions:
            self.topics[topic_id] = (message_type, topic)

    def _mark(self, publisher_id: int, sequence: int, flags: int) -> None:
        if sequence >= self.marks.get(publisher_id, (0, 0))[0]:
            self.marks[publisher_id] = (sequence, flags)

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


def summarise(manifest: Manifest, found: Scan) -> Block:
    """What index and knowledge want of a block that was read back."""
    return Block(
        b"",
        manifest.next_position,
        max(manifest.next_position, found.last_position + 1),
        found.first_us,
        found.last_us,
        found.publishers,
        tuple(
            (record.topic_id, _text(record.key), _text(record.payload))
            for record in found.special
            if record.command == RecordCommand.TOPIC
        ),
        frozenset(found.assigned),
        tuple(
            (record.publisher_id, record.sequence, record.flags & RecordFlag.ASSIGNED)
            for record in found.special
            if record.command == RecordCommand.MARK
        ),
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
