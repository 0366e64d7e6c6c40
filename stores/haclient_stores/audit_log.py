"""The audit log: what a client published, received and discarded, and when.

A publish store forgets what is persisted, and a bookmark log is pruned. For an audit of deliveries
a client can keep a log that only grows and is never asked for anything: of each publish its
sequence, topic and time, and when it was acknowledged or refused; of each delivery its
subscription, bookmark and time, and when it was discarded. `AuditLog` writes it, `AuditLogReader`
joins the events of a log to one record for each publish and each delivery.

The log is a directory of segments `audit-00000001.log`, ...; a new one begins when one has reached
`segment_bytes`, and the oldest are removed while all together exceed `max_bytes`. A segment is a
sequence of blocks, little-endian:

======  =====  ================================================================
offset  bytes  meaning
======  =====  ================================================================
0       4      magic `HAAL`
4       4      crc32 of the rest of the block, continued from the block before
8       1      kind of the block
9       3      zero
12      4      events in the block
16      4      bytes of the payload, which follows
20      8      time of the block, in microseconds since 1970
======  =====  ================================================================

===============  ======================================================================
kind             payload
===============  ======================================================================
1 session        JSON: version, client, publisher_id, session, boot (the machine's boot id in
                 hex), losses (so far in this session, 0 where there is none); begins a
                 segment, each run, and what follows a loss of publishes
2 name           UTF-8 of a topic or sub id; names count from 0 within a segment
3 published      sequences u64[n], times i64[n], names of topics u32[n]
4 acknowledged   u64: everything up to this sequence is persisted
5 refused        u64: the sequence that the server has refused
6 received       u32 name of the sub id; publisher ids u64[n], sequences u64[n], numbers u64[n]
7 discarded      numbers u64[n], times i64[n], names of sub ids u32[n]
8 deleted        as published: deletes (`sow_delete`), which a publisher numbers as well
9 kept           u64, u64: the publish store has kept these sequences of earlier sessions
===============  ======================================================================

A number is the bookmark store's name for one delivery within a session. A checksum continues that
of the block before, so that after a torn write nothing old is taken for new. Reading ends at the
first block that is not whole, as `disk.checksummed_log` has it. If nothing follows, it is the torn
tail of a killed process, which the next session clears. If a whole block follows, or a segment, it
is damage, and an error: an audit of the rest would call good what it cannot see. Only a session
after a restart of the machine takes it for what a loss of power has left, and clears it with a
warning, since nothing is synced.

Deliveries are written before the application sees them, in one write for each chunk that the socket
gave. Publishes and discards are collected: a killed process loses the last ones of them, less than
`COLLECTED_EVENTS` of each; a lost publish is then in the server's log without a record here.
Nothing is synced: a loss of power may take more. An error of the disk ends the log, not the client.

What an ack covers is told by `haclient_stores.open_publishes`.
"""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple

from haclient_stores.checks import check_bytes
from haclient_stores.disk.checksummed_log import clear_tail, is_same_boot
from haclient_stores.disk.files import Disk, File, RealDisk
from haclient_stores.disk.ownership import check_path
from haclient_stores.errors import StoreCorrupt, StoreError, UsageError
from haclient_stores.logs import logger_of
from haclient_stores.open_publishes import OpenPublishes, PublishRecord

__all__ = ["AuditLog", "AuditLogReader", "DeliveryRecord", "PublishRecord"]

COLLECTED_EVENTS: Final = 1024
"""Publishes or discards that are written together."""

VERSION: Final = 1

_COLLECTED_US: Final = 1_000_000  # discards that are older are written with the next chunk

_MAGIC: Final = b"HAAL"
_HEADER: Final = struct.Struct("<4sIB3xIIq")
_CHECKED_FROM: Final = 8  # the checksum covers what follows it
_U64: Final = struct.Struct("<Q")
_TWO_U64: Final = struct.Struct("<QQ")
_U32: Final = struct.Struct("<I")
_SESSION, _NAME, _PUBLISHED, _ACKNOWLEDGED, _REFUSED, _RECEIVED, _DISCARDED = range(1, 8)
_DELETED, _KEPT = 8, 9
_MIN_SEGMENT_BYTES: Final = 4096
_READ_BYTES: Final = 1 << 20
_logger = logger_of("haclient.audit_log")


