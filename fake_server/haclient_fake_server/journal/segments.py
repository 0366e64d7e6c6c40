"""The segments of a journal, and how they are read back at start-up.

A journal is one sequence of blocks that runs through all segments. A segment that is sealed was
synced as a whole and has a manifest that says so. The segments after the last sealed one, usually a
single one, are read block by block when the journal is opened.

**Where the log ends.** It ends before the first block that is not whole, not in its place, or does
not join the block before it. The bytes after the end determine the cause:

* Only bytes that are no whole block: a process was killed while it wrote. They are cut.
* Whole blocks, and the machine has started again since the journal was written: a loss of power has
  kept a later page and lost an earlier one. Nothing there was synced, so it is cut, too.
* Whole blocks of which one names a `DurablePlace` after the end, or a later sealed segment: bytes
  that were synced are damaged. The broker refuses to start and says where.
* Whole blocks, and the machine has not started again: the page cache has lost nothing, so this is
  damage as well.

**What is cut is cleared.** Segments that begin after the end are removed, the rest of the last one
is overwritten with zeros, and both are synced before anything is appended. Otherwise a later block
that ends where an old one begins would bring the old one back. This is the rule that all our logs
share (`haclient_stores.disk.checksummed_log`), applied to a log in several files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from haclient_fake_server.engine.journal import Block, BlockIndex, Scan, Segment, scan
from haclient_fake_server.journal.format import (
    FORMAT_VERSION,
    SEGMENT_HEADER_BYTES,
    TIMESTAMP,
    TIMESTAMP_AT,
    DurablePlace,
    JournalFormatError,
    LogStart,
    Manifest,
    NewerVersionError,
    Record,
    RecordCommand,
    RecordFlag,
    SegmentHeader,
    encode_block,
    encode_record,
    encode_start,
    manifest_name,
    read_blocks,
    read_start,
    segment_name,
    whole_blocks_after,
)
from haclient_fake_server.journal.places import SegmentPlaces
from haclient_stores.disk.checksummed_log import clear_tail, is_same_boot
from haclient_stores.disk.files import Disk, File
from haclient_stores.errors import StoreCorrupt, StoreError

MAX_LOG_STARTS: Final = 256
"""Starts that a prologue repeats: who missed more of them does not know the log again."""

_ZEROS: Final = bytes(2**20)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class JournalSegment(Segment):
    """One file of the journal.

    Attributes:
        capacity_bytes: The size of the file.
        file: Open while it is written, or if it was read recently.
        version: The format version of its header and of every block in it.
    """

    capacity_bytes: int
    file: File | None = None
    version: int = FORMAT_VERSION


@dataclass(slots=True)
class SegmentPrologue:
    """The contents of the first block of every segment.

    Attributes:
        topics: By topic id, message type and topic.
        marks: By publisher id, the highest sequence and its flags.
        starts: The most recent starts of the log, the youngest last.
    """

    topics: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    marks: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    starts: list[LogStart] = field(default_factory=list[LogStart])
    _definitions: bytearray = field(default_factory=bytearray)  # encoded once: there may be many
    _offsets: list[int] = field(default_factory=list[int])

    def take(self, block: Block) -> None:
        """Take in a block that is written now or was read back."""
        for publisher_id, (_, high) in block.publishers.items():
            flags = RecordFlag.ASSIGNED if publisher_id in block.assigned else 0
            self._mark(publisher_id, high, flags)
        for publisher_id, sequence, flags in block.marks:
            self._mark(publisher_id, sequence, flags)
        for topic_id, message_type, topic in block.definitions:
            self._define(topic_id, message_type, topic)

    def take_start(self, start: LogStart) -> None:
        """Take in a start, of this broker or from a block that was read back."""
        if start not in self.starts:
            self.starts = [*self.starts, start][-MAX_LOG_STARTS:]

    def encode_records(self, *, now_us: int) -> tuple[bytes, int]:
        """The records that begin a segment, and their number."""
        definitions = bytearray(self._definitions)
        for offset in self._offsets:  # times never go back from record to record
            TIMESTAMP.pack_into(definitions, offset + TIMESTAMP_AT, now_us)
        parts: list[bytes | bytearray] = [
            encode_start(start, now_us=now_us) for start in self.starts
        ]
        parts.append(definitions)
        parts += [
            encode_record(Record(0, publisher_id, sequence, now_us, 0, RecordCommand.MARK, flags))
            for publisher_id, (sequence, flags) in self.marks.items()
        ]
        count = len(self.starts) + len(self._offsets) + len(self.marks)
        return b"".join(parts), count

    def encode(
        self, place: DurablePlace, *, position: int, now_us: int, durable: DurablePlace
    ) -> bytes:
        """The block that begins a segment; empty when there is nothing to repeat.

        Args:
            place: Where the block is written.
            position: Of the next data record.
            now_us: Time of its records, in microseconds since 1970.
            durable: How far the log was synced.
        """
        records, count = self.encode_records(now_us=now_us)
        if not count:
            return b""
        return encode_block(
            records,
            count=count,
            first_position=position,
            segment=place.segment,
            offset=place.offset,
            durable=durable,
        )

    def _mark(self, publisher_id: int, sequence: int, flags: int) -> None:
        if sequence >= self.marks.get(publisher_id, (0, 0))[0]:
            self.marks[publisher_id] = (sequence, flags)

    def _define(self, topic_id: int, message_type: str, topic: str) -> None:
        if topic_id in self.topics:
            return
        self.topics[topic_id] = (message_type, topic)
        self._offsets.append(len(self._definitions))
        command = RecordCommand.TOPIC
        self._definitions += encode_record(
            Record(0, 0, 0, 0, topic_id, command, key=_bytes(message_type), payload=_bytes(topic))
        )


class Recovered(NamedTuple):
    """The state found when the journal was opened.

    Attributes:
        segments: By number; those that are not sealed are open for writing.
        prologue: Everything that the next segment has to repeat.
    """

    segments: dict[int, JournalSegment]
    prologue: SegmentPrologue


def recover_segments(
    directory: Path, disk: Disk, places: SegmentPlaces, instance_id: int
) -> Recovered:
    """Find the end of the log in a locked directory, and clear what follows it.

    Args:
        directory: The directory of the journal.
        disk: The file system.
        places: Where its segments are.
        instance_id: Id of the broker instance.

    Raises:
        StoreCorrupt: A segment is missing or damaged.
        StoreError: A newer version has written the journal, the archive is that of another log, or
            the disk failed.
    """
    recovery = _Recovery(directory, disk, places, instance_id)
    try:
        recovery.run()
    except BaseException:  # the caller gets no segments that it could close
        for segment in recovery.segments.values():
            if segment.file is not None:
                segment.file.close()
        raise
    return Recovered(recovery.segments, recovery.prologue)


class _End(NamedTuple):
    """Where the log ends although something follows."""

    segment: JournalSegment
    what: str


class _Recovery:
    """One pass through all segments, from the oldest to the youngest."""

    def __init__(
        self, directory: Path, disk: Disk, places: SegmentPlaces, instance_id: int
    ) -> None:
        self._directory = directory
        self._disk = disk
        self._places = places
        self._instance_id = instance_id
        self.segments: dict[int, JournalSegment] = {}
        self.prologue = SegmentPrologue()

    def run(self) -> None:
        numbers = self._numbers()
        for number in numbers:
            end = self._open(number)
            if end is not None:
                self._cut(end, [later for later in numbers if later > end.segment.number])
                break
        if self.segments:
            last = self.segments[max(self.segments)]
            if last.manifest.sealed:  # marks and starts are in no manifest
                self._read_for_prologue(last)

    def _numbers(self) -> list[int]:
        numbers = self._places.find()
        self._check_archive(numbers[0] if numbers else None)
        if numbers and self._is_stray(numbers):
            path = self._path(numbers.pop())
            _log.warning("%s: removed: an empty file: what it may have had is lost", path)
            self._disk.remove(path)
        for wanted, found in zip(
            range(numbers[0], 1 + numbers[-1]) if numbers else (), numbers, strict=False
        ):
            if wanted != found:
                self._check_archive(found)
                raise StoreCorrupt(
                    self._path(wanted),
                    0,
                    f"this segment is missing, {segment_name(found)} is there: bring it back",
                )
        return numbers

    def _check_archive(self, first: int | None) -> None:
        """Refuse a log whose segments before one are in an archive that is not there.

        Without the first ones, what a state of the world has from them would be lost.
        """
        manifest = self._manifest(first - 1) if first is not None and first > 1 else None
        if manifest is not None and manifest.archived:
            raise StoreError(
                f"{self._path(manifest.number)} was archived, and the archive does not have it: "
                "start the broker with the directory that does, as --archive (archive_dir)"
            )

    def _is_stray(self, numbers: list[int]) -> bool:
        """Whether the last segment is an empty file: one gets its name only when it is whole."""
        number = numbers[-1]
        if self._disk.exists(self._directory / manifest_name(number)):
            return False
        if number > 1 and not numbers[:-1]:
            return False
        file = self._places.open(number)
        try:
            return not file.size()
        finally:
            file.close()

    def _open(self, number: int) -> _End | None:
        """Open one segment; the end of the log, if it is before the end of what is there."""
        before = self.segments.get(number - 1)
        file = self._places.open(number)
        try:
            try:
                header = self._header(number, file)
            except JournalFormatError as error:  # a kill leaves no such header, a loss of power may
                if before is None or self._same_boot(before):
                    raise StoreCorrupt(file.path, error.offset, error.what) from error
                return _End(before, f"the next segment is unreadable: {error.what}")
            manifest = self._manifest(number)
            is_foreign = manifest is None and header.instance_id != self._instance_id
            if is_foreign and self._places.is_archived(number):
                raise StoreError(
                    f"{file.path} is of the log of another broker: give each broker an archive "
                    "directory of its own"
                )
            if before is not None and before.manifest.next_position != header.first_position:
                what = (
                    f"it begins at position {header.first_position}, the one before ends before "
                    f"{before.manifest.next_position}"
                )
                if before.manifest.sealed:
                    raise StoreCorrupt(file.path, 0, what)
                return _End(before, f"in the next segment: {what}")
            if manifest is not None:
                segment = JournalSegment(
                    manifest, BlockIndex(manifest.index), file.size(), version=header.version
                )
                self.segments[number] = segment
                return None
            manifest = Manifest(number, header.first_position, header.first_position)
            segment = JournalSegment(
                manifest, BlockIndex(manifest.index), file.size(), file, header.version
            )
            end = self._scan(segment)
            if segment.end == SEGMENT_HEADER_BYTES and number > 1:
                what = "does not begin with a whole block"
                if before is None:
                    raise StoreCorrupt(file.path, segment.end, f"it {what}")
                return _End(before, f"the next segment {what}")
            self._note_moved(segment, end)
            self.segments[number] = segment
        finally:
            if number not in self.segments or self.segments[number].file is None:
                file.close()
        return end

    def _note_moved(self, segment: JournalSegment, end: _End | None) -> None:
        """Note that a segment was sealed although its manifest is damaged or gone."""
        number = segment.number
        if self._places.is_moved(number):
            if end is not None:
                raise StoreCorrupt(self._path(number), segment.end, end.what)
            segment.manifest.sealed, segment.file = True, None
            segment.manifest.archived = self._places.is_archived(number)

    def _header(self, number: int, file: File) -> SegmentHeader:
        try:
            header = SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
        except NewerVersionError as error:
            raise StoreError(f"{file.path}: {error.what}") from error
        if header.number != number:
            what = f"this is segment {header.number}: name it {segment_name(header.number)}"
            raise StoreCorrupt(file.path, 0, what)
        return header

    def _manifest(self, number: int) -> Manifest | None:
        """The manifest of a sealed segment, if there is one that can be read."""
        path = self._directory / manifest_name(number)
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path, writable=False)
        try:
            manifest = Manifest.from_json(file.pread(file.size(), 0).decode("utf-8"))
        except NewerVersionError as error:
            raise StoreError(f"{path}: {error.what}") from error
        except (JournalFormatError, UnicodeDecodeError) as error:
            # it is only a cache of its segment
            _log.warning("%s is unreadable and is built anew: %s", path, error)
            return None
        finally:
            file.close()
        manifest.topics.clear()  # each segment's would be all topics once more
        return manifest if manifest.sealed and manifest.number == number else None

    def _scan(self, segment: JournalSegment) -> _End | None:
        """Read a segment block by block: its index, its topics, and where it ends."""
        data = self._data(segment)
        try:
            for block, offset, end in self._blocks(segment, data):
                segment.add(block, offset, end)
        except JournalFormatError as error:  # a torn block, or damage: `_check_loss` tells which
            return _End(segment, error.what)
        if not _is_zero(data, segment.end):
            return _End(segment, "zeros where a block should be")
        return None

    def _blocks(self, segment: JournalSegment, data: bytes) -> Iterator[tuple[Block, int, int]]:
        """The consecutive blocks with their offsets; the prologue takes each of them in."""
        position = segment.manifest.first_position
        for found in read_blocks(data, SEGMENT_HEADER_BYTES, segment=segment.number):
            if found.first_position != position:
                what = f"a block of position {found.first_position} follows one before {position}"
                raise JournalFormatError(found.offset, what)
            scanned = scan(data, found.start, found.end)
            block = block_from_scan(position, scanned)
            position = block.next_position
            self.prologue.take(block)
            for start in _starts_of(scanned.special):
                self.prologue.take_start(start)
            yield block, found.offset, found.end

    def _read_for_prologue(self, segment: JournalSegment) -> None:
        """Read a sealed segment for what the next one has to repeat."""
        try:
            for _ in self._blocks(segment, self._data(segment)):
                pass
        except JournalFormatError as error:  # damage in what was sealed, and so synced
            raise StoreCorrupt(self._path(segment.number), error.offset, error.what) from error

    def _same_boot(self, segment: JournalSegment) -> bool:
        """Whether the machine has not started again since a segment was written."""
        if segment.manifest.sealed:
            self._read_for_prologue(segment)
        starts = self.prologue.starts
        return bool(starts) and is_same_boot(starts[-1].boot_id, self._disk.boot_id())

    def _cut(self, end: _End, later: list[int]) -> None:
        """Clear what follows the end of the log, unless it shows that the log is damaged."""
        segment = end.segment
        self._check_loss(end, later)
        path = self._path(segment.number)
        _log.warning("%s: cut at byte %d: %s", path, segment.end, end.what)
        for number in reversed(later):  # so a kill in between leaves no gap in the numbers
            self._disk.remove(self._path(number))
        if later:
            self._disk.fsync_dir(self._directory)
        if segment.file is None:  # sealed: everything in it was synced
            return
        clear_tail(segment.file, segment.end, segment.capacity_bytes)

    def _check_loss(self, end: _End, later: list[int]) -> None:
        """Check that a kill or a loss of power can have left what follows the end of the log.

        Raises:
            StoreCorrupt: Neither can, so it is damage.
        """
        segment, place = end.segment, DurablePlace(end.segment.number, end.segment.end)
        proof = ""
        data = self._data(segment)
        for block in whole_blocks_after(data, segment.end, segment=segment.number):
            proof = proof or f"a whole block follows at {block.offset}"
            if block.durable > place:
                raise self._corrupt(end, f"{proof}, and this was synced")
        for number in later:
            # What was archived or compressed was sealed; that of another log must stay, too.
            if self._places.is_moved(number) or self._manifest(number) is not None:
                raise self._corrupt(end, f"{self._path(number)} follows and is sealed")
            file = self._places.open(number)
            try:
                data = file.pread(file.size(), 0)
            finally:
                file.close()
            for block in whole_blocks_after(data, SEGMENT_HEADER_BYTES, segment=number):
                proof = proof or f"a whole block follows in {segment_name(number)}"
                if block.durable > place:
                    raise self._corrupt(end, f"{proof}, and this was synced")
        if proof and self._same_boot(segment):
            raise self._corrupt(end, proof)

    def _corrupt(self, end: _End, proof: str) -> StoreCorrupt:
        path = self._path(end.segment.number)
        return StoreCorrupt(path, end.segment.end, f"{end.what}, and {proof}")

    def _data(self, segment: JournalSegment) -> bytes:
        if segment.file is not None:
            return segment.file.pread(segment.capacity_bytes, 0)
        file = self._places.open(segment.number)
        try:
            return file.pread(segment.end, 0)
        finally:
            file.close()

    def _path(self, number: int) -> Path:
        return self._places.path(number)


def _is_zero(data: bytes, start: int) -> bool:
    """Whether everything from `start` on is zero; faster than counting by a factor of ten."""
    rest = (len(data) - start) % len(_ZEROS)
    parts = range(start + rest, len(data), len(_ZEROS))
    return data.startswith(_ZEROS[:rest], start) and all(
        data.startswith(_ZEROS, part) for part in parts
    )


def _starts_of(special: Iterable[Record]) -> Iterator[LogStart]:
    return (read_start(each) for each in special if each.command == RecordCommand.START)


def block_from_scan(position: int, found: Scan) -> Block:
    """The data of a block, read back, that the index and the prologue need."""
    return Block(
        b"",
        0,
        position,
        max(position, found.last_position + 1),
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
