from __future__ import annotations

from pathlib import Path

import pytest

from haclient_stores.disk.durable_file import DurabilityOptions
from haclient_stores.errors import StoreFull, UsageError
from haclient_stores.publish_stores.hybrid import HybridPublishStore, HybridSegment, HybridStorage
from haclient_stores.publish_stores.segment_file import HEADER_BYTES
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES, Segment
from haclient_stores.publish_stores.store_directory import StoreDirectory
from support.frames import BASE, fill, frame_of, kept, put, put_until_full, take_all
from support.recording import Event, RecordingDisk, Resized, Write

pytestmark = pytest.mark.row("PS13")

PATH = Path("/stores/p")
SMALL = MIN_SEGMENT_BYTES
KIB = b"k" * 1000
IN_SEGMENT = 27  # so many frames of it fill a small segment


def opened(disk: RecordingDisk, *, max_bytes: int = 2**30) -> HybridPublishStore:
    store = HybridPublishStore(
        PATH, memory_bytes=4 * SMALL, segment_bytes=SMALL, max_bytes=max_bytes, disk=disk
    )
    store.number_above(BASE)
    return store


def test_nothing_is_written_while_acks_keep_up() -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    store = opened(disk)
    for _ in range(50):
        fill(store, 40, KIB)
        take_all(store)
        store.discard_up_to(store.last_sequence)
    assert not [event for event in events if isinstance(event, Resized) and event.size == SMALL]
    store.close()


def test_order_replay_and_acks_go_through_both_parts() -> None:
    store = opened(RecordingDisk())
    numbers = fill(store, 200, KIB)
    assert store.memory_used_bytes == 4 * SMALL
    frames = [(number, frame_of(number, KIB)) for number in numbers]
    assert list(store.replay()) == frames
    assert store.replay_single(numbers[3]) == frames[3][1]
    assert take_all(store) == b"".join(frame for _, frame in frames)
    for acked in (numbers[20], numbers[150], numbers[-1]):
        store.discard_up_to(acked)
        assert kept(store) == [number for number in numbers if number > acked]
    assert store.memory_used_bytes <= SMALL
    store.close()


@pytest.mark.row("PS22")
def test_a_killed_process_loses_the_newest_and_never_reuses_a_number() -> None:
    disk = RecordingDisk()
    store = opened(disk)
    numbers = fill(store, 200, KIB)
    disk = disk.killed()
    again = opened(disk)
    left = kept(again)
    assert left == numbers[: len(left)]
    assert 0 < 200 - len(left) <= 4 * (IN_SEGMENT + 1)
    assert put(again) > numbers[-1]
    again.close()
    assert kept(opened(disk))[:-1] == left


def test_a_clean_end_and_a_sync_lose_nothing() -> None:
    disk = RecordingDisk()
    store = opened(disk)
    numbers = fill(store, 30, KIB)
    store.sync()
    assert not store.needs_sync
    assert kept(opened(disk.killed())) == numbers
    numbers += fill(store, 100, KIB)
    store.close()
    store.close()
    again = opened(disk)
    assert kept(again) == numbers
    assert put(again) > numbers[-1]
    again.close()


def test_after_a_sync_the_memory_still_is_what_is_sent() -> None:
    store = opened(RecordingDisk())
    first = fill(store, 3, KIB)
    store.sync()
    rest = fill(store, 3, KIB)
    store.sync()
    assert take_all(store) == b"".join(frame_of(number, KIB) for number in first + rest)
    store.close()


def test_a_disk_without_room_is_a_full_store_that_keeps_what_it_has() -> None:
    disk = RecordingDisk([])
    store = opened(disk)

    def full(event: Event) -> None:
        if isinstance(event, Resized):
            raise StoreFull("no room on the disk")

    disk.before = full
    error = put_until_full(store, KIB)
    assert "no room on the disk" in str(error)
    count = store.unpersisted_count
    assert count == len(kept(store)) == 4 * IN_SEGMENT
    disk.before = None
    assert put(store, KIB) == BASE + count + 1
    assert kept(store) == list(range(BASE + 1, BASE + count + 2))
    store.close()


