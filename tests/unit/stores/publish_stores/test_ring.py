from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from haclient_stores.errors import StoreError, StoreFull, UsageError
from haclient_stores.publish_stores.file import FilePublishStore
from haclient_stores.publish_stores.ring import MIN_RING_BYTES, RingPublishStore
from haclient_stores.publish_stores.segment_log import MIN_SEGMENT_BYTES
from support.disks import tiny_file_system
from support.frames import BASE, fill, kept, put, put_until_full, take_all
from support.recording import Created, Event, Killed, RecordingDisk, Resized, failing_sync

pytestmark = pytest.mark.row("PS11", "PS18")

PATH = Path("/stores/p")
CAPACITY = 8 * MIN_SEGMENT_BYTES
KIB = b"k" * 1000


def opened(disk: RecordingDisk, capacity: int = CAPACITY) -> RingPublishStore:
    store = RingPublishStore(PATH, capacity, disk=disk)
    store.number_above(BASE)
    return store


def files(disk: RecordingDisk) -> list[int]:
    return [len(data) for path, data in disk.image().items() if path.suffix == ".seg"]


def persist_all(store: RingPublishStore) -> None:
    take_all(store)
    store.discard_up_to(store.last_sequence)


def test_all_space_is_taken_when_it_is_opened_and_none_later() -> None:
    events: list[Event] = []
    disk = RecordingDisk(events)
    store = opened(disk)
    assert files(disk) == [MIN_SEGMENT_BYTES] * 8
    events.clear()
    for turn in range(30):
        fill(store, 60, bytes([turn]) * 1000)
        if turn % 3 == 0:
            store.sync()  # a synced segment is reused only when the disk knows that it is unused
        persist_all(store)
    assert not [event for event in events if isinstance(event, Created | Resized)]
    store.close()
    assert files(disk) == [MIN_SEGMENT_BYTES] * 8


def test_a_full_ring_has_room_again_when_a_segment_is_persisted() -> None:
    for store in (opened(RecordingDisk()), RingPublishStore(None, CAPACITY)):
        error = put_until_full(store, KIB)
        assert isinstance(error, StoreFull)
        assert error.wait
        count = store.unpersisted_count
        assert count > 100
        take_all(store)
        store.discard_up_to(store.lowest_unpersisted + 40)
        assert put(store, KIB) == store.last_sequence
        store.close()


def test_a_ring_that_raises_does_not_ask_to_wait() -> None:
    store = RingPublishStore(None, CAPACITY, "raise")
    error = put_until_full(store, KIB)
    assert isinstance(error, StoreFull)
    assert not error.wait
    assert f"(capacity_bytes={CAPACITY})" in str(error)
    assert (store.when_full, store.capacity_bytes) == ("raise", CAPACITY)


@pytest.mark.row("PS7")
def test_a_ring_goes_on_where_it_was_closed_also_with_another_capacity() -> None:
    disk = RecordingDisk()
    store = opened(disk)
    numbers = fill(store, 100, KIB)
    store.close()
    larger = opened(disk, 4 * CAPACITY)
    assert kept(larger) == numbers
    assert isinstance(put_until_full(larger, KIB), StoreFull)
    assert larger.unpersisted_count > 3 * 120
    persist_all(larger)
    larger.close()
    smaller = opened(disk, CAPACITY)
    numbers = fill(smaller, 100, KIB)
    smaller.close()
    assert sum(files(disk)) <= CAPACITY + 4 * MIN_SEGMENT_BYTES
    as_files = FilePublishStore(PATH, disk=disk)
    assert kept(as_files) == numbers
    as_files.close()


def test_a_disk_without_room_refuses_the_ring_and_lets_go_of_it(tmp_path: Path) -> None:
    with tiny_file_system(tmp_path / "tiny", 4 * MIN_SEGMENT_BYTES) as root:
        with pytest.raises(StoreFull, match="free some space"):
            RingPublishStore(root / "p", CAPACITY)
        store = RingPublishStore(root / "p", MIN_RING_BYTES)
        put(store)
        store.close()


