"""The segment log: publish store, send queue and replay list in one.

`append` encodes a frame straight into the active segment, a few megabytes of mapped memory. Three
positions describe the state:

* **tail**: everything up to `last_persisted` is persisted. A persisted ack moves it; a segment that
  lies wholly below it goes back to its `SegmentStorage`.
* **cursor**: how far the kernel has taken the bytes of this connection. `peek` shows what comes
  next without copying, `advance` moves on, `rewind` goes back after a lost link.
* **head**: where the next frame goes.

A frame is the 4-byte big-endian length of the rest, then head, decimal digits of the sequence, tail
and body, exactly as it goes over the wire. Within a segment the sequences have no gaps: a jump in
the numbering (a logon) starts a new segment, so the n-th frame needs no number of its own.

**Order of writes.** The slot for the next length is always zero. A frame's bytes and the next zero
slot are written first, its own length last and in one store of 4 bytes. A process that is killed
between any two instructions leaves a whole frame or none.

**Marks.** Every 64 KiB the log notes where it is; on disk `SegmentStorage.seal` adds a checksum.
Marks are the only index, so finding a sequence walks at most 64 KiB of lengths, and nothing is kept
for each message.

**Calls** come from one thread (`ThreadBinding`), except `sync`, which may run concurrently in
another one: everything that it shares with `append` (marks, rolling) happens under a lock at the
slow points only. Between `peek` and `advance` there must be no other call. A segment whose frames
are all persisted stays as long as the cursor is inside one of its frames, since a frame that was
begun has to be finished.
"""

from __future__ import annotations

import struct
import threading
from abc import abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from haclient_stores.checks import check_bytes
from haclient_stores.disk.files import PAGE_BYTES, Writable
from haclient_stores.disk.threads import ThreadBinding
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.window import PublishWindow

SLOT_BYTES: Final = 4  # the length in front of each frame, and the zero after the last
MIN_SEGMENT_BYTES: Final = 8 * PAGE_BYTES
MAX_SEGMENT_BYTES: Final = 512 * 2**20  # the largest frame fits, and offsets take 4 bytes

frame_length = struct.Struct(">I").unpack_from
MARK_BYTES: Final = 64 * 1024  # one checksum and one index entry per this many bytes
# The largest publish: a server passes it on in a frame of 256 MiB at most, with longer headers.
MAX_FRAME_BYTES: Final = 255 * 2**20
_EMPTY: Final = memoryview(b"")
_NO_LENGTH: Final = bytes(SLOT_BYTES)

_pack_length = struct.Struct(">I").pack