class AuditLog:
    """Writes an audit log; one client at a time, in one thread except for `discarded`.

    Args:
        path: The directory; it is created.
        segment_bytes: Size at which a new segment begins.
        max_bytes: Size of all segments above which the oldest are removed.
        disk: The file system.

    Raises:
        UsageError: A size can never work.
        StoreLocked: Another process, or another client, writes it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        segment_bytes: int = 16 * 2**20,
        max_bytes: int = 2**30,
        disk: Disk | None = None,
    ) -> None:
        check_bytes("segment_bytes", segment_bytes)
        check_bytes("max_bytes", max_bytes)
        if not _MIN_SEGMENT_BYTES <= segment_bytes <= max_bytes:
            raise UsageError(
                f"an audit log has segment_bytes of {_MIN_SEGMENT_BYTES} to max_bytes, not "
                f"segment_bytes={segment_bytes} and max_bytes={max_bytes}"
            )
        self._segment_bytes = segment_bytes
        self._max_segments = max(max_bytes // segment_bytes, 1)
        self._disk = disk or RealDisk()
        self.path: Final = self._disk.resolve(check_path(path, "the directory of an audit log"))
        self._disk.make_directory(self.path)
        self._locks = self._disk.lock_directory(self.path, "lock")
        self._file: File | None = None
        self._number = 0
        self._end = 0
        self._crc = 0
        self._facts: dict[str, str | int] = {}
        self._losses = 0
        self._names: dict[str, int] = {}
        self._published: list[tuple[int, int, str]] = []
        self._are_deletes = False  # what is collected in `_published`
        self._last_published = 0
        # Another thread may discard: appending to a deque is atomic. Blocks are written under the
        # lock, since the thread that discards writes them when there are many.
        self._discarded: deque[tuple[int, int, str]] = deque()
        self._writing = RLock()
        self._disk.on_fork(self, AuditLog._forked)

    def _forked(self) -> None:
        """Record nothing in a forked child; a thread that does not exist here may have the lock."""
        self._file, self._writing = None, RLock()

    # -- the life of the log -------------------------------------------------------

    def open_for(self, client_name: str, publisher_id: int, now_us: int) -> None:
        """Begin a session of one client.

        Args:
            client_name: Its name.
            publisher_id: The hash of the name.
            now_us: The time in microseconds since 1970.

        Raises:
            UsageError: Another client writes this log.
            StoreCorrupt: The last segment is damaged before its end. Nothing is written.
            StoreError: The last segment cannot be read.
        """
        if self._file is not None:
            raise UsageError(f"{self.path}: an audit log belongs to one client at a time")
        boot = self._disk.boot_id().hex()
        self._facts = {
            "version": VERSION,
            "client": client_name,
            "publisher_id": publisher_id,
            "session": f"{now_us}-{self._disk.process_id()}",
            "boot": boot,
        }
        numbers = _segment_numbers(self._disk, self.path)
        self._number = numbers[-1] if numbers else 1
        last_boot = boot
        # A loss of power may have taken the ends of earlier ones, too: back to one that is whole.
        for number, successor in zip(reversed(numbers[:-1]), reversed(numbers), strict=False):
            with closing(self._disk.open(_segment(self.path, number))) as before:
                with suppress(StoreCorrupt):  # of this boot: it is for readers
                    found = self._find_end(before, boot, boot, successor=successor)
                    last_boot = found if successor == self._number else last_boot
                if 0 < self._end == before.size():
                    break
        file = self._disk.open(_segment(self.path, self._number), create=True)
        try:
            self._find_end(file, boot, last_boot)
        except BaseException:
            file.close()
            raise
        self._file = file
        self._write_session(now_us)

    def _find_end(
        self, file: File, boot: str, last_boot: str, *, successor: int | None = None
    ) -> str:
        """Find where a segment ends, and clear what is behind that.

        Args:
            file: The segment.
            boot: The present boot of the machine.
            last_boot: That of the last session before the segment.
            successor: The number of the next segment, if there is one.

        Returns:
            The boot of the last session up to its end.
        """
        self._end = self._crc = 0
        try:
            for block in _blocks(file, successor):
                self._end, self._crc = block.end, block.crc
                if block.kind == _SESSION:
                    last_boot = json.loads(block.payload).get("boot", boot)
        except StoreCorrupt as damage:
            # Only a loss of power takes a block and leaves one that was written after it.
            if is_same_boot(bytes.fromhex(last_boot), bytes.fromhex(boot)):
                raise
            what = "%s: byte %d: %s: not on disk when the machine stopped, and cut with the rest"
            _logger.warning(what, damage.path, damage.offset, damage.what)
        if self._end < (size := file.size()):
            # A block that was left behind the end would show later that the end is damage.
            clear_tail(file, self._end, size)
        return last_boot

    def close(self) -> None:
        """Write what is collected and release the log; calling it again does nothing."""
        with self._writing:
            try:
                self.flush()
            finally:
                if self._file is not None:
                    self._file.close()
                    self._file = None
                for lock in self._locks:
                    lock.close()

    @property
    def is_open(self) -> bool:
        """Whether events are recorded: it was opened for a client, and no error has ended it."""
        return self._file is not None

    # -- events ------------------------------------------------------------------------

    def kept(self, lowest: int, last: int) -> None:
        """The publish store has these sequences of earlier sessions, and sends them again."""
        with self._writing:
            self._write(_KEPT, _TWO_U64.pack(lowest, last), 1, 0)

    def published(self, sequence: int, topic: str, now_us: int, *, is_delete: bool = False) -> None:
        """A message was published; a call with the number of the last one is ignored.

        Args:
            sequence: Its number.
            topic: Its topic.
            now_us: The time in microseconds since 1970.
            is_delete: It is a `sow_delete`.
        """
        if sequence == self._last_published:
            return
        self._last_published = sequence
        if is_delete is not self._are_deletes:  # a block has either
            self._write_published()
            self._are_deletes = is_delete
        self._published.append((sequence, now_us, topic))
        if len(self._published) >= COLLECTED_EVENTS:
            self._write_published()

    def acknowledged(self, sequence: int, now_us: int) -> None:
        """The server has persisted every publish up to `sequence`."""
        with self._writing:
            self._write_published()
            self._write(_ACKNOWLEDGED, _U64.pack(sequence), 1, now_us)

    def refused(self, sequence: int, now_us: int) -> None:
        """The server has refused one publish."""
        with self._writing:
            self._write_published()
            self._write(_REFUSED, _U64.pack(sequence), 1, now_us)

    def lost(self, now_us: int) -> None:
        """The connection is lost, and with it each publish without an ack: no store keeps them."""
        with self._writing:
            self._write_published()
            self._last_published = 0  # it may be published again
            self._losses += 1
            self._write_session(now_us)

    def received(self, sub_id: str, deliveries: Sequence[tuple[str, int]], now_us: int) -> None:
        """Messages are about to be delivered.

        Args:
            sub_id: Their subscription.
            deliveries: The bookmark and the number of each; what has no bookmark is left out.
            now_us: When they were received, in microseconds since 1970.
        """
        publishers, sequences, numbers = array("Q"), array("Q"), array("Q")
        for bookmark, number in deliveries:
            # "<publisher>|<sequence>|", in almost every case; a list names the newest last
            publisher, _, rest = bookmark.rpartition(",")[2].partition("|")
            if rest:
                publishers.append(int(publisher))
                sequences.append(int(rest.partition("|")[0]))
                numbers.append(number)
        if not publishers:
            return
        with self._writing:
            self._rotate_when_full(now_us)
            name = _U32.pack(self._name(sub_id, now_us))
            payload = b"".join((name, *map(_bytes, (publishers, sequences, numbers))))
            self._write(_RECEIVED, payload, len(publishers), now_us)

    def discarded(self, sub_id: str, number: int, now_us: int) -> None:
        """A delivery was discarded; any thread may call this."""
        self._discarded.append((number, now_us, sub_id))
        if len(self._discarded) >= COLLECTED_EVENTS:
            self._write_discarded()

    def flush(self) -> None:
        """Write what is collected."""
        self._write_published()
        self._write_discarded()

    def flush_when_due(self, now_us: int) -> None:
        """Write the discards if there are old ones."""
        with self._writing:
            if self._discarded and self._discarded[0][1] + _COLLECTED_US < now_us:
                self._write_discarded()

    # -- blocks ------------------------------------------------------------------------

    def _write_session(self, now_us: int) -> None:
        facts = {**self._facts, "losses": self._losses}
        self._write(_SESSION, json.dumps(facts).encode(), 1, now_us)

    def _write_published(self) -> None:
        events, self._published = self._published, []
        if events:
            with self._writing:
                self._write_events(_DELETED if self._are_deletes else _PUBLISHED, events)

    def _write_discarded(self) -> None:
        with self._writing:
            queue = self._discarded
            events = [queue.popleft() for _ in range(len(queue))]
            if events:
                self._write_events(_DISCARDED, events)

    def _write_events(self, kind: int, events: Sequence[tuple[int, int, str]]) -> None:
        """Write a block of numbers, times and names."""
        now_us = events[-1][1]
        self._rotate_when_full(now_us)
        names = array("I", [self._name(each[2], now_us) for each in events])
        numbers = array("Q", [each[0] for each in events])
        times = array("q", [each[1] for each in events])
        self._write(kind, b"".join(map(_bytes, (numbers, times, names))), len(events), now_us)

    def _name(self, text: str, now_us: int) -> int:
        """The number of a name in the current segment, which is written when it is new."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names)
            self._write(_NAME, text.encode("utf-8", "surrogateescape"), 1, now_us)
        return number

    def _rotate_when_full(self, now_us: int) -> None:
        """Begin a new segment after a full one, and remove the oldest above the limit.

        Before the names of a block are numbered, since names count within their segment.
        """
        if self._file is None or self._end < self._segment_bytes:
            return
        try:
            self._file.close()
            self._number += 1
            self._file = self._disk.open(_segment(self.path, self._number), create=True)
            for number in _segment_numbers(self._disk, self.path)[: -self._max_segments]:
                self._disk.remove(_segment(self.path, number))
        except StoreError as error:
            self._end_with(error)
            return
        self._end = self._crc = 0
        self._names.clear()
        self._write_session(now_us)

    def _write(self, kind: int, payload: bytes, count: int, now_us: int) -> None:
        file = self._file
        if file is None:
            return
        block = bytearray(_HEADER.pack(_MAGIC, 0, kind, count, len(payload), now_us) + payload)
        crc = zlib.crc32(memoryview(block)[_CHECKED_FROM:], self._crc)
        _U32.pack_into(block, 4, crc)
        try:
            file.pwrite(block, self._end)
        except StoreError as error:
            self._end_with(error)
            return
        self._end += len(block)
        self._crc = crc
        if kind == _SESSION:  # names count from here on
            self._names.clear()

    def _end_with(self, error: StoreError) -> None:
        """End the log: messages are worth more than the record of them."""
        _logger.error("%s: the audit log ends here, the client goes on: %s", self.path, error)
        if self._file is not None:
            self._file.close()
            self._file = None