@pytest.mark.row("PS17")
def test_both_parts_count_for_the_limit() -> None:
    store = opened(RecordingDisk(), max_bytes=6 * SMALL)
    assert isinstance(put_until_full(store, KIB), StoreFull)
    assert store.unpersisted_count == 6 * IN_SEGMENT
    store.close()


def test_a_large_frame_passes_through() -> None:
    store = opened(RecordingDisk())
    sizes = [10, 3 * SMALL, 10, 9 * SMALL, 10]
    numbers = [put(store, b"x" * size) for size in sizes]
    assert [len(frame) for _, frame in store.replay()] == [
        len(frame_of(number, b"x" * size)) for number, size in zip(numbers, sizes, strict=True)
    ]
    store.close()


def test_less_memory_than_two_segments_is_refused() -> None:
    with pytest.raises(UsageError, match="at least two segments of 32768 bytes, not 65535"):
        HybridPublishStore(PATH, memory_bytes=2 * SMALL - 1, segment_bytes=SMALL)


# -- memory and files ----------------------------------------------------------------------------


def storage_of(events: list[Event] | None = None) -> HybridStorage:
    directory = StoreDirectory(
        Path("/stores/p"), RecordingDisk(events), DurabilityOptions(), segment_bytes=SMALL
    )
    return HybridStorage(directory, segment_bytes=SMALL, memory_bytes=2 * SMALL)


def append(storage: HybridStorage, segment: Segment, body: bytes) -> None:
    """Append a frame as the log would, and mark it."""
    sequence = segment.next_sequence
    frame = frame_of(sequence, body)
    end = segment.end + len(frame)
    segment.view[segment.end : end] = frame
    storage.seal(segment, end, sequence + 1)
    segment.mark(end, sequence + 1)


def test_the_oldest_segment_moves_to_a_file_and_stays_the_same() -> None:
    storage = storage_of()
    first, second = storage.create(1, SMALL), storage.create(2, SMALL)
    append(storage, first, b"one")
    append(storage, second, b"two")
    before = bytes(first.view[HEADER_BYTES : first.end + 4])
    storage.create(3, SMALL)
    assert isinstance(first, HybridSegment)
    assert first.region is None
    assert bytes(first.view[HEADER_BYTES : first.end + 4]) == before
    assert isinstance(second, HybridSegment)
    assert second.twin is None
    assert storage.used_bytes == 2 * SMALL


def test_a_copy_writes_the_length_of_its_first_new_frame_last() -> None:
    events: list[Event] = []
    storage = storage_of(events)
    segment = storage.create(1, SMALL)
    for body in (b"one", b"two"):
        append(storage, segment, body)
        del events[:]
        start = segment.mark_offsets[-2]
        storage.copy_out()
        writes = [event for event in events if isinstance(event, Write)]
        frames = range(HEADER_BYTES, segment.end + 1)
        written = [write.offset for write in writes if write.offset in frames]
        assert written[-3:] == [segment.end, start + 4, start]
    del events[:]
    storage.copy_out()
    assert events == []  # nothing new


def test_a_segment_that_is_released_leaves_memory_and_file() -> None:
    storage = storage_of()
    segments = [storage.create(number, SMALL) for number in range(1, 5)]
    for segment in segments:
        storage.release(segment)
    assert storage.used_bytes == 0
    assert all(isinstance(s, HybridSegment) and s.region is None for s in segments)


def test_a_segment_in_a_file_is_not_written_any_more() -> None:
    storage = storage_of()
    segment = storage.create(1, SMALL)
    for number in (2, 3):
        storage.create(number, SMALL)
    with pytest.raises(AssertionError, match="not written any more"):
        _ = segment.writable