@dataclass(frozen=True, slots=True)
class Limits:
    """How a log may grow.

    Attributes:
        segment_bytes: Size of a segment; a larger frame gets a segment of its own size.
        max_bytes: All segments together are never larger than this.
        resize: Asked with the new size in bytes before the log grows; False refuses.
        fixed: Every segment has the same size, so no frame is larger than that.
        wait: The error of a log at its limit says that `publish` should wait for acks.

    Raises:
        UsageError: No segment can have this size, or the log could not have even one.
    """

    segment_bytes: int
    max_bytes: int
    resize: Callable[[int], bool] | None = None
    fixed: bool = False
    wait: bool = False

    def __post_init__(self) -> None:
        size = check_bytes("segment_bytes", self.segment_bytes)
        if not MIN_SEGMENT_BYTES <= size <= MAX_SEGMENT_BYTES:
            raise UsageError(
                f"segment_bytes is from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}, not {size}"
            )
        if check_bytes("max_bytes", self.max_bytes) < size:
            raise UsageError(
                f"max_bytes is at least segment_bytes, which is {size}, not {self.max_bytes}"
            )

    def next_segment(self, needed: int, *, held: int, granted: int, waiting: int) -> int:
        """The size of the next segment, if there may be one.

        Args:
            needed: Bytes that the frame takes, with the header of a segment.
            held: The size of all segments now, in bytes.
            granted: The largest size so far, in bytes; up to this size `resize` is not called
                again.
            waiting: How many messages wait for their acks, for the error.

        Raises:
            StoreFull: The log would be too large, or the handler refused.
            UsageError: No segment of a fixed log takes such a frame.
        """
        size = max(self.segment_bytes, -(-needed // PAGE_BYTES) * PAGE_BYTES)
        total = held + size
        if self.fixed and size > self.segment_bytes:
            raise UsageError(
                f"a frame that takes {needed} bytes does not fit into the {self.segment_bytes} of "
                "a segment of this store: give it more capacity_bytes"
            )
        if total > self.max_bytes:
            setting = "capacity_bytes" if self.fixed else "max_bytes"
            raise StoreFull(
                f"{waiting} messages wait for their persisted acks and fill the store "
                f"({setting}={self.max_bytes}): wait for acks, which a sync destination that is "
                "down holds back, or allow more",
                wait=self.wait,
            )
        if self.resize is not None and total > granted and not self.resize(total):
            what = f"the resize handler refused to let the store grow to {total} bytes"
            raise StoreFull(what, wait=True)
        return size


class Segment:
    """Frames with consecutive sequences in one piece of memory.

    Attributes:
        first: The sequence of the first frame.
        begin: Offset of the first frame.
        end: Offset after the last frame, where a zero length stands. While the segment is the
            active one only the log knows it.
        next_sequence: The sequence after the last frame; like `end`.
        mark_offsets, mark_sequences: Known frame boundaries and the sequence that starts there.
        released: It was returned to the storage: remaining references must not read it.
    """

    def __init__(self, *, first: int, begin: int, size: int) -> None:
        self.first = first
        self.begin = begin
        self.end = begin
        self.size = size
        self.next_sequence = first
        self.mark_offsets = [begin]
        self.mark_sequences = [first]
        self.released = False

    @property
    @abstractmethod
    def view(self) -> memoryview:
        """The bytes of the segment, mapped again if it was parked."""

    @property
    def writable(self) -> Writable:
        """The same bytes, in the form that is fastest to write."""
        return self.view

    @property
    def frame_limit(self) -> int:
        """The offset that frames, and the zero after the last, do not pass."""
        return self.size

    def mark(self, end: int, next_sequence: int) -> None:
        """Note a frame boundary, which becomes the end."""
        self.mark_offsets.append(end)
        self.mark_sequences.append(next_sequence)
        self.end = end
        self.next_sequence = next_sequence

    def offset_of(self, sequence: int) -> int:
        """The offset of a frame in this segment."""
        index = bisect_right(self.mark_sequences, sequence) - 1
        return walk(self.view, self.mark_offsets[index], sequence - self.mark_sequences[index])

    def boundary_before(self, offset: int) -> int:
        """A known frame boundary at or before an offset."""
        return self.mark_offsets[bisect_right(self.mark_offsets, offset) - 1]


class SegmentStorage(Protocol):
    """Where segments come from and go to: anonymous memory, or the files of a store.

    Attributes:
        begin: Offset of the first frame in each segment, in bytes.
        margin: Bytes at the end of a new segment that frames must not take.
    """

    begin: int
    margin: int

    @abstractmethod
    def create(self, first: int, size: int) -> Segment:
        """An empty segment.

        Args:
            first: The sequence of its first frame.
            size: Its size in bytes.

        Raises:
            StoreFull: There is no room; nothing has changed.
        """

    @abstractmethod
    def release(self, segment: Segment) -> None:
        """Take a segment back: all of its frames are persisted."""

    @abstractmethod
    def park(self, segment: Segment) -> None:
        """The segment will not be read for a while: it may be unmapped until then."""

    @abstractmethod
    def seal(self, segment: Segment, end: int, next_sequence: int) -> None:
        """Protect the frames from `segment.end` to `end` with a checksum: they are complete.

        Args:
            segment: The segment, whose `end` and `next_sequence` are still the old ones.
            end: Offset after the last of the frames, in bytes.
            next_sequence: The sequence after the last of them.
        """

    @abstractmethod
    def save_numbers(self, window: PublishWindow, *, skipped: bool) -> None:
        """Save the last persisted and the last used sequence, and whether a server was asked.

        Args:
            window: Where those are.
            skipped: Numbers were skipped of which no segment knows, so this has to be synced too.
        """


class SegmentLog:
    """Segments, tail, cursor and head of one publisher's frames.

    Attributes:
        unsent_bytes: How much `peek` would show, over all segments.
    """

    def __init__(
        self,
        storage: SegmentStorage,
        window: PublishWindow,
        *,
        limits: Limits,
        name: object = "a publish store in memory",
    ) -> None:
        self._storage = storage
        self._window = window
        self._limits = limits
        self._lock = threading.RLock()
        self._thread = ThreadBinding(name)
        self._segments: deque[Segment] = deque()
        self._held_bytes = 0  # the size of all segments
        self._granted_bytes = 0  # the most that was ever held; growing beyond asks the handler
        self._closed_bytes = 0  # frames in all segments but the active one
        self._tail_bytes = 0  # frames at the front that are known to be persisted
        self._active: Segment | None = None
        self._memory: Writable = _EMPTY
        self._at = SLOT_BYTES  # where the next frame goes, after its length
        self._limit = 0  # an append that would end beyond takes the slow path
        self._jumped = False  # the next sequence does not follow the last frame
        self._cursor_segment: Segment | None = None
        self._cursor = 0
        self._boundary = 0  # a frame boundary in the cursor's segment, at or before the cursor
        self.unsent_bytes = 0

    def restore(self, segments: Iterable[Segment]) -> None:
        """Take over the segments of an earlier process, ascending; the last one is continued."""
        for segment in segments:
            self._segments.append(segment)
            self._held_bytes += segment.size
            self._closed_bytes += segment.end - segment.begin
        self._granted_bytes = self._held_bytes
        if self._segments:
            self._activate(self._segments[-1])
            self._closed_bytes -= self._end - self._segments[-1].begin
        self._set_back(0)

    # -- head ---------------------------------------------------------------------------------

    def append(self, head: bytes, tail: bytes, body: bytes | bytearray | memoryview) -> int:
        """Store one frame.

        Args:
            head: The frame up to the sequence, without its length.
            tail: The header after the sequence.
            body: The payload, any buffer.

        Returns:
            The sequence of the frame.

        Raises:
            StoreFull: No room for a new segment; nothing was stored, no number used.
            UsageError: The frame is larger than any server accepts.
        """
        # The thread is not checked here: the client has done so, and twice would cost 5 %.
        window = self._window
        sequence = window.last_sequence + 1
        rest = b"%b%d%b%b\0\0\0\0" % (head, sequence, tail, body)  # type: ignore[str-format]  # any buffer will do
        length = len(rest)  # of the frame too: its own slot is as long as the next one
        at = self._at
        after = at + length
        if after > self._limit:  # the slow path: mark, begin another segment, or refuse
            self._make_room(length)
            return self.append(head, tail, body)
        memory = self._memory
        # The frame and the zero after it first, its own length last and in one store: a process
        # that is killed in between leaves a whole frame or none.
        memory[at:after] = rest
        memory[at - 4 : at] = _pack_length(length - 4)
        self._at = after
        window.last_sequence = sequence
        self.unsent_bytes += length
        return sequence

    def append_many(
        self, heads: Iterable[bytes], tail: bytes, bodies: Iterable[bytes | bytearray | memoryview]
    ) -> None:
        """Store several frames, as `append` stores each of them, but in one write for each mark.

        Args:
            heads: The frames up to their sequences, at least one for each body.
            tail: The header after the sequence of each.
            bodies: The payloads.

        Raises:
            StoreFull: No room for a new segment; the frames before that are stored.
            UsageError: A frame is larger than any server accepts; those before it are stored.
        """
        sequence = self._window.last_sequence
        parts: list[bytes] = []  # a length and a frame in turn
        size, room = 0, self._limit - self._at
        for body, head in zip(bodies, heads, strict=False):
            sequence += 1
            rest = b"%b%d%b%b" % (head, sequence, tail, body)  # type: ignore[str-format]  # as above
            length = len(rest)
            size += SLOT_BYTES + length
            if size > room:
                self._write(parts)
                self._make_room(SLOT_BYTES + length)
                parts, size, room = [], SLOT_BYTES + length, self._limit - self._at
            parts += (_pack_length(length), rest)
        self._write(parts)

    def _write(self, parts: list[bytes]) -> None:
        """Write frames for which there is room, each after its length; the first length last."""
        if not parts:
            return
        first, parts[0] = parts[0], b""
        parts.append(_NO_LENGTH)
        rest = b"".join(parts)
        memory, at = self._memory, self._at
        memory[at : at + len(rest)] = rest
        memory[at - SLOT_BYTES : at] = first
        self._at = at + len(rest)
        self._window.last_sequence += len(parts) // 2
        self.unsent_bytes += len(rest)

    @property
    def _end(self) -> int:
        """Where the length of the next frame goes."""
        return self._at - SLOT_BYTES

    def _make_room(self, length: int) -> None:
        """Make room for a frame of `length` bytes: mark, and begin another segment if needed."""
        check_frame(length)
        with self._lock:
            active = self._active
            if active is not None and not self._jumped:
                self._mark(active, self._end, self._window.last_sequence + 1)
                if self._at + length > active.frame_limit:
                    active = None
            if active is None or self._jumped:
                active = self._roll(length)
            most = max(self._at + length, active.end + MARK_BYTES)
            self._limit = min(active.frame_limit, most)

    def forked(self) -> None:
        """Called in a forked child, whose segments are its parent's memory: drop them unwritten.

        The next append asks the storage for a segment, which refuses. The lock may be held by a
        thread that does not exist here.
        """
        self._lock = threading.RLock()
        self.detach()

    def _mark(self, active: Segment, end: int, next_sequence: int) -> None:
        """Seal what was appended since the last mark."""
        if active.end == end:
            return
        self._storage.seal(active, end, next_sequence)
        active.mark(end, next_sequence)
        self._limit = min(self._limit, active.frame_limit)  # the seal has taken its room

    def checkpoint(self) -> int:
        """Seal all that is appended; returns the last sequence of it. Any thread may call this.

        The frames are counted, not asked for: another thread may see the new end of an append
        and still the old number.
        """
        with self._lock:
            active = self._active
            if active is None:
                return self._window.last_sequence
            offset, end, next_sequence = active.end, self._end, active.next_sequence
            while offset < end:
                offset += SLOT_BYTES + int(frame_length(self._memory, offset)[0])
                next_sequence += 1
            self._mark(active, end, next_sequence)
            return self._window.last_sequence if self._jumped else next_sequence - 1

    def mark_head(self) -> None:
        """Mark the head; call it before the numbering may change."""
        with self._lock:
            active = self._active
            if active is None or self._jumped:
                return
            self._mark(active, self._end, self._window.last_sequence + 1)

    def renumbered(self) -> None:
        """The numbering may have changed: a jump begins a new segment with the next append."""
        with self._lock:
            active = self._active
            if active is not None and active.next_sequence != self._window.last_sequence + 1:
                self._jumped = True
                self._limit = 0

    def _leave_persisted(self) -> None:
        """Release the last segment if nothing in it is needed: its room may be what is missing."""
        active = self._active
        if active is None or self._window.count or self.unsent_bytes or len(self._segments) > 1:
            return
        self._drop(self._segments.pop())
        self._active = self._cursor_segment = None
        self._memory = _EMPTY
        self._at = SLOT_BYTES
        self._limit = self._cursor = self._boundary = self._tail_bytes = 0

    def _roll(self, length: int) -> Segment:
        self._leave_persisted()
        size = self._limits.next_segment(
            self._storage.begin + length + 2 * SLOT_BYTES + self._storage.margin,
            held=self._held_bytes,
            granted=self._granted_bytes,
            waiting=self._window.count,
        )
        first = self._window.last_sequence + 1
        segment = self._storage.create(first, size)
        old = self._active
        if old is not None and old.end == old.begin:  # nothing in it: the numbering has jumped
            self._drop(self._segments.pop())
        elif old is not None:
            self._closed_bytes += old.end - old.begin
        self._segments.append(segment)
        self._held_bytes += segment.size
        self._granted_bytes = max(self._granted_bytes, self._held_bytes)
        self._active = None
        self._activate(segment)
        if self._cursor_segment is None or self._cursor_segment.released:
            self._set_cursor(segment, segment.begin)
        elif old is self._cursor_segment:
            self._leave_finished_segment()
        elif old is not None:
            self._storage.park(old)
        return segment

    def _activate(self, segment: Segment) -> None:
        self._active = segment
        self._memory = segment.writable
        self._at = segment.end + SLOT_BYTES
        self._limit = 0
        self._jumped = segment.next_sequence != self._window.last_sequence + 1

    # -- tail ---------------------------------------------------------------------------------

    def discard_up_to(self, sequence: int) -> None:
        """Take over a persisted ack: everything up to `sequence` is done with.

        Raises:
            StoreError: The number is higher than any publisher reaches; nothing is changed.
            UsageError: Another thread than this one uses the store.
        """
        self._thread.check()
        window = self._window
        if sequence <= window.last_persisted:
            return
        jumps = sequence > window.last_sequence
        if jumps:  # the server knows more of this publisher than we do: number above it
            window.check_peer_sequence(sequence)
            self.mark_head()
        window.persist(sequence)
        self._storage.save_numbers(window, skipped=jumps)
        if jumps:
            self.renumbered()
        self.trim()

    def number_above(self, sequence: int) -> None:
        """Number above `sequence` if the history does not say how far this publisher came."""
        self._thread.check_opening()
        if self._window.begin_above(sequence):
            self._storage.save_numbers(self._window, skipped=True)
            self.renumbered()

    def reconcile(self, *, seen: int, persisted: int, clock_us: int) -> None:
        """Take over the logon ack; see `PublishWindow.reconcile` for what it raises."""
        self._thread.check()
        self.mark_head()
        self._window.reconcile(seen=seen, persisted=persisted, clock_us=clock_us)
        self._storage.save_numbers(self._window, skipped=True)
        self.renumbered()
        self.trim()

    def trim(self) -> None:
        """Release segments whose frames are all persisted, as far as the cursor allows."""
        persisted = self._window.last_persisted
        segments = self._segments
        while len(segments) > 1 and segments[0].next_sequence - 1 <= persisted:
            if not self._pass_by(segments[0]):
                break
            with self._lock:
                self._closed_bytes -= segments[0].end - segments[0].begin
                self._drop(segments.popleft())
        self._tail_bytes = 0
        for segment in segments:
            offsets = segment.mark_offsets
            marks = bisect_right(segment.mark_sequences, persisted + 1)
            self._tail_bytes += offsets[max(marks, 1) - 1] - segment.begin
            if marks < len(offsets) or segment is self._active:
                break

    def _pass_by(self, segment: Segment) -> bool:
        """Move the cursor out of a segment if it is at a frame boundary; whether it is out."""
        if segment is not self._cursor_segment:
            return True
        if self._rest_of_frame():
            return False
        self.unsent_bytes -= segment.end - self._cursor
        self._cursor = segment.end
        self._set_cursor(self._segments[1], self._segments[1].begin)
        return True

    def _drop(self, segment: Segment) -> None:
        segment.released = True
        self._held_bytes -= segment.size
        self._storage.release(segment)

    @property
    def unpersisted_bytes(self) -> int:
        """Bytes of frames that wait for their ack.

        Exact when none does; else too high by less than one mark and one frame, never too low.
        """
        active = self._active
        if active is None or not self._window.count:
            return 0
        return self._closed_bytes + self._end - active.begin - self._tail_bytes

    # -- cursor -------------------------------------------------------------------------------

    def rewind(self, after: int) -> None:
        """Set the cursor to the first unpersisted frame with a sequence above `after`."""
        self._thread.check()
        self._set_back(after)

    def _set_back(self, after: int) -> None:
        self.mark_head()
        target = max(after, self._window.last_persisted) + 1
        unsent = 0
        for segment in reversed(self._segments):
            if segment.next_sequence <= target:
                break
            at = segment.begin if segment.first >= target else segment.offset_of(target)
            unsent += segment.end - at
            self._set_cursor(segment, at)
        if not unsent and self._active is not None:
            self._set_cursor(self._active, self._end)
        self.unsent_bytes = unsent
        self.trim()

    def detach(self) -> list[Segment]:
        """Give all segments away, for good, because the storage is about to be closed."""
        with self._lock:
            segments = list(self._segments)
            self._segments.clear()
            self._active = self._cursor_segment = None
            self._memory = _EMPTY
            self._at = SLOT_BYTES
            self._limit = self._cursor = self._boundary = self.unsent_bytes = 0
            self._held_bytes = self._closed_bytes = self._tail_bytes = 0
            return segments

    def _set_cursor(self, segment: Segment, offset: int) -> None:
        self._cursor_segment = segment
        self._cursor = self._boundary = offset

    def peek(self) -> memoryview:
        """The unsent bytes of the cursor's segment, not copied; empty when there are none.

        Valid until the next call of anything but `advance`.
        """
        self._thread.check()
        segment = self._cursor_segment
        if segment is None:
            return _EMPTY
        end = self._end if segment is self._active else segment.end
        return segment.view[self._cursor : end]

    def advance(self, count: int) -> None:
        """Advance the send cursor by `count` bytes of what `peek` returned."""
        self._thread.check()
        self._cursor += count
        self.unsent_bytes -= count
        if self._cursor_segment is not self._active:
            self._leave_finished_segment()

    def _leave_finished_segment(self) -> None:
        segment = self._cursor_segment
        if segment is None or self._cursor < segment.end:
            return
        following = self._segments[self._segments.index(segment) + 1]
        self._set_cursor(following, following.begin)
        if segment.next_sequence - 1 <= self._window.last_persisted:
            self.trim()
        else:
            self._storage.park(segment)

    def frame_remainder(self) -> int:
        """Bytes from the cursor to the next frame boundary; 0 when it is at one."""
        self._thread.check()
        return self._rest_of_frame()

    def _rest_of_frame(self) -> int:
        segment = self._cursor_segment
        if segment is None or self._boundary == self._cursor:
            return 0
        offset = max(self._boundary, segment.boundary_before(self._cursor))
        view, cursor = segment.view, self._cursor
        before = offset
        while offset < cursor:
            before = offset
            offset += SLOT_BYTES + int(frame_length(view, offset)[0])
        self._boundary = offset if offset == cursor else before
        return offset - cursor

    # -- replay -------------------------------------------------------------------------------

    def frames(self, after: int) -> Iterator[tuple[int, bytes]]:
        """Sequence and frame of each unpersisted publish above `after`, in ascending order."""
        self.mark_head()
        for segment in list(self._segments):
            first = max(segment.first, after + 1, self._window.last_persisted + 1)
            if segment.released or first >= segment.next_sequence:
                continue
            try:
                yield from self._frames_of(segment, first)
            finally:  # also when the caller stops iterating
                self._park_if_unused(segment)

    def _park_if_unused(self, segment: Segment) -> None:
        if not segment.released and segment not in (self._active, self._cursor_segment):
            self._storage.park(segment)

    def _frames_of(self, segment: Segment, first: int) -> Iterator[tuple[int, bytes]]:
        offset = segment.offset_of(first)
        for sequence in range(first, segment.next_sequence):
            if segment.released:
                break
            view = segment.view
            end = walk(view, offset, 1)
            if sequence > self._window.last_persisted:
                yield sequence, bytes(view[offset:end])
            offset = end


def check_frame(length: int) -> None:
    """Check that a publish is not too long for every server.

    Args:
        length: Of its frame, in bytes.

    Raises:
        UsageError: It is: each server would close the connection.
    """
    if length > MAX_FRAME_BYTES:
        raise UsageError(
            f"a frame of {length} bytes is larger than the {MAX_FRAME_BYTES} that servers take"
        )


def walk(view: memoryview, offset: int, frames: int) -> int:
    """The offset that is `frames` frames after `offset`."""
    for _ in range(frames):
        offset += SLOT_BYTES + int(frame_length(view, offset)[0])
    return offset