# -- reading -----------------------------------------------------------------------------


class DeliveryRecord(NamedTuple):
    """One delivery. A message that was not discarded may be delivered again, as another record.

    Attributes:
        client: The client's name.
        sub_id: The subscription.
        publisher_id: From the message's bookmark, unsigned.
        sequence: From the message's bookmark.
        received_us: When it was received, in microseconds since 1970.
        discarded_us: When it was discarded, `None` if it was not.
        ordinal: Its place in the order of receipt, counted from 0 over the whole log.
    """

    client: str
    sub_id: str
    publisher_id: int
    sequence: int
    received_us: int
    discarded_us: int | None
    ordinal: int


class AuditLogReader:
    """Reads an audit log, also while it is written.

    Args:
        path: Its directory.
        disk: The file system.

    Raises:
        StoreError: There is no such directory.
    """

    def __init__(self, path: str | Path, *, disk: Disk | None = None) -> None:
        self._path = Path(path)
        self._disk = disk or RealDisk()
        self._segments = _segment_numbers(self._disk, self._path)

    @property
    def is_complete(self) -> bool:
        """Whether the log has its beginning: no segment was removed for want of room."""
        return not self._segments or self._segments[0] == 1

    def publishes(self) -> Iterator[PublishRecord]:
        """The publishes; each comes when it is acknowledged or refused, the others at the end.

        Raises:
            StoreCorrupt: A segment is damaged before its end.
            StoreError: A segment is of a newer version, or cannot be read.
        """
        waiting: dict[tuple[str, int], OpenPublishes] = {}
        for session, names, block in self._events():
            key = session.client, session.publisher_id
            open_ones = waiting.setdefault(key, OpenPublishes())
            open_ones.in_session(session.session, session.losses)
            if block.kind in {_PUBLISHED, _DELETED}:
                for sequence, time_us, name in block.numbered():
                    open_ones.add(
                        PublishRecord(
                            *key, sequence, names[name], time_us, None, None, block.kind == _DELETED
                        )
                    )
            elif block.kind == _KEPT:
                open_ones.adopt(*_TWO_U64.unpack(block.payload))
            elif block.kind == _ACKNOWLEDGED:
                for record in open_ones.take_acknowledged(block.number):
                    yield record._replace(acked_us=block.time_us)
            elif block.kind == _REFUSED:
                refused = open_ones.take(block.number)
                if refused is not None:
                    yield refused._replace(refused_us=block.time_us)
        for open_ones in waiting.values():
            yield from open_ones.records()

    def deliveries(self) -> Iterator[DeliveryRecord]:
        """The deliveries; each comes when it is discarded, the others when their session ends.

        Raises:
            StoreCorrupt: A segment is damaged before its end.
            StoreError: A segment is of a newer version, or cannot be read.
        """
        waiting: dict[tuple[str, int], DeliveryRecord] = {}
        current, ordinal = "", 0
        for session, names, block in self._events():
            if session.session != current:
                yield from waiting.values()
                waiting.clear()
                current = session.session
            if block.kind == _RECEIVED:
                sub_id = names[int(_U32.unpack_from(block.payload)[0])]
                for publisher, sequence, number in block.received():
                    # A store of the application's own may give what comes again its old number.
                    if earlier := waiting.pop((sub_id, number), None):
                        yield earlier
                    waiting[sub_id, number] = DeliveryRecord(
                        session.client, sub_id, publisher, sequence, block.time_us, None, ordinal
                    )
                    ordinal += 1
            elif block.kind == _DISCARDED:
                for number, time_us, name in block.numbered():
                    if record := waiting.pop((names[name], number), None):
                        yield record._replace(discarded_us=time_us)
        yield from waiting.values()

    def _events(self) -> Iterator[tuple[_Session, list[str], _Block]]:
        """Every block with its session and the names of its segment so far."""
        for number, successor in zip_longest(self._segments, self._segments[1:]):
            path = _segment(self._path, number)
            if not self._disk.exists(path):  # removed by the writer since it was listed
                continue
            file = self._disk.open(path, writable=False)
            session: _Session | None = None
            names: list[str] = []
            try:
                for block in _blocks(file, successor):
                    if block.kind == _SESSION:
                        session, names = _read_session(path, block.payload), []
                    elif block.kind == _NAME:
                        names.append(block.payload.decode("utf-8", "surrogateescape"))
                    elif session is not None:
                        yield session, names, block
            finally:
                file.close()