def test_what_can_never_work_is_refused() -> None:
    with pytest.raises(UsageError, match=f"at least {MIN_RING_BYTES}, not 65535"):
        RingPublishStore(None, MIN_RING_BYTES - 1)
    with pytest.raises(UsageError, match="when_full is one of wait, raise, not"):
        RingPublishStore(None, CAPACITY, "drop")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="capacity_bytes is a whole number of bytes, not '1M'"):
        RingPublishStore(None, "1M")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="a ring in memory cannot have the durability 'fsync'"):
        RingPublishStore(None, CAPACITY, durability="fsync")
    store = RingPublishStore(None, CAPACITY)
    with pytest.raises(UsageError, match="does not fit into the 32768 of a segment"):
        put(store, bytes(MIN_SEGMENT_BYTES))
    assert (store.last_sequence, store.path, store.needs_sync) == (0, None, False)


@pytest.mark.row("PS12")
def test_a_sync_that_fails_at_the_end_does_not_keep_the_lock() -> None:
    disk = RecordingDisk([])
    store = opened(disk)
    put(store)

    def fails(_event: Event) -> None:
        raise StoreError("the disk is broken")

    disk.before = fails
    with pytest.raises(StoreError, match="broken"):
        store.close()
    disk.before = None
    store.close()
    again = opened(disk)
    assert kept(again) == [1001]
    again.close()


@pytest.mark.row("PS18")
def test_a_ring_that_the_disk_has_no_room_for_leaves_no_full_disk_behind() -> None:
    disk = RecordingDisk([])
    made: list[Event] = []

    def fail(event: Event) -> None:
        if isinstance(event, Resized):
            made.append(event)
            if len(made) == 5:
                raise StoreFull("no space left")

    disk.before = fail
    with pytest.raises(StoreFull, match="no space left"):
        RingPublishStore(PATH, CAPACITY, disk=disk)
    assert [path.name for path in disk.image()] == ["control"]
    disk.before = None
    RingPublishStore(PATH, CAPACITY, disk=disk).close()


@pytest.mark.row("PS18", "PS20")
def test_a_segment_whose_last_sync_failed_is_not_lost_for_the_ring() -> None:
    disk = RecordingDisk([])
    store = opened(disk, 2 * MIN_SEGMENT_BYTES)
    put_until_full(store, KIB)
    store.sync()
    take_all(store)
    store.discard_up_to(store.last_sequence - 5)
    with failing_sync(disk):
        while True:
            put(store, KIB)  # until it needs a segment that the disk takes for used
    last = store.last_sequence
    put_until_full(store, KIB)
    assert store.last_sequence > last
    assert len([path for path in disk.image() if path.suffix == ".seg"]) == 2
    store.close()


def test_a_last_segment_without_frames_is_used_whatever_the_next_number_is() -> None:
    whole = opened(RecordingDisk(), MIN_RING_BYTES)
    put_until_full(whole, KIB)
    half = whole.unpersisted_count // 2
    empty = 0
    for kill_after in range(40):
        disk = RecordingDisk([])
        store = RingPublishStore(PATH, MIN_RING_BYTES, disk=disk)
        store.reconcile(seen=0, persisted=0, clock_us=BASE)
        fill(store, half - 1, KIB)
        disk.kill_after(kill_after)
        with contextlib.suppress(Killed):
            fill(store, 2, KIB)
        disk.restart()
        again = RingPublishStore(PATH, MIN_RING_BYTES, disk=disk)
        found = again.unpersisted_count
        # A jump: the number does not follow those in the last segment.
        again.reconcile(seen=BASE + 10_000, persisted=0, clock_us=BASE)
        if found <= half:
            assert put(again, KIB) == BASE + 10_001
            empty += found == half
        again.close()
    assert empty > 5