class _Session(NamedTuple):
    client: str
    publisher_id: int
    session: str
    losses: int


class _Block(NamedTuple):
    kind: int
    events: int
    time_us: int
    payload: bytes
    end: int
    crc: int

    @property
    def number(self) -> int:
        """The one number of an ack or a refusal."""
        return int(_U64.unpack(self.payload)[0])

    def numbered(self) -> Iterator[tuple[int, int, int]]:
        """Number, time and name of each event."""
        count = self.events
        return zip(
            _array("Q", self.payload[: 8 * count]),
            _array("q", self.payload[8 * count : 16 * count]),
            _array("I", self.payload[16 * count :]),
            strict=True,
        )

    def received(self) -> Iterator[tuple[int, int, int]]:
        """Publisher id, sequence and number of each delivery."""
        columns = _array("Q", self.payload[4:])
        count = self.events
        return zip(columns[:count], columns[count : 2 * count], columns[2 * count :], strict=True)


def _read_session(path: Path, payload: bytes) -> _Session:
    facts = json.loads(payload)
    if facts["version"] != VERSION:
        raise StoreError(
            f"{path}: format version {facts['version']}, where this version of haclient reads "
            f"version {VERSION}: use the version of haclient that has written it"
        )
    return _Session(
        str(facts["client"]),
        int(facts["publisher_id"]),
        str(facts["session"]),
        int(facts.get("losses", 0)),
    )


def _blocks(file: File, successor: int | None = None) -> Iterator[_Block]:
    """The blocks of a segment up to its end.

    Args:
        file: The segment, which a client may be writing.
        successor: The number of the next segment, if there is one: then this one is finished.

    Raises:
        StoreCorrupt: A block is not whole, and it is not the last thing that was written.
    """
    reader = _BlockReader(file)
    offset = crc = 0
    while True:
        block = reader.block_at(offset, crc)
        if block is None:
            rest = file.pread(file.size() - offset, offset)
            follower = _next_whole_block(rest, crc)
            if follower is None:
                if successor is not None and rest.strip(b"\0"):
                    name = _segment(file.path, successor).name
                    what = f"the block is not whole, and the log goes on in {name}"
                    raise StoreCorrupt(file.path, offset, what)
                return
            # A client may have written both after the block was read: then it is whole by now.
            reader = _BlockReader(file)
            block = reader.block_at(offset, crc)
            if block is None:
                where = f"a whole block follows at byte {offset + follower}"
                raise StoreCorrupt(file.path, offset, f"the block is not whole, and {where}")
        yield block
        offset, crc = block.end, block.crc


class _BlockReader:
    """Reads blocks one after the other, many with each access to the file."""

    # Not by way of `disk.checksummed_log`: its blocks carry their places, and its end of a log is
    # final. Here a checksum continues the one before, and a client may be writing the next block.

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._begin = 0

    def block_at(self, offset: int, crc: int) -> _Block | None:
        """The block at an offset, if it is whole and continues the checksum of the one before."""
        at = offset - self._begin
        if len(self._data) - at < _HEADER.size:
            self._read(offset, _READ_BYTES)
            at = 0
        header = _header_at(self._data, at)
        if header is None:
            return None
        wanted, kind, count, length, time_us = header
        size = _HEADER.size + length
        if len(self._data) - at < size:
            self._read(offset, max(size, _READ_BYTES))
            at = 0
            if len(self._data) < size:
                return None
        crc = zlib.crc32(memoryview(self._data)[at + _CHECKED_FROM : at + size], crc)
        if crc != wanted:
            return None
        payload = self._data[at + _HEADER.size : at + size]
        return _Block(kind, count, time_us, payload, offset + size, crc)

    def _read(self, offset: int, count: int) -> None:
        # A damaged length may be greater than any file.
        count = min(count, max(self._file.size() - offset, 0))
        self._data, self._begin = self._file.pread(count, offset), offset


def _header_at(data: bytes, at: int) -> tuple[int, int, int, int, int] | None:
    """Checksum, kind, events, length and time of a block, if there can be one."""
    if len(data) - at < _HEADER.size:
        return None
    magic, *header = _HEADER.unpack_from(data, at)
    wanted, kind, count, length, time_us = header
    if magic != _MAGIC or not _SESSION <= kind <= _KEPT:
        return None
    return wanted, kind, count, length, time_us


def _next_whole_block(rest: bytes, crc: int) -> int | None:
    """Where a whole block follows one that is not whole.

    Args:
        rest: The segment from the block on that is not whole.
        crc: The checksum of the block before that.

    Returns:
        The first byte of a whole block within `rest`, or `None`.
    """
    # The checksum that the next block continues: what the broken one says, or what it would be.
    before: set[int] = set()
    if len(rest) >= _HEADER.size:
        _, said, _, _, length, _ = _HEADER.unpack_from(rest)
        before = {said, zlib.crc32(rest[_CHECKED_FROM : _HEADER.size + length], crc)}
    at = rest.find(_MAGIC, 1)
    while at >= 0:
        if _is_whole(rest, at, before):
            return at
        at = rest.find(_MAGIC, at + 1)
    return None


def _is_whole(data: bytes, at: int, before: Collection[int]) -> bool:
    """Whether a block matches one of the checksums before it, or what is behind it matches it."""
    header = _header_at(data, at)
    if header is None:
        return False
    wanted, _, _, length, _ = header
    end = at + _HEADER.size + length
    if end >= len(data):  # where several blocks are broken, the last one has nothing to match
        return end == len(data)
    if any(zlib.crc32(data[at + _CHECKED_FROM : end], each) == wanted for each in before):
        return True
    behind = _header_at(data, end)
    if behind is None:
        return False
    body = data[end + _CHECKED_FROM : end + _HEADER.size + behind[3]]
    return zlib.crc32(body, wanted) == behind[0]


def _array(kind: str, data: bytes) -> array[int]:
    values: array[int] = array(kind)
    values.frombytes(data)
    return values


def _bytes(values: array[int]) -> bytes:
    return values.tobytes()


def _segment(path: Path, number: int) -> Path:
    return path / f"audit-{number:08d}.log"


def _segment_numbers(disk: Disk, path: Path) -> list[int]:
    """The numbers of the segments in a directory, oldest first."""
    names = [each for each in disk.listdir(path) if each.startswith("audit-")]
    return sorted(
        int(each[6:-4]) for each in names if each.endswith(".log") and each[6:-4].isdigit()
    )
